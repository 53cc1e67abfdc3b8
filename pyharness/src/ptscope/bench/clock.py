# SPDX-License-Identifier: GPL-2.0-or-later
"""The clock that samples are timed by: which one, how fast it goes, and what reading it costs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from ptscope._core import ffi, lib
from ptscope.bench.stats import quantile
from ptscope.bench.timing import Action, take

NAMES: dict[int, str] = {
    lib.PTSCOPE_CLOCK_TSC: "rdtscp",
    lib.PTSCOPE_CLOCK_CNTVCT: "cntvct_el0",
    lib.PTSCOPE_CLOCK_TIME: "rdtime",
    lib.PTSCOPE_CLOCK_RAW: "clock_gettime(CLOCK_MONOTONIC_RAW)",
}
COUNTERS = (lib.PTSCOPE_CLOCK_TSC, lib.PTSCOPE_CLOCK_CNTVCT, lib.PTSCOPE_CLOCK_TIME)
RAW: int = lib.PTSCOPE_CLOCK_RAW

TRIES = 64
INTERVAL = 0.02  # seconds between two comparisons with CLOCK_MONOTONIC_RAW
STEADY = 200e-6
"""How far two measured rates may differ, as a part of them: more is no steady clock."""
EMPTY_SAMPLES = 2000


@dataclass(frozen=True)
class Pair:
    """A counter in ticks and CLOCK_MONOTONIC_RAW in ns, read together."""

    ticks: int
    raw_ns: int
    width_ns: int


@dataclass(frozen=True)
class Clock:
    """A calibrated clock. `overhead` is the cost of an empty sample in ticks.

    `resolution` in ns is the least that can be told from nothing: a tick, or, where that is more,
    how much empty samples differ (their 95th from their 5th percentile).
    """

    kind: int
    ns_per_tick: float
    overhead: float
    resolution: float
    note: str = ""

    @property
    def name(self) -> str:
        """What reads it."""
        return NAMES[self.kind]

    def ns(self, ticks: int) -> float:
        """What a sample of so many ticks took without the clock's own cost, in ns.

        At least a tick: no time is negative, and pyperf takes no zero.
        """
        return max(ticks - self.overhead, 1.0) * self.ns_per_tick


def read_pair(kind: int) -> Pair:
    """The clock `kind` beside CLOCK_MONOTONIC_RAW."""
    pair = ffi.new("struct ptscope_clock_pair *")
    lib.ptscope_clock_pair(kind, TRIES, pair)
    return Pair(pair.ticks, pair.raw_ns, pair.width_ns)


def rate(
    kind: int,
    read: Callable[[int], Pair] = read_pair,
    sleep: Callable[[float], None] = time.sleep,
) -> float | None:
    """Nanoseconds a tick by two intervals; None when they disagree or the counter stands still."""
    pairs = [read(kind)]
    for _ in range(2):
        sleep(INTERVAL)
        pairs.append(read(kind))
    ticks = [after.ticks - before.ticks for before, after in pairwise(pairs)]
    times = [after.raw_ns - before.raw_ns for before, after in pairwise(pairs)]
    if min(ticks) <= 0 or min(times) <= 0:
        return None
    first, second = (ns / count for ns, count in zip(times, ticks, strict=True))
    # What the two readings of the pairs may be apart is no fault of the counter.
    doubt = sum(pair.width_ns for pair in pairs) / sum(times)
    if abs(first - second) > (STEADY + doubt) * first:
        return None
    return sum(times) / sum(ticks)


def calibrate(kind: int | None = None) -> Clock:
    """The best clock of this machine, or the one asked for, compared and its own cost measured.

    A counter that does not keep pace with CLOCK_MONOTONIC_RAW is not used, and the clock's note
    says so.
    """
    note = ""
    kinds = COUNTERS if kind is None else (kind,)
    for each in kinds:
        if each == RAW or not lib.ptscope_clock_usable(each):
            continue
        ns_per_tick = rate(each)
        if ns_per_tick is not None:
            return _with_overhead(each, ns_per_tick, note)
        note = f"{NAMES[each]} does not keep pace with CLOCK_MONOTONIC_RAW and is not used"
    return _with_overhead(RAW, 1.0, note)


def _with_overhead(kind: int, ns_per_tick: float, note: str) -> Clock:
    empty = take(kind, Action(lib.PTSCOPE_DO_NOTHING), [0] * EMPTY_SAMPLES)
    ticks = sorted(float(sample.ticks) for sample in empty[EMPTY_SAMPLES // 10 :])
    spread = quantile(ticks, 0.95) - quantile(ticks, 0.05)
    return Clock(
        kind=kind,
        ns_per_tick=ns_per_tick,
        overhead=quantile(ticks, 0.5),
        resolution=max(spread, 1.0) * ns_per_tick,
        note=note,
    )
