# SPDX-License-Identifier: GPL-2.0-or-later
"""The ways to boot a kernel that change its page tables. A new one is a row.

How many levels are then walked depends on the kernel too: `Kernel.levels`.
"""

from __future__ import annotations

from dataclasses import dataclass

from .errors import UsageError


@dataclass(frozen=True)
class Variant:
    """One row of the table."""

    name: str
    arch: str
    cpu: str = ""
    """Additions to QEMU's -cpu."""
    append: tuple[str, ...] = ()
    """Additions to the kernel's command line."""
    pti: bool = False
    """User mode runs on its own copy of the PGD."""
    mmu_type: str = ""
    """What the device tree calls the MMU, where QEMU's own tree says less than its CPU can."""
    host_flags: tuple[str, ...] = ()
    """Flags of /proc/cpuinfo the host needs to run this variant under KVM."""


VARIANTS: dict[str, Variant] = {
    row.name: row
    for row in (
        Variant("5-level", "amd64", "", ("pti=off",), host_flags=("la57",)),
        Variant("4-level", "amd64", ",la57=off", ("pti=off",)),
        Variant("pti", "amd64", "", ("pti=on",), pti=True, host_flags=("la57",)),
        Variant("4-level-pti", "amd64", ",la57=off", ("pti=on",), pti=True),
        Variant("lpa2", "arm64"),
        Variant("no-lpa2", "arm64", ",lpa2=off"),
        # The same CPU; the kernel is not compiled for more.
        Variant("48-bit", "arm64"),
        # QEMU 7.2 writes sv48 into the tree of a CPU that has Sv57; kernels from 7.2 on believe it.
        Variant("sv57", "riscv64", mmu_type="riscv,sv57"),
        Variant("sv48", "riscv64", "", ("no5lvl",)),
        Variant("sv39", "riscv64", "", ("no4lvl",)),
    )
}

DEFAULT = "5-level"


def variant(name: str, arch: str) -> Variant:
    """The row called ``name``; raises `UsageError` when ``arch`` has no such variant."""
    row = VARIANTS.get(name)
    if row is None or row.arch != arch:
        names = ", ".join(v.name for v in VARIANTS.values() if v.arch == arch)
        raise UsageError(f"no variant of {arch} is called {name!r}", f"the variants are: {names}")
    return row
