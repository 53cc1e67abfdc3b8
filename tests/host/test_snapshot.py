# SPDX-License-Identifier: GPL-2.0-or-later
"""Snapshot files: what is put in comes out, and nothing else is taken for one."""

from __future__ import annotations

import contextlib
import io
import json
import random
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
import streams as s
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from ptscope.cli import cli, run
from ptscope.errors import BadSnapshot, PtscopeError, UsageError
from ptscope.raw.stream import MAX_READ
from ptscope.snapshot import container
from ptscope.snapshot.reader import Snapshot
from ptscope.source.snapshot import SnapshotSource, SnapshotStream
from spaces import HEADER, Area, Space, snapshot, stream

HEAP = 0x55D155772000
STACK = 0x7FFE4C1F2000
LEAF = s.LEAF_BITS
MAPS = f"{HEAP:x}-{HEAP + 0x10000:x} rw-p 00002000 08:01 77    /usr/bin/c\udcffat\n".encode(
    errors="surrogateescape"
)


def small() -> Space:
    space = Space(s.FIVE)
    space.areas = [Area(HEAP, HEAP + 0x10000), Area(STACK, STACK + 0x4000)]
    for page in (0, 1, 2, 9):
        space.put(HEAP + 0x1000 * page, LEAF | 0x100000 + 0x1000 * page)
    space.put(STACK, LEAF | 0x900000)
    space.put(1 << 40, LEAF | 0x80 | 0x4000_0000, "pud")
    return space


def opened(data: bytes) -> Snapshot:
    return Snapshot(io.BytesIO(data), "a.pts")


def read_all(data: bytes) -> list[bytes]:
    """Everything that a reader can be asked of a file."""
    with opened(data) as file:
        batches = [bytes(batch) for batch in SnapshotStream(file)]
        list(file.vmas())
        walks(file, [HEAP, STACK])
    return batches


def walks(file: Snapshot, addresses: list[int]) -> list[list[tuple[int, int, int]]]:
    return [
        [(entry.level, entry.raw, entry.entry_pa) for entry in walk.entries]
        for walk in SnapshotSource(file).walk(42, addresses)
    ]


def test_what_is_put_in_comes_out() -> None:
    space = small()
    data = snapshot(space, maps=MAPS)
    with opened(data) as file:
        assert file.header.target == HEADER.target
        assert file.header.layout == s.FIVE
        assert file.header.memory.status == {"VmPTE": 28}
        assert file.trailer.memory.status == {"VmPTE": 32}
        assert file.trailer.totals.entries == len(read_entries(file))
        (vma,) = file.vmas()
        assert (vma.start, vma.inode, vma.name) == (HEAP, 77, "/usr/bin/c\\xffat")
    assert read_all(data) == stream(space)


def read_entries(file: Snapshot) -> list[int]:
    out: list[int] = []
    for batch in SnapshotStream(file):
        from ptscope.raw.records import RawTable
        from ptscope.raw.stream import parse_batch
        from ptscope.source.stream import entries_by_number

        sequence = struct.unpack_from("=Q", batch, 16)[0]
        for record in parse_batch(bytes(batch), sequence, entries_by_number(s.FIVE)).records:
            if isinstance(record, RawTable) and not record.again:
                out += record.raws
    return out


def test_batches_are_as_they_were_over_many_chunks() -> None:
    space = Space(s.FIVE)
    numbers = random.Random(1)
    for _ in range(400):
        space.put(numbers.randrange(1 << 35) << 12, LEAF | numbers.randrange(1 << 30) << 12)
    batches = stream(space, most=3)
    assert len(batches) > 100
    data = snapshot(space, most=3, chunk=2000)
    with opened(data) as file:
        assert file.trailer.totals.chunks > 20
        read = []
        for batch in SnapshotStream(file):
            assert batch.readonly
            read.append(bytes(batch))
    assert read == batches
    assert max(map(len, batches)) < MAX_READ


def test_a_walk_is_what_was_mapped() -> None:
    """Of addresses that are mapped, beside those, and anywhere; against the space itself."""
    numbers = random.Random(2)
    for most, chunk in ((1, 1), (2, 500), (7, 1), (1 << 30, None)):
        space = Space(s.FIVE)
        for _ in range(60):
            base = numbers.randrange(1 << 23) << 33
            for _ in range(numbers.randrange(1, 8)):
                space.put(base + (numbers.randrange(600) << 12), LEAF)
        space.put(5 << 49, LEAF | 0x80, "pud")
        data = snapshot(space, most=most, chunk=chunk)
        tables = space.tables()
        pages = [address for _, address in space.entries]
        beside = [address + numbers.randrange(-20, 20) * 0x1000 for address in pages]
        anywhere = [numbers.randrange(1 << 56) for _ in range(50)]
        with opened(data) as file:
            for address in (*pages, *(a for a in beside if a >= 0), *anywhere, 0, (1 << 56) - 1):
                wanted = []
                for level in s.FIVE.levels:
                    table = tables.get((level.number, address & -(level.span * level.entries)))
                    assert table is not None
                    index = s.FIVE.index(level, address)
                    raw = space.entries.get((level.name, address & -level.span), 0)
                    below = tables.get((level.number - 1, address & -level.span))
                    if not raw and below is not None:
                        raw = below | s.TABLE_BITS
                    wanted.append((level.number, raw, table + 8 * index))
                    if below is None or level.number == 1 or not raw & 1:
                        break
                assert walks(file, [address]) == [wanted], hex(address)


def repeating(parts: int, *, told: bool) -> bytes:
    """A table at 1 GiB, and `parts` records of one entry each that repeat the one before."""
    base, span = 1 << 30, 1 << 21
    way = s.table(s.PGD, 0, [0x2000 | s.TABLE_BITS], 0x1000, 0)
    way += s.table(s.P4D, 0, [0x3000 | s.TABLE_BITS], 0x2000, 0)
    way += s.table(s.PUD, 1, [0x4000 | s.TABLE_BITS], 0x3000, base)
    raws = [0x5000 | s.TABLE_BITS]
    if told:
        way += s.table(s.PMD, 0, raws, 0x4000, base)
        way += s.table(s.PTE, 3, [0x123000 | LEAF], 0x5000, base + 0x3000)
    for part in range(1, parts + 1):
        way += s.table(s.PMD, part, raws, 0x4000, base + part * span, s.REPEATED)
    return snapshot(small(), batches=[s.batch() + way + s.end()])


def test_what_lies_below_repeated_entries_is_found() -> None:
    base, span = 1 << 30, 1 << 21
    with opened(repeating(3, told=True)) as file:
        source = SnapshotSource(file)
        first, third, empty = source.walk(42, [base + 0x3000, base + 3 * span + 0x3000,
                                               base + 2 * span + 0x8000])  # fmt: skip
    assert [entry.raw for entry in third.entries] == [entry.raw for entry in first.entries]
    assert [entry.entry_pa for entry in third.entries[3:]] == [0x4018, 0x5018]
    assert third.entries[-1].address == base + 3 * span + 0x3000
    assert [entry.raw for entry in empty.entries[3:]] == [0x5000 | s.TABLE_BITS, 0]
    assert empty.entries[-1].address == base + 2 * span + 0x8000


def test_entries_that_repeat_others_without_end_are_damage() -> None:
    with opened(repeating(400, told=False)) as file, pytest.raises(BadSnapshot, match="repeat"):
        SnapshotSource(file).walk(42, [(1 << 30) + 400 * (1 << 21)])


def test_the_vma_of_a_walk_comes_from_wherever_it_began() -> None:
    space = Space(s.FIVE, areas=[Area(HEAP, HEAP + (1 << 30))])
    for page in range(0, 1 << 18, 97):
        space.put(HEAP + (page << 12), LEAF)
    with opened(snapshot(space, most=5, chunk=300)) as file:
        for offset in (0, 0x5000, 1 << 25, (1 << 30) - 1):
            (walk,) = SnapshotSource(file).walk(42, [HEAP + offset])
            assert walk.vma is not None
            assert (walk.vma.start, walk.vma.end) == (HEAP, HEAP + (1 << 30))
        (walk,) = SnapshotSource(file).walk(42, [HEAP + (1 << 30)])
        assert walk.vma is None


def test_nothing_mapped_at_all() -> None:
    space = Space(s.FIVE)
    with opened(snapshot(space)) as file, pytest.raises(UsageError, match="no table at all"):
        walks(file, [HEAP])


def test_addresses_that_were_not_dumped() -> None:
    data = snapshot(small())
    with opened(data) as file:
        file.header = HEADER.__class__(**{**vars(HEADER), "ranges": ((HEAP, HEAP + 0xFFFF),)})
        with pytest.raises(UsageError, match="was not dumped"):
            walks(file, [STACK])
        with pytest.raises(UsageError, match="not canonical"):
            walks(file, [1 << 60])
        with pytest.raises(UsageError, match="is of 42"):
            SnapshotSource(file).walk(43, [HEAP])


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"", "it is empty"),
        (b"#!/bin/sh\n" * 100, "is no snapshot"),
        (b"\x7fELF" + bytes(100), "is no snapshot"),
        (container.MAGIC[:5], "cut short"),
        (container.MAGIC, "cut short"),
        (container.MAGIC.replace(b"\n", b"\r\n") + bytes(50), "is no snapshot"),
        (container.MAGIC + struct.pack("<HHI", 2, 0, 10), "version 2, and this ptscope reads"),
        (container.MAGIC + struct.pack("<HHI", 1, 0, 1 << 31), "impossible size"),
        (container.MAGIC + struct.pack("<HHI", 1, 0, 100) + bytes(50), "cut short"),
        (container.MAGIC + struct.pack("<HHI", 1, 0, 100) + bytes(104), "checksum of its header"),
        (container.preamble(b"[]"), "its header is no JSON object"),
        (container.preamble(b"{}"), "no proper 'byte_order'"),
        (container.preamble(b"[" * 100_000), "its header is no JSON object"),
        (container.preamble(json.dumps(HEADER.to_json()).encode()), "cut short"),
    ],
)
def test_what_is_no_snapshot(data: bytes, cause: str, tmp_path: Path) -> None:
    with pytest.raises(BadSnapshot, match=cause):
        opened(data)
    path = tmp_path / "bad.pts"
    path.write_bytes(data)
    for words in (["show", str(path)], ["show", str(path), "0x1000"], ["diff", str(path), "-"]):
        result = CliRunner().invoke(cli, words)
        assert isinstance(result.exception, BadSnapshot)
        assert run(words) == 2


def header_with(**changes: object) -> bytes:
    return container.preamble(json.dumps({**HEADER.to_json(), **changes}).encode())


@pytest.mark.parametrize(
    "changes",
    [
        {"byte_order": "big"},
        {"target": None},
        {"target": {"kind": "process"}},
        {"target": {**HEADER.target.to_json(), "pid": -1}},
        {"target": {**HEADER.target.to_json(), "pid": True}},
        {"target": {**HEADER.target.to_json(), "kind": "kernel"}},
        {"request": {"ranges": [], "vmas": True, "user_pgd": True}},
        {"request": {"ranges": [["0x2", "0x1"]], "vmas": True, "user_pgd": True}},
        {"request": {"ranges": [["0x0", "0x5"], ["0x5", "0x9"]], "vmas": True, "user_pgd": True}},
        {"request": {"ranges": [[1, 2]], "vmas": True, "user_pgd": True}},
        {"request": {"ranges": [["0x1", "0x2"]], "vmas": 1, "user_pgd": True}},
        {"memory": {"status": {"VmPTE": "x"}, "statm": {}}},
        {"layout": {"format": 1}},
        {"layout": {**s.FIVE.to_json(), "facts": {}}},
    ],
)
def test_headers_that_say_what_cannot_be(changes: dict[str, object]) -> None:
    whole = snapshot(small())
    rest = whole[len(container.preamble(json.dumps(HEADER.to_json()).encode())) :]
    assert read_all(header_with() + rest) == read_all(whole)
    with pytest.raises(BadSnapshot, match=r"a\.pts"):
        opened(header_with(**changes) + rest)


def test_a_file_is_whole_or_refused_when_it_is_opened() -> None:
    """Cut anywhere, it is refused before anything of it is shown."""
    data = snapshot(small(), most=2, maps=MAPS, chunk=300)
    for length in range(len(data)):
        with pytest.raises(BadSnapshot):
            opened(data[:length])
    with pytest.raises(BadSnapshot, match="follows its end"):
        opened(data + b"\0")
    with pytest.raises(BadSnapshot):
        opened(data + data)


FUZZED = snapshot(small(), most=3, maps=MAPS, chunk=400)
READ = read_all(FUZZED)


def test_every_byte_counts() -> None:
    """Whichever byte is another, it is noticed."""
    for position in range(len(FUZZED)):
        data = bytearray(FUZZED)
        data[position] ^= 1 << position % 8
        with pytest.raises(BadSnapshot):
            read_all(bytes(data))


@given(
    st.lists(st.tuples(st.integers(0, len(FUZZED) - 1), st.binary(min_size=1, max_size=9))),
    st.integers(0, len(FUZZED)),
    st.integers(0, len(FUZZED)),
)
@settings(max_examples=400)
def test_damage_of_any_kind(patches: list[tuple[int, bytes]], cut: int, until: int) -> None:
    """Patched, with a piece cut out or doubled: an error of ours, or the same as before."""
    data = bytearray(FUZZED)
    for position, patch in patches:
        data[position : position + len(patch)] = patch
    data = data[:cut] + data[until:]
    with contextlib.suppress(BadSnapshot):
        assert read_all(bytes(data)) == READ


def resealed(data: bytes) -> bytes:
    """A file with its checksums made right again, as somebody who means harm would."""
    out = bytearray(data)
    (size,) = struct.unpack_from("<I", out, 12)
    at = 16 + size + 4
    if at > len(out):
        return data
    struct.pack_into("<I", out, at - 4, zlib.crc32(out[: at - 4]))
    while at + container.HEAD_SIZE <= len(out):
        stored = struct.unpack_from("<I", out, at + 4)[0]
        payload = out[at + container.HEAD_SIZE : at + container.HEAD_SIZE + stored]
        struct.pack_into("<I", out, at + container.HEAD_SIZE - 8, zlib.crc32(payload))
        head = out[at : at + container.HEAD_SIZE - 4]
        struct.pack_into("<I", out, at + container.HEAD_SIZE - 4, zlib.crc32(head))
        at += container.HEAD_SIZE + stored
    return bytes(out)


def test_resealing_alone_changes_nothing() -> None:
    assert resealed(FUZZED) == FUZZED


def pieces(data: bytes) -> list[bytes]:
    """The preamble, then each chunk."""
    (size,) = struct.unpack_from("<I", data, 12)
    at = 16 + size + 4
    found = [data[:at]]
    while at < len(data):
        end = at + container.HEAD_SIZE + struct.unpack_from("<I", data, at + 4)[0]
        found.append(data[at:end])
        at = end
    return found


MANY = pieces(snapshot(small(), most=1, maps=MAPS, chunk=1))
OF_BATCHES = [i for i, piece in enumerate(MANY) if i and piece.startswith(container.DATA)]


@pytest.mark.parametrize("first", OF_BATCHES[:-1])
@pytest.mark.parametrize("second", OF_BATCHES[1:])
def test_batches_that_changed_places(first: int, second: int) -> None:
    """Every checksum is right, and every batch is there."""
    if first < second:
        order = list(MANY)
        order[first], order[second] = order[second], order[first]
        with pytest.raises(BadSnapshot):
            read_all(b"".join(order))


@pytest.mark.parametrize("which", OF_BATCHES)
@pytest.mark.parametrize("times", [0, 2])
def test_a_batch_that_is_lost_or_there_twice(which: int, times: int) -> None:
    assert read_all(b"".join(MANY))
    with pytest.raises(BadSnapshot):
        read_all(b"".join([*MANY[:which], *[MANY[which]] * times, *MANY[which + 1 :]]))


def test_a_layout_without_what_a_vma_needs() -> None:
    """Found by the test below: a letter of a name changed, and the checksum made right again."""
    data = FUZZED.replace(b"vm.mayshare", b"vm.mayshard")
    assert data != FUZZED
    with pytest.raises(BadSnapshot, match=r"vm\.mayshare"):
        read_all(resealed(data))


@given(st.lists(st.tuples(st.integers(0, len(FUZZED) - 1), st.binary(min_size=1, max_size=5)),
                min_size=1))
@settings(max_examples=600)
def test_damage_with_right_checksums(patches: list[tuple[int, bytes]]) -> None:
    """Nothing but an error of ours, however false the numbers that are vouched for."""
    data = bytearray(FUZZED)
    for position, patch in patches:
        data[position : position + len(patch)] = patch
    with contextlib.suppress(PtscopeError):
        read_all(resealed(bytes(data[: len(FUZZED)])))


def raw_changed(change: bytes, at: int) -> bytes:
    """A snapshot whose first batch has other bytes, everything around it right."""
    import zstandard

    space = small()
    whole = snapshot(space)
    batches = bytearray(stream(space)[0])
    batches[at : at + len(change)] = change
    raw = struct.pack("<Q", len(batches)) + bytes(batches)
    (size,) = struct.unpack_from("<I", whole, 12)
    at = 16 + size + 4
    stored = struct.unpack_from("<I", whole, at + 4)[0]
    last = struct.unpack_from("<Q", whole, at + 16)[0]
    assert zstandard.frame_content_size(whole[at + container.HEAD_SIZE :]) == len(raw)
    chunk = container.chunk(container.DATA, raw, 1, last)
    return whole[:at] + chunk + whole[at + container.HEAD_SIZE + stored :]


@given(st.integers(0, len(stream(small())[0]) - 4), st.binary(min_size=1, max_size=4))
@settings(max_examples=400)
def test_records_that_break_the_wire_format(at: int, change: bytes) -> None:
    """What the module never sends is refused, and changed values are just other values."""
    with contextlib.suppress(PtscopeError):
        read_all(raw_changed(change, at))


def test_a_broken_record_is_named() -> None:
    with pytest.raises(BadSnapshot, match="a record has an unknown type"):
        read_all(raw_changed(b"\x99", 40))


def test_show_needs_nothing_of_this_machine(tmp_path: Path) -> None:
    path = tmp_path / "a.pts"
    path.write_bytes(snapshot(small(), maps=MAPS))
    result = CliRunner().invoke(cli, ["show", str(path), hex(HEAP), hex(STACK)])
    assert result.exception is None
    assert f"42 cat, address {HEAP:#x}" in result.output
    assert "/usr/bin/c\\xffat" in result.output
    assert "frame 0x100" in result.output
    assert "flags:" not in result.output
    assert "source     snapshot, layout debian-6.1-amd64" in result.output
    (answer, _) = [
        json.loads(line)
        for line in CliRunner().invoke(
            cli, ["show", str(path), hex(HEAP), hex(STACK), "--json"]).output.splitlines()
    ]
    assert answer["source"] == "snapshot"
    assert answer["frame"] is None
    assert answer["mapping"]["pa"] == "0x100000"
    assert answer["time"] == HEADER.time
    assert CliRunner().invoke(cli, ["show", str(path)]).output.startswith("42 cat, dumped")


def test_a_snapshot_from_a_pipe(tmp_path: Path) -> None:
    data = snapshot(small())
    result = CliRunner().invoke(cli, ["show", "-"], input=data)
    assert result.exception is None
    assert "42 cat, dumped" in result.output


def test_a_pipe_without_end_that_is_no_snapshot() -> None:
    # All that it sends would have been kept on the disk before the first byte was looked at.
    with subprocess.Popen(["yes"], stdout=subprocess.PIPE) as endless:
        try:
            result = subprocess.run(
                [sys.executable, "-m", "ptscope", "show", "-"],
                stdin=endless.stdout,
                capture_output=True,
                text=True,
                timeout=20,
                check=False,
            )
        finally:
            endless.kill()
    assert result.returncode == 2
    assert result.stderr.startswith("ptscope: standard input is no snapshot\n")


@pytest.mark.parametrize("size", [0, 3, 8, 12])
def test_a_pipe_that_is_cut_short(size: int) -> None:
    result = CliRunner().invoke(cli, ["show", "-"], input=snapshot(small())[:size])
    assert isinstance(result.exception, BadSnapshot)
    assert "cut short" in result.exception.cause if size else "empty" in result.exception.cause


def test_a_file_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["show", str(tmp_path / "none")]) == 2
    assert "remedy: `ptscope dump PID -o" in capsys.readouterr().err
    assert run(["show", str(tmp_path)]) == 2


@pytest.mark.parametrize("words", [["show", ""], ["diff", "", ""], ["check", "--from", ""]])
def test_an_empty_name_is_no_directory(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    # Path("") is the current directory.
    assert run(words) == 2
    assert capsys.readouterr().err.startswith("ptscope: the name of the snapshot is empty\n")


def test_a_dump_to_an_empty_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["dump", "self", "-o", ""]) == 2
    assert capsys.readouterr().err.startswith("ptscope: the name of FILE is empty\n")


@pytest.mark.parametrize("name", ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_json_and_snapshot_do_not_share_stdout(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["dump", "self", "-o", name, "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["cause"] == f"--json and -o {name} would both go to standard output"
    assert error["remedy"]
