# SPDX-License-Identifier: GPL-2.0-or-later
"""How x86-64 entries are to be read.

Sources, unless a row names another: Linux 6.1 ``arch/x86/include/asm/``
``pgtable.h``, ``pgtable_types.h``, ``pgtable_64.h`` and ``pgtable-invert.h``,
and for what the hardware does, Intel SDM volume 3, chapter 4 (paging).
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
    Match,
    Piece,
    State,
    Word,
)

_ALL = ("pgd", "p4d", "pud", "pmd", "pte")
_UPPER = ("pgd", "p4d", "pud", "pmd")
_HUGE = ("pud", "pmd")
_WALKED = ("table", "leaf")
_PRESENT = ("table", "leaf", "invalid")
_FRAMED = ("table", *MAPPED)

_STATES = (
    # Knights Landing may set accessed and dirty in an empty entry, so pte_none() and
    # its like look past these two.  Only pgd_none() is exact, where it is asked at
    # all, with five levels; with four the root entry is asked p4d_none().
    State("none", ("pgd",), only=(), when={"levels": 5}),
    State("none", ("pgd",), only=("accessed", "dirty"), when={"levels": 4}),
    State("none", ("p4d", "pud", "pmd", "pte"), only=("accessed", "dirty")),
    State(
        "invalid",
        ("pgd", "p4d"),
        ones=("present", "huge"),
        reason="the page-size bit is reserved at this level",
    ),
    State(
        "invalid",
        _HUGE,
        ones=("present", "huge"),
        any_of=("unaligned",),
        reason="reserved bits are set: the address is not aligned to the size of the page",
    ),
    State("leaf", _HUGE, ones=("present", "huge")),
    State("leaf", ("pte",), ones=("present",)),
    State("table", _UPPER, ones=("present",)),
    # From here on the entry is not present and its frame is stored inverted
    # (L1TF: a speculative load must not find a cacheable address there).
    State("protnone", ("pte",), ones=("protnone",), inverted=True),
    # At PUD this is a hugetlb page of 1 GiB: it goes through pte_modify() too.
    State("protnone", _HUGE, ones=("protnone", "huge"), inverted=True),
    # pmd_mkinvalid() clears present and protnone and leaves page-size set;
    # pmd_present() still says yes.  From 6.11 on pud_mkinvalid() does the same.
    State("splitting", ("pmd",), ones=("huge",), inverted=True),
    State("splitting", ("pud",), ones=("huge",), inverted=True, when={"pud_mkinvalid": 1}),
    State(
        "invalid",
        _HUGE,
        any_of=("protnone", "huge"),
        reason="not present, and neither PROT_NONE, mid-split nor a special entry",
    ),
    # A swap entry keeps type and offset above bit 8; which state it really has
    # is decided by its type.  At PMD and PUD only special types occur: THP and
    # hugetlb pages under migration, hugetlb pages with a memory error, markers.
    State("swap", ("pud", "pmd", "pte")),
    State(
        "invalid", ("pgd", "p4d"), reason="not present and not empty: the kernel never writes this"
    ),
)

_ATTRIBUTES = (
    Attribute("accessed", _FRAMED, (Match(ones=("accessed",)),)),
    # From 6.6 a copy-on-write page that was dirty keeps that in saved_dirty,
    # whether or not the CPU has shadow stacks.
    Attribute("dirty", MAPPED, (Match(ones=("dirty",)), Match(ones=("saved_dirty",)))),
    Attribute("soft_dirty", MAPPED, (Match(ones=("soft_dirty",)),)),
    Attribute("soft_dirty", SWAPPED, (Match(ones=("swap.bit.soft_dirty",)),)),
    Attribute("uffd_wp", MAPPED, (Match(ones=("uffd_wp",)),)),
    Attribute("uffd_wp", SWAPPED, (Match(ones=("swap.bit.uffd_wp",)),)),
    Attribute("special", MAPPED, (Match(ones=("special",)),)),
    # In an entry that is not present the same bit means PROT_NONE.
    Attribute("global_", ("leaf",), (Match(ones=("global",)),)),
    Attribute("encrypted", _FRAMED, (Match(ones=("runtime.c_mask",)),)),
    Attribute(
        "shadow_stack",
        ("leaf",),
        (Match(ones=("dirty",), zeros=("write",), when={"shadow_stack": 1}),),
    ),
    Attribute("access.read", _WALKED, (Match(ones=("present",)),)),
    Attribute("access.write", _WALKED, (Match(ones=("write",)),)),
    Attribute(
        "access.exec",
        _WALKED,
        # Without EFER.NXE everything that can be read can be executed.
        (Match(zeros=("nx",), when={"nx": 1}), Match(when={"nx": 0})),
    ),
    Attribute("access.user", _WALKED, (Match(ones=("user",)),)),
)

_WORDS = (
    Word("present", "present", _PRESENT, _ALL),
    Word("rw", "write", (*_FRAMED, "invalid"), _ALL),
    Word("user", "user", (*_FRAMED, "invalid"), _ALL),
    Word("pwt", "pwt", (*_FRAMED, "invalid"), _ALL),
    Word("pcd", "pcd", (*_FRAMED, "invalid"), _ALL),
    Word("accessed", "accessed", ("none", *_FRAMED, "invalid"), _ALL),
    Word("dirty", "dirty", ("none", *_FRAMED, "invalid"), _ALL),
    Word("pse", "huge", (*_FRAMED, "invalid"), _UPPER),
    Word("pat", "pat", (*_FRAMED, "invalid"), ("pte",)),
    Word("global", "global", ("leaf", "invalid"), _ALL),
    Word("protnone", "protnone", ("protnone",), _ALL),
    Word("special", "special", MAPPED, _ALL),
    Word("uffd-wp", "uffd_wp", MAPPED, _ALL),
    Word("soft-dirty", "soft_dirty", MAPPED, _ALL),
    Word("pat", "pat_large", ("leaf",), _HUGE),
    Word("devmap", "devmap", MAPPED, _ALL),
    Word("saved-dirty", "saved_dirty", MAPPED, _ALL),
    Word("encrypted", "runtime.c_mask", _FRAMED, _ALL),
    # The same bit in the root: PTI must not copy this entry (_PAGE_NOPTISHADOW, 6.13 and
    # backports of it).
    Word("no-pti-shadow", "noptishadow", ("table",), ("pgd",)),
    Word("nx", "nx", (*_FRAMED, "invalid"), _ALL),
    Word("soft-dirty", "swap.bit.soft_dirty", SWAPPED, _ALL),
    Word("uffd-wp", "swap.bit.uffd_wp", SWAPPED, _ALL),
    Word("exclusive", "swap.bit.exclusive", SWAPPED, _ALL),
)


def _paging_levels(
    facts: Mapping[str, int], runtime: Mapping[str, int], value: int | None
) -> Changes:
    """CR4.LA57 on or off; on only on a kernel built for it (CONFIG_PGTABLE_LEVELS is 5)."""
    if value not in (4, 5) or value > max(facts.get("max_levels", 0), runtime["levels"]):
        raise ValueError
    five = value == 5
    changes = geometry(facts["page_shift"], 57 if five else 48, 56 if five else 47)
    if "swap_pfn_bits" in runtime:
        # SWP_PFN_BITS is MAX_PHYSMEM_BITS - PAGE_SHIFT (include/linux/swapops.h,
        # 6.1 and later); MAX_PHYSMEM_BITS is 52 or 46
        # (arch/x86/include/asm/sparsemem.h, 6.1 to 7.3).
        changes["runtime.swap_pfn_bits"] = (52 if five else 46) - facts["page_shift"]
    return changes


def _c_bit(facts: Mapping[str, int], runtime: Mapping[str, int], value: int | None) -> Changes:
    """Memory encryption: sme_me_mask, and physical_mask without that bit.

    From sme_enable() in arch/x86/mm/mem_encrypt_identity.c (5.10 to 7.3).
    """
    mask = 0 if value is None else 1 << value if 0 <= value < 64 else 0
    if value is not None and not mask & facts["mask.pfn"]:
        raise ValueError
    whole = runtime["physical_mask"] | runtime["c_mask"]
    return {"runtime.c_mask": mask, "runtime.physical_mask": whole & ~mask}


def _page_size(facts: Mapping[str, int], runtime: Mapping[str, int], value: int | None) -> Changes:
    if value != 1 << facts["page_shift"]:
        raise ValueError
    return {}


ARCHITECTURE = Architecture(
    name="x86_64",
    level_names=_ALL,
    required=(
        "page_shift",
        "mask.pfn",
        *(f"bit.{name}" for name in ("present", "write", "user", "accessed", "dirty", "huge")),
        *(f"bit.{name}" for name in ("pat", "pat_large", "global", "protnone", "nx")),
        "runtime.physical_mask",
        "runtime.c_mask",
    ),
    present=(Match(ones=("present",)),),
    states=_STATES,
    attributes=_ATTRIBUTES,
    address=(Piece("mask.pfn"),),
    # With memory encryption physical_mask leaves out the C-bit, which lies inside
    # the address field.  PTE_PFN_MASK is cut by it, so the C-bit is not inverted
    # with the frame either.
    address_within=("runtime.physical_mask",),
    leaf_reuses=("pat_large",),
    groups=(),
    pkey=Field(
        low="bit.pkey",
        width="pkey_bits",
        # The CPU looks at the key of user pages only, and Linux leaves CR4.PKS
        # clear.  PROT_NONE clears the user bit but keeps the key.
        rows=(
            (("leaf",), (Match(ones=("user",), when={"pkeys": 1}),)),
            (("protnone", "splitting"), (Match(when={"pkeys": 1}),)),
        ),
    ),
    words=_WORDS,
    context={
        "paging_levels": ContextKey("4, or 5 on a kernel built for it", _paging_levels),
        "c_bit": ContextKey("the number of an address bit, or none", _c_bit),
        "page_size": ContextKey("4096", _page_size),
        "pti": flag("pti"),
        "nx": flag("nx"),
        "pkeys": flag("pkeys"),
        "shadow_stack": flag("shadow_stack"),
    },
)
