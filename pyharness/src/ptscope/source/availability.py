# SPDX-License-Identifier: GPL-2.0-or-later
"""Why the module cannot be used, and what to do about it.

The questions are asked in the order in which a person would have to solve them: a module that is
not loaded, then debugfs, then privilege and lockdown.
"""

from __future__ import annotations

import re
from pathlib import Path

from ptscope.errors import NotPermitted, PtscopeError, Unsupported
from ptscope.host import Host
from ptscope.kmodule import NotAModule, candidates, vermagic
from ptscope.target.procfs import not_mounted

LOCKDOWN_REMEDY = (
    "boot without lockdown (no `lockdown=` on the kernel command line, Secure Boot off in the "
    "firmware setup)"
)
# Releases of Debian's kernels, for each of which there is a package of headers: 6.1.0-57-amd64,
# 6.12.48+deb13-cloud-arm64, 7.2.3+deb14-arm64-16k, 6.1.0-0.deb11.21-amd64, and 7.3-amd64 or
# 7.3-rc4-amd64 in experimental. Not Ubuntu's, nor what somebody built.
DEBIAN_RELEASE = re.compile(
    r"\d+\.\d+((-rc\d+)?|\.\d+(-\d[\w.]*|\+(deb|bpo)[\w.]*))"
    r"(-(cloud|rt))?-(amd64|arm64|riscv64)(-16k)?"
)


def build_remedy(release: str) -> str:
    """How to get a module for the kernel `release`, and have it loaded."""
    if DEBIAN_RELEASE.fullmatch(release):
        return (
            f"as root: `apt install linux-headers-{release} dkms`, then `make install` in the "
            "checkout of ptscope"
        )
    return (
        "get the headers of the running kernel, or its source tree after `make modules_prepare`; "
        "build it with `make -C kmod KDIR=TREE`, then `insmod kmod/ptscope.ko` as root"
    )


def not_loaded(host: Host, path: Path | None = None) -> PtscopeError:
    """Why ptscope.ko is not in the kernel; `path` is a module file that the user named."""
    if host.locked_down:
        return NotPermitted(
            f"the module is not loaded, and kernel lockdown ({host.lockdown}) refuses to load "
            "unsigned modules",
            f"{LOCKDOWN_REMEDY}; a signed module would load, but its debugfs files be refused",
        )
    found = path or next(candidates(host), None)
    if found is None:
        return Unsupported(
            "the module ptscope is not loaded, and no ptscope.ko was found",
            build_remedy(host.release),
        )
    try:
        built_for = release_of(vermagic(found))
    except (OSError, NotAModule) as error:
        return Unsupported(f"the module ptscope is not loaded, and {found} is no module: {error}")
    if built_for != host.release:
        return Unsupported(
            f"the module is not loaded, and {found} was built for kernel {built_for}, not for "
            f"the running {host.release}",
            build_remedy(host.release),
        )
    return Unsupported("the module ptscope is not loaded", f"as root: `insmod {found}`")


def release_of(magic: str) -> str:
    """The kernel release in a vermagic: its first word."""
    return magic.partition(" ")[0]


def cannot_open(host: Host, path: Path, error: OSError) -> PtscopeError:
    """Why a file of the module in debugfs could not be opened, read or written."""
    if not host.module_loaded:
        return not_loaded(host)
    if host.debugfs is None:
        return no_debugfs(host)
    if isinstance(error, PermissionError):
        return refused(host)
    if isinstance(error, FileNotFoundError):
        return Unsupported(
            f"the module is loaded, but {path} does not exist",
            "load the module of this version: `make install` in the checkout of ptscope, as root",
        )
    return Unsupported(f"{path}: {error.strerror}")


def refused(host: Host) -> PtscopeError:
    """Why the kernel said EPERM or EACCES: lockdown when it is on and we are privileged."""
    if not host.sys_admin:
        return not_privileged(host)
    if host.locked_down:
        return NotPermitted(
            f"kernel lockdown ({host.lockdown}) forbids the module's debugfs files",
            LOCKDOWN_REMEDY,
        )
    return NotPermitted(
        "the module refused although CAP_SYS_ADMIN is there: it counts in the initial user "
        "namespace only",
        "run ptscope as root outside of containers",
    )


def no_debugfs(host: Host) -> PtscopeError:
    """Why debugfs was not found: it is not mounted, or without /proc nobody can tell."""
    if not host.procfs:
        return not_mounted(host.root / "proc")
    return Unsupported(
        "debugfs is not mounted, so the module cannot be reached",
        "as root: `mount -t debugfs debugfs /sys/kernel/debug`",
    )


def not_privileged(host: Host) -> PtscopeError:
    """Why CAP_SYS_ADMIN was not found: we do not have it, or without /proc nobody can tell."""
    if not host.procfs:
        return not_mounted(host.root / "proc")
    return NotPermitted(
        "CAP_SYS_ADMIN is missing: without it the module refuses everybody",
        "run ptscope as root (sudo)",
    )
