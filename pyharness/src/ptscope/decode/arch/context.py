# SPDX-License-Identifier: GPL-2.0-or-later
"""What the context keys of several architectures have in common."""

from __future__ import annotations

from collections.abc import Mapping

from ptscope.decode.table import Changes, ContextKey

# From the last level up.  The root is always called pgd, whatever lies between is folded.
_NAMES = ("pte", "pmd", "pud", "p4d")
_ENTRY_BITS = 3  # an entry has 8 bytes


def geometry(page_shift: int, root_bits: int, half_bits: int) -> dict[str, int | None]:
    """The levels that translate `root_bits` address bits, and where the two halves lie.

    A table is one page, except the root, which has what is left.  `half_bits` are
    the address bits of one half; in the other all bits above them are set.
    """
    per_level = page_shift - _ENTRY_BITS
    levels = -(-(root_bits - page_shift) // per_level)
    changes: dict[str, int | None] = {
        "runtime.levels": levels,
        "runtime.user_last": (1 << half_bits) - 1,
        "runtime.kernel_first": (1 << 64) - (1 << half_bits),
    }
    for place, name in enumerate((*_NAMES[: levels - 1], "pgd")):
        shift = page_shift + place * per_level
        changes[f"runtime.level.{name}.shift"] = shift
        changes[f"runtime.level.{name}.entries"] = 1 << min(per_level, root_bits - shift)
    for name in _NAMES[levels - 1 :]:
        changes[f"runtime.level.{name}.shift"] = changes[f"runtime.level.{name}.entries"] = None
    return changes


def flag(name: str) -> ContextKey:
    """A runtime fact that is 1 or 0, and from which nothing else follows."""

    def derive(facts: Mapping[str, int], runtime: Mapping[str, int], value: int | None) -> Changes:
        if value not in (0, 1):
            raise ValueError
        return {f"runtime.{name}": value}

    return ContextKey("true or false", derive)
