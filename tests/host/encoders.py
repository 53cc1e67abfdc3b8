# SPDX-License-Identifier: GPL-2.0-or-later
"""Entries as the kernels make them, written from a layout's facts and not from the decoder's table.

Each architecture's encoders are its own formulas: x86 pfn_pte(), pfn_pmd(), pmd_mkinvalid()
and __swp_entry(), arm64 __phys_to_pte_val(), mk_pmd_sect_prot() and pmd_mkinvalid(), riscv
pfn_pte() and pmd_mkinvalid() (``arch/*/include/asm/pgtable*.h``, 5.10 to 7.3).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from ptscope.decode.layout import Layout

U64 = (1 << 64) - 1


class Encoder(ABC):
    """The encoders of one kernel.

    `leaf_levels` can hold huge pages and what the kernel makes of them, `kept` are the bits
    that a page keeps while it is PROT_NONE or being split, each with the
    property it stands for.
    """

    kept: tuple[tuple[str, str], ...]

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.last = layout.levels[-1].name

    def bits(self, *names: str) -> int:
        """The bits of these names; 0 for those the kernel does not have."""
        facts = self.layout.facts
        return sum(1 << facts[f"bit.{name}"] for name in names if f"bit.{name}" in facts)

    @property
    def leaf_levels(self) -> tuple[str, ...]:
        """The levels at which Linux maps pages of user space."""
        return tuple(name for name in ("pud", "pmd", "pte") if not self.layout.is_folded(name))

    @abstractmethod
    def pa_bits(self) -> int:
        """How many bits an address can have."""

    @abstractmethod
    def leaf(self, level: str, pa: int, flags: int) -> int:
        """A page of user space that can be read."""

    @abstractmethod
    def protnone(self, level: str, pa: int, flags: int) -> int:
        """The same under PROT_NONE."""

    @property
    def split_levels(self) -> tuple[str, ...]:
        """The levels at which huge pages are made invalid for a moment, without PROT_NONE."""
        return (*self.leaf_levels[:-2], "pmd") if "pud_mkinvalid" in self.layout.facts else ("pmd",)

    @abstractmethod
    def splitting(self, level: str, pa: int, flags: int) -> int:
        """A huge page made so: pmd_mkinvalid(), pud_mkinvalid()."""

    @abstractmethod
    def table(self, pa: int) -> int:
        """An entry for the table of the next level."""

    def swap(self, number: int, offset: int) -> int:
        """__swp_entry() and __swp_entry_to_pte()."""
        facts = self.layout.facts
        type_mask, offset_mask = facts["swap.type_mask"], facts["swap.offset_mask"]
        raw = number * (type_mask & -type_mask) | offset * (offset_mask & -offset_mask)
        return raw ^ (offset_mask if facts["swap.offset_inverted"] else 0)


class X86(Encoder):
    kept = (
        ("accessed", "accessed"),
        ("dirty", "dirty"),
        ("saved_dirty", "dirty"),
        ("soft_dirty", "soft_dirty"),
        ("uffd_wp", "uffd_wp"),
        ("special", "special"),
    )

    def pa_bits(self) -> int:
        c_mask = self.layout.runtime["c_mask"]
        return c_mask.bit_length() - 1 if c_mask else 52

    def _encode(self, level: str, pa: int, flags: int) -> int:
        """pfn_pte() and its like: inverted when not present, aligned to the level."""
        mask = self.layout.facts["mask.pfn"] & self.layout.runtime["physical_mask"]
        if level != self.last:
            flags |= self.bits("huge")
        inverted = pa if flags & self.bits("present") else ~pa
        return inverted & mask & -self.layout.level(level).span | flags

    def leaf(self, level: str, pa: int, flags: int) -> int:
        return self._encode(level, pa, flags | self.bits("present", "user"))

    def protnone(self, level: str, pa: int, flags: int) -> int:
        return self._encode(level, pa, flags | self.bits("protnone"))

    def splitting(self, level: str, pa: int, flags: int) -> int:
        return self._encode(level, pa, flags | self.bits("user"))

    def table(self, pa: int) -> int:
        return pa | self.bits("present", "write", "user", "accessed", "dirty")


class Arm64(Encoder):
    kept = (
        ("accessed", "accessed"),
        ("dirty", "dirty"),
        ("uffd_wp", "uffd_wp"),
        ("special", "special"),
    )

    @property
    def wide(self) -> bool:
        """Whether addresses have more than 48 bits."""
        facts = self.layout.facts
        has = "mask.pfn_high" in facts
        return has and (bool(self.layout.runtime["lpa2"]) or facts["page_shift"] == 16)

    @property
    def leaf_levels(self) -> tuple[str, ...]:
        """1 GiB pages exist with 4K pages only."""
        return ("pud", "pmd", "pte") if self.layout.page_size == 4096 else ("pmd", "pte")

    def pa_bits(self) -> int:
        return 52 if self.wide else 48

    def _address(self, pa: int) -> int:
        facts = self.layout.facts
        if not self.wide:
            return pa
        return (pa | pa >> facts["shift.pfn_high"]) & (facts["mask.pfn"] | facts["mask.pfn_high"])

    def _type(self, level: str) -> int:
        return self.bits("valid", "table") if level == self.last else self.bits("valid")

    def leaf(self, level: str, pa: int, flags: int) -> int:
        """PAGE_READONLY; shareability is inner, except with LPA2, where it has no bits."""
        sharing = 0 if self.layout.runtime["lpa2"] else 0x300
        flags |= self.bits("user", "rdonly", "ng", "pxn", "uxn") | sharing
        return self._address(pa) | self._type(level) | flags

    def protnone(self, level: str, pa: int, flags: int) -> int:
        """PAGE_NONE, by pte_modify()."""
        raw = self.leaf(level, pa, flags) & ~self.bits("valid", "user", "write")
        return raw | self.bits("protnone")

    def splitting(self, level: str, pa: int, flags: int) -> int:
        raw = self.leaf(level, pa, flags) & ~self.bits("valid")
        return raw | (self.bits("pmd_present_invalid") or self.bits("protnone"))

    def table(self, pa: int) -> int:
        return self._address(pa) | self.bits("valid", "table") | 1 << 59


class Riscv64(Encoder):
    kept = (("accessed", "accessed"), ("dirty", "dirty"), ("special", "special"))

    @property
    def leaf_levels(self) -> tuple[str, ...]:
        """With Sv39 what Linux calls a PUD is the root."""
        folded = self.layout.is_folded("pud")
        return ("pgd" if folded else "pud", "pmd", "pte")

    def pa_bits(self) -> int:
        return 56

    def leaf(self, level: str, pa: int, flags: int) -> int:
        return pa >> 12 << 10 | flags | self.bits("present", "read", "user")

    def protnone(self, level: str, pa: int, flags: int) -> int:
        return pa >> 12 << 10 | flags | self.bits("protnone", "read")

    def splitting(self, level: str, pa: int, flags: int) -> int:
        return self.leaf(level, pa, flags) & ~self.bits("present", "protnone")

    def table(self, pa: int) -> int:
        return pa >> 12 << 10 | self.bits("present")


def encoder(layout: Layout) -> Encoder:
    """The encoders for a layout's architecture."""
    classes: dict[str, type[Encoder]] = {"x86_64": X86, "arm64": Arm64, "riscv64": Riscv64}
    return classes[layout.arch](layout)
