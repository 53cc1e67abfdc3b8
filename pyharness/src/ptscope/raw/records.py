# SPDX-License-Identifier: GPL-2.0-or-later
"""What the module's stream is made of. Levels are wire numbers: PTE 1 … PGD 5 (ptscope.h)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Lock = Literal["read", "write", "none"]
EndStatus = Literal["done", "exited", "execed", "unstable"]
END_STATUSES: tuple[EndStatus, ...] = ("done", "exited", "execed", "unstable")

ENTRY_SIZE = 8  # bytes


@dataclass(frozen=True, slots=True)
class RawEntry:
    """One entry: where it stands (`entry_pa`), what it maps from (`address`), and its value."""

    level: int
    index: int
    raw: int
    entry_pa: int
    address: int


@dataclass(frozen=True, slots=True)
class RawTable:
    """Part of one table: consecutive raw entries from `index` on."""

    level: int
    index: int
    table_pa: int
    address: int
    raws: tuple[int, ...]
    again: bool
    user_pgd: bool
    repeated: bool = False
    """Of the kernel half: all entries have the value of the one before, whose table alone was
    reported."""

    def entry(self, position: int, span: int) -> RawEntry:
        """The entry at `position` of this part; `span` is the bytes one entry of the level maps."""
        index = self.index + position
        return RawEntry(
            level=self.level,
            index=index,
            raw=self.raws[position],
            entry_pa=self.table_pa + ENTRY_SIZE * index,
            address=self.address + position * span,
        )


@dataclass(frozen=True, slots=True)
class RawVma:
    """A VMA as the module read it under the lock; `pgoff` in pages, flags and protection raw."""

    start: int
    end: int
    vm_flags: int
    page_prot: int
    pgoff: int
    inode: int
    dev_major: int
    dev_minor: int
    hugetlb: bool
    again: bool


@dataclass(frozen=True, slots=True)
class End:
    """Why the stream ended, and the first address that was not walked (0: all were)."""

    status: EndStatus
    address: int


@dataclass(frozen=True, slots=True)
class Batch:
    """What one read() gave: all of it taken under one hold of `lock`, for `lock_ns` ns."""

    sequence: int
    lock: Lock
    lock_ns: int
    retries: int
    records: tuple[RawTable | RawVma, ...]
    end: End | None
