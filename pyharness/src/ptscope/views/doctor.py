# SPDX-License-Identifier: GPL-2.0-or-later
"""The doctor's results as text: a line each, the remedy below it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from ptscope.doctor.checks import Result
from ptscope.errors import PtscopeError
from ptscope.views.text import printable
from ptscope.views.walk import wrapped

COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}
LABEL = 20


def render(results: Sequence[tuple[str, Result]], error: PtscopeError | None) -> str:
    """All lines, without the last newline; the last one says whether the module can be used."""
    return "\n".join(_lines(results, error))


def _lines(results: Sequence[tuple[str, Result]], error: PtscopeError | None) -> Iterator[str]:
    told: set[str] = set()
    for name, result in results:
        first, *more = wrapped(printable(result.text), LABEL)
        status = click.style(f"{result.status:<6}", fg=COLOURS[result.status])
        yield f"{status}{name:<{LABEL - 6}}{first}"
        # Several checks may come down to one thing to do.
        if result.remedy and result.remedy not in told:
            told.add(result.remedy)
            more += wrapped(printable(f"remedy: {result.remedy}"), LABEL)
        for line in more:
            yield " " * LABEL + line
    yield ""
    if error is None:
        yield "Walking through the module works."
    else:
        yield from wrapped(printable(f"The module cannot be used: {error.cause}."), 0)
        yield "`ptscope walk` shows only leaves, from /proc/PID/pagemap."
