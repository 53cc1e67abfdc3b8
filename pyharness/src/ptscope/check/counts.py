# SPDX-License-Identifier: GPL-2.0-or-later
"""Sums of entries against the kernel's own: smaps for a VMA, status and statm for all.

Each function gives the disagreements of two readings that are about the same moment; whether they
are is decided by who calls (`confirm`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from ptscope.check.scan import MOST_KNOWN, PMD, PTE, STATES, Area, Scan
from ptscope.check.witness import Status
from ptscope.decode.compiled import STATE
from ptscope.decode.layout import Layout
from ptscope.decode.table import MAPPED
from ptscope.target.smaps import PMD_FIELDS, SmapsVma

# What smaps counts although the entry is not present: pages under migration keep their place.
_ON_THE_WAY = "migration"
# Whether these count has changed from version to version, so they make a range of what is right.
_UNSURE = ("device", "hwpoison")
# Up to 6.1 a thread adds to the counters what it kept back at every 65th fault
# (mm/memory.c, TASK_RSS_EVENTS_THRESH), and one fault maps up to 64 KiB of a file around the
# address (fault_around_bytes). From 6.2 on a CPU does when it has as much as percpu_counter_batch.
_EVENTS = 64
_FAULT_AROUND = 1 << 16
_LEAST_BATCH = 32
_RSS_COUNTERS = 3
_PMDS = slice(STATES * PMD, STATES * (PMD + 1))


@dataclass(frozen=True)
class Disagreement:
    """Two figures that should be equal; bytes, and words for both."""

    invariant: str
    area: Area | None
    tables: int
    witness: int
    what: str
    witness_name: str


class Amounts(NamedTuple):
    """What a VMA has by its entries, in bytes: see the methods of Counting of these names.

    `unsure`: it has entries of which it depends on the kernel whether they count.
    """

    resident: tuple[int, int]
    huge: int
    hugetlb: int
    swapped: int
    unseen: int
    unsure: int


@dataclass(frozen=True)
class Counting:
    """How one kernel counts. `cpus` are those that are online."""

    layout: Layout
    cpus: int = 1
    _known: dict[object, Amounts] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def amounts(self, area: Area) -> Amounts:
        """All that is compared of a VMA; worked out once for those that are alike."""
        flags = area.vm_flags & self.layout.facts.get("vm.pfnmap", 0)
        key = (area.counts, area.zero_huge, area.hugetlb, flags)
        found = self._known.get(key)
        if found is None:
            if len(self._known) == MOST_KNOWN:
                self._known.clear()
            found = self._known[key] = Amounts(
                self.resident(area),
                self.huge(area),
                self.hugetlb(area),
                self.swapped(area),
                self.unseen(area) * self.spans.get(PMD, 0),
                area.at_all_levels(*_UNSURE),
            )
        return found

    def has(self, area: Area, name: str) -> bool:
        """Whether the VMA has a flag."""
        return bool(area.vm_flags & self.layout.facts.get(f"vm.{name}", 0))

    @property
    def spans(self) -> dict[int, int]:
        """Bytes that an entry covers, by wire level."""
        return {level.number: level.span for level in self.layout.levels}

    def unseen(self, area: Area) -> int:
        """Huge pages that smaps may leave out: PROT_NONE ones, from 6.1 to 6.5.

        "smaps: Fix the abnormal memory statistics obtained through /proc/pid/smaps" (6.6, and older
        ones that have it) ended it: follow_trans_huge_pmd() took them for NUMA hints.
        """
        affected = (6, 1) <= _release(self.layout.release) < (6, 6)
        return area.count(PMD, "protnone") if affected and PMD in self.spans else 0

    def resident(self, area: Area) -> tuple[int, int]:
        """Bytes of Rss that smaps must give a VMA: the least and the most."""
        if area.hugetlb or self.has(area, "pfnmap"):
            return 0, 0
        least = most = 0
        for level, span in self.spans.items():
            pages = area.count(level, *MAPPED, _ON_THE_WAY) - area.special[level]
            if level == PMD and not area.special[level]:
                # From 6.17 the huge zero page is special as the small one has always been.
                pages -= area.zero_huge
            least += (pages - (self.unseen(area) if level == PMD else 0)) * span
            most += (pages + area.count(level, *_UNSURE)) * span
        return least, most

    def huge(self, area: Area) -> int:
        """Bytes that PMDs map, under migration too, as smaps counts them."""
        if area.hugetlb or self.has(area, "pfnmap") or PMD not in self.spans:
            return 0
        pages = area.count(PMD, *MAPPED, _ON_THE_WAY) - area.special[PMD]
        if not area.special[PMD]:
            pages -= area.zero_huge
        return pages * self.spans[PMD]

    def hugetlb(self, area: Area) -> int:
        """Bytes of hugetlb pages, of all sizes."""
        if not area.hugetlb:
            return 0
        return sum(
            area.count(level, *MAPPED, _ON_THE_WAY) * span for level, span in self.spans.items()
        )

    def swapped(self, area: Area) -> int:
        """Bytes that are swapped out, by their entries."""
        return area.count(PTE, "swap") * self.layout.page_size

    def tables(self, scan: Scan) -> tuple[int, int]:
        """Bytes that VmPTE must give: tables of PTEs, PMDs and PUDs, and those in reserve."""
        walked = [level.number for level in self.layout.levels]
        names = {level.number: level.name for level in self.layout.levels}
        # A table entry's own level is one above that of the table it leads to.
        counted = [
            above for above, below in pairwise(walked) if names[below] in ("pud", "pmd", "pte")
        ]
        alike = Counter(area.counts for area in scan.all_areas)
        column = STATE["table"]
        tables = sum(
            counts.by_state[STATES * level + column] * times
            for counts, times in alike.items()
            for level in counted
        )
        least = most = 0
        for area in scan.all_areas:
            # Most have no huge page, so that there is nothing to work out.
            if any(area.counts.by_state[_PMDS]):
                low, high = self.reserve(area)
                least, most = least + low, most + high
        return (tables + least) * self.layout.page_size, (tables + most) * self.layout.page_size

    def reserve(self, area: Area) -> tuple[int, int]:
        """PTE tables that are kept for huge pages of anonymous memory, the zero page's too.

        The least and the most: a private mapping of a file may be of /dev/zero, which is anonymous.
        """
        if not area.end or area.hugetlb or self.has(area, "pfnmap"):
            return 0, 0
        pages = area.count(PMD, *MAPPED, _ON_THE_WAY)
        if not area.inode:
            return pages, pages
        return 0, 0 if self.has(area, "mayshare") else pages

    def may_share(self, area: Area) -> bool:
        """Whether hugetlb may share a PMD table for it (mm/hugetlb.c, vma_shareable)."""
        pud = next((level.span for level in self.layout.levels if level.number == 3), None)
        if pud is None:
            pud = self.layout.levels[0].span
        base = -(-area.start // pud) * pud
        return area.hugetlb and self.has(area, "mayshare") and base + pud <= area.end

    def slack(self, status: Status, counters: int) -> int:
        """Bytes by which so many of the kernel's counters may be off together."""
        if _release(self.layout.release) < (6, 2):
            around = max(1, _FAULT_AROUND // self.layout.page_size)
            pages = (_EVENTS + 2) * around * status.threads
        else:
            pages = counters * self.cpus * max(_LEAST_BATCH, 2 * self.cpus)
        return pages * self.layout.page_size

    def inserted(self, areas: Sequence[Area]) -> int:
        """Bytes that a driver has inserted and the counters may lack.

        Before 6.2, vm_insert_page counts in what the task keeps for itself, which only page faults
        add to the process (mm/memory.c, check_sync_rss_stat), and mmap() inserts any number.
        """
        if _release(self.layout.release) >= (6, 2):
            return 0
        return sum(self.amounts(area).resident[1] for area in areas if self.has(area, "mixedmap"))


def of_vma(counting: Counting, area: Area, smaps: SmapsVma) -> Iterator[Disagreement]:
    """Where smaps and the entries of one VMA disagree."""
    ours = counting.amounts(area)
    least, most = ours.resident
    rss = smaps.get("Rss")
    if not least <= rss <= most:
        yield Disagreement("resident", area, least, rss, "resident", "Rss")
    pairs = [
        ("huge", ours.huge, PMD_FIELDS, "in huge pages"),
        ("hugetlb", ours.hugetlb, ("Shared_Hugetlb", "Private_Hugetlb"), "in hugetlb"),
    ]
    for invariant, amount, figures, what in pairs:
        theirs = smaps.get(*figures)
        if invariant == "huge" and ours.unseen and theirs <= amount:
            continue
        if amount != theirs and not (invariant == "hugetlb" and ours.unsure):
            yield Disagreement(invariant, area, amount, theirs, what, " + ".join(figures))
    swapped = ours.swapped
    swap = smaps.get("Swap")
    if not counting.has(area, "pfnmap") and (swapped > swap or (swapped < swap and not area.inode)):
        yield Disagreement("swapped", area, swapped, swap, "swapped out", "Swap")


def of_process(counting: Counting, scan: Scan, status: Status) -> Iterator[Disagreement]:
    """Where status, statm and the entries of a whole process disagree."""
    size = sum(area.end - area.start for area in scan.areas)
    amounts = [counting.amounts(area) for area in scan.areas]
    least = sum(each.resident[0] for each in amounts)
    most = sum(each.resident[1] for each in amounts)
    # The counters have these, whatever smaps says.
    least += sum(each.unseen for each in amounts)
    slack = counting.slack(status, _RSS_COUNTERS)
    rss = (least - slack - counting.inserted(scan.areas), most + slack)
    swap = sum(each.swapped for each in amounts)
    swap_slack = counting.slack(status, 1)
    hugetlb = sum(each.hugetlb for each in amounts)
    sharing = any(counting.may_share(area) for area in scan.areas if area.hugetlb)
    unsure = any(area.at_all_levels(*_UNSURE) for area in scan.areas if area.hugetlb)
    tables, most_tables = counting.tables(scan)
    # invariant, what, the least and the most that is right, the kernel's figure and its name
    rows: Sequence[tuple[str, str, int, int, int | None, str]] = (
        ("vm-size", "in VMAs", size, size, status.vm_size, "VmSize"),
        ("vm-size", "in VMAs", size, size, status.statm_size, "statm's size"),
        ("rss-counters", "resident", *rss, status.vm_rss, "VmRSS"),
        ("rss-counters", "resident", *rss, status.statm_resident, "statm's resident"),
        (
            "rss-counters", "swapped out", swap - swap_slack, swap + swap_slack, status.vm_swap,
            "VmSwap",
        ),
        (
            "hugetlb-counter", "in hugetlb", hugetlb, hugetlb,
            None if sharing or unsure else status.hugetlb, "HugetlbPages",
        ),
        ("table-count", "in tables", tables, most_tables, status.vm_pte, "VmPTE"),
    )  # fmt: skip
    ours = {"rss-counters": {"resident": least, "swapped out": swap}}
    for invariant, what, low, high, theirs, name in rows:
        if theirs is not None and not low <= theirs <= high:
            shown = ours.get(invariant, {}).get(what, low)
            yield Disagreement(invariant, None, shown, theirs, what, name)


def _release(text: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (99, 0)
