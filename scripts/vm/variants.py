# SPDX-License-Identifier: GPL-2.0-or-later
"""The ways to boot one kernel that change its page tables. A new one is a row."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import UsageError


@dataclass(frozen=True)
class Variant:
    """One row of the table."""

    name: str
    arch: str
    cpu: str
    """Additions to QEMU's -cpu."""
    append: tuple[str, ...]
    """Additions to the kernel's command line."""
    levels: int
    """Page-table levels the hardware then walks; the guest tests check it."""
    pti: bool
    """User mode runs on its own copy of the PGD."""
    host_flags: tuple[str, ...] = ()
    """Flags of /proc/cpuinfo the host needs to run this variant under KVM."""


VARIANTS: dict[str, Variant] = {
    row.name: row
    for row in (
        Variant("5-level", "amd64", "", ("pti=off",), 5, False, ("la57",)),
        Variant("4-level", "amd64", ",la57=off", ("pti=off",), 4, False),
        Variant("pti", "amd64", "", ("pti=on",), 5, True, ("la57",)),
        Variant("4-level-pti", "amd64", ",la57=off", ("pti=on",), 4, True),
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
