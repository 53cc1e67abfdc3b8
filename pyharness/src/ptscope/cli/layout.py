# SPDX-License-Identifier: GPL-2.0-or-later
"""`ptscope layout`: what a kernel says about its page tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import click

from ptscope.cli.decode import layout_lines, parse_settings
from ptscope.decode.layout import Layout, available, load
from ptscope.errors import NotPermitted, Unsupported
from ptscope.views.entry import size_text


@click.command()
@click.option(
    "--name",
    metavar="NAME",
    help="A shipped layout, or a .json file; without it, the running kernel's from the module.",
)
@click.option("--list", "as_list", is_flag=True, help="The names of the shipped layouts.")
@click.option(
    "--set",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    help="What differs from the layout: paging_levels=4, c_bit=47, pti=true, …",
)
@click.option("--as", "new_name", metavar="NAME", help="Call it NAME.")
@click.option("--json", "as_json", is_flag=True, help="The whole layout, as it ships.")
def layout(
    name: str | None,
    as_list: bool,
    settings: Sequence[str],
    new_name: str | None,
    as_json: bool,
) -> None:
    """The page-table layout of the running kernel: levels, masks and the bit of every flag.

    With --json it can be kept in a file and given to `ptscope decode --layout FILE.json`;
    a layout that ships was written by `ptscope layout --json --as NAME` on its kernel.
    """
    if as_list:
        names = available()
        click.echo(json.dumps(list(names)) if as_json else "\n".join(names))
        return
    shown = (_running() if name is None else load(name)).with_context(parse_settings(settings))
    if new_name is not None:
        shown = replace(shown, name=new_name)
    if as_json:
        click.echo(shown.to_text(), nl=False)
        return
    click.echo(layout_lines(shown, settings))
    click.echo(f"source   {'module' if name is None else 'file'}")
    for row in shown.levels:
        click.echo(
            f"{row.name:<9}shift {row.shift}, {row.entries} entries of {size_text(row.span)}"
        )
    folded = [level for level in shown.all_level_names if shown.is_folded(level)]
    if folded:
        click.echo(f"folded   {' '.join(folded)}")
    json_form = shown.to_json()
    for part in ("facts", "runtime"):
        click.echo(part)
        values = json_form[part]
        assert isinstance(values, dict)
        for key, value in values.items():
            if not key.startswith("level"):
                click.echo(f"  {key:<32} {value}")


def _running() -> Layout:
    """The layout of the running kernel; raises what `ModuleSource.open` raises."""
    from ptscope.source.module import ModuleSource

    try:
        return ModuleSource.open().layout
    except (Unsupported, NotPermitted) as error:
        shipped = "`ptscope layout --name NAME` shows one that ships, without the module"
        error.remedy = f"{error.remedy}; {shipped}" if error.remedy else shipped
        raise
