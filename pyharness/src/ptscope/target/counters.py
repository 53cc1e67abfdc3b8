# SPDX-License-Identifier: GPL-2.0-or-later
"""What the kernel counts of a whole address space: /proc/PID/statm and /proc/PID/status.

These counters are kept as pages and tables come and go, so they are a witness of their own.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from ptscope.target.access import cannot_read, mm_gone

# Up to 6.1 each thread counts for itself and adds it up after so many faults (mm/memory.c,
# TASK_RSS_EVENTS_THRESH); a fault can map as many bytes around it (fault_around_bytes).
FAULTS_PER_THREAD = 64
BYTES_PER_FAULT = 64 << 10
# Anonymous pages, file pages and shared memory are counted apart.
COUNTERS = 3


@dataclass(frozen=True)
class Counters:
    """All in bytes, except `threads`. Those that this kernel does not have are None.

    `page_tables` is VmPTE: tables of PTEs, PMDs and PUDs, not of P4Ds and not the PGD
    (mm_pgtables_bytes()). `thp_disabled` is prctl(PR_SET_THP_DISABLE).
    """

    resident: int
    page_tables: int | None
    swap: int | None
    hugetlb: int | None
    threads: int
    thp_disabled: bool | None

    @property
    def imprecision(self) -> int:
        """How far `resident` and `swap` may be from the truth, in bytes.

        Up to 6.1 each thread counts for itself for a while; from 6.2 on each CPU does, up to the
        batch of a percpu_counter: 32 pages, or twice the number of CPUs (lib/percpu_counter.c).
        """
        if _release() < (6, 2):
            return COUNTERS * self.threads * FAULTS_PER_THREAD * BYTES_PER_FAULT
        cpus = os.cpu_count() or 1
        return COUNTERS * max(32, 2 * cpus) * cpus * os.sysconf("SC_PAGE_SIZE")


def _release() -> tuple[int, int]:
    """Version of the running kernel; (0, 0) for a release that is not written like one."""
    numbers = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def read_counters(proc: Path) -> Counters:
    """The counters of the process whose directory under /proc is `proc`.

    Raises Exited or ChangedIdentity when the address space is gone, NotPermitted.
    """
    try:
        statm = (proc / "statm").read_text().split()
        status = (proc / "status").read_text(errors="replace")
    except OSError as error:
        raise cannot_read(proc / "status", error) from None
    values = dict(re.findall(r"^(\w+):\s*(\d+)", status, re.MULTILINE))

    def kib(name: str) -> int | None:
        return int(values[name]) * 1024 if name in values else None

    # A task without an address space has no line of memory.
    if len(statm) < 2 or "VmPTE" not in values:
        raise mm_gone(proc)
    enabled = values.get("THP_enabled")
    return Counters(
        resident=int(statm[1]) * os.sysconf("SC_PAGE_SIZE"),
        page_tables=kib("VmPTE"),
        swap=kib("VmSwap"),
        hugetlb=kib("HugetlbPages"),
        threads=int(values.get("Threads", 1)),
        thp_disabled=None if enabled is None else enabled == "0",
    )
