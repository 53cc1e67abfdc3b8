# SPDX-License-Identifier: GPL-2.0-or-later
"""Playing scenarios: make ready, look, time, look again, judge."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from ptscope.bench import memory
from ptscope.bench.clock import Clock
from ptscope.bench.known import Frames
from ptscope.bench.looks import Eyes, Look, differences, table_bytes
from ptscope.bench.memory import Geometry
from ptscope.bench.result import Measured, Round, sort_samples
from ptscope.bench.scenario import Scenario
from ptscope.bench.stage import NotHere, Stage, play, within_limits
from ptscope.bench.timing import Sample, take

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Setting:
    """How it is measured. `samples` of each round, `serving_cpu` for threads that answer.

    `spin` is for tests: so many empty loops are added to what is timed. So is `rest`, in ns, before
    samples that change VMAs: until the kernel has freed what waited for readers to be done (RCU),
    as the cost of a node of their tree depends on what was freed just before. Where instructions
    are counted it makes figures steady; a real CPU wakes up from it cold, at ten times the cost.
    """

    clock: Clock
    eyes: Eyes
    geometry: Geometry
    cpu: int
    serving_cpu: int
    samples: int
    rounds: int
    spin: int = 0
    rest: int = 0
    frames: Frames = field(default_factory=Frames)

    def stage(self, most: int = 1 << 30) -> Stage:
        """A stage for one round."""
        return Stage(
            geometry=self.geometry,
            source=self.eyes.source,
            clock=self.clock.kind,
            wanted=min(self.samples, most),
            serving_cpu=self.serving_cpu,
        )


def interrupts(cpu: int, path: Path = Path("/proc/interrupts")) -> int:
    """How many interrupts a CPU has had; 0 where the kernel does not tell."""
    try:
        heading, *lines = path.read_text().splitlines()
    except OSError:
        return 0
    column = heading.split().index(f"CPU{cpu}") + 1
    counts = (line.split()[column : column + 1] for line in lines)
    return sum(int(count[0]) for count in counts if count and count[0].isdigit())


def measure(scenario: Scenario, setting: Setting, tell: Tell = lambda _: None) -> Measured:
    """All rounds of a scenario, in this process; its name is told at each."""
    measured = Measured(scenario.name, scenario.title, proven_by=setting.eyes.source.name)
    for _ in range(setting.rounds):
        tell(scenario.name)
        try:
            with within_limits():
                measured.rounds.append(one_round(scenario, setting, measured))
        except NotHere as error:
            measured.unavailable, measured.remedy = error.cause, error.remedy
            break
    return measured


class Watch(Protocol):
    """Something that stands around the timed part of a round."""

    def around(self, pid: int) -> AbstractContextManager[None]:
        """While this thread is timed."""

    def took(self, samples: Sequence[Sample]) -> None:
        """The samples that came of it."""


def one_round(
    scenario: Scenario, setting: Setting, measured: Measured, watch: Watch | None = None
) -> Round:
    """One round. Raises NotHere when the scenario cannot be played here."""
    with setting.stage(scenario.most) as stage:
        rest = setting.rest if scenario.changes_vmas else 0
        stage.action = replace(scenario.action, spin=setting.spin, rest=rest)
        stage.lay_out(scenario.stride(stage))
        if scenario.again:
            stage.addresses[1:] = stage.addresses[:1] * (len(stage.addresses) - 1)
        play(scenario.steps, stage)
        eyes, addresses, count = setting.eyes, stage.addresses, len(stage.addresses)
        before = eyes.look(stage.pid, addresses)
        memory.work_elsewhere()
        tables = table_bytes(stage.pid)
        hits = interrupts(setting.cpu)
        with nullcontext() if watch is None else watch.around(stage.pid):
            if scenario.in_child:
                assert stage.child is not None
                samples = stage.child.run()
            else:
                samples = take(stage.clock, stage.action, addresses, scenario.again)
        if watch is not None:
            watch.took(samples)
        hits = interrupts(setting.cpu) - hits
        tables = table_bytes(stage.pid) - tables
        after = eyes.look(stage.pid, addresses)
        beside: Sequence[Look | None] = [None] * count
        if scenario.neighbour is not None:
            beside = eyes.look(stage.pid, [address + stage.page for address in addresses])
        flaws = [
            next(_flaws(scenario, stage, *each), None)
            for each in zip(addresses, samples, before, after, beside, strict=True)
        ]
        if not eyes.whole:
            _judge_table_bytes(scenario, tables // stage.page, flaws)
        measured.samples += count
        measured.faults += sum(sample.faults for sample in samples)
        measured.faults_of_a_sample |= {sample.faults for sample in samples}
        measured.tables |= set(_made(before, after))
        inner = max(1, stage.action.inner)
        measured.resolution = setting.clock.resolution / inner
        return sort_samples(
            setting.clock,
            samples,
            flaws,
            waits=scenario.waits,
            inner=inner,
            firsts=scenario.firsts,
            interrupts=hits,
        )


def _made(before: Sequence[Look], after: Sequence[Look]) -> Iterator[int]:
    """How many more levels the walk of each sample goes through afterwards."""
    for first, then in zip(before, after, strict=True):
        if first.depth is not None and then.depth is not None:
            yield then.depth - first.depth


def _flaws(
    scenario: Scenario,
    stage: Stage,
    address: int,
    sample: Sample,
    before: Look,
    after: Look,
    beside: Look | None,
) -> Iterator[str]:
    """What is not as it has to be with one sample."""
    where = f"{address:#x}"
    for text in differences(scenario.before, before):
        yield f"before, {where}: {text}"
    if scenario.result is not None and sample.result != scenario.result:
        known = os.strerror(-sample.result) if sample.result < 0 else str(sample.result)
        yield f"{where}: the result is {known}, not {scenario.result}"
    if scenario.faults is not None and sample.faults != scenario.faults:
        yield f"{where}: the kernel counted {sample.faults} faults, not {scenario.faults}"
    for text in differences(scenario.after, after, before):
        yield f"after, {where}: {text}"
    wanted = stage.frames.get(address)
    if wanted is not None and after.frame is not None and after.frame != wanted:
        yield f"after, {where}: the frame is {after.frame:#x}, not the known {wanted:#x}"
    for made in _made([before], [after]):
        if scenario.tables is not None and made != scenario.tables:
            yield f"{where}: {made} tables were made, not {scenario.tables}"
    if scenario.neighbour is not None and beside is not None:
        for text in differences(scenario.neighbour, beside):
            yield f"after, the page beside {where}: {text}"


COUNTED_LEVELS = 3
"""VmPTE counts tables of PTEs, PMDs and PUDs."""
FEW = 4
"""Tables that the process may have made for something else meanwhile."""


def _judge_table_bytes(scenario: Scenario, made: int, flaws: list[str | None]) -> None:
    """Without walks, tables that had to be made show in VmPTE, all samples together."""
    if not scenario.tables or scenario.before.state != "none":
        return
    expected = len(flaws) * min(scenario.tables, COUNTED_LEVELS)
    if not expected <= made <= expected + FEW:
        text = f"VmPTE grew by {made} tables, not {expected}"
        flaws[:] = [flaw or text for flaw in flaws]
