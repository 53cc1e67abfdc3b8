# SPDX-License-Identifier: GPL-2.0-or-later
"""Entries of pagemap, against the bit numbers of Documentation/admin-guide/mm/pagemap.rst."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ptscope.raw.pagemap import Page, split

BITS = {
    "present": 63,
    "swapped": 62,
    "file": 61,
    "guard": 58,
    "uffd_wp": 57,
    "exclusive": 56,
    "soft_dirty": 55,
}


def page(raw: int, hidden: bool = False) -> Page:
    (result,) = split(struct.pack("=Q", raw), hidden)
    return result


@given(st.integers(0, 2**64 - 1))
def test_every_bit(raw: int) -> None:
    result = page(raw)
    for name, bit in BITS.items():
        assert getattr(result, name) is bool(raw >> bit & 1)
    swapped = result.swapped and not result.present
    assert result.frame == (raw % 2**55 if result.present else None)
    assert result.swap_type == (raw % 32 if swapped else None)
    assert result.swap_offset == (raw % 2**55 // 32 if swapped else None)


def test_hidden_frames_are_not_frame_zero() -> None:
    assert page(1 << 63, hidden=True).frame is None
    assert page(1 << 63, hidden=False).frame == 0
    assert page(1 << 62, hidden=True).swap_offset is None


def test_many_and_odd_lengths() -> None:
    pages = split(struct.pack("=3Q", 1 << 63 | 7, 0, 1 << 63 | 8), hidden=False)
    assert [each.frame for each in pages] == [7, None, 8]
    assert split(b"", hidden=False) == []
    with pytest.raises(ValueError, match="multiple"):
        split(b"123", hidden=False)
