# SPDX-License-Identifier: GPL-2.0-or-later
"""Sequences by hypothesis' stateful testing. Nothing else of the model imports hypothesis.

A step is one number, which `operations.Table` makes a step of; so a machine with one rule is all
that hypothesis has to know, and what it does for each step is little beside the step itself, also
under emulation. hypothesis only makes them up; `shrink` makes them short.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from ptscope.errors import UsageError
from ptscope.model.drive import PuppetGone
from ptscope.model.run import Disagreement, Sequence_, Stage
from ptscope.model.shrink import shrink

STEPS_A_SEQUENCE = 200
SEQUENCES = 100
"""Of one run of hypothesis, which begins with ten of a step or two, however few it may make."""
SHRINK_SECONDS = 120.0
MOST_IDLE = 3
"""Runs of hypothesis without a step."""
NUMBER_BYTES = 8
MASK = (1 << 64) - 1


def mixed(draws: bytes, position: int) -> int:
    """What a step is made from: all bits alike, and others for the same bytes at another position.

    hypothesis prefers small and repeated values, and those would all make the first operation:
    more than half of all steps were mmap. This is splitmix64.
    """
    value = int.from_bytes(draws, "little") + position * 0x9E3779B97F4A7C15 & MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & MASK
    return value ^ value >> 31


@dataclass
class Budget:
    """When to stop: steps that were taken, or seconds that have passed; None: no such limit."""

    steps: int | None
    seconds: float | None

    def __post_init__(self) -> None:
        self.started = time.monotonic()

    def used(self, steps: int) -> bool:
        """Whether it is used up."""
        if self.steps is not None and steps >= self.steps:
            return True
        return self.seconds is not None and time.monotonic() - self.started >= self.seconds


class Enough(BaseException):
    """The search is over. hypothesis lets it pass, where it would make up steps to the last of its
    examples otherwise: under emulation they took ten times as long as the search."""


@dataclass
class Found:
    """What a search found: the shortest disagreement, or None; how many steps came before it."""

    disagreement: Disagreement | None = None
    first_after: int | None = None
    shrunk_in: int = 0
    """Steps that shrinking took."""
    repeated: bool = True
    """It came again when the same steps were taken again."""


def search(
    stage: Stage,
    budget: Budget,
    number: int,
    tell: Callable[[Found], None] = lambda found: None,
    shrink_seconds: float = SHRINK_SECONDS,
) -> Found:
    """Take steps until the budget is used up or the kernel disagrees; `number` is the seed.

    `tell` is called for each sequence. Raises what the puppet and the views raise, and UsageError
    when no step is possible.
    """
    found = Found()
    counts = stage.counts
    broken: list[Exception] = []

    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.sequence: Sequence_ | None = None
            self.taken = 0
            self.over = budget.used(counts.steps) or found.disagreement is not None or broken != []

        @rule(draws=st.binary(min_size=NUMBER_BYTES, max_size=NUMBER_BYTES))
        def step(self, draws: bytes) -> None:
            if self.over:
                raise Enough
            # What goes wrong is kept here and not hypothesis': that would look for the cause by
            # taking the steps over and over, and make something else of it when it comes out
            # otherwise.
            try:
                if self.sequence is None:
                    tell(found)
                    self.sequence = Sequence_(stage)
                self.taken += 1
                self.sequence.step(mixed(draws, self.taken))
            except Disagreement as error:
                found.disagreement = error
                raise Enough from None
            except Exception as error:
                broken.append(error)
                raise Enough from None
            if budget.used(counts.steps):
                raise Enough

        def teardown(self) -> None:
            if self.sequence is None or broken:
                return
            try:
                self.sequence.end()
            except Exception as error:
                broken.append(error)
                raise Enough from None

    chosen = settings(
        max_examples=SEQUENCES,
        stateful_step_count=STEPS_A_SEQUENCE,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )
    idle = 0
    while not budget.used(counts.steps) and found.disagreement is None:
        if idle == MOST_IDLE:
            raise UsageError(
                "none of these operations can begin: nothing is mapped",
                "name one that maps memory too: `ptscope model --list`",
            )
        before = counts.steps
        seed(number)(Machine)
        # Flaky: the kernel has chosen otherwise for the same draws, so that the sequence was of
        # another length. The next seed goes on.
        with suppress(Enough, Flaky):
            run_state_machine_as_test(Machine, settings=chosen)
        if broken:
            raise broken[0]
        number += 1
        idle = idle + 1 if counts.steps == before else 0
    if found.disagreement is not None:
        found.first_after = counts.steps
        end = time.monotonic() + shrink_seconds
        tell(found)

        def enough() -> bool:
            tell(found)
            return time.monotonic() > end

        # Without the puppet what was found stays as it is.
        with suppress(PuppetGone):
            found.disagreement, found.repeated = shrink(stage, found.disagreement, enough)
        found.shrunk_in = counts.steps - found.first_after
    return found
