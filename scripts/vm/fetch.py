# SPDX-License-Identifier: GPL-2.0-or-later
"""Bring the newest kernel of a suite, and headers to build against, into the cache.

cache/kernels/NAME/current         which version is the newest known, and since when
cache/kernels/NAME/VERSION/        the packages, extracted
"""

from __future__ import annotations

import json
import platform
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from . import paths, source, store
from .apt import Apt, Package
from .arches import ARCHES
from .errors import Missing, SetupError
from .kernels import Built, Kernel
from .proc import need, run
from .say import say, warn
from .toolchain import Toolchain, toolchain

KEPT = 2
"""Versions of a kernel kept in the cache: another run may be using the one before."""
IMAGE = r"linux-(image|binary|modules|base)-\d"
HEADERS = r"linux-(headers|kbuild)-"


@dataclass(frozen=True)
class Fetched:
    """A kernel in the cache."""

    kernel: Kernel
    version: str
    """Debian's version of the image package."""
    release: str
    """`uname -r` of the kernel."""
    foreign_release: str | None
    """Release of the flavour whose headers are there to build a module that must be refused."""
    root: Path

    @property
    def image(self) -> Path:
        """What QEMU boots."""
        # Where 5.10 to 6.12 have it, and 7.2; on riscv64 it is called vmlinux when uncompressed.
        for name in (
            f"boot/vmlinuz-{self.release}",
            f"boot/vmlinux-{self.release}",
            f"usr/lib/modules/{self.release}/vmlinuz",
        ):
            if (self.root / name).exists():
                return self.root / name
        raise SetupError(
            f"{self.root} has no image of {self.release}", f"remove it: rm -r {self.root}"
        )

    @property
    def modules(self) -> Path:
        """The directory with modules.builtin and kernel/."""
        for base in ("lib", "usr/lib"):
            path = self.root / base / "modules" / self.release
            if path.is_dir():
                return path
        raise SetupError(
            f"{self.root} has no modules of {self.release}", f"remove it: rm -r {self.root}"
        )

    def headers(self, release: str) -> Path:
        """The KDIR of a release."""
        return self.root / "usr" / "src" / f"linux-headers-{release}"


def _release(meta: Package, kind: str) -> str:
    """The release in the name of the versioned package that a meta package depends on."""
    for name in meta.depends:
        match = re.fullmatch(rf"linux-{kind}-(\d.*?)(-unsigned)?", name)
        if match:
            return match[1]
    raise SetupError(f"{meta.name} {meta.version} depends on no linux-{kind} package")


def relocate_headers(root: Path, final: Path) -> None:
    """Make Debian's headers usable where they are: their Makefiles name /usr/src by its full path.

    ``root`` is where the files are now, ``final`` where they will be.
    """
    for makefile in root.glob("usr/src/linux-headers-*/Makefile"):
        text = makefile.read_text(encoding="utf-8", errors="surrogateescape")
        # The -common Makefile is the kernel's own and has no such path.
        makefile.write_text(
            re.sub(r"(?<![\w/.)])/usr/src/linux-headers-", f"{final}/usr/src/linux-headers-", text),
            encoding="utf-8",
            errors="surrogateescape",
        )


def _native(kernel: Kernel) -> Apt:
    """apt for programs that run here, while a module is built."""
    here = next(a.name for a in ARCHES.values() if platform.machine() in a.machine_names)
    return Apt(kernel.suite, here)


def _resolve(kernel: Kernel, apt: Apt) -> tuple[str, str, str | None, list[Package]]:
    meta = apt.show(kernel.image)
    release = _release(meta, "image")
    packages = {p.name: p for p in apt.closure(f"linux-image-{release}", IMAGE)}
    version = packages[f"linux-image-{release}"].version
    # Image and headers have the same release: a module for another is of no use.
    headers = _release(apt.show(kernel.headers), "headers")
    if headers != release:
        raise Missing(f"{kernel.suite} has {release} but headers of {headers}")
    wanted = [release]
    foreign = None
    if kernel.foreign_headers:
        foreign = _release(apt.show(kernel.foreign_headers), "headers")
        wanted.append(foreign)
    for each in wanted:
        packages |= {p.name: p for p in apt.closure(f"linux-headers-{each}", HEADERS)}
    native = _native(kernel)
    native.update()
    # kbuild's programs run while a module is built, whatever it is built for.
    for name in packages:
        if name.startswith("linux-kbuild-"):
            packages[name] = native.show(name)
    return version, release, foreign, list(packages.values())


def _resolve_built(built: Built, apt: Apt) -> tuple[str, Package, Toolchain]:
    """The version that names a build: the source's, and a digest of what else it is made from."""
    package = apt.show(built.package)
    tools = toolchain()
    key = store.digest(tools.version, *source.inputs(built))
    return f"{package.version}-{key}", package, tools


def _extract(apt: Apt, packages: list[Package], partial: Path, final: Path) -> None:
    debs = partial / "debs"
    debs.mkdir()
    say(f"downloading {len(packages)} packages: {', '.join(p.name for p in packages)}")
    of_arch: dict[str, list[Package]] = {}
    for package in packages:
        of_arch.setdefault(apt.arch if package.arch == "all" else package.arch, []).append(package)
    for arch, group in of_arch.items():
        files = Apt(apt.suite, arch).download(group, debs)
    if len(files) != len(packages):
        raise SetupError(f"apt downloaded {len(files)} of {len(packages)} packages")
    say("extracting them")
    for deb in files:
        run(
            [need("dpkg-deb", "dpkg"), "-x", deb, partial],
            what=f"extracting {deb.name}",
            error=SetupError,
        )
    shutil.rmtree(debs)
    relocate_headers(partial, final)


def _from_current(kernel: Kernel, current: Path) -> Fetched | None:
    try:
        known = json.loads(current.read_text(encoding="utf-8"))
        found = Fetched(
            kernel,
            known["version"],
            known["release"],
            known["foreign_release"],
            current.parent / known["version"],
        )
        # A kernel that was made from another configuration is not this one.
        if known.get("inputs", "") != _inputs(kernel):
            return None
    except (OSError, ValueError, KeyError):
        return None
    return found if found.root.is_dir() else None


def _inputs(kernel: Kernel) -> str:
    """Names what of this checkout a kernel is built from; empty where nothing is."""
    return "" if kernel.built is None else store.digest(*source.inputs(kernel.built))


def _folder(version: str) -> str:
    """A version may hold an epoch's colon; make would take it for a rule."""
    return version.replace(":", "_")


def fetch(kernel: Kernel) -> Fetched:
    """The newest version of this kernel the suite has; without network the newest in the cache.

    Raises `SetupError` when neither is to be had.
    """
    apt = Apt(kernel.suite, kernel.arch)
    home = paths.cache() / "kernels" / kernel.name
    current = home / "current"
    cached = _from_current(kernel, current)
    if cached is not None and apt.fresh():
        return cached
    try:
        apt.update()
        built = kernel.built
        lock = f"kernel-{kernel.name}"
        if built is not None:
            foreign = None
            version, package, tools = _resolve_built(built, apt)
            final = home / _folder(version)
            store.make_dir(
                final, lambda partial: source.build(built, apt, package, tools, partial), lock
            )
            release = source.release_in(final)
        else:
            version, release, foreign, packages = _resolve(kernel, apt)
            final = home / _folder(version)
            store.make_dir(final, lambda partial: _extract(apt, packages, partial, final), lock)
        folder = final.name
    except Missing:
        # What was there once does not show that it is there.
        raise
    except SetupError as failure:
        if cached is None:
            raise
        warn(f"cannot look for a newer {kernel.name}: {failure.cause.splitlines()[0]}")
        warn(f"using the one in the cache: {cached.release} ({cached.version})")
        return cached
    store.write(
        current,
        json.dumps(
            {
                "version": folder,
                "release": release,
                "foreign_release": foreign,
                "inputs": _inputs(kernel),
            },
            indent=1,
        )
        + "\n",
    )
    _prune(home, folder)
    return Fetched(kernel, folder, release, foreign, final)


def _prune(home: Path, newest: str) -> None:
    """Forget all but the newest and the `KEPT` - 1 versions fetched last before it."""
    others = sorted(
        (
            p
            for p in home.iterdir()
            if p.is_dir() and not p.name.startswith(".") and p.name != newest
        ),
        key=lambda p: p.stat().st_mtime,
        reverse=True,
    )
    for old in others[KEPT - 1 :]:
        say(f"forgetting {old.name}")
        shutil.rmtree(old, ignore_errors=True)
