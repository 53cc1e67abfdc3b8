# SPDX-License-Identifier: GPL-2.0-or-later
"""`make bench-repeat`: everything `ptscope bench` measures, twice from the same state, compared.

Twice a guest whose clock counts instructions boots and measures (tests/guest/benchall.py), told by
its command line, so that nothing comes to it from outside, at a time that is another one then.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from . import kernels, package, paths, prepare
from .bench import columns
from .errors import NoResult, UsageError
from .guest import Guest
from .plan import MATRIX_BENCH
from .prepare import Options
from .qemu import Machine
from .say import say
from .scratch import scratch_dir

RUNS = 2
LIMIT = 0.001
"""How far medians may be apart, as a part of the first."""
SECONDS = 900.0
FOLDER = paths.BUILD / "repeat"
JOB = ("python3", "/tests/guest/benchall.py", "alone")
HEADS = ("kernel", "scenarios", "apart", "most", "of")

Document = Mapping[str, Any]


@dataclass(frozen=True)
class Pair:
    """Two medians of a scenario, in ns."""

    name: str
    first: float
    then: float

    @property
    def apart(self) -> float:
        """By which part of the first."""
        return abs(self.then - self.first) / self.first


def run_repeat(names: Sequence[str], jobs: int) -> int:
    """Measure, print a row a kernel, keep the JSON in build/repeat; 0 when all agree, else 1.

    Raises `UsageError` for a kernel that `ptscope bench` is not played on.
    """
    for name in names:
        if name not in MATRIX_BENCH:
            raise UsageError(
                f"there is no bench on {name!r}", f"the kernels are: {', '.join(MATRIX_BENCH)}"
            )
    package.build()
    rows: list[tuple[str, ...]] = [HEADS]
    faults: list[str] = []
    for name in names or MATRIX_BENCH:
        runs = _measure(kernels.kernel(name), jobs)
        FOLDER.mkdir(parents=True, exist_ok=True)
        (FOLDER / f"{name}.json").write_text(json.dumps(runs, indent=1) + "\n")
        cells, found = compared(name, runs)
        rows.append(cells)
        faults += found
    print(columns(rows, lambda i: 1 <= i <= 3))
    print("".join(f"{text}\n" for text in faults), end="")
    return 1 if faults else 0


def compared(name: str, runs: Sequence[Document]) -> tuple[tuple[str, ...], list[str]]:
    """A row of the table for two runs of a kernel, and what is wrong with them.

    Raises `NoResult` when a scenario has a figure in one of them only.
    """
    pairs = list(_pairs(runs))
    grain = runs[0]["grain"]
    apart = [
        f"APART {name} {pair.name}: {pair.first:.0f} ns, then {pair.then:.0f} ns"
        for pair in pairs
        if abs(pair.then - pair.first) > LIMIT * pair.first + grain
    ]
    errors = [f"ERROR {name} {text}" for run in runs for text in run["errors"]]
    most = max(pairs, key=lambda pair: pair.apart)
    cells = (name, str(len(pairs)), str(len(apart)), f"{most.apart:.4%}", most.name)
    return cells, apart + errors


def _pairs(runs: Sequence[Document]) -> Iterator[Pair]:
    """What both runs have a figure of; raises `NoResult` when only one has."""
    first, then = (run["medians"] for run in runs)
    for name, median in first.items():
        if (median is None) != (then[name] is None):
            raise NoResult(f"{name} has a figure in one run only")
        if median is not None:
            yield Pair(name, median, then[name])


def _measure(kernel: kernels.Kernel, jobs: int) -> list[Document]:
    """What each run printed."""
    bootable = prepare.debian(kernel.name)
    contents = prepare.contents(bootable)
    guests: list[Guest] = []
    with scratch_dir("repeat") as scratch, ThreadPoolExecutor(jobs) as pool:
        machines = [
            prepare.machine(
                bootable,
                Options(
                    variant=kernel.default_variant,
                    memory=kernel.memory,
                    icount=True,
                    init=(f"vm.job={','.join(JOB)}",),
                    name=f"repeat-{kernel.name}-{number + 1}",
                    contents=contents,
                ),
                scratch,
            )
            for number in range(RUNS)
        ]
        try:
            return list(pool.map(partial(_run, guests=guests), machines))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for each in guests:
                each.end()
            raise


def _run(machine: Machine, guests: list[Guest]) -> Document:
    """Boot, and have the figures."""
    guest = Guest(machine)
    guests.append(guest)
    say(f"booting {machine.kernel_release}, {machine.variant.name}, on {machine.accel}")
    with guest:
        guest.expect_module("loaded")
        done = guest.own_job.wait(SECONDS)
        guest.check()
    if done.status:
        raise NoResult(f"the guest's program failed:\n{done.err.decode(errors='replace')}")
    document: Document = json.loads(done.out)
    return document
