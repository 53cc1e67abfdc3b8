# SPDX-License-Identifier: GPL-2.0-or-later
"""`make matrix`: the module for every kernel of the table, and the guest tests in every variant."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from . import junit, kernels, package, paths, proc
from .errors import Missing, UsageError, VmError
from .kernels import DEFAULT, Kernel
from .plan import ANY_KERNEL, ANY_MACHINE, ANY_VARIANT, MAIN, Row, matrix_rows
from .qemu import Machine
from .say import say, warn
from .scratch import scratch_dir
from .testrun import Result, Runner, failed_lines, judge, machines

PAGE_SIZES = {"arm64-16k": "16K"}
"""What kernels with other pages than 4K end with."""


@dataclass(frozen=True)
class Choice:
    """What a row of `MAIN` runs."""

    name: str
    why: str
    """Explains the name below the table."""


CHOICES = {
    (): Choice("all tests", ""),
    (ANY_MACHINE,): Choice(
        "arch tests", f"what all machines show alike is left to {DEFAULT}"
    ),
    (ANY_MACHINE, ANY_KERNEL): Choice(
        "kernel tests", "what all kernels show alike is left to the architecture's first kernel"
    ),
    (ANY_MACHINE, ANY_KERNEL, ANY_VARIANT): Choice(
        "variant tests", "what all variants show alike is left to the kernel's first variant"
    ),
}
"""By the marks a row leaves out."""


@dataclass(frozen=True)
class Target:
    """One guest of the matrix."""

    kernel: Kernel
    row: Row

    @property
    def geometry(self) -> str:
        """Variant, levels and page size, for people."""
        size = next((s for end, s in PAGE_SIZES.items() if self.kernel.name.endswith(end)), "4K")
        return f"{self.row.variant}, {self.kernel.levels[self.row.variant]} levels, {size}"

    @property
    def what(self) -> str:
        """Which tests, and on how many CPUs."""
        if self.row.scenario == MAIN:
            return CHOICES[self.row.without].name
        cpus = f", {self.row.smp} CPUs" if self.row.smp > 1 else ""
        return f"{self.row.scenario}{cpus}"

    def names(self) -> set[str]:
        """What it can be chosen by."""
        kernel = self.kernel.name
        return {
            kernel,
            kernel.removeprefix("debian-"),
            self.kernel.arch,
            self.row.name,
            self.row.variant,
            self.row.scenario,
        }


@dataclass(frozen=True)
class Outcome:
    """A target and what it came to; without a result its kernel is missing."""

    target: Target
    result: Result | None
    release: str = ""
    """`uname -r`, or what is missing."""

    @property
    def good(self) -> bool:
        """Whether it is there and showed all it should."""
        return self.result is not None and self.result.good


def select(names: Sequence[str]) -> list[Target]:
    """The targets chosen by all of ``names`` of one kind; none means all.

    Several names of kernels (or variants, ...) add up; names of different kinds narrow each other
    down. Raises `UsageError` for names that choose nothing. Only the whole matrix leaves a test
    to another of its rows.
    """
    everything = [
        Target(kernel, row)
        for kernel in kernels.KERNELS.values()
        for row in matrix_rows(kernel, sparing=not names)
    ]
    if not names:
        return everything
    known = {name for target in everything for name in target.names()}
    unknown = sorted(set(names) - known)
    if unknown:
        raise UsageError(
            f"nothing in the matrix is called {', '.join(unknown)}",
            f"there are: {', '.join(sorted(known))}",
        )
    variants = {target.row.variant for target in everything} & set(names)
    scenarios = {target.row.scenario for target in everything} & set(names)
    others = set(names) - variants - scenarios
    among = [target for target in everything if not others or target.names() & others]
    chosen = [
        target
        for target in among
        if (not variants or target.row.variant in variants)
        and (not scenarios or target.row.scenario in scenarios)
    ]
    if not chosen:
        raise UsageError(
            f"no row of the matrix is all of: {', '.join(names)}",
            f"of {', '.join(sorted(others)) or 'all kernels'} there are: "
            f"{', '.join(target.row.name for target in among)}",
        )
    return chosen


def table(outcomes: Sequence[Outcome]) -> str:
    """The table, what failed and was skipped below it, and the counts alone on the last line."""
    heads = (
        "kernel", "release", "arch", "geometry", "run", "passed", "failed", "skipped", "seconds"
    )  # fmt: skip
    rows = []
    for outcome in outcomes:
        target, result = outcome.target, outcome.result
        counts = (
            ("missing", "-", "-", "-")
            if result is None
            else (
                str(result.counts.passed),
                str(result.counts.failed),
                str(result.counts.skipped),
                f"{result.seconds:.0f}",
            )
        )
        release = "-" if result is None else outcome.release
        kernel = target.kernel
        rows.append((kernel.name, release, kernel.arch, target.geometry, target.what, *counts))
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
    lines = [
        "  ".join(
            cell.rjust(width) if i >= 5 else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (heads, *rows)
    ]
    ran = {outcome.target.what for outcome in outcomes}
    lines += [
        f"{each.name}: {each.why}" for each in CHOICES.values() if each.why and each.name in ran
    ]
    results = [outcome.result for outcome in outcomes if outcome.result is not None]
    lines += failed_lines(results)
    missing = {o.target.kernel.name: o.release for o in outcomes if o.result is None}
    lines += [f"MISSING {name}: {why}" for name, why in missing.items()]
    # The same test is skipped for the same reason in many runs: one line for each reason.
    reasons: dict[tuple[str, str], list[str]] = {}
    for result in results:
        for name, why in result.skips:
            reasons.setdefault((name, why), []).append(result.name)
    for (name, why), runs in reasons.items():
        lines.append(f"skipped {name}: {why} ({', '.join(runs)})")
    total = sum((result.counts for result in results), junit.Counts())
    return "\n".join([*lines, str(total)])


@dataclass(frozen=True)
class _Prepared:
    """A kernel ready to boot, or why not."""

    machines: dict[str, Machine]
    release: str = ""
    missing: str = ""
    problem: str = ""


def _prepare(kernel: Kernel, targets: Sequence[Target], scratch: Path) -> _Prepared:
    rows = [target.row for target in targets if target.kernel is kernel]
    start = time.monotonic()
    try:
        made = machines(kernel, rows, scratch)
    except Missing as error:
        warn(f"{kernel.name} is missing: {error.cause}")
        return _Prepared({}, missing=error.cause)
    except VmError as error:
        warn(f"{kernel.name}: {error.cause}")
        return _Prepared({}, problem=error.cause)
    release = next(iter(made.values())).kernel_release
    say(f"{kernel.name} is ready: {release} ({time.monotonic() - start:.0f} s)")
    return _Prepared(made, release)


def run_matrix(names: list[str], jobs: int) -> int:
    """Build and run; print the table; 0 when all targets are there and good, else 1."""
    targets = select(names)
    chosen = list(dict.fromkeys(target.kernel.name for target in targets))
    shutil.rmtree(paths.MATRIX_JUNIT, ignore_errors=True)
    start = time.monotonic()
    package.build()
    with scratch_dir("matrix") as scratch:
        runner = Runner(max(len(t.row.name) for t in targets), scratch, paths.MATRIX_JUNIT)

        def run(target: Target) -> Outcome:
            ready = prepared[target.kernel.name].result()
            if ready.missing:
                return Outcome(target, None, ready.missing)
            if ready.problem:
                result = judge(target.row.name, None, 0, 0.0, ready.problem, paths.MATRIX_JUNIT)
                return Outcome(target, result, "-")
            machine = ready.machines[target.row.name]
            return Outcome(target, runner.guest(target.row, machine, target.kernel), ready.release)

        # Downloads and builds of the next kernels go on while guests of the first ones run. A
        # kernel that is built takes longest and is begun at once, or its guests would wait for it.
        with (
            ThreadPoolExecutor(1) as preparer,
            ThreadPoolExecutor(1) as builder,
            ThreadPoolExecutor(jobs) as pool,
        ):
            prepared = {
                kernel.name: (builder if kernel.built else preparer).submit(
                    _prepare, kernel, targets, scratch / kernel.name
                )
                for kernel in map(kernels.kernel, chosen)
            }
            futures = [pool.submit(run, target) for target in targets]
            try:
                outcomes = [future.result() for future in futures]
            except BaseException:
                preparer.shutdown(wait=False, cancel_futures=True)
                builder.shutdown(wait=False, cancel_futures=True)
                pool.shutdown(wait=False, cancel_futures=True)
                runner.stop()
                proc.stop()
                raise
    print()
    print(f"whole run: {time.monotonic() - start:.0f} s")
    print(table(outcomes), flush=True)
    return 0 if all(outcome.good for outcome in outcomes) else 1
