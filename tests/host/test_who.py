# SPDX-License-Identifier: GPL-2.0-or-later
"""Who maps a frame: the search of the C core against single entries, and sources that lie."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import streams as s
from encoders import encoder
from ptscope.decode.entry import Entry, decode
from ptscope.decode.layout import Layout, available, load
from ptscope.decode.rules import rules_for
from ptscope.errors import BadStream, Exited, NoSuchProcess, NotPermitted
from ptscope.raw.pagemap import Page
from ptscope.raw.records import End
from ptscope.raw.stream import batch_buffer
from ptscope.source.stream import Progress, Request
from ptscope.target.frame import Frame
from ptscope.target.process import Process, find_self
from ptscope.target.vma import Vma
from ptscope.views.who import render
from ptscope.who import ask as asking
from ptscope.who.answer import Answer
from ptscope.who.ask import Tables, ask
from ptscope.who.places import Place, Search
from ptscope.who.processes import Census, Space, census
from values import values

PAGE = 4096
PMD = 512 * PAGE
BASE = 0x7F0000000000
PFN = 0x12345


class Bytes:
    """Batches as a stream; a RawStream and a context manager."""

    source = "made up"
    progress = Progress()

    def __init__(self, layout: Layout, *batches: bytes) -> None:
        self.layout = layout
        self.request = Request("self", ((0, layout.user_last),), True, True)
        self.end: End | None = None
        self._batches = batches

    def __iter__(self) -> Iterator[memoryview]:
        for data in self._batches:
            buffer = batch_buffer(len(data))
            buffer[:] = data
            yield buffer
        self.end = End("done", 0)

    def __enter__(self) -> Bytes:
        return self

    def __exit__(self, *exc: object) -> None: ...


def places(pfn: int, *batches: bytes, layout: Layout = s.FIVE) -> list[Place]:
    """What the search finds."""
    return list(Search(layout, pfn).places(Bytes(layout, *batches)))


def leaf(pfn: int, flags: int = s.LEAF_BITS) -> int:
    return pfn * PAGE | flags


def down(layout: Layout, address: int, last: int) -> bytes:
    """Tables of one entry from the root to the level above `last`."""
    raw = encoder(layout).table(0x2000 * 8)
    return b"".join(
        s.table(level.number, layout.index(level, address), [raw], 0x10000, address & -level.span)
        for level in layout.levels
        if level.number > last
    )


def reaches(layout: Layout, entry: Entry, address: int, pfn: int) -> bool:
    """Whether an entry that maps `address` includes the frame, from single fields."""
    if entry.pfn is None or entry.state == "table" or entry.pa is None:
        return False
    span = layout.level(entry.level).span
    start = entry.pa
    groups = [group for group in rules_for(layout, entry.level).groups if group.in_address]
    for group in groups:
        if entry.contiguous and entry.mapping_size == span * group.entries:
            start |= address & (entry.mapping_size - 1) & -span
    return start < (pfn + 1) * layout.page_size and pfn * layout.page_size < start + span


@pytest.mark.parametrize("name", available())
def test_the_search_finds_what_the_reference_decoder_shows(name: str) -> None:
    layout = load(name)
    rng = random.Random(name)
    found = 0
    for level in layout.levels:
        raws = [raw or 1 for raw in values(layout, level.name, 400, 3)][: level.entries // 2]
        first = level.entries // 4 * level.span if level is not layout.levels[0] else 0
        entries = [decode(layout, level.name, raw) for raw in raws]
        stream = s.batch() + down(layout, first, level.number)
        stream += s.table(level.number, layout.index(level, first), raws, 0x30000, first) + s.end()
        with_frames = [e for e in entries if e.pfn is not None and e.state != "table"]
        for entry in rng.sample(with_frames, min(40, len(with_frames))):
            assert entry.pfn is not None
            pfn = entry.pfn + rng.choice((0, 1, level.span // layout.page_size - 1))
            want = [
                first + i * level.span
                for i, each in enumerate(entries)
                if reaches(layout, each, first + i * level.span, pfn)
            ]
            got = [
                (place.address & -level.span) + i * place.stride
                for place in places(pfn, stream, layout=layout)
                for i in range(place.count)
            ]
            assert got == want, (level.name, hex(pfn))
            found += len(want)
    assert found > 50


def test_a_page_with_its_way_down_and_its_vma() -> None:
    stream = s.batch() + s.vma(BASE, BASE + PAGE) + s.chain(BASE, leaf(PFN)) + s.end()
    (place,) = places(PFN, stream)
    assert (place.address, place.count, place.lock) == (BASE, 1, "read")
    assert place.entry is not None
    assert place.entry.state == "leaf"
    assert place.vma is not None
    assert (place.vma.start, place.vma.permissions) == (BASE, "rw-p")
    assert place.effective is not None
    assert (place.effective.read, place.effective.write, place.effective.exec) == (
        True, True, False)  # fmt: skip
    assert place.entry_pa == 0x10000 + 4 * 0x1000 + 8 * s.FIVE.index("pte", BASE)


def test_a_table_above_that_forbids_writing_counts() -> None:
    levels = s.FIVE.levels
    stream = s.batch() + s.vma(BASE, BASE + PAGE)
    for position, level in enumerate(levels):
        here = 0x10000 + 0x1000 * position
        raw = here + 0x1000 | (s.TABLE_BITS & ~2 if level.name == "pud" else s.TABLE_BITS)
        if level.number == s.PTE:
            raw = leaf(PFN)
        stream += s.table(
            level.number, s.FIVE.index(level, BASE), [raw], here, BASE & -level.span)  # fmt: skip
    (place,) = places(PFN, stream + s.end())
    assert place.effective is not None
    assert not place.effective.write
    assert place.effective.decided_by["write"] == "pud"


def test_a_frame_within_a_huge_page() -> None:
    huge = 0x40000 * PAGE | s.LEAF_BITS | 0x80
    stream = s.batch() + s.vma(BASE, BASE + PMD) + s.chain(BASE, huge, s.PMD) + s.end()
    (place,) = places(0x40000 + 77, stream)
    assert place.address == BASE + 77 * PAGE
    assert place.entry is not None
    assert place.entry.page_size == PMD
    assert places(0x40000 + 512, stream) == []
    assert places(0x40000 - 1, stream) == []


@pytest.mark.parametrize("layout", [load(name) for name in available()], ids=available())
def test_pages_that_are_mapped_but_not_for_the_hardware(layout: Layout) -> None:
    encode = encoder(layout)
    pa = PFN * layout.page_size
    last = layout.levels[-1]
    kinds = layout.facts
    for raw, state in (
        (encode.protnone("pte", pa, 0), "protnone"),
        (encode.swap(kinds["swap.kind.migration_read"], PFN), "migration"),
    ):
        index = layout.index(last, 0x400000)
        stream = s.batch() + down(layout, 0x400000, last.number)
        stream += s.table(last.number, index, [raw], 0x30000, 0x400000) + s.end()
        (place,) = places(PFN, stream, layout=layout)
        assert place.entry is not None
        assert place.entry.state == state
        assert place.mapped is (state == "protnone")


def test_equal_entries_are_one_place_across_tables() -> None:
    """Of the zero page there are many."""
    zero = leaf(PFN, 0x8000000000000225)
    start = BASE + PMD - 3 * PAGE
    upper = s.batch() + s.vma(start, BASE + PMD + 5 * PAGE)
    tables = down(s.FIVE, start, s.PTE) + s.table(s.PTE, 509, [zero] * 3, 0x30000, start)
    tables += s.table(s.PMD, 1, [encoder(s.FIVE).table(0x40000)], 0x20000, BASE + PMD)
    tables += s.table(s.PTE, 0, [zero] * 5, 0x40000, BASE + PMD)
    (place,) = places(PFN, upper + tables + s.end())
    assert (place.address, place.count, place.stride) == (start, 8, PAGE)


def test_equal_entries_of_two_vmas_are_two_places() -> None:
    zero = leaf(PFN, 0x8000000000000225)
    stream = s.batch() + s.vma(BASE, BASE + 2 * PAGE) + down(s.FIVE, BASE, s.PTE)
    stream += s.table(s.PTE, 0, [zero] * 4, 0x30000, BASE) + s.end()
    inside, outside = places(PFN, stream)
    assert (inside.count, outside.count) == (2, 2)
    assert outside.vma is None


def test_what_was_reported_before_is_not_found_again() -> None:
    huge = 0x40000 * PAGE | s.LEAF_BITS | 0x80
    first = s.batch() + s.chain(BASE, huge, s.PMD)
    second = s.batch(1) + down(s.FIVE, BASE, s.PMD)
    second += s.table(s.PMD, 0, [huge], 0x30000, BASE, s.AGAIN) + s.end()
    assert len(places(0x40000, first, second)) == 1


def test_a_broken_stream_is_refused() -> None:
    with pytest.raises(BadStream):
        places(PFN, s.batch() + s.chain(BASE, leaf(PFN))[:-8])


def test_the_zero_entry_is_never_a_frame() -> None:
    """Not even frame 0: on x86 it is not present, and inverted it would be another."""
    stream = s.batch() + down(s.FIVE, BASE, s.PTE)
    stream += s.table(s.PTE, 0, [leaf(PFN), 0, 0, leaf(PFN + 1)], 0x30000, BASE) + s.end()
    assert places(0, stream) == []
    assert places((1 << 40) - 1, stream) == []


# What pagemap says of the places.


def page(frame: int | None) -> Page:
    return Page(
        present=frame is not None, swapped=False, hidden=False, frame=frame, swap_type=None,
        swap_offset=None, soft_dirty=False, exclusive=False, uffd_wp=False, file=False, guard=False,
    )  # fmt: skip


class Pagemap:
    """Says the same of all pages."""

    frames: tuple[int | None, ...] = (PFN,)
    reads = 0

    def __init__(self, proc: Path, hidden: bool) -> None:
        assert not hidden
        type(self).reads = 0

    def __enter__(self) -> Pagemap:
        return self

    def __exit__(self, *exc: object) -> None: ...

    def read(self, address: int) -> Page:
        number = min(Pagemap.reads, len(self.frames) - 1)
        Pagemap.reads += 1
        return page(self.frames[number])


@pytest.fixture
def myself(monkeypatch: pytest.MonkeyPatch) -> Process:
    """This process, with a pagemap and maps that tests decide about."""
    monkeypatch.setattr(asking, "PagemapFile", Pagemap)
    monkeypatch.setattr(asking, "PAUSE", 0)
    monkeypatch.setattr(Pagemap, "frames", (PFN,))
    maps = (Vma(BASE, BASE + PAGE, "rw-p", 0, "00:00", 77, "/some/file"),)
    monkeypatch.setattr(asking, "read_maps", lambda proc: maps)
    return find_self()


STREAM = s.batch() + s.vma(BASE, BASE + PAGE) + s.chain(BASE, leaf(PFN)) + s.end()
EMPTY = s.batch() + s.end()


def answer(
    process: Process, stream: bytes = STREAM, again: bytes = STREAM, count: int = 1
) -> Answer:
    """The answer for a process whose stream is `stream`, and `again` for single addresses."""

    def opener(of: Process, ranges: Sequence[tuple[int, int]] | None) -> Bytes:
        assert of is process
        return Bytes(s.FIVE, stream if ranges is None else again)

    frame = Frame(PFN, 1 << 5, count)
    result = Answer(PFN, "module", "6.1.0", s.FIVE, False, frame, frame)
    ask(result, Census([Space(process)]), Tables(s.FIVE, opener), lambda text: None)
    return result


def test_what_pagemap_agrees_with(myself: Process) -> None:
    result = answer(myself)
    (mapper,) = result.mappers
    assert mapper.mappings[0].agrees is True
    assert mapper.mappings[0].place.vma is not None
    assert mapper.mappings[0].place.vma.name == "/some/file"
    assert (result.found, result.counted, result.lasting) == (1, 1, [])
    assert "1 of 1 mapping" in render(result)
    document = json.loads(json.dumps(result.to_json()))
    assert document["processes"][0]["mappings"][0]["address"] == hex(BASE)


def test_a_source_that_lies_is_caught(myself: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pagemap, "frames", (0x999,))
    result = answer(myself)
    ((mapper, mapping),) = result.lasting
    assert mapper.process.pid == os.getpid()
    assert mapping.agrees is False
    assert mapping.lasting == "frame 0x999"
    assert "DIFFERS" in render(result)


def test_a_page_that_goes_away_is_no_lie(myself: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pagemap, "frames", (None,))
    result = answer(myself, again=EMPTY)
    assert (result.mappers[0].mappings if result.mappers else ()) == ()
    assert result.changed == 1
    assert result.lasting == []
    assert "1 mapping gone when looked at again" in " ".join(render(result).split())


def test_a_page_that_comes_late_is_no_lie(myself: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pagemap, "frames", (None, PFN))
    assert answer(myself).lasting == []


def test_a_source_that_leaves_out_shows_in_the_count(myself: Process) -> None:
    result = answer(myself, stream=EMPTY, count=3)
    assert (result.found, result.counted) == (0, 3)
    assert "0 of 3 mappings; the others are of no process that is seen here" in render(result)


def test_a_process_that_exits_is_skipped(myself: Process) -> None:
    def opener(of: Process, ranges: object) -> Bytes:
        raise Exited("process 7 (gone) has exited")

    frame = Frame(PFN, 1 << 5, 1)
    result = Answer(PFN, "module", "6.1.0", s.FIVE, False, frame, frame)
    ask(result, Census([Space(myself)]), Tables(s.FIVE, opener), lambda text: None)
    assert [each.cause for each in result.skipped] == ["process 7 (gone) has exited"]
    assert result.looked == 0
    assert "process 7 (gone) has exited" in render(result)


def test_a_process_that_may_not_be_looked_at_is_skipped(
    myself: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But when there is no other, that is the answer."""
    refused = NotPermitted("no", "be root")
    frame = Frame(PFN, 1 << 5, 1)

    def opener(of: Process, ranges: object) -> Bytes:
        if of.comm == "refuses":
            raise refused
        return Bytes(s.FIVE, STREAM)

    other = replace(myself, comm="refuses")
    result = Answer(PFN, "module", "6.1.0", s.FIVE, False, frame, frame)
    tables = Tables(s.FIVE, opener)
    ask(result, Census([Space(other), Space(myself)]), tables, lambda text: None)
    assert [each.cause for each in result.skipped] == ["no"]
    assert result.found == 1
    with pytest.raises(NotPermitted):
        ask(
            Answer(PFN, "module", "6.1.0", s.FIVE, False, frame, frame),
            Census([Space(other)]), tables, lambda text: None,
        )  # fmt: skip


def test_without_proc_what_the_module_shows_is_shown_unchecked(
    myself: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(proc: Path) -> tuple[Vma, ...]:
        raise NotPermitted("maps may not be read")

    monkeypatch.setattr(asking, "read_maps", refuse)
    result = answer(myself)
    assert [m.agrees for mapper in result.mappers for m in mapper.mappings] == [None]


def test_those_that_share_are_looked_at_once(myself: Process) -> None:
    asked: list[tuple[int, int]] = []

    def same(one: int, other: int) -> bool:
        asked.append((one, other))
        return True

    result = census([myself.pid, myself.pid], same=same)
    assert [len(space.sharers) for space in result.spaces] == [1]
    assert asked == [(myself.pid, myself.pid)]


def test_processes_that_were_asked_for_must_exist() -> None:
    with pytest.raises(NoSuchProcess):
        census([4194304])


def test_a_count_that_changes_is_not_compared(myself: Process) -> None:
    result = answer(myself)
    result.before = Frame(PFN, 1 << 5, 7)
    assert result.counted is None
    assert "changed meanwhile" in render(result)
