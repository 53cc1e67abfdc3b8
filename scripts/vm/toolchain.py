# SPDX-License-Identifier: GPL-2.0-or-later
"""Compilers for every architecture: Debian sid's in a directory of their own, entered with chroot.

Modules are built with it for kernels whose compiler this machine may not have, and what runs in
guests of other architectures. `mmdebstrap --variant=extract` runs no maintainer script and asks
nothing of the host but root. What a build needs to see is mounted into it in a mount namespace of
the build's own, so nothing is left mounted however the build ends.
"""

from __future__ import annotations

import inspect
import re
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path

from . import paths, store
from .apt import Apt
from .arches import ARCHES, Arch
from .errors import SetupError
from .proc import need, run
from .say import say

SUITE = "sid"
HOST = "amd64"
PACKAGES = (
    # What kernels are configured and built with.
    "bc",
    "bison",
    "diffutils",
    "flex",
    "gzip",
    "libelf-dev",
    "libssl-dev",
    "openssl",
    "perl",
    "tar",
    # What modules are built with.
    "coreutils",
    "dash",
    "findutils",
    "grep",
    "libc6-dev",
    # Brings what the programs among the headers are linked against.
    "linux-headers-amd64",
    "make",
    "mawk",
    "sed",
)
SHOWN = ("dev", "proc")
"""Directories of the host's that programs inside expect."""


def _cross(version: str) -> list[str]:
    """Packages of the compilers for other architectures, and the C libraries to link with."""
    others = [arch for arch in ARCHES.values() if arch.name != HOST]
    return [
        *(f"gcc-{version}-{arch.triplet.replace('_', '-')}" for arch in others),
        *(f"libc6-dev-{arch.name}-cross" for arch in others),
    ]


def _version(apt: Apt) -> str:
    """The compiler the suite's newest kernel is built with, as its headers say."""
    for package in apt.closure("linux-headers-amd64", r"linux-headers-\d"):
        for name in package.depends:
            match = re.fullmatch(r"gcc-(\d+)(-for-host)?", name)
            if match:
                return match[1]
    raise SetupError(f"the kernel headers of {SUITE} depend on no gcc")


def _make(packages: Sequence[str], apt: Apt, headers: Sequence[tuple[Arch, str]], to: Path) -> None:
    say(f"making a directory with the compilers of {SUITE} ({', '.join(packages)})")
    apt.extract(packages, to)
    for arch, name in headers:
        # Its headers alone: the package depends on a whole python of its architecture.
        other = Apt(SUITE, arch.name)
        with tempfile.TemporaryDirectory(prefix="ptscope-headers-") as scratch:
            for deb in other.download([other.show(name)], Path(scratch)):
                run([need("dpkg-deb", "dpkg"), "-x", deb, to], what=f"extracting {deb.name}")
    # What maintainer scripts would have made.
    for link, target in (
        ("bin", "usr/bin"),
        ("lib", "usr/lib"),
        ("lib64", "usr/lib64"),
        ("sbin", "usr/sbin"),
        ("usr/bin/awk", "mawk"),
    ):
        if not (to / link).is_symlink() and not (to / link).exists():
            (to / link).symlink_to(target)
    for name in (*SHOWN, "tmp"):
        (to / name).mkdir(exist_ok=True)


class Toolchain:
    """The compilers, made when absent."""

    def __init__(self) -> None:
        apt = Apt(SUITE, HOST)
        home = paths.cache() / "toolchain"
        apt.update()
        self.version = _version(apt)
        python = next(name for name in apt.show("libpython3-dev").depends if name.endswith("-dev"))
        self.python = python.removeprefix("lib").removesuffix("-dev")
        headers = [(arch, python) for arch in ARCHES.values()]
        for arch, _ in headers:
            Apt(SUITE, arch.name).update()
        packages = [*PACKAGES, f"gcc-{self.version}", *_cross(self.version)]
        key = store.digest(*packages, python, inspect.getsource(_make))
        self.root = store.make_dir(
            home / key, lambda partial: _make(packages, apt, headers, partial), "toolchain"
        )
        store.forget_others(self.root, "????????????????")

    def compiler(self, arch: Arch) -> str:
        """The C compiler for programs of ``arch``."""
        return f"{arch.triplet}-gcc-{self.version}"

    def run(self, command: Sequence[str | Path], *, shown: Sequence[Path], what: str) -> str:
        """Run ``command`` inside; directories of ``shown`` are at the paths they have outside.

        Returns what it printed, on either stream; raises `BuildError` when it fails.
        """
        mounts = [Path("/") / name for name in SHOWN] + list(shown)
        # Its own /tmp too, and first, for what is shown may lie there: builds run side by side.
        script = " && ".join(
            [
                'mount -t tmpfs tmpfs "$0/tmp"',
                *(
                    f'mkdir -p "$0"{path} && mount --rbind {path} "$0"{path}'
                    for path in map(shlex.quote, map(str, mounts))
                ),
                'exec chroot "$0" "$@" 2>&1',
            ]
        )
        return run(
            [
                # A harness that is killed must not leave a build running.
                *("setpriv", "--pdeathsig", "KILL"),
                need("unshare", "util-linux"),
                *("--pid", "--kill-child", "--mount", "--propagation=private"),
                "sh",
                "-c",
                script,
                self.root,
                *command,
            ],
            what=what,
            env={"LC_ALL": "C", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        )


_made: list[Toolchain] = []


def toolchain() -> Toolchain:
    """The toolchain; looked for once in a run."""
    with store.locked("toolchain-lookup"):
        if not _made:
            _made.append(Toolchain())
        return _made[0]
