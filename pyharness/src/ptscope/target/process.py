# SPDX-License-Identifier: GPL-2.0-or-later
"""Finding the process a PID names, and telling apart the ones that cannot be walked."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ptscope.errors import ChangedIdentity, Exited, KernelThread, NoSuchProcess, UsageError
from ptscope.target.access import executed, exited
from ptscope.target.procfs import check_procfs
from ptscope.target.stat import Stat, read_stat

if TYPE_CHECKING:
    import psutil

Pid = int | Literal["self", "kernel"]

# include/linux/threads.h, PID_MAX_LIMIT of 64-bit kernels.
PID_LIMIT = 4 * 1024 * 1024


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
    _mm: tuple[int, ...] = field(repr=False, compare=False)

    def check_unchanged(self) -> None:
        """Raise Exited or ChangedIdentity when this is not the process and address space found."""
        import psutil

        if not self._identity.is_running():
            if psutil.pid_exists(self.pid):
                raise ChangedIdentity(f"PID {self.pid} was reused: it now means another process")
            raise exited(self.proc, None)
        try:
            stat = read_stat(self.proc)
        except (FileNotFoundError, ProcessLookupError):
            raise exited(self.proc, None) from None
        if stat.dead:
            raise exited(self.proc, stat)
        if stat.mm != self._mm:
            raise executed(self.proc, stat)


def find(pid: int, proc: Path = Path("/proc")) -> Process:
    """The process with this PID, or with a thread of this ID.

    Raises UsageError for a number that can be no PID, Unsupported where `proc` shows other PIDs
    than ours or is not mounted, NoSuchProcess, KernelThread, or Exited for a zombie. A group whose
    leader has exited while other threads run is found through one of those.
    """
    if pid == 0:
        raise UsageError(
            "PID 0 is the idle task: it has no address space",
            "give the PID of a process, or `self`",
        )
    if not 0 < pid <= PID_LIMIT:
        raise UsageError(f"{pid} cannot be a PID: they are 1 to {PID_LIMIT}")
    check_procfs(proc)
    # Importing it without /proc prints a traceback, whatever one does about it.
    import psutil

    directory = proc / str(pid)
    try:
        identity = psutil.Process(pid)
        stat = read_stat(directory)
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        raise NoSuchProcess(
            f"no process has PID {pid}",
            "`ps -e` lists the processes; in a container only those of its PID namespace are seen",
        ) from None
    if stat.kernel_thread:
        raise KernelThread(
            f"{pid} ({stat.comm}) is a kernel thread: it has no user address space",
            "`ptscope walk kernel ADDR` walks the kernel half",
        )
    if not stat.dead:
        return Process(pid, stat.comm, directory, False, identity, stat.mm)
    live = _live_thread(directory)
    if live is None:
        raise Exited(f"process {pid} ({stat.comm}) has exited: a zombie has no page tables")
    thread, thread_stat = live
    return Process(pid, stat.comm, thread, True, identity, thread_stat.mm)


def find_self() -> Process:
    """The process that runs this code."""
    return find(os.getpid())


def _live_thread(directory: Path) -> tuple[Path, Stat] | None:
    try:
        threads = sorted((directory / "task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return None
    for thread in threads:
        try:
            stat = read_stat(thread)
        except (FileNotFoundError, ProcessLookupError):
            continue
        if not stat.dead:
            return thread, stat
    return None
