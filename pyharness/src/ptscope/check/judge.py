# SPDX-License-Identifier: GPL-2.0-or-later
"""Judges walks of single addresses with the reference decoder: which invariants do they break?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ptscope.check.rules import (
    INSIDE,
    KERNEL,
    OUTSIDE,
    Machine,
    aging_bits,
    broken_by,
    is_unaligned,
    unknown_bits,
    without_aging,
)
from ptscope.check.witness import Ranges, within
from ptscope.compare import differences, expected
from ptscope.decode.effective import effective
from ptscope.decode.entry import Entry, decode
from ptscope.decode.layout import Layout
from ptscope.decode.rules import rules_for
from ptscope.decode.table import MAPPED
from ptscope.raw.pagemap import Page
from ptscope.raw.records import ENTRY_SIZE, RawEntry
from ptscope.source.base import RawWalk
from ptscope.walk import Step, Walk, mapping_of

# The page of the vsyscall, at the same place since 2.6 (arch/x86/include/uapi/asm/vsyscall.h).
VSYSCALL = 0xFFFF_FFFF_FF60_0000


@dataclass(frozen=True)
class Violation:
    """One invariant that one entry breaks: `ours` of the entry, `theirs` of who says otherwise."""

    invariant: str
    address: int
    level: str
    entry: RawEntry
    decoded: Entry
    ours: str
    theirs: str


@dataclass(frozen=True)
class Chain:
    """A walk with its entries decoded, root first."""

    raw: RawWalk
    decoded: tuple[Entry, ...]
    layout: Layout

    @classmethod
    def of(cls, layout: Layout, raw: RawWalk) -> Chain:
        """Decode a walk."""
        names = {level.number: level.name for level in layout.levels}
        return cls(
            raw,
            tuple(decode(layout, names[entry.level], entry.raw) for entry in raw.entries),
            layout,
        )

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for two walks of the same entries in the same VMA."""
        vma = self.raw.vma
        user = self.raw.user_pgd
        return (
            tuple(without_aging(self.layout, entry) for entry in self.decoded),
            tuple(entry.entry_pa for entry in self.raw.entries),
            None if vma is None else vma.vm_flags,
            None if user is None else user.raw & ~aging_bits(self.layout),
        )

    @property
    def pairs(self) -> Iterator[tuple[RawEntry, Entry]]:
        """Raw and decoded entries, root first."""
        return zip(self.raw.entries, self.decoded, strict=True)

    def where(self, entry: RawEntry) -> int:
        """Whether an entry stands in the VMA of the walk, outside of all, or in the kernel half."""
        if self.raw.address >= self.layout.kernel_first:
            return KERNEL
        vma = self.raw.vma
        return INSIDE if vma is not None and vma.start <= entry.address < vma.end else OUTSIDE

    def as_walk(self) -> Walk:
        """What `compare.expected` takes."""
        steps = tuple(
            Step(decoded.level, False, entry.index, entry, decoded) for entry, decoded in self.pairs
        )
        return Walk(
            pid=None, comm=None, leader_exited=False, address=self.raw.address, source="module",
            kernel=self.layout.release, layout=self.layout, lock=self.raw.lock, levels=steps,
            user_pgd=None, mapping=mapping_of(self.layout, self.raw.address, self.decoded[-1]),
            effective=None, vma=self.raw.vma, frame=None,
        )  # fmt: skip


@dataclass(frozen=True)
class Judge:
    """Judges on one machine. `ranges` are its memory, None when not known."""

    machine: Machine
    ranges: Ranges | None

    def violations(self, chain: Chain) -> Iterator[Violation]:
        """All that a walk breaks by itself."""
        kernel = chain.raw.address >= chain.layout.kernel_first
        for entry, decoded in chain.pairs:
            # Guard pages and the like: the kernel takes the present bit away in place, and what is
            # left has no form (set_memory_np(), kfence_protect_page(), set_direct_map_invalid…()).
            if kernel and not decoded.hw_present:
                continue
            for invariant, ours, theirs in self._of_entry(chain, entry, decoded):
                if not (kernel and self._excused(chain, invariant)):
                    yield self._violation(chain, invariant, entry, decoded, ours, theirs)
        yield from self._links(chain)
        if chain.raw.user_pgd is not None:
            yield from self._roots(chain, chain.raw.user_pgd)

    def _excused(self, chain: Chain, invariant: str) -> bool:
        """In the kernel half a permission counts when all levels give it."""
        if invariant not in ("kernel-pages", "kernel-write-exec"):
            return False
        allowed = effective(chain.layout, chain.decoded)
        if invariant == "kernel-write-exec":
            return not (allowed.write and allowed.exec)
        page = chain.raw.address & -chain.layout.page_size
        return not allowed.user or (chain.layout.arch == "x86_64" and page == VSYSCALL)

    def _of_entry(
        self, chain: Chain, entry: RawEntry, decoded: Entry
    ) -> Iterator[tuple[str, str, str]]:
        layout = chain.layout
        vma = chain.raw.vma
        where = chain.where(entry)
        flags = (vma.vm_flags or 0) if vma is not None and where == INSIDE else 0
        said = {INSIDE: f"VMA {vma.permissions if vma else ''}", OUTSIDE: "no VMA"}.get(
            where, "kernel half"
        )
        for invariant, words in broken_by(self.machine, decoded, where, flags):
            yield invariant, words, said
        if unknown := unknown_bits(layout, decoded):
            numbers = ", ".join(str(bit) for bit in range(64) if unknown >> bit & 1)
            yield "known-bits", f"bits {numbers} are set", "they mean nothing on this kernel"
        if is_unaligned(layout, decoded):
            size = decoded.page_size or layout.page_size
            yield "alignment", "address bits below its size are set", f"a page of {size} bytes"
        if decoded.state in MAPPED and where == INSIDE and vma is not None:
            last = entry.address + (decoded.page_size or layout.page_size)
            if last > vma.end:
                yield "inside-vmas", f"reaches up to {last:#x}", f"the VMA ends at {vma.end:#x}"
        yield from self._frames(chain, entry, decoded)

    def _frames(
        self, chain: Chain, entry: RawEntry, decoded: Entry
    ) -> Iterator[tuple[str, str, str]]:
        if self.ranges is None:
            return
        table = entry.entry_pa - ENTRY_SIZE * entry.index
        if not within(self.ranges.ram, table, table):
            yield "tables-in-ram", f"its table is at {table:#x}", "not System RAM"
        if decoded.pa is None:
            return
        if decoded.state == "table":
            if not within(self.ranges.ram, decoded.pa, decoded.pa):
                yield "tables-in-ram", f"points to a table at {decoded.pa:#x}", "not System RAM"
            return
        last = decoded.pa + (decoded.page_size or chain.layout.page_size) - 1
        if not within(self.ranges.known, decoded.pa, last):
            yield "frames-known", f"maps {decoded.pa:#x} to {last:#x}", "in no range"

    def _links(self, chain: Chain) -> Iterator[Violation]:
        for (_, above), (below, decoded) in pairwise(chain.pairs):
            table = below.entry_pa - ENTRY_SIZE * below.index
            if above.state != "table" or above.pa != table:
                points = "no table" if above.pa is None else f"{above.pa:#x}"
                yield self._violation(
                    chain, "levels", below, decoded, f"its table is at {table:#x}",
                    f"the {above.level} entry points to {points}",
                )  # fmt: skip

    def _roots(self, chain: Chain, user: RawEntry) -> Iterator[Violation]:
        layout = chain.layout
        root, decoded = chain.raw.entries[0], chain.decoded[0]
        want = user.raw | 1 << layout.facts["bit.nx"] if user.raw else 0
        if layout.runtime.get("pti") and (root.raw ^ want) & ~aging_bits(layout):
            yield self._violation(
                chain, "pti-copies", root, decoded, f"the kernel's entry is {root.raw:#018x}",
                f"the user copy's is {user.raw:#018x}",
            )  # fmt: skip

    @staticmethod
    def _violation(
        chain: Chain, invariant: str, entry: RawEntry, decoded: Entry, ours: str, theirs: str
    ) -> Violation:
        return Violation(invariant, entry.address, decoded.level, entry, decoded, ours, theirs)


def against_pagemap(chain: Chain, page: Page) -> Violation | None:
    """Where pagemap says something else than it must of the page at the address of a walk."""
    found = differences(expected(chain.as_walk()), page)
    if not found:
        return None
    return Violation(
        "pagemap", chain.raw.address, chain.decoded[-1].level, chain.raw.entries[-1],
        chain.decoded[-1],
        ", ".join(f"{row.what} {_shown(row.walk)}" for row in found),
        ", ".join(f"{row.what} {_shown(row.pagemap)}" for row in found),
    )  # fmt: skip


def group_of(layout: Layout, level: str, address: int) -> tuple[int, ...]:
    """The addresses of all entries that would be one mapping with that of `address`."""
    rules = rules_for(layout, level)
    size = max((group.entries for group in rules.groups), default=1) * rules.level.span
    base = address & -size
    return tuple(range(base, base + size, rules.level.span))


def broken_group(layout: Layout, level: str, chains: Sequence[Chain]) -> Violation | None:
    """Why the entries of `group_of` that are marked as one mapping are none."""
    rules = rules_for(layout, level)
    entries = [
        next(((raw, entry) for raw, entry in chain.pairs if entry.level == level), None)
        for chain in chains
    ]
    for group in rules.groups:
        marked = [
            pair is not None and pair[1].state in MAPPED and group.row.fits(pair[1].raw)
            for pair in entries
        ]
        if not any(marked):
            continue
        first = next(pair for pair, is_marked in zip(entries, marked, strict=True) if is_marked)
        assert first is not None
        wrong = None
        if not all(marked):
            wrong = f"{sum(marked)} of {len(marked)} entries are marked"
        else:
            base = entries[0][1].pa if entries[0] is not None else None
            step = 0 if group.in_address else rules.level.span
            places = [pair[1].pa for pair in entries if pair is not None]
            if base is None or base % (len(marked) * rules.level.span):
                wrong = f"it begins at {base:#x}"
            elif places != [base + i * step for i in range(len(marked))]:
                wrong = "the frames are not in sequence"
        if wrong is not None:
            return Violation(
                "groups", first[0].address, level, first[0], first[1], wrong,
                f"a mapping of {len(marked)} entries",
            )  # fmt: skip
    return None


def _shown(value: int | bool | None) -> str:
    if value is None:
        return "none"
    return ("yes" if value else "no") if isinstance(value, bool) else hex(value)
