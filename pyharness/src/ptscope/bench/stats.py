# SPDX-License-Identifier: GPL-2.0-or-later
"""Figures of a distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence

BARS = "▁▂▃▄▅▆▇█"


def quantile(ordered: Sequence[float], part: float) -> float:
    """The value below which `part` of the sorted values lie, interpolated; needs at least one."""
    place = part * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def median(values: Sequence[float]) -> float:
    """The middle of the values, which need no order."""
    return quantile(sorted(values), 0.5)


def sparkline(values: Sequence[float], width: int = 12) -> str:
    """How the values lie between the least and the 99th percentile, as `width` bars.

    Every bar with a value in it is seen, however low; a blank is a range without any.
    """
    ordered = sorted(values)
    first, last = ordered[0], quantile(ordered, 0.99)
    counts = [0] * width
    for value in ordered:
        if value <= last:
            step = 0 if last == first else int((value - first) / (last - first) * width)
            counts[min(step, width - 1)] += 1
    most = max(counts)
    return "".join(
        BARS[math.ceil(count / most * len(BARS)) - 1] if count else " " for count in counts
    )
