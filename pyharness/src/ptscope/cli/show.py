# SPDX-License-Identifier: GPL-2.0-or-later
"""`ptscope show`: what a snapshot holds, or walks in it; on any machine."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from ptscope.cli.numbers import parse_address, refuse_options
from ptscope.errors import EXIT_DONE
from ptscope.snapshot.reader import Snapshot
from ptscope.source.snapshot import SnapshotSource, check_dumped, name_of, pid_of
from ptscope.views.show import render_facts
from ptscope.views.walk import render
from ptscope.walk import Who, interpret


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("file", metavar="FILE")
@click.argument("addresses", metavar="[ADDR...]", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def show(file: str, addresses: Sequence[str], as_json: bool) -> int:
    """What the snapshot FILE holds (- is stdin); or the walk of each ADDR in it.

    Nothing of this machine is looked at: the layout is in the file. Walks are printed as `ptscope
    walk` does, without what frames are used for, which is not in a snapshot.
    """
    refuse_options(addresses)
    wanted = [parse_address(address) for address in addresses]
    with Snapshot.open(file) as snapshot:
        if wanted:
            return _show_walks(snapshot, wanted, as_json)
        return _show_all(snapshot, as_json)


def _show_walks(snapshot: Snapshot, addresses: Sequence[int], as_json: bool) -> int:
    for address in addresses:
        check_dumped(snapshot, address)
    header = snapshot.header
    source = SnapshotSource(snapshot)
    who = Who(header.target.pid, header.target.comm, header.target.leader_exited)
    for position, raw in enumerate(source.walk(pid_of(snapshot), addresses)):
        names = [] if raw.vma is None else [name_of(snapshot, raw.vma)]
        walk = interpret(raw, source, header.kernel, who, names, lambda pfn: None)
        if as_json:
            click.echo(json.dumps({**walk.to_json(), "time": header.time}))
            continue
        if position:
            click.echo()
        click.echo(render(walk))
    return EXIT_DONE


def _show_all(snapshot: Snapshot, as_json: bool) -> int:
    header, trailer = snapshot.header, snapshot.trailer
    if as_json:
        facts = {**header.to_json(), "trailer": trailer.to_json()}
        click.echo(json.dumps(facts))
    else:
        click.echo(render_facts(header, trailer))
    return EXIT_DONE
