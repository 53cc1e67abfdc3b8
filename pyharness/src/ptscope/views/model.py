# SPDX-License-Identifier: GPL-2.0-or-later
"""What `ptscope model` did and found, for people and for programs."""

from __future__ import annotations

import inspect
import json
import platform
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ptscope.model.compare import Difference
    from ptscope.model.operations import Operation
    from ptscope.model.run import Disagreement
    from ptscope.model.search import Found
    from ptscope.model.session import Session

WIDTH = 80
LEVELS = {0: "", 1: "pte", 2: "pmd", 3: "pud", 4: "p4d", 5: "pgd"}
MOST_CHOICES = 4


def render_list(operations: Sequence[Operation], as_json: bool) -> str:
    """Each operation and what the kernel does in it."""
    rows = [(row.name, inspect.getdoc(row.make) or "") for row in operations]
    if as_json:
        return json.dumps([{"name": name, "does": text} for name, text in rows], indent=1)
    return "\n\n".join(
        click.style(name, bold=True) + "\n" + textwrap.indent(text, "  ") for name, text in rows
    )


def render(session: Session, found: Found, seed: int, seconds: float) -> str:
    """The result of a run."""
    return "\n".join(_lines(session, found, seed, seconds))


def _lines(session: Session, found: Found, seed: int, seconds: float) -> Iterator[str]:
    counts = session.stage.counts
    if found.disagreement is not None:
        yield from _disagreement(found.disagreement)
        yield ""
        yield _label(
            "found", f"after {found.first_after} steps, shrunk in {found.shrunk_in} further ones"
        )
    yield _label(
        "steps",
        f"{counts.steps} in {counts.sequences} sequences, {seconds:.0f} s; "
        f"{counts.compared} entries compared, {counts.choices} choices of the kernel",
    )
    layout = f", layout {session.layout}" if session.layout else ""
    yield _label("source", f"{session.source}{layout}; kernel {platform.release()}")
    yield _label("seed", f"{seed}")


def _label(label: str, text: str) -> str:
    return textwrap.fill(text, WIDTH, initial_indent=f"{label:<8}", subsequent_indent=" " * 8)


def _disagreement(found: Disagreement) -> Iterator[str]:
    yield click.style("The kernel did not do what the model predicts.", bold=True)
    for number, step in enumerate(found.steps, 1):
        outcome = "" if step.outcome in (0, "ok") else f": {step.outcome}"
        yield f"{number:>4} process {step.slot} {step.text}{outcome}"
        for address, chosen, reason in step.choices[:MOST_CHOICES]:
            yield f"       {address:#x} {chosen}: {reason}"
        if len(step.choices) > MOST_CHOICES:
            yield f"       and {len(step.choices) - MOST_CHOICES} choices more"
    for row in found.differences:
        yield from _difference(row)


def _difference(row: Difference) -> Iterator[str]:
    level = LEVELS[row.level]
    raw = "" if row.raw is None else f" {row.raw:#018x}"
    yield click.style(f"process {row.slot} {row.address:#x} {level}{raw}".rstrip(), bold=True)
    for label, text in (("predicted", row.predicted), ("seen", row.seen)):
        yield textwrap.fill(
            text, WIDTH, initial_indent=f"  {label:<10} ", subsequent_indent=" " * 13
        )


def to_json(session: Session, found: Found, seed: int, seconds: float) -> dict[str, object]:
    """The same for programs."""
    counts = session.stage.counts
    error = found.disagreement
    return {
        "source": session.source,
        "layout": session.layout,
        "kernel": platform.release(),
        "seed": seed,
        "steps": counts.steps,
        "sequences": counts.sequences,
        "seconds": round(seconds, 3),
        "compared": counts.compared,
        "choices": counts.choices,
        "operations": counts.by_operation,
        "time": {key: round(value, 3) for key, value in counts.seconds.items()},
        "found_after": found.first_after,
        "sequence": None if error is None else [step.to_json() for step in error.steps],
        "differences": None if error is None else [row.to_json() for row in error.differences],
    }
