# SPDX-License-Identifier: GPL-2.0-or-later
"""move_pages, which moves pages between NUMA nodes."""

from __future__ import annotations

from ptscope.model.kernel import PTE
from ptscope.model.state import Leaf, Page, Space


def _becomes_soft_dirty(space: Space, address: int, page: Page) -> bool:
    if not space.kernel.since(6, 2):
        return True
    if space.kernel.since(6, 12):
        return False
    reason = "kernels between 6.1 and 6.12 were not looked at"
    outcomes = ("soft-dirty", "soft-clean")
    return space.world.choose(space, address, outcomes, reason, page) == "soft-dirty"


def move_pages(space: Space, address: int) -> int:
    """One page of the process, with MPOL_MF_MOVE: the entry stays as it is, with another frame.

    Accessed and dirty are kept through the migration entry (from 6.1, where the swap offset has
    room for them; before, accessed is lost). In 6.1 an entry that is dirty becomes soft-dirty, as
    it is made anew (remove_migration_pte, pte_mkdirty); 6.12 puts soft-dirty back as it was, which
    the model first did not know. A page that is on the node already stays, as does
    one that other entries map, or that somebody has a reference to: the kernel says so in the
    page's status, not by an error. The zero page is not moved.
    """
    level, index, leaf = space.at(address) or (PTE, 0, None)
    if level != PTE or not isinstance(leaf, Leaf):
        return 0
    page = leaf.page
    if page.kind not in ("anon", "cache") or page.large or page.mapped > 1:
        return 0
    reason = "a page that is on the node, or has references, stays (move_pages)"
    if space.world.choose(space, address, ("fresh", "same"), reason, page) == "same":
        return 0
    page.other_than = page.frame
    space.world.forget(page)
    page.frame = None
    if leaf.dirty and space.kernel.soft_dirty and not leaf.soft_dirty:
        leaf.soft_dirty = _becomes_soft_dirty(space, address, page)
    if not space.kernel.since(6, 1):
        leaf.accessed = False
    space.changed.add((level, index))
    return 0
