# SPDX-License-Identifier: GPL-2.0-or-later
"""Address spaces made up for tests, and the streams in which the module would give them.

This is a second, slow implementation of what kmod/ptscope.h says about a stream, so that readers of
streams are not tested with their own ideas of it.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import streams as s
from ptscope.decode.layout import U64_MAX, Layout, Level
from ptscope.host import Host
from ptscope.snapshot.facts import Header, Memory, Target
from ptscope.snapshot.writer import SnapshotWriter
from ptscope.source.module import ModuleSource
from ptscope.source.stream import ModuleStream, Request

GAP = 4  # empty entries that do not end a part
TABLES = 0x4000_0000  # physical address of the root; other tables follow


@dataclass(frozen=True)
class Area:
    """A VMA; read-write, private and of a file as `streams.vma` makes it."""

    start: int
    end: int
    flags: int = 0x73


@dataclass
class Space:
    """What is mapped: raw entries by level and address, none of them a table."""

    layout: Layout
    entries: dict[tuple[str, int], int] = field(default_factory=dict)
    areas: list[Area] = field(default_factory=list)

    def put(self, address: int, raw: int, level: str = "pte") -> None:
        """Map the page that begins at `address`; 0 maps nothing."""
        if raw:
            self.entries[level, address] = raw

    def page(self, address: int) -> tuple[Level, int] | None:
        """The entry that maps an address."""
        for level in self.layout.levels:
            raw = self.entries.get((level.name, address & -level.span))
            if raw:
                return level, raw
        return None

    def tables(self) -> dict[tuple[int, int], int]:
        """Physical addresses of all tables by level number and the address they begin at."""
        found = {(self.layout.levels[0].number, 0)}
        for name, address in self.entries:
            for level in self.layout.levels:
                found.add((level.number, address & -(level.span * level.entries)))
                if level.name == name:
                    break
        root = self.layout.levels[0].number
        order = sorted(found, key=lambda key: (key[0] != root, key))
        return {key: TABLES + 0x1000 * position for position, key in enumerate(order)}


class _Writer:
    """Cuts records into batches, of `most` records each, as a stream that resumes does."""

    def __init__(self, most: int, lock: int) -> None:
        self.batches: list[bytes] = []
        self._most = most
        self._lock = lock
        self._records: list[bytes] = []
        self._new = 0

    def add(self, record: bytes, way: Sequence[bytes]) -> None:
        """`way` is what must stand before it where it begins a batch."""
        if self._new >= self._most:
            self.close()
        if not self._records:
            self._records = list(way)
        self._records.append(record)
        self._new += 1

    def close(self, end: bytes = b"") -> None:
        head = s.batch(len(self.batches), self._lock)
        self.batches.append(head + b"".join(self._records) + end)
        self._records = []
        self._new = 0


def stream(space: Space, most: int = 1 << 30, lock: int = s.READ) -> list[bytes]:
    """The batches of a dump of all of a space, VMAs included, of `most` new records each."""
    out = _Writer(most, lock)
    tables = space.tables()
    areas = sorted(space.areas, key=lambda area: area.start)
    inside: list[Area] = []

    def enter(until: int, way: list[bytes]) -> None:
        while areas and areas[0].start <= until:
            area = areas.pop(0)
            out.add(s.vma(area.start, area.end, area.flags), way)
            inside[:] = [area]

    def way_to(address: int, way: list[bytes]) -> list[bytes]:
        again = [
            s.vma(a.start, a.end, a.flags, s.AGAIN) for a in inside if a.start <= address < a.end
        ]
        return [*way, *again]

    def walk(position: int, start: int, way: list[bytes]) -> None:
        level = space.layout.levels[position]
        table_pa = tables[level.number, start]
        part: list[int] = []
        first = 0

        def close_part() -> None:
            while part and not part[-1]:
                part.pop()
            if part:
                address = start + first * level.span
                data = s.table(level.number, first, part, table_pa, address)
                out.add(data, way_to(address, way))
            part.clear()

        for index in _indices(space, level, start):
            address = start + index * level.span
            if areas and areas[0].start <= address:
                close_part()
                enter(address, way)
            raw = space.entries.get((level.name, address), 0)
            below = space.layout.levels[position + 1] if position + 1 < len(
                space.layout.levels) else None
            table = 0 if below is None else tables.get((below.number, address), 0)
            if part and index - first - len(part) > GAP:
                close_part()
            if not part:
                first = index
            part += [0] * (index - first - len(part))
            part.append(raw or table | s.TABLE_BITS)
            if not raw and below is not None:
                # No batch begins between an entry and the table that it points to: the way down to
                # what follows is read again then.
                entry = s.table(
                    level.number, index, [table | s.TABLE_BITS], table_pa, address, s.AGAIN
                )
                close_part()
                walk(position + 1, address, [*way, entry])
        close_part()

    walk(0, 0, [])
    enter(U64_MAX, [])
    out.close(s.end())
    return out.batches


def _indices(space: Space, level: Level, start: int) -> Iterator[int]:
    """Indices of entries of a table that are not empty, in order."""
    found = {
        (address - start) // level.span
        for (name, address) in space.entries
        if space.layout.level(name).number <= level.number
        and start <= address < start + level.span * level.entries
    }
    yield from sorted(found)


class Batches(io.RawIOBase):
    """A dump file that gives these batches."""

    def __init__(self, batches: Sequence[bytes]) -> None:
        self._batches = list(batches)

    def write(self, data: object) -> int:
        assert isinstance(data, bytes)
        return len(data)

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        data = self._batches.pop(0) if self._batches else b""
        view[: len(data)] = data
        return len(data)


HEADER = Header(
    layout=s.FIVE,
    target=Target(42, "cat", "/usr/bin/cat", 1234, False),
    ranges=((0, s.FIVE.user_last),),
    with_vmas=True,
    with_user_pgd=True,
    source="module",
    kernel="6.1.0-57-amd64",
    machine="x86_64",
    boot_id="5d0f3a2c-0000-4000-8000-000000000001",
    time="2026-11-30T12:00:00.000000+00:00",
    shmem=("00:01",),
    memory=Memory({"VmPTE": 28}, {"size": 100}),
    writer="ptscope 0",
)


def snapshot(
    space: Space,
    most: int = 1 << 30,
    maps: bytes = b"",
    chunk: int | None = None,
    batches: Sequence[bytes] | None = None,
    **changes: object,
) -> bytes:
    """A snapshot file of a space, or of these batches.

    `changes` are to the header. `chunk` bytes make a chunk.
    """
    layout = space.layout
    said = {"layout": layout, "ranges": ((0, layout.user_last),), **changes}
    header = replace(HEADER, **said)  # type: ignore[arg-type]
    file = io.BytesIO()
    writer = SnapshotWriter(file, header)
    if chunk is not None:
        writer.chunk_size = chunk
    if maps:
        writer.add_maps(maps)
    request = Request(42, header.ranges, True, True)
    given = stream(space, most) if batches is None else list(batches)
    source = ModuleSource(Host(), Path("/nowhere"), layout, opener=lambda path: Batches(given))
    with ModuleStream(source, request) as read:
        for _ in writer.add_stream(read):
            pass
        writer.finish(read, Memory({"VmPTE": 32}, {}))
    return file.getvalue()
