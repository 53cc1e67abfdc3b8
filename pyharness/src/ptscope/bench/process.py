# SPDX-License-Identifier: GPL-2.0-or-later
"""Rounds that a process each measures.

Rounds of one process have its luck in common (where its memory lies, what the machine did in that
second), so two files of one process each differ by more than their rounds do. On a busy virtual
machine 36 to 51 % of pairs of files of the same scenario were called different at 95 %; 3 to 14 %
were when each round was a process, and 6 to 12 % when it was a mere fork.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import IO

from ptscope.bench.clock import Clock
from ptscope.bench.conditions import Conditions
from ptscope.bench.known import Frames
from ptscope.bench.looks import Eyes
from ptscope.bench.memory import Geometry
from ptscope.bench.result import Measured
from ptscope.bench.run import Setting, Tell
from ptscope.errors import PtscopeError, Unsupported
from ptscope.source.base import Source
from ptscope.source.pagemap import PagemapSource

WORKER = ("-P", "-m", "ptscope.bench.worker")
"""What Python is given; -P: what has the name of a module in the folder one stands in is none."""


@dataclass(frozen=True)
class Order:
    """What is to be measured, and how; `sizes` in bytes, of what is remapped.

    Were sizes `asked` for, those that do not fit are told. `source` is `module` or `pagemap`.
    """

    group: str
    names: tuple[str, ...]
    clock: Clock
    cpu: int
    serving_cpu: int
    samples: int
    source: str
    sizes: tuple[int, ...] = ()
    asked: bool = False

    def setting(self, source: Source, frames: Frames) -> Setting:
        """How one round is measured in this process."""
        hidden = isinstance(source, PagemapSource) and source.frames_hidden
        return Setting(
            clock=self.clock,
            eyes=Eyes(source, hidden),
            geometry=Geometry.of(source.layout),
            cpu=self.cpu,
            serving_cpu=self.serving_cpu,
            samples=self.samples,
            rounds=1,
            frames=frames,
        )


@dataclass(frozen=True)
class Results:
    """What was measured, by names of scenarios: several for those that have sizes."""

    measured: Mapping[str, Sequence[Measured]]
    conditions: Conditions


@dataclass(frozen=True)
class Failure:
    """An error that a user is to see: pickle would lose its remedy."""

    kind: type[PtscopeError]
    cause: str
    remedy: str | None


Message = str | Results | Failure


def measure_rounds(order: Order, rounds: int, tell: Tell = lambda _: None) -> Results:
    """So many rounds of all that is ordered. Raises PtscopeError."""
    found: dict[str, list[Measured]] = {name: [] for name in order.names}
    conditions = Conditions({})
    for number in range(rounds):
        # What cannot be played is not tried again.
        left = [name for name, each in found.items() if not each or not _unavailable(each)]
        if not left:
            break
        which = f"round {number + 1} of {rounds}"
        results = _one_process(replace(order, names=tuple(left)), _with(tell, which))
        conditions = results.conditions
        for name, measured in results.measured.items():
            found[name] = _added(found[name], measured)
    return Results(found, Conditions({**conditions.facts, "processes": rounds}))


def _with(tell: Tell, which: str) -> Tell:
    return lambda name: tell(f"{name}, {which}")


def _unavailable(measured: Sequence[Measured]) -> bool:
    return all(each.unavailable for each in measured)


def _added(measured: Sequence[Measured], more: Sequence[Measured]) -> list[Measured]:
    by_name = {each.name: each for each in measured}
    for each in more:
        if each.name in by_name:
            by_name[each.name].add(each)
        else:
            by_name[each.name] = each
    return list(by_name.values())


def _one_process(order: Order, tell: Tell) -> Results:
    """A process for one round. Raises PtscopeError when it fails."""
    reading, writing = os.pipe()
    # Less than a pipe holds, so it need not be read meanwhile.
    with os.fdopen(reading, "rb") as question, os.fdopen(writing, "wb") as filled:
        filled.write(pickle.dumps(order))
        filled.close()
        words = [sys.executable, *WORKER]
        worker = subprocess.Popen(words, stdin=question, stdout=subprocess.PIPE)
    assert worker.stdout is not None
    with worker:
        try:
            results = _listen(worker.stdout, tell)
        except BaseException:
            worker.terminate()  # it puts back what it changed
            raise
    if results is None:
        raise Unsupported(f"the process that measured ended with status {worker.returncode}")
    if isinstance(results, Failure):
        raise results.kind(results.cause, results.remedy)
    return results


def _listen(stream: IO[bytes], tell: Tell) -> Results | Failure | None:
    while True:
        try:
            message: Message = pickle.load(stream)
        except (EOFError, pickle.UnpicklingError):
            return None
        if not isinstance(message, str):
            return message
        tell(message)
