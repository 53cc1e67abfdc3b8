# SPDX-License-Identifier: GPL-2.0-or-later
"""The guest's user space: Debian's python3 and busybox as an initramfs, made once and cached.

`mmdebstrap --variant=extract` unpacks packages without running anything from them, so this works
for every architecture; what maintainer scripts would have done is done here.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from . import cpio, paths, store
from .apt import Apt
from .arches import ARCHES
from .errors import BuildError
from .kernels import Kernel
from .proc import need, run
from .say import say

PACKAGES = (
    "busybox-static",
    "python3",
    "python3-cffi-backend",
    "python3-click",
    "python3-hypothesis",
    "python3-psutil",
    "python3-pyroute2",
    "python3-pytest",
    "python3-zstandard",
)
NATIVE = ("busybox-static", "python3")
"""What must run here while the user space of another architecture is made."""

# Nothing in a guest reads these, and every byte is unpacked at each boot (patterns below /).
DROPPED = (
    "dev",
    "etc/apt",
    "usr/include",
    "usr/lib/*/gconv",
    # hashlib has its own for all that is used here; nothing here speaks TLS. sqlite3 is imported by
    # pyroute2, whatever of it is used.
    "usr/lib/*/libcrypto.so*",
    "usr/lib/*/libssl.so*",
    "usr/lib/*/engines-3",
    "usr/lib/*/ossl-modules",
    "usr/lib/*/libdb-*.so",
    "usr/lib/ssl",
    "usr/lib/systemd",
    "usr/lib/valgrind",
    "usr/lib/python3.*/distutils",
    "usr/lib/python3.*/ensurepip",
    "usr/lib/python3.*/idlelib",
    "usr/lib/python3.*/lib2to3",
    "usr/lib/python3.*/pydoc_data",
    "usr/lib/python3.*/test",
    "usr/lib/python3.*/tkinter",
    "usr/lib/python3.*/lib-dynload/_hashlib.*",
    "usr/lib/python3.*/lib-dynload/_ssl.*",
    "usr/lib/python3.*/lib-dynload/_dbm.*",
    "usr/lib/python3/dist-packages/psutil/tests",
    *(
        f"usr/share/{name}"
        for name in (
            "applications",
            "bash-completion",
            "binfmts",
            "bug",
            "doc",
            "doc-base",
            "dpkg",
            "info",
            "initramfs-tools",
            "lintian",
            "locale",
            "man",
            "pixmaps",
            "polkit-1",
        )
    ),
    "var/cache",
    "var/lib",
    "var/log",
)


@dataclass(frozen=True)
class Userland:
    """What a user space is made of."""

    name: str
    packages: tuple[str, ...]
    of_kernel: bool = False
    """From the suite of the kernel, not from `Kernel.userland`."""
    kept: tuple[str, ...] = ()
    """Rows of `DROPPED` that are needed here."""
    dropped: tuple[str, ...] = ()
    """What nothing reads here, further to `DROPPED`."""

    def suite(self, kernel: Kernel) -> str:
        """Where its packages come from."""
        return kernel.suite if self.of_kernel else kernel.userland


PLAIN = Userland("base", PACKAGES)
MERGED = ("bin", "sbin", "lib", "lib64")
"""Directories that are links into /usr on a Debian system of today."""


def _merge_usr(root: Path) -> None:
    """What the package usrmerge does: move /bin and its like below /usr and leave links."""
    for name in MERGED:
        old, new = root / name, root / "usr" / name
        if old.is_dir() and not old.is_symlink():
            shutil.copytree(old, new, symlinks=True, dirs_exist_ok=True)
            shutil.rmtree(old)
        if not old.is_symlink():
            new.mkdir(parents=True, exist_ok=True)
            old.symlink_to(f"usr/{name}")


def _strip(root: Path, userland: Userland) -> None:
    for pattern in (*(each for each in DROPPED if each not in userland.kept), *userland.dropped):
        for path in list(root.glob(pattern)):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    for cached in list(root.rglob("__pycache__")):
        shutil.rmtree(cached)


def _applets(root: Path, native: Path) -> None:
    """Links for the programs busybox has and no package brought; ``native`` can run here."""
    listed = run(
        [native / "usr/bin/busybox", "--list-full"], what="asking busybox for its programs"
    )
    for name in listed.split():
        path = root / "usr" / name.removeprefix("usr/")
        if not path.exists() and not path.is_symlink():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to("/usr/bin/busybox")


def _compile(root: Path, native: Path) -> None:
    """Byte-compile with the guest's own python: importing from source takes seconds under TCG.

    Byte code is the same on every architecture, so the python of ``native`` makes it; ``root`` is
    ``native`` itself or a directory in it.
    """
    lib = root / "usr" / "lib"
    place = f"/{root.relative_to(native)}".removesuffix("/.").rstrip(".")
    folders = [f"/{p.relative_to(root)}" for p in sorted(lib.glob("python3*")) if p.is_dir()]
    # Files that are meant not to compile (test data) make compileall exit with 1.
    subprocess.run(
        [
            need("chroot", "coreutils"),
            native,
            "/usr/bin/python3",
            "-m",
            "compileall",
            "-q",
            "--invalidation-mode",
            "unchecked-hash",
            "-s",
            place,
            "-p",
            "/",
            *(f"{place.rstrip('/')}{folder}" for folder in folders),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    if not list(lib.glob("python3*/__pycache__/os.*.pyc")):
        raise BuildError(
            "the guest's python did not compile its own library",
            f"try: chroot {native} /usr/bin/python3 -m compileall /usr/lib/python3.*",
        )


def _etc(root: Path) -> None:
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/passwd").write_text(
        "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/sh\n"
    )
    (root / "etc/group").write_text("root:x:0:\nnogroup:x:65534:\n")
    (root / "etc/hostname").write_text("ptscope-guest\n")


def _extract(suite: str, arch: str, packages: tuple[str, ...], root: Path) -> None:
    apt = Apt(suite, arch)
    apt.update()
    apt.extract(packages, root)
    _merge_usr(root)


def _make(kernel: Kernel, userland: Userland, final: Path) -> None:
    suite = userland.suite(kernel)
    say(f"making the user space of {suite} {kernel.arch} ({', '.join(userland.packages)})")
    # mmdebstrap wants a directory that its unpacking may own; the cache may be anywhere.
    with tempfile.TemporaryDirectory(prefix="ptscope-base-") as scratch:
        native = root = Path(scratch) / "root"
        if platform.machine() not in ARCHES[kernel.arch].machine_names:
            here = next(a for a in ARCHES.values() if platform.machine() in a.machine_names)
            _extract(suite, here.name, NATIVE, native)
            root = native / "guest"
        _extract(suite, kernel.arch, userland.packages, root)
        _strip(root, userland)
        _applets(root, native)
        _etc(root)
        _compile(root, native)
        with final.open("wb") as out:
            cpio.write(dict(cpio.from_dir(root)), out)
    say(f"user space: {final.stat().st_size / 1e6:.0f} MB")


def base(kernel: Kernel, userland: Userland = PLAIN) -> Path:
    """The cached base archive for guests of this kernel's architecture."""
    suite = userland.suite(kernel)
    key = store.digest(
        suite,
        kernel.arch,
        repr(userland),
        Path(__file__).read_bytes(),
        Path(cpio.__file__).read_bytes(),
    )
    name = f"{userland.name}-{suite}-{kernel.arch}"
    final = paths.cache() / "images" / f"{name}-{key}.cpio"
    made = store.make_file(final, lambda partial: _make(kernel, userland, partial), name)
    store.forget_others(final, f"{name}-*.cpio")
    return made
