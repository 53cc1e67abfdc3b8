# SPDX-License-Identifier: GPL-2.0-or-later
"""What `make bench` makes of what was measured: bounds that hold, and bounds that do not."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import vmpath  # noqa: F401
from ptscope.bench import host
from vm import bench

sys.path.append(str(Path(__file__).resolve().parents[1] / "guest"))
import speed


def cost(scenario: str, method: str, per_page: float, lock: int = 1000) -> speed.Cost:
    return speed.Cost(scenario, method, 1000, round(1000 * per_page), 0, 8000, lock)


def measured(*costs: speed.Cost, release: str = "6.12.1", quiet: bool = True) -> speed.Measured:
    return speed.Measured(
        release, quiet, 2.0, {(each.scenario, each.method): each for each in costs}, ()
    )


BOUND = speed.Bound("a page", "dense", 5.5, "page")
RATIO = speed.Ratio("than pagemap", "dense", "pagemap", {(6, 7): 20.0, (6, 12): 40.0})


@pytest.mark.parametrize(("per_page", "holds"), [(5.5, True), (5.6, False)])
def test_a_bound_holds_up_to_its_value(per_page: float, holds: bool) -> None:
    assert BOUND.holds(measured(cost("dense", "dump", per_page))) is holds
    assert BOUND.holds(measured()) is None


def test_a_walk_that_takes_a_third_more_breaks_the_bound() -> None:
    bound = next(each for each in speed.BOUNDS if each.scenario == "dense")
    now = measured(cost("dense", "dump", 5.0))
    longer = measured(cost("dense", "dump", 5.0 * 1.3))
    assert bound.holds(now)
    assert not bound.holds(longer)


@pytest.mark.parametrize(
    ("release", "other", "holds"),
    [
        ("6.12.5", 200, True),
        ("6.12.5", 199, False),
        ("6.8.0", 100, True),
        ("6.8.0", 99, False),
        ("7.2.1", 199, False),
        ("6.1.0", 1, None),
    ],
)
def test_a_ratio_is_that_of_the_kernel(release: str, other: float, holds: bool | None) -> None:
    both = measured(cost("dense", "dump", 5), cost("dense", "pagemap", other), release=release)
    assert RATIO.holds(both) is holds


def test_figures_of_a_guest_that_was_busy_are_not_judged() -> None:
    document = speed.report(measured(cost("dense", "dump", 50), quiet=False))
    assert document["counts_instructions"] is False
    bounds = document["bounds"]
    assert isinstance(bounds, list)
    assert {bound["holds"] for bound in bounds} == {None}


def test_the_table_says_what_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    text = bench._table(
        "some-kernel",
        speed.report(measured(cost("dense", "dump", 6.0), cost("dense", "pagemap", 240))),
    )
    lines = text.splitlines()
    (bound,) = (line for line in lines if "a page of a populated range" in line)
    assert bound.endswith("  DOES NOT HOLD")
    (other,) = (line for line in lines if line.split()[:2] == ["dense", "pagemap"])
    assert other.split()[-2:] == ["240.00", "40.0"]


def test_the_host_measures_what_it_starts() -> None:
    took = iter([0.3, 0.14, 0.2] * 20)

    def start(arguments: Sequence[str]) -> float:
        return next(took)

    figures = host.starts(start)
    assert [figure.value for figure in figures] == [0.14, 0.14]
    assert all(figure.holds for figure in figures)
    slow = host.starts(lambda arguments: 0.151)
    assert not any(figure.holds for figure in slow)


def test_commands_start_without_heavy_imports() -> None:
    """Time depends on the machine; which modules are imported does not."""
    import subprocess

    heavy = {"rich", "psutil", "cffi", "pycparser", "hypothesis", "pytest"}
    for arguments in host.STARTED:
        script = (
            "import runpy, sys\n"
            f"sys.argv = ['ptscope', *{arguments!r}]\n"
            "try: runpy.run_module('ptscope', run_name='__main__')\n"
            "except SystemExit: pass\n"
            "print(*sys.modules, file=sys.stderr)"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        )
        assert not heavy & set(done.stderr.split()), arguments


def test_the_least_repetition_counts() -> None:
    line = {
        "scenario": "dense", "method": "dump", "units": 10, "bytes": 1, "longest_lock_ns": 84,
        "ns": [300, 200, 240],
    }  # fmt: skip
    made = speed._cost(line, 2.0)
    assert made == replace(made, instructions=100, median=120, longest_lock=42)
    assert made.per_unit == 10
