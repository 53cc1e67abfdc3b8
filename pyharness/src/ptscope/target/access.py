# SPDX-License-Identifier: GPL-2.0-or-later
"""Why a file of /proc/PID could not be read, or was empty."""

from __future__ import annotations

import os
from pathlib import Path

from ptscope.errors import ChangedIdentity, Exited, NotPermitted, PtscopeError, Unsupported
from ptscope.host import Host
from ptscope.target.stat import Stat, read_stat

PTRACE_REMEDY = (
    "run ptscope as root with all capabilities: outside of the container, or in one that was "
    "started with `--cap-add SYS_PTRACE`"
)


def cannot_read(path: Path, error: OSError) -> PtscopeError:
    """What an error of open() or read() on `path`, a file in a directory of /proc/PID, means."""
    # The files of a zombie belong to root, so its owner gets EACCES. ESRCH is for a task that has
    # no address space any more (from 6.15, before there was an empty file), or is gone.
    stat = _stat(path.parent)
    if stat is None or stat.dead or isinstance(error, ProcessLookupError):
        return exited(path.parent, stat)
    if isinstance(error, FileNotFoundError):
        return Unsupported(f"this kernel has no /proc/PID/{path.name} (CONFIG_PROC_PAGE_MONITOR)")
    if isinstance(error, PermissionError):
        return _refused(path, Host())
    return Unsupported(f"{path} cannot be read: {error.strerror}")


def _refused(path: Path, host: Host) -> PtscopeError:
    """Why the kernel refused (kernel/ptrace.c, __ptrace_may_access; security/commoncap.c)."""
    if os.geteuid() != 0:
        return NotPermitted(
            f"{path} may not be read: the process belongs to somebody else",
            "run ptscope as root, or as the owner of the process",
        )
    if not host.sys_ptrace:
        # In most containers: root there may look at processes that have no more privileges.
        return NotPermitted(
            f"{path} may not be read: CAP_SYS_PTRACE is missing, and the process is of another "
            "user or has more privileges",
            PTRACE_REMEDY,
        )
    return NotPermitted(
        f"{path} may not be read although CAP_SYS_PTRACE is there: the process is of another user "
        "namespace, or a security module forbids it",
        "run ptscope as root outside of containers",
    )


def mm_gone(proc: Path) -> PtscopeError:
    """Why an address space that was open is gone: its process exited, or executed a program."""
    stat = _stat(proc)
    return exited(proc, stat) if stat is None or stat.dead else executed(proc, stat)


def exited(proc: Path, stat: Stat | None) -> Exited:
    """The error for a process that went away."""
    return Exited(f"the process of {_named(proc, stat)} exited while it was looked at")


def executed(proc: Path, stat: Stat) -> ChangedIdentity:
    """The error for a process that has a new address space."""
    return ChangedIdentity(
        f"the process of {_named(proc, stat)} executed a program while it was looked at: its old "
        "address space is gone",
        "walk it again to see the new one",
    )


def _named(proc: Path, stat: Stat | None) -> str:
    return str(proc) if stat is None else f"{proc} ({stat.comm})"


def _stat(proc: Path) -> Stat | None:
    try:
        return read_stat(proc)
    except OSError:
        return None
