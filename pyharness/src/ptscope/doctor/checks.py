# SPDX-License-Identifier: GPL-2.0-or-later
"""The checks of `ptscope doctor`: a table of names and functions.

A check never fails for being asked: whatever it runs into becomes its line. Only `module files` is
about whether walking works; the others say why it does not, or what to know about this machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ptscope.errors import PtscopeError, Unsupported
from ptscope.host import Host
from ptscope.kmodule import NotAModule, candidates, vermagic
from ptscope.source.availability import (
    LOCKDOWN_REMEDY,
    build_remedy,
    no_debugfs,
    not_loaded,
    not_privileged,
    release_of,
)
from ptscope.target.access import PTRACE_REMEDY
from ptscope.target.procfs import procfs_error

if TYPE_CHECKING:
    from ptscope.source.module import ModuleSource

Status = Literal["ok", "warn", "fail"]

# CPUID leaf 0x40000000: KVM's Documentation/virt/kvm/x86/cpuid.rst, QEMU's target/i386/cpu.c, and
# the vendors' manuals. The second column is whether times measured there mean something on
# hardware.
HYPERVISORS = {
    "KVMKVMKVM": ("KVM", True),
    "TCGTCGTCGTCG": ("QEMU TCG: emulated, timings are not comparable with hardware", False),
    "Microsoft Hv": ("Hyper-V", True),
    "VMwareVMware": ("VMware", True),
    "XenVMMXenVMM": ("Xen", True),
    "bhyve bhyve ": ("bhyve", True),
}


@dataclass(frozen=True)
class Result:
    """One line of the doctor: its status, what was found, and the remedy if there is one."""

    status: Status
    text: str
    remedy: str | None = None

    @classmethod
    def of(cls, error: PtscopeError, status: Status = "fail") -> Result:
        """The line for an error."""
        return cls(status, error.cause, error.remedy)


@dataclass(frozen=True)
class Patient:
    """The machine under examination; `module_path` is a module file that the user named."""

    host: Host = field(default_factory=Host)
    module_path: Path | None = None

    @cached_property
    def module(self) -> ModuleSource | PtscopeError:
        """The module as a source, after it walked an address of our own, or why it cannot."""
        try:
            from ptscope.source.module import ModuleSource

            source = ModuleSource.open(self.host)
            # Any address will do, mapped or not: what counts is a stream that is whole.
            source.walk("self", [source.layout.page_size])
        except PtscopeError as error:
            return error
        except ImportError as error:
            return core_missing(error)
        return source


def core_missing(error: ImportError) -> PtscopeError:
    """The error for a package without its compiled part."""
    return Unsupported(
        f"the C core of ptscope cannot be loaded: {error}",
        "install the package anew: `pip install ./pyharness`",
    )


def check_core(patient: Patient) -> Result:
    """Whether the compiled part of the package loads."""
    try:
        import ptscope._core as core
    except ImportError as error:
        return Result.of(core_missing(error))
    return Result("ok", f"{Path(core.__file__ or '').name} loads")


def check_kernel(patient: Patient) -> Result:
    """Release and architecture, and whether entries of this architecture can be decoded."""
    host = patient.host
    text = f"{host.release} on {host.machine}"
    from ptscope.decode.arch import architecture

    try:
        architecture(host.machine)
    except PtscopeError as error:
        return Result("fail", f"{text}: {error.cause}", error.remedy)
    return Result("ok", text)


def check_hypervisor(patient: Patient) -> Result:
    """Bare metal or which hypervisor, and what that means for timings."""
    try:
        from ptscope._core import ffi, lib
    except ImportError as error:
        return Result.of(core_missing(error), "warn")
    signature = ffi.new("char[13]")
    if not lib.ptscope_hypervisor(signature):
        return Result("ok", "none: this is a machine of its own")
    text = ffi.string(signature).decode("latin-1")
    name, comparable = HYPERVISORS.get(text, (f"unknown ({text!r})", True))
    return Result("ok" if comparable else "warn", name)


def check_module_file(patient: Patient) -> Result:
    """Which ptscope.ko there is, and whether it was built for the running kernel."""
    host = patient.host
    path = patient.module_path or next(candidates(host), None)
    if path is None:
        return Result(
            "ok" if host.module_loaded else "warn",
            "no ptscope.ko found in the places where it is installed or built",
            None if host.module_loaded else build_remedy(host.release),
        )
    try:
        magic = vermagic(path)
    except (OSError, NotAModule) as error:
        return Result("warn", f"{path}: {error}")
    if release_of(magic) == host.release:
        return Result("ok", f"{path}: built for {magic}")
    return Result(
        "warn" if host.module_loaded else "fail",
        f"{path}: built for {release_of(magic)}, but {host.release} is running",
        build_remedy(host.release),
    )


def check_module(patient: Patient) -> Result:
    """Whether the module is in the kernel, and why not."""
    if patient.host.module_loaded:
        return Result("ok", "loaded")
    return Result.of(not_loaded(patient.host, patient.module_path))


def check_proc(patient: Patient) -> Result:
    """Whether /proc is mounted, and shows our PID namespace."""
    error = procfs_error(patient.host.root / "proc")
    return Result("ok", "shows our PID namespace") if error is None else Result.of(error)


def check_debugfs(patient: Patient) -> Result:
    """Whether debugfs is mounted."""
    where = patient.host.debugfs
    if where is None:
        return Result.of(no_debugfs(patient.host))
    return Result("ok", f"mounted at {where}")


def check_capability(patient: Patient) -> Result:
    """Whether we have CAP_SYS_ADMIN."""
    if patient.host.sys_admin:
        return Result("ok", "CAP_SYS_ADMIN is there")
    return Result.of(not_privileged(patient.host))


def check_ptrace(patient: Patient) -> Result:
    """Whether we have CAP_SYS_PTRACE; walking ourselves and our own processes works without."""
    host = patient.host
    if host.sys_ptrace:
        return Result("ok", "CAP_SYS_PTRACE is there")
    if not host.procfs:
        return Result("warn", "not known: /proc tells it")
    return Result(
        "warn",
        "CAP_SYS_PTRACE is missing: maps and pagemap of other users' processes, and of those with "
        "more privileges, may not be read",
        PTRACE_REMEDY,
    )


def check_lockdown(patient: Patient) -> Result:
    """The kernel's lockdown mode."""
    host = patient.host
    if host.lockdown is None:
        return Result("ok", "this kernel has no lockdown, or securityfs is not mounted")
    if not host.locked_down:
        return Result("ok", host.lockdown)
    what = (
        "debugfs files that can be written are refused"
        if host.module_loaded
        else "unsigned modules and debugfs files that can be written are refused"
    )
    return Result("fail", f"{host.lockdown}: {what}", LOCKDOWN_REMEDY)


def check_secure_boot(patient: Patient) -> Result:
    """Whether the firmware checked signatures at boot; Debian's kernels then lock down."""
    match patient.host.secure_boot:
        case None:
            return Result("ok", "no EFI variables: not booted through EFI")
        case False:
            return Result("ok", "off")
        case _:
            return Result(
                "warn",
                "on: Debian's kernels lock themselves down and refuse unsigned modules",
                "turn Secure Boot off in the firmware setup",
            )


def check_module_files(patient: Patient) -> Result:
    """Whether the module's files answer, in our version of the format, to a walk of ourselves."""
    if not patient.host.module_loaded:
        return Result("fail", "none, as the module is not loaded")
    module = patient.module
    if isinstance(module, PtscopeError):
        return Result.of(module)
    return Result("ok", f"{module.directory}: a walk of ptscope itself was answered")


def check_map_device(patient: Patient) -> Result:
    """Whether the device of known frames can be opened. Walking does without it."""
    try:
        from ptscope.source.known import DEVICE, cannot_use
    except ImportError as error:
        return Result.of(core_missing(error), "warn")
    path = patient.host.root / DEVICE
    try:
        path.open("r+b", buffering=0).close()
    except OSError as error:
        return Result.of(cannot_use(patient.host, error), "warn")
    return Result("ok", f"{path} gives memory whose frames are known")


def check_layout(patient: Patient) -> Result:
    """Whether the running kernel's layout is one of those that ship."""
    module = patient.module
    if isinstance(module, PtscopeError):
        return Result("warn", "not known: only the module tells it")
    layout = module.layout
    text = f"{layout.name}: {len(layout.levels)} levels"
    if layout.name == "live":
        return Result("ok", f"{text}; it equals none that ships, and is used as it is")
    return Result("ok", text)


def check_frames(patient: Patient) -> Result:
    """Whether /proc/PID/pagemap shows us frame numbers."""
    try:
        from ptscope.source.pagemap import frames_visible

        visible = frames_visible(patient.host.root / "proc")
    except PtscopeError as error:
        return Result.of(error, "warn")
    except ImportError as error:
        return Result.of(core_missing(error), "warn")
    if visible:
        return Result("ok", "/proc/PID/pagemap shows frames")
    return Result(
        "warn",
        "hidden: /proc/PID/pagemap shows frame 0 for every page",
        "run ptscope as root, outside of user namespaces",
    )


CHECKS: tuple[tuple[str, Callable[[Patient], Result]], ...] = (
    ("core", check_core),
    ("kernel", check_kernel),
    ("hypervisor", check_hypervisor),
    ("module file", check_module_file),
    ("module", check_module),
    ("proc", check_proc),
    ("debugfs", check_debugfs),
    ("capability", check_capability),
    ("ptrace", check_ptrace),
    ("lockdown", check_lockdown),
    ("secure boot", check_secure_boot),
    ("module files", check_module_files),
    ("map device", check_map_device),
    ("layout", check_layout),
    ("frames", check_frames),
)
