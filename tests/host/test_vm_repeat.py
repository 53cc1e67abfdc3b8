# SPDX-License-Identifier: GPL-2.0-or-later
"""What `make bench-repeat` makes of two runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from vm import repeat
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
        repeat.run_repeat(["debian-6.1-arm64"], 2)
