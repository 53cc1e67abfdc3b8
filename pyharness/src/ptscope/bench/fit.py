# SPDX-License-Identifier: GPL-2.0-or-later
"""Cost over size as a line: what every call costs, and what every page adds."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from ptscope.bench.stats import median, quantile

RESAMPLES = 400
SEED = 6
INSIDE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A figure and the ends of its 95 % interval, which are infinite when nothing tells them."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Line:
    """`fixed` in ns a call, `page` in ns a page; `off` is the largest part by which a median lies
    off the line: where that is much, cost is not a line over size."""

    fixed: Estimate
    page: Estimate
    off: float


def fit(points: Sequence[tuple[int, Sequence[Sequence[float]]]]) -> Line | None:
    """The line through medians, from pages and the values of each round with so many, in ns.

    Each point counts by its relative distance, so that large sizes do not hide small ones. The
    intervals come from drawing rounds again, as the samples of one have more in common than those
    of two; where a size has one round alone they are without ends. None with fewer than three
    sizes.
    """
    if len(points) < 3:
        return None
    sizes = [pages for pages, _ in points]
    medians = [_pooled(rounds) for _, rounds in points]
    fixed, page = _least_squares(sizes, medians)
    source = random.Random(SEED)
    drawn = [
        _least_squares(
            sizes, [_pooled(source.choices(rounds, k=len(rounds))) for _, rounds in points]
        )
        for _ in range(RESAMPLES if min(len(rounds) for _, rounds in points) > 1 else 0)
    ]
    return Line(
        fixed=_estimate(fixed, [each[0] for each in drawn]),
        page=_estimate(page, [each[1] for each in drawn]),
        off=max(
            abs(fixed + page * size - value) / value
            for size, value in zip(sizes, medians, strict=True)
        ),
    )


def _pooled(rounds: Sequence[Sequence[float]]) -> float:
    return median([value for values in rounds for value in values])


def _estimate(value: float, drawn: Sequence[float]) -> Estimate:
    if not drawn:
        return Estimate(value, -math.inf, math.inf)
    ordered = sorted(drawn)
    outside = (1 - INSIDE) / 2
    return Estimate(value, quantile(ordered, outside), quantile(ordered, 1 - outside))


def _least_squares(sizes: Sequence[int], values: Sequence[float]) -> tuple[float, float]:
    """Fixed part and slope of the line with the least sum of squared relative distances."""
    weights = [1 / value**2 for value in values]
    total = sum(weights)
    x = sum(w * size for w, size in zip(weights, sizes, strict=True)) / total
    y = sum(w * value for w, value in zip(weights, values, strict=True)) / total
    above = sum(
        w * (size - x) * (value - y) for w, size, value in zip(weights, sizes, values, strict=True)
    )
    slope = above / sum(w * (size - x) ** 2 for w, size in zip(weights, sizes, strict=True))
    return y - slope * x, slope
