# SPDX-License-Identifier: GPL-2.0-or-later
"""`ptscope model`: a process does random things, and every entry of its tables is predicted."""

from __future__ import annotations

import json
import random
import time

import click

from ptscope.cli import say
from ptscope.cli.progress import Ticker
from ptscope.errors import EXIT_DONE, EXIT_FOUND, Unsupported, UsageError

DEFAULT_STEPS = 1000


@click.command()
@click.option("--steps", type=click.IntRange(1), help="Stop after so many steps.")
@click.option("--seconds", type=click.FloatRange(0, min_open=True), help="Stop after this time.")
@click.option("--seed", type=click.IntRange(0), help="The same seed gives the same sequences.")
@click.option("--only", metavar="NAME", multiple=True, help="This operation; may be repeated.")
@click.option("--list", "listing", is_flag=True, help="The operations, and what each does.")
@click.option(
    "--source",
    "source_name",
    type=click.Choice(("auto", "module", "pagemap")),
    default="auto",
    show_default=True,
    help="Compare all levels through the module, or what pagemap shows without it.",
)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def model(
    steps: int | None,
    seconds: float | None,
    seed: int | None,
    only: tuple[str, ...],
    listing: bool,
    source_name: str,
    as_json: bool,
) -> int:
    """Predict every entry of a process that maps, touches, forks at random.

    A process of its own is commanded; other processes are left alone. After every step all levels
    of its page tables are compared with what a model of the kernel's memory management predicts. A
    difference is shrunk to the shortest sequence that shows it, and ends the run with status 1.
    """
    from ptscope.model.operations import OPERATIONS

    names = {row.name for row in OPERATIONS}
    for name in only:
        if name not in names:
            raise UsageError(f"no operation is called {name!r}", "`ptscope model --list`")
    if listing:
        from ptscope.views.model import render_list

        click.echo(render_list(OPERATIONS, as_json))
        return EXIT_DONE
    try:
        from ptscope.model.search import Budget, Found, search
    except ImportError as error:
        raise Unsupported(
            f"hypothesis, which makes up the sequences, cannot be loaded: {error}",
            "`pip install hypothesis`, or Debian's python3-hypothesis",
        ) from None
    from ptscope.model.session import open_session
    from ptscope.views.model import render, to_json

    if seed is None:
        seed = random.SystemRandom().randrange(1 << 32)
    if steps is None and seconds is None:
        steps = DEFAULT_STEPS
    with Ticker() as ticker, open_session(source_name, frozenset(only) or None) as session:
        if session.instead_of_module is not None:
            reason = session.instead_of_module
            say(f"only what pagemap shows is compared: {reason.cause}", reason.remedy)
        started = time.monotonic()
        counts = session.stage.counts

        def tell(found: Found) -> None:
            what = "shrinking a difference" if found.disagreement else f"seed {seed}"
            ticker.tell(f"{counts.steps} steps, {counts.sequences} sequences, {what}")

        found = search(session.stage, Budget(steps, seconds), seed, tell)
        ticker.clear()
        took = time.monotonic() - started
        if as_json:
            click.echo(json.dumps(to_json(session, found, seed, took), indent=1))
        else:
            click.echo(render(session, found, seed, took))
    return EXIT_FOUND if found.disagreement else EXIT_DONE
