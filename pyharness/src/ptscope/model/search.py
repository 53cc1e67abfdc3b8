# SPDX-License-Identifier: GPL-2.0-or-later
"""Sequences by hypothesis' stateful testing. Nothing else of the model imports hypothesis.

A step is one number, which `operations.Table` makes a step of; so a machine with one rule is all
that hypothesis has to know, and what it does for each step is little beside the step itself, also
under emulation. What it shrinks is the list of numbers.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisException
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from ptscope.model.run import Disagreement, Sequence_, Stage

STEPS_A_SEQUENCE = 200
NUMBER_BITS = 64


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


@dataclass
class Found:
    """What a search found: the shortest disagreement, or None; how many steps came before it."""

    disagreement: Disagreement | None = None
    first_after: int | None = None
    shrunk_in: int = 0
    """Steps that shrinking took."""


def search(
    stage: Stage,
    budget: Budget,
    number: int,
    tell: Callable[[Found], None] = lambda found: None,
    shrink: bool = True,
) -> Found:
    """Take steps until the budget is used up or the kernel disagrees; `number` is the seed.

    `tell` is called for each sequence. A disagreement is shrunk to fewer steps, whatever the budget
    says. Raises what the puppet and the views raise.
    """
    found = Found()
    counts = stage.counts

    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.sequence: Sequence_ | None = None
            self.over = found.disagreement is None and budget.used(counts.steps)

        @rule(draws=st.integers(0, (1 << NUMBER_BITS) - 1))
        def step(self, draws: int) -> None:
            if self.over:
                return
            if self.sequence is None:
                tell(found)
                self.sequence = Sequence_(stage)
            try:
                self.sequence.step(draws)
            except Disagreement as error:
                if found.first_after is None:
                    found.first_after = counts.steps
                best = found.disagreement
                if best is None or len(error.steps) <= len(best.steps):
                    found.disagreement = error
                raise
            if found.disagreement is None and budget.used(counts.steps):
                self.over = True

        def teardown(self) -> None:
            if self.sequence is not None:
                self.sequence.end()

    seed(number)(Machine)
    most = 1_000_000 if budget.steps is None else 2 + 4 * budget.steps // STEPS_A_SEQUENCE
    chosen = settings(
        max_examples=most,
        stateful_step_count=STEPS_A_SEQUENCE,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
        print_blob=False,
    )
    # What does not repeat (Flaky) was seen all the same.
    with contextlib.suppress(Disagreement, HypothesisException, BaseExceptionGroup):
        while not budget.used(counts.steps) and found.disagreement is None:
            before = counts.steps
            run_state_machine_as_test(Machine, settings=chosen)
            number += 1
            seed(number)(Machine)
            if counts.steps == before:
                break
    if found.first_after is not None:
        found.shrunk_in = counts.steps - found.first_after
    return found
