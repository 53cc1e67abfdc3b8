# SPDX-License-Identifier: GPL-2.0-or-later
"""Tables against counters: does what the entries add up to equal what the kernel says elsewhere?

The witnesses are smaps for each VMA, and statm and VmPTE for the whole. A running process changes
between two looks. So where they differ, the VMA is read again between two looks at smaps: when
these two are alike and the difference is the same each time, it is a finding; all else means that
the process changed meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ptscope.decode.layout import Layout
from ptscope.space.huge import is_anonymous
from ptscope.space.rows import Reader, Row
from ptscope.space.usage import Tally, Usage, total
from ptscope.target.counters import Counters
from ptscope.target.smaps import SmapsVma

# A difference is a finding when it is there, the same, at the first reading and at each of these.
ATTEMPTS = 4
PAUSES = (0.0, 0.01, 0.04, 0.11)  # seconds; not in step with what a process does regularly
# As many VMAs are read again at once as one request takes ranges.
MOST_SUSPECTS = 1024
# Levels whose tables VmPTE counts: not P4D, and not the root (mm_pgtables_bytes()).
COUNTED_LEVELS = ("pud", "pmd", "pte")
ENTRY_SIZE = 8

Key = tuple[int, int]  # start and end of a VMA
Smaps = Callable[[], Iterable[SmapsVma]]


class Figure(NamedTuple):
    """One quantity in bytes, from the entries and from the kernel's figure of that name.

    `unseen` is a part of it that some kernels do not look at.
    """

    what: str
    entries: int
    kernel: int
    unseen: int = 0

    @property
    def agrees(self) -> bool:
        """Whether both say the same."""
        return self.kernel in (self.entries, self.entries - self.unseen)

    def to_json(self) -> dict[str, object]:
        """Name and both values."""
        return {"what": self.what, "entries": self.entries, "kernel": self.kernel}


@dataclass(frozen=True, slots=True)
class Finding:
    """A difference that was there at each reading; `start` and `end` are None for the whole."""

    figure: Figure
    start: int | None
    end: int | None
    name: str
    readings: int

    def to_json(self) -> dict[str, object]:
        """An object of `findings` in `map --json`."""
        return {
            **self.figure.to_json(),
            "start": None if self.start is None else hex(self.start),
            "end": None if self.end is None else hex(self.end),
            "name": self.name,
            "readings": self.readings,
        }


@dataclass(frozen=True)
class PageTables:
    """Page-table memory in bytes: what VmPTE should be, and how it comes about.

    `levels` are the tables by level. `kept` is the memory of PTE tables that hang beside anonymous
    huge pages, one for each, for the day one is split (pgtable_trans_huge_deposit()): no entry
    points to them, but VmPTE counts them.
    """

    levels: dict[str, int]
    kept: int
    expected: int
    root: int

    @property
    def all(self) -> int:
        """All memory that the tables take, the root and P4Ds included."""
        return sum(self.levels.values()) + self.root + self.kept


@dataclass(frozen=True)
class Agreement:
    """The outcome. `vmas` were compared with smaps, `changed` are those that did not hold still.

    `verdicts` is for ``VmPTE`` and ``statm``: equal, close (within the kernel's own imprecision),
    changed, differs, or unknown.
    """

    vmas: int
    changed: tuple[Key, ...]
    findings: tuple[Finding, ...]
    page_tables: PageTables
    counters: Counters | None
    verdicts: dict[str, str]


def figures(row: Row) -> Iterator[Figure]:
    """The quantities of a VMA that smaps knows too, by the rules of fs/proc/task_mmu.c."""
    witness = row.witness
    if witness is None:
        yield Figure("VMA", row.vma.end - row.vma.start, 0)
        return
    usage = row.usage
    if row.hugetlb:
        yield Figure("Hugetlb", usage.resident, witness.get("Shared_Hugetlb", "Private_Hugetlb"))
        return
    # walk_page_test() (mm/pagewalk.c): a VM_PFNMAP VMA is one hole to smaps.
    hole = row.has_flag("pfnmap")
    # Up to 6.8 smaps does not follow a huge entry that is not present for the hardware
    # (follow_trans_huge_pmd() and pmd_protnone()).
    unseen = 0 if hole else usage.pmd_not_present
    # Whether a page with a memory error counts as resident depends on the kernel's version.
    if not usage.kinds.get("hwpoison"):
        yield Figure("Rss", 0 if hole else usage.resident, witness.get("Rss"), unseen)
    yield Figure(
        "AnonHugePages+ShmemPmdMapped+FilePmdMapped",
        0 if hole else usage.pmd_mapped,
        witness.get("AnonHugePages", "ShmemPmdMapped", "FilePmdMapped"),
        unseen,
    )
    # For shared memory smaps adds what is swapped out of the file, which no entry shows.
    if is_anonymous(row.vma):
        yield Figure("Swap", 0 if hole else usage.swap, witness.get("Swap"))


def page_tables(layout: Layout, usage: Usage, anonymous_huge: int) -> PageTables:
    """The tables' memory; `anonymous_huge` are the PMD entries that keep a PTE table."""
    size = {level.name: level.entries * ENTRY_SIZE for level in layout.levels}
    root, last = layout.levels[0].name, layout.levels[-1].name
    levels = {name: usage.tables.get(name, 0) * size[name] for name in size if name != root}
    kept = anonymous_huge * size[last]
    counted = sum(levels.get(name, 0) for name in COUNTED_LEVELS)
    return PageTables(levels, kept, counted + kept, size[root])


@dataclass
class Sums:
    """What the rows of one reading add up to."""

    tally: Tally = field(default_factory=Tally)
    resident: int = 0
    could_be: int = 0
    anonymous_huge: int = 0
    vmas: int = 0
    size: int = 0

    @property
    def usage(self) -> Usage:
        """All that the VMAs use together."""
        return self.tally.usage()

    def add(self, row: Row) -> None:
        """Take a VMA into account."""
        self.tally.add(row.usage)
        self.vmas += 1
        self.size += row.vma.end - row.vma.start
        self.could_be += row.could_be
        if not row.hugetlb:
            self.resident += row.usage.resident
            if is_anonymous(row.vma):
                self.anonymous_huge += row.usage.pmd_entries


@dataclass
class Comparer:
    """Compares the rows of one process. Give it each row by `take`, then ask for `agreement`.

    `smaps` and `counters` read anew each time. Both are None for a snapshot, whose process may be
    gone: then nothing is compared.
    """

    reader: Reader
    layout: Layout
    smaps: Smaps | None
    counters: Callable[[], Counters] | None
    sleep: Callable[[float], None] = time.sleep
    sums: Sums = field(default_factory=Sums)
    _before: Counters | None = field(init=False)
    _suspects: dict[Key, tuple[Figure, ...]] = field(default_factory=dict)
    _changed: list[Key] = field(default_factory=list)
    _names: dict[Key, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._before = self._count()

    def _count(self) -> Counters | None:
        return None if self.counters is None else self.counters()

    def take(self, row: Row) -> None:
        """A VMA of the first reading."""
        self.sums.add(row)
        if self.smaps is None:
            return
        key = (row.vma.start, row.vma.end)
        differing = tuple(figure for figure in figures(row) if not figure.agrees)
        if differing:
            if len(self._suspects) < MOST_SUSPECTS:
                self._suspects[key] = differing
                self._names[key] = row.vma.name
            else:
                self._changed.append(key)

    def agreement(self) -> Agreement:
        """What lasts of the differences; reads again where there are any. Raises as the reader."""
        # Reading some VMAs again gives another outside, and takes time.
        outside, after = self.reader.outside, self._count()
        findings = list(self._settled()) if self._suspects else []
        verdicts, counters, tables, more = self._totals(outside, after)
        return Agreement(
            vmas=self.sums.vmas if self.smaps is not None else 0,
            changed=tuple(self._changed),
            findings=(*findings, *more),
            page_tables=tables,
            counters=counters,
            verdicts=verdicts,
        )

    def _settled(self) -> Iterator[Finding]:
        """The suspects that differ the same way each time they are looked at."""
        assert self.smaps is not None
        lasting: dict[Key, tuple[Figure, ...] | None] = dict(self._suspects)
        for attempt in range(ATTEMPTS):
            self.sleep(PAUSES[attempt])
            open_keys = sorted(key for key, figures in lasting.items() if figures is not None)
            if not open_keys:
                break
            first = attempt == 0
            seen = self._look(open_keys)
            for key in open_keys:
                now = seen.get(key)
                # What the very first reading found was not between two looks, so it may differ.
                if now is None or not (first or now == lasting[key]):
                    lasting[key] = None
                else:
                    lasting[key] = now
        for key, found in lasting.items():
            if found is None:
                self._changed.append(key)
                continue
            for figure in found:
                yield Finding(figure, *key, self._names[key], ATTEMPTS + 1)

    def _look(self, keys: Sequence[Key]) -> dict[Key, tuple[Figure, ...]]:
        """The differences of those VMAs that are the same in smaps before and after, and differ."""
        assert self.smaps is not None
        wanted = frozenset(keys)

        def those() -> dict[Key, SmapsVma]:
            assert self.smaps is not None
            return {
                key: each
                for each in self.smaps()
                if (key := (each.vma.start, each.vma.end)) in wanted
            }

        before = those()
        ranges = [(start, end - 1) for start, end in keys]
        rows = {
            (row.vma.start, row.vma.end): row for row in self.reader.rows(before.values(), ranges)
        }
        after = those()
        found = {}
        for key in keys:
            row = rows.get(key)
            if row is None or row.changed or before.get(key) != after.get(key):
                continue
            differing = tuple(figure for figure in figures(row) if not figure.agrees)
            if differing:
                found[key] = differing
        return found

    def _totals(
        self, outside: Usage, after: Counters | None
    ) -> tuple[dict[str, str], Counters | None, PageTables, tuple[Finding, ...]]:
        """VmPTE and statm against the sums; reads all of it again while they differ."""
        before, sums = self._before, self.sums
        history: list[tuple[Figure, ...]] = []
        while True:
            tables = page_tables(self.layout, total((sums.usage, outside)), sums.anonymous_huge)
            resident = sums.resident + outside.resident
            if before is None or after is None:
                return {"VmPTE": "unknown", "statm": "unknown"}, None, tables, ()
            verdicts = {
                "VmPTE": _verdict(tables.expected, before.page_tables, after.page_tables, 0),
                "statm": _verdict(resident, before.resident, after.resident, after.imprecision),
            }
            ours = {"VmPTE": tables.expected, "statm": resident}
            kernels = {"VmPTE": after.page_tables or 0, "statm": after.resident}
            differing = tuple(
                Figure(what, ours[what], kernels[what])
                for what, verdict in verdicts.items()
                if verdict == "differs"
            )
            history.append(differing)
            if not differing or len(history) > ATTEMPTS:
                break
            self.sleep(PAUSES[len(history) - 1])
            before, sums = self._count(), Sums()
            for row in self.reader.rows(self.smaps() if self.smaps is not None else ()):
                sums.add(row)
            outside, after = self.reader.outside, self._count()
        lasting = [figure for figure in history[-1] if all(figure in each for each in history)]
        for figure in history[-1]:
            if figure not in lasting:
                verdicts[figure.what] = "changed"
        findings = tuple(Finding(figure, None, None, "", len(history)) for figure in lasting)
        return verdicts, after, tables, findings


def _verdict(entries: int, before: int | None, after: int | None, imprecision: int) -> str:
    """How a sum compares with a counter that was read before and after."""
    if before is None or after is None:
        return "unknown"
    if entries in (before, after):
        return "equal"
    if min(before, after) - imprecision <= entries <= max(before, after) + imprecision:
        return "close" if imprecision else "changed"
    return "differs"
