# SPDX-License-Identifier: GPL-2.0-or-later
"""/proc/PID/clear_refs, which begins to track what is written."""

from __future__ import annotations

from ptscope.model.state import Leaf, Space, Swapped


def clear_refs(space: Space) -> None:
    """Write 4: the soft-dirty bit goes from every entry, and with it the permission to write.

    VMAs are not soft-dirty as a whole any more; entries of shared mappings that come later are
    then not writable from the start (vma_wants_writenotify). hugetlb entries are left alone
    (clear_refs_walk_ops has no hugetlb_entry), and those of bare frames (clear_refs_test_walk).
    """
    for vma in space.vmas:
        vma.soft_dirty = False
        if not vma.small or vma.known in ("remap", "fault"):
            continue
        for level, index, entry in list(space.leaves(vma.start, vma.end)):
            if isinstance(entry, Leaf):
                entry.write = entry.soft_dirty = False
            elif isinstance(entry, Swapped):
                entry.soft_dirty = False
            space.changed.add((level, index))
    space.vmas_changed = True
