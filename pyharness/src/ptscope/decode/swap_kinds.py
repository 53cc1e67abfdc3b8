# SPDX-License-Identifier: GPL-2.0-or-later
"""The special types among swap entries, the same on every architecture.

Linux takes the highest of the 32 swap types for entries that are no swap: how
many, and which number means what, depends on version and configuration
(``include/linux/swap.h``).  The layout has the numbers; this table says what
each name means.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SpecialKind:
    """What a special swap type makes of an entry.

    With `frame` the offset holds a frame number (is_pfn_swap_entry()); with
    `ages` also the accessed and dirty bits of the page, above the frame number
    (SWP_MIG_YOUNG and SWP_MIG_DIRTY, 6.1 and later).
    """

    state: str
    frame: bool = False
    ages: bool = False


# Names are those of the facts ``swap.kind.NAME``.
SPECIAL_KINDS = {
    "hwpoison": SpecialKind("hwpoison", frame=True),
    "migration_read": SpecialKind("migration", frame=True, ages=True),
    "migration_read_exclusive": SpecialKind("migration", frame=True, ages=True),
    "migration_write": SpecialKind("migration", frame=True, ages=True),
    "device_private_read": SpecialKind("device", frame=True),
    "device_private_write": SpecialKind("device", frame=True),
    "device_exclusive": SpecialKind("device", frame=True),
    "device_exclusive_read": SpecialKind("device", frame=True),
    "device_exclusive_write": SpecialKind("device", frame=True),
    "marker": SpecialKind("marker"),
    # 5.19 to 6.3, when it became the "poisoned" marker; not is_pfn_swap_entry().
    "swapin_error": SpecialKind("marker"),
}

# Names of the facts ``swap.marker.NAME`` (bits of a marker's offset), in the
# order in which a fault looks at them (handle_pte_marker() in mm/memory.c of
# 6.12), and the kind each makes.
MARKER_KINDS = (
    ("poisoned", "poison_marker"),
    ("guard", "guard_marker"),
    ("uffd_wp", "uffd_wp_marker"),
)
UNKNOWN_MARKER = "unknown_marker"

# The kind of an entry that really is swapped out.
PLAIN_SWAP = "swap"
