# SPDX-License-Identifier: GPL-2.0-or-later
"""mmap, munmap, mprotect, mremap: what changes VMAs."""

from __future__ import annotations

from ptscope.model.faults import DONE, default_write, gup
from ptscope.model.kernel import PMD, PTE
from ptscope.model.state import Leaf, Marker, Object, Space, Swapped, Vma


def mmap(
    space: Space,
    address: int,
    length: int,
    prot: str,
    file: Object | None = None,
    pgoff: int = 0,
    shared: bool = False,
    flags: frozenset[str] = frozenset(),
) -> None:
    """A mapping at a place that is free (MAP_FIXED_NOREPLACE). It has no entry and no table yet."""
    if file is None:
        pgoff = address >> space.geometry.shift
    vma = Vma(address, address + length, prot, file, pgoff, shared, flags)
    space.insert(vma)
    if vma.known in ("remap", "insert"):
        _map_known(space, vma)
    space.merge()


def _map_known(space: Space, vma: Vma) -> None:
    """remap_pfn_range and vm_insert_page: all entries at once, clean, and writable as the new
    VMA is, whose soft-dirty tracking only begins with the next clear_refs. They are accessed, as
    permissions hold that bit; on riscv64 that of PROT_NONE does not (the model first had it do)."""
    assert vma.object is not None
    shift = space.shifts[PTE]
    for index in range(vma.start >> shift, vma.end >> shift):
        page = vma.object.cache[vma.page_of(index << shift, shift)]
        accessed = bool(vma.prot) or space.kernel.arch != "riscv64"
        leaf = Leaf(page, write="w" in vma.prot, accessed=accessed, pkey=vma.pkey)
        space.put(PTE, index, leaf)


def munmap(space: Space, start: int, end: int) -> None:
    """Entries go, and tables that serve no other VMA."""
    for vma in space.carve(start, end):
        space.vmas.remove(vma)
        zap(space, vma, vma.start, vma.end)
    space.vmas_changed = True
    space.free_tables(start, end)


def zap(space: Space, vma: Vma, start: int, end: int, keep_guards: bool = False) -> None:
    """Entries of start to end go (unmap_page_range); a huge page of which a part goes is split."""
    huge = space.geometry.huge
    for border in (start, end):
        index = border >> space.shifts[PMD]
        small = vma.object is None or vma.object.level == PTE
        if small and border % huge and isinstance(space.entries[PMD].get(index), Leaf):
            space.split_huge(vma, index)
    for level, index, entry in list(space.leaves(start, end)):
        if keep_guards and isinstance(entry, Marker) and entry.kind == "guard":
            continue
        space.unmap(level, index)


def pkey_mprotect(space: Space, start: int, end: int, prot: str, pkey: int) -> None:
    """mprotect that sets the protection key too (from 4.9): it is in every entry with a page.

    The process may access what has the key; the kernel gives that right with pkey_alloc.
    """
    mprotect(space, start, end, prot, pkey)


def mprotect(space: Space, start: int, end: int, prot: str, pkey: int | None = None) -> None:
    """Every entry gets the permission of its VMA; accessed, dirty and soft-dirty stay.

    A huge page of which a part is concerned is split. Where the VMA cannot just make all entries
    writable (private memory, where a write may have to copy), those of exclusive pages are made so
    at once: see `may_write_at_once`.

    Locked private memory that becomes writable is faulted in for writing, so that no access has to
    (mprotect_fixup). The model first left the zero page there.
    """
    for vma in space.carve(
        start, end, lambda vma: vma.prot != prot or pkey not in (None, vma.pkey)
    ):
        if pkey is not None:
            vma.pkey = pkey
        locked = "locked" in vma.flags and not vma.shared and "w" not in vma.prot
        vma.prot = prot
        if space.kernel.since(6, 17):
            merge_batches(space, vma.start, vma.end)
        for level, index, entry in list(space.leaves(vma.start, vma.end)):
            if isinstance(entry, Leaf):
                entry.write = default_write(space, vma) or may_write_at_once(
                    space, vma, level, entry, index
                )
                pte_modify(space, vma, entry)
            space.changed.add((level, index))
        if locked and "w" in prot:
            for address in range(vma.start, vma.end, space.geometry.page):
                if gup(space, vma, address, write=True) != DONE:
                    break
    space.vmas_changed = True
    space.merge()


def pte_modify(space: Space, vma: Vma, leaf: Leaf) -> None:
    """An entry gets the permissions of its VMA anew. Those of riscv64 hold the accessed bit, which
    x86 and arm64 leave out (arch/riscv/include/asm/pgtable.h, _PAGE_BASE; the model first had it
    left out there, too)."""
    if space.kernel.arch == "riscv64" and vma.prot:
        leaf.accessed = True


def merge_batches(space: Space, start: int, end: int) -> None:
    """Entries of one large folio are changed many at a time, as mprotect and mremap do from 6.17:
    each is dirty and accessed afterwards if any of them was (get_and_clear_ptes), and soft-dirty if
    any but the first is dirty, as setting dirty sets that. A batch ends with the table, and where
    soft-dirty or the permission to write differ. The model first had each keep its own bits."""
    batch: list[tuple[int, Leaf]] = []
    for index in space.within(PTE, start, end):
        entry = space.entries[PTE][index]
        if not isinstance(entry, Leaf) or entry.page.whole is None or entry.page.whole.split:
            continue
        if batch and not _goes_on(space, batch[-1], (index, entry)):
            _merge(space, batch)
            batch = []
        batch.append((index, entry))
    _merge(space, batch)


def _goes_on(space: Space, last: tuple[int, Leaf], following: tuple[int, Leaf]) -> bool:
    (before, old), (index, new) = last, following
    return (
        index == before + 1
        and index % space.geometry.per_huge != 0
        and new.page.whole is old.page.whole
        and new.page.offset == old.page.offset + 1
        and (new.write, new.soft_dirty, new.uffd_wp) == (old.write, old.soft_dirty, old.uffd_wp)
    )


def _merge(space: Space, batch: list[tuple[int, Leaf]]) -> None:
    dirty = any(leaf.dirty for _, leaf in batch)
    accessed = any(leaf.accessed for _, leaf in batch)
    soft_dirty = space.kernel.soft_dirty and any(leaf.dirty for _, leaf in batch[1:])
    for index, leaf in batch:
        leaf.dirty, leaf.accessed = dirty, accessed
        leaf.soft_dirty = leaf.soft_dirty or soft_dirty
        space.changed.add((PTE, index))


def may_write_at_once(space: Space, vma: Vma, level: int, leaf: Leaf, index: int) -> bool:
    """can_change_pte_writable: whether mprotect to writable saves the entry a fault.

    In 6.0 and 6.1 only PTEs, of pages that are dirty; from 6.2 PMD entries too, and private pages
    whether dirty or not. Never where soft-dirty or uffd-wp wants to see the write.

    Never in shared memory that has no page_mkwrite: the kernel asks vma_wants_writenotify with a
    vm_page_prot that is not that of a writable VMA, not yet or not at all, and is told no. The
    model first had pages that are dirty made writable.
    """
    if "w" not in vma.prot or leaf.uffd_wp:
        return False
    kernel = space.kernel
    if level > PTE and not kernel.since(6, 2):
        return False
    if kernel.soft_dirty and not vma.soft_dirty and not leaf.soft_dirty:
        return False
    if vma.shared:
        return False
    if leaf.page.kind != "anon" or not leaf.page.exclusive:
        return False
    may = leaf.dirty or kernel.since(6, 2)
    if may and leaf.page.unsure:
        reason = "references may have kept the page from being exclusive when it was swapped in"
        outcomes = ("writable", "read-only")
        address = index << space.shifts[level]
        return space.world.choose(space, address, outcomes, reason, leaf.page) == "writable"
    return may


def mremap(
    space: Space, old: int, old_length: int, new_length: int, to: int | None, keep: bool
) -> None:
    """Grow or shrink in place (`to` None), or move to `to`, keeping the old VMA with DONTUNMAP.

    Entries move with their bits. On x86 soft-dirty is set in entries that move one by one
    (move_soft_dirty_pte); where a whole PTE table moves (both places aligned, CONFIG_HAVE_MOVE_PMD)
    they are not touched, and the table keeps its frame.
    """
    if to is None:
        if new_length < old_length:
            munmap(space, old + new_length, old + old_length)
            return
        vma = space.find(old)
        assert vma is not None
        vma.end = old + new_length
        space.vmas_changed = True
        space.merge()
        return
    if new_length < old_length:
        munmap(space, old + new_length, old + old_length)
        old_length = new_length
    before = space.find(old)
    assert before is not None
    entire = before.start == old and before.end == old + old_length
    (vma,) = space.carve(old, old + old_length)
    shift = space.geometry.shift
    moved = Vma(
        to,
        to + new_length,
        vma.prot,
        vma.object,
        # copy_vma: untouched anonymous memory takes on the offset of its new place.
        vma.pgoff if vma.object is not None or vma.anon_vma else to >> shift,
        vma.shared,
        vma.flags,
        vma.anon_vma,
        vma.guarded,
        vma.soft_dirty,
        vma.pkey,
    )
    space.insert(moved)
    move_page_tables(space, vma, moved, old_length)
    if keep:
        # The old VMA stays, and is as if never touched if it was moved as a whole.
        vma.anon_vma = vma.anon_vma and not entire
        if entire and vma.object is None:
            vma.pgoff = vma.start >> shift
    else:
        space.vmas.remove(vma)
        space.free_tables(old, old + old_length)
    space.vmas_changed = True
    space.merge()


def move_page_tables(space: Space, old: Vma, new: Vma, length: int) -> None:
    """Entries of `length` bytes move from one VMA to the other."""
    huge, shifts = space.geometry.huge, space.shifts
    realigned = _may_realign(space, old, new, length)
    at = 0
    while at < length:
        source, target = old.start + at, new.start + at
        step = min(huge - source % huge, huge - target % huge, length - at)
        entry = space.entries[PMD].get(source >> shifts[PMD])
        if entry is None:
            at += step
            continue
        if isinstance(entry, Leaf):
            if step == huge:
                _move_huge(space, source, target)
                at += step
                continue
            space.split_huge(old, source >> shifts[PMD])
        free = target >> shifts[PMD] not in space.entries[PMD]
        if realigned and at == 0 and free:
            _move_realigned(space, source, target, step)
        else:
            _move_ptes(space, source, target, step, whole=step == huge and free)
        at += step


def _may_realign(space: Space, old: Vma, new: Vma, length: int) -> bool:
    """try_realign_addr, from 6.7: a move that reaches the end of its first PTE table begins at the
    table's start instead, when both places lie alike in it and nothing is below them there."""
    huge = space.geometry.huge
    first = old.start % huge
    if not space.kernel.since(6, 7) or not first or new.start % huge != first:
        return False
    if length < huge - first:
        return False
    return not any(
        space.overlapping(vma.start & -huge, vma.start) for vma in (old, new)
    )


def _move_realigned(space: Space, source: int, target: int, step: int) -> None:
    """The whole table moves, as it may: what does not show in the state decides, so look."""
    reason = "a table moves whole when both places are alike in it (try_realign_addr)"
    outcome = space.world.choose(space, source, ("no-table", "table"), reason, None)
    _move_ptes(space, source, target, step, whole=outcome == "no-table")


def _move_huge(space: Space, source: int, target: int) -> None:
    """move_huge_pmd: soft-dirty is set."""
    shift = space.shifts[PMD]
    leaf = space.entries[PMD][source >> shift]
    assert isinstance(leaf, Leaf)
    leaf.page.mapped += 1  # so that it does not count as free between
    space.drop(PMD, source >> shift)
    leaf.soft_dirty = space.kernel.soft_dirty
    space.put(PMD, target >> shift, leaf)
    leaf.page.mapped -= 1


def _move_ptes(space: Space, source: int, target: int, step: int, whole: bool) -> None:
    """move_normal_pmd for a whole table, otherwise move_ptes, which needs a table to move to."""
    shift, huge_shift = space.shifts[PTE], space.shifts[PMD]
    table = space.entries[PMD][source >> huge_shift]
    moving = [
        (index, space.entries[PTE][index]) for index in space.within(PTE, source, source + step)
    ]
    if not whole and space.kernel.since(6, 17):
        merge_batches(space, source, source + step)
    if whole:
        space.drop(PMD, source >> huge_shift)
        space.put(PMD, target >> huge_shift, table)
    else:
        space.ensure(PTE, target >> shift)
    for index, entry in moving:
        if isinstance(entry, Leaf):
            entry.page.mapped += 1
        space.drop(PTE, index)
        if not whole and isinstance(entry, (Leaf, Swapped)):
            entry.soft_dirty = space.kernel.soft_dirty
        space.put(PTE, index + (target - source >> shift), entry)
        if isinstance(entry, Leaf):
            entry.page.mapped -= 1
        assert not isinstance(entry, Marker) or entry.kind
