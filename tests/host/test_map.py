# SPDX-License-Identifier: GPL-2.0-or-later
"""`ptscope map`: what entries add up to, and when a difference to the kernel's figures is one."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import streams as s
from hypothesis import given
from hypothesis import strategies as st
from ptscope.cli import run
from ptscope.cli.progress import SILENT, Ticker
from ptscope.decode.layout import Layout
from ptscope.errors import NotPermitted
from ptscope.raw.records import End
from ptscope.raw.stream import batch_buffer
from ptscope.source.stream import Progress, RawStream, Request
from ptscope.space.agreement import ATTEMPTS, Agreement, Comparer, Sums, figures, page_tables
from ptscope.space.huge import barrier, is_anonymous, shmem_devices
from ptscope.space.rows import Reader, Row
from ptscope.space.usage import Tally, Usage, total
from ptscope.target.counters import Counters, read_counters
from ptscope.target.smaps import SmapsVma, parse_smaps
from ptscope.target.vma import Vma
from ptscope.views.map import Totals, header, row_line, short, totals_text
from ptscope.views.map_json import row_csv

PAGE = 4096
PMD = 512 * PAGE
BASE = 0x7F0000000000
LEAF = s.LEAF_BITS
HUGE = LEAF | 0x80
RW = 0x73  # vm_flags: read, write and what may be
SHMEM = frozenset({"00:01"})


def area(start: int, pages: int, flags: int = RW, inode: int = 0, kind: int = 0) -> bytes:
    """A VMA record, anonymous when it has no inode."""
    import struct

    body = struct.pack("=QQQQQQII", start, start + pages * PAGE, flags, 0x25, 0, inode, 0, 1)
    if not inode:
        body = body[:-8] + bytes(8)
    return s.record(s.VMA, kind, body)


def down(address: int, last: int) -> bytes:
    """Tables of one entry from the root to the level above `last`."""
    return b"".join(
        s.table(level.number, s.FIVE.index(level, address), [0x2067], 0x1000, address & -level.span)
        for level in s.FIVE.levels
        if level.number > last
    )


def pte(address: int, raws: Sequence[int]) -> bytes:
    return s.table(s.PTE, s.FIVE.index("pte", address), list(raws), 0x2000, address)


def pages(count: int, first: int = 100, bits: int = LEAF) -> list[int]:
    return [(first + i) << 12 | bits for i in range(count)]


@dataclass
class Fake:
    """A RawStream of given batches."""

    batches: list[bytes]
    source: str = "module"
    layout: Layout = s.FIVE
    request: Request = field(default_factory=lambda: Request(1, (), True, False))
    progress: Progress = field(default_factory=Progress)
    end: End | None = None

    def __iter__(self) -> Iterator[memoryview]:
        for data in self.batches:
            buffer = batch_buffer(len(data))
            buffer[:] = data
            yield buffer
        self.end = End("done", 0)


def witness(start: int, count: int, permissions: str = "rw-p", **kib: int) -> SmapsVma:
    """A VMA as smaps says it, figures in kB."""
    vma = Vma(start, start + count * PAGE, permissions, 0, "00:00", 0, "[heap]")
    return SmapsVma(vma, {name: amount * 1024 for name, amount in kib.items()})


def counters(resident: int = 0, tables: int = 4, threads: int = 1) -> Counters:
    """Counters, of the resident pages and of the tables in pages."""
    return Counters(resident * PAGE, tables * PAGE, 0, 0, threads, False)


@dataclass
class Process:
    """A process whose tables, smaps and counters are made up; lists: one for each look."""

    streams: list[bytes]
    smaps: list[list[SmapsVma]]
    counts: list[Counters]
    slept: list[float] = field(default_factory=list)
    zero: frozenset[int] = frozenset()

    @staticmethod
    def _next(looks: list[bytes] | list[list[SmapsVma]] | list[Counters]) -> object:
        return looks.pop(0) if len(looks) > 1 else looks[0]

    def open(self, ranges: object) -> AbstractContextManager[RawStream]:
        data = self._next(self.streams)
        assert isinstance(data, bytes)
        stream: RawStream = Fake([data])
        return nullcontext(stream)

    def look(self) -> list[SmapsVma]:
        found = self._next(self.smaps)
        assert isinstance(found, list)
        return found

    def count(self) -> Counters:
        found = self._next(self.counts)
        assert isinstance(found, Counters)
        return found

    def compare(self) -> tuple[list[Row], Agreement]:
        """Read it, and compare."""
        reader = Reader(self.open, SHMEM, is_huge_zero=lambda pfn: pfn in self.zero)
        comparer = Comparer(reader, s.FIVE, self.look, self.count, sleep=self.slept.append)
        rows = []
        for row in reader.rows(self.look()):
            comparer.take(row)
            rows.append(row)
        return rows, comparer.agreement()


def four(count: int = 4) -> bytes:
    """A process of one VMA of eight pages, `count` of them there."""
    return s.batch() + area(BASE, 8) + down(BASE, s.PTE) + pte(BASE, pages(count)) + s.end()


def test_vmas_that_are_alike_are_counted_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is worked out once for many is added up for all, also when not all is remembered."""
    count = 700
    starts = [BASE + 16 * i * PAGE for i in range(count)]
    body = [s.batch()]
    for i, start in enumerate(starts):
        full = 1 + i % 5
        body.append(area(start, 8))
        body += [down(start, s.PTE)] if not i else []
        if i and not start & (PMD - 1):
            body.append(s.table(2, s.FIVE.index("pmd", start), [0x2067], 0x1000, start & -PMD))
        body.append(pte(start, pages(full, 1000 * i)))
    stream = b"".join([*body, s.end()])
    smaps = [witness(start, 8, Rss=4 * (1 + i % 5)) for i, start in enumerate(starts)]
    total_pages = sum(1 + i % 5 for i in range(count))
    monkeypatch.setattr("ptscope.space.usage.MOST_ALIKE", 3)
    monkeypatch.setattr("ptscope.raw.summary.MOST_KNOWN", 2)
    process = Process([stream], [smaps], [counters(total_pages, 2 + -(-count * 16 // 512))])
    rows, agreement = process.compare()
    assert [row.usage.resident for row in rows] == [PAGE * (1 + i % 5) for i in range(count)]
    assert total(row.usage for row in rows).resident == total_pages * PAGE
    assert agreement.findings == ()


def test_all_agree() -> None:
    process = Process([four()], [[witness(BASE, 8, Rss=16)]], [counters(4, 3)])
    (row,), agreement = process.compare()
    assert row.vma.name == "[heap]"
    assert row.usage.by_size == {PAGE: 4 * PAGE}
    assert row.usage.resident == row.usage.mapped == 4 * PAGE
    assert row.usage.properties == {
        "accessed": 4 * PAGE, "dirty": 4 * PAGE, "soft_dirty": 4 * PAGE, "uffd_wp": 0,
        "writable": 4 * PAGE, "executable": 0, "special": 0}  # fmt: skip
    assert (agreement.vmas, agreement.changed, agreement.findings) == (1, (), ())
    assert agreement.verdicts == {"VmPTE": "equal", "statm": "equal"}
    assert process.slept == []


def test_a_lie_that_lasts_is_a_finding() -> None:
    process = Process([four()], [[witness(BASE, 8, Rss=20)]], [counters(4, 3)])
    _, agreement = process.compare()
    (finding,) = agreement.findings
    assert (finding.figure.what, finding.figure.entries, finding.figure.kernel) == (
        "Rss", 4 * PAGE, 5 * PAGE)  # fmt: skip
    assert (finding.start, finding.readings) == (BASE, ATTEMPTS + 1)
    assert agreement.changed == ()


def test_a_difference_that_goes_away_is_a_change() -> None:
    smaps = [[witness(BASE, 8, Rss=20)], [witness(BASE, 8, Rss=16)]]
    _, agreement = Process([four()], smaps, [counters(4, 3)]).compare()
    assert agreement.findings == ()
    assert agreement.changed == ((BASE, BASE + 8 * PAGE),)


def test_a_process_that_never_holds_still_has_changed() -> None:
    """Each look at smaps gives another figure; none of them is that of the entries."""
    smaps = [[witness(BASE, 8, Rss=4 * number)] for number in range(5, 100)]
    _, agreement = Process([four()], smaps, [counters(4, 3)]).compare()
    assert agreement.findings == ()
    assert agreement.changed == ((BASE, BASE + 8 * PAGE),)


def test_a_process_that_swings_in_step_with_us_has_changed() -> None:
    """Before and after smaps says the same, but the entries are others each time."""
    streams = [four(1 + number % 3) for number in range(20)]
    _, agreement = Process(streams, [[witness(BASE, 8, Rss=28)]], [counters(4, 3)]).compare()
    assert [finding for finding in agreement.findings if finding.start] == []
    assert agreement.changed == ((BASE, BASE + 8 * PAGE),)


def test_a_vma_that_is_gone_has_changed() -> None:
    gone = s.batch() + s.end()
    process = Process([four(), gone], [[], []], [counters(4, 3), counters(0, 0)])
    _, agreement = process.compare()
    assert agreement.findings == ()
    assert agreement.changed == ((BASE, BASE + 8 * PAGE),)


def test_a_vma_that_smaps_never_has_is_a_finding() -> None:
    other = [[witness(BASE + PMD, 8, Rss=16)]]
    _, agreement = Process([four()], other, [counters(4, 3)]).compare()
    assert [finding.figure.what for finding in agreement.findings] == ["VMA"]
    locked = [[witness(BASE, 8, "r--p", Rss=16)]]
    _, agreement = Process([four()], locked, [counters(4, 3)]).compare()
    assert [finding.figure.what for finding in agreement.findings] == ["VMA"]


def test_page_tables_that_the_kernel_does_not_know_of() -> None:
    _, agreement = Process([four()], [[witness(BASE, 8, Rss=16)]], [counters(4, 5)]).compare()
    (finding,) = agreement.findings
    assert (finding.figure.what, finding.figure.entries, finding.figure.kernel) == (
        "VmPTE", 3 * PAGE, 5 * PAGE)  # fmt: skip
    assert agreement.verdicts["VmPTE"] == "differs"


def test_page_tables_that_come_and_go() -> None:
    counts = [counters(4, number) for number in range(5, 30)]
    _, agreement = Process([four()], [[witness(BASE, 8, Rss=16)]], counts).compare()
    assert agreement.findings == ()
    assert agreement.verdicts["VmPTE"] == "changed"


@pytest.mark.parametrize(("off", "verdict"), [(0, "equal"), (1, "close"), (100_000, "differs")])
def test_statm_is_not_exact(off: int, verdict: str) -> None:
    """Threads or CPUs count for themselves up to some pages."""
    process = Process([four()], [[witness(BASE, 8, Rss=16)]], [counters(4 + off, 3)])
    _, agreement = process.compare()
    assert agreement.verdicts["statm"] == verdict
    assert [finding.figure.what for finding in agreement.findings] == (
        ["statm"] if verdict == "differs" else [])  # fmt: skip


def huge(flags: int = RW, inode: int = 0, kind: int = 0) -> bytes:
    """PMD entries: a huge page, the huge zero page, a table, a huge page without permission."""
    zero = 0x600000 | 0xA5
    none = ((0x800000 ^ 0x000FFFFFFFFFF000) & 0x000FFFFFFFFFF000) | 0x180
    out = s.batch() + area(BASE, 2048, flags, inode, kind) + down(BASE, s.PMD)
    out += s.table(s.PMD, 0, [0x200000 | HUGE, zero, 0x3067], 0x2000, BASE)
    out += pte(BASE + 2 * PMD, pages(2))
    return out + s.table(s.PMD, 3, [none], 0x2000, BASE + 3 * PMD) + s.end()


def test_huge_pages() -> None:
    smaps = [[witness(BASE, 2048, Rss=4096 + 8, AnonHugePages=4096)]]
    # Three tables that entries point to, and one for each of three huge pages.
    process = Process([huge()], smaps, [counters(1026, 6)], zero=frozenset({0x600}))
    (row,), agreement = process.compare()
    assert agreement.findings == ()
    assert agreement.verdicts == {"VmPTE": "equal", "statm": "equal"}
    assert row.usage.by_size == {PAGE: 2 * PAGE, PMD: 3 * PMD}
    assert row.usage.huge_zero == PMD
    assert row.usage.not_present == PMD
    assert (row.could_be, row.barrier) == (PMD, None)
    assert agreement.page_tables.kept == 3 * PAGE


def test_hugetlb() -> None:
    flags = RW | s.FIVE.facts["vm.hugetlb"]
    smaps = [[witness(BASE, 2048, Shared_Hugetlb=2048, Private_Hugetlb=4104)]]
    process = Process([huge(flags, 9, s.HUGETLB)], smaps, [counters(0, 3)])
    (row,), agreement = process.compare()
    assert agreement.findings == ()
    assert agreement.verdicts == {"VmPTE": "equal", "statm": "equal"}
    assert (row.barrier, row.could_be) == ("hugetlb", 0)


def test_device_memory_is_a_hole_to_smaps() -> None:
    flags = RW | s.FIVE.facts["vm.pfnmap"]
    stream = s.batch() + area(BASE, 8, flags, 9) + down(BASE, s.PTE)
    stream += pte(BASE, [*pages(2, bits=LEAF | 0x200), *pages(1, 500)])
    (row,), agreement = Process([stream], [[witness(BASE, 8)]], [counters(1, 3)]).compare()
    assert agreement.findings == ()
    assert row.usage.properties["special"] == 2 * PAGE
    assert row.usage.resident == PAGE
    assert row.barrier == "device"


def test_swap_migration_and_markers() -> None:
    facts = s.FIVE.facts

    def special(number: int, offset: int) -> int:
        mask = facts["swap.offset_mask"]
        shift = (mask & -mask).bit_length() - 1
        return number << 59 | ((offset << shift) ^ mask) & mask

    raws = [special(0, 77), special(facts["swap.kind.migration_read"], 5),
            special(facts["swap.kind.marker"], 1)]  # fmt: skip
    stream = s.batch() + area(BASE, 8) + down(BASE, s.PTE) + pte(BASE, raws)
    (row,), agreement = Process(
        [stream], [[witness(BASE, 8, Rss=4, Swap=4)]], [counters(1, 3)]
    ).compare()
    assert agreement.findings == ()
    assert row.usage.swap == PAGE
    assert row.usage.kinds == {"swap": 1, "migration_read": 1, "uffd_wp_marker": 1}
    assert (row.usage.mapped, row.usage.resident) == (0, PAGE)
    lie = Process([stream], [[witness(BASE, 8, Rss=4, Swap=8)]], [counters(1, 3)]).compare()[1]
    assert [finding.figure.what for finding in lie.findings] == ["Swap"]
    # Of shared memory the entries do not show what is swapped out.
    shared = stream.replace(area(BASE, 8), area(BASE, 8, RW, 9))
    (row,), _ = Process([shared], [[witness(BASE, 8, Rss=4, Swap=8)]], [counters(1, 3)]).compare()
    assert "Swap" not in [figure.what for figure in figures(row)]


def test_what_can_have_huge_pages() -> None:
    vma = Vma(0, PMD, "rw-p", 0, "00:00", 0, "", RW)
    facts = s.FIVE.facts
    assert barrier(s.FIVE, vma, SHMEM) is None
    assert barrier(s.FIVE, replace(vma, vm_flags=facts["vm.nohugepage"]), SHMEM) == "nohugepage"
    assert barrier(s.FIVE, replace(vma, vm_flags=facts["vm.io"]), SHMEM) == "device"
    file = replace(vma, inode=5, device="08:01")
    assert barrier(s.FIVE, file, SHMEM) == "file"
    assert barrier(s.FIVE, replace(file, device="00:01"), SHMEM) is None
    assert not is_anonymous(file)
    assert is_anonymous(replace(file, name="/dev/zero"))
    assert not is_anonymous(replace(file, name="/dev/zero", permissions="rw-s"))


def test_shared_memory_is_found_by_its_device() -> None:
    fd = os.memfd_create("x")
    try:
        device = os.fstat(fd).st_dev
    finally:
        os.close(fd)
    assert f"{os.major(device):02x}:{os.minor(device):02x}" in shmem_devices()


SMAPS = """\
55d5c8a0b000-55d5c8a2c000 rw-p 00000000 00:00 0                          [heap]
Size:                132 kB
KernelPageSize:        4 kB
Rss:                  16 kB
THPeligible:    1
VmFlags: rd wr mr mw me ac sd
7f0000000000-7f0000001000 r--p 00000000 08:01 77                         /a: b kB
Rss:                   4 kB
THPeligible:           0
ProtectionKey:         0
VmFlags: rd
"""


def test_smaps() -> None:
    heap, file = parse_smaps(SMAPS.splitlines(keepends=True))
    assert heap.vma.name == "[heap]"
    assert (heap.get("Rss"), heap.get("Rss", "Size", "Nothing")) == (16 << 10, 148 << 10)
    assert heap.thp_eligible is True
    assert heap.flags == ("rd", "wr", "mr", "mw", "me", "ac", "sd")
    assert file.vma.name == "/a: b kB"
    assert (file.get("Rss"), file.thp_eligible, file.flags) == (4096, False, ("rd",))


def test_counters_of_this_process() -> None:
    found = read_counters(Path("/proc/self"))
    assert found.resident > 1 << 20
    assert found.page_tables
    assert found.threads >= 1


def test_page_tables_by_level() -> None:
    usage = Usage(tables={"p4d": 1, "pud": 2, "pmd": 3, "pte": 10})
    tables = page_tables(s.FIVE, usage, 4)
    assert tables.expected == 19 * PAGE
    assert tables.all == 21 * PAGE


def test_usages_add_up() -> None:
    one = Usage(mapped=1, by_size={4: 1}, tables={"pte": 1}, runs={0: 1})
    both = one + Usage(mapped=2, by_size={4: 2, 8: 1}, tables={"pmd": 1})
    assert both == Usage(
        mapped=3, by_size={4: 3, 8: 1}, tables={"pte": 1, "pmd": 1}, runs={0: 1})  # fmt: skip
    assert total(()) == Usage()


SIZES = st.integers(0, 1 << 62)


@given(SIZES)
def test_short_is_short_and_near(size: int) -> None:
    text = short(size)
    assert len(text) <= 6
    if size and size % 1024 == 0 and size < 10000 << 10:
        assert text == f"{size >> 10}K"


@given(
    st.integers(0, s.FIVE.user_last), SIZES, SIZES, SIZES, st.text(max_size=200),
    st.sampled_from([s.FIVE, s.FOUR, None]),
)  # fmt: skip
def test_rows_fit_into_80_columns(
    start: int, size: int, mapped: int, swap: int, name: str, layout: Layout | None
) -> None:
    usage = Usage(mapped=mapped, by_size={PMD: mapped}, swap=swap, tables={"pte": size >> 12},
                  small_ranges=swap)  # fmt: skip
    start &= (layout or s.FOUR).user_last
    vma = Vma(start, start + size, "rw-p", 0, "00:00", 0, name)
    line = row_line(Row(vma, usage, None, None, False, layout), PAGE)
    if size >> 12 < 1_000_000:
        assert len(line) <= 80
    assert "\n" not in line
    assert len(header(layout)) <= 80


DISAGREEING = Process([four()], [[witness(BASE, 8, Rss=20)]], [counters(9999, 5)]).compare()[1]


@given(SIZES, st.integers(0, 60), st.booleans())
def test_totals_fit_into_80_columns(size: int, log: int, leaves: bool) -> None:
    usage = Usage(
        mapped=size, by_size={PAGE: size, PMD: size, 1 << 30: size}, resident=size, swap=size,
        not_present=size, huge_zero=size, properties={"accessed": size, "soft_dirty": size},
        kinds={"uffd_wp_marker": size, "migration_read_exclusive": size},
        tables={"pte": size}, runs={0: 1, log % 39: min(size, 10**9 - 1)},
        run_pages={0: 1, log % 39: size},
    )  # fmt: skip
    tally = Tally()
    tally.add(usage)
    text = totals_text(
        Totals(
            sums=Sums(tally=tally, vmas=size, size=size, could_be=size),
            outside=usage,
            page_size=PAGE,
            source="module",
            kernel="6.1.0-57-amd64",
            layout=None if leaves else s.FIVE,
            agreement=None if leaves else DISAGREEING,
            counters=counters(),
            longest_lock_ns=size,
            frames_hidden=False,
        )
    )
    assert [line for line in text.splitlines() if len(line) > 80 and "\x1b" not in line] == []


def pagemap_map(*words: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert run(["map", "self", "--source", "pagemap", *words]) == 0
    return capsys.readouterr().out


def test_leaves_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    out = pagemap_map(capsys=capsys)
    lines = out.splitlines()
    assert f"{os.getpid()} " in lines[0]
    assert max(map(len, lines)) <= 80
    assert any(line.endswith("[stack]") for line in lines)
    assert "leaves only" in out


def test_leaves_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    answer = json.loads(pagemap_map("--json", capsys=capsys))
    assert answer["leaves_only"]
    assert answer["source"] == "pagemap"
    assert answer["page_tables"] is None
    assert answer["total"]["vmas"] == len(answer["vmas"]) > 20
    assert answer["total"]["mapped"] == sum(vma["mapped"] for vma in answer["vmas"]) > 1 << 20
    # smaps and pagemap were read one after the other, of a process that runs: this one
    assert abs(answer["total"]["resident"] - answer["total"]["mapped"]) < 4 << 20
    stack = next(vma for vma in answer["vmas"] if vma["name"] == "[stack]")
    assert stack["permissions"] == "rw-p"
    assert stack["accessed"] is stack["could_be_huge"] is None


def test_leaves_as_csv(capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(csv.DictReader(io.StringIO(pagemap_map("--csv", capsys=capsys))))
    stack = next(row for row in rows if row["name"] == "[stack]")
    assert int(stack["end"], 16) - int(stack["start"], 16) == int(stack["size"])
    assert int(stack["mapped"]) >= PAGE
    assert stack["accessed"] == ""
    assert stack["run_pages"].split(":")[0].isdigit()


@pytest.mark.parametrize("words", [["kernel"], ["abc"], ["-1"], ["--nonsense"], ["0"]])
def test_what_cannot_be_mapped(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["map", *words]) == 2
    assert capsys.readouterr().err.startswith("ptscope: ")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def tick(monkeypatch: pytest.MonkeyPatch, stderr: io.StringIO, seconds: float) -> str:
    clock = [100.0]
    monkeypatch.setattr("sys.stderr", stderr)
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    with Ticker() as ticker:
        ticker.tell("early")
        clock[0] += seconds
        ticker.tell("late " + "x" * 200)
    return stderr.getvalue()


def test_progress_is_for_terminals_and_long_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tick(monkeypatch, io.StringIO(), SILENT + 1) == ""
    assert tick(monkeypatch, Terminal(), SILENT - 1) == ""
    shown = tick(monkeypatch, Terminal(), SILENT + 1)
    assert "early" not in shown
    assert shown.startswith("\rlate x")
    assert max(map(len, shown.split("\r"))) < 80
    assert shown.endswith("\r")


def test_progress_needs_no_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    """`ptscope … 2>&-`"""
    monkeypatch.setattr("sys.stderr", None)
    with Ticker() as ticker:
        ticker.tell("nobody reads it")


def test_csv_does_not_steer_a_terminal() -> None:
    vma = Vma(PMD, PMD + PAGE, "rw-p", 0, "08:01", 77, "/tmp/\x1b[31mred")
    values = row_csv(Row(vma, Usage(), None, None, False, None), PAGE)
    assert "/tmp/\\x1b[31mred" in values
    assert not any("\x1b" in str(value) for value in values)


@pytest.mark.parametrize("form", [[], ["--csv"]])
def test_nothing_is_printed_of_what_may_not_be_read(
    form: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*of: object) -> Iterator[Row]:
        raise NotPermitted("/proc/1/pagemap may not be read")
        yield

    monkeypatch.setattr("ptscope.cli.map.leaf_rows", refused)
    assert run(["map", "self", "--source", "pagemap", *form]) == 4
    assert capsys.readouterr().out == ""
