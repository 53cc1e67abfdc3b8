# SPDX-License-Identifier: GPL-2.0-or-later
"""`ptscope diff`: what changed between two snapshots."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

import click

from ptscope.diff.events import Tables
from ptscope.diff.merge import merge
from ptscope.diff.report import Area, Names, Page, Range, Totals, report
from ptscope.diff.sides import Sides
from ptscope.errors import EXIT_DONE, EXIT_FOUND, UsageError
from ptscope.snapshot.reader import Snapshot
from ptscope.source.snapshot import SnapshotStream
from ptscope.views.diff import (
    area_json,
    area_lines,
    page_json,
    page_lines,
    range_json,
    range_line,
    sides_json,
    sides_lines,
    totals_json,
    totals_lines,
)

TOGETHER = 200  # lines


@click.command()
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@click.option("--pages", is_flag=True, help="Each page that changed, with its entries.")
@click.option("--json", "as_json", is_flag=True, help="For programs: one object a line.")
def diff(old: str, new: str, pages: bool, as_json: bool) -> int:
    """What changed from the snapshot OLD to the snapshot NEW.

    Address by address: VMAs that came, went, grew or have other permissions; pages that appeared,
    vanished, moved to another frame, were swapped, became writable, huge, …, merged to ranges that
    changed alike. Between two boots frames and swap slots are not compared.

    Exit status: 0 nothing changed, 1 something did, 2 one of them cannot be read or is no
    snapshot.
    """
    if old == new == "-":
        raise UsageError("standard input can be one of the two only")
    with Snapshot.open(old) as first, Snapshot.open(new) as second:
        sides = Sides.of(first, second)
        totals = Totals()
        tables = Tables({}), Tables({})
        pieces = merge(SnapshotStream(first), SnapshotStream(second), *tables, sides.frames)
        told = report(pieces, Names(first), Names(second), sides.page, pages, totals)
        show = _json if as_json else _text
        lines = show(sides, told, totals, tables)
        # Writing each line by itself would take longer than finding it.
        while some := list(itertools.islice(lines, TOGETHER)):
            click.echo("\n".join(some))
    return EXIT_FOUND if totals.areas else EXIT_DONE


def _text(
    sides: Sides,
    told: Iterator[Area | Range | Page],
    totals: Totals,
    tables: tuple[Tables, Tables],
) -> Iterator[str]:
    yield from sides_lines(sides)
    for item in told:
        if isinstance(item, Area):
            yield ""
            yield from area_lines(item)
        elif isinstance(item, Range):
            yield range_line(item, sides.page)
        else:
            yield from page_lines(item)
    yield ""
    yield from totals_lines(totals, tables, sides)


def _json(
    sides: Sides,
    told: Iterator[Area | Range | Page],
    totals: Totals,
    tables: tuple[Tables, Tables],
) -> Iterator[str]:
    yield json.dumps(sides_json(sides))
    area: Area | None = None
    for item in told:
        if isinstance(item, Area):
            # Its counts are whole when the next one comes.
            if area is not None:
                yield json.dumps(area_json(area))
            area = item
        elif isinstance(item, Range):
            yield json.dumps(range_json(item, sides.page))
        else:
            yield json.dumps(page_json(item))
    if area is not None:
        yield json.dumps(area_json(area))
    yield json.dumps(totals_json(totals, tables, sides))
