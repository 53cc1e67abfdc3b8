# SPDX-License-Identifier: GPL-2.0-or-later
"""`make model-long`: `ptscope model` for many steps in a guest of each kernel, and one table."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import kernels, package, paths, prepare
from .bench import columns
from .errors import UsageError, VmError
from .guest import Guest
from .plan import MODEL_RUNS
from .prepare import Options
from .say import say, warn
from .scratch import scratch_dir

SECONDS_A_STEP = 1.0
"""No emulated guest is that slow; a run that takes longer hangs."""
FOLDER = paths.BUILD / "model"
HUGETLB_PAGES = 48
# Swap space on zram, which is built in or a module; nobody else who clears accessed bits (DAMON).
PREPARE = (
    "damon=/sys/module/damon_stat/parameters/enabled; [ ! -e $damon ] || echo N >$damon;"
    " [ -e /sys/block/zram0 ] || modprobe zram;"
    " echo 128M >/sys/block/zram0/disksize && mkswap /dev/zram0 >/dev/null && swapon /dev/zram0"
)
HEADS = (
    "kernel", "release", "variant", "levels", "seed", "steps", "sequences", "compared", "choices",
    "seconds", "result",
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One guest and what it came to; without a document, what went wrong instead."""

    kernel: kernels.Kernel
    variant: str
    release: str
    seed: int
    seconds: float
    document: dict[str, Any] | None
    problem: str = ""

    @property
    def good(self) -> bool:
        """It took its steps, and the kernel did what the model predicts."""
        return self.document is not None and self.document["differences"] is None

    def cells(self) -> tuple[str, ...]:
        """Its row of the table."""
        start = (self.kernel.name, self.release, self.variant)
        levels = str(self.kernel.levels[self.variant])
        if self.document is None:
            return (*start, levels, str(self.seed), *("-",) * 4, f"{self.seconds:.0f}", "FAILED")
        counts = (self.document[key] for key in ("steps", "sequences", "compared", "choices"))
        result = "agrees" if self.good else f"DIFFERS after {self.document['found_after']}"
        figures = (f"{count:,}" for count in counts)
        return (*start, levels, str(self.seed), *figures, f"{self.seconds:.0f}", result)

    def difference(self) -> Iterator[str]:
        """The shortest sequence that shows it, and what was predicted."""
        assert self.document is not None
        yield f"DIFFERS {self.kernel.name} {self.variant}: build/model/{_file(self).name}"
        for number, step in enumerate(self.document["sequence"], 1):
            yield f"{number:>4} process {step['process']} {step['step']}: {step['outcome']}"
        for row in self.document["differences"]:
            yield f"     {row['address']} level {row['level']}: {row['predicted']}"
            yield f"     seen: {row['seen']} ({row['raw']})"


def run_model(names: Sequence[str], steps: int | None, seed: int, jobs: int) -> int:
    """Run them, print the table, keep the JSON in build/model; 0 when all agree, else 1.

    Raises `UsageError` for a kernel that is not in `MODEL_RUNS`.
    """
    known = {name for name, _, _ in MODEL_RUNS}
    for name in names:
        if name not in known:
            raise UsageError(
                f"the model has no run on {name!r}", f"the kernels are: {', '.join(sorted(known))}"
            )
    package.build()
    guests: set[Guest] = set()
    with ThreadPoolExecutor(jobs) as pool:
        futures = [
            pool.submit(_run, kernels.kernel(name), variant, steps or usual, seed, guests)
            for name, variant, usual in MODEL_RUNS
            if not names or name in names
        ]
        try:
            runs = [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for guest in list(guests):
                guest.end()
            raise
    rows = [HEADS, *(run.cells() for run in runs)]
    print(columns(rows, lambda i: 4 <= i < len(HEADS) - 1))
    for run in runs:
        if run.problem:
            print(f"FAILED {run.kernel.name} {run.variant}: {run.problem}")
        elif not run.good:
            print("\n".join(run.difference()))
    return 0 if all(run.good for run in runs) else 1


def _run(
    kernel: kernels.Kernel, variant: str, steps: int, seed: int, guests: set[Guest]
) -> Run:
    start = time.monotonic()
    release, document, problem = "-", None, ""
    try:
        bootable = prepare.debian(kernel.name)
        release = bootable.release
        with scratch_dir("model") as scratch:
            document = _in_guest(bootable, variant, steps, seed, scratch, guests)
    except VmError as error:
        problem = error.cause
        warn(f"{kernel.name} {variant}: {problem}")
    run = Run(kernel, variant, release, seed, time.monotonic() - start, document, problem)
    if document is not None:
        FOLDER.mkdir(parents=True, exist_ok=True)
        _file(run).write_text(json.dumps(document, indent=1) + "\n")
    return run


def _file(run: Run) -> Path:
    return FOLDER / f"{run.kernel.name}-{run.variant}-{run.seed}.json"


def _in_guest(
    bootable: prepare.Bootable,
    variant: str,
    steps: int,
    seed: int,
    scratch: Path,
    guests: set[Guest],
) -> dict[str, Any]:
    kernel = bootable.kernel
    options = Options(
        variant=variant,
        memory=kernel.memory,
        init=(f"vm.hugepages={HUGETLB_PAGES}",),
        append=("numa=fake=2",) if kernel.arch == "amd64" else (),
        name=f"model-{kernel.name}-{variant}",
        contents=prepare.contents(bootable),
    )
    machine = prepare.machine(bootable, options, scratch)
    say(f"booting {machine.kernel_release}, {variant}, {steps} steps, on {machine.accel}")
    line = f"ptscope model --source module --json --steps {steps} --seed {seed}"
    guest = Guest(machine)
    guests.add(guest)
    try:
        with guest:
            guest.expect_module("loaded")
            prepared = guest.run(PREPARE)
            if prepared.status:
                raise VmError(f"no swap space: {prepared.err.decode(errors='replace')}")
            done = guest.run(line, timeout=60 + steps * SECONDS_A_STEP)
            guest.finish()
    finally:
        guests.discard(guest)
    try:
        document: dict[str, Any] = json.loads(done.out)
    except ValueError:
        # Whatever it came to, it has no result.
        said = done.err.decode(errors="replace").strip()
        raise VmError(f"{line}: status {done.status}: {said}") from None
    return document

