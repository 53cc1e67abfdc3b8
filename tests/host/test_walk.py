# SPDX-License-Identifier: GPL-2.0-or-later
"""From raw entries to levels, mapping and permission; and what pagemap must say of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import click
import pytest
import streams as s
from ptscope.compare import Expected, compare, differences, expected
from ptscope.decode.layout import Layout
from ptscope.errors import BadStream, ChangedIdentity
from ptscope.raw.pagemap import Page
from ptscope.raw.records import RawEntry
from ptscope.source.base import RawLeaf, RawWalk
from ptscope.target.process import Pid, find_self
from ptscope.target.vma import Vma
from ptscope.views.text import printable
from ptscope.views.walk import WIDTH, render
from ptscope.walk import Walk, Walker

ADDRESS = 0x7FFE4C1F2123
AREA = Vma(0x7FFE4C000000, 0x7FFE4C400000, "rw-p", 0, "00:00", 0, "", 0x73)
HUGE = 1 << 7
NOT_NX = (1 << 63) - 1
BASE = 0x10000


def entries(
    leaf: int, last: int = s.PTE, layout: Layout = s.FIVE, address: int = ADDRESS
) -> tuple[RawEntry, ...]:
    """A consistent chain whose last entry, at level `last`, is `leaf`."""
    result = []
    levels = [level for level in layout.levels if level.number >= last]
    for position, level in enumerate(levels):
        table = BASE + 0x1000 * position
        raw = leaf if level.number == last else table + 0x1000 | s.TABLE_BITS
        index = layout.index(level, address)
        entry_pa = table + 8 * index
        result.append(RawEntry(level.number, index, raw, entry_pa, address & -level.span))
    return tuple(result)


@dataclass
class Fixed:
    """A source that gives the walks it was made with, one after the other."""

    layout: Layout | None
    walks: list[RawWalk]
    name: str = "module"

    def walk(self, pid: Pid, addresses: Sequence[int]) -> list[RawWalk]:
        return [self.walks.pop(0) for _ in addresses]


def walked(
    leaf: int,
    last: int = s.PTE,
    layout: Layout = s.FIVE,
    vma: Vma | None = AREA,
    user_pgd: RawEntry | None = None,
    address: int = ADDRESS,
) -> Walk:
    raw = RawWalk(address, entries(leaf, last, layout, address), user_pgd, vma, "read")
    (walk,) = Walker(Fixed(layout, [raw]), "kernel", None, "6.1").walk([address])
    return walk


def test_leaf_of_4_kib() -> None:
    walk = walked(0x5000 | s.LEAF_BITS)
    assert [step.level for step in walk.levels] == ["pgd", "p4d", "pud", "pmd", "pte"]
    assert walk.mapping.to_json() == {
        "state": "leaf",
        "level": "pte",
        "pa": "0x5123",
        "pfn": "0x5",
        "page_size": 4096,
        "mapping_size": 4096,
    }
    assert walk.effective is not None
    assert (walk.effective.write, walk.effective.exec) == (True, False)
    assert walk.effective.decided_by["exec"] == "pte"


def test_frame_of_a_huge_page_is_that_of_the_address() -> None:
    walk = walked(0x40000000 | HUGE | s.LEAF_BITS, s.PMD)
    offset = ADDRESS % (1 << 21)
    assert walk.mapping.pa == 0x40000000 + offset
    assert walk.mapping.pfn == 0x40000 + offset // 4096
    assert walk.mapping.page_size == 1 << 21
    giant = walked(0x80000000 | HUGE | s.LEAF_BITS, s.PUD)
    assert giant.mapping.pa == 0x80000000 + ADDRESS % (1 << 30)
    assert [step.entry is None for step in giant.levels] == [False, False, False, True, True]


def test_folded_level_is_listed_without_an_index() -> None:
    walk = walked(0x5000 | s.LEAF_BITS, layout=s.FOUR)
    p4d = walk.levels[1]
    assert (p4d.level, p4d.folded, p4d.index, p4d.entry) == ("p4d", True, None, None)
    assert "folded" in render(walk)


def test_hole() -> None:
    walk = walked(0, s.PMD, vma=None)
    assert (walk.mapping.state, walk.mapping.level, walk.mapping.pa) == ("none", "pmd", None)
    assert "the pmd entry is empty" in render(walk)


def test_swapped_page_has_no_physical_address() -> None:
    raw = 3 << 59 | ~(0x77 << 9) & 0x7FFFFFFFFFFFE00
    walk = walked(raw)
    assert (walk.mapping.state, walk.mapping.pa, walk.mapping.pfn) == ("swap", None, None)
    assert expected(walk) == Expected(swapped=True, swap_type=3, swap_offset=0x77)


def test_user_root_decides_execution_under_pti() -> None:
    chain = entries(0x5025, layout=s.PTI)
    root = chain[0]
    nx_root = replace(root, raw=root.raw | 1 << 63)
    user = replace(root, entry_pa=root.entry_pa + 0x1000)
    for user_pgd, executable in ((user, True), (None, False)):
        raw = RawWalk(ADDRESS, (nx_root, *chain[1:]), user_pgd, AREA, "read")
        (walk,) = Walker(Fixed(s.PTI, [raw]), "kernel", None, "6.1").walk([ADDRESS])
        assert walk.effective is not None
        assert walk.effective.exec is executable
    assert render(walk).count("pgd ") == 1


def test_user_root_that_points_elsewhere_is_a_contradiction() -> None:
    chain = entries(0x5025, layout=s.PTI)
    user = replace(chain[0], raw=0x99000 | s.TABLE_BITS)
    with pytest.raises(BadStream, match="no chain"):
        walked(0x5025, layout=s.PTI, user_pgd=user)


@pytest.mark.parametrize("where", range(4))
def test_entry_that_does_not_point_to_the_next_table(where: int) -> None:
    chain = list(entries(0x5025))
    chain[where] = replace(chain[where], raw=chain[where].raw + 0x1000)
    raw = RawWalk(ADDRESS, tuple(chain), None, AREA, "read")
    with pytest.raises(BadStream, match="no chain"):
        Walker(Fixed(s.FIVE, [raw]), "kernel", None, "6.1").walk([ADDRESS])


def test_walk_that_stops_too_early_or_too_late() -> None:
    chain = entries(0x5025)
    for some, words in (
        (chain[:3], "stops at a pud that is a table"),
        ((*chain[:3], replace(chain[3], raw=0), chain[4]), "pmd entry is none"),
    ):
        raw = RawWalk(ADDRESS, some, None, AREA, "read")
        with pytest.raises(BadStream, match=words):
            Walker(Fixed(s.FIVE, [raw]), "kernel", None, "6.1").walk([ADDRESS])


def test_json_has_the_keys_of_the_design() -> None:
    answer = json.loads(json.dumps(walked(0x5000 | s.LEAF_BITS, layout=s.FOUR).to_json()))
    assert set(answer) >= {
        "pid", "comm", "address", "source", "kernel", "layout", "levels", "mapping", "effective",
        "vma", "frame",
    }  # fmt: skip
    assert answer["address"] == hex(ADDRESS)
    assert [level["folded"] for level in answer["levels"]] == [False, True, False, False, False]
    assert answer["levels"][0]["raw"] == f"{0x11000 | s.TABLE_BITS:#018x}"
    assert set(answer["levels"][0]) == {
        "level", "index", "folded", "raw", "entry_pa", "decoded",
    }  # fmt: skip
    assert set(answer["effective"]) == {"read", "write", "exec", "user", "decided_by"}
    assert answer["vma"]["permissions"] == "rw-p"


def test_leaf_from_pagemap() -> None:
    page = Page(True, False, False, 5, None, None, True, True, False, False, False)
    raw = RawWalk(ADDRESS, (), None, AREA, "none", RawLeaf(page, 4096, None))
    source = Fixed(None, [raw, replace(raw, vma=replace(AREA, permissions="---p"))], "pagemap")
    walk, protected = Walker(source, "kernel", None, "6.1").walk([ADDRESS, ADDRESS])
    assert (walk.mapping.pa, walk.mapping.page_size, walk.effective) == (0x5123, None, None)
    assert protected.mapping.state == "protnone"
    assert walk.to_json()["leaves_only"] is True
    assert "leaves only" in render(walk)


def test_hidden_frame_is_no_frame() -> None:
    page = Page(True, False, True, None, None, None, True, True, False, False, False)
    raw = RawWalk(ADDRESS, (), None, AREA, "none", RawLeaf(page, 4096, 4096))
    (walk,) = Walker(Fixed(None, [raw], "pagemap"), "kernel", None, "6.1").walk([ADDRESS])
    assert (walk.mapping.state, walk.mapping.pa, walk.mapping.pfn) == ("leaf", None, None)
    assert walk.to_json()["frames_hidden"] is True
    assert "hidden" in render(walk)


def test_text_fits_80_columns() -> None:
    everything = (1 << 63) - 1 & ~(1 << 9) & 0xFFFFFFFFF000FFFF | 1 << 63
    for raw, last in ((0x5000 | s.LEAF_BITS, s.PTE), (0, s.PGD), (everything, s.PTE)):
        long_name = replace(AREA, name="/a/" + "long/" * 12 + "name", inode=7)
        text = click.unstyle(render(walked(raw, last, vma=long_name)))
        assert max(len(line) for line in text.splitlines()) <= WIDTH


def test_text_of_a_process_cannot_steer_the_terminal() -> None:
    assert printable("a\x1b[2Jb\n") == "a\\x1b[2Jb\\x0a"
    assert printable("\u202e\x9b\udcff é") == "\\u202e\\x9b\\udcff é"
    walk = walked(0x5000 | s.LEAF_BITS, vma=replace(AREA, name="/tmp/\x1b]0;x", inode=5))
    assert "\x1b" not in click.unstyle(render(replace(walk, pid=1, comm="\x1bc")))


SOFT_DIRTY, HUGETLB, PFNMAP = (s.FIVE.facts[f"vm.{n}"] for n in ("softdirty", "hugetlb", "pfnmap"))


def with_flags(flags: int) -> Vma:
    return replace(AREA, vm_flags=0x73 | flags)


def test_what_pagemap_must_say_of_a_present_page() -> None:
    assert expected(walked(0x5000 | s.LEAF_BITS)) == Expected(True, frame=5, soft_dirty=True)
    clean = 0x5025
    assert expected(walked(clean)) == Expected(True, frame=5)
    assert expected(walked(clean, vma=with_flags(SOFT_DIRTY))).soft_dirty
    assert expected(walked(clean | 1 << 10)).uffd_wp
    # pagemap shows it from 5.14 on
    for release, shown in (("5.13.0", False), ("5.10.0-46-amd64", False), ("5.14.0-rc1", True)):
        layout = replace(s.FIVE, release=release)
        assert expected(walked(clean | 1 << 10, layout=layout)).uffd_wp is shown
    none = 0x5025 & ~1 | 1 << 8
    protected = walked(none ^ 0xFFFFFFFFFF000)
    assert protected.mapping.state == "protnone"
    assert expected(protected) == Expected(True, frame=5)


def test_what_pagemap_must_say_of_huge_pages() -> None:
    sub = ADDRESS % (1 << 21) // 4096
    leaf = 0x40000000 | HUGE | s.LEAF_BITS
    assert expected(walked(leaf, s.PMD)) == Expected(True, frame=0x40000 + sub, soft_dirty=True)
    # It does not look at the soft-dirty bit of a hugetlb entry.
    hugetlb = expected(walked(leaf, s.PMD, vma=with_flags(HUGETLB)))
    assert hugetlb == Expected(True, frame=0x40000 + sub)


def test_what_pagemap_must_say_of_pages_that_are_not_there() -> None:
    assert expected(walked(0)) == Expected()
    assert expected(walked(0, vma=with_flags(SOFT_DIRTY))) == Expected(soft_dirty=True)
    assert expected(walked(0, s.PMD, vma=None)) == Expected()
    device = expected(walked(0x5025, vma=with_flags(PFNMAP)))
    assert (device.present, device.note) == (False, "pagemap skips VM_PFNMAP mappings")


def swap(kind: str, offset: int) -> int:
    number = s.FIVE.facts[f"swap.kind.{kind}"]
    return number << 59 | ~(offset << 9) & 0x7FFFFFFFFFFFE00


def test_what_pagemap_must_say_of_special_entries() -> None:
    number = s.FIVE.facts["swap.kind.migration_write"]
    young = 1 << s.FIVE.runtime["swap_pfn_bits"]
    # Accessed and dirty above the frame number are not shown.
    assert expected(walked(swap("migration_write", 0x123 | young))) == Expected(
        swapped=True, swap_type=number, swap_offset=0x123
    )
    sub = ADDRESS % (1 << 21) // 4096
    huge = expected(walked(swap("migration_write", 0x200) & ~HUGE, s.PMD))
    assert huge.swap_offset == 0x200 + sub
    in_hugetlb = expected(walked(swap("migration_write", 1), s.PMD, vma=with_flags(HUGETLB)))
    assert (in_hugetlb.swapped, in_hugetlb.present) == (False, False)
    marker = expected(walked(swap("marker", 1)))
    assert (marker.swapped, marker.uffd_wp, marker.swap_offset) == (True, True, 1)


PRESENT = Page(True, False, False, 5, None, None, True, True, False, False, False)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"present": False, "frame": None}, ["present", "frame"]),
        ({"frame": 6}, ["frame"]),
        ({"soft_dirty": False}, ["soft-dirty"]),
        ({"uffd_wp": True}, ["uffd-wp"]),
        ({"swapped": True}, ["swapped"]),
        ({"swap_type": 0}, ["swap type"]),
        ({"swap_offset": 0}, ["swap offset"]),
        ({"exclusive": False, "file": True}, []),
    ],
)
def test_each_difference_is_named(change: dict[str, object], what: list[str]) -> None:
    page = replace(PRESENT, **change)  # type: ignore[arg-type]
    found = differences(Expected(True, frame=5, soft_dirty=True), page)
    assert [difference.what for difference in found] == what


def test_hidden_numbers_are_not_compared() -> None:
    page = replace(PRESENT, hidden=True, frame=None)
    assert differences(Expected(True, frame=5, soft_dirty=True), page) == ()


def test_a_difference_counts_when_it_lasts() -> None:
    """Our own stack, of which pagemap says the truth, and walks that say something else."""
    process = find_self()
    wrong = RawWalk(0x1000, entries(0x5025, address=0x1000), None, AREA, "read")
    right = RawWalk(0x1000, entries(0, address=0x1000), None, None, "write")
    for later, attempts, agrees in (
        ([right], 2, True),
        ([wrong, right], 3, True),
        ([wrong, wrong], 3, False),
    ):
        walker = Walker(Fixed(s.FIVE, [wrong, *later]), "self", process, "6.1")
        (result,) = compare(walker, process, walker.walk([0x1000]))
        assert (result.attempts, result.agrees) == (attempts, agrees)


def test_a_program_executed_since_the_walk_is_not_compared() -> None:
    process = replace(find_self(), _mm=(1, 2, 3, 4))
    right = RawWalk(0x1000, entries(0, address=0x1000), None, None, "write")
    walker = Walker(Fixed(s.FIVE, [right]), "self", find_self(), "6.1")
    walks = walker.walk([0x1000])
    with pytest.raises(ChangedIdentity, match="executed"):
        list(compare(walker, process, walks))
