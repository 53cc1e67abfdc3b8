# SPDX-License-Identifier: GPL-2.0-or-later
"""Reading and writing memory, and mlock, which does both for the process."""

from __future__ import annotations

from ptscope.model import faults
from ptscope.model.calls.advice import ENOMEM
from ptscope.model.state import Space, Vma


def read(space: Space, address: int, count: int) -> str:
    """One byte of each of `count` pages; `ok`, or the signal of the first that cannot be read."""
    return _touch(space, address, count, write=False)


def write(space: Space, address: int, count: int) -> str:
    """The same, written."""
    return _touch(space, address, count, write=True)


def _touch(space: Space, address: int, count: int, write: bool) -> str:
    for i in range(count):
        outcome = faults.access(space, address + i * space.geometry.page, write)
        if outcome != faults.DONE:
            return outcome
    return faults.DONE


def _lockable(vma: Vma) -> bool:
    return vma.small and not vma.known and "locked" not in vma.flags


def mlock(space: Space, start: int, end: int) -> int:
    """The VMA is marked, and every page of it faulted in, for writing where it is private and
    writable (populate_vma_page_range). Pages that cannot be are an error only of the access.

    hugetlb memory is faulted in but not marked, as it cannot go anyway; mappings of a driver's
    frames are not marked (mlock_fixup, VM_SPECIAL), and faulted in only where they are pages to the
    kernel (__mm_populate leaves VM_PFNMAP out; the model first left out pages that vm_insert_page
    had put there too, which without a permission are ENOMEM as all else).
    """
    if not space.covered(start, end):
        return ENOMEM
    for vma in space.carve(start, end, _lockable):
        vma.flags = vma.flags | {"locked"}
        space.vmas_changed = True
    space.merge()
    at = start
    while at < end:
        locked = space.find(at)
        assert locked is not None
        if locked.known in ("remap", "fault"):
            at = locked.end
            continue
        if not locked.prot:
            return ENOMEM
        write = not locked.shared and "w" in locked.prot
        if faults.gup(space, locked, at, write) != faults.DONE:
            return ENOMEM
        at += faults.step(space, locked)
    return 0


def munlock(space: Space, start: int, end: int) -> int:
    """The mark goes; entries stay."""
    if not space.covered(start, end):
        return ENOMEM
    for vma in space.carve(start, end, lambda vma: "locked" in vma.flags):
        vma.flags = vma.flags - {"locked"}
        space.vmas_changed = True
    space.merge()
    return 0
