# SPDX-License-Identifier: GPL-2.0-or-later
"""One pass over a stream: what is suspect, and what each VMA holds, found in C batch by batch."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from ptscope._core import ffi, lib
from ptscope.check.rules import Machine, aging_bits, compiled_rows, unaligned_bits
from ptscope.check.witness import Range, Ranges
from ptscope.decode.compiled import ATTRIBUTE, STATE, compiled
from ptscope.decode.layout import Layout
from ptscope.decode.rules import rules_for
from ptscope.errors import BadStream
from ptscope.raw.stream import limits_of
from ptscope.source.stream import RawStream, entries_by_number

ROOM: int = lib.PTSCOPE_CHECK_ROOM
# Entries of pagemap read by one system call.
PAGEMAP_ROOM = 1 << 16
# Suspects of each kind that are remembered; all are counted.
MOST_SUSPECTS = 256
PTE = 1
PMD = 2
# The bit of Suspect.why for entries that should be one mapping.
GROUP: int = lib.PTSCOPE_WHY_GROUP
U64 = (1 << 64) - 1

# The part of the C structure that Counts are made of, and how many different ones are remembered.
_COUNTS = slice(
    ffi.offsetof("struct ptscope_area", "counts"), ffi.offsetof("struct ptscope_area", "digest")
)
MOST_KNOWN = 4096

STATES: int = lib.PTSCOPE_STATES


class Pages(Protocol):
    """An open /proc/PID/pagemap."""

    def read_into(self, buffer: memoryview, page: int) -> int:
        """Read entries from the one of `page` on; how many bytes came."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """An entry to be looked at again; `why` are bits of PTSCOPE_WHY_…, 0 for pagemap's sake."""

    address: int
    level: int
    why: int


@dataclass(frozen=True, slots=True, eq=False)
class Counts:
    """Entries by 11 * level + state; `special` the mapped ones with the special bit by level.

    VMAs of one scan that have the same have the same object: what follows from it is worked out
    once, and a hundred thousand VMAs do not take a hundred thousand lists.
    """

    by_state: tuple[int, ...]
    special: tuple[int, ...]

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            tuple(map(operator.add, self.by_state, other.by_state)),
            tuple(map(operator.add, self.special, other.special)),
        )


NO_COUNTS = Counts((0,) * 66, (0,) * 6)


@dataclass(slots=True)
class Area:
    """A VMA, or with `end` 0 all that is outside of them: how many entries of each kind it has.

    `zero_huge` counts PMDs that map the huge zero page. Digests of two readings are equal when all
    entries are, but for bits that the hardware changes.
    """

    start: int
    end: int
    vm_flags: int
    inode: int
    hugetlb: bool
    counts: Counts
    digest: int
    zero_huge: int = 0

    @property
    def special(self) -> tuple[int, ...]:
        """Mapped entries with the special bit, by level."""
        return self.counts.special

    def count(self, level: int, *states: str) -> int:
        """Entries of a level in these states."""
        return sum(self.counts.by_state[STATES * level + STATE[state]] for state in states)

    def at_all_levels(self, *states: str) -> int:
        """Entries in these states at whatever level."""
        return sum(self.count(level, *states) for level in range(1, 6))

    @property
    def key(self) -> tuple[int, int, int, int]:
        """What must be equal before two readings of it can be compared."""
        return (self.start, self.end, self.vm_flags, self.digest)

    def add(self, other: Area) -> None:
        """More of the same VMA, from the next batch."""
        self.counts += other.counts
        self.digest = (self.digest + other.digest) & U64


@dataclass(frozen=True, slots=True)
class Placed:
    """A table by the entry that points to it, or a huge page; `level` is that of the entry."""

    pa: int
    address: int
    level: int
    hugetlb: bool


@dataclass
class Scan:
    """What one pass found.

    `suspects` and `differing` (addresses of which pagemap says something else) are cut at
    MOST_SUSPECTS, `more` is how many there were beyond. `pages` were compared with pagemap.
    """

    areas: list[Area] = field(default_factory=list)
    outside: Area = field(default_factory=lambda: Area(0, 0, 0, 0, False, NO_COUNTS, 0))
    suspects: list[Suspect] = field(default_factory=list)
    differing: list[int] = field(default_factory=list)
    tables: list[Placed] = field(default_factory=list)
    entries: int = 0
    pages: int = 0
    more: int = 0

    @property
    def all_areas(self) -> Iterator[Area]:
        """Those of VMAs, and what is outside."""
        yield from self.areas
        yield self.outside

    @property
    def digest(self) -> tuple[tuple[int, int, int, int], ...]:
        """Equal for two readings of the same entries and VMAs."""
        return tuple(area.key for area in self.all_areas)

    def reached_twice(self) -> list[tuple[Placed, Placed]]:
        """Tables to which two entries point, but those that hugetlb shares."""
        first: dict[int, Placed] = {}
        found = []
        for table in self.tables:
            other = first.setdefault(table.pa, table)
            if other is not table and not (other.hugetlb and table.hugetlb):
                found.append((other, table))
        return found


@dataclass
class Scanner:
    """Scans streams of one kernel. `ranges` are its memory, None when not known.

    `is_zero` tells of the frame of a huge page whether it is the huge zero page.
    """

    machine: Machine
    ranges: Ranges | None
    is_zero: Callable[[int], bool]
    uffd_wp_shown: bool = True
    hidden: bool = False
    """Whether pagemap hides frames from us."""

    def __post_init__(self) -> None:
        """Allocate what the C side fills, once for all streams."""
        layout = self.layout
        self._limits = limits_of(entries_by_number(layout))
        self._kept: list[Any] = []
        self._known: dict[bytes, Counts] = {}
        self._c = ffi.new("struct ptscope_check *")
        c = self._c
        for level in layout.levels:
            rules = rules_for(layout, level.name)
            c.rules[level.number] = compiled(layout).levels[level.name]
            c.unaligned[level.number] = unaligned_bits(layout, level.name)
            for state, number in STATE.items():
                c.explained[STATES * level.number + number] = rules.explained[state] & U64
        c.rows, c.row_count = self._keep(compiled_rows(self.machine))
        if self.ranges is not None:
            c.ranges, c.range_count = self._keep(_c_ranges(self.ranges.known))
            c.ram, c.ram_count = self._keep(_c_ranges(self.ranges.ram))
        c.aging = aging_bits(layout)
        if layout.runtime.get("pti"):
            c.pti_nx = 1 << layout.facts["bit.nx"]
        c.vm_pfnmap = layout.facts.get("vm.pfnmap", 0)
        c.vm_softdirty = layout.facts.get("vm.softdirty", 0)
        c.zero_pfn = U64 if self.machine.zero_pfn is None else self.machine.zero_pfn
        c.uffd_wp_shown = self.uffd_wp_shown
        for name, kind, room in (
            ("suspects", "suspect", ROOM),
            ("areas", "area", lib.PTSCOPE_AREA_ROOM),
            ("tables", "placed", ROOM),
            ("leaves", "placed", ROOM),
            ("spans", "check_span", ROOM),
        ):
            setattr(c, name, self._keep((ffi.new(f"struct ptscope_{kind}[]", room), 0))[0])
        c.words = self._keep((ffi.new("unsigned long long[]", ROOM), 0))[0]
        c.scratch = self._keep((ffi.new("struct ptscope_decoded[]", lib.PTSCOPE_TABLE_ROOM), 0))[0]
        self._pagemap = memoryview(
            ffi.buffer(self._keep((ffi.new("unsigned long long[]", PAGEMAP_ROOM), 0))[0])
        ).cast("B")
        self._bad = ffi.new("unsigned long long[]", MOST_SUSPECTS)

    def _keep(self, pair: tuple[Any, int]) -> tuple[Any, int]:
        """Keep what only C points to."""
        self._kept.append(pair[0])
        return pair

    @property
    def layout(self) -> Layout:
        """The layout of the kernel that is looked at."""
        return self.machine.layout

    def scan(self, stream: RawStream, pages: Pages | None = None) -> Scan:
        """Read a stream to its end, and pagemap right after each batch.

        Raises what the stream raises, and OSError of reading pagemap.
        """
        c = self._c
        c.entries = 0
        c.kernel = stream.request.pid == "kernel"
        out = Scan()
        for sequence, batch in enumerate(stream):
            bad = lib.ptscope_check_batch(
                c, ffi.from_buffer(batch), len(batch), sequence, self._limits
            )
            if bad:
                raise BadStream(f"the stream is broken in batch {sequence}")
            self._take(out)
            if pages is not None:
                self._compare(out, pages)
        out.entries = c.entries
        return out

    def _take(self, out: Scan) -> None:
        c = self._c
        for i in range(c.suspect_count):
            if len(out.suspects) == MOST_SUSPECTS:
                out.more += c.suspect_count - i
                break
            row = c.suspects[i]
            out.suspects.append(Suspect(row.address, row.level, row.why))
        areas = [self._area(c.areas[i]) for i in range(c.area_count)]
        for i in range(c.table_count):
            row = c.tables[i]
            out.tables.append(Placed(row.pa, row.address, row.level, areas[row.area].hugetlb))
        self._find_zero_pages(areas)
        out.outside.add(areas[0])
        for area in areas[1:]:
            last = out.areas[-1] if out.areas else None
            if last is not None and last.start == area.start and last.end == area.end:
                zero = last.zero_huge + area.zero_huge
                last.add(area)
                last.zero_huge = zero
            else:
                out.areas.append(area)

    def _area(self, row: Any) -> Area:
        key = ffi.buffer(ffi.addressof(row))[_COUNTS]
        counts = self._known.get(key)
        if counts is None:
            if len(self._known) == MOST_KNOWN:
                self._known.clear()
            counts = self._known[key] = Counts(tuple(row.counts), tuple(row.special))
        return Area(
            row.start, row.end, row.vm_flags, row.inode, bool(row.hugetlb), counts, row.digest
        )

    def _find_zero_pages(self, areas: list[Area]) -> None:
        c = self._c
        writable = ATTRIBUTE["access.write"]
        shift = self.layout.facts["page_shift"]
        for i in range(c.leaf_count):
            row = c.leaves[i]
            area = areas[row.area]
            # The huge zero page is mapped by a PMD, and never writable.
            if row.level == PMD and area.end and not area.hugetlb:
                area.zero_huge += not row.set & writable and self.is_zero(row.pa >> shift)

    def _compare(self, out: Scan, pages: Pages) -> None:
        c = self._c
        layout = self.layout
        shift = layout.facts["page_shift"]
        care = _care(self.uffd_wp_shown, self.hidden)
        span = ffi.new("struct ptscope_check_span *")
        for i in range(c.span_count):
            whole = c.spans[i]
            done = 0
            while done < whole.count:
                span[0] = whole
                span.address = whole.address + (done << shift)
                span.count = min(whole.count - done, PAGEMAP_ROOM)
                span.word = whole.word + (done if whole.in_words else done * whole.step)
                wanted = self._pagemap[: span.count * 8]
                came = pages.read_into(wanted, span.address >> shift) // 8
                if came < span.count:
                    # The address space is gone, or this is what changed: either is looked into.
                    self._differs(out, span.address + (came << shift))
                    span.count = came
                found = lib.ptscope_check_pagemap(
                    span, c.words, care, ffi.from_buffer("unsigned long long[]", wanted),
                    self._bad, MOST_SUSPECTS,
                )  # fmt: skip
                for k in range(min(found, MOST_SUSPECTS)):
                    self._differs(out, span.address + (self._bad[k] << shift))
                out.more += max(0, found - MOST_SUSPECTS)
                out.pages += span.count
                done += min(whole.count - done, PAGEMAP_ROOM)

    def _differs(self, out: Scan, address: int) -> None:
        if len(out.differing) < MOST_SUSPECTS:
            out.differing.append(address)
        else:
            out.more += 1


def _care(uffd_wp_shown: bool, hidden: bool) -> int:
    """Present, swapped, soft-dirty, uffd-wp (shown from 5.14 on), and frame or swap entry."""
    numbers = 0 if hidden else (1 << 55) - 1
    return 1 << 63 | 1 << 62 | 1 << 55 | numbers | (1 << 57 if uffd_wp_shown else 0)


def _c_ranges(ranges: tuple[Range, ...]) -> tuple[Any, int]:
    return (
        ffi.new("struct ptscope_range[]", [(row.first, row.last) for row in ranges]),
        len(ranges),
    )


class PagemapReader:
    """Reads an open pagemap file in bulk."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read_into(self, buffer: memoryview, page: int) -> int:
        """See Pages."""
        return os.preadv(self._fd, [buffer], page * 8)
