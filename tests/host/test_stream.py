# SPDX-License-Identifier: GPL-2.0-or-later
"""Requests as bytes, and batches from bytes: good ones, each kind of bad one, and any bytes at
all."""

from __future__ import annotations

import contextlib
import struct

import pytest
import streams as s
from hypothesis import given
from hypothesis import strategies as st
from ptscope._core import ffi, lib
from ptscope.errors import BadStream, UsageError
from ptscope.raw.records import Batch, End, RawTable, RawVma
from ptscope.raw.stream import MAX_RANGES, WITH_VMAS, build_request, parse_batch

ENTRIES = {level.number: level.entries for level in s.FIVE.levels}
ENTRIES4 = {level.number: level.entries for level in s.FOUR.levels}
ADDRESS = 0x7FFE4C1F2000
GOOD = s.batch() + s.vma(0x7FFE4C1D2000, 0x7FFE4C1F3000) + s.chain(ADDRESS, 5) + s.end()


def test_request() -> None:
    assert build_request(-1, WITH_VMAS, [(1, 2), (3, 3)]) == struct.pack(
        "=IHHiIIIQQQQ", s.MAGIC, s.VERSION, 24, -1, 1, 2, 16, 1, 2, 3, 3
    )


@pytest.mark.parametrize("ranges", [[], [(2, 1)], [(0, 0)] * (MAX_RANGES + 1)])
def test_request_that_the_module_would_refuse(ranges: list[tuple[int, int]]) -> None:
    with pytest.raises(UsageError, match="ranges"):
        build_request(1, 0, ranges)


def test_request_never_leaves_its_buffer() -> None:
    buffer = ffi.new("char[41]", b"x" * 41)
    ranges = ffi.new("struct ptscope_range[]", [(1, 2)])
    for room in range(40):
        assert lib.ptscope_request_build(buffer, room, 1, 0, ranges, 1) == lib.PTSCOPE_BAD_ROOM
    assert ffi.buffer(buffer)[:] == b"x" * 41
    assert lib.ptscope_request_build(buffer, 40, 1, 0, ranges, 1) == 40
    assert buffer[40] == b"x"


def test_batch() -> None:
    batch = parse_batch(GOOD, 0, ENTRIES)
    assert (batch.sequence, batch.lock, batch.lock_ns, batch.retries) == (0, "read", 1234, 0)
    assert batch.end == End("done", 0)
    vma, *tables = batch.records
    assert vma == RawVma(0x7FFE4C1D2000, 0x7FFE4C1F3000, 0x73, 0x25, 2, 77, 8, 1, False, False)
    assert [table.level for table in tables if isinstance(table, RawTable)] == [5, 4, 3, 2, 1]
    last = tables[-1]
    assert isinstance(last, RawTable)
    assert (last.raws, last.table_pa, last.address) == ((5,), 0x14000, ADDRESS)
    assert last.entry(0, 4096).entry_pa == 0x14000 + 8 * last.index


def test_many_entries_and_flags() -> None:
    root = s.table(s.PGD, 100, [0] * 400 + [7], 0x1000, 0, s.AGAIN | s.USER_PGD)
    vma = s.vma(0, 4096, flags=s.AGAIN | s.HUGETLB)
    batch = parse_batch(s.batch(3, s.WRITE) + vma + root, 3, ENTRIES)
    area, table = batch.records
    assert isinstance(area, RawVma)
    assert isinstance(table, RawTable)
    assert area.again
    assert area.hugetlb
    assert table.again
    assert table.user_pgd
    assert table.raws == (*[0] * 400, 7)
    assert table.entry(400, 1 << 48).address == 400 << 48
    assert batch.lock == "write"
    assert batch.end is None


PGD = s.table(s.PGD, 0, [0x67], 0x1000, 0)
P4D = s.table(s.P4D, 0, [0x67], 0x2000, 0)
PUD = s.table(s.PUD, 0, [0x67], 0x3000, 0)
HEAD = s.batch()

BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "begin with a batch"),
    "no batch record": (s.end(), "begin with a batch"),
    "batch in the middle": (HEAD + HEAD, "cannot stand"),
    "odd length": (GOOD[:-1], "aligned"),
    "cut record": (GOOD[:-8], "longer than what was read"),
    "cut header": (HEAD + struct.pack("=HHI", 3, 0, 4), "size"),
    "size too large": (HEAD + s.record(s.TABLE, 0, b"\0" * 32, size=4096), "longer than"),
    "size zero": (HEAD + s.record(s.END, 0, b"\0" * 16, size=0), "size"),
    "size odd": (HEAD + s.record(s.VMA, 0, b"\0" * 64, size=65), "aligned"),
    "unknown type": (HEAD + s.record(9, 0, b""), "unknown type"),
    "wrong magic": (s.batch(magic=1), "magic"),
    "wrong version": (s.batch(version=2), "version"),
    "wrong header size": (HEAD[:14] + b"\x30\0" + HEAD[16:], "size of the batch"),
    "batch record grown": (s.record(s.BATCH, 0, HEAD[8:] + b"\0" * 8), "size"),
    "batch of a header alone": (s.record(s.BATCH, 0, b""), "size"),
    "batch that is cut": (s.record(s.BATCH, 0, HEAD[8:16]), "size"),
    "batch flags": (s.record(s.BATCH, 1, HEAD[8:]), "flag"),
    "wrong sequence": (s.batch(1), "missing or repeated"),
    "unknown lock": (s.batch(lock=0), "lock"),
    "vma backwards": (HEAD + s.vma(4096, 4096), "VMA"),
    "vma size": (HEAD + s.record(s.VMA, 0, b"\1" * 64), "size"),
    "vma flags": (HEAD + s.vma(0, 4096, flags=s.USER_PGD), "flag"),
    "level zero": (HEAD + s.table(0, 0, [0], 0, 0), "level"),
    "level six": (HEAD + s.table(6, 0, [0], 0, 0), "level"),
    "level six after the root": (HEAD + PGD + s.table(6, 0, [0], 0, 0), "level"),
    "table of a header alone": (HEAD + s.record(s.TABLE, 0, b""), "size"),
    "table flags": (HEAD + s.table(s.PGD, 0, [0], 0, 0, 16), "flag"),
    "first entry repeated": (HEAD + s.table(s.PGD, 0, [7], 0, 0, s.REPEATED), "flag"),
    "PTEs repeated": (HEAD + PGD + P4D + PUD + s.table(
        s.PMD, 0, [7], 0, 0) + s.table(s.PTE, 1, [7], 0, 4096, s.REPEATED), "flag"),
    "user copy below the root": (HEAD + PGD + s.table(s.P4D, 0, [0], 0, 0, s.USER_PGD), "flag"),
    "no entries": (HEAD + s.table(s.PGD, 0, [], 0, 0), "none"),
    "index too large": (HEAD + s.table(s.PGD, 512, [0], 0, 0), "than a table has"),
    "too many entries": (HEAD + s.table(s.PGD, 511, [0, 0], 0, 0), "than a table has"),
    "count not the size": (HEAD + s.table(s.PGD, 0, [0, 0], 0, 0).replace(
        struct.pack("=HHI", s.PGD, 0, 2), struct.pack("=HHI", s.PGD, 0, 1)), "size"),
    "table not aligned": (HEAD + s.table(s.PGD, 0, [0], 4, 0), "physical address"),
    "not from the root": (HEAD + P4D, "cannot stand"),
    "level skipped": (HEAD + PGD + PUD, "cannot stand"),
    "after the end": (HEAD + s.end() + s.end(), "cannot stand"),
    "unknown status": (HEAD + s.end(5), "status"),
    "status zero": (HEAD + s.end(0), "status"),
    "padding": (HEAD + s.end(reserved=1), "padding"),
    "end flags": (HEAD + s.record(s.END, 1, s.end()[8:]), "flag"),
    "end size": (HEAD + s.record(s.END, 0, b"\0" * 24), "size"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_batch(name: str) -> None:
    data, words = BAD[name]
    with pytest.raises(BadStream, match=words):
        parse_batch(data, 0, ENTRIES)


def test_folded_level_is_skipped_and_never_given() -> None:
    down = s.table(s.PUD, 0, [0], 0x3000, 0)
    assert len(parse_batch(HEAD + PGD + down, 0, ENTRIES4).records) == 2
    with pytest.raises(BadStream, match="level"):
        parse_batch(HEAD + PGD + P4D, 0, ENTRIES4)


def test_going_up_again_is_allowed() -> None:
    data = HEAD + PGD + P4D + PUD + P4D + PUD + PGD
    assert len(parse_batch(data, 0, ENTRIES).records) == 6


def judged(data: bytes) -> None:
    """Any bytes give a batch or a BadStream: no other error, no crash."""
    with contextlib.suppress(BadStream):
        batch = parse_batch(data, 0, ENTRIES)
        assert isinstance(batch, Batch)
        for record in batch.records:
            if isinstance(record, RawTable):
                assert 0 < len(record.raws) <= 512 - record.index


@given(st.binary(max_size=512))
def test_random_bytes(data: bytes) -> None:
    judged(data)


@given(st.binary(max_size=256))
def test_random_records_after_a_batch(data: bytes) -> None:
    judged(HEAD + data)


@given(
    st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=4),
    st.integers(0, len(GOOD)),
)
def test_mutated_stream(changes: list[tuple[int, int]], length: int) -> None:
    data = bytearray(GOOD)
    for where, value in changes:
        data[where] = value
    judged(bytes(data))
    judged(bytes(data[:length]))
