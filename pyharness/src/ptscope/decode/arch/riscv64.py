# SPDX-License-Identifier: GPL-2.0-or-later
"""How riscv64 entries are to be read (Sv39, Sv48, Sv57).

Sources, unless a row names another: Linux 6.12 and 7.2 ``arch/riscv/include/asm/``
``pgtable-bits.h``, ``pgtable-64.h`` and ``pgtable.h``, and for what the hardware
does, the RISC-V Instruction Set Manual, volume II, chapter "Supervisor-Level ISA"
(address translation, Svnapot, Svpbmt, Svrsw60t59b).
"""

from __future__ import annotations

from collections.abc import Mapping

from ptscope.decode.arch.context import flag, geometry
from ptscope.decode.table import (
    MAPPED,
    SWAPPED,
    Architecture,
    Attribute,
    Changes,
    ContextKey,
    Group,
    Match,
    Piece,
    State,
    Word,
)

_ALL = ("pgd", "p4d", "pud", "pmd", "pte")
_UPPER = ("pgd", "p4d", "pud", "pmd")
_LEAVES = ("pud", "pmd", "pte")
_PRESENT = ("table", "leaf", "invalid")
_FRAMED = ("table", *MAPPED)
_RWX = ("read", "write", "exec")

# With Sv39 the PUD is folded into the root: what Linux writes as a PUD stands there.
_ROOT_IS_PUD = {"levels": 3}
# Bits 62:61 are the memory type, or nothing without Svpbmt.  T-Head cores have it in 63:59.
_PBMT = 0b11 << 61
_STANDARD = ({"memory_type_mask": 0}, {"memory_type_mask": _PBMT})
_THEAD = {"memory_type_mask": 0b11111 << 59}


def _like_pud(
    state: str,
    levels: tuple[str, ...],
    ones: tuple[str, ...] = (),
    zeros: tuple[str, ...] = (),
    any_of: tuple[str, ...] = (),
    when: Mapping[str, int] | None = None,
) -> tuple[State, State]:
    """A state that the PUD can have, and so the root with Sv39."""
    when = when or {}
    return (
        State(state, levels, ones, zeros, any_of=any_of, when=when),
        State(state, ("pgd",), ones, zeros, any_of=any_of, when={**when, **_ROOT_IS_PUD}),
    )


_STATES = (
    # Exactly zero at every level (with folded levels the kernel's own pgd_none() is
    # never true, since it is then asked of the level below).
    State("none", _ALL, only=()),
    State(
        "invalid", _ALL, ones=("present",), any_of=("reserved",), reason="bits 58:54 are reserved"
    ),
    State(
        "invalid",
        ("pte",),
        ones=("present",),
        zeros=_RWX,
        reason="R, W and X are clear, but below this level there is no table",
    ),
    State(
        "invalid",
        _UPPER,
        ones=("present",),
        zeros=_RWX,
        any_of=("user", "accessed", "dirty"),
        reason="U, A and D are reserved in a table entry",
    ),
    State("table", _UPPER, ones=("present",), zeros=_RWX),
    State(
        "invalid",
        _UPPER,
        ones=("present",),
        any_of=("unaligned",),
        reason="the address is not aligned to the size of the page",
    ),
    # W alone is a page of a shadow stack where these are in use (Zicfiss, PAGE_SHADOWSTACK).
    State(
        "leaf", _ALL, ones=("present", "write"), zeros=("read", "exec"), when={"shadow_stack": 1}
    ),
    State(
        "invalid",
        _ALL,
        ones=("present", "write"),
        zeros=("read",),
        reason="writable without being readable is reserved",
    ),
    *(
        State(
            "invalid",
            levels,
            ones=("present", "napot", *ones),
            zeros=zeros,
            any_of=any_of,
            reason="this size of a Svnapot range is reserved",
            when=when,
        )
        for when in _STANDARD
        for levels, ones, zeros, any_of in (
            (_UPPER, (), (), ()),
            (("pte",), (), ("ppn3",), ()),
            (("pte",), (), (), ("ppn2_0",)),
        )
    ),
    State("leaf", _ALL, ones=("present",)),
    # From here on the entry is not valid.  Its frame is not inverted.  The bit for PROT_NONE
    # is the global bit of valid entries.
    *_like_pud("protnone", _LEAVES, ones=("protnone",)),
    # pmd_mkinvalid() clears present and protnone and leaves R, W and X, of which a
    # special entry can have X's bit only (soft-dirty, 7.x).  These have types from 24 up, so
    # where the leaf has low address bits, which are zero, theirs are not.
    State("splitting", ("pmd",), zeros=("unaligned",), any_of=_RWX),
    *_like_pud("splitting", ("pud",), zeros=("unaligned",), any_of=_RWX, when={"pud_mkinvalid": 1}),
    State(
        "invalid",
        _ALL,
        any_of=("read", "write"),
        reason="not valid, and neither PROT_NONE, mid-split nor a swap entry",
    ),
    State(
        "invalid",
        _ALL,
        any_of=("exec",),
        reason="not valid, and neither PROT_NONE, mid-split nor a swap entry",
        when={"svrsw60t59b": 0},
    ),
    # Which state it really has is decided by its type.  Above the PTE only special
    # types occur.
    *_like_pud("swap", _LEAVES),
    State(
        "invalid", ("pgd", "p4d"), reason="not valid and not empty: the kernel never writes this"
    ),
)

# From 7.x, and where Svrsw60t59b leaves two more bits to software.
_SOFTWARE_BITS = {"svrsw60t59b": 1}

_ATTRIBUTES = (
    Attribute("accessed", MAPPED, (Match(ones=("accessed",)),)),
    Attribute("dirty", MAPPED, (Match(ones=("dirty",)),)),
    Attribute("soft_dirty", MAPPED, (Match(ones=("soft_dirty",)),), when=_SOFTWARE_BITS),
    Attribute("soft_dirty", SWAPPED, (Match(ones=("swap.bit.soft_dirty",)),), when=_SOFTWARE_BITS),
    Attribute("uffd_wp", MAPPED, (Match(ones=("uffd_wp",)),), when=_SOFTWARE_BITS),
    Attribute("uffd_wp", SWAPPED, (Match(ones=("swap.bit.uffd_wp",)),), when=_SOFTWARE_BITS),
    Attribute("special", MAPPED, (Match(ones=("special",)),)),
    Attribute("global_", ("leaf",), (Match(ones=("global",)),)),
    Attribute(
        "shadow_stack",
        ("leaf",),
        (Match(ones=("write",), zeros=("read", "exec"), when={"shadow_stack": 1}),),
    ),
    # A page of a shadow stack can be read, and written only by its own instructions.
    Attribute(
        "access.read",
        ("leaf",),
        (
            Match(ones=("read",)),
            Match(ones=("write",), zeros=("read", "exec"), when={"shadow_stack": 1}),
        ),
    ),
    Attribute("access.write", ("leaf",), (Match(ones=("read", "write")),)),
    Attribute("access.exec", ("leaf",), (Match(ones=("exec",)),)),
    Attribute("access.user", ("leaf",), (Match(ones=("user",)),)),
    # U, R, W and X stand in leaf entries only: tables restrict nothing.
    *(
        Attribute(f"access.{name}", ("table",), (Match(),))
        for name in ("read", "write", "exec", "user")
    ),
)

_WORDS = (
    Word("valid", "present", _PRESENT, _ALL),
    *(
        Word(name, name, (*MAPPED, "invalid"), _ALL)
        for name in ("read", "write", "exec", "user", "accessed", "dirty")
    ),
    Word("global", "global", ("table", "leaf", "invalid"), _ALL),
    Word("protnone", "protnone", ("protnone",), _ALL),
    Word("special", "special", MAPPED, _ALL),
    Word("devmap", "devmap", MAPPED, _ALL),
    Word("soft-dirty", "soft_dirty", MAPPED, _ALL, when=_SOFTWARE_BITS),
    Word("uffd-wp", "uffd_wp", MAPPED, _ALL, when=_SOFTWARE_BITS),
    *(Word("pbmt", "mask.pbmt", _FRAMED, _ALL, number=True, when=when) for when in _STANDARD),
    *(Word("napot", "napot", (*_FRAMED, "invalid"), _ALL, when=when) for when in _STANDARD),
    Word("memory-type", "runtime.memory_type_mask", _FRAMED, _ALL, number=True, when=_THEAD),
    Word("soft-dirty", "swap.bit.soft_dirty", SWAPPED, _ALL, when=_SOFTWARE_BITS),
    Word("uffd-wp", "swap.bit.uffd_wp", SWAPPED, _ALL, when=_SOFTWARE_BITS),
    Word("exclusive", "swap.bit.exclusive", SWAPPED, _ALL),
)

_ROOT_BITS = {3: 39, 4: 48, 5: 57}


def _paging_levels(
    facts: Mapping[str, int], runtime: Mapping[str, int], value: int | None
) -> Changes:
    """Sv39, Sv48 or Sv57: one kernel has all three (CONFIG_PGTABLE_LEVELS is 5)."""
    if value not in _ROOT_BITS or value > max(facts.get("max_levels", 5), runtime["levels"]):
        raise ValueError
    # One root serves both halves.  MAX_PHYSMEM_BITS is 56 with all of them.
    return geometry(facts["page_shift"], _ROOT_BITS[value], _ROOT_BITS[value] - 1)


def _page_size(facts: Mapping[str, int], runtime: Mapping[str, int], value: int | None) -> Changes:
    if value != 1 << facts["page_shift"]:
        raise ValueError
    return {}


def _svrsw60t59b(
    facts: Mapping[str, int], runtime: Mapping[str, int], value: int | None
) -> Changes:
    """Bits 60 and 59 left to software, on a kernel that knows what to do with them."""
    if value not in (0, 1) or (value and "bit.soft_dirty" not in facts):
        raise ValueError
    return {"runtime.svrsw60t59b": value}


ARCHITECTURE = Architecture(
    name="riscv64",
    level_names=_ALL,
    required=(
        "page_shift",
        "mask.pfn",
        "shift.pfn",
        *(f"bit.{name}" for name in ("present", *_RWX, "user", "global", "accessed", "dirty")),
        "bit.protnone",
    ),
    present=(Match(ones=("present",)),),
    states=_STATES,
    attributes=_ATTRIBUTES,
    address=(Piece("mask.pfn", "shift.pfn"),),
    address_within=(),
    leaf_reuses=(),
    groups=tuple(
        # The only size there is: 64 KiB.  Whether the hardware has Svnapot is not asked: where
        # it has not, the kernel does not set the bit.
        Group(
            ("pte",),
            Match(ones=("napot", "ppn3"), zeros=("ppn2_0",), when=when),
            entries=16,
            in_address=True,
        )
        for when in _STANDARD
    ),
    pkey=None,
    words=_WORDS,
    context={
        "paging_levels": ContextKey("3, 4 or 5", _paging_levels),
        "page_size": ContextKey("4096", _page_size),
        "svrsw60t59b": ContextKey(
            "true or false; true only on a kernel that uses it (7.x)", _svrsw60t59b
        ),
        "shadow_stack": flag("shadow_stack"),
    },
    fixed={
        "reserved": 0b11111 << 54,
        "ppn3": 1 << 13,
        "ppn2_0": 0b111 << 10,
    },
)
