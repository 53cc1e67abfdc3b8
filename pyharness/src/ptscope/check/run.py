# SPDX-License-Identifier: GPL-2.0-or-later
"""Many targets one after another: which there are, and what became of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ptscope.check.invariants import Invariant
from ptscope.check.process import Checked, Target
from ptscope.errors import (
    ChangedIdentity,
    Exited,
    KernelThread,
    NoSuchProcess,
    NotPermitted,
)
from ptscope.target.process import Pid, find, find_self

PROC = Path("/proc")

# What becomes of a process while one looks at all of them is no error.
_GONE = (Exited, NoSuchProcess, ChangedIdentity)


class Checks(Protocol):
    """Something that checks a target: through the module, or from /proc alone."""

    def check(self, target: Target) -> Checked:
        """Check a process."""

    def check_kernel(self) -> Checked:
        """Check the kernel half."""


@dataclass(frozen=True)
class Unchecked:
    """An invariant that was not checked, and why."""

    invariant: Invariant
    why: str


@dataclass(frozen=True)
class Skipped:
    """A process that was not checked, and why."""

    pid: int
    why: str


@dataclass
class Report:
    """The results of a run; `invariants` are those that were checked."""

    source: str
    layout: str | None
    kernel: str
    invariants: tuple[Invariant, ...]
    unchecked: tuple[Unchecked, ...]
    checked: list[Checked] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    kernel_threads: int = 0

    @property
    def findings(self) -> int:
        """How many there are in all."""
        return sum(len(row.findings) for row in self.checked)

    @property
    def changed(self) -> int:
        """How much changed while it was looked at."""
        return sum(row.changed.total() for row in self.checked)

    @property
    def entries(self) -> int:
        """How many entries were checked; without the module, pages."""
        return sum(row.entries for row in self.checked)

    @property
    def more(self) -> int:
        """Suspects that were not looked at again."""
        return sum(row.more for row in self.checked)

    def summary(self) -> str:
        """The last line."""
        found = _counted(self.findings, "finding")
        return (
            f"{_counted(len(self.invariants), 'invariant')}, "
            f"{_counted(self.entries, 'entry', 'entries')}, "
            f"{_counted(len(self.checked), 'process', 'processes')}: "
            f"{found}, {self.changed} changed"
        )

    def to_json(self) -> dict[str, object]:
        """The object that `check --json` prints."""
        changed: Counter[str] = Counter()
        for row in self.checked:
            changed += row.changed
        return {
            "source": self.source,
            "layout": self.layout,
            "kernel": self.kernel,
            "invariants": [row.name for row in self.invariants],
            "unchecked": [
                {"invariant": row.invariant.name, "why": row.why} for row in self.unchecked
            ],
            "processes": [row.to_json() for row in self.checked],
            "skipped": [{"pid": row.pid, "why": row.why} for row in self.skipped],
            "kernel_threads": self.kernel_threads,
            "summary": {
                "invariants": len(self.invariants),
                "entries": self.entries,
                "processes": len(self.checked),
                "findings": self.findings,
                "changed": self.changed,
                "changed_by_invariant": dict(sorted(changed.items())),
                "suspects_left": self.more,
            },
        }  # fmt: skip


def _counted(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}".replace(",", " ")


def processes(proc: Path = PROC) -> list[int]:
    """All PIDs there are now, in order."""
    return sorted(int(entry.name) for entry in proc.iterdir() if entry.name.isdigit())


def check_named(checks: Checks, report: Report, pids: Sequence[Pid]) -> Iterator[Pid]:
    """Check the targets that were asked for; yields each before. Raises for one that cannot be."""
    for pid in pids:
        yield pid
        if pid == "kernel":
            report.checked.append(checks.check_kernel())
        else:
            report.checked.append(checks.check(find_self() if pid == "self" else find(pid)))


def check_all(
    checks: Checks,
    report: Report,
    pids: Sequence[int] | None = None,
    find_process: Callable[[int], Target] = find,
) -> Iterator[Pid]:
    """Check every process that may be, and note those that may not; yields each before."""
    for pid in processes() if pids is None else pids:
        yield pid
        try:
            report.checked.append(checks.check(find_process(pid)))
        except KernelThread:
            report.kernel_threads += 1
        except _GONE as error:
            report.skipped.append(Skipped(pid, error.cause))
        except NotPermitted as error:
            report.skipped.append(Skipped(pid, error.cause))
