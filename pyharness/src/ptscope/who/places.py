# SPDX-License-Identifier: GPL-2.0-or-later
"""The entries of a stream that have a frame, found by the C core (core/find.h)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ptscope._core import ffi, lib
from ptscope.decode.compiled import CompiledRules, compiled
from ptscope.decode.effective import Effective, effective
from ptscope.decode.entry import Entry, decode
from ptscope.decode.layout import Layout
from ptscope.raw.records import Lock
from ptscope.raw.stream import limits_of, lock_name, raw_vma, stream_error
from ptscope.source.assemble import vma_of
from ptscope.source.stream import RawStream, entries_by_number
from ptscope.target.vma import Vma

_FOUND: int = lib.PTSCOPE_FIND_FOUND


@dataclass(frozen=True)
class Place:
    """An entry that has the frame, or `count` equal ones that follow each other.

    `address` is where the frame itself appears, `stride` the bytes from it to the next when `count`
    is above 1. The rest is None where only leaves are seen (pagemap): `entry_pa` is the
    physical address of the entry, `effective` what all levels allow together.
    """

    address: int
    count: int
    stride: int
    vma: Vma | None
    entry: Entry | None = None
    entry_pa: int | None = None
    effective: Effective | None = None
    lock: Lock = "none"

    @property
    def mapped(self) -> bool:
        """Whether it maps the page; otherwise it only refers to it: migration, device memory."""
        return self.entry is None or self.entry.state in ("leaf", "protnone", "splitting")

    def continues(self, other: Place) -> bool:
        """Whether this place goes on where `other` ends, in the same way."""
        return (
            self.address == other.address + other.count * other.stride
            and self.stride == other.stride
            and self.vma == other.vma
            and self.effective == other.effective
            and (self.entry and self.entry.raw) == (other.entry and other.entry.raw)
        )


def joined(places: Iterator[Place]) -> Iterator[Place]:
    """The same places, those that continue each other made one: runs across tables."""
    last: Place | None = None
    for place in places:
        if last is not None and place.continues(last):
            last = replace(last, count=last.count + place.count)
            continue
        if last is not None:
            yield last
        last = place
    if last is not None:
        yield last


@dataclass
class Search:
    """Looks for one frame in one stream. `looked` counts the entries looked at."""

    layout: Layout
    pfn: int
    _state: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        rules: CompiledRules = compiled(self.layout)
        self._state = ffi.new("struct ptscope_find *")
        first = self.pfn * self.layout.page_size
        limits = limits_of(entries_by_number(self.layout))
        lib.ptscope_find_start(self._state, limits, first, first + self.layout.page_size - 1)
        for level in self.layout.levels:
            code = lib.ptscope_find_level(self._state, rules.levels[level.name])
            assert not code, f"the rules of {level.name} do not fit into the search"

    @property
    def looked(self) -> int:
        """Entries looked at so far."""
        looked: int = self._state.looked
        return looked

    def places(self, stream: RawStream) -> Iterator[Place]:
        """The places of the whole stream, in order.

        Raises what the stream raises, and BadStream when it breaks a rule of ptscope.h.
        """
        return joined(place for batch in stream for place in self._batch(batch))

    def _batch(self, batch: memoryview) -> Iterator[Place]:
        state = self._state
        code = lib.ptscope_find_batch(state, ffi.from_buffer(batch), len(batch))
        while not code and (code := lib.ptscope_find_next(state)) == _FOUND:
            yield self._place(state.found)
            code = 0
        if code:
            raise stream_error(state.sequence - 1, state.cursor.offset, code)

    def _place(self, found: Any) -> Place:
        layout = self.layout
        levels = [level for level in layout.levels if level.number >= found.level]
        entries = [decode(layout, level.name, found.chain[level.number]) for level in levels[:-1]]
        entry = decode(layout, levels[-1].name, found.raw)
        root = layout.levels[0].name
        user = decode(layout, root, found.user_root) if found.has_user_root else None
        return Place(
            address=found.frame_address,
            count=found.count,
            stride=levels[-1].span,
            vma=vma_of(layout, raw_vma(found.vma)) if found.in_vma else None,
            entry=entry,
            entry_pa=found.entry_pa,
            effective=effective(layout, [*entries, entry], user),
            lock=lock_name(found.lock),
        )
