# SPDX-License-Identifier: GPL-2.0-or-later
"""`ptscope check`: invariants of page tables, against everything else the kernel says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ptscope.check.invariants import INVARIANTS, Invariant, chosen
from ptscope.cli import say
from ptscope.cli.numbers import parse_target, refuse_options
from ptscope.cli.progress import Ticker
from ptscope.errors import EXIT_DONE, EXIT_FOUND, PtscopeError, UsageError
from ptscope.target.process import Pid

if TYPE_CHECKING:
    from ptscope.check.run import Report


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("targets", metavar="[PID|self|kernel]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every process that may be walked.")
@click.option("--list", "listing", is_flag=True, help="The invariants, and why they must hold.")
@click.option("--only", metavar="NAME", multiple=True, help="This invariant; may be repeated.")
@click.option("--skip", metavar="NAME", multiple=True, help="All but this; may be repeated.")
@click.option(
    "--source",
    "source_name",
    type=click.Choice(("auto", "module", "pagemap")),
    default="auto",
    show_default=True,
    help="Check the tables through the module, or what /proc shows without it.",
)
@click.option(
    "--from", "file", metavar="FILE", help="A snapshot of `ptscope dump`, on whatever machine."
)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def check(
    targets: Sequence[str],
    everything: bool,
    listing: bool,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    source_name: str,
    file: str | None,
    as_json: bool,
) -> int:
    """Check invariants of the page tables of processes, or of the kernel half.

    What changes while it is looked at is read again, and counted as changed where it never
    holds still: that is no finding. Exit status 1 means findings.
    """
    refuse_options(targets)
    wanted = chosen(only, skip)
    if listing:
        show_list([row for row in INVARIANTS if row.name in wanted], as_json)
        return EXIT_DONE
    if file is not None:
        if targets or everything or source_name != "auto":
            raise UsageError(
                "--from checks what is in a file, and no process",
                "leave out PIDs, --all and --source",
            )
        return run_recorded(file, wanted, as_json)
    pids = [parse_target(target) for target in targets]
    if everything == bool(pids):
        raise UsageError(
            "--all checks every process: give no PID with it" if pids else "nothing to check",
            "give PIDs, `self`, `kernel`, or --all",
        )
    return run(pids, everything, wanted, source_name, as_json)


def show_list(invariants: Sequence[Invariant], as_json: bool) -> None:
    """Print the table of invariants."""
    from ptscope.views.check import render_list

    if as_json:
        click.echo(json.dumps([row.to_json() for row in invariants], indent=1))
    else:
        click.echo(render_list(invariants))


def run(
    pids: Sequence[Pid], everything: bool, wanted: frozenset[str], source_name: str, as_json: bool
) -> int:
    """Check, print, and give the exit status."""
    from ptscope.check.plan import plan
    from ptscope.check.run import check_all, check_named
    from ptscope.views.check import render_checked

    halves = {"kernel"} & set(pids) | ({"user"} if everything or set(pids) - {"kernel"} else set())
    planned = plan(source_name, wanted, halves)
    if planned.instead_of_module is not None:
        explain_fallback(planned.instead_of_module)
    checks, report = planned.checks, planned.report
    steps = check_all(checks, report) if everything else check_named(checks, report, pids)
    shown = 0
    with Ticker() as ticker:
        for pid in steps:
            if not as_json and len(report.checked) > shown:
                for text in filter(None, map(render_checked, report.checked[shown:])):
                    ticker.clear()
                    click.echo(text)
                shown = len(report.checked)
            ticker.tell(f"{len(report.checked)} checked, {report.findings} findings, now {pid}")
    return show_report(report, as_json, shown)


def run_recorded(file: str, wanted: frozenset[str], as_json: bool) -> int:
    """Check a snapshot, print, and give the exit status."""
    from ptscope.check.plan import plan_recorded
    from ptscope.check.recorded import check_recorded
    from ptscope.snapshot.reader import Snapshot
    from ptscope.source.snapshot import SnapshotSource, SnapshotStream

    with Snapshot.open(file) as snapshot:
        header = snapshot.header
        stream = SnapshotStream(snapshot)
        report = plan_recorded(stream, wanted, header.kernel)
        names = frozenset(row.name for row in report.invariants)
        target = header.target
        report.checked.append(
            check_recorded(stream, SnapshotSource(snapshot), names, target.pid, target.comm)
        )
    return show_report(report, as_json, 0)


def show_report(report: Report, as_json: bool, shown: int) -> int:
    """Print what was not `shown` yet and the end, or all of it as JSON; the exit status."""
    from ptscope.views.check import render_checked, render_end

    if as_json:
        click.echo(json.dumps(report.to_json(), indent=1))
    else:
        for text in filter(None, map(render_checked, report.checked[shown:])):
            click.echo(text)
        click.echo(render_end(report))
    return EXIT_FOUND if report.findings else EXIT_DONE


def explain_fallback(reason: PtscopeError) -> None:
    """Say on stderr that only some invariants can be checked, and what would change it."""
    say(f"only what /proc shows can be checked: {reason.cause}", reason.remedy)
