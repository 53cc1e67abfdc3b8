# SPDX-License-Identifier: GPL-2.0-or-later
"""A stream of tables as what it maps: VMAs and entries that end a walk, in order of address.

Tables come before what they point to, so the entries that are no tables come in order of address
already. What the module reported again is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ptscope._core import ffi, lib
from ptscope.decode.compiled import STATE, compiled
from ptscope.decode.layout import Level
from ptscope.raw.records import RawVma
from ptscope.raw.stream import limits_of, raw_vma
from ptscope.source.stream import RawStream, entries_by_number

TABLE: int = STATE["table"]
NONE: int = STATE["none"]


@dataclass(frozen=True, slots=True)
class Entries:
    """Consecutive entries of one level, empty ones among them but no tables.

    `raws` points into the batch, and is valid until the next event is asked for.
    """

    address: int
    level: Level
    count: int
    raws: Any

    @property
    def end(self) -> int:
        """The first address that they do not map."""
        return self.address + self.count * self.level.span


@dataclass
class Tables:
    """How many tables there are, by the name of their level; filled while events are read."""

    count: dict[str, int]


def events(stream: RawStream, tables: Tables) -> Iterator[RawVma | Entries]:
    """The events of a whole stream. Raises what iterating it does."""
    layout = stream.layout
    levels = {level.number: level for level in layout.levels}
    rules = {level.number: compiled(layout).levels[level.name] for level in layout.levels}
    below = dict(zip(layout.levels, layout.levels[1:], strict=False))
    limits = limits_of(entries_by_number(layout))
    cursor = ffi.new("struct ptscope_cursor *")
    tables.count.update({level.name: 0 for level in layout.levels[1:]})
    for sequence, batch in enumerate(stream):
        buffer = ffi.from_buffer(batch)
        lib.ptscope_cursor_start(cursor, buffer, len(batch), sequence, limits)
        while (kind := lib.ptscope_cursor_next(cursor)) > 0:
            flags = cursor.record.flags
            if flags & (lib.PTSCOPE_AGAIN | lib.PTSCOPE_USER_PGD | lib.PTSCOPE_REPEATED):
                continue
            if kind == lib.PTSCOPE_RECORD_VMA:
                yield raw_vma(ffi.cast("struct ptscope_vma *", cursor.record))
            elif kind == lib.PTSCOPE_RECORD_TABLE:
                record = ffi.cast("struct ptscope_table *", cursor.record)
                level = levels[record.level]
                raws = ffi.cast("unsigned long long *", record + 1)
                if level not in below:
                    yield Entries(record.address, level, record.count, raws)
                    continue
                yield from _upper(
                    Entries(record.address, level, record.count, raws),
                    rules[level.number],
                    tables,
                    below[level],
                )


def _upper(part: Entries, rules: Any, tables: Tables, below: Level) -> Iterator[Entries]:
    """The entries of a part above the last level that map pages themselves."""
    decoded = ffi.new("struct ptscope_decoded[]", part.count)
    lib.ptscope_decode(rules, part.raws, part.count, decoded)
    start = 0
    for position in range(part.count + 1):
        state = decoded[position].state if position < part.count else TABLE
        if state not in (TABLE, NONE):
            continue
        if position > start:
            yield Entries(
                part.address + start * part.level.span,
                part.level,
                position - start,
                part.raws + start,
            )
        start = position + 1
        if position < part.count and state == TABLE:
            tables.count[below.name] += 1


