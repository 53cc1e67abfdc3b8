# SPDX-License-Identifier: GPL-2.0-or-later
"""From pieces to what is told: VMAs with what became of them, and ranges of equal change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ptscope.decode.layout import Layout
from ptscope.diff.merge import Change, Piece, Raw, Run
from ptscope.diff.words import words
from ptscope.raw.records import RawVma
from ptscope.snapshot.reader import Snapshot
from ptscope.source.assemble import vma_of
from ptscope.target.vma import Vma, named


class Names:
    """VMAs of one snapshot with their names; asked for in order of address."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.layout: Layout = snapshot.header.layout
        self._maps = snapshot.vmas()
        self._last: Vma | None = next(self._maps, None)
        self._known: tuple[RawVma, Vma] | None = None

    def of(self, raw: RawVma | None) -> Vma | None:
        """The VMA in the terms of /proc/PID/maps; None for None."""
        if raw is None:
            return None
        if self._known is None or self._known[0] != raw:
            while self._last is not None and self._last.start < raw.start:
                self._last = next(self._maps, None)
            vma = vma_of(self.layout, raw)
            self._known = raw, vma if self._last is None else named(vma, [self._last])
        return self._known[1]


@dataclass(eq=False)
class Area:
    """Addresses with one VMA, or none, on each side.

    `changes` are words for what became of the VMA, `pages` counts pages by the word for what
    changed, `changed` those with any change; a page is of the smaller page size of both sides.
    """

    start: int
    end: int
    old: Vma | None
    new: Vma | None
    changes: tuple[str, ...]
    pages: Counter[str] = field(default_factory=Counter)
    changed: int = 0


@dataclass(frozen=True)
class Range:
    """Addresses of one area that have the same change."""

    area: Area
    start: int
    end: int
    change: Change


@dataclass(frozen=True)
class Page:
    """A page that changed, `size` bytes of it, and its entries: None where nothing was dumped."""

    area: Area
    address: int
    size: int
    change: Change
    old: Raw | None
    new: Raw | None


@dataclass
class Totals:
    """Over everything: areas with a change, and pages as in Area."""

    areas: list[Area] = field(default_factory=list)
    pages: Counter[str] = field(default_factory=Counter)
    changed: int = 0
    moved: list[tuple[Vma, Vma]] = field(default_factory=list)


def report(
    pieces: Iterable[Piece], old: Names, new: Names, page: int, each_page: bool, totals: Totals
) -> Iterator[Area | Range | Page]:
    """Each area with a change, then what changed in it: ranges, or pages with `each_page`.

    `page` is the bytes of a page. An area's counts are whole when the next one comes; `totals` is
    filled on the way and complete at the end.
    """
    told = _Report(old, new, page, each_page, totals)
    for piece in pieces:
        yield from told.piece(piece)
    yield from told.flush()
    totals.moved = list(_moved(totals.areas, told.raw))


class _Report:
    def __init__(
        self, old: Names, new: Names, page: int, each_page: bool, totals: Totals
    ) -> None:
        self._names = old, new
        self._page = page
        self._each_page = each_page
        self._totals = totals
        self._area: Area | None = None
        self._pair: tuple[RawVma | None, RawVma | None] | None = None
        self._told = False
        self._pending: Range | None = None
        # Whole VMAs that came or went, to find those that moved.
        self.raw: dict[int, RawVma] = {}

    def piece(self, piece: Piece) -> Iterator[Area | Range | Page]:
        pair = piece.old, piece.new
        area = self._area
        if area is None or pair != self._pair or piece.start != area.end:
            yield from self.flush()
            area = self._area = self._begin(piece)
            self._pair = pair
            self._told = False
        area.end = piece.end
        if area.changes or piece.runs:
            if not self._told:
                self._told = True
                self._totals.areas.append(area)
                yield area
            for run in piece.runs:
                yield from self._run(area, run)

    def flush(self) -> Iterator[Range]:
        """What is left of the last range."""
        if self._pending is not None:
            yield self._pending
            self._pending = None

    def _begin(self, piece: Piece) -> Area:
        old, new = (
            names.of(raw)
            for names, raw in zip(self._names, (piece.old, piece.new), strict=True)
        )
        area = Area(piece.start, piece.end, old, new, tuple(_became(piece, old, new)))
        if APPEARED in area.changes and piece.new is not None:
            self.raw[id(area)] = piece.new
        if VANISHED in area.changes and piece.old is not None:
            self.raw[id(area)] = piece.old
        return area

    def _run(self, area: Area, run: Run) -> Iterator[Range | Page]:
        pages = (run.end - run.start) // self._page
        for counts in (area.pages, self._totals.pages):
            for word in words(run.change):
                counts[word] += pages
        area.changed += pages
        self._totals.changed += pages
        if self._each_page:
            for address in range(run.start, run.end, run.unit):
                yield Page(area, address, run.unit, run.change, *run.entries(address))
            return
        last = self._pending
        if last and (last.area, last.end, last.change) == (area, run.start, run.change):
            self._pending = Range(area, last.start, run.end, run.change)
            return
        yield from self.flush()
        self._pending = Range(area, run.start, run.end, run.change)


APPEARED = "VMA appeared"
VANISHED = "VMA vanished"


def _became(piece: Piece, old: Vma | None, new: Vma | None) -> Iterator[str]:
    """Words for what became of the VMA of a piece."""
    if old is None and new is not None:
        beside = piece.old_next
        grown = new.start < piece.start or (beside is not None and beside.start < new.end)
        yield "VMA grew" if grown else APPEARED
    elif new is None and old is not None:
        beside = piece.new_next
        shrunk = old.start < piece.start or (beside is not None and beside.start < old.end)
        yield "VMA shrank" if shrunk else VANISHED
    elif old is not None and new is not None:
        if old.permissions != new.permissions:
            yield f"permissions {old.permissions} became {new.permissions}"
        if (old.device, old.inode) != (new.device, new.inode):
            yield "another file"
        elif old.inode and old.offset - old.start != new.offset - new.start:
            yield "another part of the file"
        if old.name != new.name:
            yield f"was called {old.name or 'nothing'}"


def _moved(areas: Iterable[Area], raws: dict[int, RawVma]) -> Iterator[tuple[Vma, Vma]]:
    """VMAs that vanished, with those that appeared and are the same, elsewhere.

    A VMA keeps its offset when it moves: that in its file, or for anonymous memory that has been
    used the one it got from where it was first (pgoff).
    """
    gone: dict[tuple[object, ...], Vma] = {}
    for area in areas:
        if VANISHED in area.changes and area.old is not None:
            gone.setdefault(_identity(raws[id(area)], area.old), area.old)
    for area in areas:
        if APPEARED in area.changes and area.new is not None:
            before = gone.pop(_identity(raws[id(area)], area.new), None)
            if before is not None:
                yield before, area.new


def _identity(raw: RawVma, vma: Vma) -> tuple[object, ...]:
    return raw.dev_major, raw.dev_minor, raw.inode, raw.pgoff, vma.permissions
