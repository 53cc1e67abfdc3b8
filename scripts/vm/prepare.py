# SPDX-License-Identifier: GPL-2.0-or-later
"""From names (kernel, variant) to a machine that can boot, with its initrd."""

from __future__ import annotations

import os
import platform
import struct
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from . import accel, cpio, cross, fetch, kernels, module, overlay, package, paths, variants
from .arches import ARCHES
from .base import base
from .errors import UsageError
from .overlay import Contents
from .plan import PLANTED
from .proc import need, run
from .qemu import Machine

DRIVERS = "--modules DIR, unless virtio-pci and virtio-console are built in"
"""What a kernel of the user's own needs to reach the harness."""


@dataclass(frozen=True)
class Bootable:
    """A kernel and the parts of its initrd that do not change from run to run."""

    kernel: kernels.Kernel
    release: str
    image: Path
    parts: tuple[Path, ...]
    fetched: fetch.Fetched | None
    """None for a kernel of the user's own."""


@dataclass(frozen=True)
class Options:
    """How to boot it."""

    variant: str = variants.DEFAULT
    smp: int = 1
    memory: int = 3584
    """MiB."""
    gigantic: int = 1
    init: tuple[str, ...] = ()
    """Words for init, on the kernel's command line: vm.module=none, vm.lockdown_before=LEVEL..."""
    append: tuple[str, ...] = ()
    """Further words for the kernel."""
    name: str = "vm"
    """Names the log."""
    contents: Contents = field(default_factory=Contents)
    ram_file: Path | None = None
    icount: bool = False
    """See `Machine.icount`."""


def debian(name: str = kernels.DEFAULT) -> Bootable:
    """The newest version of a kernel of the table."""
    kernel = kernels.kernel(name)
    fetched = fetch.fetch(kernel)
    parts = (base(kernel), overlay.kernel_modules(fetched.modules, fetched.version))
    return Bootable(kernel, fetched.release, fetched.image, parts, fetched)


def tests() -> Path | None:
    """The tests directory with its helpers compiled, None when there is none."""
    if (paths.TESTS / "guest" / "Makefile").exists():
        run(
            [need("make", "make"), "-s", "-C", paths.TESTS / "guest"],
            what="compiling the tests' helpers",
        )
    return paths.TESTS if paths.TESTS.is_dir() else None


def contents(bootable: Bootable) -> Contents:
    """What tests need in a guest with one of Debian's kernels, all of it built."""
    fetched = bootable.fetched
    assert fetched is not None, "a kernel of the user's own has no headers here"
    foreign = fetched.foreign_release
    kernel = bootable.kernel
    built: dict[str, cpio.Entry] = {}
    if platform.machine() not in ARCHES[kernel.arch].machine_names:
        # In place of what was built for this machine.
        for name, path in cross.build(kernel).items():
            of_package = name in (cross.CORE, cross.MODEL_PUPPET)
            folder = f"{overlay.PACKAGES}/ptscope" if of_package else "tests/guest"
            built[f"{folder}/{name}"] = cpio.file(path, 0o755)
    if kernel.name == kernels.CHECKING:
        planted = module.build(fetched, fetched.release, planted=True)
        built[PLANTED.lstrip("/").replace("lib/", "usr/lib/", 1)] = cpio.file(planted)
    return Contents(
        module=module.build(fetched, fetched.release),
        foreign_module=module.build(fetched, foreign) if foreign else None,
        package=package.for_guest(),
        tests=tests(),
        extra=built,
    )


def image_release(image: Path) -> str:
    """The release in the header of a bzImage.

    The kernel's Documentation/arch/x86/boot.rst: kernel_version, at 0x20E.

    Raises `UsageError` when the file is no bzImage.
    """
    with image.open("rb") as handle:
        data = handle.read(0x10000)
    if data[0x202:0x206] != b"HdrS":
        raise UsageError(
            f"{image} is not a bzImage",
            f"give arch/x86/boot/bzImage or a /boot/vmlinuz-*, and its drivers: {DRIVERS}",
        )
    (offset,) = struct.unpack_from("<H", data, 0x20E)
    text = data[offset + 0x200 :].split(b"\0", 1)[0] if offset else b""
    return text.split(b" ", 1)[0].decode("ascii", errors="replace")


def module_release(ko: Path) -> str:
    """The release a .ko was built for (its vermagic); raises `UsageError` when it has none."""
    _, found, rest = ko.read_bytes().partition(b"\0vermagic=")
    if not found:
        raise UsageError(f"{ko} is not a kernel module: it has no vermagic")
    return rest.split(b"\0", 1)[0].split(b" ", 1)[0].decode("ascii", errors="replace")


def own_release(image: Path) -> str:
    """The release of a kernel of the user's own; raises `UsageError` when it is none."""
    if not image.is_file():
        raise UsageError(f"there is no kernel {image}")
    return image_release(image)


def own_modules(modules: Path, release: str) -> Path:
    """Its /lib/modules/RELEASE in what `own` was given; raises `UsageError` when not there."""
    candidates = (modules / "lib" / "modules" / release, modules / release, modules)
    folder = next((each for each in candidates if (each / "modules.order").exists()), None)
    if folder is None or folder.name != release:
        raise UsageError(
            f"{modules} has no modules of {release}",
            f"run in its source: make modules_install INSTALL_MOD_PATH={modules}",
        )
    return folder


def own(image: Path, modules: Path | None, like: str = kernels.DEFAULT) -> Bootable:
    """A kernel of the user's own, with user space as for the kernel called ``like``.

    ``modules`` is its /lib/modules/RELEASE or the directory given to `make modules_install` as
    INSTALL_MOD_PATH; without it drivers must be built in.
    """
    release = own_release(image)
    folder = own_modules(modules, release) if modules is not None else None
    kernel = kernels.kernel(like)
    parts = [base(kernel)]
    if folder is not None:
        stamp = str((folder / "modules.order").stat().st_mtime_ns)
        parts.append(overlay.kernel_modules(folder, stamp))
    return Bootable(kernel, release, image, tuple(parts), None)


def check_own_module(ko: Path | None, image: Path, release: str) -> None:
    """Raise `UsageError` unless there is a ptscope.ko for a kernel of the user's own."""
    if ko is None:
        raise UsageError(
            f"no ptscope.ko was given for {image}",
            "build one: make -C kmod KDIR=<the kernel's build directory>, and give it: --module"
            " kmod/ptscope.ko; or boot without: --no-module",
        )
    check_module(ko, image, release)


def check_module(ko: Path, image: Path, release: str) -> None:
    """Raise `UsageError` that explains when ``ko`` was built for another kernel than ``image``."""
    built_for = module_release(ko)
    if built_for != release:
        raise UsageError(
            f"{ko} was built for {built_for}, but {image} is {release}",
            "build it against that kernel: make -C kmod KDIR=<the kernel's build directory>,"
            " then give --module kmod/ptscope.ko; or give --no-module",
        )


def machine(bootable: Bootable, options: Options, scratch: Path) -> Machine:
    """Put the initrd together in ``scratch`` and describe the guest."""
    arch = ARCHES[bootable.kernel.arch]
    row = variants.variant(options.variant, arch.name)
    handle, name = tempfile.mkstemp(prefix=f"{options.name}-", suffix=".cpio", dir=scratch)
    os.close(handle)
    entries = overlay.tree(options.contents, bootable.kernel.userland)
    overlay.initrd(bootable.parts, entries, Path(name))
    return Machine(
        arch=arch,
        variant=row,
        accel=accel.COUNTING if options.icount else accel.choose(arch, row, bootable.image),
        kernel=bootable.image,
        kernel_release=bootable.release,
        initrd=Path(name),
        log=paths.LOGS / f"{options.name}.log",
        append=(*options.append, *options.init),
        smp=options.smp,
        memory=options.memory,
        gigantic=options.gigantic,
        ram_file=options.ram_file,
        icount=options.icount,
    )
