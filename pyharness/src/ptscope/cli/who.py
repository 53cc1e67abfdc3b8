# SPDX-License-Identifier: GPL-2.0-or-later
"""`ptscope who`: every process, address and permission that maps a frame."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from ptscope.cli.numbers import parse_address, parse_frame, parse_target, refuse_options
from ptscope.cli.progress import Ticker
from ptscope.cli.walk import explain_fallback
from ptscope.errors import EXIT_DONE, EXIT_FOUND, NotPermitted, UsageError
from ptscope.host import Host
from ptscope.source.base import Source
from ptscope.source.choose import NAMES, choose
from ptscope.source.module import ModuleSource
from ptscope.source.pagemap import PagemapSource
from ptscope.source.stream import ModuleStream, open_stream
from ptscope.target.frame import Frame
from ptscope.target.process import Process
from ptscope.views.who import render, render_unmapped
from ptscope.walk import Walk, Walker, target_of
from ptscope.who.answer import Answer
from ptscope.who.ask import Leaves, Tables, ask, look_into_kernel
from ptscope.who.processes import census


@click.command("who", context_settings={"ignore_unknown_options": True})
@click.argument("words", metavar="PFN | PID ADDR", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="For programs: one object.")
@click.option("--pid", "pids", multiple=True, metavar="PID", help="Look at these processes only.")
@click.option(
    "--kernel", "with_kernel", is_flag=True, help="Look at the kernel half too (a snapshot)."
)
@click.option(
    "--source",
    "source_name",
    type=click.Choice(NAMES),
    default="auto",
    show_default=True,
    help="Read the tables through the module, or, slowly, leaves alone from /proc/PID/pagemap.",
)
def who(
    words: Sequence[str],
    as_json: bool,
    pids: Sequence[str],
    with_kernel: bool,
    source_name: str,
) -> int:
    """Find all that map a frame: PFN (decimal or 0x hex), or what PID has at ADDR.

    Each mapping is looked up in /proc/PID/pagemap too; exit status 1 means one of which pagemap
    said something else at each of three readings. A frame that nobody maps is an answer, not an
    error.
    """
    refuse_options(words)
    if len(words) > 2:
        raise UsageError("too many words", "give a frame number, or a PID and an address")
    choice = choose("module" if with_kernel else source_name, "self")
    source = choice.source
    if isinstance(source, PagemapSource) and source.frames_hidden:
        raise choice.instead_of_module or NotPermitted(
            "frame numbers are hidden without CAP_SYS_ADMIN", "run ptscope as root (sudo)"
        )
    if choice.instead_of_module is not None:
        explain_fallback(choice.instead_of_module)
    wanted = [_pid(text) for text in pids] or None
    if len(words) == 1:
        pfn = parse_frame(words[0])
    else:
        walk = _walk(source, *words)
        if walk.mapping.pfn is None:
            return _show_unmapped(walk, as_json)
        pfn = walk.mapping.pfn
    with Ticker() as ticker:
        answer = _answer(source, pfn, wanted, with_kernel, ticker)
    click.echo(json.dumps(answer.to_json()) if as_json else render(answer))
    return EXIT_FOUND if answer.lasting else EXIT_DONE


def _pid(text: str) -> int:
    pid = parse_target(text)
    if isinstance(pid, int):
        return pid
    process = target_of(pid)
    if process is None:
        raise UsageError("`kernel` is no process", "the kernel half: --kernel")
    return process.pid


def _walk(source: Source, target: str, address: str) -> Walk:
    """The walk of an address of the process, or of the kernel half, that the words name."""
    pid = parse_target(target)
    process = target_of(pid)
    (walk,) = Walker.of(source, pid, process).walk([parse_address(address)])
    return walk


def _show_unmapped(walk: Walk, as_json: bool) -> int:
    """Say that there is no frame at the address: an answer, too."""
    if as_json:
        click.echo(json.dumps({"pfn": None, "walk": walk.to_json(), "processes": []}))
    else:
        click.echo(render_unmapped(walk))
    return EXIT_DONE


def _answer(
    source: Source, pfn: int, wanted: Sequence[int] | None, with_kernel: bool, ticker: Ticker
) -> Answer:
    answer = Answer(
        pfn=pfn,
        source=source.name,
        release=Host().release,
        layout=source.layout,
        limited=wanted is not None,
        before=Frame.read(pfn),
    )
    eyes: Tables | Leaves = Leaves()
    if isinstance(source, ModuleSource):
        eyes = Tables(source.layout, _Opener(source))
    ask(answer, census(wanted), eyes, ticker.tell)
    if with_kernel and isinstance(source, ModuleSource):
        ticker.tell("the kernel half")
        with open_stream(source, "kernel", vmas=False) as stream:
            look_into_kernel(answer, source.layout, stream)
    answer.after = Frame.read(pfn)
    return answer


class _Opener:
    """Opens streams of one source: an `Opener`."""

    def __init__(self, source: ModuleSource) -> None:
        self._source = source

    def __call__(
        self, process: Process, ranges: Sequence[tuple[int, int]] | None
    ) -> ModuleStream:
        return open_stream(self._source, process.pid, ranges, user_pgd=True)
