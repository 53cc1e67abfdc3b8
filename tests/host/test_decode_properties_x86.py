# SPDX-License-Identifier: GPL-2.0-or-later
"""What holds for every value on x86-64 beyond what holds everywhere."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from encoders import X86
from hypothesis import given
from hypothesis import strategies as st
from ptscope.decode.entry import Entry, decode
from ptscope.decode.layout import U64_MAX, Layout, load

FIVE = load("debian-6.1-amd64")
FOUR = FIVE.with_context(paging_levels=4)
LEVEL_SHIFT = {"pte": 12, "pmd": 21, "pud": 30}
U64 = st.integers(0, U64_MAX)


def bits(layout: Layout, *names: str) -> int:
    return X86(layout).bits(*names)


def frames(level: str) -> st.SearchStrategy[int]:
    return st.integers(0, (1 << (52 - LEVEL_SHIFT[level])) - 1).map(
        lambda n: n << LEVEL_SHIFT[level]
    )


def changed(before: Entry, after: Entry) -> set[str]:
    left, right = asdict(before), asdict(after)
    return {key for key in left if left[key] != right[key]} - {"raw", "flags"}


@pytest.mark.parametrize("level", ["pgd", "p4d", "pud", "pmd", "pte"])
@pytest.mark.parametrize("layout", [FIVE, FOUR], ids=["5-level", "4-level"])
@given(raw=st.sampled_from([0, 0x20, 0x40, 0x60]) | U64)
def test_what_is_empty(layout: Layout, level: str, raw: int) -> None:
    """pXd_none() looks past accessed and dirty, but pgd_none() with five levels does not."""
    if layout.is_folded(level):
        return
    ignored = 0 if (level, layout) == ("pgd", FIVE) else 0x60
    assert (decode(layout, level, raw).state == "none") == (raw & ~ignored == 0)


@pytest.mark.parametrize("level", ["pgd", "pud", "pmd"])
@given(pa=frames("pte"))
def test_the_c_bit_of_a_table_is_no_address(level: str, pa: int) -> None:
    layout = FIVE.with_context(c_bit=51)
    entry = decode(layout, level, pa & ~(1 << 51) | 0x67 | 1 << 51)
    assert (entry.state, entry.pa, entry.encrypted) == ("table", pa & ~(1 << 51), True)


@pytest.mark.parametrize("level", LEVEL_SHIFT)
@given(data=st.data())
def test_the_c_bit_is_not_inverted(level: str, data: st.DataObject) -> None:
    layout = FIVE.with_context(c_bit=47)
    make = X86(layout)
    pa = data.draw(frames(level)) & (1 << 47) - 1
    for encode in (make.leaf, make.protnone):
        for c_bit in (0, 1 << 47):
            entry = decode(layout, level, encode(level, pa, c_bit))
            assert (entry.pa, entry.encrypted) == (pa, bool(c_bit))


@given(pa=frames("pmd"), pat=st.booleans())
def test_hugetlb_prot_none_inverts_down_to_bit_12(pa: int, pat: bool) -> None:
    """huge_pte_modify() is pte_modify(): it flips PTE_PFN_MASK, PAT and the low bits too."""
    present = X86(FIVE).leaf("pmd", pa, 0)
    present |= bits(FIVE, "pat_large") if pat else 0
    raw = present & ~bits(FIVE, "present", "user") | bits(FIVE, "protnone")
    raw ^= FIVE.facts["mask.pfn"]
    entry = decode(FIVE, "pmd", raw)
    assert (entry.state, entry.pa) == ("protnone", pa)


@pytest.mark.parametrize("level", ["pmd", "pud"])
@given(data=st.data())
def test_unaligned_present_leaf_is_invalid(level: str, data: st.DataObject) -> None:
    aligned = X86(FIVE).leaf(level, data.draw(frames(level)), 0)
    assert decode(FIVE, level, aligned | bits(FIVE, "pat_large")).state == "leaf"
    bit = data.draw(st.integers(13, LEVEL_SHIFT[level] - 1))
    assert decode(FIVE, level, aligned | 1 << bit).state == "invalid"


@pytest.mark.parametrize(
    ("bit", "fields"),
    [
        ("accessed", {"accessed"}),
        ("dirty", {"dirty"}),
        ("soft_dirty", {"soft_dirty"}),
        ("uffd_wp", {"uffd_wp"}),
        ("special", {"special"}),
        ("global", {"global_"}),
        ("write", {"access"}),
        ("nx", {"access"}),
        ("pwt", set()),
        ("pcd", set()),
        ("pat", set()),
        ("devmap", set()),
    ],
)
@given(pa=frames("pte"), low=st.integers(0, 0xFFF))
def test_a_bit_changes_only_what_it_means(bit: str, fields: set[str], pa: int, low: int) -> None:
    raw = pa | low | 1
    before, after = (decode(FIVE, "pte", value) for value in (raw, raw ^ bits(FIVE, bit)))
    assert changed(before, after) == fields
    assert before.flags != after.flags


@pytest.mark.parametrize("state", ["protnone", "swap"])
@given(raw=U64)
def test_soft_dirty_changes_only_soft_dirty(state: str, raw: int) -> None:
    if state == "protnone":
        raw, flip = raw & ~1 | bits(FIVE, "protnone"), bits(FIVE, "soft_dirty")
    else:
        raw, flip = raw & ~0x1FF & ~(0x1F << 59) | 1 << 59, 1 << FIVE.facts["swap.bit.soft_dirty"]
    before, after = decode(FIVE, "pte", raw), decode(FIVE, "pte", raw ^ flip)
    assert before.state == state
    assert changed(before, after) == {"soft_dirty"}


@given(raw=U64, level=st.sampled_from(["pud", "pmd", "pte"]))
def test_paging_levels_matter_only_to_frames_in_swap_entries(raw: int, level: str) -> None:
    five, four = decode(FIVE, level, raw), decode(FOUR, level, raw)
    allowed = {"pa", "pfn"} if five.swap is not None else set()
    allowed |= {"accessed", "dirty"} if five.state == "migration" else set()
    assert changed(five, four) <= allowed
