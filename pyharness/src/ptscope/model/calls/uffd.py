# SPDX-License-Identifier: GPL-2.0-or-later
"""userfaultfd: registering, write protection, and filling in what is missing.

The puppet asks for UFFD_FEATURE_SIGBUS (from 4.14): a fault that would be handed to somebody else
ends with SIGBUS instead.
"""

from __future__ import annotations

from ptscope.model.calls.mapping import may_write_at_once, pte_modify
from ptscope.model.faults import cached, has_page, put_fresh
from ptscope.model.kernel import PMD, PTE
from ptscope.model.state import Leaf, Marker, Space, Swapped

EFAULT, EEXIST, EINVAL = 14, 17, 22


def register(space: Space, start: int, end: int, mode: str) -> int:
    """VMAs are marked; entries stay. Neighbours that are not registered alike stay apart."""
    space.uffd = True
    for vma in space.carve(start, end, lambda vma: mode not in vma.flags):
        vma.flags = vma.flags | {mode}
        space.vmas_changed = True
    space.merge()
    return 0


def writeprotect(space: Space, start: int, end: int, on: bool) -> int:
    """UFFDIO_WRITEPROTECT: entries get, or lose, the uffd-wp bit, and are not writable with it.

    Without it they become writable by the next fault; from 6.3 at once where mprotect would make
    them so. A huge page of which a part is concerned is split. Private memory without an entry
    stays without (WP_UNPOPULATED, which changes that, is not asked for).
    """
    for vma in space.overlapping(start, end):
        first, last = max(start, vma.start), min(end, vma.end)
        huge = space.geometry.huge
        for border in (first, last):
            index = border >> space.shifts[PMD]
            if border % huge and isinstance(space.entries[PMD].get(index), Leaf):
                space.split_huge(vma, index)
        for level, index, entry in list(space.leaves(first, last)):
            if isinstance(entry, Marker):
                continue
            if isinstance(entry, Leaf):
                entry.uffd_wp = on
                entry.write = (
                    not on
                    and space.kernel.since(6, 3)
                    and may_write_at_once(space, vma, level, entry, index)
                )
                pte_modify(space, vma, entry)
            elif isinstance(entry, Swapped):
                entry.uffd_wp = on
            space.changed.add((level, index))
    return 0


def copy(space: Space, address: int, errno: int) -> int:
    """UFFDIO_COPY of one page: it is there as if written, unless something is there already.

    A marker is nothing (pte_none_mostly), and a guard was too: 6.18 was seen to replace it, which
    the model first had refused, and 7.2 to refuse. The VMA has an anon_vma afterwards in any case
    (the model first gave it one only with the page).
    """
    vma = space.find(address)
    assert vma is not None
    index = address >> space.shifts[PTE]
    vma.anon_vma = True
    found = space.at(address)
    if found is not None and not isinstance(found[2], Marker):
        return EEXIST
    if found is not None and isinstance(found[2], Marker) and found[2].kind == "guard":
        between = space.kernel.since(6, 19) and errno == EEXIST
        if between or space.kernel.since(7, 2):
            return EEXIST
    put_fresh(space, vma, index)
    return 0


def continue_(space: Space, address: int, errno: int) -> int:
    """UFFDIO_CONTINUE of one page (shared memory: from 5.14): the page that the object has is
    mapped, dirty, and writable when the VMA is. The tables are there in any case.

    EFAULT where the object has no such page; beyond its end that, or EINVAL.
    """
    vma = space.find(address)
    assert vma is not None
    assert vma.object is not None
    index = address >> space.shifts[PTE]
    space.ensure(PTE, index)
    if space.at(address) is not None:
        return EEXIST
    number = vma.page_of(address, space.geometry.shift)
    if number >= vma.object.pages:
        return errno if errno in (EFAULT, EINVAL) else EFAULT
    if not has_page(space, vma.object, number, address, "present"):
        return EFAULT
    page = cached(space, vma.object, number)
    page.written = True
    soft_dirty = space.kernel.soft_dirty
    space.put(
        PTE, index, Leaf(page, "w" in vma.prot, True, soft_dirty=soft_dirty, pkey=vma.pkey)
    )
    return 0
