# SPDX-License-Identifier: GPL-2.0-or-later
"""Whole processes: every page against pagemap, every table against VmPTE."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import rawfiles
import witness
from ptscope.decode.entry import Entry, decode
from ptscope.decode.layout import Layout
from puppet import Puppet

PAGE = witness.PAGE
HUGE = witness.HUGE
PRESENT = ("leaf", "protnone", "splitting")


@pytest.fixture(scope="module")
def layout() -> Layout:
    return Layout.from_text((rawfiles.FILES / "layout").read_text(), name="live")


@pytest.fixture
def furnished(furnished: Puppet) -> Puppet:
    """With a page beyond what four levels reach, where there are five."""
    furnished.touch("write", furnished.map(PAGE, at=1 << 50, hint=True))
    return furnished


@dataclass(frozen=True)
class Found:
    """One entry of a dump and what it maps from."""

    address: int
    level: str
    entry: Entry


def entries(batches: list[rawfiles.Batch], layout: Layout) -> Iterator[Found]:
    """Every entry of a dump once, empty ones left out."""
    spans = {level.name: level.span for level in layout.levels}
    for batch in batches:
        for table in batch.records:
            if not isinstance(table, rawfiles.Table):
                continue
            if table.flags & (rawfiles.AGAIN | rawfiles.USER_PGD):
                continue
            for i, raw in enumerate(table.entries):
                if raw:
                    address = table.address + i * spans[table.level]
                    yield Found(address, table.level, decode(layout, table.level, raw))


@pytest.mark.parametrize("size", [rawfiles.MIN_READ, rawfiles.MAX_READ])
def test_every_page_of_every_vma_is_what_pagemap_says(
    furnished: Puppet, layout: Layout, size: int
) -> None:
    batches = rawfiles.dump(
        furnished.pid, [(0, layout.user_last)], rawfiles.WITH_VMAS, size)
    pages: dict[int, tuple[str, int | None]] = {}
    for found in entries(batches, layout):
        entry = found.entry
        if entry.state == "table":
            continue
        assert entry.page_size, found
        for i in range(entry.page_size // PAGE):
            address = found.address + i * PAGE
            assert address not in pages, f"{address:#x} was dumped twice"
            pages[address] = (entry.state, None if entry.pfn is None else entry.pfn + i)

    # the vvar pages are VM_PFNMAP: pagemap shows nothing there (mm/pagewalk.c)
    vmas = witness.vmas(furnished.pid)
    compared = 0
    for vma in vmas:
        witnesses = witness.pagemap(furnished.pid, vma.start, (vma.end - vma.start) // PAGE)
        assert len(witnesses) == (vma.end - vma.start) // PAGE
        for i, page in enumerate(witnesses):
            address = vma.start + i * PAGE
            state, pfn = pages.pop(address, ("none", None))
            if vma.name == "[vvar]":
                continue
            assert page.present is (state in PRESENT), (hex(address), state)
            assert page.swapped is (state not in (*PRESENT, "none")), (hex(address), state)
            if page.present:
                assert page.pfn == pfn, hex(address)
            compared += page.present or page.swapped
    assert compared > 4 * witness.ENTRIES + 100, "the puppet was not furnished"
    assert pages == {}, "pages outside every VMA"

    dumped = [
        (record.start, record.end) for batch in batches for record in batch.records
        if isinstance(record, rawfiles.Vma) and not record.flags & rawfiles.AGAIN
    ]
    assert dumped == [(vma.start, vma.end) for vma in vmas]


def test_tables_by_level_are_vmpte(furnished: Puppet, layout: Layout) -> None:
    """mm_pgtables_bytes counts tables of PUDs, PMDs and PTEs, with the PTE table that is kept
    in reserve for each anonymous huge page (mm/huge_memory.c, pgtable_trans_huge_deposit)."""
    batches = rawfiles.dump(furnished.pid, [(0, layout.user_last)])
    names = witness.level_names()
    below = dict(itertools.pairwise(names))
    tables = dict.fromkeys(("p4d", "pud", "pmd", "pte"), 0)
    huge = 0
    for found in entries(batches, layout):
        if found.entry.state == "table":
            tables[below[found.level]] += 1
        elif found.level == "pmd" and witness.smaps(furnished.pid, found.address)["AnonHugePages"]:
            huge += 1
    counted = tables["pud"] + tables["pmd"] + tables["pte"] + huge
    assert huge == 2
    # The program, its mappings and its stack lie apart; what else does is chance with 16K pages.
    assert tables["pte"] >= 3
    assert (tables["p4d"] > 0) is (witness.levels() == 5)
    assert counted * PAGE == witness.status_kb(furnished.pid, "VmPTE") * 1024


@pytest.mark.any_variant
def test_a_batch_is_bounded_and_consistent(furnished: Puppet, layout: Layout) -> None:
    """Small and large buffers give the same entries."""
    whole = [(0, layout.user_last)]
    small = rawfiles.dump(furnished.pid, whole, size=rawfiles.MIN_READ)
    large = rawfiles.dump(furnished.pid, whole, size=rawfiles.MAX_READ)
    assert len(small) > len(large)
    # the kernel looks for old pages all the time: the accessed bit may go between two dumps
    accessed = 1 << layout.facts["bit.accessed"]

    def steady(batches: list[rawfiles.Batch]) -> list[tuple[int, str, int]]:
        return [(f.address, f.level, f.entry.raw & ~accessed) for f in entries(batches, layout)]

    assert steady(small) == steady(large)


@pytest.mark.any_variant
def test_ranges_are_walked_in_their_order_and_bounds(furnished: Puppet, layout: Layout) -> None:
    shared = next(vma for vma in witness.vmas(furnished.pid) if "/dev/zero" in vma.name)
    ranges = [(shared.start + 10 * PAGE, shared.start + 20 * PAGE - 1),
              (shared.start + 30 * PAGE, shared.start + 30 * PAGE)]
    found = [
        each for each in entries(rawfiles.dump(furnished.pid, ranges), layout)
        if each.level == "pte"
    ]
    assert [each.address for each in found] == [
        shared.start + i * PAGE for i in (*range(10, 20), 30)]


@pytest.mark.any_variant
def test_empty_ranges_cost_nothing(puppet: Puppet, layout: Layout) -> None:
    empty = [(witness.nowhere(), witness.nowhere() * 3 // 2 - 1)]
    (batch,) = rawfiles.dump(puppet.pid, empty, rawfiles.WITH_VMAS)
    tables = [record for record in batch.records if isinstance(record, rawfiles.Table)]
    # where the first entry of the root covers these addresses, others need its table
    assert [table.level for table in tables] == (
        ["pgd"] if witness.span("pgd") > witness.nowhere() else [])
    assert len(batch.records) == len(tables) + 1


def test_kernel_half_of_the_root_is_not_in_a_process_dump(puppet: Puppet, layout: Layout) -> None:
    batches = rawfiles.dump(puppet.pid, [(0, layout.user_last)])
    assert all(found.address <= layout.user_last for found in entries(batches, layout))
