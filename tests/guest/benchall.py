# SPDX-License-Identifier: GPL-2.0-or-later
"""Everything that `ptscope bench` can measure, once, with few samples.

`python3 benchall.py` gives the result on stdout (pickle). Each run is a process of its own, so that
the address space it is measured in has the same history. `python3 benchall.py moves N` does so for
moves alone, with N more VMAs. `python3 benchall.py alone` makes all ready itself, and gives figures
as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import witness
from ptscope.bench import memory
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

RCU_NS = 30_000_000
SAMPLES, FEW, ROUNDS = 15, 7, 3
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
HUGETLB = Path(f"/sys/kernel/mm/hugepages/hugepages-{witness.HUGE >> 10}kB/nr_hugepages")
RANDOMIZE = Path("/proc/sys/kernel/randomize_va_space")
ZRAM = Path("/sys/block/zram0")
SETTLED, TURNS, PATIENCE = 10, 20_000, 120


@dataclass(frozen=True)
class Bench:
    """All that was measured, and how."""

    conditions: Conditions
    measured: list[Measured]

    def named(self, name: str) -> Measured:
        """One of them."""
        return next(each for each in self.measured if each.name == name)


@contextlib.contextmanager
def ground() -> Iterator[None]:
    """Swap, and pages of hugetlbfs."""
    if "zram0" not in Path("/proc/swaps").read_text():
        if not ZRAM.exists():
            subprocess.run(["modprobe", "zram"], check=True)
        (ZRAM / "disksize").write_text(str(64 << 20))
        subprocess.run(["mkswap", "/dev/zram0"], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["swapon", "/dev/zram0"], check=True)
    before = HUGETLB.read_text()
    HUGETLB.write_text(str(2 * SAMPLES))
    yield
    HUGETLB.write_text(before)


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
        rest=RCU_NS,
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


def crowd(vmas: int) -> None:
    """So many more VMAs, by the parity of a page."""
    page = witness.PAGE
    place = memory.map_memory(vmas * page, memory.ANON, memory.PROT_NONE) if vmas else 0
    for number in range(0, vmas, 2):
        memory.call("mprotect", place + number * page, page, memory.PROT_READ)


def moves(vmas: int) -> Bench:
    """Moves from one table to another, in a process of so many more VMAs."""
    settle()
    crowd(vmas)
    with pinned(0):
        how = replace(setting(), samples=FEW)
        measured = [
            each
            for row in REMAPS
            if row.name in ("move-pte", "move-pmd")
            for each in measure_remap(row, sizes(how.geometry), how)
        ]
        return Bench(gather(how.clock, how.geometry, "module", 0), measured)


@contextlib.contextmanager
def quiet() -> Iterator[dict[str, str]]:
    """The environment of a process whose addresses are those of the next one too."""
    before = RANDOMIZE.read_text()
    RANDOMIZE.write_text("0")
    try:
        yield {**os.environ, **QUIET}
    finally:
        RANDOMIZE.write_text(before)


def in_a_process(*words: str) -> Bench:
    """The same, or what the words say, in a process of its own."""
    with quiet() as environment:
        done = subprocess.run(
            [sys.executable, __file__, *words],
            stdout=subprocess.PIPE,
            check=True,
            timeout=TIMEOUT,
            env=environment,
        )
    bench = pickle.loads(done.stdout)
    assert isinstance(bench, Bench)
    return bench


def figures(bench: Bench) -> dict[str, object]:
    """What two runs are compared by: medians in ns by scenario, None of what has none."""
    return {
        "grain": bench.conditions.facts["clock_ns_per_tick"],
        "medians": {
            each.name: statistics.median(each.values) if each.values and not each.refused else None
            for each in bench.measured
        },
        "errors": [f"{each.name}: {each.errors[0]}" for each in bench.measured if each.errors],
    }


def alone() -> None:
    """Measure in this process, which is the first of its kind since the boot, and print."""
    if not QUIET.items() <= os.environ.items():
        # What sets it is read when a program starts.
        RANDOMIZE.write_text("0")
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **QUIET})
    with ground():
        print(json.dumps(figures(everything())), flush=True)


if __name__ == "__main__":
    # Not __main__: whoever reads the pickle knows the classes by the module's name.
    import benchall

    match sys.argv[1:]:
        case ["alone"]:
            benchall.alone()
        case ["moves", vmas]:
            sys.stdout.buffer.write(pickle.dumps(benchall.moves(int(vmas))))
        case _:
            sys.stdout.buffer.write(pickle.dumps(benchall.everything()))
