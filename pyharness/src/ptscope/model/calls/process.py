# SPDX-License-Identifier: GPL-2.0-or-later
"""fork and exit."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from ptscope.model.kernel import PTE
from ptscope.model.state import Leaf, Marker, Space, Swapped, Table, Vma

UFFD = frozenset({"uffd_missing", "uffd_wp", "uffd_minor"})


def fork(space: Space, slot: int) -> Space:
    """A child whose VMAs are those of the parent, not locked, and without its userfaultfd.

    Entries are copied where a fault could not bring them back: in VMAs that have had anonymous
    pages, bare frames or guards (vma_needs_copy; up to 6.12 also where uffd-wp is on). Tables are
    copied wherever the parent has them there, even empty ones. Of private pages both sides lose the
    permission to write, and exclusiveness (from 5.19); the child's entries are not accessed, and
    those of shared mappings not dirty (__copy_present_ptes).
    """
    world = space.world
    child = Space(world, slot, foreign=space.foreign)
    world.spaces[slot] = child
    for vma in space.vmas:
        copy = replace(vma, flags=vma.flags - UFFD - {"locked"})
        child.vmas.append(copy)
        if vma.anon_vma or vma.known or vma.guarded:
            _copy_tables(space, child, vma)
            _copy_entries(space, child, vma)
    for level in space.geometry.levels[1:]:
        for index, entry in space.entries[level].items():
            first = index << space.shifts[level]
            last = first + (1 << space.shifts[level])
            outside = any(start < last and first < end for start, end in space.foreign)
            if isinstance(entry, Table) and outside and index not in child.entries[level]:
                child.entries[level][index] = Table()
                child.changed.add((level, index))
    return child


def _copy_tables(space: Space, child: Space, vma: Vma) -> None:
    levels = space.geometry.levels
    for below, level in pairwise(levels):
        for index in space.within(level, vma.start, vma.end):
            if isinstance(space.entries[level][index], Table):
                child.ensure(below, index << space.shifts[level] >> space.shifts[below])


def _copy_entries(space: Space, child: Space, vma: Vma) -> None:
    for level, index, entry in list(space.leaves(vma.start, vma.end)):
        if isinstance(entry, Swapped):
            entry.exclusive = False
            space.changed.add((level, index))
            child.put(level, index, Swapped(entry.slot, entry.soft_dirty))
        elif isinstance(entry, Marker):
            if entry.kind == "guard":
                child.put(level, index, Marker("guard"))
        elif isinstance(entry, Leaf):
            hugetlb = vma.object is not None and vma.object.level > PTE
            # copy_hugetlb_page_range leaves the accessed bit as it is.
            copy = replace(entry, accessed=entry.accessed and hugetlb, uffd_wp=False)
            if vma.shared:
                copy.dirty = False
            else:
                _share(entry)
                copy.write = entry.write = False
                space.changed.add((level, index))
            child.put(level, index, copy)


def _share(leaf: Leaf) -> None:
    """No page of it is exclusive any more."""
    leaf.page.exclusive = leaf.page.unsure = False
    for part in leaf.page.parts or ():
        part.exclusive = False


def exit_process(space: Space) -> None:
    """All entries go with the process."""
    for level, index, _ in list(space.leaves(0, 1 << 64)):
        space.unmap(level, index)
    del space.world.spaces[space.slot]
