# SPDX-License-Identifier: GPL-2.0-or-later
"""Permissions over a whole walk, and which level decides each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ptscope.decode.effective import PERMISSIONS, Effective, effective
from ptscope.decode.entry import Entry, decode
from ptscope.decode.layout import load
from ptscope.errors import UsageError

FIVE = load("debian-6.1-amd64")
FOUR = FIVE.with_context(paging_levels=4, pti=1)
NX = 1 << 63
TABLE, PAGE = 0x1067, 0x2067
RW, USER = 2, 4


def walk(*raws: int) -> list[Entry]:
    """Entries from the root of four levels down to where the list ends."""
    return [decode(FOUR, level.name, raw) for level, raw in zip(FOUR.levels, raws, strict=False)]


def allowed(result: Effective) -> str:
    return "".join(
        letter for letter, name in zip("rwxu", PERMISSIONS, strict=True) if getattr(result, name)
    )


@pytest.mark.parametrize(
    ("raws", "permissions", "decided_by"),
    [
        ((TABLE, TABLE, TABLE, PAGE), "rwxu", {}),
        ((TABLE, TABLE, TABLE, PAGE & ~RW | NX), "ru", {"write": "pte", "exec": "pte"}),
        # The first level that denies is named, whatever is denied below it.
        ((TABLE, TABLE | NX, TABLE & ~RW, PAGE & ~RW | NX), "ru", {"exec": "pud", "write": "pmd"}),
        ((TABLE, TABLE & ~USER, TABLE, PAGE), "rwx", {"user": "pud"}),
        # A huge leaf ends the walk earlier.
        ((TABLE, TABLE, 0x200000 | 0xE7 | NX), "rwu", {"exec": "pmd"}),
        # Mapped, not hardware-present: nothing is allowed, and the leaf decides.
        ((TABLE, TABLE, TABLE, 0xFFFFE8DF7E160), "", dict.fromkeys(PERMISSIONS, "pte")),
        # A reserved bit faults.
        ((0x10E7,), "", dict.fromkeys(PERMISSIONS, "pgd")),
        # Not mapped: nobody decided anything.
        ((TABLE, TABLE, 0), "", {}),
        ((TABLE, TABLE, TABLE, 0x7FFFFEACCCFDC0A), "", {}),
        ((TABLE, TABLE), "", {}),
    ],
)
def test_fold(raws: tuple[int, ...], permissions: str, decided_by: dict[str, str]) -> None:
    result = effective(FOUR, walk(*raws))
    assert allowed(result) == permissions
    assert result.decided_by == {**dict.fromkeys(PERMISSIONS), **decided_by}


def test_pti_user_copy_decides_for_the_kernels_no_execute() -> None:
    entries = walk(TABLE | NX, TABLE, TABLE, PAGE & ~RW)
    assert allowed(effective(FOUR, entries)) == "ru"
    result = effective(FOUR, entries, user_pgd=decode(FOUR, "pgd", TABLE))
    assert allowed(result) == "rxu"
    assert result.decided_by == {"read": None, "write": "pte", "exec": None, "user": None}


def test_pti_kernel_address_is_missing_from_the_user_copy() -> None:
    result = effective(FOUR, walk(TABLE, TABLE, TABLE, PAGE), decode(FOUR, "pgd", 0))
    assert allowed(result) == "rwx"
    assert result.decided_by["user"] == "pgd"


@given(
    raws=st.lists(st.integers(0, (1 << 64) - 1).map(lambda raw: raw | 1), min_size=4, max_size=4)
)
def test_a_permission_needs_every_level(raws: list[int]) -> None:
    raws = [raw & ~0x80 for raw in raws]  # tables down to the PTE, not huge pages
    result = effective(FOUR, walk(*raws))
    assert result.read
    assert result.write == all(raw & RW for raw in raws)
    assert result.user == all(raw & USER for raw in raws)
    assert result.exec == (not any(raw & NX for raw in raws))
    for name in PERMISSIONS:
        assert getattr(result, name) == (result.decided_by[name] is None)


def test_json() -> None:
    result = effective(FOUR, walk(TABLE, TABLE, TABLE, PAGE | NX))
    assert result.to_json() == {
        "read": True,
        "write": True,
        "exec": False,
        "user": True,
        "decided_by": {"read": None, "write": None, "exec": "pte", "user": None},
    }


@pytest.mark.parametrize("entries", [[], walk(TABLE, TABLE)[1:]])
def test_only_a_walk_from_the_root_can_be_combined(entries: list[Entry]) -> None:
    with pytest.raises(UsageError, match="from the root"):
        effective(FOUR, entries)
