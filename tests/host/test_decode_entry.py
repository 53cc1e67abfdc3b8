# SPDX-License-Identifier: GPL-2.0-or-later
"""The traps of x86-64 that the vectors do not show, one small value each."""

from __future__ import annotations

import pytest
from ptscope.decode.entry import Access, decode
from ptscope.decode.layout import Layout, load
from ptscope.errors import UsageError
from ptscope.views.entry import flag_words

FIVE = load("debian-6.1-amd64")
FOUR = FIVE.with_context(paging_levels=4)
PFN = FIVE.facts["mask.pfn"]
SWAP_OFFSET = FIVE.facts["swap.offset_mask"]


def special(kind: str, offset: int, layout: Layout = FIVE) -> int:
    """A special entry: its type in the top five bits, its offset inverted from bit 9 on."""
    return layout.facts[f"swap.kind.{kind}"] << 59 | (SWAP_OFFSET ^ offset << 9)


def with_facts(**facts: int) -> Layout:
    return Layout("made up", FIVE.arch, FIVE.release, {**FIVE.facts, **facts}, FIVE.runtime)


@pytest.mark.parametrize("level", ["pgd", "p4d", "pud", "pmd", "pte"])
def test_zero_is_empty_at_every_level(level: str) -> None:
    entry = decode(FIVE, level, 0)
    assert (entry.state, entry.swap, entry.pa, entry.flags) == ("none", None, None, ())


@pytest.mark.parametrize(
    ("layout", "level", "state"),
    [
        (FIVE, "pte", "none"),
        (FIVE, "p4d", "none"),
        (FOUR, "pgd", "none"),
        # pgd_none() is exact, and the rest of a root entry has to be a table.
        (FIVE, "pgd", "invalid"),
    ],
)
def test_stray_accessed_and_dirty_leave_an_entry_empty(
    layout: Layout, level: str, state: str
) -> None:
    """The Knights Landing erratum: _PAGE_KNL_ERRATUM_MASK in pgtable_types.h."""
    assert decode(layout, level, 0x60).state == state


@pytest.mark.parametrize("level", ["pgd", "p4d"])
@pytest.mark.parametrize("raw", [0xE7, 0x100, 1 << 59, 0xFFFFFE8DF7E160])
def test_roots_are_tables_or_empty(level: str, raw: int) -> None:
    entry = decode(FIVE, level, raw)
    assert (entry.state, entry.pa, entry.access) == ("invalid", None, None)
    assert entry.reason


def test_one_gib_prot_none_keeps_its_frame() -> None:
    """A hugetlb page of 1 GiB goes through pte_modify() like any other."""
    entry = decode(FIVE, "pud", PFN ^ 0x5C0000000 | 0x1E0)
    assert (entry.state, entry.pa, entry.page_size) == ("protnone", 0x5C0000000, 1 << 30)
    assert entry.access == Access(read=False, write=False, exec=False, user=False)
    # The bit that says so is the global bit of present entries.
    assert entry.global_ is None


def test_protnone_without_page_size_is_no_huge_page() -> None:
    assert decode(FIVE, "pmd", PFN | 0x100).state == "invalid"


def test_mid_split_exists_at_pmd_only() -> None:
    assert decode(FIVE, "pmd", PFN | 0x80).state == "splitting"
    assert decode(FIVE, "pud", PFN | 0x80).state == "invalid"


@pytest.mark.parametrize("level", ["pud", "pmd", "pte"])
@pytest.mark.parametrize(
    ("kind", "state", "pfn"),
    [
        ("migration_read", "migration", 0x34C600),
        ("migration_read_exclusive", "migration", 0x34C600),
        ("migration_write", "migration", 0x34C600),
        ("hwpoison", "hwpoison", 0x34C600),
    ],
)
def test_special_entries_at_all_leaf_levels(level: str, kind: str, state: str, pfn: int) -> None:
    """THP migrates at PMD level, hugetlb migrates and fails at PMD and PUD level."""
    entry = decode(FIVE, level, special(kind, pfn))
    assert (entry.state, entry.pfn, entry.pa) == (state, pfn, pfn << 12)
    assert entry.page_size == FIVE.level(level).span
    assert entry.swap is not None
    assert entry.swap.kind == kind


def test_a_type_that_the_kernel_does_not_use_is_invalid() -> None:
    layout = with_facts(**{"swap.kind.marker": 31})  # and so 30 is nothing
    assert decode(FIVE, "pte", special("marker", 1)).state == "marker"
    entry = decode(layout, "pte", special("marker", 1, FIVE))
    assert (entry.state, entry.swap) == ("invalid", None)
    assert "30" in entry.reason


def test_device_entries() -> None:
    """CONFIG_DEVICE_PRIVATE: four more types below the marker, and fewer swap files."""
    layout = with_facts(**{"swap.kind.device_private_read": 25})
    raw = special("device_private_read", 0x1234, layout)
    entry = decode(layout, "pte", raw)
    assert (entry.state, entry.pfn, entry.accessed) == ("device", 0x1234, None)
    assert decode(FIVE, "pte", raw).state == "swap"


@pytest.mark.parametrize(
    ("offset", "kind"),
    [
        (1, "uffd_wp_marker"),
        (2, "poison_marker"),
        (3, "poison_marker"),
        (4, "guard_marker"),
        (8, "unknown_marker"),
    ],
)
def test_markers(offset: int, kind: str) -> None:
    layout = with_facts(**{"swap.marker.poisoned": 2, "swap.marker.guard": 4})
    entry = decode(layout, "pte", special("marker", offset))
    assert entry.state == "marker"
    assert entry.swap is not None
    assert entry.swap.kind == kind
    assert entry.uffd_wp == bool(offset & 1)
    assert entry.pfn is None


def test_swapin_error() -> None:
    """SWP_SWAPIN_ERROR (5.19 to 6.3) is no is_pfn_swap_entry(), though a frame is stored."""
    layout = with_facts(**{"swap.kind.swapin_error": 31})
    entry = decode(layout, "pte", special("swapin_error", 0x1234, layout))
    assert (entry.state, entry.pfn) == ("marker", None)
    assert entry.swap is not None
    assert (entry.swap.kind, entry.uffd_wp) == ("swapin_error", False)


def test_migration_without_ages_before_6_1() -> None:
    """Without SWP_PFN_BITS the whole offset is the frame, and ages are not kept."""
    runtime = {key: value for key, value in FIVE.runtime.items() if key != "swap_pfn_bits"}
    layout = Layout("made up", FIVE.arch, FIVE.release, FIVE.facts, runtime)
    entry = decode(layout, "pte", special("migration_read", 1 << 45 | 7))
    assert (entry.pfn, entry.accessed, entry.dirty) == (1 << 45 | 7, None, None)


def test_shadow_stack_only_when_in_use() -> None:
    raw = 0x800000060A8A1065
    assert decode(FIVE, "pte", raw).shadow_stack is False
    entry = decode(FIVE.with_context(shadow_stack=1), "pte", raw)
    assert entry.shadow_stack is True
    assert entry.access is not None
    assert not entry.access.write


def test_a_kernel_without_a_bit_says_unsupported_not_clean() -> None:
    facts = {key: value for key, value in FIVE.facts.items() if "soft_dirty" not in key}
    layout = Layout("made up", FIVE.arch, FIVE.release, facts, FIVE.runtime)
    assert decode(layout, "pte", 0x1867).soft_dirty is None
    assert decode(FIVE, "pte", 0x1067).soft_dirty is False
    assert decode(layout, "pte", 0x1867).flags[-1] == "unused"


def test_without_nx_everything_can_be_executed() -> None:
    entry = decode(FIVE.with_context(nx=0), "pte", 0x8000000000001067)
    assert entry.access is not None
    assert entry.access.exec


@pytest.mark.parametrize(
    ("raw", "level", "pkey"),
    [(0x5800000000001067, "pte", 11), (0x5800000000001063, "pte", None), (0x67, "pmd", None)],
)
def test_protection_keys_are_for_user_leaves(raw: int, level: str, pkey: int | None) -> None:
    assert decode(FIVE, level, raw).pkey == pkey
    assert decode(FIVE.with_context(pkeys=0), level, raw).pkey is None


@pytest.mark.parametrize("name", ["debian-6.12-amd64", "debian-7.2-amd64", "debian-7.3-amd64"])
@pytest.mark.parametrize("levels", [4, 5])
def test_bit_58_of_the_root_is_about_pti_and_of_a_leaf_about_dirty(name: str, levels: int) -> None:
    layout = load(name).with_context(paging_levels=levels)
    raw = 1 << 58 | 0x1027
    assert flag_words(layout, decode(layout, "pgd", raw))[-1] == "no-pti-shadow(58)"
    assert flag_words(layout, decode(layout, "pmd", raw))[-1] == "unused(58)"
    leaf = decode(layout, "pte", raw)
    assert (flag_words(layout, leaf)[-1], leaf.dirty) == ("saved-dirty(58)", True)


def test_words_carry_bit_numbers() -> None:
    assert flag_words(FIVE, decode(FIVE, "pte", 0xD810000000001067)) == [
        "present(0)",
        "rw(1)",
        "user(2)",
        "accessed(5)",
        "dirty(6)",
        "unused(52)",
        "pkey=11(62:59)",
        "nx(63)",
    ]


@pytest.mark.parametrize("raw", [-1, 1 << 64])
def test_more_than_64_bits_are_refused(raw: int) -> None:
    with pytest.raises(UsageError, match="64-bit"):
        decode(FIVE, "pte", raw)


@pytest.mark.parametrize(("level", "words"), [("p4d", "folded"), ("p5d", "no level")])
def test_levels_that_are_not_walked_are_refused(level: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as error:
        decode(FOUR, level, 0)
    assert "pgd, pud, pmd, pte" in str(error.value.remedy)
