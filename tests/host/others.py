# SPDX-License-Identifier: GPL-2.0-or-later
"""`make bench-others`: what `ptscope bench` says beside independent programs, on this machine.

    python tests/host/others.py [--rounds N] [--mremap-test FILE]

Ours and theirs take turns, so that both meet what else the machine does. Compared are the medians
of all rounds. The others: loops of bare system calls (tests/guest/loops.c), `perf bench`, the fault
stressor of stress-ng, and the kernel's own selftest of mremap(), compiled by scripts/vm.
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
FAULTS = ("read", "write", "dontneed-write", "cow-parent")
AGAIN = ("write-again", "shm-again")
MOVES = (
    "move-pte-again",
    "move-pmd-again",
    "dontunmap-again",
    "shrink-again",
    "resize-none",
    "move-shm-near",
    "move-shm-skewed",
)
SIZES = "8K,16K,64K,4M"
WALKS = ("syscall",)
ONCE = "told, not judged: one call, code not in the caches, and fewer VMAs around it"
MIXED = "told, not judged: calls of four kinds in one mean, to where the kernel likes"
STRESS_BYTES = 16 << 10
STRESS_MREMAP = {
    # With 16 KiB it shrinks to the half, and then "resizes" to what it has, one time in two by a
    # move too. After each it moves with MREMAP_DONTUNMAP.
    "shrink-again-16K": 1 / 4,
    "move-pte-again-8K": 1 / 4,
    "dontunmap-again-8K": 1 / 2,
    "resize-none-8K": 1 / 8,
}


@dataclass
class Ours:
    """One round of ours, in ns, and how many VMAs that process had."""

    medians: dict[str, float]
    means: dict[str, float]
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

    def ours(self, found: Ours) -> float:
        """What ours says of it, in ns."""
        parts = self.mixture or {self.scenario: 1.0}
        figures = found.means if self.tells_mean else found.medians
        return sum(part * figures[name] for name, part in parts.items())


@dataclass
class Pair:
    """What both said in each round, in ns."""

    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Ours as a part of theirs, by the medians."""
        return statistics.median(self.ours) / statistics.median(self.theirs)

    @property
    def spread(self) -> tuple[float, float]:
        """The middle half of what single rounds give."""
        ratios = sorted(o / t for o, t in zip(self.ours, self.theirs, strict=True))
        return ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]


def output(words: Sequence[str | Path]) -> str:
    """What a program prints; raises CalledProcessError when it fails."""
    return subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True, text=True
    ).stdout


def ours(cpu: int) -> Ours:
    """One round of ours."""
    found = Ours({}, {}, 0)
    for kind, names, samples in (
        ("fault", FAULTS, SAMPLES),
        ("fault", AGAIN, FEW),
        ("walk", WALKS, SAMPLES),
        ("remap", MOVES, FEW),
    ):
        words = [PTSCOPE, "bench", kind, *names, "--json", "--cpu", str(cpu), "--rounds", "1"]
        words += ["--samples", str(samples)]
        if kind == "remap":
            words += ["--sizes", SIZES]
        done = subprocess.run(
            [*words, "--source", "pagemap"], stdout=subprocess.PIPE, check=True, text=True
        )
        document = json.loads(done.stdout)
        found.vmas = document["metadata"]["vmas"]
        for each in document["benchmarks"]:
            values = [value * 1e9 for run in each["runs"] for value in run["values"]]
            found.medians[each["metadata"]["name"]] = statistics.median(values)
            found.means[each["metadata"]["name"]] = statistics.mean(values)
    return found


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

    def measure(_: Ours) -> float:
        text = output([program])
        found = re.search(re.escape(title) + r"\s+mremap time:\s+(\d+)ns", text)
        if found is None:
            raise ValueError(f"mremap_test told no time of {title!r}")
        return float(found[1])

    return measure


def others(mremap_test: Path | None) -> Iterator[Other]:
    """All that can be had here; what cannot is told."""
    for name in ("syscall", "read", "write", "write-again", "dontneed-write", "cow-parent"):
        yield Other(name, "loop", loop(name))
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
        yield Other("shm-again", "stress-ng", faults, tells_mean=True)
        sizes = ("--mremap-bytes", str(STRESS_BYTES), "--mremap-ops", "5000")
        mremaps = stress("mremap", "mremap call", *sizes)
        yield Other("four kinds", "stress-ng", mremaps, MIXED, True, STRESS_MREMAP)
    if mremap_test is not None:
        for scenario, target in (("move-shm-near-4M", "PMD"), ("move-shm-skewed-4M", "PTE")):
            title = f"4MB mremap - Source PMD-aligned, Destination {target}-aligned"
            yield Other(scenario, "selftest", selftest(mremap_test, title), ONCE)


def main() -> int:
    """Take turns, print a table."""
    parser = argparse.ArgumentParser(description="ptscope bench beside independent programs")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--mremap-test", type=Path)
    options = parser.parse_args()
    cpu = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpu})
    rows = list(others(options.mremap_test))
    pairs = [Pair() for _ in rows]
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
        found = ours(cpu)
        for row, pair in zip(rows, pairs, strict=True):
            pair.ours.append(row.ours(found))
            pair.theirs.append(row.measure(found))
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
