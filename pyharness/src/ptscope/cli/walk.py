# SPDX-License-Identifier: GPL-2.0-or-later
"""`ptscope walk`: addresses of a process, from the PGD to the leaf."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from ptscope.cli import say
from ptscope.cli.numbers import parse_address, parse_target, refuse_options
from ptscope.compare import Comparison, compare
from ptscope.errors import EXIT_DONE, EXIT_FOUND, PtscopeError, UsageError
from ptscope.source.choose import NAMES, choose
from ptscope.target.process import Process
from ptscope.views.walk import render, render_comparison
from ptscope.walk import Walk, Walker, target_of


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("target", metavar="PID|self|kernel")
@click.argument("addresses", metavar="ADDR...", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="For programs: one object a line.")
@click.option(
    "--source",
    "source_name",
    type=click.Choice(NAMES),
    default="auto",
    show_default=True,
    help="Read the tables through the module, or leaves alone from /proc/PID/pagemap.",
)
@click.option(
    "--compare", "comparing", is_flag=True, help="Compare each entry with /proc/PID/pagemap."
)
def walk(
    target: str, addresses: Sequence[str], as_json: bool, source_name: str, comparing: bool
) -> int:
    """Walk each ADDR (decimal or 0x hex) in the page tables of a process.

    `self` is ptscope itself, `kernel` the kernel half, of which a walk is a snapshot. An
    address that is not mapped is an answer, not an error.

    With --compare, exit status 1 means a difference that was there at each of three readings.
    """
    refuse_options([target, *addresses])
    pid = parse_target(target)
    wanted = [parse_address(address) for address in addresses]
    if comparing and pid == "kernel":
        raise UsageError("the kernel half has no pagemap to compare with")
    if comparing and source_name == "pagemap":
        raise UsageError("--compare compares the module with pagemap", "leave out --source pagemap")
    process = target_of(pid)
    # Whoever compares wants the module: falling back would compare pagemap with itself.
    choice = choose("module" if comparing else source_name, pid)
    if choice.instead_of_module is not None:
        explain_fallback(choice.instead_of_module)
    walker = Walker.of(choice.source, pid, process)
    walks = walker.walk(wanted)
    if comparing and process is not None:
        return show_compared(walker, process, walks, as_json)
    for position, result in enumerate(walks):
        show(result, None, as_json, first=position == 0)
    return EXIT_DONE


def explain_fallback(reason: PtscopeError) -> None:
    """Say on stderr that only leaves are shown, why, and what would change it."""
    say(f"only leaves, from /proc/PID/pagemap: {reason.cause}", reason.remedy)


def show_compared(walker: Walker, process: Process, walks: Sequence[Walk], as_json: bool) -> int:
    """Print walks with their comparisons and the count of those that agree; the exit status."""
    results: list[Comparison] = []
    for comparison in compare(walker, process, walks):
        show(comparison.walk, comparison, as_json, first=not results)
        results.append(comparison)
    agreeing = sum(result.agrees for result in results)
    if not as_json:
        click.echo(f"\n{agreeing} of {len(results)} entries agree with /proc/{process.pid}/pagemap")
    return EXIT_DONE if agreeing == len(results) else EXIT_FOUND


def show(result: Walk, comparison: Comparison | None, as_json: bool, first: bool) -> None:
    """Print one walk: a line of JSON, or text with an empty line between two."""
    if as_json:
        compared = {} if comparison is None else {"compare": comparison.to_json()}
        click.echo(json.dumps({**result.to_json(), **compared}))
        return
    if not first:
        click.echo()
    click.echo(render(result))
    if comparison is not None:
        click.echo(render_comparison(comparison))
