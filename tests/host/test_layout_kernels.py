# SPDX-License-Identifier: GPL-2.0-or-later
"""What the shipped layouts say about each kernel, and what follows from each context key.

Expected values are read from the kernels' headers (``arch/*/include/asm/``,
``include/linux/swap.h``) and Debian's configurations.
"""

from __future__ import annotations

import pytest
from ptscope.decode.layout import Layout, available, load
from ptscope.errors import UsageError

X86 = tuple(name for name in available() if name.endswith("amd64"))
ARM64 = tuple(name for name in available() if "arm64" in name)
RISCV64 = tuple(name for name in available() if name.endswith("riscv64"))


def field(low: int, high: int) -> int:
    return (1 << high + 1) - (1 << low)


def facts(name: str, *keys: str) -> tuple[int | None, ...]:
    return tuple(load(name).facts.get(key) for key in keys)


def geometry(layout: Layout) -> list[tuple[str, int, int]]:
    return [(level.name, level.shift, level.entries) for level in layout.levels]


@pytest.mark.parametrize(
    ("name", "type_field", "offset_field", "exclusive", "uffd_wp"),
    [
        ("debian-5.10-amd64", (59, 63), (9, 58), None, 2),
        *((name, (59, 63), (9, 58), 3, 2) for name in X86 if "5.10" not in name),
        ("debian-5.10-arm64", (2, 6), (8, 57), None, None),
        ("debian-6.1-arm64", (3, 7), (8, 57), 2, None),
        *((name, (6, 10), (12, 61), 2, 3) for name in ARM64 if "6.12" in name or "7.2" in name),
        ("debian-6.12-riscv64", (7, 11), (12, 63), 6, None),
        ("debian-7.2-riscv64", (7, 11), (12, 63), 6, 4),
    ],
)
def test_swap_entries(
    name: str,
    type_field: tuple[int, int],
    offset_field: tuple[int, int],
    exclusive: int | None,
    uffd_wp: int | None,
) -> None:
    assert facts(
        name, "swap.type_mask", "swap.offset_mask", "swap.bit.exclusive", "swap.bit.uffd_wp"
    ) == (field(*type_field), field(*offset_field), exclusive, uffd_wp)
    assert load(name).facts["swap.offset_inverted"] == (name in X86)


@pytest.mark.parametrize("name", ARM64)
def test_arm64_prot_none_moved_in_6_10(name: str) -> None:
    old = "5.10" in name or "6.1-" in name
    expected = (58, 59, None) if old else (11, None, 58)
    assert facts(name, "bit.protnone", "bit.pmd_present_invalid", "bit.uffd_wp") == expected


@pytest.mark.parametrize("name", X86)
def test_x86_software_bits_moved_for_saved_dirty(name: str) -> None:
    """6.6 took bit 58 for saved-dirty and moved devmap to 57; 7.x has no devmap."""
    expected: tuple[int | None, ...]
    if "5.10" in name or "6.1-" in name:
        expected = (58, None, None)
    else:
        expected = (57 if "6.12" in name else None, 58, 58)
    assert facts(name, "bit.devmap", "bit.saved_dirty", "bit.noptishadow") == expected


@pytest.mark.parametrize("name", X86)
def test_x86_names_of_7_3_are_the_bits_of_before(name: str) -> None:
    """_PAGE_BIT_UFFD_WP became _PAGE_BIT_UFFD."""
    assert facts(name, "bit.uffd_wp", "bit.soft_dirty", "swap.bit.soft_dirty") == (10, 11, 1)


@pytest.mark.parametrize("name", available())
def test_which_kernels_split_1_gib_pages(name: str) -> None:
    """pud_mkinvalid(): x86 from 6.11, riscv from 7.x, not arm64."""
    expected = name in ("debian-6.12-amd64", "debian-7.2-amd64", "debian-7.3-amd64") or (
        name == "debian-7.2-riscv64"
    )
    assert load(name).facts.get("pud_mkinvalid", 0) == expected


@pytest.mark.parametrize(
    ("name", "soft_dirty", "uffd_wp", "devmap"),
    [("debian-6.12-riscv64", None, None, 9), ("debian-7.2-riscv64", 59, 60, None)],
)
def test_riscv_software_bits(
    name: str, soft_dirty: int | None, uffd_wp: int | None, devmap: int | None
) -> None:
    expected = (soft_dirty, uffd_wp, devmap, 5)
    assert facts(name, "bit.soft_dirty", "bit.uffd_wp", "bit.devmap", "bit.protnone") == expected


@pytest.mark.parametrize(
    ("name", "levels", "last"),
    [
        ("debian-5.10-amd64", 4, 0x00007FFFFFFFFFFF),
        ("debian-7.3-amd64", 5, 0x00FFFFFFFFFFFFFF),
        ("debian-5.10-arm64", 4, 0x0000FFFFFFFFFFFF),
        ("debian-6.1-arm64", 4, 0x0000FFFFFFFFFFFF),
        ("debian-6.12-arm64", 5, 0x000FFFFFFFFFFFFF),
        ("debian-7.2-arm64-16k", 4, 0x000FFFFFFFFFFFFF),
        ("debian-6.12-riscv64", 5, 0x00FFFFFFFFFFFFFF),
    ],
)
def test_geometry_as_shipped(name: str, levels: int, last: int) -> None:
    layout = load(name)
    assert (len(layout.levels), layout.facts["max_levels"]) == (levels, levels)
    assert layout.user_last == last
    assert layout.kernel_first == (1 << 64) - 1 - last


@pytest.mark.parametrize(
    ("name", "context", "expected", "half_bits"),
    [
        (
            "debian-6.12-amd64",
            {"paging_levels": 4},
            [("pgd", 39, 512), ("pud", 30, 512), ("pmd", 21, 512), ("pte", 12, 512)],
            47,
        ),
        (
            "debian-6.12-arm64",
            {},
            [
                *(("pgd", 48, 16), ("p4d", 39, 512), ("pud", 30, 512)),
                *(("pmd", 21, 512), ("pte", 12, 512)),
            ],
            52,
        ),
        (
            "debian-7.2-arm64",
            {"lpa2": 0},
            [("pgd", 39, 512), ("pud", 30, 512), ("pmd", 21, 512), ("pte", 12, 512)],
            48,
        ),
        (
            "debian-6.12-arm64-16k",
            {},
            [("pgd", 47, 32), ("pud", 36, 2048), ("pmd", 25, 2048), ("pte", 14, 2048)],
            52,
        ),
        (
            "debian-6.12-arm64-16k",
            {"lpa2": 0},
            [("pgd", 36, 2048), ("pmd", 25, 2048), ("pte", 14, 2048)],
            47,
        ),
        (
            "debian-6.12-arm64",
            {"page_size": 65536},
            [("pgd", 42, 1024), ("pmd", 29, 8192), ("pte", 16, 8192)],
            52,
        ),
        (
            "debian-6.1-arm64",
            {"page_size": 65536},
            [("pgd", 42, 64), ("pmd", 29, 8192), ("pte", 16, 8192)],
            48,
        ),
        (
            "debian-6.12-riscv64",
            {"paging_levels": 4},
            [("pgd", 39, 512), ("pud", 30, 512), ("pmd", 21, 512), ("pte", 12, 512)],
            47,
        ),
        (
            "debian-7.2-riscv64",
            {"paging_levels": 3},
            [("pgd", 30, 512), ("pmd", 21, 512), ("pte", 12, 512)],
            38,
        ),
    ],
)
def test_geometry_in_context(
    name: str, context: dict[str, int], expected: list[tuple[str, int, int]], half_bits: int
) -> None:
    layout = load(name).with_context(context)
    assert geometry(layout) == expected
    assert layout.user_last == (1 << half_bits) - 1
    assert layout.kernel_first == (1 << 64) - (1 << half_bits)


@pytest.mark.parametrize(
    ("name", "context", "pfn_bits"),
    [
        ("debian-6.1-amd64", {}, 40),
        ("debian-7.3-amd64", {"paging_levels": 4}, 34),
        ("debian-6.1-arm64", {}, 36),
        ("debian-6.12-arm64", {}, 40),
        ("debian-6.12-arm64", {"lpa2": 0}, 36),
        ("debian-6.12-arm64-16k", {}, 38),
        ("debian-6.12-arm64-16k", {"lpa2": 0}, 34),
        ("debian-6.12-arm64", {"page_size": 65536}, 36),
        ("debian-7.2-riscv64", {"paging_levels": 3}, 44),
        ("debian-5.10-amd64", {}, None),
        ("debian-5.10-arm64", {}, None),
    ],
)
def test_frame_bits_of_migration_entries(
    name: str, context: dict[str, int], pfn_bits: int | None
) -> None:
    assert load(name).with_context(context).runtime.get("swap_pfn_bits") == pfn_bits


@pytest.mark.parametrize("version", ["6.12", "7.2"])
def test_a_page_size_is_all_that_sets_the_16k_kernel_apart(version: str) -> None:
    """The derived layout equals that of the kernel Debian builds."""
    small, large = load(f"debian-{version}-arm64"), load(f"debian-{version}-arm64-16k")
    for lpa2 in (0, 1):
        derived = small.with_context(page_size=16384, lpa2=lpa2)
        assert derived.facts == large.facts
        assert derived.runtime == large.with_context(lpa2=lpa2).runtime
        back = large.with_context(page_size=4096, lpa2=lpa2)
        assert (back.facts, back.runtime) == (small.facts, small.with_context(lpa2=lpa2).runtime)


def test_64k_pages_and_back() -> None:
    layout = load("debian-6.12-arm64")
    large = layout.with_context(page_size=65536)
    assert (large.page_size, large.facts["mask.pfn_high"]) == (65536, 0xF000)
    assert large.facts["shift.pfn_high"] == 36
    assert large.with_context(page_size=4096, lpa2=1) == layout


@pytest.mark.parametrize("name", available())
def test_what_already_holds_can_be_said(name: str) -> None:
    layout = load(name)
    context = {"paging_levels": len(layout.levels), "page_size": layout.page_size}
    context |= {key: layout.runtime[key] for key in ("lpa2", "pti") if key in layout.runtime}
    assert layout.with_context(context) == layout


@pytest.mark.parametrize(
    "name", [name for name in available() if load(name).facts["max_levels"] == 5]
)
def test_fewer_levels_and_back(name: str) -> None:
    layout = load(name)
    fewer = layout.with_context(paging_levels=4)
    assert (len(fewer.levels), fewer.is_folded("p4d")) == (4, True)
    assert fewer.facts == layout.facts
    assert fewer.with_context(paging_levels=5) == layout


def test_the_order_of_keys_does_not_matter() -> None:
    layout = load("debian-6.12-arm64")
    keys = [("paging_levels", 3), ("page_size", 16384)]  # 3 levels exist with 16K pages only
    expected = layout.with_context(dict(keys))
    assert layout.with_context(dict(reversed(keys))) == expected
    assert geometry(expected)[0] == ("pgd", 36, 2048)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("debian-5.10-amd64", "paging_levels", 5),
        ("debian-6.12-amd64", "paging_levels", 3),
        ("debian-6.12-amd64", "page_size", 16384),
        ("debian-6.12-amd64", "pti", 2),
        ("debian-6.12-amd64", "c_bit", 11),
        ("debian-6.1-arm64", "lpa2", 1),
        ("debian-6.1-arm64", "paging_levels", 5),
        ("debian-6.12-arm64", "paging_levels", 3),
        ("debian-6.12-arm64", "page_size", 8192),
        ("debian-6.12-arm64", "lpa2", 2),
        ("debian-6.12-arm64", "lpa2", None),
        ("debian-6.12-arm64-16k", "paging_levels", 5),
        ("debian-6.12-riscv64", "paging_levels", 6),
        ("debian-6.12-riscv64", "page_size", 65536),
        ("debian-6.12-riscv64", "svrsw60t59b", 1),
    ],
)
def test_what_cannot_be_is_refused(name: str, key: str, value: int | None) -> None:
    with pytest.raises(UsageError, match=f"{key} cannot be") as error:
        load(name).with_context({key: value})
    assert error.value.remedy
    assert key in error.value.remedy


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("debian-6.12-arm64", "c_bit"),
        ("debian-6.12-arm64", "pti"),
        ("debian-6.12-riscv64", "lpa2"),
        ("debian-6.12-amd64", "lpa2"),
    ],
)
def test_keys_of_other_architectures_are_refused(name: str, key: str) -> None:
    with pytest.raises(UsageError, match="no context key"):
        load(name).with_context({key: 0})


def test_lpa2_is_refused_with_64k_pages() -> None:
    with pytest.raises(UsageError, match="lpa2 cannot be 1"):
        load("debian-6.12-arm64").with_context(page_size=65536, lpa2=1)
