# SPDX-License-Identifier: GPL-2.0-or-later
"""The traps of arm64 that the vectors do not show, one small value each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ptscope.decode.effective import PERMISSIONS, Effective, effective
from ptscope.decode.entry import Entry, decode, has_attribute
from ptscope.decode.layout import Layout, load
from ptscope.views.entry import flag_words

OLD = load("debian-6.1-arm64")  # 4K pages, 48 bits
NEW = load("debian-6.12-arm64")  # 4K pages, 52 bits with LPA2
NARROW = NEW.with_context(lpa2=0)
GCS = load("debian-7.2-arm64").with_context(shadow_stack=1)
PA = 0x12340000

VALID, TABLE = 1 << 0, 1 << 1
USER, RDONLY, AF, NG = 1 << 6, 1 << 7, 1 << 10, 1 << 11
DBM, CONT, PXN, UXN, DIRTY = 1 << 51, 1 << 52, 1 << 53, 1 << 54, 1 << 55
PXN_TABLE, UXN_TABLE, NO_USER, READ_ONLY = 1 << 59, 1 << 60, 1 << 61, 1 << 62
PAGE = PA | VALID | TABLE | AF
TEXT = PAGE | USER | RDONLY | NG | PXN
DATA = PAGE | USER | NG | PXN | UXN | DBM | DIRTY
KERNEL_TEXT = PAGE | RDONLY | UXN
KERNEL_DATA = PAGE | PXN | UXN | DBM | DIRTY


def allowed(entry: Entry | Effective) -> str:
    access = entry.access if isinstance(entry, Entry) else entry
    assert access is not None
    return "".join(
        letter for letter, name in zip("rwxu", PERMISSIONS, strict=True) if getattr(access, name)
    )


@pytest.mark.parametrize(
    ("raw", "permissions"),
    [
        (TEXT, "rxu"),
        (DATA, "rwu"),
        (DATA | RDONLY, "rwu"),  # clean: the first write makes it dirty
        (DATA & ~DBM, "ru"),  # pte_write() is DBM
        (TEXT & ~USER, "xu"),  # execute-only
        (TEXT & ~USER & ~NG, "r"),  # the same without nG is a kernel page
        (KERNEL_TEXT, "rx"),
        (KERNEL_TEXT | NG, "rx"),  # kernel pages have nG while KPTI is on, but always UXN
        (KERNEL_TEXT | PXN, "r"),
        (KERNEL_DATA, "rw"),
        (KERNEL_DATA & ~DBM, "rw"),  # a block of 6.1's linear map: RDONLY clear is enough
        (KERNEL_DATA & ~DBM | RDONLY, "r"),
    ],
)
@pytest.mark.parametrize("layout", [OLD, NEW, GCS], ids=lambda layout: layout.name)
def test_access(raw: int, permissions: str, layout: Layout) -> None:
    assert allowed(decode(layout, "pte", raw)) == permissions


def test_guarded_control_stack() -> None:
    """_PAGE_GCS: PXN clear on a user page is an index of permission indirection, nothing else."""
    raw = DATA & ~PXN
    assert (allowed(decode(GCS, "pte", raw)), decode(GCS, "pte", raw).shadow_stack) == ("ru", True)
    assert (allowed(decode(GCS, "pte", DATA)), decode(GCS, "pte", DATA).shadow_stack) == (
        "rwu",
        False,
    )
    assert decode(GCS.with_context(shadow_stack=0), "pte", raw).shadow_stack is False


def test_global_is_the_absence_of_ng() -> None:
    assert decode(NEW, "pte", DATA).global_ is False
    assert decode(NEW, "pte", KERNEL_DATA).global_ is True


@pytest.mark.parametrize(
    ("layout", "level", "state"),
    [
        (NEW, "pgd", "invalid"),
        (NEW, "p4d", "leaf"),
        (NEW, "pud", "leaf"),
        (NEW, "pmd", "leaf"),
        (NARROW, "pgd", "invalid"),
        (NARROW, "pud", "leaf"),
        (OLD, "pgd", "invalid"),
        (load("debian-6.12-arm64-16k"), "pgd", "invalid"),
        (load("debian-6.12-arm64-16k"), "pud", "leaf"),
        (load("debian-6.12-arm64-16k").with_context(lpa2=0), "pgd", "invalid"),
        (NEW.with_context(page_size=65536), "pgd", "invalid"),
        (NEW.with_context(page_size=65536), "pmd", "leaf"),
    ],
)
def test_blocks_exist_at_some_levels(layout: Layout, level: str, state: str) -> None:
    """DDI 0487 D8.3: levels 1 with 4K pages and 2, and one level further up with LPA2."""
    assert decode(layout, level, VALID | AF | USER).state == state
    assert decode(layout, level, VALID | TABLE).state == "table"


def test_a_block_type_is_reserved_at_the_last_level() -> None:
    entry = decode(NEW, "pte", PAGE & ~TABLE)
    assert (entry.state, entry.hw_present) == ("invalid", True)


@pytest.mark.parametrize("level", ["pud", "pmd"])
def test_prot_none_of_hugetlb(level: str) -> None:
    kept = AF | RDONLY | PXN | UXN | DIRTY | 1 << 30
    for layout, raw in ((OLD, 1 << 58 | kept), (NEW, NG | kept)):
        entry = decode(layout, level, raw)
        assert (entry.state, entry.pa, entry.dirty) == ("protnone", 1 << 30, True)


def test_mid_split_has_a_bit_of_its_own_up_to_6_9() -> None:
    """PMD_PRESENT_INVALID; also of a PROT_NONE page, which keeps that bit."""
    block = (DATA | 0x200000) & ~(VALID | TABLE | 0x1FF000)
    for raw in (block | 1 << 59, block | 1 << 59 | 1 << 58):
        entry = decode(OLD, "pmd", raw)
        assert (entry.state, entry.pa) == ("splitting", PA & ~0x1FFFFF | 0x200000)
    assert decode(OLD, "pmd", block).state != "splitting"


@pytest.mark.parametrize("permissions", [USER | PXN | UXN, USER | PXN, PXN])
def test_mid_split_from_6_10_is_told_by_its_permissions(permissions: int) -> None:
    """pmd_mkinvalid() sets nG and clears valid; pte_protnone() asks for no access at all."""
    raw = NG | AF | 0x200000 | permissions
    assert decode(NEW, "pmd", raw).state == "splitting"
    # Nothing else of the kernel is like that.
    assert decode(NEW, "pte", raw).state == decode(NEW, "pud", raw).state == "invalid"
    assert decode(NEW, "pmd", raw & ~USER | UXN).state == "protnone"


@pytest.mark.parametrize("layout", [OLD, NEW], ids=lambda layout: layout.name)
def test_a_page_taken_out_of_the_linear_map_is_not_swap(layout: Layout) -> None:
    entry = decode(layout, "pte", KERNEL_DATA & ~VALID)
    assert (entry.state, entry.swap) == ("invalid", None)


@pytest.mark.parametrize(
    ("layout", "level", "entries", "span"),
    [
        (NEW, "pte", 16, 1 << 12),
        (NEW, "pmd", 16, 1 << 21),
        (load("debian-6.12-arm64-16k"), "pte", 128, 1 << 14),
        (load("debian-6.12-arm64-16k"), "pmd", 32, 1 << 25),
        (NEW.with_context(page_size=65536), "pte", 32, 1 << 16),
        (NEW.with_context(page_size=65536), "pmd", 32, 1 << 29),
    ],
)
def test_contiguous_groups(layout: Layout, level: str, entries: int, span: int) -> None:
    pa = 3 * span
    raw = DATA & ~PA | CONT | pa
    entry = decode(layout, level, raw if level == "pte" else raw & ~TABLE)
    assert (entry.contiguous, entry.page_size) == (True, span)
    assert (entry.mapping_size, entry.pa) == (entries * span, pa)


def test_address_bits_with_and_without_lpa2() -> None:
    raw = DATA | 0x300
    assert decode(NEW, "pte", raw).pa == PA | 0xC000000000000
    assert decode(NARROW, "pte", raw).pa == PA
    assert "sh=3(9:8)" in flag_words(NARROW, decode(NARROW, "pte", raw))
    assert not any(word.startswith("sh=") for word in flag_words(NEW, decode(NEW, "pte", raw)))


def test_protection_keys_where_overlays_are_in_use() -> None:
    raw = DATA | 5 << 60
    assert decode(NEW, "pte", raw).pkey is None
    layout = NEW.with_context(pkeys=1)
    assert decode(layout, "pte", raw).pkey == 5
    assert decode(layout, "pte", TEXT & ~USER | 5 << 60).pkey == 5
    assert decode(layout, "pte", KERNEL_DATA | 5 << 60).pkey is None
    assert decode(OLD.with_context(pkeys=1), "pte", raw).pkey is None


def walk(leaf: int, *tables: int) -> Effective:
    """A walk of four levels, its tables from the root down."""
    raws = [0x5000 | VALID | TABLE | bits for bits in tables] + [leaf]
    entries = [decode(OLD, level.name, raw) for level, raw in zip(OLD.levels, raws, strict=True)]
    return effective(OLD, entries)


@pytest.mark.parametrize(
    ("leaf", "tables", "permissions", "decided_by"),
    [
        (TEXT, (0, 0, 0), "rxu", {"write": "pte"}),
        # PXNTable, which Linux sets in the tables of user space, is not about user mode …
        (TEXT, (PXN_TABLE,) * 3, "rxu", {"write": "pte"}),
        # … and UXNTable, which it sets in those of the kernel, not about the kernel.
        (KERNEL_TEXT, (UXN_TABLE,) * 3, "rx", {"write": "pte", "user": "pte"}),
        (TEXT, (0, UXN_TABLE, 0), "ru", {"write": "pte", "exec": "pud"}),
        (KERNEL_TEXT, (0, 0, PXN_TABLE), "r", {"write": "pte", "exec": "pmd", "user": "pte"}),
        (DATA, (READ_ONLY, 0, 0), "ru", {"write": "pgd", "exec": "pte"}),
        # APTable[0] takes it from user mode, and what is left is asked for the kernel.
        (DATA, (0, NO_USER, 0), "rw", {"user": "pud", "exec": "pte"}),
        (TEXT & ~PXN, (0, NO_USER, UXN_TABLE), "rx", {"user": "pud", "write": "pte"}),
        (TEXT & ~USER, (PXN_TABLE,) * 3, "xu", {"read": "pte", "write": "pte"}),
    ],
)
def test_fold(
    leaf: int, tables: tuple[int, ...], permissions: str, decided_by: dict[str, str]
) -> None:
    result = walk(leaf, *tables)
    assert allowed(result) == permissions
    assert result.decided_by == {**dict.fromkeys(PERMISSIONS), **decided_by}


@given(raw=st.integers(0, (1 << 64) - 1).map(lambda raw: raw | VALID | TABLE))
def test_a_leaf_alone_allows_what_the_fold_asks_of_it(raw: int) -> None:
    for layout in (OLD, GCS):
        entry = decode(layout, "pte", raw)
        assert entry.access is not None
        asked = "exec.user" if entry.access.user else "exec.kernel"
        assert entry.access.exec == has_attribute(layout, entry, asked)


def test_a_table_says_what_it_leaves_possible() -> None:
    table = 0x5000 | VALID | TABLE
    assert allowed(decode(NEW, "pmd", table)) == "rwxu"
    assert allowed(decode(NEW, "pmd", table | PXN_TABLE)) == "rwxu"
    assert allowed(decode(NEW, "pmd", table | UXN_TABLE)) == "rwxu"
    assert allowed(decode(NEW, "pmd", table | PXN_TABLE | UXN_TABLE)) == "rwu"
    assert allowed(decode(NEW, "pmd", table | NO_USER | READ_ONLY)) == "rx"


def test_words() -> None:
    words = flag_words(NARROW, decode(NARROW, "pte", DATA | 4 << 2 | 0x300 | 1 << 50))
    assert words == [
        "valid(0)",
        "page(1)",
        "attr=4(4:2)",
        "user(6)",
        "sh=3(9:8)",
        "accessed(10)",
        "ng(11)",
        "guarded(50)",
        "write(51)",
        "pxn(53)",
        "uxn(54)",
        "dirty(55)",
    ]
    protnone = decode(NEW, "pte", NG | PXN | UXN | TABLE | PA)
    assert flag_words(NEW, protnone) == ["page(1)", "protnone(11)", "pxn(53)", "uxn(54)"]
    table = decode(NEW, "pgd", 0x5000 | VALID | TABLE | PXN_TABLE)
    assert flag_words(NEW, table) == ["valid(0)", "table(1)", "pxn-table(59)"]
