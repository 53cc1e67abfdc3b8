# SPDX-License-Identifier: GPL-2.0-or-later
"""Two runs of everything that `ptscope bench` measures, from the same state of a guest."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from vm import kernels, repeat
from vm.errors import NoResult, UsageError


def run(**changed: float | None) -> dict[str, Any]:
    """A run, with medians of some scenarios as given."""
    medians = {"read": 2906.0, "write": 6674.0, "hit": None, **changed}
    return {"grain": 2.0, "medians": medians, "errors": []}


def test_what_is_the_same_agrees() -> None:
    cells, faults = repeat.compared("k", [run(), run(write=6675.0)])
    assert cells == ("k", "2", "0", "0.0150%", "write")
    assert faults == []


def test_more_than_a_thousandth_is_apart() -> None:
    _, faults = repeat.compared("k", [run(), run(read=2906.0 * 1.001 + 3)])
    assert faults == ["APART k read: 2906 ns, then 2912 ns"]


def test_a_sample_that_did_not_happen_is_an_error() -> None:
    _, faults = repeat.compared("k", [run(), {**run(), "errors": ["write: no leaf"]}])
    assert faults == ["ERROR k write: no leaf"]


def test_a_figure_in_one_run_only_is_an_error() -> None:
    with pytest.raises(NoResult, match="hit"):
        repeat.compared("k", [run(), run(hit=3.0)])


def test_a_kernel_without_a_bench_is_named() -> None:
    with pytest.raises(UsageError, match="no bench on"):
        repeat.run_repeat(["debian-5.10-amd64"], 2)


def test_two_runs_agree(capsys: pytest.CaptureFixture[str]) -> None:
    """All of it, really measured; the figures are kept."""
    assert repeat.run_repeat([kernels.DEFAULT], 1) == 0
    assert kernels.DEFAULT in capsys.readouterr().out
    first, then = json.loads((repeat.FOLDER / f"{kernels.DEFAULT}.json").read_text())
    there = [name for name, median in first["medians"].items() if median is not None]
    assert len(there) > 110
    assert first["medians"].keys() == then["medians"].keys()
