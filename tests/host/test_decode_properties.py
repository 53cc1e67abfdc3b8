# SPDX-License-Identifier: GPL-2.0-or-later
"""What holds for every value: the decoder never fails, and undoes what the kernel's encoders do.

The encoders below are the kernel's own formulas (Linux 6.1: pfn_pte(), pfn_pmd(),
pmd_modify(), pte_modify(), __swp_entry(), make_migration_entry_young()), written
from the layout's facts and not from the decoder's table.
"""

from __future__ import annotations

import json
from dataclasses import asdict

import click
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from ptscope.decode.entry import Entry, decode
from ptscope.decode.layout import U64_MAX, Layout, load
from ptscope.decode.table import MAPPED, STATES
from ptscope.views.entry import WIDTH, render

FIVE = load("debian-6.1-amd64")
CONTEXTS = {
    "5-level": FIVE,
    "4-level": FIVE.with_context(paging_levels=4),
    "encrypted": FIVE.with_context(c_bit=51),
    "pti": FIVE.with_context(pti=1, paging_levels=4),
    "bare": FIVE.with_context(nx=0, pkeys=0),
    "shadow-stack": FIVE.with_context(shadow_stack=1),
}
LEVEL_SHIFT = {"pte": 12, "pmd": 21, "pud": 30}
PLACES = [(name, level.name) for name, layout in CONTEXTS.items() for level in layout.levels]
U64 = st.integers(0, U64_MAX)


def bits(layout: Layout, *names: str) -> int:
    return sum(1 << layout.facts[f"bit.{name}"] for name in names)


def pfn_mask(layout: Layout) -> int:
    """PTE_PFN_MASK: the frame bits, without the encryption bit."""
    return layout.facts["mask.pfn"] & layout.runtime["physical_mask"]


def encode(layout: Layout, level: str, pa: int, flags: int) -> int:
    """pfn_pte(), pfn_pmd() and pfn_pud(): inverted when not present, aligned to the level."""
    inverted = pa if flags & 1 else ~pa
    return inverted & pfn_mask(layout) & -(1 << LEVEL_SHIFT[level]) | flags


def encode_swap(layout: Layout, type_: int, offset: int, flags: int = 0) -> int:
    """__swp_entry(): type in the top 5 bits, the inverted offset from bit 9 on."""
    return (
        (type_ << 59) | ((~offset << 14 & U64_MAX) >> 5) & layout.facts["swap.offset_mask"] | flags
    )


def frames(level: str) -> st.SearchStrategy[int]:
    return st.integers(0, (1 << (52 - LEVEL_SHIFT[level])) - 1).map(
        lambda n: n << LEVEL_SHIFT[level]
    )


def changed(before: Entry, after: Entry) -> set[str]:
    left, right = asdict(before), asdict(after)
    return {key for key in left if left[key] != right[key]} - {"raw", "flags"}


@pytest.mark.parametrize(("context", "level"), PLACES)
@given(raw=U64 | st.sampled_from([0, 1, 0x20, 0x60, 0x80, 0x81, 0x100, U64_MAX]))
def test_every_value_decodes(context: str, level: str, raw: int) -> None:
    layout = CONTEXTS[context]
    entry = decode(layout, level, raw)
    assert entry.raw == raw
    assert entry.state in STATES
    assert entry.hw_present == bool(raw & 1)
    assert (entry.state == "none") == (raw & (~0 if (level, context) in EXACT else ~0x60) == 0)
    assert (entry.pa is None) == (entry.pfn is None)
    assert entry.pfn is None or entry.pa == entry.pfn << 12
    assert (entry.access is not None) == (entry.state in ("table", *MAPPED))
    assert bool(entry.reason) == (entry.state == "invalid")
    if entry.state in ("table", "leaf"):
        assert entry.hw_present
    elif entry.state != "invalid":
        assert not entry.hw_present
        assert entry.access is None or not any(asdict(entry.access).values())
    if entry.state in MAPPED:
        assert entry.pa is not None
        assert entry.page_size == layout.level(level).span
        assert entry.pa % entry.page_size == 0
    json.dumps(entry.to_json())
    assert all(len(line) <= WIDTH for line in click.unstyle(render(layout, entry)).splitlines())


# With five levels pgd_none() does not look past accessed and dirty.
EXACT = {("pgd", name) for name, layout in CONTEXTS.items() if layout.runtime["levels"] == 5}


@pytest.mark.parametrize("context", ["5-level", "4-level", "encrypted"])
@pytest.mark.parametrize("level", LEVEL_SHIFT)
@given(data=st.data())
def test_a_frame_comes_back(context: str, level: str, data: st.DataObject) -> None:
    layout = CONTEXTS[context]
    c_mask = layout.runtime["c_mask"]
    pa = data.draw(frames(level)) & ~c_mask
    huge = bits(layout, "huge") if level != "pte" else 0
    kept = bits(layout, "accessed", "dirty", "soft_dirty", "uffd_wp", "write", "nx")
    flags = huge | data.draw(U64) & kept | data.draw(st.sampled_from([0, c_mask]))
    for state, flag in (("leaf", "present"), ("protnone", "protnone"), ("splitting", None)):
        if state == "splitting" and level != "pmd":
            continue
        raw = encode(layout, level, pa, flags | (bits(layout, flag) if flag else 0))
        entry = decode(layout, level, raw)
        assert (entry.state, entry.pa) == (state, pa)
        assert entry.encrypted == bool(flags & c_mask)
        assert entry.soft_dirty == bool(flags & bits(layout, "soft_dirty"))
        assert entry.uffd_wp == bool(flags & bits(layout, "uffd_wp"))
        assert entry.accessed == bool(flags & bits(layout, "accessed"))
        assert entry.dirty == bool(flags & bits(layout, "dirty"))


@given(pa=frames("pmd"), pat=st.booleans())
def test_hugetlb_prot_none_inverts_down_to_bit_12(pa: int, pat: bool) -> None:
    """huge_pte_modify() is pte_modify(): it flips PTE_PFN_MASK, PAT and the low bits too."""
    present = encode(FIVE, "pmd", pa, bits(FIVE, "present", "user", "huge"))
    present |= bits(FIVE, "pat_large") if pat else 0
    raw = present & ~bits(FIVE, "present", "user") | bits(FIVE, "protnone")
    raw ^= pfn_mask(FIVE)
    entry = decode(FIVE, "pmd", raw)
    assert (entry.state, entry.pa) == ("protnone", pa)


@pytest.mark.parametrize("level", ["pmd", "pud"])
@given(data=st.data())
def test_unaligned_present_leaf_is_invalid(level: str, data: st.DataObject) -> None:
    aligned = encode(FIVE, level, data.draw(frames(level)), bits(FIVE, "present", "huge"))
    assert decode(FIVE, level, aligned | bits(FIVE, "pat_large")).state == "leaf"
    bit = data.draw(st.integers(13, LEVEL_SHIFT[level] - 1))
    assert decode(FIVE, level, aligned | 1 << bit).state == "invalid"


@pytest.mark.parametrize("context", ["5-level", "4-level", "encrypted"])
@pytest.mark.parametrize("level", ["pgd", "pud", "pmd"])
@given(data=st.data())
def test_a_table_address_comes_back(context: str, level: str, data: st.DataObject) -> None:
    layout = CONTEXTS[context]
    pa = data.draw(frames("pte")) & ~layout.runtime["c_mask"]
    entry = decode(layout, level, pa | 0x67 | layout.runtime["c_mask"])
    assert (entry.state, entry.pa) == ("table", pa)


@given(type_=st.integers(0, 25), offset=st.integers(0, (1 << 50) - 1), flags=st.integers(0, 7))
def test_a_swap_slot_comes_back(type_: int, offset: int, flags: int) -> None:
    raw = encode_swap(FIVE, type_, offset, flags << 1)
    assume(raw)  # the last slot of type 0 would look empty: no swap area has that many pages
    entry = decode(FIVE, "pte", raw)
    assert entry.state == "swap"
    assert entry.swap is not None
    assert (entry.swap.type, entry.swap.offset, entry.swap.kind) == (type_, offset, "swap")
    assert (entry.soft_dirty, entry.uffd_wp) == (bool(flags & 1), bool(flags & 2))
    assert ("exclusive" in entry.flags) == bool(flags & 4)
    # A swap slot cannot stand above PTE level.
    assert decode(FIVE, "pmd", entry.raw).state == "invalid"


@pytest.mark.parametrize("level", LEVEL_SHIFT)
@pytest.mark.parametrize(("context", "pfn_bits"), [("5-level", 40), ("4-level", 34)])
@given(data=st.data(), young=st.booleans(), dirty=st.booleans())
def test_a_migrating_frame_comes_back(
    level: str, context: str, pfn_bits: int, data: st.DataObject, young: bool, dirty: bool
) -> None:
    """SWP_PFN_BITS is MAX_PHYSMEM_BITS - 12: 52 or 46 bits with five or four levels."""
    layout = CONTEXTS[context]
    kind = data.draw(st.sampled_from(["read", "read_exclusive", "write"]))
    pfn = data.draw(st.integers(0, (1 << pfn_bits) - 1))
    offset = pfn | young << pfn_bits | dirty << pfn_bits + 1
    number = layout.facts[f"swap.kind.migration_{kind}"]
    entry = decode(layout, level, encode_swap(layout, number, offset))
    assert (entry.state, entry.pfn) == ("migration", pfn)
    assert (entry.accessed, entry.dirty) == (young, dirty)
    assert entry.swap is not None
    assert entry.swap.kind == f"migration_{kind}"


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
    five, four = decode(FIVE, level, raw), decode(CONTEXTS["4-level"], level, raw)
    allowed = {"pa", "pfn"} if five.swap is not None else set()
    allowed |= {"accessed", "dirty"} if five.state == "migration" else set()
    assert changed(five, four) <= allowed
