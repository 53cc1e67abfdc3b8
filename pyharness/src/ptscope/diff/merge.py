# SPDX-License-Identifier: GPL-2.0-or-later
"""Two streams side by side: pieces of address space, each with what changed in it.

A piece lies in at most one VMA of each side, and in at most one run of entries of each. Where both
sides have the same bytes nothing is decoded, and holes cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ptscope._core import ffi, lib
from ptscope.decode.compiled import compiled
from ptscope.decode.layout import Layout
from ptscope.diff.events import Entries, Tables, events
from ptscope.raw.records import ENTRY_SIZE, RawVma
from ptscope.source.stream import RawStream

Ranges = Sequence[tuple[int, int]]

RUNS = 512
END = 1 << 64


@dataclass(frozen=True, slots=True)
class Change:
    """What changed for a page; numbers are those of core/diff.h and core/decode.h."""

    what: int
    gained: int
    lost: int
    old_state: int
    new_state: int


@dataclass(frozen=True, slots=True)
class Raw:
    """One entry, with the level that it stands at."""

    level: str
    raw: int


@dataclass(frozen=True, slots=True)
class Run:
    """Addresses `start` to `end` (the first after them) have the same change.

    `unit` is the bytes of the smaller page of the two sides. `_pair` is where the entries are.
    """

    start: int
    end: int
    unit: int
    change: Change
    _pair: Pair = field(repr=False, compare=False)

    def entries(self, address: int) -> tuple[Raw | None, Raw | None]:
        """The old and the new entry of a page; only until the next piece is asked for."""
        return self._pair.old.at(address), self._pair.new.at(address)


@dataclass(frozen=True, slots=True)
class Piece:
    """From `start` to `end`: the VMA on each side, and what changed, in order of address.

    `old_next` and `new_next` are the next VMA of a side that has none here, where it is known.
    """

    start: int
    end: int
    old: RawVma | None
    new: RawVma | None
    old_next: RawVma | None
    new_next: RawVma | None
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class Half:
    """What one side has for a piece: entries, or nothing."""

    layout: Layout
    entries: Entries | None

    def at(self, address: int) -> Raw | None:
        """The entry that maps `address`; None where nothing was dumped."""
        entries = self.entries
        if entries is None:
            return None
        raw = entries.raws[address - entries.address >> entries.level.shift]
        return Raw(entries.level.name, raw)


@dataclass(frozen=True, slots=True)
class Pair:
    """Both halves of a piece."""

    old: Half
    new: Half


class _Side:
    """One stream, read as far as its next event."""

    def __init__(self, stream: RawStream, tables: Tables, vmas: bool) -> None:
        self._events = (
            event for event in events(stream, tables) if vmas or isinstance(event, Entries)
        )
        self.vma: RawVma | None = None
        self.next: RawVma | Entries | None = next(self._events, None)

    def reach(self, address: int) -> None:
        """Leave behind what ends at or below `address`, and enter the VMA that begins there."""
        if self.vma is not None and self.vma.end <= address:
            self.vma = None
        while self.next is not None:
            if isinstance(self.next, RawVma):
                if self.next.start > address:
                    return
                self.vma = self.next if self.next.end > address else None
            elif self.next.end > address:
                return
            self.next = next(self._events, None)

    @property
    def next_vma(self) -> RawVma | None:
        """The VMA that comes next, where nothing comes before it."""
        return self.next if isinstance(self.next, RawVma) else None

    def boundary(self, address: int) -> int:
        """The first address after `address` where something of this side begins or ends."""
        found = END
        if self.vma is not None:
            found = self.vma.end
        if isinstance(self.next, RawVma):
            found = min(found, self.next.start)
        elif self.next is not None:
            found = min(found, self.next.address if self.next.address > address else self.next.end)
        return found

    def here(self, address: int) -> Entries | None:
        """The entries that map `address`."""
        if isinstance(self.next, Entries) and self.next.address <= address:
            return self.next
        return None


def merge(
    old: RawStream, new: RawStream, old_tables: Tables, new_tables: Tables, frames: bool
) -> Iterator[Piece]:
    """All pieces that both streams were asked for and where one has a VMA or an entry, in order.

    With `frames`, frames and swap slots are compared: they mean the same on both sides. Tables are
    counted on the way. Raises what iterating the streams does.
    """
    compare = _Comparison(old.layout, new.layout, frames)
    page = min(old.layout.page_size, new.layout.page_size)
    vmas = old.request.vmas and new.request.vmas
    a, b = _Side(old, old_tables, vmas), _Side(new, new_tables, vmas)
    for first, last in common(old.request.ranges, new.request.ranges):
        address, range_end = first & -page, (last | page - 1) + 1
        while address < range_end:
            a.reach(address)
            b.reach(address)
            end = min(a.boundary(address), b.boundary(address), range_end)
            here = a.here(address), b.here(address)
            runs: tuple[Run, ...] = ()
            if any(here):
                end = _clipped(address, end, *here)
                runs = tuple(compare.runs(address, end, *here))
            if any(here) or a.vma is not None or b.vma is not None:
                yield Piece(address, end, a.vma, b.vma, a.next_vma, b.next_vma, runs)
            address = end
    # What is left are entries that map more than was asked for, and the end of the stream.
    a.reach(END)
    b.reach(END)


def common(old: Ranges, new: Ranges) -> Iterator[tuple[int, int]]:
    """The (first, last) ranges that are in both; each is in order and does not overlap."""
    rest = list(new)
    for first, last in old:
        while rest and rest[0][1] < first:
            rest.pop(0)
        for other_first, other_last in rest:
            if other_first > last:
                break
            yield max(first, other_first), min(last, other_last)


def _clipped(address: int, end: int, old: Entries | None, new: Entries | None) -> int:
    """Where a piece ends so that it is of whole entries of one side, or lies within one of them.

    Of a large page beside smaller ones it is a part.
    """
    both = sorted((e for e in (old, new) if e is not None), key=lambda e: -e.level.span)
    least = both[-1].level.span
    for entries in both:
        span = entries.level.span
        if span > least or address & (span - 1) or end - address < span:
            end = min(end, (address & -span) + span)
        else:
            end &= -span
    return end


class _Comparison:
    """Compares the entries of two layouts, in C."""

    def __init__(self, old: Layout, new: Layout, frames: bool) -> None:
        self._layouts = old, new
        self._rules = compiled(old).levels, compiled(new).levels
        self._flags = lib.PTSCOPE_DIFF_FRAMES if frames else 0
        if old == new:
            self._flags |= lib.PTSCOPE_DIFF_RAW
        self._sides = ffi.new("struct ptscope_side[2]")
        self._runs = ffi.new("struct ptscope_change_run[]", RUNS)
        self._compared = ffi.new("unsigned long long *")

    def runs(
        self, address: int, end: int, old: Entries | None, new: Entries | None
    ) -> Iterator[Run]:
        """What changed from `address` to `end`, where neither side begins or ends in between."""
        unit = self._unit(address, end, old, new)
        if self._same(address, end, old, new):
            return
        pair = Pair(Half(self._layouts[0], old), Half(self._layouts[1], new))
        while address < end:
            for side, rules, entries in zip(self._sides, self._rules, (old, new), strict=True):
                self._point(side, rules, entries, address, unit)
            used = lib.ptscope_diff(
                ffi.addressof(self._sides[0]), ffi.addressof(self._sides[1]), address, unit,
                (end - address) // unit, self._flags, self._runs, RUNS, self._compared,
            )  # fmt: skip
            for position in range(used):
                run = self._runs[position]
                change = run.change
                start = address + run.first * unit
                yield Run(
                    start,
                    start + run.count * unit,
                    unit,
                    Change(
                        change.what, change.gained, change.lost, change.old_state, change.new_state
                    ),
                    pair,
                )
            address += self._compared[0] * unit

    def _unit(self, address: int, end: int, old: Entries | None, new: Entries | None) -> int:
        """Bytes of the smaller page; where a part of a large page stands alone, of the smallest."""
        spans = [entries.level.span for entries in (old, new) if entries is not None]
        unit = min(spans)
        if (address | end) & (unit - 1):
            unit = min(layout.page_size for layout in self._layouts)
        return unit

    def _point(self, side: Any, rules: Any, entries: Entries | None, at: int, unit: int) -> None:
        if entries is None:
            side.rules = next(iter(reversed(rules.values())))
            side.raws = ffi.NULL
            side.step = 0
            return
        side.rules = rules[entries.level.name]
        side.raws = entries.raws + (at - entries.address >> entries.level.shift)
        side.step = entries.level.span == unit

    def _same(self, address: int, end: int, old: Entries | None, new: Entries | None) -> bool:
        if not self._flags & lib.PTSCOPE_DIFF_RAW or old is None or new is None:
            return False
        if old.level != new.level:
            return False
        shift = old.level.shift
        count = (end - 1 >> shift) - (address >> shift) + 1
        first, second = (
            ffi.buffer(entries.raws + (address - entries.address >> shift), ENTRY_SIZE * count)
            for entries in (old, new)
        )
        return bool(first == second)
