# SPDX-License-Identifier: GPL-2.0-or-later
"""How the time of a fault is shared out inside the kernel, and what the thread waited for.

A round of its own, with probes: what they cost is in it, so its samples are in no figure, and the
time with probes is told beside the one without.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import pairwise

from ptscope.bench.clock import RAW, Clock, calibrate
from ptscope.bench.delays import Accounting, Delay, accounting
from ptscope.bench.delays import since as delays_since
from ptscope.bench.result import Measured
from ptscope.bench.run import Setting, one_round
from ptscope.bench.scenario import Scenario
from ptscope.bench.stage import NotHere
from ptscope.bench.stats import median
from ptscope.bench.timing import Sample
from ptscope.bench.tracing import ENTER, LEAVE, Moment, Tracing, tracing


@dataclass(frozen=True)
class Part:
    """The parts of one sample, in ns: `entry` from the access to handle_mm_fault(), `handled` in
    it, `back` from its return to the next instruction. `exception` is the part of `entry` before
    the kernel's first tracepoint, `lock` from asking for mmap_lock to having it; None: not told."""

    entry: float
    handled: float
    back: float
    exception: float | None = None
    lock: float | None = None

    @property
    def whole(self) -> float:
        """All of it."""
        return self.entry + self.handled + self.back


@dataclass(frozen=True)
class Inside:
    """What the round with probes has shown. `parts` are medians, of `samples` samples.

    `delays` are those of the thread that acted, over the whole round. What could not be had is in
    `missing`, with its reason.
    """

    samples: int = 0
    parts: Part | None = None
    delays: Mapping[str, Delay] | None = None
    missing: tuple[str, ...] = ()


@dataclass
class Probes:
    """What can be asked of this kernel."""

    clock: Clock
    trace: Tracing | None = None
    delays: Accounting | None = None
    missing: list[str] = field(default_factory=list)


@contextlib.contextmanager
def probes() -> Iterator[Probes]:
    """Set up what there is; what there is not is said by `missing`."""
    with ExitStack() as stack:
        found = Probes(calibrate(RAW))
        try:
            found.trace = stack.enter_context(tracing())
        except NotHere as error:
            found.missing.append(_reason(error))
        try:
            found.delays = stack.enter_context(accounting())
        except NotHere as error:
            found.missing.append(_reason(error))
        yield found


def _reason(error: NotHere) -> str:
    return f"{error.cause} ({error.remedy})" if error.remedy else error.cause


@dataclass
class _Watch:
    """Stands around the timed part of one round."""

    probes: Probes
    before: Mapping[str, Delay] | None = None
    delays: Mapping[str, Delay] | None = None
    moments: Sequence[Moment] = ()
    samples: Sequence[Sample] = ()
    missing: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def around(self, pid: int) -> Iterator[None]:
        """While this thread is timed."""
        trace, asked = self.probes.trace, self.probes.delays
        try:
            before = None if asked is None else asked.of(pid)
        except NotHere as error:
            self.missing.append(_reason(error))
            asked = before = None
        with contextlib.nullcontext() if trace is None else trace.recorded(pid):
            yield
        if asked is not None and before is not None:
            self.delays = delays_since(asked.of(pid), before)
        if trace is not None:
            try:
                self.moments = trace.moments()
            except NotHere as error:
                self.missing.append(_reason(error))

    def took(self, samples: Sequence[Sample]) -> None:
        """The samples of the round."""
        self.samples = samples


def look_inside(scenario: Scenario, setting: Setting, tools: Probes) -> Inside:
    """One more round, with probes.

    When a sample of it did not do what it should, that is said in `missing` and nothing else is.
    """
    watch = _Watch(tools)
    scratch = Measured(scenario.name, scenario.title)
    try:
        made = one_round(scenario, replace(setting, clock=tools.clock), scratch, watch)
    except NotHere as error:
        return Inside(missing=(_reason(error),))
    if made.errors:
        return Inside(missing=(f"with probes it did not happen: {made.errors[0]}",))
    parts = list(split(watch.samples[1:], watch.moments, tools.clock))
    missing = [*tools.missing, *watch.missing]
    if tools.trace is not None and not parts:
        lacks = ", ".join(tools.trace.missing)
        missing.append(
            f"tracing lacks {lacks}" if ENTER in tools.trace.missing
            else "handle_mm_fault() was not called"
        )
    return Inside(
        samples=len(watch.samples),
        parts=middle(parts),
        delays=watch.delays,
        missing=tuple(missing),
    )


def split(
    samples: Sequence[Sample], moments: Sequence[Moment], clock: Clock
) -> Iterator[Part]:
    """The parts of each sample in which handle_mm_fault() was entered and left.

    Samples have to be timed by CLOCK_MONOTONIC_RAW, which the moments' times are too. Half of what
    the clock costs is taken off at either end.
    """
    times = [moment.ns for moment in moments]
    half = clock.overhead / 2
    for sample in samples:
        first, last = sample.start, sample.start + sample.ticks
        inside = moments[bisect_left(times, first) : bisect_left(times, last + 1)]
        part = _part(first + half, last - half, inside)
        if part is not None:
            yield part


def _part(start: float, end: float, moments: Sequence[Moment]) -> Part | None:
    entered = [moment.ns for moment in moments if moment.name == ENTER]
    left = [moment.ns for moment in moments if moment.name == LEAVE]
    if not entered or len(entered) != len(left):
        return None
    # A fault that has to wait leaves it and enters it again: what lies between is neither.
    handled = sum(then - first for first, then in zip(entered, left, strict=True))
    between = sum(then - first for first, then in zip(left, entered[1:], strict=False))
    exceptions = [moment.ns for moment in moments if moment.name == "exception"]
    waits = [
        then.ns - first.ns
        for first, then in pairwise(moments)
        if first.name == "lock" and then.name == "locked"
    ]
    locked = any(moment.name == "locked" for moment in moments)
    return Part(
        entry=max(0.0, entered[0] - start) + between,
        handled=float(handled),
        back=max(0.0, end - left[-1]),
        exception=max(0.0, exceptions[0] - start) if exceptions else None,
        lock=float(sum(waits)) if locked else None,
    )


def middle(parts: Sequence[Part]) -> Part | None:
    """The median of each part; None of none."""
    if not parts:
        return None

    def of(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return median(known) if known else None

    return Part(
        entry=median([part.entry for part in parts]),
        handled=median([part.handled for part in parts]),
        back=median([part.back for part in parts]),
        exception=of([part.exception for part in parts]),
        lock=of([part.lock for part in parts]),
    )
