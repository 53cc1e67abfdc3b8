# SPDX-License-Identifier: GPL-2.0-or-later
"""Sums of the C core against sums made from single entries, and against streams made by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
import streams as s
from ptscope.decode.compiled import ATTRIBUTE, compiled
from ptscope.decode.entry import decode, has_attribute
from ptscope.decode.layout import Layout, available, load
from ptscope.decode.table import MAPPED
from ptscope.errors import BadStream
from ptscope.raw.records import RawVma
from ptscope.raw.stream import batch_buffer
from ptscope.raw.summary import Summary, VmaSums
from values import values

PAGE = 4096
PMD = 512 * PAGE
BASE = 0x7F0000000000
LEAF = s.LEAF_BITS


def buffer(data: bytes) -> memoryview:
    """The bytes as a stream gives them."""
    out = batch_buffer(len(data))
    out[:] = data
    return out


def sums(layout: Layout, *batches: bytes) -> tuple[list[VmaSums], VmaSums]:
    """The VMAs of a stream, and what is outside of them."""
    summary = Summary(compiled(layout))
    vmas = [vma for batch in batches for vma in summary.add(buffer(batch))]
    last = summary.finish()
    return vmas if last is None else [*vmas, last], summary.outside()


def down(layout: Layout, address: int, last: int, flags: int = 0) -> bytes:
    """Tables of one entry from the root to the level above `last`."""
    out = b""
    for level in layout.levels:
        if level.number > last:
            raw = 0x2000 | s.TABLE_BITS
            out += s.table(
                level.number, layout.index(level, address), [raw], 0x1000, address & -level.span,
                flags,
            )  # fmt: skip
    return out


def single(raws: Iterable[int], first: int = BASE, last: int | None = None) -> VmaSums:
    """The sums of one VMA with these PTEs."""
    raws = list(raws)
    end = first + len(raws) * PAGE if last is None else last
    index = s.FIVE.index("pte", first)
    stream = s.batch() + s.vma(first, end) + down(s.FIVE, first, s.PTE)
    (vma,), outside = sums(s.FIVE, stream + s.table(s.PTE, index, raws, 0x2000, first) + s.end())
    assert not any(level.states for level in outside.entries.levels.values())
    return vma


@pytest.mark.parametrize("name", available())
def test_random_entries_are_summed_as_they_are_decoded(name: str) -> None:
    layout = load(name)
    for level in layout.levels:
        room = min(4 * level.entries, (layout.user_last + 1) // level.span)
        raws = list(values(layout, level.name, 2000, 7))[:room]
        vmas = summed(layout, level.name, raws)
        got = vmas.entries.levels[level.name]
        states: Counter[str] = Counter()
        mapped: Counter[str] = Counter()
        swapped: Counter[str] = Counter()
        kinds: Counter[str] = Counter()
        groups = 0
        for raw in raws:
            entry = decode(layout, level.name, raw)
            states[entry.state] += 1
            words = [word for word in ATTRIBUTE if holds(layout, entry, word)]
            if entry.state in MAPPED:
                mapped.update(words)
                groups += entry.contiguous
            elif entry.swap is not None:
                kinds[entry.swap.kind] += 1
                swapped.update(words)
        assert got.states == states
        assert got.mapped == mapped
        assert got.swapped == swapped
        assert vmas.entries.kinds == kinds
        assert sum(got.groups.values()) == groups
        assert runs(layout, level.name, raws) == (vmas.entries.runs, vmas.entries.run_pages)


def holds(layout: Layout, entry: object, word: str) -> bool:
    """Whether an entry has an attribute of that name."""
    from ptscope.decode.entry import Entry

    assert isinstance(entry, Entry)
    if word.startswith("access."):
        return entry.access is not None and bool(getattr(entry.access, word[7:]))
    if word.startswith("exec."):
        return has_attribute(layout, entry, word)
    return bool(getattr(entry, word))


def summed(layout: Layout, level: str, raws: list[int]) -> VmaSums:
    """The sums of entries of one level, in parts of at most a table, all in one VMA."""
    here = layout.level(level)
    out = s.batch() + s.vma(0, layout.user_last + 1)
    address = 0
    for first in range(0, len(raws), here.entries):
        part = raws[first : first + here.entries]
        out += down(layout, address, here.number)
        out += s.table(here.number, 0, part, 0x2000, address)
        address += here.entries * here.span
    (vma,), _ = sums(layout, out)
    return vma


def runs(layout: Layout, level: str, raws: list[int]) -> tuple[dict[int, int], dict[int, int]]:
    """Runs of frames, from single entries: counts and pages by logarithm of the length."""
    span = layout.level(level).span
    lengths: list[int] = []
    where = None
    for number, raw in enumerate(raws):
        entry = decode(layout, level, raw)
        if entry.state not in MAPPED or entry.special or entry.pa is None:
            continue
        pa = entry.pa | (number * span) & ((entry.mapping_size or span) - 1)
        if where == (number, pa):
            lengths[-1] += span // layout.page_size
        else:
            lengths.append(span // layout.page_size)
        where = (number + 1, (pa & -span) + span)
    counts: Counter[int] = Counter()
    pages: Counter[int] = Counter()
    for length in lengths:
        counts[length.bit_length() - 1] += 1
        pages[length.bit_length() - 1] += length
    return dict(counts), dict(pages)


def test_runs_go_on_over_tables_and_stop_at_gaps() -> None:
    frames = [7, 8, 9, 9, 10, 12, 11, 10, 100]
    vma = single([frame << 12 | LEAF for frame in frames] + [0, 102 << 12 | LEAF])
    assert vma.entries.runs == {0: 5, 1: 2}
    assert vma.entries.run_pages == {0: 5, 1: 5}

    first = BASE + PMD - 4 * PAGE
    index = s.FIVE.index("pte", first)
    stream = s.batch() + s.vma(first, first + PMD) + down(s.FIVE, first, s.PTE)
    stream += s.table(s.PTE, index, [(50 + i) << 12 | LEAF for i in range(4)], 0x2000, first)
    stream += s.table(s.PMD, 1, [0x3000 | s.TABLE_BITS], 0x1000, BASE + PMD)
    stream += s.table(s.PTE, 0, [(54 + i) << 12 | LEAF for i in range(12)], 0x3000, BASE + PMD)
    (vma,), _ = sums(s.FIVE, stream)
    assert vma.entries.run_pages == {4: 16}
    assert vma.entries.tables == {"pte": 2, "pmd": 1, "pud": 1, "p4d": 1}


def test_a_run_does_not_go_on_over_the_top_of_the_address_field() -> None:
    """The sum of the last frame's entry and a page is an entry with another bit set."""
    top = (1 << 52) - PAGE | 0x25
    (vma,), _ = sums(
        s.FIVE,
        s.batch() + s.vma(BASE, BASE + PMD) + down(s.FIVE, BASE, s.PTE)
        + s.table(s.PTE, 0, [top - PAGE, top, top + PAGE, top + 2 * PAGE], 0x2000, BASE),
    )  # fmt: skip
    assert vma.entries.run_pages == {1: 4}


def test_huge_pages_continue_runs_of_small_ones() -> None:
    huge = 0x40000000 | LEAF | 0x80
    stream = s.batch() + s.vma(BASE, BASE + 2 * PMD) + down(s.FIVE, BASE, s.PMD)
    stream += s.table(s.PMD, 0, [huge, 0x3000 | s.TABLE_BITS], 0x1000, BASE)
    stream += s.table(s.PTE, 0, [(0x40000000 + PMD) | LEAF], 0x3000, BASE + PMD)
    (vma,), _ = sums(s.FIVE, stream)
    assert vma.entries.runs == {9: 1}
    assert vma.entries.run_pages == {9: 513}
    assert vma.entries.levels["pmd"].states == {"leaf": 1, "table": 1}
    assert (vma.entries.small_ranges, vma.entries.small_range_pages) == (1, 1)


def test_inverted_frames_go_down() -> None:
    """PROT_NONE pages of x86-64 store their frames inverted."""
    inverted = [((frame << 12) ^ 0x000FFFFFFFFFF000) | 0x100 for frame in (5, 6, 7, 6)]
    assert single(inverted).entries.run_pages == {0: 1, 1: 3}


def test_special_entries_are_no_runs() -> None:
    assert single([5 << 12 | 0x225, 6 << 12 | 0x225]).entries.runs == {}


def test_small_ranges_are_those_wholly_inside() -> None:
    raws = [5 << 12 | LEAF]
    assert single(raws, BASE, BASE + PMD - PAGE).entries.small_ranges == 0
    assert single(raws, BASE + PAGE, BASE + 2 * PMD).entries.small_ranges == 0
    vma = single([5 << 12 | LEAF, 0, 0, 0, 0, 9 << 12 | LEAF], BASE, BASE + PMD)
    assert (vma.entries.small_ranges, vma.entries.small_range_pages) == (1, 2)


def test_a_vma_goes_on_in_the_next_batch_and_nothing_is_counted_twice() -> None:
    first = s.batch() + s.vma(BASE, BASE + PMD) + down(s.FIVE, BASE, s.PTE)
    first += s.table(s.PTE, 0, [5 << 12 | LEAF], 0x2000, BASE)
    again = s.batch(1) + s.vma(BASE, BASE + PMD, flags=s.AGAIN)
    again += down(s.FIVE, BASE + PAGE, s.PTE, s.AGAIN)
    again += s.table(s.PTE, 1, [6 << 12 | LEAF], 0x2000, BASE + PAGE) + s.end()
    (vma,), outside = sums(s.FIVE, first, again)
    assert vma.entries.levels["pte"].states == {"leaf": 2}
    assert vma.entries.tables == {"pte": 1, "pmd": 1, "pud": 1, "p4d": 1}
    assert vma.entries.run_pages == {1: 2}
    assert (vma.batches, vma.changed) == (2, False)
    assert outside.entries.tables == {}

    grown = again.replace(s.vma(BASE, BASE + PMD, flags=s.AGAIN),
                          s.vma(BASE, BASE + 2 * PMD, flags=s.AGAIN))
    (vma,), _ = sums(s.FIVE, first, grown)
    assert vma.changed


def test_a_table_counts_for_the_first_vma_that_it_maps() -> None:
    # A VMA in the middle of what the PTE table maps, a second one behind it in the same.
    one = BASE + 8 * PAGE
    stream = s.batch() + down(s.FIVE, BASE, s.PTE) + s.vma(one, one + PAGE)
    stream += s.table(s.PTE, 8, [5 << 12 | LEAF], 0x2000, one)
    stream += s.vma(one + PAGE, one + 2 * PAGE)
    stream += s.table(s.PTE, 9, [6 << 12 | LEAF], 0x2000, one + PAGE)
    # An empty table far away from every VMA, and one with a page.
    far = BASE + 64 * PMD
    stream += s.table(s.PMD, 64, [0x4000 | s.TABLE_BITS], 0x1000, far)
    stream += s.table(s.PMD, 70, [0x5000 | s.TABLE_BITS], 0x1000, far + 6 * PMD)
    stream += s.table(s.PTE, 0, [7 << 12 | LEAF], 0x5000, far + 6 * PMD)
    (first, second), outside = sums(s.FIVE, stream)
    assert first.entries.tables == {"pte": 1, "pmd": 1, "pud": 1, "p4d": 1}
    assert second.entries.tables == {}
    assert outside.entries.tables == {"pte": 2}
    assert outside.entries.levels["pte"].states == {"leaf": 1}


def test_entries_behind_the_end_of_a_vma_are_outside() -> None:
    stream = s.batch() + s.vma(BASE, BASE + 2 * PAGE) + down(s.FIVE, BASE, s.PTE)
    stream += s.table(s.PTE, 0, [(5 + i) << 12 | LEAF for i in range(5)], 0x2000, BASE)
    (vma,), outside = sums(s.FIVE, stream)
    assert vma.entries.levels["pte"].states == {"leaf": 2}
    assert vma.entries.run_pages == {1: 2}
    assert outside.entries.levels["pte"].states == {"leaf": 3}
    assert outside.entries.run_pages == {1: 3}


def test_without_vmas_everything_is_outside() -> None:
    stream = s.batch() + s.chain(BASE, 5 << 12 | LEAF) + s.end()
    vmas, outside = sums(s.FIVE, stream)
    assert vmas == []
    assert outside.entries.levels["pte"].mapped["dirty"] == 1
    assert outside.entries.tables == {"pte": 1, "pmd": 1, "pud": 1, "p4d": 1}
    assert outside.vma is None


def test_the_user_copy_is_not_counted() -> None:
    """Under PTI the root is there twice."""
    root = s.table(s.PGD, 0, [0x2000 | s.TABLE_BITS], 0x9000, 0, s.USER_PGD)
    _, outside = sums(s.PTI, s.batch() + root + s.chain(0, 5 << 12 | LEAF, layout=s.PTI))
    assert outside.entries.levels["pgd"].states == {"table": 1}


def test_candidates_for_the_huge_zero_page() -> None:
    clean = 0x25 | 0x80  # present, user, accessed, a huge page
    raws = [0x200000 | clean, 0x400000 | clean, 0x200000 | clean, 0x600000 | clean | 0x40]
    anonymous = s.vma(BASE, BASE + 4 * PMD)[:40] + bytes(24) + s.vma(0, 1)[64:64]
    anonymous = s.record(s.VMA, 0, s.vma(BASE, BASE + 4 * PMD)[8:48] + bytes(16))
    stream = s.batch() + anonymous + down(s.FIVE, BASE, s.PMD) + s.table(
        s.PMD, 0, raws, 0x1000, BASE)
    (vma,), _ = sums(s.FIVE, stream)
    assert vma.huge_frames == {0x200: 2, 0x400: 1}
    assert vma.huge_zero == 0

    summary = Summary(compiled(s.FIVE))
    summary.know_huge_zero(0x200)
    assert list(summary.add(buffer(stream))) == []
    known = summary.finish()
    assert known is not None
    assert (known.huge_zero, known.huge_frames) == (2, {})


def test_many_vmas_of_a_batch_come_in_their_order() -> None:
    stream = s.batch()
    for number in range(1000):
        stream += s.vma(BASE + number * PAGE, BASE + (number + 1) * PAGE)
    vmas, _ = sums(s.FIVE, stream)
    starts = [vma.vma.start for vma in vmas if isinstance(vma.vma, RawVma)]
    assert starts == [BASE + number * PAGE for number in range(1000)]
    assert all(not level.states for vma in vmas for level in vma.entries.levels.values())


@pytest.mark.parametrize("data", [b"", s.end(), s.batch(1), s.batch() + s.batch()])
def test_a_broken_batch(data: bytes) -> None:
    with pytest.raises(BadStream):
        sums(s.FIVE, data)
