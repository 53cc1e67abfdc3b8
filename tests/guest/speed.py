# SPDX-License-Identifier: GPL-2.0-or-later
"""What ways of reading page tables cost in instructions, and what must hold of it.

`python3 speed.py` in a guest whose clock counts instructions prints one JSON object: what was
measured by the program ``speed``, and each bound with whether it holds. test_speed.py asserts the
same bounds; `make bench` prints them.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

PROGRAM = Path(__file__).with_name("speed")
TIMEOUT = 600.0
NS_PER_INSTRUCTION = 2.0
"""What QEMU's ``-icount shift=1`` makes of the clock."""
STALL_SECONDS = 20
PYTHON = "import json, subprocess, time; print(flush=True); time.sleep(600)"
"""An ordinary Python process: some modules, and waiting for something."""


@dataclass(frozen=True)
class Cost:
    """What one method took in one scenario. `units` are pages found."""

    scenario: str
    method: str
    units: int
    instructions: int
    """The least of several repetitions: what an interrupt adds is not the method's."""
    median: int
    bytes: int
    longest_lock: int
    """The longest hold of the target's lock by one batch, in instructions; 0 without the module."""

    @property
    def per_unit(self) -> float:
        """Instructions a page."""
        return self.instructions / self.units


@dataclass(frozen=True)
class Measured:
    """All that was measured in one guest."""

    release: str
    quiet: bool
    ns_per_instruction: float
    costs: Mapping[tuple[str, str], Cost]
    missing: tuple[tuple[str, str], ...]
    """What this kernel does not have."""

    @property
    def counts_instructions(self) -> bool:
        """Whether the guest's clock does, and nothing else ran."""
        return self.quiet and abs(self.ns_per_instruction / NS_PER_INSTRUCTION - 1) < 0.01

    @property
    def version(self) -> tuple[int, int]:
        """The kernel's."""
        found = re.match(r"(\d+)\.(\d+)", self.release)
        assert found
        return int(found[1]), int(found[2])


@dataclass(frozen=True)
class Bound:
    """Something that must hold: a figure of one method that may not be exceeded."""

    name: str
    scenario: str
    most: float
    figure: str
    """`page`, `whole` or `lock`: instructions a page, for all, or under the longest lock."""
    method: str = "dump"

    def value(self, measured: Measured) -> float | None:
        """The figure; None where there is none."""
        cost = measured.costs.get((self.scenario, self.method))
        if cost is None:
            return None
        figures = {"page": cost.per_unit, "whole": cost.instructions, "lock": cost.longest_lock}
        return figures[self.figure]

    def holds(self, measured: Measured) -> bool | None:
        """Whether it does; None where there is nothing to compare."""
        value = self.value(measured)
        return None if value is None else value <= self.most

    def limit(self, measured: Measured) -> str:
        """What must hold, for people."""
        return f"at most {self.most:,g}"


@dataclass(frozen=True)
class Ratio:
    """Something that must hold: how much less `dump` costs than another method, a page."""

    name: str
    scenario: str
    method: str
    least: Mapping[tuple[int, int], float]
    """By the first version of the kernel for which it must be so."""
    wanted: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """The same for what was aimed at and is not reached: it is shown, and not asserted."""

    def value(self, measured: Measured) -> float | None:
        """How many times as much the other method costs; None where this kernel has it not."""
        other = measured.costs.get((self.scenario, self.method))
        own = measured.costs.get((self.scenario, "dump"))
        if other is None or own is None:
            return None
        return other.per_unit / own.per_unit

    def _least(self, measured: Measured) -> float | None:
        return _for_version(self.least, measured)

    def holds(self, measured: Measured) -> bool | None:
        """Whether it does; None where there is nothing to compare."""
        value, least = self.value(measured), self._least(measured)
        return None if value is None or least is None else value >= least

    def limit(self, measured: Measured) -> str:
        """What must hold, for people."""
        least, wanted = self._least(measured), _for_version(self.wanted, measured)
        if least is None:
            return ""
        aim = f"; aim {wanted:g}" if wanted else ""
        return f"at least {least:g} times{aim}"


def _for_version(values: Mapping[tuple[int, int], float], measured: Measured) -> float | None:
    """The value of the newest version that is not newer than the measured kernel's."""
    fitting = [key for key in values if key <= measured.version]
    return values[max(fitting)] if fitting else None


# For x86-64: others count other instructions.
BOUNDS: tuple[Bound | Ratio, ...] = (
    Bound("a page of a populated range", "dense", 5.5, "page"),
    Bound("one of a thousand pages spread over the user half", "spread", 10_000, "page"),
    Bound("the whole of a Python process", "process", 500_000, "whole"),
    *(
        Bound(f"the longest hold of a lock: {scenario}", scenario, 500_000, "lock")
        for scenario in ("dense", "alternate", "tables", "spread", "vmas", "process")
    ),
    # The aims cannot be reached: loading, storing and copying out an entry is 3.07 instructions
    # alone, where 127 / 40 (pagemap of an idle 6.12) and 198 / 50 leave 3.2 and 2 * 2.0.
    Ratio("than /proc/PID/pagemap", "dense", "pagemap", {(5, 10): 20}, {(6, 12): 40}),
    Ratio(
        "than PAGEMAP_SCAN, every second page there", "alternate", "scan-all", {(6, 7): 15},
        {(6, 7): 50},
    ),
    Ratio("than one debugfs walk an address", "dense", "walk", {(5, 10): 200}),
)


def run(*arguments: str) -> Iterator[dict[str, object]]:
    """The lines of the program ``speed``."""
    done = subprocess.run(
        [PROGRAM, *arguments], stdout=subprocess.PIPE, check=True, timeout=TIMEOUT, text=True
    )
    for line in done.stdout.splitlines():
        yield json.loads(line)


@dataclass
class _Lines:
    """Lines of several runs, sorted."""

    clocks: list[dict[str, object]] = field(default_factory=list)
    costs: list[dict[str, object]] = field(default_factory=list)
    missing: list[tuple[str, str]] = field(default_factory=list)

    def take(self, lines: Iterator[dict[str, object]]) -> None:
        for line in lines:
            if "ns_per_instruction" in line:
                self.clocks.append(line)
            elif line.get("missing"):
                self.missing.append((str(line["scenario"]), str(line["method"])))
            else:
                self.costs.append(line)


def measure() -> Measured:
    """Measure everything."""
    lines = _Lines()
    lines.take(run("scenarios"))
    with subprocess.Popen([sys.executable, "-c", PYTHON], stdout=subprocess.PIPE) as python:
        assert python.stdout is not None
        python.stdout.readline()
        time.sleep(1)
        lines.take(run("process", str(python.pid)))
        python.kill()
    rates = [_number(clock["ns_per_instruction"]) for clock in lines.clocks]
    costs = [_cost(line, rates[0]) for line in lines.costs]
    return Measured(
        release=platform.release(),
        quiet=all(clock["quiet"] for clock in lines.clocks),
        ns_per_instruction=max(rates),
        costs={(cost.scenario, cost.method): cost for cost in costs},
        missing=tuple(lines.missing),
    )


def _number(value: object) -> float:
    assert isinstance(value, (int, float))
    return value


def _cost(line: Mapping[str, object], rate: float) -> Cost:
    ns = line["ns"]
    assert isinstance(ns, list)
    times = sorted(ns)
    return Cost(
        scenario=str(line["scenario"]),
        method=str(line["method"]),
        units=int(_number(line["units"])),
        instructions=round(times[0] / rate),
        median=round(times[len(times) // 2] / rate),
        bytes=int(_number(line["bytes"])),
        longest_lock=round(_number(line["longest_lock_ns"]) / rate),
    )


def report(measured: Measured) -> dict[str, object]:
    """What `make bench` reads."""
    judged = platform.machine() == "x86_64" and measured.counts_instructions
    return {
        "release": measured.release,
        "machine": platform.machine(),
        "page_size": os.sysconf("SC_PAGE_SIZE"),
        "quiet": measured.quiet,
        "ns_per_instruction": measured.ns_per_instruction,
        "counts_instructions": measured.counts_instructions,
        "costs": [
            {**asdict(cost), "per_unit": cost.per_unit} for cost in measured.costs.values()
        ],
        "missing": [list(each) for each in measured.missing],
        "bounds": [
            {
                "name": bound.name,
                "scenario": bound.scenario,
                "kind": type(bound).__name__.lower(),
                "value": bound.value(measured),
                "limit": bound.limit(measured),
                "holds": bound.holds(measured) if judged else None,
            }
            for bound in BOUNDS
        ],
    }


def main(arguments: Sequence[str]) -> int:
    """Print the report, or with `stall` how long a thread waited."""
    if arguments == ["stall"]:
        lines = list(run("stall", str(STALL_SECONDS)))
        print(json.dumps({"release": platform.release(), "clock": lines[0], **lines[1]}))
        return 0
    print(json.dumps(report(measure())))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
