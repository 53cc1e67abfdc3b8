# SPDX-License-Identifier: GPL-2.0-or-later
"""A page-table walker for x86 that knows nothing of ptscope: CR3, CR4 and memory are all it has.

From the Intel SDM, volume 3, chapter 4 (paging): in a table of 512 entries of 8 bytes, bits 51:12
of an entry are the address of the next table or page, bit 0 is P, bit 7 of the two levels above
the last is PS. CR4.LA57 (bit 12) chooses five levels over four.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

PRESENT = 1 << 0
PS = 1 << 7
LA57 = 1 << 12
ADDRESS = (1 << 52) - (1 << 12)
ACCESSED_DIRTY = 1 << 5 | 1 << 6
"""The processor sets these by itself, also between the walk and the stop."""
PTI_USER = 1 << 12
"""arch/x86/include/asm/pgtable.h, PTI_PGTABLE_SWITCH_BIT: the user copy is the second page."""

ReadWord = Callable[[int], int]
"""The 8 bytes at a physical address."""


@dataclass(frozen=True)
class Registers:
    """Of a stopped CPU."""

    cpl: int
    cr3: int
    cr4: int

    @property
    def root(self) -> int:
        """Physical address of the root table: CR3 without PCID and the bit that keeps TLBs."""
        return self.cr3 & ADDRESS


def parse_registers(text: str) -> Registers:
    """Of ``info registers`` of QEMU's monitor."""

    def find(pattern: str) -> str:
        match = re.search(pattern, text)
        assert match, text
        return match[1]

    return Registers(
        cpl=int(find(r"CPL=(\d)")),
        cr3=int(find(r"CR3=([0-9a-f]+)"), 16),
        cr4=int(find(r"CR4=([0-9a-f]+)"), 16),
    )


@dataclass(frozen=True)
class Step:
    """One entry that the processor uses."""

    shift: int
    pa: int
    raw: int


@dataclass(frozen=True)
class Translation:
    """The way of one address."""

    steps: tuple[Step, ...]
    pa: int | None


def translate(read: ReadWord, registers: Registers, address: int) -> Translation:
    """Walk as the processor does."""
    steps = []
    table = registers.root
    for shift in (48, 39, 30, 21, 12) if registers.cr4 & LA57 else (39, 30, 21, 12):
        pa = table + 8 * (address >> shift & 511)
        raw = read(pa)
        steps.append(Step(shift, pa, raw))
        if not raw & PRESENT:
            return Translation(tuple(steps), None)
        if shift == 12 or (shift <= 30 and raw & PS):
            size = 1 << shift
            return Translation(tuple(steps), raw & ADDRESS & -size | address & size - 1)
        table = raw & ADDRESS
    raise AssertionError("unreachable")


SHIFTS_5 = {"pgd": 48, "p4d": 39, "pud": 30, "pmd": 21, "pte": 12}
SHIFTS_4 = {"pgd": 39, "pud": 30, "pmd": 21, "pte": 12}


def differences(
    walk: dict[str, Any], found: Translation, gpa: int, registers: Registers
) -> list[str]:
    """Where ``ptscope walk --json`` disagrees with the processor's own way and with ``gva2gpa``.

    Under PTI the root entry that counts in user mode is that of the user copy.
    """
    shifts = SHIFTS_5 if registers.cr4 & LA57 else SHIFTS_4
    pti = walk["user_pgd"] is not None
    ours = []
    for level in walk["levels"]:
        if level["raw"] is None:
            continue
        shown = walk["user_pgd"] if pti and level["level"] == "pgd" else level
        ours.append(Step(shifts[level["level"]], int(shown["entry_pa"], 16), int(shown["raw"], 16)))
    problems = []
    if len(ours) != len(found.steps):
        problems.append(f"{len(ours)} levels, the processor walks {len(found.steps)}")
    for mine, theirs in zip(ours, found.steps, strict=False):
        if mine.shift != theirs.shift:
            problems.append(f"level with shift {mine.shift}, the processor's has {theirs.shift}")
        if mine.pa != theirs.pa:
            problems.append(f"entry at {mine.pa:#x}, the processor reads {theirs.pa:#x}")
        if (mine.raw ^ theirs.raw) & ~ACCESSED_DIRTY:
            problems.append(f"entry {mine.raw:#x}, in memory is {theirs.raw:#x}")
    pa = int(walk["mapping"]["pa"], 16) if walk["mapping"]["pa"] else None
    if pa != found.pa:
        problems.append(f"physical address {pa}, from memory {found.pa}")
    if pa != gpa:
        problems.append(f"physical address {pa}, gva2gpa says {gpa}")
    kernel_root = int(walk["levels"][0]["entry_pa"], 16) & ADDRESS
    if registers.root != (kernel_root | PTI_USER if pti else kernel_root):
        problems.append(f"root table {kernel_root:#x}, CR3 is {registers.cr3:#x}")
    return problems
