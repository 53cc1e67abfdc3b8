# SPDX-License-Identifier: GPL-2.0-or-later
"""Layouts: text and JSON, overrides, geometry, and refusing what is not one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ptscope.decode.layout import Layout, available, load
from ptscope.errors import Unsupported, UsageError

FIVE = load("debian-6.1-amd64")
FOUR = FIVE.with_context(paging_levels=4)


def as_text(layout: Layout) -> str:
    """The text the module would print for a layout."""
    lines = ["format 1", f"arch {layout.arch}", f"release {layout.release}"]
    lines += [f"{key} {value:#x}" for key, value in layout.facts.items()]
    lines += [f"runtime.{key} {value}" for key, value in layout.runtime.items()]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", available())
def test_shipped_files_are_written_as_we_write_them(name: str) -> None:
    path = Path(__file__).parents[2] / "pyharness/src/ptscope/layouts" / f"{name}.json"
    assert path.read_text() == load(name).to_text()


def test_round_trips() -> None:
    assert Layout.from_text(as_text(FIVE)) == FIVE
    assert Layout.from_json(FIVE.to_text()) == FIVE
    again = Layout.from_json(json.loads(json.dumps(FIVE.to_json())))
    assert again == FIVE
    assert (again.name, hash(again)) == (FIVE.name, hash(FIVE))


def test_masks_and_addresses_are_hex_text() -> None:
    """A JSON number of 64 bits would lose its low bits in many readers."""
    written = FIVE.to_json()
    for part in ("facts", "runtime"):
        numbers = written[part]
        assert isinstance(numbers, dict)
        for key, value in numbers.items():
            assert isinstance(value, str) or value < 1 << 16, key
        assert any(isinstance(value, str) for value in numbers.values())


def test_name_is_no_part_of_equality() -> None:
    assert Layout.from_text(as_text(FIVE), name="live") == FIVE
    assert FIVE != FOUR
    assert Layout.from_text(as_text(FIVE).replace(FIVE.release, "6.1.0-58-amd64")) != FIVE
    assert Layout.from_text(as_text(FIVE).replace("bit.nx 0x3f", "bit.nx 0x3e")) != FIVE


def test_four_levels_follow_from_five() -> None:
    expected = {
        **FIVE.runtime,
        "levels": 4,
        "level.pgd.shift": 39,
        "user_last": 0x00007FFFFFFFFFFF,
        "kernel_first": 0xFFFF800000000000,
        "swap_pfn_bits": 34,
    }
    del expected["level.p4d.shift"], expected["level.p4d.entries"]
    assert FOUR.runtime == expected
    assert FOUR.facts == FIVE.facts
    assert FOUR.with_context(paging_levels=5) == FIVE


def test_c_bit_follows_sme_me_mask() -> None:
    layout = FIVE.with_context({"c_bit": 47})
    assert layout.runtime["c_mask"] == 1 << 47
    assert layout.runtime["physical_mask"] == FIVE.runtime["physical_mask"] & ~(1 << 47)
    # Moved, then taken away: nothing of the first setting is left.
    assert layout.with_context(c_bit=51) == FIVE.with_context(c_bit=51)
    assert layout.with_context(c_bit=None) == FIVE


@pytest.mark.parametrize(
    "context",
    [
        {"paging_levels": 3},
        {"c_bit": 11},
        {"c_bit": 64},
        {"c_bit": -1},
        {"page_size": 16384},
        {"pti": 2},
        {"lpa2": True},
        {"nonsense": 1},
    ],
)
def test_context_that_cannot_be(context: dict[str, int | None]) -> None:
    with pytest.raises(UsageError) as error:
        FIVE.with_context(context)
    assert error.value.remedy


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (
            FIVE,
            [("pgd", 5, 48), ("p4d", 4, 39), ("pud", 3, 30), ("pmd", 2, 21), ("pte", 1, 12)],
        ),
        (FOUR, [("pgd", 5, 39), ("pud", 3, 30), ("pmd", 2, 21), ("pte", 1, 12)]),
    ],
)
def test_levels(layout: Layout, expected: list[tuple[str, int, int]]) -> None:
    assert [(level.name, level.number, level.shift) for level in layout.levels] == expected
    assert all(level.entries == 512 for level in layout.levels)
    assert layout.level("pmd").span == 2 << 20
    assert layout.page_size == 4096


def test_folding() -> None:
    assert FOUR.all_level_names == ("pgd", "p4d", "pud", "pmd", "pte")
    assert [name for name in FOUR.all_level_names if FOUR.is_folded(name)] == ["p4d"]
    assert not any(FIVE.is_folded(name) for name in FIVE.all_level_names)
    with pytest.raises(UsageError):
        FOUR.is_folded("p5d")


def test_indexes_put_an_address_together_again() -> None:
    address = 0x7FFE4C1F2ABC
    for layout in (FIVE, FOUR):
        parts = sum(layout.index(level, address) << level.shift for level in layout.levels)
        assert parts == address & ~0xFFF
    assert FOUR.index("pgd", address) == FIVE.index("p4d", address) == 255


@pytest.mark.parametrize(
    ("address", "five", "four"),
    [
        (0, True, True),
        (0x00007FFFFFFFFFFF, True, True),
        (0x0000800000000000, True, False),
        (0x00FFFFFFFFFFFFFF, True, False),
        (0x0100000000000000, False, False),
        (0xFEFFFFFFFFFFFFFF, False, False),
        (0xFF00000000000000, True, False),
        (0xFFFF7FFFFFFFFFFF, True, False),
        (0xFFFF800000000000, True, True),
        (0xFFFFFFFFFFFFFFFF, True, True),
        (0x10000000000000000, False, False),
        (-1, False, False),
    ],
)
def test_canonical(address: int, five: bool, four: bool) -> None:
    assert (FIVE.is_canonical(address), FOUR.is_canonical(address)) == (five, four)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("format 1", "format 2", "format 2"),
        ("format 1\n", "", "format none"),
        ("arch x86_64", "arch vax", "vax"),
        ("bit.present", "bit.absent", "lacks bit.present"),
        ("runtime.levels 5", "runtime.levels 4", "describes 5"),
        ("bit.present 0x0", "bit.present maybe", "no 64-bit number"),
        ("bit.present 0x0", "bit.present -1", "no 64-bit number"),
        ("bit.present 0x0", "bit.present 0x10000000000000000", "no 64-bit number"),
        ("bit.present 0x0", "bit.present", "line"),
        ("bit.write", "bit.present", "line"),
    ],
)
def test_text_that_is_no_layout(old: str, new: str, words: str) -> None:
    text = as_text(FIVE)
    assert old in text
    with pytest.raises(Unsupported, match=words):
        Layout.from_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("part", "key", "value", "words"),
    [
        ("facts", "bit.present", 64, "bit.present is 64, not 0 to 63"),
        ("facts", "swap.bit.exclusive", 64, "swap.bit.exclusive is 64"),
        ("facts", "bit.nx", 0, "bit.nx and bit.present are both 0"),
        ("facts", "bit.special", 1, "bit.special and bit.write are both 1"),
        ("facts", "page_shift", 11, "page_shift is 11, not 12 to 16"),
        ("facts", "page_shift", 13, "runtime.level.pte.shift is not page_shift"),
        ("runtime", "level.pud.shift", 64, "not 12 to 63"),
        ("runtime", "level.pgd.shift", 39, "level pgd has no greater shift than p4d"),
        ("runtime", "level.pud.entries", 511, "no power of 2"),
        ("runtime", "user_last", 2**64 - 1, "not below runtime.kernel_first"),
        ("facts", "bit.dirty", "x", "bit.dirty is no 64-bit number: 'x'"),
        ("facts", "bit.dirty", None, "bit.dirty is no 64-bit number"),
    ],
)
def test_file_with_numbers_that_cannot_be(
    part: str, key: str, value: object, words: str, tmp_path: Path
) -> None:
    content = json.loads(FIVE.to_text())
    content[part][key] = value
    path = tmp_path / "layout.json"
    path.write_text(json.dumps(content))
    with pytest.raises(UsageError) as error:
        load(str(path))
    assert error.value.cause.startswith(f"{path} is no layout: ")
    assert words in error.value.cause


@pytest.mark.parametrize("content", [b"", b"\xff", b"[" * 100000, b"{}", b"[]"])
def test_file_that_is_no_layout(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "layout.json"
    path.write_bytes(content)
    with pytest.raises(UsageError) as error:
        load(str(path))
    assert error.value.cause.startswith(f"{path} is no layout: ")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1, "facts": 3}', "{"])
def test_json_that_is_no_layout(text: str) -> None:
    with pytest.raises(Unsupported, match="layout"):
        Layout.from_json(text)


def test_load_by_name_and_by_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(FOUR.to_text())
    mine = load(str(path))
    assert (mine, mine.name) == (FOUR, "mine")
    with pytest.raises(UsageError) as error:
        load("no-such")
    assert "debian-6.1-amd64" in str(error.value.remedy)
    with pytest.raises(UsageError, match="cannot read"):
        load(str(tmp_path / "absent.json"))
    with pytest.raises(UsageError):
        load("../layouts/debian-6.1-amd64")


def test_facts_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        FIVE.facts["bit.present"] = 3  # type: ignore[index]
