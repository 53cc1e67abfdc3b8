# SPDX-License-Identifier: GPL-2.0-or-later
"""What a scenario on single addresses is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ptscope.bench.looks import Expect
from ptscope.bench.stage import Stage, Step
from ptscope.bench.timing import Action


@dataclass(frozen=True)
class Scenario:
    """One scenario, played on many addresses in a row. `stride` gives the bytes between samples.

    `tables` is how many tables have to be made for a sample, `faults` how many faults the kernel
    counts for it, None: that depends on the kernel or the CPU, and what was seen is told.
    `neighbour` is expected after it of the page that follows, for what maps more than one.
    `waits`: the thread gives up the CPU in it, so that is no disturbance. `most`: samples a round,
    the first `firsts` of which are apart.
    `alters`: the setting of the whole machine that is changed meanwhile, so it has to be asked for.
    `changes_vmas`: see `Setting.rest`. `again`: these are done before each sample, and all of them
    are on one page; walks prove what was before the first and after the last, and the kernel's
    count of faults that each of them was one.
    """

    name: str
    title: str
    stride: Callable[[Stage], int]
    steps: tuple[Step, ...]
    action: Action
    before: Expect
    after: Expect
    tables: int | None = 0
    faults: int | None = 1
    result: int | None = None
    in_child: bool = False
    waits: bool = False
    neighbour: Expect | None = None
    most: int = 1 << 30
    firsts: int = 1
    alters: str | None = None
    changes_vmas: bool = False
    again: tuple[Action, ...] = ()
