# SPDX-License-Identifier: GPL-2.0-or-later
"""Playing remap scenarios over sizes."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from ptscope.bench import memory
from ptscope.bench.looks import Expect, Look, differences, table_bytes
from ptscope.bench.remaps import Fate, Ground, Remap, release, size_text
from ptscope.bench.result import Measured, Round, sort_samples
from ptscope.bench.run import Setting, Tell, interrupts
from ptscope.bench.stage import NotHere, within_limits
from ptscope.bench.timing import Action, Arena, Sample, reap, take

MOST_BYTES = 256 << 20
"""Bytes that the samples of a round make ready in all, where that is more than two samples."""
PR_SET_THP_DISABLE = 41
PART_OF_MEMORY = 4
"""What is populated is at most this part of the memory that is free."""


def available_bytes() -> int:
    """Memory that can be had without swapping, in bytes (MemAvailable)."""
    found = re.search(r"^MemAvailable:\s*(\d+)", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return 0 if found is None else int(found[1]) * 1024


def measure_remap(
    scenario: Remap,
    sizes: Sequence[int],
    setting: Setting,
    tell: Tell = lambda _: None,
    asked: bool = False,
) -> list[Measured]:
    """All rounds of a scenario for each size that it is played with.

    Were the sizes `asked` for, those that do not fit are told.
    """
    if release() < scenario.since:
        version = ".".join(map(str, scenario.since))
        return [_unavailable(scenario, setting, f"the kernel does so from {version} on")]
    fitting = [size for size in sizes if scenario.fits(size, setting.geometry)]
    if not fitting:
        why = "none of the sizes fits"
        return [_unavailable(scenario, setting, why, _its_sizes(scenario, setting))]
    left = []
    if asked and len(fitting) < len(sizes):
        those = ", ".join(size_text(size) for size in sizes if size not in fitting)
        why = f"{those} {'does' if ',' not in those else 'do'} not fit"
        left = [_unavailable(scenario, setting, why, _its_sizes(scenario, setting))]
    if scenario.device is not None:
        # All sizes, and the other ways to map them, are to have the same frames.
        most = max((each for each in fitting if _playable(scenario, each, setting)), default=0)
        try:
            setting.frames.reserve(max(1, most // setting.geometry.page))
        except NotHere as error:
            return [_unavailable(scenario, setting, error.cause, error.remedy)]
    return _measure_sizes(scenario, fitting, setting, tell) + left


def _its_sizes(scenario: Remap, setting: Setting) -> str:
    least = size_text(scenario.least(setting.geometry))
    text = f"sizes of it: {least} and multiples"
    for word, limit in (("below", scenario.below), ("at most", scenario.most)):
        if limit is not None:
            text += f", {word} {size_text(limit(setting.geometry))}"
    return text


def _unavailable(
    scenario: Remap, setting: Setting, why: str, remedy: str | None = None
) -> Measured:
    return Measured(
        scenario.name,
        scenario.title,
        proven_by=setting.eyes.source.name,
        unavailable=why,
        remedy=remedy,
        family=scenario.name,
    )


def _measure_sizes(
    scenario: Remap, sizes: Sequence[int], setting: Setting, tell: Tell
) -> list[Measured]:
    """Every size in each round: what a machine is slower at for a while is no size's own."""
    found = {
        size: Measured(
            f"{scenario.name}-{size_text(size)}",
            scenario.title,
            size=size,
            pages=size // setting.geometry.page,
            resolution=setting.clock.resolution,
            proven_by=setting.eyes.source.name,
            family=scenario.name,
        )
        for size in sizes
    }
    for _ in range(setting.rounds):
        for size, measured in found.items():
            if measured.unavailable:
                continue
            tell(measured.name)
            try:
                _check_memory(scenario, size, setting)
                with within_limits():
                    measured.rounds.append(_one_round(scenario, size, setting, measured))
            except NotHere as error:
                measured.unavailable, measured.remedy = error.cause, error.remedy
    return list(found.values())


def _playable(scenario: Remap, size: int, setting: Setting) -> bool:
    """Whether there is memory for it."""
    try:
        _check_memory(scenario, size, setting)
    except NotHere:
        return False
    return True


def _check_memory(scenario: Remap, size: int, setting: Setting) -> None:
    need = setting.geometry.page * (size // setting.geometry.pmd)
    if scenario.content in ("pages", "huge") or scenario.at_old == "fresh":
        need = size
    if scenario.device is not None and setting.frames.has(size // setting.geometry.page):
        return
    may = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if scenario.locks and os.geteuid() and may != resource.RLIM_INFINITY and size > may:
        raise NotHere(
            f"{size >> 10} KiB are to be locked, and {may >> 10} KiB may be (RLIMIT_MEMLOCK)",
            "as root, or with a higher `ulimit -l`",
        )
    free = available_bytes()
    if need > free // PART_OF_MEMORY:
        raise NotHere(f"it takes {need >> 20} MiB, and a quarter of {free >> 20} MiB may be used")


def _one_round(scenario: Remap, size: int, setting: Setting, measured: Measured) -> Round:
    count = max(2, min(setting.samples, setting.samples * MOST_BYTES // 8 // size))
    if scenario.content == "sparse":
        count = setting.samples
    with ExitStack() as closing:
        skew = setting.geometry.page if scenario.skewed else 0
        pages = size // setting.geometry.page
        known = None if scenario.device is None else setting.frames.reserve(pages)
        ground = Ground(
            setting.geometry,
            size,
            scenario.content,
            skew,
            scenario.device,
            known,
            scenario.shared,
            scenario.near,
        )
        closing.callback(ground.close)
        if known is not None:
            measured.stretches.add(known.stretches(pages))
        if scenario.content != "huge":
            # Also of what the timed call maps by itself.
            memory.call("prctl", PR_SET_THP_DISABLE, 1)
            closing.callback(memory.call, "prctl", PR_SET_THP_DISABLE, 0)
        if scenario.again is not None:
            ground.make()
            return _again(scenario, ground, scenario.again(ground), count, setting, measured)
        rehearsal = closing.enter_context(Rehearsal.of(scenario, ground, setting))
        memory.work_elsewhere()  # its own first time makes tables
        arena = Arena(1)
        samples: list[Sample] = []
        flaws: list[str | None] = []
        hits = 0
        fresh = True
        for _ in range(count):
            if fresh:
                ground.make()
            sample, flaw, freed, hit = _one_sample(scenario, ground, rehearsal, setting, arena)
            samples.append(sample)
            flaws.append(flaw)
            hits += hit
            measured.samples += 1
            measured.faults += sample.faults
            measured.tables.add(freed)
            # What went wrong has left something else behind than it should.
            fresh = scenario.undo is None or flaw is not None
            if not fresh and scenario.undo is not None:
                scenario.undo(ground)
        return sort_samples(setting.clock, samples, flaws, interrupts=hits)


def _again(
    scenario: Remap,
    ground: Ground,
    undo: Sequence[Action],
    count: int,
    setting: Setting,
    measured: Measured,
) -> Round:
    """A round of samples without anything between them but what undoes them."""
    eyes, own = setting.eyes, os.getpid()
    action = replace(scenario.action(ground), spin=setting.spin)
    before = eyes.look(own, ground.probes(ground.old))
    there = eyes.look(own, ground.probes(ground.new))
    take(setting.clock.kind, action, [ground.old])  # for each begins by being undone
    hits = interrupts(setting.cpu)
    samples = take(setting.clock.kind, action, [ground.old] * count, undo)
    hits = interrupts(setting.cpu) - hits
    at_old = eyes.look(own, ground.probes(ground.old))
    at_new = eyes.look(own, ground.probes(ground.new))
    measured.samples += count
    measured.faults += sum(sample.faults for sample in samples)
    flaws = [
        next(iter(_flaws(scenario, ground, sample, before, there, at_old, at_new, 0)), None)
        for sample in samples
    ]
    return sort_samples(setting.clock, samples, flaws, interrupts=hits)


class Rehearsal:
    """What is timed, done to another range just before."""

    def __init__(self, scenario: Remap, ground: Ground | None, setting: Setting) -> None:
        """Without a ground nothing is done."""
        self._scenario, self._ground = scenario, ground
        self.freed = 0
        """Bytes of tables that go when it is made ready and done again."""
        for _ in range(2):
            before = table_bytes(os.getpid())
            for action in self.make():
                Arena(1).take(setting.clock.kind, action)
            self.freed = before - table_bytes(os.getpid())

    @classmethod
    @contextmanager
    def of(cls, scenario: Remap, ground: Ground, setting: Setting) -> Iterator[Rehearsal]:
        """For a scenario on a ground; its own is taken away afterwards."""
        if not scenario.rehearsed:
            yield cls(scenario, None, setting)
            return
        skew = setting.geometry.page * scenario.skewed
        own = replace(ground, content="one", skew=skew, device=None, known=None, number=1)
        try:
            yield cls(scenario, own, setting)
        finally:
            own.close()

    def make(self) -> tuple[Action, ...]:
        """Have its range ready; what is to be done to it."""
        if self._ground is None:
            return ()
        self._ground.make()
        return (self._scenario.action(self._ground),)


def _one_sample(
    scenario: Remap, ground: Ground, rehearsal: Rehearsal, setting: Setting, arena: Arena
) -> tuple[Sample, str | None, int, int]:
    """One sample, what did not happen, the tables that went, and the interrupts."""
    eyes, own = setting.eyes, os.getpid()
    action = replace(scenario.action(ground), spin=setting.spin, rest=setting.rest)
    before = eyes.look(own, ground.probes(ground.old))
    there = eyes.look(own, ground.probes(ground.new))
    tables = table_bytes(own)
    arena.fill([ground.old])
    rehearsed = rehearsal.make()
    memory.work_elsewhere()
    hits = interrupts(setting.cpu)
    (sample,) = arena.take(setting.clock.kind, action, rehearsed)
    hits = interrupts(setting.cpu) - hits
    freed = (tables - table_bytes(own) - rehearsal.freed) // ground.page
    at_old = eyes.look(own, ground.probes(ground.old))
    at_new = eyes.look(own, ground.probes(ground.new))
    flaws = list(_flaws(scenario, ground, sample, before, there, at_old, at_new, freed))
    if scenario.forks and sample.result > 0:
        in_child = eyes.look(sample.result, ground.probes(ground.old))
        flaws += _fate("in the child", "same", scenario.writable, before, in_child)
        reap(sample.result)
    return sample, flaws[0] if flaws else None, freed, hits


def _flaws(
    scenario: Remap,
    ground: Ground,
    sample: Sample,
    before: Sequence[Look],
    there: Sequence[Look],
    at_old: Sequence[Look],
    at_new: Sequence[Look],
    freed: int,
) -> Iterator[str]:
    """What is not as it has to be with one sample."""
    content = Expect("leaf" if ground.populated else "none")
    for look in before:
        yield from (f"before: {text}" for text in differences(content, look))
    for look in there:
        yield from (f"before, new place: {text}" for text in differences(Expect("none"), look))
    wanted = scenario.result(ground)
    if sample.result < 0:
        yield f"the call failed: {os.strerror(-sample.result)}"
    elif wanted is not None and sample.result != wanted:
        yield f"the call gave {sample.result:#x}, not {wanted:#x}"
    faults = scenario.faults(ground)
    if faults is not None and sample.faults != faults:
        yield f"the kernel counted {sample.faults} faults, not {faults}"
    yield from _fates("old place", scenario.at_old, scenario, ground, before, at_old)
    for address, look in zip(ground.probes(ground.old), at_old, strict=True):
        known = ground.frame(address)
        if known is not None and look.frame is not None and look.frame != known:
            yield f"old place: the frame is {look.frame:#x}, not the known {known:#x}"
    if scenario.at_new is not None:
        yield from _fates("new place", scenario.at_new, scenario, ground, before, at_new)
    if scenario.moves is not None:
        for first, then in zip(before, at_new, strict=True):
            yield from moved(scenario.moves, ground, first, then)
    if scenario.freed is not None and freed != scenario.freed(ground):
        yield f"VmPTE shrank by {freed} tables, not {scenario.freed(ground)}"


def _fates(
    where: str,
    fate: Fate,
    scenario: Remap,
    ground: Ground,
    before: Sequence[Look],
    after: Sequence[Look],
) -> Iterator[str]:
    """What has not become of the entries at a place, where it may be one thing of each half."""
    halves = {"half": "same", "cut": "fresh"}
    if fate not in halves:
        yield from _fate(where, fate, scenario.writable, before, after)
        return
    kept = sum(each < ground.size // 2 for each in ground.probes(0))
    first = f"{where}, kept half"
    yield from _fate(first, halves[fate], scenario.writable, before[:kept], after[:kept])
    yield from _fate(f"{where}, half that goes", "none", None, before[kept:], after[kept:])


def _fate(
    where: str, fate: str, writable: bool | None, before: Sequence[Look], after: Sequence[Look]
) -> Iterator[str]:
    """What has not become of entries what should have."""
    expected = {
        "none": Expect("none"),
        "fresh": Expect("leaf", zero=False),
        "same": Expect("leaf", writable=writable, frame="same"),
        "moved": Expect("leaf", writable=writable, frame="same"),
    }[fate]
    for first, then in zip(before, after, strict=True):
        yield from (f"{where}: {text}" for text in differences(expected, then, first))


# Which table of a walk, from the leaf's up, is the one whose entries are moved.
ABOVE_LEAF = {"pte": 0, "pmd": 1, "pud": 2}


def moved(by: str, ground: Ground, before: Look, after: Look) -> Iterator[str]:
    """Whether the tables below the level that is moved came along, and that level's own did not.

    A table that came along is the same frame under the new address.
    """
    if before.tables is None or after.tables is None:
        return
    above = ABOVE_LEAF[by] - (1 if ground.content == "huge" else 0)
    one, other = before.tables[::-1], after.tables[::-1]
    for number in range(above):
        if one[number] != other[number]:
            yield f"the table {number + 1} above the page did not come along: it was copied"
    # Two ranges can lie in one PUD table, as two entries of it; but not in one PTE or PMD table,
    # unless they were laid there.
    if ground.near:
        if one[above] != other[above]:
            yield f"the table {above + 1} above the page is another, although the place was near"
    elif above < 2 and one[above] == other[above]:
        yield f"the table {above + 1} above the page is the same: a level above it was moved"
