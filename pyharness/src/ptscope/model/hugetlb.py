# SPDX-License-Identifier: GPL-2.0-or-later
"""Faults of hugetlb memory (mm/hugetlb.c)."""

from __future__ import annotations

from ptscope.model.state import Leaf, Page, Space, Vma

DONE, SIGBUS = "ok", "SIGBUS"


def hugetlb_fault(space: Space, vma: Vma, address: int, write: bool) -> str:
    """One entry of the level of the huge page, whole pages always.

    Shared memory is mapped dirty, soft-dirty with it, and writable when the VMA is, also by a read
    (make_huge_pte). Private memory has no zero page: a read maps a page of its own, read-only and
    clean; a write then, or at once, makes it writable, and copies it only while others map it.
    """
    file = vma.object
    assert file is not None
    level = file.level
    index = address >> space.shifts[level]
    size = 1 << space.shifts[level] - space.geometry.shift
    entry = space.entries[level].get(index)
    if isinstance(entry, Leaf):
        if write and not entry.write:
            _wp(space, vma, level, index, entry, size)
        return DONE
    number = vma.page_of(index << space.shifts[level], space.geometry.shift)
    if number >= file.pages:
        return SIGBUS
    if vma.shared:
        page = file.cache.get(number)
        if page is None:
            page = file.cache[number] = Page("cache", size=size)
        writable = "w" in vma.prot
        leaf = Leaf(page, writable, writable, soft_dirty=writable and space.kernel.soft_dirty)
        space.put(level, index, leaf)
        return DONE
    vma.anon_vma = True
    leaf = Leaf(Page("hugetlb", size=size, exclusive=True))
    space.put(level, index, leaf)
    if write:
        _make_writable(space, level, index, leaf)
    return DONE


def _wp(space: Space, vma: Vma, level: int, index: int, leaf: Leaf, size: int) -> None:
    """hugetlb_wp: reused by the last who maps it, whatever fork has made of it."""
    if vma.shared or leaf.page.mapped == 1:
        leaf.page.exclusive = True
        _make_writable(space, level, index, leaf)
        return
    fresh = Leaf(Page("hugetlb", size=size, exclusive=True))
    space.put(level, index, fresh)
    _make_writable(space, level, index, fresh)


def _make_writable(space: Space, level: int, index: int, leaf: Leaf) -> None:
    leaf.write = leaf.dirty = True
    leaf.soft_dirty = space.kernel.soft_dirty
    space.changed.add((level, index))
