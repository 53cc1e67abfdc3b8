# SPDX-License-Identifier: GPL-2.0-or-later
"""The path stays short: instructions counted by a guest whose clock does so (`speed.py`).

The figures repeat to 0.1 %, so a walk that has become longer fails here.
"""

from __future__ import annotations

import pytest
import speed


@pytest.fixture(scope="module")
def measured() -> speed.Measured:
    return speed.measure()


def test_the_clock_counts_instructions(measured: speed.Measured) -> None:
    assert measured.quiet, "something else ran all the time"
    assert measured.ns_per_instruction == pytest.approx(speed.NS_PER_INSTRUCTION, rel=0.01)


@pytest.mark.parametrize("bound", speed.BOUNDS, ids=lambda bound: bound.name)
def test_bound(measured: speed.Measured, bound: speed.Bound | speed.Ratio) -> None:
    value = bound.value(measured)
    if value is None:
        other = (bound.scenario, bound.method)
        assert other in measured.missing, f"nothing was measured of {other}"
        pytest.skip("PAGEMAP_SCAN came with Linux 6.7")
    print(f"{bound.name}: {value:,.2f}, {bound.limit(measured)}")
    assert bound.holds(measured), f"{value:,.2f} is not {bound.limit(measured)}"


def test_repetitions_agree(measured: speed.Measured) -> None:
    """What is compared with bounds is no lucky repetition."""
    for cost in measured.costs.values():
        assert cost.median <= 1.05 * cost.instructions, cost
