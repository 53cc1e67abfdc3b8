# SPDX-License-Identifier: GPL-2.0-or-later
"""What the model has to know of the kernel and the machine it predicts for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

PTE, PMD, PUD, P4D, PGD = 1, 2, 3, 4, 5
"""Levels by their wire numbers (ptscope.h)."""


@dataclass(frozen=True)
class Geometry:
    """How an address is cut up: the shift of each level that is walked, by wire number."""

    shifts: Mapping[int, int]

    def __post_init__(self) -> None:
        levels = tuple(sorted(self.shifts))
        object.__setattr__(self, "levels", levels)
        object.__setattr__(self, "shift", self.shifts[PTE])
        object.__setattr__(self, "page", 1 << self.shifts[PTE])
        object.__setattr__(self, "huge", 1 << self.shifts[PMD])
        object.__setattr__(self, "per_huge", 1 << self.shifts[PMD] - self.shifts[PTE])

    levels: tuple[int, ...] = field(init=False, default=())
    """From PTE up."""
    shift: int = field(init=False, default=0)
    page: int = field(init=False, default=0)
    """Bytes of a page."""
    huge: int = field(init=False, default=0)
    """Bytes that one PMD entry maps."""
    per_huge: int = field(init=False, default=0)
    """Pages in them."""


X86 = Geometry({PTE: 12, PMD: 21, PUD: 30, P4D: 39, PGD: 48})


@dataclass(frozen=True)
class Kernel:
    """Facts of one kernel on one machine, as `drive` finds them out."""

    version: tuple[int, int] = (6, 1)
    arch: str = "x86_64"
    geometry: Geometry = X86
    soft_dirty: bool = True
    """Entries have a soft-dirty bit (x86; riscv from 6.18)."""
    uffd_wp: bool = True
    """Entries have a userfaultfd write-protection bit (x86 from 5.7, arm64 from 6.10)."""
    thp: str = "always"
    """/sys/kernel/mm/transparent_hugepage/enabled: always, madvise or never."""
    huge_zero: bool = True
    """Reads may map the huge zero page (use_zero_page)."""
    khugepaged: bool = True
    """khugepaged may run meanwhile and collapse what it finds."""
    old_prefaulted: bool = False
    """Pages mapped around a fault are not accessed: arm64 whose hardware sets the accessed flag
    (arch_wants_old_prefaulted_pte, from 5.12)."""
    hardware_dirty: bool = True
    """The hardware sets accessed and dirty; without it a fault does (arm64, riscv)."""
    table_reclaim: bool = False
    """MADV_DONTNEED frees PTE tables that it has emptied (CONFIG_PT_RECLAIM, x86 from 6.14)."""
    fault_around: int = 16
    """Pages that a read fault of a file may map at once (fault_around_bytes; 64 KiB)."""
    swap: bool = False
    """There is swap space."""
    nodes: int = 1
    """NUMA nodes with memory."""
    pkeys: bool = False
    """Protection keys can be used."""
    hugetlb: bool = False
    """There are free hugetlb pages of the size that PMDs map, enough for what is done here."""
    gigantic: bool = False
    """There is a free hugetlb page of the size that PUDs map."""
    uffd_minor: bool = False
    """userfaultfd knows of minor faults (x86 and arm64, from 5.14)."""
    ksm: bool = False
    """There is KSM, and it does not run: MADV_MERGEABLE only marks."""
    known: bool = False
    """There is /dev/ptscope-map, memory whose frames are known."""

    watched: bool = False
    """DAMON samples who accesses what, by clearing accessed bits at any time."""

    exact: bool = True
    """Entries themselves are seen, and the flags of VMAs (not so through pagemap)."""

    def since(self, major: int, minor: int) -> bool:
        """Whether this is that version, or a later one."""
        return self.version >= (major, minor)
