# SPDX-License-Identifier: GPL-2.0-or-later
"""What holds for every value of every layout: the decoder never fails, and undoes the encoders.

The layouts are all that ship, each in every context that changes how its entries are read.
"""

from __future__ import annotations

import json
from dataclasses import asdict

import click
import pytest
from encoders import Encoder, encoder
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from ptscope.decode.entry import decode
from ptscope.decode.layout import U64_MAX, Layout, available, load
from ptscope.decode.table import MAPPED, STATES
from ptscope.views.entry import WIDTH, render

# Contexts by architecture, and the layouts that refuse them.
CONTEXTS: dict[str, tuple[dict[str, int], ...]] = {
    "x86_64": (
        {},
        {"paging_levels": 4},
        {"c_bit": 51},
        {"pti": 1, "nx": 0, "pkeys": 0},
        {"shadow_stack": 1},
    ),
    "arm64": (
        {},
        {"lpa2": 0},
        {"page_size": 4096, "pkeys": 1},
        {"page_size": 16384},
        {"page_size": 65536},
        {"shadow_stack": 1, "pkeys": 1},
    ),
    "riscv64": (
        {},
        {"paging_levels": 4},
        {"paging_levels": 3},
        {"shadow_stack": 1},
        {"svrsw60t59b": 1},
    ),
}
REFUSED = {("debian-6.12-riscv64", "svrsw60t59b")}


def named(name: str, context: dict[str, int]) -> Layout:
    layout = load(name).with_context(context)
    words = [name, *(f"{key}={value}" for key, value in context.items())]
    return Layout(" ".join(words), layout.arch, layout.release, layout.facts, layout.runtime)


LAYOUTS = tuple(
    named(name, context)
    for name in available()
    for context in CONTEXTS[load(name).arch]
    if not any((name, key) in REFUSED for key in context)
)
each_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
# There are many layouts.
some = settings(max_examples=40)
U64 = st.integers(0, U64_MAX)


def values(layout: Layout) -> st.SearchStrategy[int]:
    """Any value, a few bits, or a few bits of an entry as the kernel makes them turned over."""
    make = encoder(layout)
    few = st.sets(st.integers(0, 63), max_size=6).map(lambda bits: sum(1 << bit for bit in bits))
    made = st.sampled_from(
        [
            0,
            U64_MAX,
            make.table(0x5000 << 4),
            make.leaf("pmd", 1 << 30, 0),
            make.leaf("pte", 1 << 30, 0),
            make.protnone("pmd", 1 << 30, 0),
            make.protnone("pte", 1 << 30, 0),
            make.splitting("pmd", 1 << 30, 0),
            make.swap(1, 0x1234),
            make.swap(29, 0x1234),
            make.swap(31, 1),
        ]
    )
    return st.one_of(U64, few, st.builds(lambda raw, flip: raw ^ flip, made, few))


def addresses(make: Encoder, level: str) -> st.SearchStrategy[int]:
    shift = make.layout.level(level).shift
    return st.integers(0, (1 << (make.pa_bits() - shift)) - 1).map(lambda n: n << shift)


@each_layout
@some
@given(data=st.data())
def test_every_value_decodes(layout: Layout, data: st.DataObject) -> None:
    level = data.draw(st.sampled_from(layout.levels))
    raw = data.draw(values(layout))
    entry = decode(layout, level.name, raw)
    assert entry.raw == raw
    assert entry.state in STATES
    # Bit 0 is what the hardware looks at first, on all three.
    assert entry.hw_present == bool(raw & 1)
    if raw == 0:
        assert entry.state == "none"
    assert (entry.pa is None) == (entry.pfn is None)
    assert entry.pfn is None or entry.pa == entry.pfn * layout.page_size
    assert (entry.access is not None) == (entry.state in ("table", *MAPPED))
    assert bool(entry.reason) == (entry.state == "invalid")
    if entry.state in ("table", "leaf"):
        assert entry.hw_present
    elif entry.state != "invalid":
        assert not entry.hw_present
        assert entry.access is None or not any(asdict(entry.access).values())
    if entry.state in MAPPED:
        assert entry.pa is not None
        assert entry.page_size == level.span
        assert entry.mapping_size is not None
        assert entry.pa % entry.page_size == 0
        assert entry.contiguous == (entry.mapping_size > entry.page_size)
    if entry.state == "table":
        assert level is not layout.levels[-1]
    if entry.state == "swap":
        assert level is layout.levels[-1]
    json.dumps(entry.to_json())
    assert all(len(line) <= WIDTH for line in click.unstyle(render(layout, entry)).splitlines())


@each_layout
@some
@given(data=st.data())
def test_a_frame_comes_back(layout: Layout, data: st.DataObject) -> None:
    make = encoder(layout)
    level = data.draw(st.sampled_from(make.leaf_levels))
    pa = data.draw(addresses(make, level))
    chosen = data.draw(st.sets(st.sampled_from(make.kept)))
    flags = make.bits(*(bit for bit, _ in chosen))
    meant = {name for bit, name in chosen if make.bits(bit)}
    entries = {
        "leaf": decode(layout, level, make.leaf(level, pa, flags)),
        "protnone": decode(layout, level, make.protnone(level, pa, flags)),
    }
    if level in make.split_levels:
        entries["splitting"] = decode(layout, level, make.splitting(level, pa, flags))
    elif level != "pte":
        assert decode(layout, level, make.splitting(level, pa, flags)).state == "invalid"
    for state, entry in entries.items():
        assert (entry.state, entry.pa, entry.page_size) == (state, pa, layout.level(level).span)
        for bit, name in make.kept:
            value = getattr(entry, name)
            assert value == (name in meant) or (value is None and not make.bits(bit)), name
    access = entries["leaf"].access
    assert access is not None
    assert (access.read, access.write, access.user) == (True, False, True)


@each_layout
@some
@given(data=st.data())
def test_a_table_address_comes_back(layout: Layout, data: st.DataObject) -> None:
    make = encoder(layout)
    level = data.draw(st.sampled_from(layout.levels[:-1]))
    pa = data.draw(addresses(make, "pte"))
    entry = decode(layout, level.name, make.table(pa))
    assert (entry.state, entry.pa) == ("table", pa)
    assert entry.access is not None
    assert all(asdict(entry.access).values())


def swap_files(layout: Layout) -> int:
    """MAX_SWAPFILES: all types below the special ones."""
    return min(value for key, value in layout.facts.items() if key.startswith("swap.kind."))


@each_layout
@some
@given(data=st.data())
def test_a_swap_slot_comes_back(layout: Layout, data: st.DataObject) -> None:
    make = encoder(layout)
    number = data.draw(st.integers(0, swap_files(layout) - 1))
    offset = data.draw(st.integers(0, (1 << layout.facts["swap.offset_mask"].bit_count()) - 1))
    flags = {
        name: 1 << layout.facts[f"swap.bit.{name}"]
        for name in data.draw(st.sets(st.sampled_from(["soft_dirty", "uffd_wp", "exclusive"])))
        if f"swap.bit.{name}" in layout.facts
    }
    if layout.arch == "riscv64" and not layout.runtime["svrsw60t59b"]:
        flags = {name: flag for name, flag in flags.items() if name == "exclusive"}
    raw = make.swap(number, offset) | sum(flags.values())
    assume(raw)  # no swap area is so large, or uses its first page, that its slot looks empty
    entry = decode(layout, "pte", raw)
    assert entry.state == "swap"
    assert entry.swap is not None
    assert (entry.swap.type, entry.swap.offset, entry.swap.kind) == (number, offset, "swap")
    for name in ("soft_dirty", "uffd_wp"):
        assert getattr(entry, name) in (name in flags, None if name not in flags else True)
    assert ("exclusive" in entry.flags) == ("exclusive" in flags)
    # A swap slot cannot stand above PTE level.  What riscv marks soft-dirty is X in a page.
    above = decode(layout, "pmd", raw).state
    assert above == "invalid" or (above == "splitting" and "soft_dirty" in flags)


@each_layout
@some
@given(data=st.data(), young=st.booleans(), dirty=st.booleans())
def test_a_migrating_frame_comes_back(
    layout: Layout, data: st.DataObject, young: bool, dirty: bool
) -> None:
    """make_migration_entry_young() and _dirty() set the two bits above SWP_PFN_BITS."""
    make = encoder(layout)
    level = data.draw(st.sampled_from(make.leaf_levels))
    kinds = [key for key in layout.facts if key.startswith("swap.kind.migration_")]
    kind = data.draw(st.sampled_from(kinds))
    pfn_bits = layout.runtime.get("swap_pfn_bits")
    pfn = data.draw(st.integers(0, (1 << (pfn_bits or 40)) - 1))
    offset = pfn if pfn_bits is None else pfn | young << pfn_bits | dirty << pfn_bits + 1
    entry = decode(layout, level, make.swap(layout.facts[kind], offset))
    assert (entry.state, entry.pfn) == ("migration", pfn)
    ages = (None, None) if pfn_bits is None else (young, dirty)
    assert (entry.accessed, entry.dirty) == ages
    assert entry.swap is not None
    assert entry.swap.kind == kind.removeprefix("swap.kind.")


@each_layout
def test_every_special_type_is_known(layout: Layout) -> None:
    """From the lowest special type up to 31 there is no gap, and none is called unknown."""
    make = encoder(layout)
    for number in range(swap_files(layout), 32):
        entry = decode(layout, "pte", make.swap(number, 1))
        assert entry.state in ("migration", "hwpoison", "device", "marker"), number
