# SPDX-License-Identifier: GPL-2.0-or-later
"""What `ptscope check` found, and the table of invariants, as text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

import click

from ptscope.check.invariants import Invariant
from ptscope.check.process import Checked, Finding
from ptscope.check.run import Report
from ptscope.views.text import printable

WIDTH = 80
_LABEL = 18


def render_list(invariants: Sequence[Invariant]) -> str:
    """Each invariant with its reason."""
    return "\n\n".join("\n".join(_invariant(row)) for row in invariants)


def _invariant(row: Invariant) -> Iterator[str]:
    half = {"user": "processes", "kernel": "kernel half", "both": "processes and kernel half"}
    yield click.style(f"{row.name:<{_LABEL}}", bold=True) + half[row.half]
    yield from _wrapped(f"{row.what}.", 2)
    yield from _labelled("why", row.why)
    yield from _labelled("where", row.where)
    yield from _labelled("since", f"{row.since} on {', '.join(row.arches)}")
    if row.witness:
        yield from _labelled("witness", row.witness)
    if row.bound:
        yield from _labelled("bound", row.bound)


def _labelled(label: str, text: str) -> Iterator[str]:
    first, *more = _wrapped(text, 11)
    yield f"  {label:<9}{first[11:]}"
    yield from more


def _wrapped(text: str, indent: int) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=" " * indent, subsequent_indent=" " * indent,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def render_checked(checked: Checked) -> str:
    """The findings of one target; empty without any."""
    if not checked.findings:
        return ""
    who = "kernel half" if checked.pid is None else f"{checked.pid} {printable(checked.comm or '')}"
    return "\n".join([click.style(who, bold=True), *_findings(checked.findings)])


def _findings(findings: Sequence[Finding]) -> Iterator[str]:
    for row in findings:
        yield "  " + click.style(row.invariant, fg="red")
        if row.vma is not None:
            yield f"    VMA      {row.vma[0]:#x}-{row.vma[1]:#x}"
        elif row.address is not None:
            level = f" {row.level}" if row.level else ""
            raw = "" if row.raw is None else f" raw {row.raw:#018x}"
            at = "" if row.entry_pa is None else f" at {row.entry_pa:#x}"
            yield f"    entry    {row.address:#x}{level}{raw}{at}"
        yield f"    entries  {row.ours}"
        yield f"    {row.witness}: {row.theirs}"


def render_end(report: Report) -> str:
    """What was not checked, and the summary."""
    lines = []
    by_reason: dict[str, list[str]] = {}
    for row in report.unchecked:
        by_reason.setdefault(row.why, []).append(row.invariant.name)
    for why, names in by_reason.items():
        lines += _wrapped(printable(f"not checked: {', '.join(names)}: {why}"), 0)
    if report.skipped:
        lines.append(f"{len(report.skipped)} processes were not checked:")
        whys: dict[str, list[int]] = {}
        for skipped in report.skipped:
            whys.setdefault(skipped.why, []).append(skipped.pid)
        lines += [
            f"  {', '.join(str(pid) for pid in pids[:8])}"
            f"{' …' if len(pids) > 8 else ''}: {printable(why)}"
            for why, pids in whys.items()
        ]
    if report.more:
        lines.append(f"{report.more} more suspects were not looked at again")
    layout = "" if report.layout is None else f", layout {report.layout}"
    lines.append(f"source {report.source}, kernel {report.kernel}{layout}")
    lines.append(report.summary())
    return "\n".join(lines)
