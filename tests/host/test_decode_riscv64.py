# SPDX-License-Identifier: GPL-2.0-or-later
"""The traps of riscv64 that the vectors do not show, one small value each."""

from __future__ import annotations

import pytest
from ptscope.decode.effective import PERMISSIONS, effective
from ptscope.decode.entry import decode
from ptscope.decode.layout import Layout, load
from ptscope.views.entry import flag_words

OLD = load("debian-6.12-riscv64")
NEW = load("debian-7.2-riscv64")
MARKED = NEW.with_context(svrsw60t59b=1)  # two more bits for software
SV39 = NEW.with_context(paging_levels=3)
V, R, W, X, U, G, A, D = (1 << bit for bit in range(8))
N = 1 << 63
DATA = 0x1234 << 10 | V | R | W | U | A | D
HUGE = 0x1200 << 10
THEAD = Layout(
    "T-Head", NEW.arch, NEW.release, NEW.facts, {**NEW.runtime, "memory_type_mask": 0x1F << 59}
)


def letters(layout: Layout, level: str, raw: int) -> str:
    access = decode(layout, level, raw).access
    assert access is not None
    return "".join(
        letter for letter, name in zip("rwxu", PERMISSIONS, strict=True) if getattr(access, name)
    )


@pytest.mark.parametrize(
    ("bits", "permissions"),
    [(R | U, "ru"), (R | W | U, "rwu"), (X | U, "xu"), (R | X, "rx"), (R | W | X | U, "rwxu")],
)
@pytest.mark.parametrize("level", ["pgd", "p4d", "pud", "pmd", "pte"])
def test_any_of_rwx_makes_a_leaf_at_every_level(level: str, bits: int, permissions: str) -> None:
    assert decode(NEW, level, V | A | D | bits).state == "leaf"
    assert letters(NEW, level, V | A | D | bits) == permissions


@pytest.mark.parametrize(
    ("level", "raw", "words"),
    [
        ("pte", V, "no table"),
        ("pmd", V | U, "reserved in a table"),
        ("pmd", V | A, "reserved in a table"),
        ("pmd", V | D, "reserved in a table"),
        ("pte", DATA & ~R, "without being readable"),
        ("pte", (DATA | X) & ~R, "without being readable"),
        ("pte", DATA | 1 << 54, "58:54"),
        ("pmd", V | 1 << 58, "58:54"),
        ("pmd", V | R | 0x1201 << 10, "not aligned"),
        ("pud", V | R | 0x200 << 10, "not aligned"),
        ("pte", DATA | N, "Svnapot"),
        ("pmd", HUGE | V | R | N, "Svnapot"),
    ],
)
def test_encodings_that_fault(level: str, raw: int, words: str) -> None:
    entry = decode(NEW, level, raw)
    assert (entry.state, entry.hw_present) == ("invalid", True)
    assert words in entry.reason


@pytest.mark.parametrize("low", range(16))
def test_the_only_napot_size(low: int) -> None:
    entry = decode(NEW, "pte", (0x1230 | low) << 10 | V | R | A | N)
    if low == 8:
        assert (entry.pa, entry.contiguous, entry.mapping_size) == (0x1230000, True, 65536)
    else:
        assert entry.state == "invalid"


def test_t_head_has_its_memory_type_in_bits_63_to_59() -> None:
    raw = 0x1238 << 10 | V | R | A | 0x12 << 59  # IO; the frame looks like a Svnapot range
    entry = decode(THEAD, "pte", raw)
    assert (entry.state, entry.pa, entry.contiguous) == ("leaf", 0x1238000, False)
    assert "memory-type=18(63:59)" in flag_words(THEAD, entry)
    assert "pbmt=2(62:61)" in flag_words(NEW, decode(NEW, "pte", DATA | 2 << 61))


def test_shadow_stack_pages_have_w_alone() -> None:
    raw = DATA & ~R
    layout = NEW.with_context(shadow_stack=1)
    entry = decode(layout, "pte", raw)
    assert (entry.state, entry.shadow_stack, letters(layout, "pte", raw)) == ("leaf", True, "ru")
    assert decode(layout, "pte", raw | X).state == "invalid"
    assert decode(layout, "pte", DATA).shadow_stack is False
    assert decode(NEW, "pte", raw).state == "invalid"


def test_soft_dirty_and_uffd_wp_need_the_hardware() -> None:
    raw = DATA | 1 << 59 | 1 << 60
    assert (decode(OLD, "pte", raw).soft_dirty, decode(OLD, "pte", raw).uffd_wp) == (None, None)
    assert (decode(NEW, "pte", raw).soft_dirty, decode(NEW, "pte", raw).uffd_wp) == (None, None)
    entry = decode(MARKED, "pte", raw)
    assert (entry.soft_dirty, entry.uffd_wp) == (True, True)
    assert decode(MARKED, "pte", DATA).soft_dirty is False
    swap = 2 << 7 | 5 << 12
    entry = decode(MARKED, "pte", swap | X)
    assert (entry.state, entry.soft_dirty, entry.uffd_wp) == ("swap", True, False)
    assert decode(MARKED, "pte", swap | U).uffd_wp is True
    assert decode(NEW, "pte", swap | X).state == "invalid"


@pytest.mark.parametrize("bits", [R, R | W | U, X | U, R | X | D | A])
def test_mid_split_keeps_its_permissions(bits: int) -> None:
    """pmd_mkinvalid() clears V and what PROT_NONE uses; pmd_present() looks at R, W and X."""
    for layout in (OLD, NEW, MARKED):
        entry = decode(layout, "pmd", HUGE | bits)
        assert (entry.state, entry.pa, entry.hw_present) == ("splitting", HUGE << 2, False)
        assert decode(layout, "pte", HUGE | bits).state in ("invalid", "swap")


def test_a_soft_dirty_huge_page_under_migration_is_not_being_split() -> None:
    """Its soft-dirty bit is that of X; the type stands where a huge page has zeros."""
    raw = NEW.facts["swap.kind.migration_read"] << 7 | 0x4321 << 12 | X
    entry = decode(MARKED, "pmd", raw)
    assert (entry.state, entry.pfn, entry.soft_dirty) == ("migration", 0x4321, True)


def test_mid_split_of_1_gib_from_7_x_on() -> None:
    assert decode(NEW, "pud", R | W | U).state == "splitting"
    assert decode(OLD, "pud", R | W | U).state == "invalid"
    # With Sv39 the PUD is the root.
    assert decode(SV39, "pgd", R | W | U).state == "splitting"
    assert decode(NEW, "pgd", R | W | U).state == "invalid"


def test_with_sv39_huge_pages_stand_in_the_root() -> None:
    protnone = R | G | A | 0x40000 << 10
    migration = NEW.facts["swap.kind.migration_write"] << 7 | 0x40000 << 12
    for layout, level in ((NEW, "pud"), (SV39, "pgd")):
        entry = decode(layout, level, protnone)
        assert (entry.state, entry.pa, entry.page_size) == ("protnone", 1 << 30, 1 << 30)
        assert decode(layout, level, migration).state == "migration"
    for layout in (NEW, NEW.with_context(paging_levels=4)):
        assert decode(layout, "pgd", protnone).state == "invalid"
        assert decode(layout, "pgd", migration).state == "invalid"


def test_tables_restrict_nothing() -> None:
    raws = [V, V | G, DATA | X]
    entries = [decode(SV39, level.name, raw) for level, raw in zip(SV39.levels, raws, strict=True)]
    result = effective(SV39, entries)
    assert (result.read, result.write, result.exec, result.user) == (True,) * 4
    entries[-1] = decode(SV39, "pte", (DATA | X) & ~(U | W))
    result = effective(SV39, entries)
    assert result.decided_by == {"read": None, "write": "pte", "exec": None, "user": "pte"}
    # Mapped but not valid: the leaf decides about everything.
    entries[-1] = decode(SV39, "pte", R | G)
    assert effective(SV39, entries).decided_by == dict.fromkeys(PERMISSIONS, "pte")


def test_words() -> None:
    assert flag_words(MARKED, decode(MARKED, "pte", DATA | 1 << 59 | 1 << 8)) == [
        "valid(0)",
        "read(1)",
        "write(2)",
        "user(4)",
        "accessed(6)",
        "dirty(7)",
        "special(8)",
        "soft-dirty(59)",
    ]
    assert flag_words(NEW, decode(NEW, "pte", 2 << 7 | 5 << 12 | A)) == ["exclusive(6)"]
