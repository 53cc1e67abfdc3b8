# SPDX-License-Identifier: GPL-2.0-or-later
"""`ptscope show`: what a snapshot holds, or walks in it; on any machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import click

from ptscope.cli.map_forms import Form, Json, Subject
from ptscope.cli.numbers import parse_address, refuse_options
from ptscope.errors import EXIT_DONE, BadStream
from ptscope.snapshot.container import damaged
from ptscope.snapshot.facts import Header, Trailer
from ptscope.snapshot.reader import Snapshot
from ptscope.source.snapshot import SnapshotSource, SnapshotStream, check_dumped, name_of, pid_of
from ptscope.space.agreement import Agreement, Comparer
from ptscope.space.rows import Reader, Row
from ptscope.target.counters import Counters
from ptscope.target.smaps import SmapsVma
from ptscope.views.map import Totals, row_line, totals_text
from ptscope.views.map import header as map_header
from ptscope.views.map_json import usage_json
from ptscope.views.show import render_facts, render_usage
from ptscope.views.walk import render
from ptscope.walk import Who, interpret


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("file", metavar="FILE")
@click.argument("addresses", metavar="[ADDR...]", nargs=-1)
@click.option(
    "--json", "as_json", is_flag=True, help="For programs: one object; with ADDR, one a line."
)
def show(file: str, addresses: Sequence[str], as_json: bool) -> int:
    """What the snapshot FILE holds (- is stdin); or the walk of each ADDR in it.

    Nothing of this machine is looked at: the layout is in the file. Walks are printed as `ptscope
    walk` does, without what frames are used for, which is not in a snapshot.
    """
    refuse_options([*addresses, *([] if file == "-" else [file])])
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
        try:
            walk = interpret(raw, source, header.kernel, who, names, lambda pfn: None)
        except BadStream as error:
            raise damaged(snapshot.name, error.cause) from None
        if as_json:
            click.echo(json.dumps({**walk.to_json(), "time": header.time}))
            continue
        if position:
            click.echo()
        click.echo(render(walk))
    return EXIT_DONE


def _show_all(snapshot: Snapshot, as_json: bool) -> int:
    header, trailer = snapshot.header, snapshot.trailer
    facts = {**header.to_json(), "trailer": trailer.to_json()}
    if not as_json:
        click.echo(render_facts(header, trailer) + "\n")
    # What the kernel counted at the time is in the file; nothing is asked of this machine.
    reader = Reader(lambda ranges: SnapshotStream(snapshot), frozenset(header.shmem))
    comparer = Comparer(reader, header.layout, None, None)
    rows = reader.rows(SmapsVma(vma, {}) for vma in snapshot.vmas())
    if not header.with_vmas:
        for _ in rows:
            pass
        if as_json:
            used = usage_json(reader.outside, True, header.layout.page_size)
            click.echo(json.dumps({"snapshot": facts, **used}))
        else:
            click.echo(render_usage(header.layout, reader.outside))
        return EXIT_DONE
    subject = Subject(
        pid=header.target.pid or 0,
        comm=header.target.comm or "",
        source="snapshot",
        kernel=header.kernel,
        layout=header.layout,
        page_size=header.layout.page_size,
        more={"snapshot": facts},
    )
    form: Form = Json(subject) if as_json else _Text(subject)
    for row in rows:
        comparer.take(row)
        form.row(row)
    form.totals(
        Totals(
            sums=comparer.sums,
            outside=reader.outside,
            page_size=header.layout.page_size,
            source="snapshot",
            kernel=header.kernel,
            layout=header.layout,
            agreement=_with_counters(
                comparer.agreement(),
                header,
                trailer,
                comparer.sums.resident + reader.outside.resident,
            ),
            counters=_counters(header),
            longest_lock_ns=trailer.totals.longest_lock_ns,
            frames_hidden=False,
        )
    )
    return EXIT_DONE


class _Text:
    """As `ptscope map` prints it, without its heading."""

    def __init__(self, subject: Subject) -> None:
        self._page_size = subject.page_size
        click.echo(click.style(map_header(subject.layout), dim=True))

    def row(self, row: Row) -> None:
        click.echo(row_line(row, self._page_size))

    def totals(self, totals: Totals) -> None:
        click.echo("\n" + totals_text(totals))


def _counters(header: Header) -> Counters:
    """What the kernel counted before the dump, as `ptscope map` takes it."""
    status, page = header.memory.status, header.layout.page_size
    kib = {key: value * 1024 for key, value in status.items()}
    return Counters(
        resident=header.memory.statm.get("resident", 0) * page,
        page_tables=kib.get("VmPTE"),
        swap=kib.get("VmSwap"),
        hugetlb=kib.get("HugetlbPages"),
        threads=status.get("Threads", 1),
        thp_disabled=None if "THP_enabled" not in status else not status["THP_enabled"],
    )


def _with_counters(
    agreement: Agreement, header: Header, trailer: Trailer, resident: int
) -> Agreement:
    """The agreement with verdicts on what was counted before and after the dump.

    statm may be imprecise by an amount that depends on the machine of then, so of that only
    equality is a verdict.
    """
    before, after = header.memory, trailer.memory
    if header.ranges != ((0, header.layout.user_last),):
        return agreement
    verdicts = dict(agreement.verdicts)
    tables = [memory.status.get("VmPTE") for memory in (before, after)]
    if None not in tables:
        expected = agreement.page_tables.expected
        if any(expected == 1024 * (kib or 0) for kib in tables):
            verdicts["VmPTE"] = "equal"
        else:
            verdicts["VmPTE"] = "differs" if tables[0] == tables[1] else "changed"
    counted = [memory.statm.get("resident") for memory in (before, after)]
    if resident // header.layout.page_size in counted:
        verdicts["statm"] = "equal"
    return replace(agreement, verdicts=verdicts)
