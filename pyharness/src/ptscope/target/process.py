# SPDX-License-Identifier: GPL-2.0-or-later
"""Finding the process a PID names, and telling apart the ones that cannot be walked."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import psutil

from ptscope.errors import ChangedIdentity, Exited, KernelThread, NoSuchProcess, UsageError

Pid = int | Literal["self", "kernel"]

# include/linux/threads.h, PID_MAX_LIMIT of 64-bit kernels.
PID_LIMIT = 4 * 1024 * 1024
# include/linux/sched.h; this bit has had this meaning since 2.6.27.
PF_KTHREAD = 0x00200000
DEAD_STATES = frozenset("ZXx")


@dataclass(frozen=True)
class Process:
    """A process that has an address space.

    `proc` is the directory under /proc that answers for it: /proc/PID, or that of a live thread
    when the leader has exited while other threads run on.
    """

    pid: int
    comm: str
    proc: Path
    leader_exited: bool
    _identity: psutil.Process = field(repr=False, compare=False)

    def check_unchanged(self) -> None:
        """Raise Exited or ChangedIdentity when the PID no longer means the process first found."""
        if self._identity.is_running():
            return
        if psutil.pid_exists(self.pid):
            raise ChangedIdentity(f"PID {self.pid} was reused: it now means another process")
        raise Exited(f"process {self.pid} ({self.comm}) exited while it was looked at")


@dataclass(frozen=True)
class _Stat:
    """Fields of /proc/PID/stat (man proc_pid_stat)."""

    comm: str
    state: str
    flags: int


def find(pid: int, proc: Path = Path("/proc")) -> Process:
    """The process with this PID, or with a thread of this ID.

    Raises UsageError for a number that can be no PID, NoSuchProcess, KernelThread, or Exited for a
    zombie. A group whose leader has exited while other threads run is found through one of those.
    """
    if pid == 0:
        raise UsageError(
            "PID 0 is the idle task: it has no address space",
            "give the PID of a process, `self` or `kernel`",
        )
    if not 0 < pid <= PID_LIMIT:
        raise UsageError(f"{pid} cannot be a PID: they are 1 to {PID_LIMIT}")
    directory = proc / str(pid)
    try:
        identity = psutil.Process(pid)
        stat = _stat(directory)
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        raise NoSuchProcess(
            f"no process has PID {pid}",
            "`ps -e` lists the processes; in a container only those of its PID namespace are seen",
        ) from None
    if stat.flags & PF_KTHREAD:
        raise KernelThread(
            f"{pid} ({stat.comm}) is a kernel thread: it has no user address space",
            "`ptscope walk kernel ADDR` walks the kernel half",
        )
    if stat.state not in DEAD_STATES:
        return Process(pid, stat.comm, directory, False, identity)
    thread = _live_thread(directory)
    if thread is None:
        raise Exited(f"process {pid} ({stat.comm}) has exited: a zombie has no page tables")
    return Process(pid, stat.comm, thread, True, identity)


def find_self() -> Process:
    """The process that runs this code."""
    return find(os.getpid())


def _stat(directory: Path) -> _Stat:
    # A name may hold blanks and parentheses, so the fields after it are found from the last one.
    text = (directory / "stat").read_text(errors="replace")
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    return _Stat(comm=head.partition("(")[2], state=fields[0], flags=int(fields[6]))


def _live_thread(directory: Path) -> Path | None:
    try:
        threads = sorted((directory / "task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return None
    for thread in threads:
        try:
            if _stat(thread).state not in DEAD_STATES:
                return thread
        except (FileNotFoundError, ProcessLookupError):
            continue
    return None
