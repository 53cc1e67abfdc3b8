# SPDX-License-Identifier: GPL-2.0-or-later
"""The three forms in which `ptscope map` prints, each as the VMAs come."""

from __future__ import annotations

import csv
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import IO, Protocol

import click

from ptscope.decode.layout import Layout
from ptscope.space.rows import Row
from ptscope.views.map import Totals, header, row_line, totals_text
from ptscope.views.map_json import CSV_COLUMNS, row_csv, row_json, totals_json
from ptscope.views.text import printable

# More than this of JSON goes to a file: nothing may be printed before it is known that all is well.
IN_MEMORY = 4 << 20
AT_ONCE = 0.1  # seconds


@dataclass(frozen=True)
class Subject:
    """Whose address space it is, and where it was read. `layout` is None for leaves alone.

    `more` are further keys that JSON begins with.
    """

    pid: int
    comm: str
    source: str
    kernel: str
    layout: Layout | None
    page_size: int
    more: Mapping[str, object] = field(default_factory=dict)


class Form(Protocol):
    """Takes each VMA, then the totals."""

    def row(self, row: Row) -> None:
        """Print, or keep, one VMA."""

    def totals(self, totals: Totals) -> None:
        """Print the rest."""


class Text:
    """For people."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        click.echo(click.style(f"{subject.pid} {printable(subject.comm)}", bold=True))
        click.echo(click.style(header(subject.layout), dim=True))
        self._lines: list[str] = []
        self._printed = time.monotonic()

    def row(self, row: Row) -> None:
        """A line; some are printed together, which is faster."""
        self._lines.append(row_line(row, self._subject.page_size))
        if time.monotonic() - self._printed > AT_ONCE:
            self._print()

    def _print(self) -> None:
        if self._lines:
            click.echo("\n".join(self._lines))
        self._lines.clear()
        self._printed = time.monotonic()

    def totals(self, totals: Totals) -> None:
        """The block below the VMAs."""
        self._print()
        click.echo()
        click.echo(totals_text(totals))


class Csv:
    """A line a VMA. Totals are what the reader's own sums are for."""

    def __init__(self, subject: Subject) -> None:
        self._page_size = subject.page_size
        self._writer = csv.writer(sys.stdout, lineterminator="\n")
        self._writer.writerow(CSV_COLUMNS)

    def row(self, row: Row) -> None:
        """A line."""
        self._writer.writerow(row_csv(row, self._page_size))

    def totals(self, totals: Totals) -> None:
        """What was compared cannot stand in a table: findings go to stderr."""
        for finding in totals.agreement.findings if totals.agreement else ():
            click.echo(f"ptscope: differs: {json.dumps(finding.to_json())}", err=True)


class Json:
    """One object, printed when all of it is known."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._rows: IO[str] = tempfile.SpooledTemporaryFile(  # noqa: SIM115
            IN_MEMORY, mode="w+", encoding="utf-8"
        )
        self._first = True

    def row(self, row: Row) -> None:
        """Keep it."""
        self._rows.write("" if self._first else ",\n")
        self._rows.write(json.dumps(row_json(row, self._subject.page_size)))
        self._first = False

    def totals(self, totals: Totals) -> None:
        """Print the whole object."""
        subject = self._subject
        head = {
            **subject.more,
            "pid": subject.pid,
            "comm": subject.comm,
            "source": subject.source,
            "kernel": subject.kernel,
            "layout": None if subject.layout is None else subject.layout.name,
            "page_size": subject.page_size,
            **totals_json(totals),
        }
        click.echo(json.dumps(head)[:-1] + ',\n"vmas": [')
        self._rows.seek(0)
        while text := self._rows.read(1 << 16):
            click.echo(text, nl=False)
        click.echo("\n]}")
        self._rows.close()


FORMS: dict[str, Callable[[Subject], Form]] = {"text": Text, "csv": Csv, "json": Json}
