# SPDX-License-Identifier: GPL-2.0-or-later
"""How arm64 entries are to be read.

Sources, unless a row names another: Linux 5.10, 6.1, 6.12 and 7.2
``arch/arm64/include/asm/`` ``pgtable-hwdef.h``, ``pgtable-prot.h`` and ``pgtable.h``,
and for what the hardware does, the Arm Architecture Reference Manual (DDI 0487),
section D8.3, translation table descriptor formats (stage 1, VMSAv8-64).

The levels keep Linux's names: the last is the PTE (Arm's level 3), and the root is
the PGD, which is Arm's level 0 with four levels, -1 with five and 1 with three.
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
    Field,
    Fold,
    Group,
    Match,
    Piece,
    State,
    Word,
)

_ALL = ("pgd", "p4d", "pud", "pmd", "pte")
_UPPER = ("pgd", "p4d", "pud", "pmd")
_HUGE = ("pud", "pmd")
_LEAVES = ("pud", "pmd", "pte")
_PRESENT = ("table", "leaf", "invalid")
_FRAMED = ("table", *MAPPED)

# Up to 6.9 PROT_NONE and mid-split have a bit each.  From 6.10 one bit says "present,
# but not valid", and PROT_NONE is told from mid-split by its permissions.
_ONE_BIT = {"bit.pmd_present_invalid": 0}

_STATES = (
    State("none", _ALL, only=()),
    State(
        "invalid",
        ("pte",),
        ones=("valid",),
        zeros=("table",),
        reason="a descriptor of this type is reserved at the last level",
    ),
    State("leaf", ("pte",), ones=("valid",)),
    State("table", _UPPER, ones=("valid", "table")),
    # Blocks exist at Arm's levels 1 (4K pages only) and 2; with LPA2 one level further up.
    State("leaf", ("pmd",), ones=("valid",)),
    State("leaf", ("pud",), ones=("valid",), when={"page_shift": 12}),
    State("leaf", ("pud", "p4d"), ones=("valid",), when={"lpa2": 1}),
    State(
        "invalid",
        _UPPER,
        ones=("valid",),
        reason="no block can stand at this level",
    ),
    # From here on the entry is not valid.  Its frame is not inverted.
    State("splitting", ("pmd",), ones=("pmd_present_invalid",)),
    State("protnone", _LEAVES, ones=("protnone", "uxn"), zeros=("user",), when=_ONE_BIT),
    State("splitting", ("pmd",), ones=("protnone",), when=_ONE_BIT),
    State(
        "invalid",
        _LEAVES,
        ones=("protnone",),
        when=_ONE_BIT,
        reason="not valid but present for the kernel, and not PROT_NONE",
    ),
    State("protnone", _LEAVES, ones=("protnone",)),
    # Swap entries have both type bits clear.  set_memory_valid() takes the valid bit
    # from pages of the linear map and leaves all else as it was.
    State(
        "invalid",
        _LEAVES,
        ones=("table",),
        reason="the valid bit was taken away in place, as from pages of the linear map",
    ),
    # Which state it really has is decided by its type.  Above the PTE only special
    # types occur.
    State("swap", _LEAVES),
    State(
        "invalid", ("pgd", "p4d"), reason="not valid and not empty: the kernel never writes this"
    ),
)

# Three kinds of leaves, by what AP[1], UXN and nG say together.  A user page that can only
# be executed has AP[1] clear as kernel pages have, but these all have UXN set
# (pte_valid_not_user(), 5.13 and later) or are global.
_USER = Match(ones=("user",))
_EXECUTE_ONLY = Match(ones=("ng",), zeros=("user", "uxn"))
_KERNEL = (Match(ones=("uxn",), zeros=("user",)), Match(zeros=("user", "uxn", "ng")))


def _and(match: Match, ones: tuple[str, ...] = (), zeros: tuple[str, ...] = ()) -> Match:
    return Match((*match.ones, *ones), (*match.zeros, *zeros), match.when)


_USER_EXEC = (_and(_USER, zeros=("uxn",)), _EXECUTE_ONLY)
_KERNEL_EXEC = tuple(_and(kernel, zeros=("pxn",)) for kernel in _KERNEL)
_GCS = {"shadow_stack": 1}

_ATTRIBUTES = (
    # Tables have an access flag with FEAT_HAFT only, which the layout does not tell.
    Attribute("accessed", MAPPED, (Match(ones=("accessed",)),)),
    # pte_dirty(): set by software, or by hardware that cleared RDONLY of a writable page.
    Attribute("dirty", MAPPED, (Match(ones=("dirty",)), Match(ones=("write",), zeros=("rdonly",)))),
    Attribute("uffd_wp", MAPPED, (Match(ones=("uffd_wp",)),)),
    Attribute("uffd_wp", SWAPPED, (Match(ones=("swap.bit.uffd_wp",)),)),
    Attribute("special", MAPPED, (Match(ones=("special",)),)),
    Attribute("global_", ("leaf",), (Match(zeros=("ng",)),)),
    # The guarded control stack (GCS, 6.13 and later): _PAGE_GCS.
    Attribute(
        "shadow_stack",
        ("leaf",),
        (Match(ones=("user", "write", "uxn"), zeros=("pxn",), when=_GCS),),
    ),
    # What a leaf allows.
    Attribute("access.read", ("leaf",), (_USER, *_KERNEL)),
    Attribute(
        "access.write",
        ("leaf",),
        (
            # pte_write() of a user page is DBM alone; while it is clean the first write
            # faults, or the hardware clears RDONLY.  Ordinary stores cannot write to
            # a guarded control stack.
            Match(ones=("user", "write"), when={"shadow_stack": 0}),
            Match(ones=("user", "write"), zeros=("uxn",), when=_GCS),
            Match(ones=("user", "write", "pxn"), when=_GCS),
            # Blocks of the linear map came without DBM before 6.5: RDONLY clear is writable too.
            *(_and(kernel, ones=("write",)) for kernel in _KERNEL),
            *(_and(kernel, zeros=("rdonly",)) for kernel in _KERNEL),
        ),
    ),
    Attribute("access.exec", ("leaf",), (*_USER_EXEC, *_KERNEL_EXEC)),
    Attribute("access.user", ("leaf",), (_USER, _EXECUTE_ONLY)),
    # What a table leaves possible below it.  Linux sets PXNTable in all table entries of
    # user space and UXNTable in those of the kernel (pXd_populate(), 5.13 and
    # later, from the PGD down), and never APTable.  With permission indirection
    # (FEAT_S1PIE) the hardware ignores all four; for what Linux sets the outcome is the same.
    Attribute("access.read", ("table",), (Match(),)),
    Attribute("access.write", ("table",), (Match(zeros=("aptable_rdonly",)),)),
    Attribute(
        "access.exec", ("table",), (Match(zeros=("uxn_table",)), Match(zeros=("pxn_table",)))
    ),
    Attribute("access.user", ("table",), (Match(zeros=("aptable_no_user",)),)),
    # For the fold of execution: which of the two no-execute bits counts.
    Attribute("exec.user", ("table",), (Match(zeros=("uxn_table",)),)),
    Attribute("exec.kernel", ("table",), (Match(zeros=("pxn_table",)),)),
    Attribute("exec.user", ("leaf",), _USER_EXEC),
    # Also of a user page's leaf: APTable may have taken it from user mode.
    Attribute("exec.kernel", ("leaf",), (Match(zeros=("pxn",)),)),
)

_WORDS = (
    Word("valid", "valid", _PRESENT, _ALL),
    Word("table", "table", ("table", "invalid"), _UPPER),
    Word("page", "table", (*MAPPED, "invalid"), ("pte",)),
    Word("attr", "attrindx", (*MAPPED, "invalid"), _ALL, number=True),
    Word("user", "user", (*MAPPED, "invalid"), _ALL),
    Word("rdonly", "rdonly", (*MAPPED, "invalid"), _ALL),
    # With LPA2 in use these two bits are address bits.
    Word("sh", "sh", (*MAPPED, "invalid"), _ALL, number=True, when={"lpa2": 0}),
    Word("accessed", "accessed", (*_FRAMED, "invalid"), _ALL),
    Word("ng", "ng", ("leaf", "invalid"), _ALL),
    Word("ng", "ng", ("protnone", "splitting"), _ALL, when={"bit.protnone": 58}),
    Word("protnone", "protnone", ("protnone",), _ALL),
    Word("present-invalid", "protnone", ("splitting",), _ALL, when=_ONE_BIT),
    Word("present-invalid", "pmd_present_invalid", ("splitting",), _ALL),
    Word("protnone", "protnone", ("splitting",), _ALL, when={"bit.protnone": 58}),
    Word("guarded", "gp", ("leaf", "invalid"), _ALL),
    Word("write", "write", (*MAPPED, "invalid"), _ALL),
    Word("contiguous", "contiguous", (*MAPPED, "invalid"), _ALL),
    Word("pxn", "pxn", (*MAPPED, "invalid"), _ALL),
    Word("uxn", "uxn", (*MAPPED, "invalid"), _ALL),
    Word("dirty", "dirty", MAPPED, _ALL),
    Word("special", "special", MAPPED, _ALL),
    Word("devmap", "devmap", MAPPED, _ALL),
    Word("uffd-wp", "uffd_wp", MAPPED, _ALL),
    Word("pxn-table", "pxn_table", ("table",), _ALL),
    Word("uxn-table", "uxn_table", ("table",), _ALL),
    Word("aptable-no-user", "aptable_no_user", ("table",), _ALL),
    Word("aptable-rdonly", "aptable_rdonly", ("table",), _ALL),
    Word("uffd-wp", "swap.bit.uffd_wp", SWAPPED, _ALL),
    Word("exclusive", "swap.bit.exclusive", SWAPPED, _ALL),
)

# Entries grouped by the contiguous bit, by page shift: PTEs and PMDs (arch/arm64/Kconfig,
# ARM64_CONT_PTE_SHIFT and ARM64_CONT_PMD_SHIFT, 5.10 to 7.2).
_CONTIGUOUS = {12: (16, 16), 14: (128, 32), 16: (32, 32)}
_64K = 16


def _address_bits(facts: Mapping[str, int], page_shift: int, lpa2: int) -> tuple[int, int]:
    """Virtual and physical address bits in use, as Debian configures its kernels.

    Without CONFIG_ARM64_PA_BITS_52 both are 48.  With it, and with VA_BITS_52,
    4K and 16K pages have 52 bits only with LPA2, else 48 of both, of virtual
    ones with 16K pages 47 (VA_BITS_MIN in asm/memory.h, 6.9 and later); 64K pages have
    52 bits with FEAT_LVA and FEAT_LPA, which are older than LPA2.
    """
    if "mask.pfn_high" not in facts:
        return 48, 48
    if lpa2 or page_shift == _64K:
        return 52, 52
    return (47 if page_shift == 14 else 48), 48


def _space(
    facts: Mapping[str, int], runtime: Mapping[str, int], page_shift: int, lpa2: int
) -> dict[str, int | None]:
    """The runtime facts that follow from page size and LPA2."""
    virtual, physical = _address_bits(facts, page_shift, lpa2)
    # Each half of the address space has its own root, which translates all of its bits.
    changes = geometry(page_shift, virtual, virtual)
    changes["runtime.lpa2"] = lpa2
    changes["runtime.physical_mask"] = (1 << physical) - 1
    if "swap_pfn_bits" in runtime:
        # MAX_PHYSMEM_BITS - PAGE_SHIFT, the former being PHYS_MASK_SHIFT.
        changes["runtime.swap_pfn_bits"] = physical - page_shift
    return changes


def _page_size(facts: Mapping[str, int], runtime: Mapping[str, int], value: int | None) -> Changes:
    """The same kernel built with another CONFIG_ARM64_{4K,16K,64K}_PAGES."""
    shift = next((shift for shift in _CONTIGUOUS if value == 1 << shift), None)
    if shift is None:
        raise ValueError
    if shift == facts["page_shift"]:
        return {}
    changes = _space(facts, runtime, shift, 0 if shift == _64K else runtime.get("lpa2", 0))
    changes["page_shift"] = shift
    changes["cont_ptes"], changes["cont_pmds"] = _CONTIGUOUS[shift]
    top = facts["mask.pfn"].bit_length()
    changes["mask.pfn"] = (1 << top) - (1 << shift)
    wide = "mask.pfn_high" in facts
    if wide:
        changes["mask.pfn_high"] = 0xF000 if shift == _64K else 0x300
        changes["shift.pfn_high"] = 36 if shift == _64K else 42
    if "max_levels" in facts:
        virtual, _ = _address_bits(facts, shift, 1 if wide else 0)
        changes["max_levels"] = geometry(shift, virtual, virtual)["runtime.levels"]
    return changes


def _lpa2(facts: Mapping[str, int], runtime: Mapping[str, int], value: int | None) -> Changes:
    """LPA2 in use or not, on a kernel that can (CONFIG_ARM64_LPA2, 6.9 and later)."""
    able = "mask.pfn_high" in facts and facts["page_shift"] != _64K
    if value not in (0, 1) or (value and not able):
        raise ValueError
    return _space(facts, runtime, facts["page_shift"], value) if able else {}


def _paging_levels(
    facts: Mapping[str, int], runtime: Mapping[str, int], value: int | None
) -> Changes:
    """The number of levels decides about LPA2 and the other way round."""
    if value == runtime["levels"]:
        return {}
    changes = _lpa2(facts, runtime, 1 - runtime.get("lpa2", 0))
    if changes.get("runtime.levels") != value:
        raise ValueError
    return changes


ARCHITECTURE = Architecture(
    name="arm64",
    level_names=_ALL,
    required=(
        "page_shift",
        "mask.pfn",
        "cont_ptes",
        "cont_pmds",
        *(f"bit.{name}" for name in ("valid", "table", "user", "rdonly", "accessed", "ng")),
        *(f"bit.{name}" for name in ("write", "contiguous", "pxn", "uxn", "dirty", "protnone")),
    ),
    present=(Match(ones=("valid",)),),
    states=_STATES,
    attributes=_ATTRIBUTES,
    address=(
        Piece("mask.pfn"),
        # Bits 51:50 in 9:8 with LPA2, which otherwise are shareability; bits 51:48 in
        # 15:12 with 64K pages, which are zero on hardware with fewer.
        Piece("mask.pfn_high", "shift.pfn_high", when={"lpa2": 1}),
        Piece("mask.pfn_high", "shift.pfn_high", when={"lpa2": 0, "page_shift": _64K}),
    ),
    address_within=(),
    leaf_reuses=(),
    groups=(
        Group(("pte",), Match(ones=("contiguous",)), entries="cont_ptes"),
        Group(("pmd",), Match(ones=("contiguous",)), entries="cont_pmds"),
    ),
    pkey=Field(
        low="bit.pkey",
        width="pkey_bits",
        # Permission overlays (POE, 6.12 and later), which Linux turns on for EL0 only.
        # The key is kept in PROT_NONE entries.
        rows=(
            (
                ("leaf",),
                tuple(
                    Match(match.ones, match.zeros, {"pkeys": 1}) for match in (_USER, _EXECUTE_ONLY)
                ),
            ),
            (("protnone", "splitting"), (Match(when={"pkeys": 1}),)),
        ),
    ),
    words=_WORDS,
    context={
        "page_size": ContextKey("4096, 16384 or 65536", _page_size),
        "lpa2": ContextKey(
            "true or false; true only on a kernel for 52-bit addresses with 4K or 16K pages", _lpa2
        ),
        "paging_levels": ContextKey(
            "5 with LPA2 and 4 without (4K pages), 4 or 3 (16K), 3 (64K)", _paging_levels
        ),
        "pkeys": flag("pkeys"),
        "shadow_stack": flag("shadow_stack"),
    },
    fixed={
        "attrindx": 0b111 << 2,
        "sh": 0b11 << 8,
        "pxn_table": 1 << 59,
        "uxn_table": 1 << 60,
        # APTable[0] takes away EL0's access to data, APTable[1] everybody's writing.
        "aptable_no_user": 1 << 61,
        "aptable_rdonly": 1 << 62,
    },
    folds=(
        Fold("read"),
        Fold("write"),
        Fold("exec", user="exec.user", kernel="exec.kernel"),
        # APTable[0] would leave execution to user mode; Linux never sets it, so
        # user mode is said to have no access below it.
        Fold("user"),
    ),
)
