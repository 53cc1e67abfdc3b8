# SPDX-License-Identifier: GPL-2.0-or-later
"""madvise: one function for each advice."""

from __future__ import annotations

from ptscope.model.calls.mapping import zap
from ptscope.model.faults import DONE, do_swap_page, gup, step, thp_at
from ptscope.model.kernel import PMD, PTE
from ptscope.model.state import Leaf, Marker, Page, Slot, Space, Swapped, Table, Vma

EINVAL, ENOMEM, EFAULT, EAGAIN, EBUSY = 22, 12, 14, 11, 16
# What MADV_COLLAPSE says when it could not, for whatever reason (madvise_collapse_errno).
REFUSALS = frozenset({EINVAL, ENOMEM, EAGAIN, EBUSY})


def dontneed(space: Space, start: int, end: int) -> int:
    """Entries go; the tables stay, unless the kernel reclaims empty ones.

    Guards stay (from 6.13). Private memory is lost with its entries; the page cache still has the
    pages of shared memory. Locked
    memory is refused. With CONFIG_PT_RECLAIM (from 6.14) a PTE table is freed when all of what it
    maps was advised and it is empty then (zap_empty_pte_table).
    """
    for vma in space.overlapping(start, end):
        if "locked" in vma.flags:
            return EINVAL
        zap(space, vma, max(vma.start, start), min(vma.end, end), keep_guards=True)
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
    for vma in space.carve(
        start, end, lambda vma: flag not in vma.flags or bool(vma.flags & without)
    ):
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

    No access takes place: see `faults.gup`. It fails with
    EINVAL where the VMA does not permit the access, EFAULT where a fault would give a signal.
    """
    at = start
    while at < end:
        vma = space.find(at)
        if vma is None:
            return ENOMEM
        if not vma.prot or (write and "w" not in vma.prot):
            return EINVAL
        if gup(space, vma, at, write) != DONE:
            return EFAULT
        at += step(space, vma)
    return 0


def cold(space: Space, start: int, end: int) -> int:
    """The accessed bits go (from 5.4): madvise_cold_or_pageout_pte_range.

    Folios that other entries map, or that are not on the LRU yet, are left out. Parts of large
    folios are not asked for here: the kernel splits the folio if it can.
    """
    for vma in space.overlapping(start, end):
        if "locked" in vma.flags:
            return EINVAL
        first, last = max(vma.start, start), min(vma.end, end)
        for level, index, leaf in list(space.leaves(first, last)):
            if isinstance(leaf, Leaf) and leaf.page.kind not in ("zero", "huge_zero"):
                _age(space, level, index, leaf)
    return 0


def _age(space: Space, level: int, index: int, leaf: Leaf) -> None:
    address = index << space.shifts[level]
    reason = "only folios on the LRU that nobody else maps are aged"
    if leaf.accessed:
        outcome = space.world.choose(space, address, ("old", "accessed"), reason, leaf.page)
        leaf.accessed = outcome == "accessed"
        space.changed.add((level, index))


def pageout(space: Space, start: int, end: int) -> int:
    """MADV_PAGEOUT (from 5.4): the pages are reclaimed at once, as under memory pressure.

    A private page becomes a swap entry, which keeps soft-dirty and uffd-wp and whether the page was
    exclusive (from 5.19; riscv from 6.3). One that MADV_FREE was told of, and that is clean still,
    is dropped. A page of shared memory just loses its entry; a fault brings it back, maybe with
    another frame. Pages that other entries map are left alone; any other may be kept, old, for
    reasons that do not show here: it is not on the LRU yet, somebody has a reference to it, or
    swap is full. Large folios, which are split or not, are not asked for.
    """
    for vma in space.overlapping(start, end):
        if "locked" in vma.flags:
            return EINVAL
        for _, index, leaf in list(space.leaves(max(vma.start, start), min(vma.end, end))):
            if isinstance(leaf, Leaf) and leaf.page.mapped == 1:
                _page_out(space, vma, index, leaf)
    return 0


def _page_out(space: Space, vma: Vma, index: int, leaf: Leaf) -> None:
    address = index << space.shifts[PTE]
    page = leaf.page
    reason = "reclaim keeps what is not on the LRU or has references (shrink_folio_list)"
    outcomes: tuple[str, ...]
    if page.kind == "cache":
        outcomes = ("absent", "kept")
    elif page.kind == "anon":
        outcomes = ("swapped", "kept") if space.kernel.swap else ("kept",)
        if page.lazy and not leaf.dirty:
            outcomes = ("absent", *outcomes)
    else:
        return
    outcome = space.world.choose(space, address, outcomes, reason, page)
    if outcome == "kept":
        _age(space, PTE, index, leaf)
        return
    space.unmap(PTE, index)
    if outcome == "swapped":
        swapped = Swapped(Slot(), leaf.soft_dirty, leaf.uffd_wp, page.exclusive)
        space.put(PTE, index, swapped)
    elif page.kind == "cache":
        space.world.forget(page)
        page.frame = None
        page.unsure = True
        page.dirty = False


def free(space: Space, start: int, end: int) -> int:
    """MADV_FREE: private pages become old and clean, to be dropped under pressure; soft-dirty and
    the permission to write stay (madvise_free_pte_range).

    A page that another process maps, or of a large folio, may be left out. Swapped pages are gone.
    A huge page of which a part is advised is split.
    """
    for vma in space.overlapping(start, end):
        if vma.object is not None or "locked" in vma.flags:
            return EINVAL
        for level, index, entry in list(
            space.leaves(max(vma.start, start), min(vma.end, end))
        ):
            if isinstance(entry, Swapped):
                space.drop(level, index)
            elif isinstance(entry, Leaf) and entry.page.kind == "anon":
                _free(space, level, index, entry)
    return 0


def _free(space: Space, level: int, index: int, leaf: Leaf) -> None:
    address = index << space.shifts[level]
    sure = leaf.page.exclusive and not leaf.page.large and not leaf.page.from_swap
    outcomes = ("clean",) if sure else ("clean", "dirty")
    reason = "pages that others map, that swap has, and parts of large folios may be left out"
    if not leaf.dirty:
        outcomes = ("old", "accessed") if len(outcomes) > 1 else ("old",)
    if space.world.choose(space, address, outcomes, reason, leaf.page) in ("clean", "old"):
        leaf.dirty = leaf.accessed = False
        leaf.page.lazy = True
        space.changed.add((level, index))


def guard_install(space: Space, start: int, end: int) -> int:
    """From 6.13: every page of the range is emptied and gets a marker; an access then is SIGSEGV.

    Only private anonymous memory up to 6.14, and not what is locked. Markers that are there stay.
    The VMA gets an anon_vma, so that fork copies the markers; from 6.19 a flag of its own, which
    it keeps when what it has moves away (the model first knew of the anon_vma alone).
    """
    for vma in space.overlapping(start, end):
        if "locked" in vma.flags or (vma.object is not None and not space.kernel.since(6, 15)):
            return EINVAL
        first, last = max(vma.start, start), min(vma.end, end)
        zap(space, vma, first, last, keep_guards=True)
        vma.anon_vma = True
        vma.guarded = space.kernel.since(6, 19)
        shift = space.geometry.shift
        for index in range(first >> shift, last >> shift):
            if index not in space.entries[PTE]:
                space.put(PTE, index, Marker("guard"))
    return 0


def guard_remove(space: Space, start: int, end: int) -> int:
    """From 6.13: markers go, all else stays."""
    for vma in space.overlapping(start, end):
        if vma.object is not None and not space.kernel.since(6, 15):
            return EINVAL
    for level, index, entry in list(space.leaves(start, end)):
        if isinstance(entry, Marker) and entry.kind == "guard":
            space.drop(level, index)
    return 0


def collapse(space: Space, start: int, end: int, errno: int) -> int:
    """MADV_COLLAPSE, from 6.1: an aligned range becomes a huge page, whatever it had.

    The page is new, exclusive, dirty and writable as the VMA is. The kernel may refuse for reasons
    that do not show in the state (pages on their way to the LRU, references, no free huge page): it
    then says so, and nothing has changed but that it may have swapped pages in before. It must
    refuse where a fault could not map a huge page.
    """
    vma = space.find(start)
    assert vma is not None
    index = start >> space.shifts[PMD]
    if errno in REFUSALS:
        _swap_in(space, vma, start, end)
        return errno
    if isinstance(space.entries[PMD].get(index), Leaf):
        return 0
    if vma.object is not None or start < vma.start or end > vma.end:
        return EINVAL
    for level, at, _ in list(space.leaves(start, end)):
        space.drop(level, at)
    page = Page("anon", size=space.geometry.per_huge, exclusive=True)
    space.put(
        PMD,
        index,
        Leaf(page, "w" in vma.prot, True, True, space.kernel.soft_dirty, pkey=vma.pkey),
    )
    return 0


def _swap_in(space: Space, vma: Vma, start: int, end: int) -> None:
    """__collapse_huge_page_swapin: as reads would, as far as it gets."""
    reason = "a collapse that fails may have swapped pages in"
    for _, index, entry in list(space.leaves(start, end)):
        if isinstance(entry, Swapped):
            address = index << space.shifts[PTE]
            outcome = space.world.choose(space, address, ("swapped", "kept"), reason, None)
            if outcome == "kept":
                do_swap_page(space, vma, index, entry, write=False)


def mergeable(space: Space, start: int, end: int) -> int:
    """MADV_MERGEABLE marks the VMA for KSM; as long as KSM does not run, entries stay.

    Shared memory is left alone, without an error (ksm_madvise, vma_ksm_compatible).
    """
    return set_flag(space, start, end, "mergeable", frozenset())


def unmergeable(space: Space, start: int, end: int) -> int:
    """The mark goes. Merged pages would be copied; there are none."""
    for vma in space.carve(start, end, lambda vma: "mergeable" in vma.flags):
        vma.flags = vma.flags - {"mergeable"}
        space.vmas_changed = True
    space.merge()
    return 0


def khugepaged(space: Space, index: int) -> bool:
    """What khugepaged may do at any time where a fault could map a huge page: as MADV_COLLAPSE."""
    address = index << space.shifts[PMD]
    vma = space.find(address)
    if vma is None or not thp_at(space, vma, address) or "w" not in vma.prot:
        return False
    collapse(space, address, address + space.geometry.huge, 0)
    return True
