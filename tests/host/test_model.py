# SPDX-License-Identifier: GPL-2.0-or-later
"""The model without a kernel: against a twin of itself, which must agree, and against faults."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from model_twin import twin_stage
from ptscope.errors import UsageError
from ptscope.model.calls import access, mapping
from ptscope.model.choice import first
from ptscope.model.drive import Answer, PuppetGone
from ptscope.model.kernel import Kernel
from ptscope.model.operations import OPERATIONS, Draws, number_of
from ptscope.model.search import Budget, Found, search
from ptscope.model.state import Leaf, Space, World

sys.path.append(str(Path(__file__).resolve().parents[1] / "guest"))

import plant_model

KERNEL = Kernel(
    version=(6, 1),
    khugepaged=False,
    swap=True,
    nodes=2,
    pkeys=True,
    hugetlb=True,
    uffd_minor=True,
    ksm=True,
)
PLANTED_STEPS = 2000
NAMES = frozenset(row.name for row in OPERATIONS)
# The twin encodes no markers.
GUARDS = frozenset({"guard_install", "guard_remove"})


@pytest.mark.parametrize("thp", ["always", "madvise", "never"])
@pytest.mark.parametrize("version", [(6, 1), (6, 12), (7, 2)])
def test_agrees_with_its_twin(thp: str, version: tuple[int, int]) -> None:
    kernel = replace(KERNEL, thp=thp, version=version)
    stage = twin_stage(kernel, only=NAMES - GUARDS)
    found = search(stage, Budget(400, None), 1)
    assert found.disagreement is None, words(found)
    assert stage.counts.steps == 400
    assert stage.counts.compared > 400


@pytest.mark.parametrize("name", list(plant_model.SOURCES))
def test_a_fault_in_what_is_seen_is_found(name: str) -> None:
    stage = twin_stage(KERNEL, view=plant_model.planted(name))
    found = search(stage, Budget(PLANTED_STEPS, None), 1, shrink_seconds=10)
    assert found.disagreement is not None
    assert found.repeated


@pytest.mark.parametrize("name", list(plant_model.RULES))
def test_a_wrong_rule_is_found(name: str) -> None:
    stage = twin_stage(KERNEL, around=lambda: plant_model.right_rule(name))
    with plant_model.wrong_rule(name):
        found = search(stage, Budget(PLANTED_STEPS, None), 1, shrink_seconds=10)
    assert found.disagreement is not None
    assert found.repeated


def test_a_rule_that_changed_with_the_version_is_found() -> None:
    stage = twin_stage(KERNEL, replace(KERNEL, version=(6, 2)), only=frozenset(
        {"mmap_private", "populate_write", "write", "mprotect", "free"}
    ))
    found = search(stage, Budget(PLANTED_STEPS, None), 2)
    assert found.disagreement is not None


def test_shrinks_to_the_shortest() -> None:
    stage = twin_stage(KERNEL, view=plant_model.planted("dirty_lost"))
    found = search(stage, Budget(PLANTED_STEPS, None), 3)
    assert found.disagreement is not None
    assert found.disagreement.steps[0].text.startswith("mmap")
    assert len(found.disagreement.steps) == 2
    (difference,) = found.disagreement.differences[:1]
    assert "dirty" in difference.predicted


def test_the_same_seed_gives_the_same_steps() -> None:
    runs = []
    for _ in range(2):
        stage = twin_stage(KERNEL)
        search(stage, Budget(300, None), 7)
        runs.append((stage.counts.steps, stage.counts.by_operation))
    assert runs[0] == runs[1]


def test_choices_make_the_number_they_came_from() -> None:
    draws = Draws(123_456_789)
    values = [draws.below(limit) for limit in (60, 3, 14, 8)]
    again = Draws(number_of(draws.made))
    assert [again.below(limit) for limit in (60, 3, 14, 8)] == values
    assert not again.left


def test_locked_memory_that_becomes_writable_is_faulted_in() -> None:
    """Seed 43 found it on 6.18 by pagemap, after mlock of memory that could only be read."""
    world = World(replace(KERNEL, thp="never"), first)
    space = world.spaces[1] = Space(world, 1)
    start = 1 << 36
    mapping.mmap(space, start, 0x1000, "r")
    assert access.mlock(space, start, start + 0x1000) == 0
    _, _, leaf = space.at(start) or (0, 0, None)
    assert isinstance(leaf, Leaf)
    assert leaf.page is world.zero
    mapping.mprotect(space, start, start + 0x1000, "rw")
    _, _, leaf = space.at(start) or (0, 0, None)
    assert isinstance(leaf, Leaf)
    assert leaf.page.kind == "anon"
    assert leaf.write


def words(found: Found) -> str:
    assert found.disagreement is not None
    return "\n".join(
        [f"{step.slot} {step.text} {step.outcome}" for step in found.disagreement.steps]
        + [str(row) for row in found.disagreement.differences]
    )


def test_a_puppet_that_goes_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = twin_stage(KERNEL, only=NAMES - GUARDS)
    command, left = stage.puppet.command, iter(range(50))

    def goes(slot: int, line: str) -> Answer:
        if next(left, None) is None:
            raise PuppetGone("killed")
        return command(slot, line)

    monkeypatch.setattr(stage.puppet, "command", goes)
    with pytest.raises(PuppetGone):
        search(stage, Budget(400, None), 1)


def test_operations_of_which_none_can_begin() -> None:
    with pytest.raises(UsageError, match="none of these operations can begin"):
        search(twin_stage(KERNEL, only=frozenset({"write"})), Budget(400, None), 1)
