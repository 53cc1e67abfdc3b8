# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether two files of results differ, and how sure that is.

What is compared are the medians of runs: the samples of one run have more in common than those of
two, so a run counts once, however many samples it has. Their logarithms are compared by Welch's
t-test. The interval widens with the number of benchmarks compared (Bonferroni), so that the chance
that any of them is called different although none is stays what was asked for; and it is wider by
what the clock can tell.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ptscope.bench.stats import median
from ptscope.bench.store import Stored

CONFIDENCE = 0.95
FEWEST_RUNS = 2
"""Of each file; with less there is nothing to learn of how runs differ."""

Verdict = Literal["slower", "faster", "no difference shown", "one round"]


@dataclass(frozen=True)
class Difference:
    """One benchmark of two files. `ratio` is `second` through `first`.

    Both are geometric means of the medians of rounds, in ns; `low` and `high` are the ends of the
    ratio's confidence interval.
    """

    name: str
    first: float
    second: float
    ratio: float
    low: float
    high: float
    verdict: Verdict


@dataclass(frozen=True)
class Comparison:
    """Two files. `only` are benchmarks that just one has, `unlike` conditions that differ."""

    differences: tuple[Difference, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    unlike: tuple[tuple[str, str, str], ...]

    @property
    def found(self) -> list[Difference]:
        """Those that differ."""
        return [each for each in self.differences if each.verdict in ("slower", "faster")]

    @property
    def untold(self) -> list[Difference]:
        """Those of which a file has one round only: nothing can be said of these."""
        return [each for each in self.differences if each.verdict == "one round"]


NEAR_VMAS = 0.05
"""The interpreter has one more or less from time to time; what a tree of them costs is the same."""

# Not conditions: what comes out of a measurement, and what is different each time.
_OUTCOMES = (
    "name", "description", "samples", "faults_counted", "samples_marked",
    "samples_kept_although_long", "samples_in_error",
    "interrupts", "date", "tables", "clock_ns_per_tick", "clock_overhead_ns",
    "clock_resolution_ns", "resolution_ns", "loops", "size", "pages", "proven_by", "cpu_affinity",
    "duration", "family", "processes",
)  # fmt: skip
_OUTCOMES_OF_MANY = ("missing_", "inside_", "delay_")


def compare(
    first: Mapping[str, Stored], second: Mapping[str, Stored], least: float = 0.01
) -> Comparison:
    """Compare what both have.

    A difference of less than `least` (a part of the first median) is none that counts, however
    sure it is: two runs of one kernel differ by where their memory happens to lie.
    """
    both = [name for name in first if name in second]
    return Comparison(
        tuple(difference(first[name], second[name], least, len(both)) for name in both),
        tuple(name for name in first if name not in second),
        tuple(name for name in second if name not in first),
        tuple(_unlike(first, second)),
    )


def _unlike(
    first: Mapping[str, Stored], second: Mapping[str, Stored]
) -> list[tuple[str, str, str]]:
    if not first or not second:
        return []
    one = next(iter(first.values())).facts
    other = next(iter(second.values())).facts
    names = [
        name for name in one if name not in _OUTCOMES and not name.startswith(_OUTCOMES_OF_MANY)
    ]
    return [
        (name, str(one[name]), str(other[name]))
        for name in names
        if name in other and not _alike(name, one[name], other[name])
    ]


def _alike(name: str, one: object, other: object) -> bool:
    if name == "vmas" and isinstance(one, int) and isinstance(other, int):
        return abs(one - other) <= NEAR_VMAS * max(one, other)
    return one == other


def difference(first: Stored, second: Stored, least: float, compared: int = 1) -> Difference:
    """The ratio of two medians, and what follows."""
    chance = (1 - CONFIDENCE) / max(1, compared)
    one, other = _logarithms(first), _logarithms(second)
    apart = _mean(other) - _mean(one)
    # Medians are known to a step of the clock: two may fall on both sides of one.
    step = max(float(each.facts.get("resolution_ns", 0.0)) for each in (first, second)) * 1e-9
    reach = _reach(one, other, chance) + step / _exp(min(_mean(one), _mean(other)))
    ratio, low, high = (_exp(each) for each in (apart, apart - reach, apart + reach))
    verdict: Verdict = "no difference shown"
    if min(len(one), len(other)) < FEWEST_RUNS:
        verdict = "one round"
    elif low > 1 and ratio >= 1 + least:
        verdict = "slower"
    elif high < 1 and ratio <= 1 - least:
        verdict = "faster"
    return Difference(first.name, _exp(_mean(one)), _exp(_mean(other)), ratio, low, high, verdict)


def _exp(value: float) -> float:
    return math.inf if value == math.inf else math.exp(value)


def _logarithms(stored: Stored) -> list[float]:
    return [math.log(median(run)) for run in stored.runs]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _reach(one: Sequence[float], other: Sequence[float], chance: float) -> float:
    """Half the width of the interval of the difference of two means (Welch)."""
    if min(len(one), len(other)) < FEWEST_RUNS:
        return math.inf
    parts = [
        sum((value - _mean(each)) ** 2 for value in each) / (len(each) - 1) / len(each)
        for each in (one, other)
    ]
    if not sum(parts):
        return 0.0
    freedom = sum(parts) ** 2 / sum(
        part**2 / (len(each) - 1) for part, each in zip(parts, (one, other), strict=True)
    )
    return student(1 - chance, max(1, math.floor(freedom))) * math.sqrt(sum(parts))


def student(inside: float, freedom: int) -> float:
    """The t within which, on both sides of 0, the part `inside` of Student's distribution lies."""
    low, high = 0.0, 1.0
    while _within(high, freedom) < inside:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < inside else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """The part of Student's distribution between -t and t (Abramowitz and Stegun, 26.7.3, 4)."""
    angle = math.atan2(t, math.sqrt(freedom))
    square = math.cos(angle) ** 2
    odd = freedom % 2
    term = total = math.cos(angle) if odd else 1.0
    for number in range(3 if odd else 2, freedom - 1, 2):
        term *= square * (number - 1) / number
        total += term
    if not odd:
        return math.sin(angle) * total
    if freedom == 1:
        return 2 / math.pi * angle
    return 2 / math.pi * (angle + math.sin(angle) * total)
