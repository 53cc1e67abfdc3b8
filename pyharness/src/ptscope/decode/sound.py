# SPDX-License-Identifier: GPL-2.0-or-later
"""Numbers that no layout can have, whatever its kernel."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, pairwise

# Keys, and the least and the greatest value they can have. Pages are 4 to 64 KiB, a table is at
# most one of them.
_RANGES = (
    (re.compile(r"(swap\.)?bit\..+"), 0, 63),
    (re.compile(r"shift\..+"), 0, 63),
    (re.compile(r"(.+\.)?[a-z_]+_bits"), 0, 64),
    (re.compile(r"page_shift"), 12, 16),
    (re.compile(r"runtime\.level\..+\.shift"), 12, 63),
    (re.compile(r"runtime\.level\..+\.entries"), 1, 1 << 13),
)
# Bits by which the hardware permits and records accesses: each stands for itself alone. Others may
# share one where the kernel tells them apart: x86's PROT_NONE is the global bit of an entry that is
# not present, its PAT bit at the last level the huge bit of those above.
_UNSHARED = frozenset(
    f"bit.{name}"
    for name in (
        *("present", "valid", "table", "read", "write", "rdonly", "exec", "nx", "pxn", "uxn"),
        *("user", "accessed", "dirty"),
    )
)


def flaws(level_names: Sequence[str], values: Mapping[str, int]) -> Iterator[str]:
    """What cannot be in `values`, the facts and (with ``runtime.``) runtime facts of a layout.

    `level_names` are those of its architecture, root first.
    """
    for key, value in values.items():
        for pattern, least, most in _RANGES:
            if pattern.fullmatch(key) and not least <= value <= most:
                yield f"{key} is {value}, not {least} to {most}"
    bits = sorted(key for key in values if key.startswith("bit."))
    for one, other in combinations(bits, 2):
        if values[one] == values[other] and _UNSHARED & {one, other}:
            yield f"{one} and {other} are both {values[one]}"
    yield from _level_flaws(level_names, values)


def _level_flaws(level_names: Sequence[str], values: Mapping[str, int]) -> Iterator[str]:
    walked = [name for name in level_names if f"runtime.level.{name}.shift" in values]
    for name in walked:
        key = f"runtime.level.{name}.entries"
        if key not in values:
            yield f"{key} is missing"
        elif values[key] & (values[key] - 1):
            yield f"{key} is {values[key]}, no power of 2"
    for above, below in pairwise(walked):
        if values[f"runtime.level.{above}.shift"] <= values[f"runtime.level.{below}.shift"]:
            yield f"level {above} has no greater shift than {below}"
    last = f"runtime.level.{level_names[-1]}.shift"
    if values.get(last) != values["page_shift"]:
        yield f"{last} is not page_shift"
    if values["runtime.user_last"] >= values["runtime.kernel_first"]:
        yield "runtime.user_last is not below runtime.kernel_first"
