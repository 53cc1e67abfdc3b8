# SPDX-License-Identifier: GPL-2.0-or-later
"""What changed between two snapshots, against a comparison page by page with the reference decoder.

The oracle here knows nothing of streams, runs or C: it decodes both entries of a page and names
what differs.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import streams as s
from click import unstyle
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from ptscope.cli import cli, run
from ptscope.decode.entry import Entry, decode
from ptscope.decode.layout import Layout, load
from ptscope.diff.events import Tables
from ptscope.diff.merge import common, merge
from ptscope.diff.report import Area as Told
from ptscope.diff.report import Names, Page, Range, Totals, report
from ptscope.diff.sides import Sides
from ptscope.diff.words import ATTRIBUTES, words
from ptscope.snapshot.reader import Snapshot
from ptscope.source.snapshot import SnapshotStream
from ptscope.target.vma import Vma
from ptscope.views.diff import totals_lines
from spaces import HEADER, Area, Space, snapshot

BASE = 0x55D155600000
PAGE = 0x1000
HUGE = 0x200000
LEAF = s.LEAF_BITS
WRITE, ACCESSED, DIRTY, SOFT, PSE, NX = 2, 0x20, 0x40, 0x800, 0x80, 1 << 63
PROTNONE = 0x8000000000000100 | LEAF & ~0x80000000000000EF  # with the global bit, not present


def swapped(kind: int, offset: int) -> int:
    """An x86 swap entry (arch/x86/include/asm/pgtable_64.h): the offset is stored inverted."""
    return kind << 59 | ((~offset & (1 << 50) - 1) << 9)


def leaf(frame: int, bits: int = LEAF) -> int:
    return bits | frame << 12


def opened(data: bytes) -> Snapshot:
    return Snapshot(io.BytesIO(data), "x.pts")


def compare(
    old: bytes, new: bytes, each_page: bool = False
) -> tuple[list[Told | Range | Page], Totals, tuple[Tables, Tables]]:
    with opened(old) as a, opened(new) as b:
        sides = Sides.of(a, b)
        totals = Totals()
        tables = Tables({}), Tables({})
        pieces = merge(SnapshotStream(a), SnapshotStream(b), *tables, sides.frames)
        told = list(report(pieces, Names(a), Names(b), sides.page, each_page, totals))
    return told, totals, tables


def ranges(old: Space, new: Space, **changes: object) -> list[tuple[int, int, tuple[str, ...]]]:
    told, _, _ = compare(snapshot(old), snapshot(new, **changes))  # type: ignore[arg-type]
    return [
        (item.start, (item.end - item.start) // PAGE, words(item.change))
        for item in told
        if isinstance(item, Range)
    ]


def space(layout: Layout = s.FIVE, **pages: int) -> Space:
    """Pages by their number from BASE on: ``p3=raw``."""
    made = Space(layout)
    for name, raw in pages.items():
        made.put(BASE + int(name[1:]) * layout.page_size, raw)
    return made


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (0, leaf(5), ("page appeared",)),
        (leaf(5), 0, ("page vanished",)),
        (leaf(5), leaf(6), ("moved frame",)),
        (leaf(5, LEAF & ~WRITE), leaf(5), ("became writable",)),
        (leaf(5), leaf(5, LEAF & ~WRITE), ("became read-only",)),
        (leaf(5), leaf(6, LEAF & ~WRITE), ("moved frame", "became read-only")),
        (leaf(5), leaf(5, LEAF & ~NX), ("became executable",)),
        (leaf(5, LEAF & ~NX), leaf(5), ("no longer executable",)),
        (leaf(5, LEAF & ~ACCESSED), leaf(5), ("accessed since",)),
        (leaf(5), leaf(5, LEAF & ~ACCESSED), ("accessed bit cleared",)),
        (leaf(5, LEAF & ~DIRTY), leaf(5), ("dirtied",)),
        (leaf(5, LEAF & ~SOFT), leaf(5), ("soft-dirty since",)),
        (leaf(5), leaf(5, LEAF & ~SOFT), ("soft-dirty cleared",)),
        (leaf(5), swapped(0, 9), ("swapped out", "soft-dirty cleared")),
        (swapped(0, 9), leaf(5, LEAF & ~SOFT), ("swapped in",)),
        (swapped(0, 9), swapped(0, 10), ("another swap slot",)),
        (0, swapped(1, 3), ("swap entry appeared",)),
        (swapped(1, 3), 0, ("swap entry vanished",)),
        (leaf(5), leaf(5, LEAF ^ 4), ("no longer the user's",)),
        (leaf(5), leaf(5, LEAF | 1 << 59), ("another protection key",)),
        (leaf(5), leaf(5, LEAF | 0x10), ("other bits",)),
    ],
)
def test_the_words(old: int, new: int, expected: tuple[str, ...]) -> None:
    if "protection key" in expected[0] and not s.FIVE.runtime["pkeys"]:
        expected = ("other bits",)
    assert ranges(space(p3=old), space(p3=new)) == [(BASE + 3 * PAGE, 1, expected)]


def test_protection_none_and_back() -> None:
    none = decode(s.FIVE, "pte", PROTNONE | 5 << 12)
    assert none.state == "protnone"
    # x86 keeps the address inverted there (pgtable-invert.h)
    raw = next(
        r for r in (PROTNONE | 5 << 12, (PROTNONE | 5 << 12) ^ ((1 << 52) - 1 & ~0xFFF))
        if decode(s.FIVE, "pte", r).pfn == 5
    )
    assert ranges(space(p0=leaf(5)), space(p0=raw))[0][2][0] == "protection none"
    assert ranges(space(p0=raw), space(p0=leaf(5)))[0][2][0] == "accessible again"


def test_equal_spaces_differ_in_nothing() -> None:
    told, totals, tables = compare(snapshot(space(p1=leaf(1))), snapshot(space(p1=leaf(1))))
    assert told == []
    assert not totals.areas
    assert tables[0] == tables[1] == Tables({"p4d": 1, "pud": 1, "pmd": 1, "pte": 1})


def test_huge_pages_are_told_by_what_became_of_their_pages() -> None:
    small, huge = Space(s.FIVE), Space(s.FIVE)
    for page in range(512):
        small.put(BASE + page * PAGE, leaf(0x400 + page))
    huge.put(BASE, leaf(0x400, LEAF | PSE), "pmd")
    assert ranges(small, huge) == [(BASE, 512, ("became huge",))]
    assert ranges(huge, small) == [(BASE, 512, ("split",))]
    assert ranges(Space(s.FIVE), huge) == [(BASE, 512, ("huge page appeared",))]
    assert ranges(huge, Space(s.FIVE)) == [(BASE, 512, ("huge page vanished",))]
    small.put(BASE + 7 * PAGE, leaf(0x999))
    del small.entries["pte", BASE + 9 * PAGE]
    assert ranges(huge, small) == [
        (BASE, 7, ("split",)),
        (BASE + 7 * PAGE, 1, ("split", "moved frame")),
        (BASE + 8 * PAGE, 1, ("split",)),
        (BASE + 9 * PAGE, 1, ("huge page vanished",)),
        (BASE + 10 * PAGE, 502, ("split",)),
    ]


def test_frames_are_not_compared_between_boots() -> None:
    old, new = space(p0=leaf(5), p1=swapped(0, 1)), space(p0=leaf(6), p1=swapped(0, 2))
    assert len(ranges(old, new)) == 2
    assert ranges(old, new, boot_id="another") == []
    assert ranges(old, space(p0=leaf(6, LEAF & ~WRITE), p1=swapped(0, 2)), boot_id="another") == [
        (BASE, 1, ("became read-only",))
    ]


def test_kernels_with_other_bits_for_the_same_things() -> None:
    """What entries mean is compared: nothing changed, although hardly a bit is the same."""
    arm = load("debian-6.12-arm64")
    old = Space(s.FIVE)
    new = Space(arm)
    address = 0x5555_5560_0000
    arm_leaf = next(raw for raw in (0x0060000000000FC3 | 5 << 12, 0x0060000000000F43 | 5 << 12)
                    if decode(arm, "pte", raw).state == "leaf")
    mine, theirs = decode(s.FIVE, "pte", leaf(5)), decode(arm, "pte", arm_leaf)
    assert theirs.access is not None
    old.put(address, leaf(5))
    new.put(address, arm_leaf)
    new.put(address + PAGE, arm_leaf)
    told, totals, _ = compare(snapshot(old), snapshot(new, boot_id="another"))
    found = {item.start: words(item.change) for item in told if isinstance(item, Range)}
    assert found.pop(address + PAGE) == ("page appeared",)
    assert "other bits" not in found.get(address, ())
    assert set(found.get(address, ())) == oracle(mine, theirs, frames=False, address=address)
    assert totals.changed == 1 + bool(oracle(mine, theirs, frames=False, address=address))


def test_pages_of_other_sizes() -> None:
    """16 KiB pages of one kernel beside 4 KiB pages of another: told by the smaller ones."""
    big = load("debian-6.12-arm64-16k")
    raw = 0x0060000000000F43
    old, new = Space(s.FIVE), Space(big)
    for page in range(2):
        old.put(BASE + page * PAGE, leaf(5))
    new.put(BASE, raw)
    told, _, _ = compare(snapshot(old), snapshot(new, boot_id="another"))
    found = [
        (i.start, i.end, words(i.change)[0]) for i in told if isinstance(i, Range)
    ]
    assert [item[:2] for item in found] == [
        (BASE, BASE + 2 * PAGE), (BASE + 2 * PAGE, BASE + 4 * PAGE)]
    assert [item[2] for item in found] == ["became huge", "page appeared"]


# The oracle.

MAPPED = ("leaf", "protnone", "splitting")


def frame_at(entry: Entry, address: int) -> int | None:
    if entry.pa is None or entry.mapping_size is None:
        return None
    return entry.pa | (address & (entry.mapping_size - 1))


def oracle(old: Entry, new: Entry, frames: bool, address: int) -> set[str]:
    """Some words for what differs; those of states are left out where two states differ."""
    found: set[str] = set()
    if old.state in MAPPED and new.state in MAPPED:
        assert old.page_size
        assert new.page_size
        if old.page_size != new.page_size:
            found.add("became huge" if old.page_size < new.page_size else "split")
    if frames:
        one, two = frame_at(old, address), frame_at(new, address)
        if None not in (one, two) and one != two:
            found.add("moved frame")
        if old.state == new.state == "swap" and old.swap != new.swap:
            found.add("another swap slot")
    if old.state == new.state and (old.swap and old.swap.kind) != (new.swap and new.swap.kind):
        found.add("another kind of special entry")
    if None not in (old.pkey, new.pkey) and old.pkey != new.pkey:
        found.add("another protection key")
    for name, gained, lost in ATTRIBUTES:
        leaves = name.startswith("access.") or name in ("contiguous", "shadow_stack")
        if leaves and not old.state == new.state == "leaf":
            continue
        before, after = (
            getattr(entry.access, name[7:]) if name.startswith("access.") else getattr(entry, name)
            for entry in (old, new)
        )
        if None not in (before, after) and before != after:
            found.add(gained if after else lost)
    return found


STATES = {
    ("none", "leaf"): "page appeared",
    ("leaf", "none"): "page vanished",
    ("leaf", "swap"): "swapped out",
    ("swap", "leaf"): "swapped in",
    ("none", "swap"): "swap entry appeared",
    ("swap", "none"): "swap entry vanished",
}


def expected(old: Space, new: Space, frames: bool) -> Iterator[tuple[int, set[str]]]:
    """Each page that changed, with its words, by looking at every page there is."""
    layout = old.layout
    pages = set()
    for side in (old, new):
        for name, start in side.entries:
            pages |= set(range(start, start + layout.level(name).span, PAGE))
    for address in sorted(pages):
        entries = []
        raws = []
        for side in (old, new):
            found = side.page(address)
            level, raw = (found[0].name, found[1]) if found else ("pte", 0)
            entries.append(decode(layout, level, raw))
            raws.append((level, raw))
        a, b = entries
        found_words = oracle(a, b, frames, address)
        if a.state != b.state:
            word = STATES.get((a.state, b.state), "?")
            large = max(e.page_size or 0 for e in (a, b) if e.state in MAPPED) > PAGE if (
                a.state in MAPPED) is not (b.state in MAPPED) else False
            found_words.add(f"huge {word}" if large and word.startswith("page") else word)
        if not found_words and raws[0] != raws[1] and raws[0][0] == raws[1][0] and frames:
            found_words.add("other bits")
        if found_words:
            yield address, found_words


FRAMES = st.integers(0, 3)
LEAVES = st.builds(
    lambda frame, bits: leaf(frame, LEAF ^ bits),
    FRAMES,
    st.sampled_from([0, 0, 0, WRITE, ACCESSED, DIRTY, SOFT, NX, WRITE | DIRTY, 1 << 9, 0x10]),
)
RAWS = st.one_of(st.just(0), LEAVES, LEAVES, st.builds(swapped, st.integers(0, 1), FRAMES))
HUGES = st.builds(
    lambda frame, bits: leaf(frame * 512, (LEAF | PSE) ^ bits), FRAMES,
    st.sampled_from([0, WRITE, DIRTY]),
)
# Runs of pages: where from, how many, what; then huge pages over some of them.
SPACES = st.tuples(
    st.lists(st.tuples(st.integers(0, 1300), st.integers(1, 9), RAWS), max_size=12),
    st.lists(st.tuples(st.integers(0, 2), HUGES), max_size=2),
)


def made(spec: tuple[list[tuple[int, int, int]], list[tuple[int, int]]]) -> Space:
    runs, huges = spec
    out = Space(s.FIVE)
    for first, count, raw in runs:
        for page in range(first, first + count):
            out.put(BASE + page * PAGE, raw + (page << 12 if raw & 1 else 0))
    for number, raw in huges:
        start = BASE + number * HUGE
        for key in [k for k in out.entries if start <= k[1] < start + HUGE]:
            del out.entries[key]
        out.put(start, raw, "pmd")
    out.entries = {key: raw for key, raw in out.entries.items() if raw}
    return out


@given(SPACES, SPACES, st.booleans(), st.sampled_from([1, 3, 1 << 30]))
@settings(max_examples=120)
def test_every_page_is_told_as_the_oracle_says(
    old_spec: object, new_spec: object, same_boot: bool, most: int
) -> None:
    old, new = made(old_spec), made(new_spec)  # type: ignore[arg-type]
    wanted = dict(expected(old, new, same_boot))
    files = (
        snapshot(old, most, chunk=700),
        snapshot(new, boot_id=HEADER.boot_id if same_boot else "another"),
    )
    told, totals, _ = compare(*files, each_page=True)
    by_page: dict[int, set[str]] = {}
    for item in told:
        if isinstance(item, Page):
            for page in range(item.address, item.address + item.size, PAGE):
                assert page not in by_page
                by_page[page] = set(words(item.change))
    assert by_page == wanted

    merged, whole, _ = compare(*files)
    by_range = {}
    last: Range | None = None
    for item in merged:
        if not isinstance(item, Range):
            continue
        if last is not None:
            assert last.end <= item.start
            assert last.end < item.start or last.change != item.change or last.area != item.area
        last = item
        for page in range(item.start, item.end, PAGE):
            by_range[page] = set(words(item.change))
    assert by_range == wanted
    assert whole.pages == totals.pages
    assert whole.changed == totals.changed


def test_a_gigantic_page_costs_no_more_than_a_small_one() -> None:
    old, new = Space(s.FIVE), Space(s.FIVE)
    new.put(1 << 45, leaf(0, LEAF | PSE) | 0x40000000, "pud")
    old.put((1 << 45) + 5 * PAGE, LEAF)
    told, totals, _ = compare(snapshot(old), snapshot(new))
    found = [(i.start, i.end, words(i.change)[0]) for i in told if isinstance(i, Range)]
    assert [item[2] for item in found] == [
        "huge page appeared", "became huge", "huge page appeared"]
    assert (found[0][0], found[-1][1]) == (1 << 45, (1 << 45) + (1 << 30))
    assert totals.changed == 1 << 18


# VMAs.

def areas(old: list[Area], new: list[Area]) -> list[tuple[int, int, tuple[str, ...]]]:
    told, _, _ = compare(
        snapshot(Space(s.FIVE, areas=old)), snapshot(Space(s.FIVE, areas=new)))
    return [(item.start, item.end, item.changes) for item in told if isinstance(item, Told)]


A = Area(BASE, BASE + 4 * PAGE)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ([A], [A], []),
        ([], [A], [(0, 4, ("VMA appeared",))]),
        ([A], [], [(0, 4, ("VMA vanished",))]),
        ([A], [Area(BASE, BASE + 6 * PAGE)], [(4, 6, ("VMA grew",))]),
        ([A], [Area(BASE - PAGE, BASE + 4 * PAGE)], [(-1, 0, ("VMA grew",))]),
        ([Area(BASE, BASE + 6 * PAGE)], [A], [(4, 6, ("VMA shrank",))]),
        ([A], [Area(BASE + PAGE, BASE + 4 * PAGE)], [(0, 1, ("VMA shrank",))]),
        ([A], [Area(BASE, BASE + 4 * PAGE, 0x71)], [(0, 4, ("permissions rw-p became r--p",))]),
        (
            [A],
            [Area(BASE, BASE + PAGE), Area(BASE + PAGE, BASE + 4 * PAGE, 0x75)],
            [(1, 4, ("permissions rw-p became r-xp",))],
        ),
        ([A, Area(BASE + 9 * PAGE, BASE + 10 * PAGE)], [A], [(9, 10, ("VMA vanished",))]),
        ([A], [Area(BASE + 9 * PAGE, BASE + 10 * PAGE)], [
            (0, 4, ("VMA vanished",)), (9, 10, ("VMA appeared",))]),
    ],
)  # fmt: skip
def test_what_became_of_vmas(
    old: list[Area], new: list[Area], told: list[tuple[int, int, tuple[str, ...]]]
) -> None:
    wanted = [(BASE + first * PAGE, BASE + last * PAGE, words) for first, last, words in told]
    # `streams.vma` gives every VMA page 2 of the file, so parts of it are other parts of the file.
    found = [
        (start, end, tuple(w for w in changes if w != "another part of the file"))
        for start, end, changes in areas(old, new)
    ]
    assert [item for item in found if item[2]] == wanted


def test_a_vma_that_moved_is_found_again() -> None:
    old = Space(s.FIVE, areas=[A])
    new = Space(s.FIVE, areas=[Area(BASE + 100 * PAGE, BASE + 104 * PAGE)])
    _, totals, _ = compare(snapshot(old), snapshot(new))
    ((before, after),) = totals.moved
    assert (before.start, after.start) == (BASE, BASE + 100 * PAGE)


def test_pages_are_counted_with_the_vma_that_they_are_in() -> None:
    old = Space(s.FIVE, areas=[A, Area(A.end, A.end + 4 * PAGE, 0x71)])
    new = Space(s.FIVE, areas=list(old.areas))
    for page in range(2, 7):
        new.put(BASE + page * PAGE, leaf(page))
    told, totals, _ = compare(snapshot(old), snapshot(new))
    assert [(area.start, area.changed) for area in totals.areas] == [(BASE, 2), (A.end, 3)]
    assert [(i.start, i.end) for i in told if isinstance(i, Range)] == [
        (BASE + 2 * PAGE, A.end), (A.end, A.end + 3 * PAGE)]


def test_only_what_both_were_asked_for() -> None:
    old, new = space(p0=leaf(0), p5=leaf(5)), space(p5=leaf(5), p6=leaf(6), p9=leaf(9))
    some = ((BASE + 5 * PAGE, BASE + 7 * PAGE - 1),)
    told, _, _ = compare(snapshot(old), snapshot(new, ranges=some))
    assert [(i.start, words(i.change)) for i in told if isinstance(i, Range)] == [
        (BASE + 6 * PAGE, ("page appeared",))]


@given(*[st.lists(st.integers(0, 60), max_size=8, unique=True)] * 2)
def test_ranges_in_common(old: list[int], new: list[int]) -> None:
    sides = [
        [(a, b) for a, b in zip(sorted(x)[::2], sorted(x)[1::2], strict=False)] for x in (old, new)
    ]
    both = {n for n in range(61) if all(any(a <= n <= b for a, b in side) for side in sides)}
    found = [n for a, b in common(*sides) for n in range(a, b + 1)]
    assert sorted(found) == sorted(both)
    assert len(found) == len(both)


# The command.

def written(folder: Path, name: str, data: bytes) -> str:
    path = folder / name
    path.write_bytes(data)
    return str(path)


def test_status_and_text(tmp_path: Path) -> None:
    maps = f"{BASE:x}-{BASE + 4 * PAGE:x} rw-p 00002000 08:01 77   /usr/bin/cat\n".encode()
    old, new = Space(s.FIVE, areas=[A]), Space(s.FIVE, areas=[A])
    old.put(BASE, leaf(7, LEAF & ~WRITE))
    new.put(BASE, leaf(8))
    new.put(BASE + PAGE, leaf(9))
    a = written(tmp_path, "a", snapshot(old, maps=maps))
    b = written(tmp_path, "b", snapshot(new, maps=maps))
    assert run(["diff", a, a]) == 0
    assert run(["diff", a, b]) == 1
    result = CliRunner().invoke(cli, ["diff", a, b], standalone_mode=False)
    assert result.return_value == 1
    assert f"{BASE:#x}-{BASE + 4 * PAGE:#x} rw-p /usr/bin/cat\n" in result.output
    assert f"{BASE:#x}-{BASE + PAGE:#x}       1 moved frame, became writable\n" in result.output
    assert f"{BASE + PAGE:#x}-{BASE + 2 * PAGE:#x}       1 page appeared\n" in result.output
    assert "in all 2 pages of 4 KiB" in result.output
    assert all(len(line) <= 100 for line in result.output.splitlines())
    same = CliRunner().invoke(cli, ["diff", a, a], standalone_mode=False)
    assert "nothing changed" in same.output

    lines = [json.loads(line) for line in CliRunner().invoke(
        cli, ["diff", a, b, "--json"], standalone_mode=False).output.splitlines()]
    assert [line["type"] for line in lines] == ["files", "range", "range", "vma", "total"]
    assert lines[0]["frames_compared"] is True
    assert lines[-1]["pages"] == {"moved frame": 1, "became writable": 1, "page appeared": 1}
    assert lines[3]["new"]["name"] == "/usr/bin/cat"
    pages = [json.loads(line) for line in CliRunner().invoke(
        cli, ["diff", a, b, "--pages", "--json"], standalone_mode=False).output.splitlines()]
    assert pages[1] == {
        "type": "page", "address": hex(BASE), "size": PAGE,
        "changes": ["moved frame", "became writable"],
        "old": {"level": "pte", "raw": f"{leaf(7, LEAF & ~WRITE):#018x}"},
        "new": {"level": "pte", "raw": f"{leaf(8):#018x}"},
    }  # fmt: skip


def test_a_process_and_the_kernel_half_have_nothing_in_common(tmp_path: Path) -> None:
    kernel = HEADER.target.__class__(None, None, None, None, False)
    a = written(tmp_path, "a", snapshot(space(p0=leaf(1))))
    b = written(tmp_path, "b", snapshot(space(p0=leaf(1)), target=kernel))
    assert run(["diff", a, b]) == 2
    assert run(["diff", "-", "-"]) == 2


def test_notes(tmp_path: Path) -> None:
    base = snapshot(space(p0=leaf(1)))
    other = HEADER.target.__class__(43, "dog", "/usr/bin/dog", 99, False)
    exec_ = HEADER.target.__class__(42, "dog", "/usr/bin/dog", 1234, False)
    for changes, note in (
        ({"boot_id": "x"}, "of two boots"),
        ({"target": other}, "of two processes"),
        ({"target": exec_}, "executed another program"),
        ({"time": "2020"}, "OLD was taken after NEW"),
        ({"ranges": ((0, 1 << 40),)}, "only addresses that are in both"),
        ({"with_vmas": False}, "one has no VMAs"),
    ):
        with opened(base) as a, opened(snapshot(space(p0=leaf(1)), **changes)) as b:
            assert any(note in line for line in Sides.of(a, b).notes), note
    with opened(base) as a, opened(base) as b:
        assert Sides.of(a, b).notes == ()


def test_holes_cost_nothing() -> None:
    """A hundred pages, spread over all addresses: as many pieces as pages, no more."""
    old, new = Space(s.FIVE), Space(s.FIVE)
    for number in range(100):
        old.put(number * (1 << 49) + number * PAGE, leaf(number))
        new.put(number * (1 << 49) + number * PAGE, leaf(number, LEAF ^ WRITE))
    with opened(snapshot(old)) as a, opened(snapshot(new)) as b:
        pieces = list(merge(SnapshotStream(a), SnapshotStream(b), Tables({}), Tables({}), True))
    assert len(pieces) == 100
    assert all(piece.end - piece.start == PAGE for piece in pieces)


def test_many_changes_need_no_more_room_than_few() -> None:
    """More runs than one call of the C side has room for."""
    old, new = Space(s.FIVE), Space(s.FIVE)
    wide = 512 * 3
    for page in range(wide):
        old.put(BASE + page * PAGE, leaf(page))
        new.put(BASE + page * PAGE, leaf(page, LEAF ^ (WRITE if page % 2 else DIRTY)))
    found = ranges(old, new)
    assert len(found) == wide
    assert {item[1] for item in found} == {1}


def test_names_of_any_length_fit_80_columns() -> None:
    vma = Vma(1 << 46, (1 << 46) + (1 << 40), "rw-s", 0, "fd:01", 7, "/tmp/" + "d" * 200 + "/end")
    totals = Totals(areas=[Told(vma.start, vma.end, vma, vma, ())], moved=[(vma, vma)])
    sides = Sides(HEADER, HEADER, "a", "b", True, 4096, ())
    lines = [unstyle(line) for line in totals_lines(totals, (Tables({}), Tables({})), sides)]
    assert max(map(len, lines)) <= 80
    assert sum(line.endswith("/end") for line in lines) == 2
