# SPDX-License-Identifier: GPL-2.0-or-later
"""From sums of entries to what a VMA, or a whole process, uses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache

from ptscope.decode.layout import Layout
from ptscope.decode.rules import rules_for
from ptscope.decode.table import MAPPED
from ptscope.raw.summary import EntrySums

# Special entries whose page counts as resident although the hardware does not map it: rss is given
# back only when the entry is (mm/rmap.c, try_to_migrate_one).
COUNTED = ("migration", "device")
# Properties of mapped pages, by their names in `Usage` and as attributes of entries.
PROPERTIES = {
    "accessed": "accessed",
    "dirty": "dirty",
    "soft_dirty": "soft_dirty",
    "uffd_wp": "uffd_wp",
    "writable": "access.write",
    "executable": "access.exec",
    "special": "special",
}

MOST_ALIKE = 1024


@dataclass(frozen=True, slots=True)
class Usage:
    """What a VMA or a process uses. In bytes, except `tables`, `pmd_entries`, `kinds` and the runs.

    `by_size` is what is mapped by the size of the mapping: that of one entry, or of a group of
    entries that make one mapping. `resident` is what the kernel calls so: without special entries
    and the huge zero page, with pages under migration; hugetlb pages are in it, which smaps shows
    elsewhere. `pmd_mapped` is the part of it that PMD entries map, `pmd_entries` is how many there
    are. `swap` are pages that really are swapped out, `kinds` counts entries in the form of a swap
    entry by kind, `tables` tables by level. `not_present` is mapped, but not for the hardware
    (PROT_NONE, NUMA hints), `pmd_not_present` the part of that in PMD entries. `small` are pages
    mapped by PTEs in whole aligned ranges of one PMD entry, `small_ranges` these ranges. `runs`
    counts maximal runs of consecutive frames by the logarithm of their length in pages,
    `run_pages` their pages. `properties` are those of mapped pages, by the names of PROPERTIES:
    what this kernel or source does not know is not in it.
    """

    mapped: int = 0
    by_size: Mapping[int, int] = field(default_factory=dict)
    resident: int = 0
    pmd_mapped: int = 0
    pmd_not_present: int = 0
    swap: int = 0
    not_present: int = 0
    huge_zero: int = 0
    small: int = 0
    small_ranges: int = 0
    properties: Mapping[str, int] = field(default_factory=dict)
    tables: Mapping[str, int] = field(default_factory=dict)
    pmd_entries: int = 0
    kinds: Mapping[str, int] = field(default_factory=dict)
    runs: Mapping[int, int] = field(default_factory=dict)
    run_pages: Mapping[int, int] = field(default_factory=dict)

    def __add__(self, other: Usage) -> Usage:
        """Both together."""
        return total((self, other))


class Tally:
    """Adds up usages one at a time: there may be a hundred thousand VMAs."""

    def __init__(self) -> None:
        # VMAs that are alike have the same Usage: how often each came, added up later.
        self._alike: dict[int, tuple[Usage, int]] = {}
        self._numbers: Counter[str] = Counter()
        self._counts: dict[str, Counter[int | str]] = {name: Counter() for name in _MAPPINGS}

    def add(self, usage: Usage) -> None:
        """Take one into account."""
        _, count = self._alike.get(id(usage), (usage, 0))
        self._alike[id(usage)] = usage, count + 1
        if len(self._alike) == MOST_ALIKE:
            self._add_up()

    def _add_up(self) -> None:
        for usage, times in self._alike.values():
            for name in _NUMBERS:
                self._numbers[name] += getattr(usage, name) * times
            for name in _MAPPINGS:
                counts = self._counts[name]
                for key, number in getattr(usage, name).items():
                    counts[key] += number * times
        self._alike.clear()

    def usage(self) -> Usage:
        """All together."""
        self._add_up()
        counts = {name: dict(counter) for name, counter in self._counts.items()}
        return Usage(**self._numbers, **counts)  # type: ignore[arg-type]


def total(usages: Iterable[Usage]) -> Usage:
    """All together."""
    tally = Tally()
    for usage in usages:
        tally.add(usage)
    return tally.usage()


_NUMBERS = tuple(each.name for each in fields(Usage) if each.default == 0)
_MAPPINGS = tuple(each.name for each in fields(Usage) if each.name not in _NUMBERS)


@lru_cache(maxsize=MOST_ALIKE)
def usage_of(layout: Layout, sums: EntrySums, huge_zero: int = 0) -> Usage:
    """What the entries of one VMA add up to; `huge_zero` of them map the huge zero page.

    The same object for the same sums.
    """
    page = layout.page_size
    by_size: Counter[int] = Counter()
    properties: Counter[str] = Counter()
    mapped = resident = pmd_mapped = pmd_not_present = not_present = pmd_entries = swap = 0
    for level in layout.levels:
        found = sums.levels[level.name]
        if not found.states:
            continue
        entries = sum(found.states.get(state, 0) for state in MAPPED)
        counted = entries - found.mapped.get("special", 0)
        counted += sum(found.states.get(state, 0) for state in COUNTED)
        mapped += entries * level.span
        not_present += (entries - found.states.get("leaf", 0)) * level.span
        swap += found.states.get("swap", 0) * page
        for name, attribute in PROPERTIES.items():
            properties[name] += found.mapped.get(attribute, 0) * level.span
        grouped = 0
        for number, count in found.groups.items():
            group = rules_for(layout, level.name).groups[number]
            by_size[level.span * group.entries] += count * level.span
            grouped += count
        if entries > grouped:
            by_size[level.span] += (entries - grouped) * level.span
        if level.name == "pmd":
            # From 6.17 on they are special, and left out already.
            counted -= max(0, huge_zero - found.mapped.get("special", 0))
            pmd_mapped = counted * level.span
            pmd_not_present = (entries - found.states.get("leaf", 0)) * level.span
            pmd_entries = entries + sum(found.states.get(state, 0) for state in COUNTED)
        resident += counted * level.span
    return Usage(
        mapped=mapped,
        by_size=dict(by_size),
        resident=resident,
        pmd_mapped=pmd_mapped,
        pmd_not_present=pmd_not_present,
        swap=swap,
        not_present=not_present,
        huge_zero=huge_zero * _span(layout, "pmd"),
        small=sums.small_range_pages * page,
        small_ranges=sums.small_ranges * _span(layout, "pmd"),
        properties={name: properties[name] for name in _known(layout)},
        tables=sums.tables,
        pmd_entries=pmd_entries,
        kinds=sums.kinds,
        runs=sums.runs,
        run_pages=sums.run_pages,
    )


def _span(layout: Layout, name: str) -> int:
    return next((level.span for level in layout.levels if level.name == name), 0)


def _known(layout: Layout) -> list[str]:
    """The properties that this kernel has bits for."""
    attributes = rules_for(layout, layout.levels[-1].name).attributes["leaf"]
    return [name for name, attribute in PROPERTIES.items() if attributes.get(attribute) is not None]
