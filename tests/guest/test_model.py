# SPDX-License-Identifier: GPL-2.0-or-later
"""The model against a real kernel, through the module: it agrees, and it finds planted faults.

How many steps the first test takes is what the guest's row says (PTSCOPE_VM_MODEL).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import command
import plant_model
import pytest
import witness
from ptscope.model.observe import View
from ptscope.model.probe import HUGETLB_WANTED
from ptscope.model.search import Budget, Found, search
from ptscope.model.session import open_session
from ptscope.views.model import render
from test_unprivileged import LOSSES, without

STEPS = int(os.environ.get("PTSCOPE_VM_MODEL") or 300)
SEED = 1
PAGEMAP_STEPS = 150
COMMAND_STEPS = 30
PLANTED_STEPS = 2000
HUGETLB = Path(f"/sys/kernel/mm/hugepages/hugepages-{witness.HUGE >> 10}kB/nr_hugepages")
DAMON = Path("/sys/module/damon_stat/parameters/enabled")

AGREED: dict[int, int] = {}
"""Steps that a seed was seen to agree for."""


@pytest.fixture(scope="module", autouse=True)
def pool(swap: None) -> Iterator[None]:
    """Swap space, huge pages as many as the model wants to be sure of, and nobody who clears
    accessed bits meanwhile."""
    settings = {HUGETLB: str(HUGETLB_WANTED)}
    if DAMON.exists():
        settings[DAMON] = "N"
    before = {path: path.read_text() for path in settings}
    for path, text in settings.items():
        path.write_text(text)
    yield
    for path, text in before.items():
        path.write_text(text)


def searched(
    steps: int,
    seed: int = SEED,
    source: str = "module",
    view: Callable[[View], View] = lambda view: view,
    rule: AbstractContextManager[None] | None = None,
    shrink_seconds: float = 60.0,
) -> tuple[Found, str]:
    """What a search finds, and in words."""
    with open_session(source, view=view) as session, rule or nullcontext():
        found = search(session.stage, Budget(steps, None), seed, shrink_seconds=shrink_seconds)
        assert session.source == source
        return found, render(session, found, seed, 0.0)


def agrees(steps: int, seed: int = SEED) -> None:
    """The kernel does what the model predicts for so many steps of a seed."""
    if AGREED.get(seed, 0) < steps:
        found, text = searched(steps, seed)
        print(text)
        assert found.disagreement is None, text
        AGREED[seed] = steps


def test_every_entry_is_as_predicted() -> None:
    agrees(STEPS)


def test_through_pagemap() -> None:
    found, text = searched(PAGEMAP_STEPS, source="pagemap")
    assert found.disagreement is None, text


def is_found(found: Found, text: str) -> None:
    """A fault was found, where the same steps without it show nothing."""
    assert found.disagreement is not None, text
    assert found.first_after is not None
    assert found.repeated, text
    agrees(found.first_after)


@pytest.mark.skipif(witness.MACHINE != "x86_64", reason="they flip bits of x86's entries")
@pytest.mark.parametrize("name", list(plant_model.SOURCES))
def test_a_fault_in_what_is_seen_is_found(name: str) -> None:
    is_found(*searched(PLANTED_STEPS, view=plant_model.planted(name), shrink_seconds=0))


@pytest.mark.parametrize("name", list(plant_model.RULES))
def test_a_wrong_rule_is_found(name: str) -> None:
    rule = plant_model.wrong_rule(name)
    is_found(*searched(PLANTED_STEPS, rule=rule, shrink_seconds=0))


def test_the_command_says_what_it_did() -> None:
    result = command.ptscope("model", "--steps", COMMAND_STEPS, "--seed", SEED, "--json")
    assert result.status == 0, result.out
    assert result.json["steps"] == COMMAND_STEPS
    assert result.json["source"] == "module"
    assert result.json["compared"] > 0
    assert result.json["differences"] is None


@pytest.mark.skipif(witness.MACHINE != "x86_64", reason="it flips a bit of x86's entries")
def test_the_command_shows_prediction_and_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    planted = partial(open_session, view=plant_model.planted("permission_flipped"))
    monkeypatch.setattr("ptscope.model.session.open_session", planted)
    result = command.ptscope("model", "--steps", PLANTED_STEPS, "--seed", SEED)
    assert result.status == 1, result.out
    lines = result.out.splitlines()
    assert lines[0] == "The kernel did not do what the model predicts."
    # Shrunk: there is a mapping, a touch of it, and what has to come between at most.
    steps = [line for line in lines if line.startswith("   ") and " process " in line]
    assert steps[0].startswith("   1 process 1 mmap(")
    assert 2 <= len(steps) <= 4, result.out
    assert any(line.startswith("  predicted ") for line in lines)
    assert any(line.startswith("  seen ") for line in lines)


@pytest.mark.parametrize("name", LOSSES)
def test_without_privilege(name: str) -> None:
    result = without(LOSSES[name], "model", "--steps", 1, "--source", "module")
    assert result.status == 4
    assert "remedy: " in result.err


def test_frames_are_hidden_from_nobody() -> None:
    result = without(LOSSES["nobody"], "model", "--steps", 1)
    assert result.status == 4
    assert "frame numbers are hidden in pagemap" in result.err
    assert "remedy: run it as root" in result.err
