# SPDX-License-Identifier: GPL-2.0-or-later
"""The kernel's own dump of page tables on x86-64, and the same text's worth of ours.

Format and rules are those of Linux 6.12 (arch/x86/mm/dump_pagetables.c, mm/ptdump.c): the kernel
notes every leaf, every empty PTE and every hole, and prints a range whenever level, flags, or the
permissions combined over the levels change, or a part of the address space begins. What it prints
of the flags is less than what it compares: accessed, dirty and soft-dirty, for instance, end a
range without showing in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import rawfiles

LEVELS = ("pgd", "p4d", "pud", "pmd", "pte")
PGD, _P4D, PUD, PMD, PTE = range(len(LEVELS))
ENTRIES = 512
ROOF = 1 << 64
NOTHING = " " * 30
"""Printed in place of the flags where nothing is present."""
UNITS = "BKMGTPE"


@dataclass(frozen=True)
class Range:
    """One line of the kernel's dump, or what it should be."""

    start: int
    end: int
    flags: str
    level: str

    def __str__(self) -> str:
        return f"{self.start:#018x}-{self.end:#018x} {' '.join(self.flags.split())} {self.level}"


@dataclass(frozen=True)
class Marker:
    """A part of the address space begins."""

    name: str


_RANGE = re.compile(
    r"0x([0-9a-f]{16})-0x([0-9a-f]{16})   ( *\d+)([BKMGTPE]) (.{30})(pgd|p4d|pud|pmd|pte)")
_MARKER = re.compile(r"---\[ (.*) \]---")


def parse(text: str) -> list[Range | Marker]:
    """The lines of a dump; asserts that each is one of the two kinds, and the size it states."""
    lines: list[Range | Marker] = []
    for line in text.splitlines():
        if marker := _MARKER.fullmatch(line):
            lines.append(Marker(marker[1]))
            continue
        match = _RANGE.fullmatch(line)
        assert match, f"not documented: {line!r}"
        start, end = int(match[1], 16), int(match[2], 16) or ROOF
        size = (end - start) % ROOF >> 10 * UNITS.index(match[4])
        assert int(match[3]) == size, line
        lines.append(Range(start, end, match[5], match[6]))
    return lines


@dataclass(frozen=True)
class Facts:
    """What the layout states of entries; nothing of it is decoded with the package."""

    bits: Mapping[str, int]
    """Masks by name."""
    address: int
    """Mask of the bits that are an address and no flags, at every level."""
    levels: int

    @classmethod
    def live(cls) -> Facts:
        """Of the running kernel."""
        facts = rawfiles.layout()
        bits = {
            key.removeprefix("bit."): 1 << int(value)
            for key, value in facts.items() if key.startswith("bit.")
        }
        return cls(bits, int(facts["mask.pfn"], 16), int(facts["runtime.levels"]))

    def text(self, raw: int, level: int) -> str:
        """The flags as the kernel prints them (printk_prot())."""
        if not raw & self.bits["present"]:
            return NOTHING
        words = [
            ("user", "USR ", "    "),
            ("write", "RW ", "ro "),
            ("pwt", "PWT ", "    "),
            ("pcd", "PCD ", "    "),
            # one bit: huge above PTE level, memory type in a PTE
            ("huge", "PSE " if level < PTE else "    ", "    "),
            ("pat", "PAT " if level == PTE else "    ", "    "),
            ("global", "GLB ", "    "),
            ("nx", "NX ", "x  "),
        ]
        return "".join(yes if raw & self.bits[name] else no for name, yes, no in words)


@dataclass(frozen=True)
class Note:
    """What the kernel notes of one address on: note_page() and its arguments."""

    address: int
    level: int
    flags: int
    effective: int


@dataclass
class Tables:
    """The entries of a dump by level and address, empty ones left out."""

    facts: Facts
    entries: dict[int, dict[int, int]] = field(
        default_factory=lambda: {level: {} for level in range(len(LEVELS))})
    combined: list[int] = field(default_factory=lambda: [0] * len(LEVELS))
    """Effective permissions of the entries noted last; like the kernel's, they stay."""

    def shift(self, level: int) -> int:
        return 12 + 9 * (PTE - level)

    def add(self, batches: Iterable[rawfiles.Batch], user_copy: bool = False) -> None:
        """Take in a dump; with ``user_copy`` root entries are those user mode runs on."""
        for batch in batches:
            for table in batch.records:
                if not isinstance(table, rawfiles.Table) or table.flags & rawfiles.AGAIN:
                    continue
                level = LEVELS.index(table.level)
                of_user = bool(table.flags & rawfiles.USER_PGD)
                if level == PGD and of_user is not user_copy:
                    continue
                span = 1 << self.span_shift(level)
                for i, raw in enumerate(table.entries):
                    if raw:
                        self.entries[level][(table.address + i * span) % ROOF] = raw

    def span_shift(self, level: int) -> int:
        """What an entry maps: with four levels the root's is what a P4D entry maps."""
        if level == PGD and self.facts.levels == 4:
            level = _P4D
        return self.shift(level)

    def notes(self, first: int, last: int) -> Iterator[Note]:
        """What the kernel notes between two addresses that are bounds of root entries."""
        yield from self._table(PGD, first, (last + 1 - first) >> self.span_shift(PGD))

    def _table(self, level: int, address: int, count: int = ENTRIES) -> Iterator[Note]:
        span = 1 << self.span_shift(level)
        found = self.entries[level]
        for place in range(address, address + count * span, span):
            yield from self._entry(level, place, found.get(place, 0))

    def _entry(self, level: int, address: int, raw: int) -> Iterator[Note]:
        bits = self.facts.bits
        flags = raw & ~self.facts.address
        if not raw:
            if level == PTE:
                self.combined[PTE] = self._combine(PTE, 0)
            yield Note(address, level, 0, 0)
            return
        below = self.below(level)
        self.combined[level] = self._combine(level, flags)
        if level == PGD and below == PUD:  # the P4D that is folded into it
            self.combined[_P4D] = self._combine(_P4D, flags)
        if level == PTE or raw & bits["huge"]:
            yield Note(address, level, flags, self.combined[level])
        elif raw & (bits["present"] | bits["protnone"]):
            yield from self._table(below, address)
        # an entry that is not present above PTE level is passed over without a note

    def below(self, level: int) -> int:
        """The level an entry of this one leads to."""
        return PUD if level == PGD and self.facts.levels == 4 else level + 1

    def _combine(self, level: int, flags: int) -> int:
        """effective_prot()."""
        if level == PGD:
            return flags
        bits = self.facts.bits
        above = self.combined[level - 1]
        return (above & flags & (bits["user"] | bits["write"])) | ((above | flags) & bits["nx"])

    def ranges(self, notes: Iterable[Note], end: int) -> Iterator[Range]:
        """Merge what is alike (note_page()); the last range ends at ``end``."""
        last: Note | None = None
        for note in notes:
            if last is not None:
                if (note.level, note.flags, note.effective) == (
                        last.level, last.flags, last.effective):
                    continue
                yield self._range(last, note.address)
            last = note
        if last is not None:
            yield self._range(last, end)

    def _range(self, note: Note, end: int) -> Range:
        return Range(note.address, end, self.facts.text(note.flags, note.level), LEVELS[note.level])


def differences(theirs: Iterable[Range | Marker], ours: Iterable[Range]) -> list[str]:
    """Where the two disagree; nothing but a marker may cut a range of ours in two in theirs."""
    found = []
    rest = list(ours)
    rest.reverse()
    lines = list(theirs)
    for number, line in enumerate(lines):
        if isinstance(line, Marker):
            continue
        if not rest:
            found.append(f"the kernel has {line}, and here is nothing")
            continue
        mine = rest.pop()
        cut = number + 1 < len(lines) and isinstance(lines[number + 1], Marker)
        if cut and line.end < mine.end:
            rest.append(Range(line.end, mine.end, mine.flags, mine.level))
            mine = Range(mine.start, line.end, mine.flags, mine.level)
        if line != mine:
            found.append(f"the kernel has {line}, and here is {mine}")
            # go on where both begin anew
            while rest and rest[-1].start < line.end:
                mine = rest.pop()
                if mine.end > line.end:
                    rest.append(Range(line.end, mine.end, mine.flags, mine.level))
    found += [f"here is {mine}, and the kernel has nothing" for mine in reversed(rest)]
    return found
