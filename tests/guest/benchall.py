# SPDX-License-Identifier: GPL-2.0-or-later
"""Everything that `ptscope bench` can measure, once, with few samples.

`python3 benchall.py` gives the result on stdout (pickle). Each run is a process of its own, so that
the address space it is measured in has the same history.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from ptscope.bench.clock import calibrate
from ptscope.bench.conditions import Conditions, gather
from ptscope.bench.faults import FAULTS
from ptscope.bench.looks import Eyes
from ptscope.bench.memory import Geometry
from ptscope.bench.remap_run import measure_remap
from ptscope.bench.remaps import REMAPS
from ptscope.bench.result import Measured
from ptscope.bench.run import Setting, measure
from ptscope.bench.timing import pinned
from ptscope.bench.walks import WALKS
from ptscope.source.module import ModuleSource

SAMPLES, FEW, ROUNDS = 9, 7, 3
TIMEOUT = 600.0
QUIET = {
    "PYTHONHASHSEED": "0",
    # The interpreter maps nothing while it measures: all its memory comes from a heap that is large
    # from the beginning. What a call on VMAs costs depends on how many there are, and where.
    "PYTHONMALLOC": "malloc",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TOP_PAD_": str(64 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
}
SETTLED, TURNS, PATIENCE = 10, 20_000, 120


@dataclass(frozen=True)
class Bench:
    """All that was measured, and how."""

    conditions: Conditions
    measured: list[Measured]

    def named(self, name: str) -> Measured:
        """One of them."""
        return next(each for each in self.measured if each.name == name)


def setting() -> Setting:
    """How it is measured, in this process."""
    source = ModuleSource.open()
    return Setting(
        clock=calibrate(),
        eyes=Eyes(source),
        geometry=Geometry.of(source.layout),
        cpu=0,
        serving_cpu=-1,
        samples=SAMPLES,
        rounds=ROUNDS,
    )


def sizes(geometry: Geometry) -> list[int]:
    """Few and small: an emulated CPU makes one page ready after the other."""
    page = geometry.page
    return [4 * page, 16 * page, 64 * page, geometry.pmd, 2 * geometry.pmd]


def settle() -> None:
    """Wait until the kernel has done what it does after its boot, which would be measured too.

    It has when a loop takes the same time again and again, but for the timer's interrupts.
    """
    last, same = 0, 0
    for _ in range(PATIENCE):
        start = time.perf_counter_ns()
        for _ in range(TURNS):
            pass
        took = time.perf_counter_ns() - start
        same = same + 1 if abs(took - last) < last / 50 else 0
        if same >= SETTLED:
            return
        last = took
        time.sleep(0.1)


def everything() -> Bench:
    """All scenarios."""
    settle()
    with pinned(0):
        how = setting()
        measured = [measure(row, how) for row in (*FAULTS, *WALKS)]
        few = replace(how, samples=FEW)
        for row in REMAPS:
            wanted = [how.geometry.pud] if row.name == "move-pud" else sizes(how.geometry)
            measured += measure_remap(row, wanted, few)
        return Bench(gather(how.clock, how.geometry, "module", 0), measured)


def in_a_process() -> Bench:
    """The same, in a process of its own whose addresses are those of the next one too."""
    randomize = Path("/proc/sys/kernel/randomize_va_space")
    before = randomize.read_text()
    randomize.write_text("0")
    try:
        done = subprocess.run(
            [sys.executable, __file__],
            stdout=subprocess.PIPE,
            check=True,
            timeout=TIMEOUT,
            env={**os.environ, **QUIET},
        )
    finally:
        randomize.write_text(before)
    bench = pickle.loads(done.stdout)
    assert isinstance(bench, Bench)
    return bench


if __name__ == "__main__":
    # Not __main__: whoever reads the pickle knows the classes by the module's name.
    import benchall

    sys.stdout.buffer.write(pickle.dumps(benchall.everything()))
