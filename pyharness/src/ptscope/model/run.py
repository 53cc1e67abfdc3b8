# SPDX-License-Identifier: GPL-2.0-or-later
"""One sequence of steps: each is taken by the puppet, predicted, and compared."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ptscope.errors import PtscopeError
from ptscope.model.calls.advice import khugepaged
from ptscope.model.compare import Difference, compare
from ptscope.model.drive import Answer, Puppet, PuppetGone
from ptscope.model.kernel import PMD, Kernel
from ptscope.model.observe import Seen, View
from ptscope.model.operations import Arena, Call, Draws, Table
from ptscope.model.state import Space, World
from ptscope.model.state import Table as TableEntry

FIRST = 1
"""The slot of the first process."""


@dataclass(frozen=True)
class Step:
    """One step that was taken: who did what, with which outcome; what the kernel chose in it."""

    draws: tuple[tuple[int, int], ...]
    """The choices that made it: see `operations.Draws`."""
    slot: int
    text: str
    outcome: str | int
    choices: tuple[tuple[int, str, str], ...] = ()

    def to_json(self) -> dict[str, object]:
        """For programs; addresses as hex text."""
        return {
            "process": self.slot,
            "step": self.text,
            "outcome": self.outcome,
            "choices": [
                {"address": hex(address), "chosen": chosen, "reason": reason}
                for address, chosen, reason in self.choices
            ],
        }


class Disagreement(AssertionError):
    """The kernel did not do what the model predicts."""

    def __init__(self, steps: Sequence[Step], differences: Sequence[Difference]) -> None:
        super().__init__(f"{len(differences)} differences after {len(steps)} steps")
        self.steps = tuple(steps)
        self.differences = tuple(differences)


@dataclass
class Counts:
    """What has been done in all sequences so far."""

    steps: int = 0
    sequences: int = 0
    compared: int = 0
    """Entries that were compared because they, or their prediction, had changed."""
    choices: int = 0
    by_operation: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    """Where the time went: puppet, look, model, compare."""


def foreign_vmas(pid: int, arena: Arena) -> tuple[tuple[int, int], ...]:
    """The VMAs of a process outside the arena."""
    from ptscope.target.vma import read_maps

    return tuple(
        (vma.start, vma.end)
        for vma in read_maps(Path(f"/proc/{pid}"))
        if vma.end <= arena.start or arena.end <= vma.start
    )


def must(answer: Answer, line: str) -> int:
    """The result of a command that cannot fail."""
    if answer.errno or answer.signal:
        raise PuppetGone(f"the puppet cannot do {line!r}: errno {answer.errno} {answer.signal}")
    return answer.result


@dataclass
class Stage:
    """All that sequences need, kept from one to the next."""

    puppet: Puppet
    kernel: Kernel
    arena: Arena
    view: Callable[[int], View]
    """Makes the view of a process, by PID."""
    table: Table = field(default_factory=Table)
    counts: Counts = field(default_factory=Counts)
    prepare: Sequence[str] = ()
    """Commands for each new process."""
    foreign: Callable[[int, Arena], tuple[tuple[int, int], ...]] = foreign_vmas


class Sequence_:
    """One sequence: a process in an empty arena, and what becomes of it."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.views: dict[int, View] = {}
        self.seen = Seen(self.views)
        self.world = World(stage.kernel, self.seen)
        self.steps: list[Step] = []
        stage.counts.sequences += 1
        pid = stage.puppet.start(FIRST)
        for line in stage.prepare:
            must(stage.puppet.command(FIRST, line), line)
        space = Space(self.world, FIRST, foreign=stage.foreign(pid, stage.arena))
        self.world.spaces[FIRST] = space
        self.views[FIRST] = stage.view(pid)
        self.views[FIRST].look()
        self._adopt_tables(space)

    def _adopt_tables(self, space: Space) -> None:
        """Tables that the arena shares with the rest of the process are there from the start."""
        view = self.views[space.slot]
        for level in space.geometry.levels[1:]:
            for index in view.raws.get(level, {}):
                space.entries[level][index] = TableEntry()
                space.changed.add((level, index))
        self._check([], set())

    def step(self, number: int) -> bool:
        """Take the step a number stands for; False when there is none.

        Raises Disagreement, PuppetGone.
        """
        draws = Draws(number)
        call = self.stage.table.make(self.world, self.stage.arena, draws)
        if call is None:
            return False
        try:
            self._take(call, tuple(draws.made))
        except (Disagreement, OSError, PtscopeError):
            # A process that was killed has no memory any more: that says nothing of the kernel.
            self.stage.puppet.require_all()
            raise
        return True

    def _take(self, call: Call, draws: tuple[tuple[int, int], ...]) -> None:
        counts = self.stage.counts
        start = time.perf_counter()
        answer, errno, outcome = self._command(call)
        done = time.perf_counter()
        changed = {slot: view.look() for slot, view in self.views.items()}
        looked = time.perf_counter()
        self.seen.log.clear()
        wanted = call.apply(answer, errno)
        self.world.release()
        self._background()
        applied = time.perf_counter()
        step = Step(draws, call.slot, call.text, outcome, tuple(self.seen.log))
        self.steps.append(step)
        differences: list[Difference] = []
        if wanted != outcome:
            differences.append(
                Difference(call.slot, 0, 0, f"outcome {wanted}", f"outcome {outcome}")
            )
        self._check(differences, changed)
        counts.steps += 1
        counts.choices += len(self.seen.log)
        name = call.text.partition("(")[0]
        counts.by_operation[name] = counts.by_operation.get(name, 0) + 1
        now = time.perf_counter()
        for key, spent in (
            ("puppet", done - start),
            ("look", looked - done),
            ("model", applied - looked),
            ("compare", now - applied),
        ):
            counts.seconds[key] = counts.seconds.get(key, 0.0) + spent

    def _background(self) -> None:
        """What the kernel does by itself: khugepaged, where a PMD entry became a leaf."""
        if not self.stage.kernel.khugepaged:
            return
        for slot, space in self.world.spaces.items():
            view = self.views[slot]
            for index, entry in list(space.entries[PMD].items()):
                address = index << space.shifts[PMD]
                if not isinstance(entry, TableEntry) or not view.outcome(address, None).get("huge"):
                    continue
                if khugepaged(space, index):
                    self.seen.log.append((address, "huge", "khugepaged collapsed it meanwhile"))

    def _command(self, call: Call) -> tuple[int, int, str | int]:
        puppet = self.stage.puppet
        if call.special == "exit":
            puppet.exit(call.slot)
            del self.views[call.slot]
            return 0, 0, 0
        if call.special == "fork":
            pid = puppet.fork(call.slot, call.target)
            self.views[call.target] = self.stage.view(pid)
            return pid, 0, 0
        if call.special == "clear_refs":
            puppet.clear_refs(call.slot, call.command)
            return 0, 0, 0
        last = 0
        for line in call.before:
            last = must(puppet.command(call.slot, line.replace("$", str(last))), line)
        answer = puppet.command(call.slot, call.command)
        for line in call.after:
            asked = line.replace("$", str(answer.result))
            call.answers.append(must(puppet.command(call.slot, asked), asked))
        if call.text.startswith(("read(", "write(")):
            return answer.result, answer.errno, answer.signal or "ok"
        return answer.result, answer.errno, answer.errno

    def _check(self, differences: list[Difference], changed: object) -> None:
        by_slot = changed if isinstance(changed, dict) else {}
        for slot, space in self.world.spaces.items():
            keys = by_slot.get(slot, set())
            self.stage.counts.compared += len(keys | space.changed)
            differences += compare(space, self.views[slot], keys)
        if differences:
            raise Disagreement(self.steps, differences)

    def end(self) -> None:
        """End its processes."""
        self.stage.puppet.end_all()
