# SPDX-License-Identifier: GPL-2.0-or-later
"""`make bench-others`: what `ptscope bench` says beside independent programs, on this machine.

    python tests/host/others.py [--rounds N] [--mremap-test FILE] [--only SCENARIO|PROGRAM]

Each is measured between two runs of ours, so that both meet what else the machine does. A round
gives the ratio of their medians, and judged is the median of all rounds. The others: loops of bare
system calls (tests/guest/loops.c), `perf bench`, the fault stressor of stress-ng, and the kernel's
own selftest of mremap(), compiled by scripts/vm.
Ends with 1 when one is further apart than a twentieth.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ptscope.bench.faults import FAULTS
from ptscope.bench.walks import WALKS

ROOT = Path(__file__).parents[2]
PTSCOPE = Path(sys.executable).with_name("ptscope")
LOOPS = ROOT / "tests" / "guest" / "loops"
LIKE = 0.05
ROUNDS = 15
SAMPLES = 4096
"""Of faults: pages enough that no cache of the CPU's own holds them all."""
FEW = 256
"""Of what is done again and again: a long list of samples would take the caches' room."""
STRESS_RUNS = 5
SELFTEST_RUNS = 5
SELDOM = 4
"""Samples of a process: the selftest makes one move of a kind, after some of others."""
ITSELF = "told, not judged: the same program twice, so what this machine makes of nothing"
STRESS_BYTES = 16 << 10
STRESS_MREMAP = {
    # With 16 KiB it resizes to the half, and then to what it has; each of them one time in two to
    # another place. After each it moves with MREMAP_DONTUNMAP.
    "shrink-again-16K": 1 / 8,
    "shrink-move-again-16K": 1 / 8,
    "resize-none-8K": 1 / 8,
    "move-pte-fresh-8K": 1 / 8,
    "dontunmap-fresh-8K": 1 / 2,
}
STRESS_FAULT = {
    # The page of a file that was just allocated, the same page let go (MADV_DONTNEED, and
    # MADV_PAGEOUT), and a page of shared memory let go.
    "shm-reserved": 1 / 4,
    "shm-again": 3 / 4,
}


@dataclass(frozen=True)
class Ours:
    """What ours says once, in ns, and how many VMAs that process had."""

    figure: float
    vmas: int


@dataclass(frozen=True)
class Other:
    """An independent program for a scenario of ours, or for a mixture of some.

    `differs` says why it is told, and not judged: what it does is not quite the same. What tells a
    mean is held against a mean.
    """

    scenario: str
    program: str
    measure: Callable[[Ours], float]
    """One round of it, in ns."""
    differs: str = ""
    tells_mean: bool = False
    mixture: Mapping[str, float] = field(default_factory=dict)
    """How much of each scenario a call of theirs is, where that is more than one."""
    processes: int = 1
    """How many measure it once, each with the samples of `SELDOM`, where that is more than one."""

    def ours(self, cpu: int) -> Ours:
        """What ours says of it, now."""
        parts = self.mixture or {self.scenario: 1.0}
        found = [ptscope(name, cpu, self.tells_mean, self.processes) for name in parts]
        figure = sum(part * each.figure for part, each in zip(parts.values(), found, strict=True))
        return Ours(figure, found[0].vmas)


@dataclass
class Pair:
    """What both said in each round, in ns."""

    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """Ours as a part of theirs, the least first."""
        return sorted(o / t for o, t in zip(self.ours, self.theirs, strict=True))

    @property
    def ratio(self) -> float:
        """The median of what rounds give: each has both of one moment."""
        return statistics.median(self.ratios)

    @property
    def spread(self) -> tuple[float, float]:
        """The middle half of what rounds give."""
        ratios = self.ratios
        return ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]


def output(words: Sequence[str | Path]) -> str:
    """What a program prints; raises CalledProcessError when it fails."""
    return subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True, text=True
    ).stdout


def ptscope(name: str, cpu: int, mean: bool = False, processes: int = 1) -> Ours:
    """What ours says of a scenario: the median of samples, or their mean."""
    kinds = {"fault": FAULTS, "walk": WALKS}
    # What is remapped has its size behind the name.
    kind = next((k for k, rows in kinds.items() if name in {row.name for row in rows}), "remap")
    few = kind == "remap" or name.endswith("again")
    samples = SELDOM if processes > 1 else FEW if few else SAMPLES
    words: list[str | Path] = [PTSCOPE, "bench", kind, "--json", "--cpu", str(cpu)]
    words += ["--rounds", str(processes), "--samples", str(samples), "--source", "pagemap"]
    if kind == "remap":
        family, size = name.rsplit("-", 1)
        words += [family, "--sizes", size]
    else:
        words += [name]
    done = subprocess.run(words, stdout=subprocess.PIPE, check=True, text=True)
    document = json.loads(done.stdout)
    (found,) = document["benchmarks"]
    values = [value * 1e9 for run in found["runs"] for value in run["values"]]
    figure = statistics.mean(values) if mean else statistics.median(values)
    return Ours(figure, document["metadata"]["vmas"])


def loop(name: str) -> Callable[[Ours], float]:
    """A loop of loops.c, without its first time."""

    def measure(found: Ours) -> float:
        count = FEW if name.startswith("near") or name.endswith("again") else SAMPLES
        lines = output([LOOPS, name, str(count), str(found.vmas)]).split()
        return statistics.median([float(line) for line in lines][1:])

    return measure


def perf_syscall(_: Ours) -> float:
    """getppid() of `perf bench`: the mean of many."""
    text = output(["perf", "bench", "-f", "simple", "syscall", "basic", "-l", "200000"])
    return float(text.split()[-1]) / 200_000 * 1e9


def stress(stressor: str, told: str, *words: str) -> Callable[[Ours], float]:
    """What a stressor of stress-ng tells, which is a mean, without its clock's own time.

    The median of some short runs: a mean has all in it that comes in between.
    """

    def once() -> float:
        text = output(["stress-ng", f"--{stressor}", "1", *words, "--metrics"])
        found = re.search(rf"([\d.]+) nanosecs per {told}", text)
        if found is None:
            raise ValueError(f"stress-ng told no time of a {told}:\n{text}")
        return float(found[1])

    def measure(found: Ours) -> float:
        return statistics.median(once() for _ in range(STRESS_RUNS)) - loop("clock")(found)

    return measure


def selftest(program: Path, title: str) -> Callable[[Ours], float]:
    """One test of the kernel's mremap_test."""

    def once() -> float:
        text = output([program])
        found = re.search(re.escape(title) + r"\s+mremap time:\s+(\d+)ns", text)
        if found is None:
            raise ValueError(f"mremap_test told no time of {title!r}")
        return float(found[1])

    def measure(found: Ours) -> float:
        times = [once() for _ in range(SELFTEST_RUNS)]
        return statistics.median(times) - loop("clock")(found)

    return measure


def others(mremap_test: Path | None, cpu: int) -> Iterator[Other]:
    """All that can be had here; what cannot is told."""
    for name in ("syscall", "read", "write", "write-again", "dontneed-write", "cow-parent"):
        yield Other(name, "loop", loop(name))
    yield Other("read", "itself", lambda _: ptscope("read", cpu).figure, ITSELF)
    page = os.sysconf("SC_PAGE_SIZE")
    for scenario, size in (("move-pte-again-64K", 64 << 10), ("move-pmd-again-4M", 4 << 20)):
        yield Other(scenario, "loop", loop(f"near-{size // page}"))
    if shutil.which("perf") is None:
        print("without perf: apt-get install linux-perf", file=sys.stderr)
    else:
        yield Other("syscall", "perf", perf_syscall, tells_mean=True)
    if shutil.which("stress-ng") is None:
        print("without stress-ng: apt-get install stress-ng", file=sys.stderr)
    else:
        faults = stress("fault", "page fault", "--fault-ops", "2000", "--temp-path", "/dev/shm")
        yield Other("two kinds", "stress-ng", faults, "", True, STRESS_FAULT)
        sizes = ("--mremap-bytes", str(STRESS_BYTES), "--mremap-ops", "5000")
        mremaps = stress("mremap", "mremap call", *sizes)
        yield Other("five kinds", "stress-ng", mremaps, "", True, STRESS_MREMAP)
    if mremap_test is not None:
        kinds = (("move-shm-fresh-4M", "PMD"), ("move-shm-skewed-fresh-4M", "PTE"))
        for scenario, target in kinds:
            title = f"4MB mremap - Source PMD-aligned, Destination {target}-aligned"
            measure = selftest(mremap_test, title)
            yield Other(scenario, "selftest", measure, processes=SELFTEST_RUNS)


def main() -> int:
    """Take turns, print a table."""
    parser = argparse.ArgumentParser(description="ptscope bench beside independent programs")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--mremap-test", type=Path)
    parser.add_argument("--only", default="", metavar="WORD", help="rows with it as a cell")
    options = parser.parse_args()
    cpu = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpu})
    rows = [
        row
        for row in others(options.mremap_test, cpu)
        if options.only in ("", row.scenario, row.program)
    ]
    if not rows:
        parser.error(f"no row has a cell {options.only!r}")
    pairs = [Pair() for _ in rows]
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
        for row, pair in zip(rows, pairs, strict=True):
            found = row.ours(cpu)
            theirs = row.measure(found)
            # Before and after: a machine that becomes slower meanwhile favours nobody.
            pair.ours.append((found.figure + row.ours(cpu).figure) / 2)
            pair.theirs.append(theirs)
    print(f"{'scenario':<19} {'other':<10} {'ours ns':>9} {'theirs ns':>9}  ratio  middle half")
    apart = False
    notes = sorted({row.differs for row in rows if row.differs})
    for row, pair in zip(rows, pairs, strict=True):
        differs = abs(pair.ratio - 1) > LIKE and not row.differs
        apart |= differs
        note = f"  ({notes.index(row.differs) + 1})" if row.differs else "  APART" * differs
        low, high = pair.spread
        print(
            f"{row.scenario:<19} {row.program:<10} {statistics.median(pair.ours):>9.0f}"
            f" {statistics.median(pair.theirs):>9.0f}  {pair.ratio:5.3f}  {low:.3f} to {high:.3f}"
            f"{note}"
        )
    for number, text in enumerate(notes, 1):
        print(f"({number}) {text}")
    return 1 if apart else 0


if __name__ == "__main__":
    sys.exit(main())
