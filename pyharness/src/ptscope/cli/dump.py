# SPDX-License-Identifier: GPL-2.0-or-later
"""`ptscope dump`: all page tables of a process, in a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from ptscope.cli.numbers import parse_range, parse_target, refuse_options
from ptscope.cli.progress import Ticker
from ptscope.errors import EXIT_DONE, UsageError
from ptscope.snapshot.atomic import standard_output, whole_file
from ptscope.snapshot.facts import Header, Trailer
from ptscope.snapshot.take import in_order, take
from ptscope.source.module import ModuleSource, check_address
from ptscope.source.stream import Progress
from ptscope.views.show import count, target_text
from ptscope.views.text import printable
from ptscope.walk import target_of

# All of these are where the summary would go too.
STANDARD_OUTPUT = frozenset({"-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"})


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("target", metavar="PID|self|kernel")
@click.option(
    "-o", "--output", "output", metavar="FILE", required=True, help="Where to; - is stdout."
)
@click.option(
    "--range",
    "ranges",
    metavar="START-END",
    multiple=True,
    help="Only these addresses (END is the first one after, as in /proc/PID/maps; or "
    "START+LENGTH). Can be given several times.",
)
@click.option("--no-vmas", is_flag=True, help="Leave out the VMAs and their names.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@click.option("--json", "as_json", is_flag=True, help="For programs: one object.")
def dump(
    target: str,
    output: str,
    ranges: Sequence[str],
    no_vmas: bool,
    force: bool,
    as_json: bool,
) -> int:
    """Keep the page tables of a process, with its VMAs, in FILE.

    `ptscope show` reads it on any machine, `ptscope diff` compares two. FILE appears only when
    all is in it: not when the process exits or executes a program meanwhile (exit status 3), the
    disk is full (74), or you press Ctrl-C. An existing FILE is kept, unless you say --force.
    """
    refuse_options([target])
    pid = parse_target(target)
    wanted = in_order([parse_range(text) for text in ranges]) if ranges else None
    to_stdout = output in STANDARD_OUTPUT
    if not output:
        raise UsageError("the name of FILE is empty", "give one, or - for standard output")
    if as_json and to_stdout:
        raise UsageError(
            f"--json and -o {output} would both go to standard output", "give -o the name of a file"
        )
    process = target_of(pid)
    source = ModuleSource.open()
    for first, last in wanted or ():
        for address in (first, last):
            check_address(source.layout, address, kernel=process is None)
    to = standard_output() if to_stdout else whole_file(Path(output), force)
    with to as sink, Ticker() as ticker:

        def tell(progress: Progress) -> None:
            entries = f"{progress.entries} entries in {progress.tables} parts of tables"
            ticker.tell(f"{entries}, at {progress.address:#x}")

        header, trailer = take(source, process, wanted, not no_vmas, sink, tell)
    if as_json:
        said = header.to_json()
        kept = {key: said[key] for key in ("target", "source", "kernel", "time", "request")}
        totals = {"layout": header.layout.name, "totals": trailer.totals.to_json()}
        click.echo(json.dumps({"file": output, "file_bytes": sink.bytes, **kept, **totals}))
    else:
        click.echo(_summary(header, trailer, sink.name, sink.bytes), err=to_stdout)
    return EXIT_DONE


def _summary(header: Header, trailer: Trailer, name: str, size: int) -> str:
    totals = trailer.totals
    held = f", the lock held for {totals.longest_lock_ns / 1000:.0f} µs at most"
    return (
        f"{target_text(header.target)}: {count(totals.entries, 'entry', 'entries')} in "
        f"{count(totals.tables, 'part', 'parts')} of tables, {count(totals.vmas, 'VMA', 'VMAs')}\n"
        f"{printable(name)}: {size} bytes, {count(totals.batches, 'batch', 'batches')}"
        f"{held if header.target.pid is not None else ''}"
    )
