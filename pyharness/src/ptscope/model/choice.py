# SPDX-License-Identifier: GPL-2.0-or-later
"""Where the kernel may choose: the words for what it chose, and who says which.

A function of the model asks `choose(space, address, outcomes, reason, page)`. The outcomes are
those that the kernel's source permits, the usual one first; `reason` says what decides between
them. `first` answers without a kernel; `observe.Seen` by looking at the entry.

| outcome | the entry of the address |
|---|---|
| huge, small | is a leaf of the PMD level, or is not |
| present, absent | has a page, or is empty |
| same, fresh | has the frame of `page`, or another one |
| swapped, kept | is a swap entry, or has a page |
| accessed, old | has the accessed bit, or has not |
| dirty, clean | has the dirty bit, or has not |
| soft-dirty, soft-clean | has the soft-dirty bit, or has not |
| writable, read-only | permits writing, or does not |
| table, no-table | its PMD entry points to a table, or does not |
"""

from __future__ import annotations

from collections.abc import Sequence

from ptscope.model.state import Page, Space

OUTCOMES = frozenset(
    (
        "huge",
        "small",
        "present",
        "absent",
        "same",
        "fresh",
        "swapped",
        "kept",
        "accessed",
        "old",
        "dirty",
        "clean",
        "soft-dirty",
        "soft-clean",
        "writable",
        "read-only",
        "table",
        "no-table",
    )
)


def first(
    space: Space, address: int, outcomes: Sequence[str], reason: str, page: Page | None = None
) -> str:
    """The usual outcome, for who uses the model without a kernel."""
    return outcomes[0]
