# SPDX-License-Identifier: GPL-2.0-or-later
"""What was measured: rounds of samples, and what the walks said of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ptscope.bench.clock import Clock
from ptscope.bench.stats import quantile
from ptscope.bench.timing import Sample

if TYPE_CHECKING:
    from ptscope.bench.inside import Inside


LONG_NS = 2e6
"""Half of the kernel's tick, where there are 250 in a second, as in Debian: at each it may run
others, and most samples of what takes as long meet one."""


@dataclass
class Round:
    """One round, in ns a sample.

    `first` are the samples that came first, which find caches cold; `marked` those in which the
    thread lost its CPU. Neither is among `values`, except for the `kept` that were interrupted by
    others where the scenario itself takes half a tick or more: little can run so long alone.
    `errors` say of samples that what should have happened did not: these are nowhere else.
    `interrupts` hit the CPU while the round was timed.
    """

    values: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    marked: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    kept: int = 0
    interrupts: int = 0


@dataclass
class Measured:
    """All rounds of one scenario.

    `size` in bytes, of what is remapped. `tables` that were made (or freed) for a sample, and
    `faults` that the kernel counted for it: the set of all that was seen. `unavailable` says why
    it could not be played, and `remedy` what to do.
    """

    name: str
    title: str
    size: int | None = None
    pages: int | None = None
    rounds: list[Round] = field(default_factory=list)
    samples: int = 0
    faults: int = 0
    faults_of_a_sample: set[int] = field(default_factory=set)
    tables: set[int] = field(default_factory=set)
    resolution: float = 0.0
    unavailable: str | None = None
    remedy: str | None = None
    proven_by: str = ""
    family: str = ""
    """The name without the size: what one line is fitted through."""
    stretches: set[int] = field(default_factory=set)
    """Of frames that follow each other, of which known frames were made up in a round."""
    inside: Inside | None = None
    """What one more round with probes has shown, where that was asked for."""

    def add(self, other: Measured) -> None:
        """The rounds of another process."""
        self.rounds += other.rounds
        self.samples += other.samples
        self.faults += other.faults
        self.faults_of_a_sample |= other.faults_of_a_sample
        self.tables |= other.tables
        self.stretches |= other.stretches
        self.resolution = max(self.resolution, other.resolution)
        if other.unavailable is not None:
            self.unavailable, self.remedy = other.unavailable, other.remedy

    @property
    def values(self) -> list[float]:
        """The values of all rounds, in ns."""
        return [value for each in self.rounds for value in each.values]

    @property
    def by_round(self) -> list[list[float]]:
        """The values of each round that has some, in ns."""
        return [each.values for each in self.rounds if each.values]

    @property
    def first(self) -> list[float]:
        """The first samples of all rounds, in ns."""
        return [value for each in self.rounds for value in each.first]

    @property
    def marked(self) -> int:
        """Samples in which the thread lost its CPU."""
        return sum(len(each.marked) for each in self.rounds)

    @property
    def kept(self) -> int:
        """Samples in which it did too, but which are among the values: they are long."""
        return sum(each.kept for each in self.rounds)

    @property
    def errors(self) -> list[str]:
        """What did not happen, of all rounds."""
        return [error for each in self.rounds for error in each.errors]

    @property
    def summary(self) -> Summary | None:
        """The figures; None without values."""
        values = self.values
        return Summary.of(values) if values else None

    @property
    def refused(self) -> bool:
        """Whether the median is below what the clock can tell from nothing."""
        summary = self.summary
        return summary is not None and summary.median < self.resolution


@dataclass(frozen=True)
class Summary:
    """Figures of a distribution in ns."""

    count: int
    least: float
    lower: float
    median: float
    upper: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary:
        """The figures of at least one value."""
        ordered = sorted(values)
        return cls(
            len(ordered),
            ordered[0],
            quantile(ordered, 0.25),
            quantile(ordered, 0.5),
            quantile(ordered, 0.75),
            quantile(ordered, 0.99),
        )


def sort_samples(
    clock: Clock,
    samples: Sequence[Sample],
    flaws: Sequence[str | None],
    *,
    waits: bool = False,
    inner: int = 1,
    firsts: int = 1,
    interrupts: int = 0,
) -> Round:
    """A round of samples; `flaws` says of each what did not happen.

    `waits`: giving up the CPU is part of the scenario. `inner` actions were done in each sample,
    `firsts` samples are the first ones.
    """
    made = Round(interrupts=interrupts)
    disturbed = [bool(sample.involuntary) for sample in samples]
    times = [clock.ns(sample.ticks) for sample in samples]
    alone = [time for time, lost in zip(times, disturbed, strict=True) if not lost]
    keep = bool(times) and (quantile(sorted(alone), 0.5) if alone else min(times)) >= LONG_NS
    for number, (sample, flaw) in enumerate(zip(samples, flaws, strict=True)):
        value = clock.ns(sample.ticks) / inner
        if flaw is not None:
            made.errors.append(flaw)
            continue
        slept = sample.voluntary and not waits
        if slept or (sample.involuntary and not keep):
            made.marked.append(value)
            continue
        made.kept += bool(sample.involuntary)
        (made.first if number < firsts else made.values).append(value)
    return made


def problems(measured: Sequence[Measured]) -> Iterator[str]:
    """Each scenario in which something did not happen."""
    for each in measured:
        if each.errors:
            yield (
                f"{each.name}: {len(each.errors)} of {each.samples} samples did not do what they "
                f"should: {each.errors[0]}"
            )
