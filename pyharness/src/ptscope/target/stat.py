# SPDX-License-Identifier: GPL-2.0-or-later
"""/proc/PID/stat: is the task alive, and which address space does it have?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# include/linux/sched.h; these bits have had this meaning since 2.6.27.
PF_EXITING = 0x00000004
PF_KTHREAD = 0x00200000
DEAD_STATES = frozenset("ZXx")
# Fields startcode, endcode, startstack and start_brk (man proc_pid_stat, counted from 1). exec sets
# them anew, at random places where addresses are randomized, and hardly anything else does
# (prctl PR_SET_MM). Who may not read them sees the same few numbers each time.
MM_FIELDS = (26, 27, 28, 47)


@dataclass(frozen=True)
class Stat:
    """Some fields of /proc/PID/stat; `mm` tells one address space of a task from the next."""

    comm: str
    state: str
    flags: int
    mm: tuple[int, ...]

    @property
    def dead(self) -> bool:
        """Whether it is a zombie or on the way: a task gives up its address space first."""
        return self.state in DEAD_STATES or bool(self.flags & PF_EXITING)

    @property
    def kernel_thread(self) -> bool:
        """Whether it is a thread of the kernel."""
        return bool(self.flags & PF_KTHREAD)


def read_stat(directory: Path) -> Stat:
    """The stat of the process or thread with this directory under /proc.

    Raises FileNotFoundError or ProcessLookupError when it is gone.
    """
    # A name may hold blanks and parentheses, so the fields after it are found from the last one.
    text = (directory / "stat").read_text(errors="replace")
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    return Stat(
        comm=head.partition("(")[2],
        state=fields[0],
        flags=int(fields[6]),
        mm=tuple(int(fields[number - 3]) for number in MM_FIELDS),
    )


def start_ticks(directory: Path) -> int | None:
    """When the task started, in clock ticks since boot (field 22); None when it is gone."""
    try:
        text = (directory / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(text.rpartition(")")[2].split()[22 - 3])
