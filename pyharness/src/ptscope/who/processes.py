# SPDX-License-Identifier: GPL-2.0-or-later
"""Which processes there are, and which of them have one address space together.

Threads are one process in any case; but vfork() and clone() with CLONE_VM alone make processes that
share, and each address space is to be looked at once.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ptscope.errors import KernelThread, NoSuchProcess, PtscopeError, TargetError
from ptscope.target.process import Process, find
from ptscope.target.procfs import check_procfs
from ptscope.target.stat import read_stat

# include/uapi/linux/kcmp.h and the syscall's number: asm-generic for all newer architectures.
KCMP_VM = 1
SYS_KCMP = {"x86_64": 312}
SYS_KCMP_GENERIC = 272


@dataclass(frozen=True)
class Skipped:
    """A process that could not be looked at, and why."""

    pid: int
    comm: str
    cause: str

    def to_json(self) -> dict[str, object]:
        """An object of `skipped` in `who --json`."""
        return {"pid": self.pid, "comm": self.comm, "cause": self.cause}


@dataclass(frozen=True)
class Space:
    """An address space: the process that stands for it, and those that share it."""

    process: Process
    sharers: tuple[Process, ...] = ()


@dataclass
class Census:
    """Who was found: address spaces to look at, how many kernel threads, who was gone."""

    spaces: list[Space] = field(default_factory=list)
    kernel_threads: int = 0
    skipped: list[Skipped] = field(default_factory=list)


def same_mm(one: int, other: int) -> bool:
    """Whether two processes have one address space; False too when the kernel does not tell.

    kcmp(2) needs CONFIG_KCMP and the right to trace both.
    """
    number = SYS_KCMP.get(platform.machine(), SYS_KCMP_GENERIC)
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.syscall(number, one, other, KCMP_VM, 0, 0) == 0)


def pids(proc: Path = Path("/proc")) -> list[int]:
    """The PIDs that /proc shows now; raises Unsupported when they are not ours."""
    check_procfs(proc)
    return sorted(int(path.name) for path in proc.iterdir() if path.name.isdecimal())


def census(
    wanted: Sequence[int] | None = None,
    find_process: Callable[[int], Process] = find,
    same: Callable[[int, int], bool] = same_mm,
) -> Census:
    """The processes with these PIDs, or all. Those that exit meanwhile are `skipped`.

    For PIDs that were asked for by number, raises the TargetError that says why one cannot be.
    """
    result = Census()
    processes: list[Process] = []
    for pid in pids() if wanted is None else wanted:
        try:
            processes.append(find_process(pid))
        except KernelThread:
            if wanted is not None:
                raise
            result.kernel_threads += 1
        except NoSuchProcess:
            if wanted is not None:
                raise
        except TargetError as error:
            if wanted is not None:
                raise
            result.skipped.append(Skipped(pid, "", error.cause))
    result.spaces = list(_spaces(processes, same))
    return result


def _spaces(processes: Iterable[Process], same: Callable[[int, int], bool]) -> Iterable[Space]:
    """One Space for each address space, the lowest PID standing for it.

    Processes share one only if stat shows the same addresses for both, as it also does for
    processes that were forked: only such pairs have to be asked about.
    """
    alike: dict[object, list[list[Process]]] = {}
    order: list[list[Process]] = []
    for process in processes:
        groups = alike.setdefault(_mm_addresses(process), [])
        group = next((g for g in groups if same(g[0].pid, process.pid)), None)
        if group is None:
            group = []
            groups.append(group)
            order.append(group)
        group.append(process)
    return (Space(first, tuple(rest)) for first, *rest in order)


def _mm_addresses(process: Process) -> object:
    try:
        return read_stat(process.proc).mm
    except OSError:
        return process.pid


def skipped(process: Process, error: PtscopeError) -> Skipped:
    """A process that went away or could not be read while it was looked at."""
    return Skipped(process.pid, process.comm, error.cause)
