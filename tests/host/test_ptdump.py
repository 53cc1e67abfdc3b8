# SPDX-License-Identifier: GPL-2.0-or-later
"""The reader of the kernel's own dump, and the rules by which ours becomes the same ranges."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "guest"))

import ptdump
from ptdump import PGD, PMD, PTE, ROOF, Facts, Marker, Range, Tables

BITS = {
    name: 1 << bit for name, bit in {
        "present": 0, "write": 1, "user": 2, "pwt": 3, "pcd": 4, "accessed": 5, "dirty": 6,
        "huge": 7, "pat": 7, "global": 8, "protnone": 8, "nx": 63}.items()
}
FACTS = Facts(BITS, 0x000F_FFFF_FFFF_F000, 5)
PAGE = 4096
HUGE = 512 * PAGE
TABLE = 0x67
"""present, write, user, accessed, dirty."""
NX = 1 << 63

TEXT = """\
---[ User Space ]---
0x0000000000000000-0x0000000000400000           4M                               pmd
0x0000000000400000-0x0000000000402000           8K USR ro                 x  pte
0x0000000000402000-0x0000000000600000        2040K                               pte
0x0000000000600000-0x0000000000800000           2M USR RW         PSE         NX pmd
"""


def aligned(text: str) -> str:
    """The flags in their columns: 30 characters between size and level."""
    lines = []
    for line in text.splitlines():
        head, size, rest = line[:40], line[40:51], line[51:]
        words = rest.split()
        level = words.pop() if words else ""
        flags = ""
        if words:
            for yes, no in (("USR ", "    "), ("RW ", "ro "), ("PWT ", "    "), ("PCD ", "    "),
                            ("PSE ", "    "), ("PAT ", "    "), ("GLB ", "    "), ("NX ", "x  ")):
                flags += yes if yes.strip() in words else no
        lines.append(line if line.startswith("---") else f"{head}{size}{flags:30}{level}")
    return "\n".join(lines)


def tables() -> Tables:
    """Two pages of code and a huge page."""
    made = Tables(FACTS)
    for level in range(PGD, PMD):
        made.entries[level][0] = 0x1000 * (level + 1) | TABLE
    made.entries[PMD][2 * HUGE] = 0x9000 | TABLE
    made.entries[PMD][3 * HUGE] = 0x4000_0000 | TABLE | BITS["huge"] | NX
    made.entries[PTE][2 * HUGE] = 0x1234_5000 | 0x25
    made.entries[PTE][2 * HUGE + PAGE] = 0x7777_7000 | 0x25
    return made


def first_ranges(made: Tables, count: int) -> list[Range]:
    span = 1 << made.span_shift(PGD)
    return list(made.ranges(made.notes(0, span - 1), ROOF))[:count]


def test_the_text_is_read() -> None:
    lines = ptdump.parse(aligned(TEXT))
    assert lines[0] == Marker("User Space")
    code = lines[2]
    assert isinstance(code, Range)
    assert (code.start, code.end, code.level) == (0x400000, 0x402000, "pte")
    assert code.flags.split() == ["USR", "ro", "x"]


@pytest.mark.parametrize(
    "line", ["garbage", "0x0-0x1000 4K pte",
             "0x0000000000000000-0x0000000000002000           4K " + " " * 30 + "pte"])
def test_a_line_that_is_none_of_the_kernel_s_is_not_passed_over(line: str) -> None:
    with pytest.raises(AssertionError):
        ptdump.parse(line)


def test_ours_are_the_same_ranges() -> None:
    theirs = ptdump.parse(aligned(TEXT))
    assert ptdump.differences(theirs, first_ranges(tables(), 4)) == []


def test_what_is_not_printed_ends_a_range_too() -> None:
    made = tables()
    made.entries[PTE][2 * HUGE] &= ~BITS["accessed"]
    (first, second) = first_ranges(made, 3)[1:]
    assert (first.end, first.flags) == (second.start, second.flags)


def test_a_permission_denied_above_ends_a_range() -> None:
    made = tables()
    for page in range(0, 2 * HUGE, PAGE):
        made.entries[PTE][2 * HUGE + page] = 0x1000_0000 + page | 0x67
    made.entries[PMD][3 * HUGE] = 0xA000 | TABLE
    assert first_ranges(made, 2)[1].end == 4 * HUGE
    made.entries[PMD][3 * HUGE] &= ~BITS["write"]
    assert first_ranges(made, 2)[1].end == 3 * HUGE


def test_only_a_marker_may_cut_a_range() -> None:
    whole = Range(0, 8, "x", "pte")
    halves = [Range(0, 4, "x", "pte"), Range(4, 8, "x", "pte")]
    assert ptdump.differences([halves[0], Marker("here"), halves[1]], [whole]) == []
    assert ptdump.differences(halves, [whole])
    assert ptdump.differences([whole], halves)


@pytest.mark.parametrize("missing", [0, 1, 2, 3])
def test_a_range_too_many_or_too_few_is_found(missing: int) -> None:
    theirs = ptdump.parse(aligned(TEXT))
    ours = first_ranges(tables(), 4)
    assert ptdump.differences(theirs, [r for i, r in enumerate(ours) if i != missing])
    assert ptdump.differences([r for i, r in enumerate(theirs[1:]) if i != missing], ours)
