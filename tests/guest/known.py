# SPDX-License-Identifier: GPL-2.0-or-later
"""What kmod/ptscope.h says of /dev/ptscope-map, and what kernels make of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import witness

DEVICE = Path("/dev/ptscope-map")
KIND_SHIFT = 40
MAX_BYTES = 1 << 30


@dataclass(frozen=True)
class Kind:
    """A way of mapping: what the kernel makes of it."""

    number: int
    special: bool
    """The entries are marked as frames behind which no page is looked for."""
    flag: str
    at_once: bool
    """All entries are there when mmap() returns."""


KINDS = {
    "remap": Kind(0, True, "pfnmap", True),
    "insert": Kind(1, False, "mixedmap", True),
    "fault": Kind(2, True, "pfnmap", False),
}
HAS_HUGE = witness.release() >= ((7, 0) if witness.MACHINE == "riscv64" else (6, 12))
"""Since when Kconfig has ARCH_SUPPORTS_PMD_PFNMAP; riscv64 came later."""
