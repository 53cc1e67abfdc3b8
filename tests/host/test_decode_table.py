# SPDX-License-Identifier: GPL-2.0-or-later
"""What a table can say beyond x86-64: nothing in the decoder may be x86's alone.

The made-up architecture has Sv57's entry form (frames not inverted and shifted,
leaves told by any of three bits, a size encoded in the address), and from arm64
contiguous entries and address bits that move when a feature is in use.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from ptscope.decode import arch
from ptscope.decode.effective import effective
from ptscope.decode.entry import decode
from ptscope.decode.layout import Layout
from ptscope.decode.rules import rules_for
from ptscope.decode.table import (
    MAPPED,
    SWAPPED,
    Architecture,
    Attribute,
    Group,
    Match,
    Piece,
    State,
    Word,
)
from ptscope.errors import Unsupported

ALL = ("root", "mid", "leaf")
RWX = ("read", "write", "exec")
TOY = Architecture(
    name="toy",
    level_names=ALL,
    required=("bit.valid",),
    present=(Match(ones=("valid",)),),
    states=(
        State("none", ALL, only=()),
        State("leaf", ALL, ones=("valid",), any_of=RWX),
        State("invalid", ("leaf",), ones=("valid",), reason="no table below this level"),
        State("table", ("root", "mid"), ones=("valid",)),
        State("protnone", ALL, ones=("was_global",)),
        State("swap", ALL),
    ),
    attributes=(
        Attribute("access.read", ("leaf",), (Match(ones=("read",)),)),
        Attribute("access.write", ("leaf",), (Match(ones=("write",)),)),
        # One bit forbids it to users, another to the kernel.
        Attribute(
            "access.exec",
            ("leaf",),
            (Match(ones=("exec", "user")), Match(ones=("exec",), zeros=("user",))),
        ),
        Attribute("access.user", ("leaf",), (Match(ones=("user",)),)),
        # Table entries restrict nothing.
        *(
            Attribute(f"access.{name}", ("table",), (Match(),))
            for name in ("read", "write", "exec", "user")
        ),
        Attribute("soft_dirty", (*MAPPED, *SWAPPED), (Match(ones=("soft_dirty",)),)),
    ),
    address=(Piece("mask.pfn", shift=2), Piece("mask.high", shift=42, when={"wide": 1})),
    address_within=(),
    leaf_reuses=(),
    groups=(
        Group(("leaf",), Match(ones=("napot", "order3")), entries=16, in_address=True),
        Group(ALL, Match(ones=("contiguous",), when={"cont": 1}), entries="cont.entries"),
    ),
    pkey=None,
    words=(Word("v", "valid", ("table", "leaf"), ALL),),
    context={},
)
FACTS = {
    "page_shift": 12,
    "mask.pfn": 0x3FFFFFFFFFFC00,
    "mask.high": 0x300,
    "cont.entries": 16,
    "swap.type_mask": 0xF80,
    "swap.offset_mask": (1 << 50) - (1 << 12),
    "swap.kind.hwpoison": 31,
    **{
        f"bit.{name}": bit
        for name, bit in {
            "valid": 0,
            "read": 1,
            "write": 2,
            "exec": 3,
            "user": 4,
            "was_global": 5,
            "order3": 13,
            "contiguous": 62,
            "napot": 63,
        }.items()
    },
}
RUNTIME = {
    "levels": 3,
    "user_last": (1 << 38) - 1,
    "kernel_first": (1 << 64) - (1 << 38),
    **{f"level.{name}.shift": shift for name, shift in zip(ALL, (30, 21, 12), strict=True)},
    **{f"level.{name}.entries": 512 for name in ALL},
}


@pytest.fixture
def layout(monkeypatch: pytest.MonkeyPatch) -> Iterator[Layout]:
    monkeypatch.setitem(sys.modules, "toy_table", SimpleNamespace(ARCHITECTURE=TOY))
    monkeypatch.setitem(arch._MODULES, "toy", "toy_table")
    yield Layout("toy", "toy", "1", FACTS, RUNTIME)
    rules_for.cache_clear()


def changed(layout: Layout, **runtime: int) -> Layout:
    return Layout("toy", "toy", "1", layout.facts, {**layout.runtime, **runtime})


def test_frames_are_shifted_and_not_inverted(layout: Layout) -> None:
    entry = decode(layout, "leaf", 0x455C30C17)
    assert (entry.state, entry.pa) == ("leaf", 0x11570C3000)
    entry = decode(layout, "leaf", 0x1180136C20)
    assert (entry.state, entry.hw_present, entry.pa) == ("protnone", False, 0x46004DB000)


@pytest.mark.parametrize("level", ["root", "mid"])
@pytest.mark.parametrize(
    ("low", "state"), [(1, "table"), (3, "leaf"), (5, "leaf"), (9, "leaf"), (0x11, "table")]
)
def test_any_of_several_bits_makes_a_leaf(layout: Layout, level: str, low: int, state: str) -> None:
    assert decode(layout, level, 0x2AB0000000 | low).state == state


def test_a_size_in_the_address(layout: Layout) -> None:
    entry = decode(layout, "leaf", 0x8000001CB7356017)
    assert (entry.pa, entry.contiguous) == (0x72DCD50000, True)
    assert (entry.page_size, entry.mapping_size) == (4096, 65536)


def test_contiguous_entries_keep_their_own_address(layout: Layout) -> None:
    raw = 1 << 62 | 0x455C30C17
    assert decode(layout, "leaf", raw).contiguous is False
    entry = decode(changed(layout, cont=1), "leaf", raw)
    assert (entry.contiguous, entry.mapping_size, entry.pa) == (True, 65536, 0x11570C3000)


def test_address_bits_that_move_with_a_feature(layout: Layout) -> None:
    raw = 0x455C30C17 | 0x300
    assert decode(layout, "leaf", raw).pa == 0x11570C3000
    assert decode(changed(layout, wide=1), "leaf", raw).pa == 0x11570C3000 | 0x300 << 42


def test_swap_is_not_inverted_here(layout: Layout) -> None:
    entry = decode(layout, "leaf", 5 << 7 | 0x359C143 << 12)
    assert entry.swap is not None
    assert (entry.swap.type, entry.swap.offset) == (5, 0x359C143)
    assert entry.soft_dirty is None
    assert decode(layout, "leaf", 31 << 7 | 0x1234 << 12).pfn == 0x1234


def test_tables_that_restrict_nothing(layout: Layout) -> None:
    entries = [decode(layout, level, raw) for level, raw in zip(ALL, (1, 1, 0x40F), strict=True)]
    result = effective(layout, entries)
    assert (result.read, result.write, result.exec, result.user) == (True, True, True, False)
    assert result.decided_by["user"] == "leaf"


def test_swap_masks_must_be_one_field(layout: Layout) -> None:
    facts = {**layout.facts, "swap.type_mask": 0b101 << 7}
    with pytest.raises(Unsupported, match="not one field"):
        decode(Layout("toy", "toy", "1", facts, layout.runtime), "leaf", 2)
