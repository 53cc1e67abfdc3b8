# SPDX-License-Identifier: GPL-2.0-or-later
"""The kernel half, at addresses whose physical address is known from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import command
import compare
import pytest
import rawfiles
import witness
from ptscope.decode.entry import decode
from ptscope.decode.layout import Layout
from puppet import Puppet

PAGE = witness.PAGE


def physical(walk: dict[str, Any]) -> int:
    return int(walk["mapping"]["pa"], 16)


def test_kernel_text_lies_where_iomem_says() -> None:
    """The image is mapped as one piece, and begins where "Kernel code" does."""
    text = witness.kernel_text()
    first, last = witness.iomem("Kernel code")
    for offset in (0, 0x1234, last - first):
        walk = command.walk("kernel", text + offset)
        assert walk["mapping"]["state"] == "leaf"
        assert physical(walk) == first + offset
        assert walk["effective"]["user"] is False
        assert walk["effective"]["write"] is False
    # arm64 does not execute what is before _stext once it has booted
    assert command.walk("kernel", witness.symbol("_stext"))["effective"]["exec"] is True


def test_direct_map_of_a_page_of_ours(puppet: Puppet) -> None:
    address = puppet.map(PAGE)
    puppet.touch("write", address)
    pa = witness.page(puppet.pid, address).pfn * PAGE
    walk = command.walk("kernel", witness.direct_map(pa) + 0x123)
    assert physical(walk) == pa + 0x123
    assert walk["effective"] == walk["effective"] | {"read": True, "write": True, "exec": False,
                                                     "user": False}


@pytest.mark.any_variant
def test_a_snapshot_is_labelled() -> None:
    address = witness.kernel_text()
    printed = rawfiles.walk("kernel", address)
    assert (printed.lock, printed.snapshot, printed.pid, printed.vma) == ("none", True, None, None)
    (batch, *_) = rawfiles.dump(rawfiles.KERNEL, [(address, address)])
    assert batch.lock == "none"
    assert batch.lock_ns == 0
    walk = command.walk("kernel", address)
    assert (walk["pid"], walk["vma"], walk["lock"]) == (None, None, "none")
    assert [(e.raw, e.pa) for e in printed.entries] == [
        (int(level["raw"], 16), int(level["entry_pa"], 16))
        for level in walk["levels"] if level["raw"] is not None]
    people = command.ptscope("walk", "kernel", hex(address))
    assert people.status == 0
    assert "snapshot" in people.out


def test_module_code_is_mapped_in_small_pages() -> None:
    for line in Path("/proc/modules").read_text().splitlines():
        name, size, *_, address = line.split()[:6]
        if name == "ptscope":
            walk = command.walk("kernel", int(address, 16))
            assert walk["mapping"]["state"] == "leaf"
            assert walk["effective"]["exec"] is True
            assert walk["effective"]["write"] is False
            assert int(size) > 0
            return
    raise AssertionError("ptscope is not in /proc/modules")


def test_nothing_is_mapped_in_a_hole_of_the_kernel_half() -> None:
    hole = (1 << 64) - PAGE  # Documentation/x86/x86_64/mm.rst: the last 2 MiB are a hole
    assert command.walk("kernel", hole)["mapping"]["state"] == "none"


@pytest.mark.any_variant
@pytest.mark.parametrize("pages", [1, 2000])
def test_kernel_dump_of_the_text(layout: Layout, pages: int) -> None:
    first, _ = witness.iomem("Kernel code")
    text = witness.kernel_text()
    batches = rawfiles.dump(rawfiles.KERNEL, [(text, text + pages * PAGE - 1)])
    tables = [r for b in batches for r in b.records if isinstance(r, rawfiles.Table)]
    assert {table.level for table in tables} >= set(witness.level_names()[:-1])
    end = batches[-1].records[-1]
    assert isinstance(end, rawfiles.End)
    assert (end.status, end.address) == ("done", 0)
    leaf = next(
        entry for table in tables
        if (entry := decode(layout, table.level, table.entries[0])).state == "leaf")
    assert leaf.page_size
    assert leaf.pa == first & -leaf.page_size


# Documentation/arch/x86/x86_64/mm.rst. The shadow begins with that of addresses nobody can use.
REPEATING = {
    "espfix": {4: (0xFFFF_FF00 << 32, 1 << 39), 5: (0xFFFF_FF00 << 32, 1 << 39)},
    "KASAN shadow": {4: (0xFFFF_EC00 << 32, 1 << 40), 5: (0xFFDF_0000 << 32, 1 << 40)},
}
"""Where x86 maps few tables many times, first address and bytes by levels, as it is built."""


def kernel_tables(first: int, last: int) -> list[rawfiles.Table]:
    batches = rawfiles.dump(rawfiles.KERNEL, [(first, last)])
    return [r for b in batches for r in b.records if isinstance(r, rawfiles.Table)]


def repeated(tables: list[rawfiles.Table]) -> list[rawfiles.Table]:
    return [table for table in tables if table.flags & rawfiles.REPEATED]


def dumped(path: Path, first: int, last: int) -> Path:
    result = command.ptscope("dump", "kernel", "-o", path, f"--range={first:#x}-{last + 1:#x}")
    assert result.status == 0, result.err
    return path


@pytest.fixture
def layout() -> Layout:
    return Layout.from_text((rawfiles.FILES / "layout").read_text(), name="live")


@pytest.fixture
def region(layout: Layout) -> tuple[int, int]:
    """First and last address of what maps one table many times here."""
    if witness.MACHINE != "x86_64":
        pytest.skip("what maps one table many times is x86's: espfix, KASAN")
    for by_levels in REPEATING.values():
        first, size = by_levels[len(layout.levels)]
        if repeated(kernel_tables(first, first + size - 1)):
            return first, first + size - 1
    raise AssertionError("neither espfix nor KASAN's shadow is there")


def test_a_table_that_is_mapped_many_times_is_told_once(
    layout: Layout, region: tuple[int, int], tmp_path: Path
) -> None:
    span = {level.name: level.span for level in layout.levels}
    tables = kernel_tables(*region)
    found = repeated(tables)
    assert sum(len(table.entries) for table in found) > 100
    path = dumped(tmp_path / "part.pts", *region)
    for table in (found[0], found[-1]):
        level = witness.level_names().index(table.level)
        before, after = (
            rawfiles.walk("kernel", address).entries
            for address in (table.address - span[table.level], table.address)
        )
        assert before[level].raw == after[level].raw == table.entries[0]
        assert before[level].pa + 8 == after[level].pa
        assert before[level + 1 :] == after[level + 1 :]
        # What was left out of the stream is found by who reads it.
        address = table.address + (len(table.entries) - 1) * span[table.level] + 0x123
        shown = command.ptscope("show", path, hex(address), "--json").json
        assert shown["levels"] == command.walk("kernel", address)["levels"]
    addresses = [(table.level, table.address) for table in tables if not table.flags]
    assert len(addresses) == len(set(addresses))


@pytest.mark.any_variant
def test_a_table_of_which_a_part_was_asked_for_is_told_again_whole(
    layout: Layout, region: tuple[int, int], tmp_path: Path
) -> None:
    """The range begins in the middle of what the first of such entries maps."""
    span = {level.name: level.span for level in layout.levels}
    table = next(
        table for table in repeated(kernel_tables(*region))
        if table.level == "pmd" and len(table.entries) > 1)
    size = span["pmd"]
    first, last = table.address - size // 2, table.address + 2 * size - 1
    again = [
        part.address + i * size for part in repeated(kernel_tables(first, last))
        if part.level == "pmd" for i in range(len(part.entries))]
    assert again == [table.address + size]
    path = dumped(tmp_path / "part.pts", first, last)
    for address in (first, *range(table.address, last, size // 8)):
        shown = command.ptscope("show", path, hex(address), "--json").json
        assert shown["levels"] == command.walk("kernel", address)["levels"], hex(address)


@pytest.mark.any_variant
def test_user_half_of_the_kernel_and_kernel_half_of_a_process(puppet: Puppet) -> None:
    for target, address in (("kernel", 0x1000), (puppet.pid, witness.kernel_text())):
        result = command.ptscope("walk", target, hex(address))
        assert result.status == 2
        assert "half" in result.err


@pytest.mark.any_variant
def test_comparison_with_pagemap_is_refused_for_the_kernel() -> None:
    result = command.ptscope("walk", "kernel", hex(witness.kernel_text()), "--compare")
    assert result.status == 2
    assert result.err


@pytest.mark.any_variant
def test_frame_of_a_leaf_is_that_of_the_page(puppet: Puppet) -> None:
    """mapping.pfn is the frame of the byte asked for, entry.pfn the first of the huge page."""
    huge = puppet.map(witness.HUGE, align=witness.HUGE)
    puppet.advise(huge, witness.HUGE, "hugepage")
    puppet.touch("write", huge)
    walk = command.walk(puppet.pid, huge + 9 * PAGE + 5)
    assert int(walk["mapping"]["pfn"], 16) == compare.frame(walk) == int(
        compare.last_entry(walk)["pfn"], 16) + 9
    assert physical(walk) == compare.frame(walk) * PAGE + 5
