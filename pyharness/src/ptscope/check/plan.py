# SPDX-License-Identifier: GPL-2.0-or-later
"""What can be checked here, by which source, and why the rest cannot."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from ptscope.check.invariants import INVARIANTS, Invariant
from ptscope.check.leaves import LEAF_INVARIANTS, LeafChecker
from ptscope.check.process import Checker
from ptscope.check.recorded import why_not
from ptscope.check.run import Checks, Report, Unchecked
from ptscope.errors import PtscopeError
from ptscope.host import Host
from ptscope.source.choose import choose
from ptscope.source.module import ModuleSource
from ptscope.source.stream import RawStream


@dataclass(frozen=True)
class Plan:
    """Who checks, and the report to fill; `instead_of_module` says why it is not the module."""

    checks: Checks
    report: Report
    instead_of_module: PtscopeError | None


def plan(source_name: str, wanted: frozenset[str], halves: Set[str]) -> Plan:
    """Choose a source for the halves (`user`, `kernel`) that are asked for.

    Raises what `source.choose.choose` raises.
    """
    choice = choose(source_name, "kernel" if "kernel" in halves else 1)
    asked = _asked(wanted, halves)
    if isinstance(choice.source, ModuleSource):
        checker = Checker.here(choice.source, wanted)
        split = [(row, _why_not(checker, row, halves)) for row in asked]
        checks: Checks = checker
        layout = checker.source.layout.name
    else:
        why = "it needs the module" if choice.instead_of_module is None else (
            f"it needs the module: {choice.instead_of_module.cause}"
        )  # fmt: skip
        leaves = LeafChecker.here(wanted)
        split = [
            (row, leaves.why_not(row) if row.name in LEAF_INVARIANTS else why) for row in asked
        ]
        checks = leaves
        layout = None
    report = _report(choice.source.name, layout, Host().release, split)
    return Plan(checks, report, choice.instead_of_module)


def plan_recorded(stream: RawStream, wanted: frozenset[str], kernel: str) -> Report:
    """The report to fill for a recorded stream of a kernel of this release."""
    half = "kernel" if stream.request.pid == "kernel" else "user"
    split = [(row, why_not(stream, row)) for row in _asked(wanted, {half})]
    return _report(stream.source, stream.layout.name, kernel, split)


def _asked(wanted: frozenset[str], halves: Set[str]) -> list[Invariant]:
    return [
        row
        for row in INVARIANTS
        if row.name in wanted and (row.half in halves or (row.half == "both" and halves))
    ]


def _report(
    source: str, layout: str | None, kernel: str, split: Sequence[tuple[Invariant, str | None]]
) -> Report:
    return Report(
        source=source,
        layout=layout,
        kernel=kernel,
        invariants=tuple(row for row, why in split if why is None),
        unchecked=tuple(Unchecked(row, why) for row, why in split if why is not None),
    )


def _why_not(checker: Checker, row: Invariant, halves: Set[str]) -> str | None:
    """Why an invariant means nothing here, or cannot be checked."""
    layout = checker.source.layout
    if layout.arch not in row.arches:
        return f"not on {layout.arch}"
    if row.name == "pti-copies" and not layout.runtime.get("pti"):
        return "PTI is off"
    if row.name in ("frames-known", "tables-in-ram") and checker.ranges is None:
        return "/proc/iomem hides addresses from us"
    if halves == {"kernel"} and row.name in checker.not_of_kernel:
        return "no file of /proc names the window of PCI's I/O space, which the kernel maps"
    if row.name == "protnone" and checker.machine.nodes > 1:
        return "several nodes have memory, so there may be NUMA hints"
    if row.name == "special" and checker.machine.zero_pfn is None:
        return "frames are hidden from us"
    return None
