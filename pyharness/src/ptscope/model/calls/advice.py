# SPDX-License-Identifier: GPL-2.0-or-later
"""madvise: one function for each advice."""

from __future__ import annotations

from ptscope.model.calls.mapping import zap
from ptscope.model.faults import handle
from ptscope.model.kernel import PMD, PTE
from ptscope.model.state import Leaf, Space, Table, Vma

EINVAL, ENOMEM, EFAULT = 22, 12, 14


def dontneed(space: Space, start: int, end: int) -> int:
    """Entries go; the tables stay, unless the kernel reclaims empty ones.

    Private memory is lost with them; of shared memory the page cache still has the pages. Locked
    memory is refused. With CONFIG_PT_RECLAIM (from 6.14) a PTE table is freed when all of what it
    maps was advised and it is empty then (zap_empty_pte_table).
    """
    for vma in space.overlapping(start, end):
        if "locked" in vma.flags:
            return EINVAL
        zap(space, vma, max(vma.start, start), min(vma.end, end))
    if space.kernel.table_reclaim:
        reclaim_tables(space, start, end)
    return 0


def reclaim_tables(space: Space, start: int, end: int) -> None:
    """try_get_and_clear_pmd, try_to_free_pte: a PTE table that was emptied is freed.

    Whether it is looked at depends on how much of it was zapped at once, so both may be.
    """
    for index in space.within(PMD, start, end):
        first = index << space.shifts[PMD]
        entry = space.entries[PMD][index]
        empty = not space.within(PTE, first, first + space.geometry.huge)
        if isinstance(entry, Table) and empty:
            reason = "an empty table is freed if the zap saw all of it (mm/pt_reclaim.c)"
            if space.world.choose(space, first, ("no-table", "table"), reason, None) == "no-table":
                space.drop(PMD, index)


def set_flag(space: Space, start: int, end: int, flag: str, without: frozenset[str]) -> int:
    """Advice that only marks the VMA: it is split where it has to be; entries stay."""
    for vma in space.carve(start, end):
        vma.flags = vma.flags - without | {flag}
        space.vmas_changed = True
    space.merge()
    return 0


def hugepage(space: Space, start: int, end: int) -> int:
    """Faults may give huge pages here, whatever sysfs says, and khugepaged is told of it."""
    return set_flag(space, start, end, "hugepage", frozenset({"nohugepage"}))


def nohugepage(space: Space, start: int, end: int) -> int:
    """No more huge pages here; those that are there stay."""
    return set_flag(space, start, end, "nohugepage", frozenset({"hugepage"}))


def populate(space: Space, start: int, end: int, write: bool) -> int:
    """MADV_POPULATE_READ and _WRITE (from 5.14): fault in every page, as an access would.

    No access takes place, so nothing is set in entries that already permit it. It fails with
    EINVAL where the VMA does not permit the access, EFAULT where a fault would give a signal.
    """
    page = space.geometry.page
    at = start
    while at < end:
        vma = space.find(at)
        if vma is None:
            return ENOMEM
        if not vma.prot or (write and "w" not in vma.prot):
            return EINVAL
        if not _permitted(space, at, write) and handle(space, vma, at, write) != "ok":
            return EFAULT
        at += page
    return 0


def _permitted(space: Space, address: int, write: bool) -> bool:
    found = space.at(address)
    return found is not None and isinstance(found[2], Leaf) and (not write or found[2].write)


def cold(space: Space, start: int, end: int) -> int:
    """The accessed bits go (from 5.4): madvise_cold_or_pageout_pte_range.

    Pages of large folios that other entries map are left out, and so is all that is locked. A huge
    page of which a part is advised is split if nobody else has it.
    """
    for vma in space.overlapping(start, end):
        if "locked" in vma.flags:
            return EINVAL
        first, last = max(vma.start, start), min(vma.end, end)
        for level, index, leaf in list(space.leaves(first, last)):
            if isinstance(leaf, Leaf) and leaf.page.kind not in ("zero", "huge_zero"):
                _age(space, vma, level, index, leaf, first, last)
    return 0


def _age(
    space: Space, vma: Vma, level: int, index: int, leaf: Leaf, first: int, last: int
) -> None:
    address = index << space.shifts[level]
    reason = "only folios that nobody else maps, or locks, are aged"
    if level == PMD and (address < first or address + space.geometry.huge > last):
        return
    if leaf.accessed:
        outcome = space.world.choose(space, address, ("old", "accessed"), reason, leaf.page)
        leaf.accessed = outcome == "accessed"
        space.changed.add((level, index))
