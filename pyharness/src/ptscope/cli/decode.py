# SPDX-License-Identifier: GPL-2.0-or-later
"""`ptscope decode`: one raw entry, explained, without a module and on any machine."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from ptscope.cli.numbers import parse_entry, refuse_options
from ptscope.decode.entry import decode as decode_entry
from ptscope.decode.layout import DEFAULT, Layout, load
from ptscope.errors import UsageError
from ptscope.views.entry import render

_WORDS = {"true": 1, "false": 0, "none": None}


@click.command(
    context_settings={"ignore_unknown_options": True}, options_metavar="--level LEVEL [OPTIONS]"
)
@click.argument("words", metavar="RAW", nargs=-1, required=True)
@click.option(
    "--level",
    "level",
    metavar="LEVEL",
    help="Level of the table it was in: pgd p4d pud pmd pte.  [required]",
)
@click.option(
    "--layout",
    "layout_name",
    metavar="NAME",
    default=DEFAULT,
    show_default=True,
    help="A shipped layout (`ptscope layout --list`), or a .json file of `ptscope layout --json`.",
)
@click.option(
    "--set",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    help="What differs from the layout: paging_levels=4, c_bit=47, pti=true, …",
)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def decode(
    words: Sequence[str],
    level: str | None,
    layout_name: str,
    settings: Sequence[str],
    as_json: bool,
) -> None:
    """Explain the raw entry RAW (64 bits, as 0x… or decimal).

    In `access`, u is user mode; under `bits`, each set bit has its number.
    """
    refuse_options(words)
    raw, *more = words
    if more:
        raise UsageError(f"one entry at a time: {' '.join(more)!r} is too much")
    layout = load(layout_name)
    context = parse_settings(settings)
    layout = layout.with_context(context)
    if level is None:
        raise UsageError(
            "no level given: the same bits mean different things at each level",
            remedy=f"add --level, one of {', '.join(row.name for row in layout.levels)}",
        )
    entry = decode_entry(layout, level.lower(), parse_entry(raw))
    if as_json:
        used = {"layout": layout.name, "context": context}
        click.echo(json.dumps({**entry.to_json(), **used}, indent=1))
    else:
        click.echo(render(layout, entry))
        click.echo(layout_lines(layout, settings))


def layout_lines(layout: Layout, settings: Sequence[str]) -> str:
    """Which layout was used, and what was changed about it."""
    lines = [f"layout   {layout.name}: {layout.release}, {len(layout.levels)} levels"]
    if settings:
        lines.append(f"with     {' '.join(settings)}")
    return "\n".join(lines)


def parse_settings(settings: Sequence[str]) -> dict[str, int | None]:
    """``key=value`` texts as a context for `Layout.with_context`.

    Values are numbers, true, false or none; raises UsageError for others.
    """
    context: dict[str, int | None] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not key or not equals:
            raise UsageError(
                f"--set {setting!r} is not KEY=VALUE", remedy="for example --set c_bit=47"
            )
        word = value.lower()
        context[key] = _WORDS[word] if word in _WORDS else _setting_number(key, value)
    return context


def _setting_number(key: str, value: str) -> int:
    try:
        return int(value, 0)
    except ValueError:
        raise UsageError(
            f"--set {key}: {value!r} is no value", remedy="give a number, true, false or none"
        ) from None
