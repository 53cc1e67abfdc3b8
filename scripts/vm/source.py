# SPDX-License-Identifier: GPL-2.0-or-later
"""Build a kernel from Debian's source package, for what no packaged kernel has: the checkers.

What is kept looks like an extracted package (boot/, lib/modules/, usr/src/), so the rest of the
harness need not know which it has; source and objects, 4 GiB, are gone when it is built.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from . import paths
from .apt import Apt, Package
from .errors import BuildError, SetupError
from .kernels import Built
from .proc import need, run
from .say import say
from .toolchain import HOST, Toolchain

CONFIGS = paths.REPO / "scripts" / "vm" / "configs"
TELL_SECONDS = 30.0
"""How often a build says how far it is."""
REPRODUCIBLE = {
    "KBUILD_BUILD_USER": "ptscope",
    "KBUILD_BUILD_HOST": "ptscope",
    "KBUILD_BUILD_TIMESTAMP": "1970-01-01",
}


def lost(wanted: str, config: str) -> list[str]:
    """Lines of the fragment ``wanted`` that are not in ``config``, the finished .config.

    Kconfig drops an option whose dependencies are not met without a word: KASAN under SLUB_TINY.
    """
    have = set(config.splitlines())
    missing = []
    for line in wanted.splitlines():
        name, _, value = line.partition("=")
        if not name.startswith("CONFIG_"):
            continue
        taken = any(each.startswith(f"{name}=") for each in have)
        if taken if value == "n" else line not in have:
            missing.append(line)
    return missing


def unpack(apt: Apt, package: Package, root: Path) -> Path:
    """The source tree of a linux-source package, below ``root``."""
    say(f"downloading {package.name} {package.version}")
    for deb in apt.download([package], root):
        run([need("dpkg-deb", "dpkg"), "-x", deb, root], what=f"extracting {deb.name}")
        deb.unlink()
    tree = root / "tree"
    tree.mkdir()
    need("xz", "xz-utils")
    for archive in sorted(root.glob("usr/src/linux-source-*.tar.xz")):
        run(
            [need("tar", "tar"), "-xf", archive, "--strip-components=1", "-C", tree],
            what=f"extracting {archive.name}",
        )
    if not (tree / "Makefile").exists():
        raise SetupError(f"{package.name} {package.version} has no source of a kernel")
    shutil.rmtree(root / "usr")
    return tree


@contextmanager
def _told(objects: Path, what: str) -> Iterator[None]:
    """Say every `TELL_SECONDS` how many objects are compiled."""
    done = threading.Event()

    def tell() -> None:
        while not done.wait(TELL_SECONDS):
            say(f"{what}: {sum(1 for _ in objects.rglob('*.o'))} objects")

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def release_in(root: Path) -> str:
    """`uname -r` of the kernel that `build` left in ``root``."""
    for image in root.glob("boot/vmlinuz-*"):
        return image.name.removeprefix("vmlinuz-")
    raise SetupError(f"{root} has no kernel", f"remove it: rm -r {root}")


def build(built: Built, apt: Apt, package: Package, tools: Toolchain, partial: Path) -> None:
    """Build the kernel into ``partial``.

    Raises `BuildError` when it does not compile or Kconfig loses an option that was asked for.
    """
    work = partial / "work"
    work.mkdir()
    tree = unpack(apt, package, work)
    objects = work / "objects"
    objects.mkdir()
    fragment = work / "fragment"
    shutil.copyfile(CONFIGS / built.config, fragment)
    compiler = f"x86_64-linux-gnu-gcc-{tools.version}"
    words: list[str | Path] = [
        *("make", "-s", "-C", tree, f"O={objects}", f"-j{os.cpu_count() or 1}", "ARCH=x86"),
        *(f"CC={compiler}", f"HOSTCC={compiler}"),
        *(f"{name}={value}" for name, value in REPRODUCIBLE.items()),
    ]

    def make(*targets: str, what: str) -> None:
        tools.run([*words, *targets], shown=[work], what=f"{what} of {package.name}")

    make("tinyconfig", what="configuring")
    # The last word on an option counts; what depends on it is filled in by olddefconfig.
    with (objects / ".config").open("a", encoding="utf-8") as config:
        config.write(fragment.read_text(encoding="utf-8"))
    make("olddefconfig", what="configuring")
    missing = lost(
        fragment.read_text(encoding="utf-8"), (objects / ".config").read_text(encoding="utf-8")
    )
    if missing:
        raise BuildError(
            f"Kconfig of {package.name} {package.version} does not take: {', '.join(missing)}",
            f"see scripts/vm/configs/{built.config}",
        )
    say(f"building the kernel {package.name} {package.version}: 10 to 25 minutes, once")
    with _told(objects, "building the kernel"):
        make("bzImage", "modules", what="building the kernel")
    release = (objects / "include/config/kernel.release").read_text(encoding="utf-8").strip()
    if not re.fullmatch(r"[\w.+-]+", release):
        raise BuildError(f"the kernel of {package.name} calls itself {release!r}")
    headers = partial / "usr" / "src" / f"linux-headers-{release}"
    headers.mkdir(parents=True)
    script = f"{tree}/scripts/package/install-extmod-build"
    tools.run(
        [*words, "run-command", f"KBUILD_RUN_COMMAND={script} {headers}"],
        shown=[work, headers],
        what=f"taking the headers of {package.name}",
    )
    (partial / "boot").mkdir()
    shutil.copyfile(objects / "arch/x86/boot/bzImage", partial / "boot" / f"vmlinuz-{release}")
    modules = partial / "lib" / "modules" / release
    modules.mkdir(parents=True)
    for name in ("modules.builtin", "modules.builtin.modinfo", "modules.order"):
        shutil.copyfile(objects / name, modules / name)
    shutil.rmtree(work)


def inputs(built: Built) -> list[str | bytes]:
    """What a build depends on beside source and compiler."""
    return [(CONFIGS / built.config).read_bytes(), Path(__file__).read_bytes(), HOST]
