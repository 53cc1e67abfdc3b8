# SPDX-License-Identifier: GPL-2.0-or-later
"""Which single entries break an invariant, as data.

The same rows are asked twice: in C of every entry of a stream (`compiled_rows`), and of what is
suspect again with the reference decoder (`broken_by`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ptscope._core import ffi, lib
from ptscope.decode.arch import architecture
from ptscope.decode.compiled import ATTRIBUTE, STATE
from ptscope.decode.entry import Entry, has_attribute
from ptscope.decode.layout import U64_MAX, Layout
from ptscope.decode.rules import rules_for
from ptscope.decode.table import MAPPED, STATES

INSIDE: int = lib.PTSCOPE_WHERE_INSIDE
OUTSIDE: int = lib.PTSCOPE_WHERE_OUTSIDE
KERNEL: int = lib.PTSCOPE_WHERE_KERNEL

_LEAF = ("leaf",)
_NOT_EMPTY = tuple(state for state in STATES if state not in ("none", "table", "invalid"))


@dataclass(frozen=True)
class EntryRule:
    """Breaks `invariant`: an entry in one of `states` with all attributes `has`, none of `lacks`.

    At one of `levels` (empty: all), `where` its address lies, in a VMA with none of the flags
    `vma_lacks` and all of `vma_has`. `words` say it to people.
    """

    invariant: str
    where: int
    states: tuple[str, ...]
    words: str
    has: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    vma_has: tuple[str, ...] = ()
    vma_lacks: tuple[str, ...] = ()
    levels: tuple[str, ...] = ()
    unless_zero: bool = False
    exec_bit: bool = False
    """It speaks of execution, so it means nothing where the CPU has no bit to forbid it."""
    one_node: bool = False
    """Only where there is one node of memory."""


RULES = (
    EntryRule(
        "permissions", INSIDE, _LEAF, "writable", ("access.write",), vma_lacks=("write",)
    ),
    EntryRule(
        "permissions", INSIDE, _LEAF, "executable", ("access.exec",), vma_lacks=("exec",),
        exec_bit=True,
    ),
    EntryRule(
        "permissions", INSIDE, _LEAF, "readable", ("access.read",),
        # Whatever may be written or executed may be read on most CPUs: what forbids it is not in
        # the entry (protection keys), or nothing.
        vma_lacks=("read", "write", "exec"),
    ),
    *(
        EntryRule(
            "write-exec", INSIDE, _LEAF, "writable and executable",
            ("access.write", "access.exec"), vma_lacks=(name,), exec_bit=True,
        )
        for name in ("write", "exec")
    ),
    EntryRule("inside-vmas", OUTSIDE, _NOT_EMPTY, "not empty, outside every VMA"),
    EntryRule(
        "user-pages", INSIDE | OUTSIDE, ("table", *_LEAF), "not for user mode",
        lacks=("access.user",),
    ),
    *(
        EntryRule(
            "protnone", INSIDE, ("protnone",), "not hardware-present in a VMA with access",
            vma_has=(name,), vma_lacks=("uffd_rwp",), one_node=True,
        )
        for name in ("read", "write", "exec")
    ),
    EntryRule(
        "special", INSIDE, ("leaf", "protnone"), "special, but neither the zero page nor in a VMA "
        "of raw or mixed frames", ("special",), vma_lacks=("pfnmap", "mixedmap"), levels=("pte",),
        unless_zero=True,
    ),
    EntryRule("reserved-bits", INSIDE | OUTSIDE | KERNEL, ("invalid",), "invalid"),
    EntryRule("kernel-pages", KERNEL, _LEAF, "for user mode", ("access.user",)),
    EntryRule(
        "kernel-write-exec", KERNEL, _LEAF, "writable and executable",
        ("access.write", "access.exec"), exec_bit=True,
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Machine:
    """What rows depend on besides the entry: `zero_pfn` of the zero page, None when not known."""

    layout: Layout
    zero_pfn: int | None
    nodes: int = 1

    def asks(self, rule: EntryRule) -> bool:
        """Whether a rule means something here."""
        if rule.exec_bit and self.layout.runtime.get("nx", 1) == 0:
            return False
        if rule.one_node and self.nodes > 1:
            return False
        return not (rule.unless_zero and self.zero_pfn is None)

    def vma_bits(self, names: tuple[str, ...]) -> int:
        """Their bits of vm_flags; those that this kernel does not have are left out."""
        mask = 0
        for name in names:
            mask |= self.layout.facts.get(f"vm.{name}", 0)
        return mask


def broken_by(
    machine: Machine, entry: Entry, where: int, vm_flags: int
) -> Iterator[tuple[str, str]]:
    """Each invariant that this one entry breaks by a row, with the words for how."""
    for rule in RULES:
        if (
            rule.where & where
            and entry.state in rule.states
            and (not rule.levels or entry.level in rule.levels)
            and machine.asks(rule)
            and not vm_flags & machine.vma_bits(rule.vma_lacks)
            and all(vm_flags & machine.vma_bits((name,)) for name in rule.vma_has)
            and all(has_attribute(machine.layout, entry, name) for name in rule.has)
            and not any(has_attribute(machine.layout, entry, name) for name in rule.lacks)
            and not (rule.unless_zero and entry.pfn == machine.zero_pfn)
        ):
            if entry.state == "invalid":
                invariant = "alignment" if "aligned" in entry.reason else rule.invariant
                yield invariant, entry.reason
            else:
                yield rule.invariant, rule.words


def compiled_rows(machine: Machine) -> tuple[Any, int]:
    """The rows as an array of ``struct ptscope_check_row``, and how many."""
    rules = [rule for rule in RULES if machine.asks(rule)]
    rows = ffi.new("struct ptscope_check_row[]", len(rules))
    numbers = {level.name: level.number for level in machine.layout.levels}
    for row, rule in zip(rows, rules, strict=True):
        has = machine.vma_bits(rule.vma_has)
        row.vma_mask = has | machine.vma_bits(rule.vma_lacks)
        row.vma_value = has
        row.where = rule.where
        row.states = sum(1 << STATE[state] for state in rule.states)
        levels = rule.levels or tuple(numbers)
        row.levels = sum(1 << numbers[level] for level in levels if level in numbers)
        row.set = sum(ATTRIBUTE[name] for name in rule.has)
        row.clear = sum(ATTRIBUTE[name] for name in rule.lacks)
        row.unless_zero = rule.unless_zero
    return rows, len(rules)


def unaligned_bits(layout: Layout, level: str) -> int:
    """Raw address bits below the size that a page of this level maps."""
    rules = rules_for(layout, level)
    below = rules.level.span - 1
    mask = 0
    for piece in rules.address:
        inside = below >> piece.shift if piece.shift >= 0 else below << -piece.shift
        mask |= piece.mask & inside
    for name in architecture(layout.arch).leaf_reuses:
        if level != layout.levels[-1].name:
            mask &= ~(1 << layout.facts[f"bit.{name}"])
    return mask & U64_MAX


def is_unaligned(layout: Layout, entry: Entry) -> bool:
    """Whether a mapped entry has address bits below its size, where they would be of a page."""
    if entry.state not in MAPPED or entry.contiguous:
        return False
    # Where x86 stores the frame inverted (L1TF) these bits are clear all the same: they are no part
    # of PHYSICAL_PMD_PAGE_MASK.
    return bool(entry.raw & unaligned_bits(layout, entry.level))


def unknown_bits(layout: Layout, entry: Entry) -> int:
    """Bits that are set and have no meaning in the entry's state."""
    return entry.raw & ~rules_for(layout, entry.level).explained[entry.state]


# Bits of a present entry that hardware changes by itself: an access, a write. On arm64 the first
# write to a page that may be written clears RDONLY.
_AGING = {
    "x86_64": ("accessed", "dirty"),
    "arm64": ("accessed", "dirty", "rdonly"),
    "riscv64": ("accessed", "dirty"),
}


def aging_bits(layout: Layout) -> int:
    """The bits in which two readings of an unchanged entry may differ."""
    return sum(1 << layout.facts[f"bit.{name}"] for name in _AGING[layout.arch])


def without_aging(layout: Layout, entry: Entry) -> int:
    """The raw value as it is compared with a later reading."""
    return entry.raw & ~aging_bits(layout) if entry.hw_present else entry.raw
