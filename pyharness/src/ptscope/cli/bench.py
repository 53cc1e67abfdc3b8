# SPDX-License-Identifier: GPL-2.0-or-later
"""`ptscope bench`: what faults, remaps and walks cost, with proof of what happened."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ptscope.cli.progress import Ticker
from ptscope.cli.walk import explain_fallback
from ptscope.errors import EXIT_DONE, EXIT_FOUND, CannotWrite, Unsupported, UsageError
from ptscope.source.choose import NAMES, choose
from ptscope.source.pagemap import PagemapSource

if TYPE_CHECKING:
    from ptscope.bench.conditions import Conditions
    from ptscope.bench.result import Measured
    from ptscope.bench.run import Setting

Command = TypeVar("Command", bound=Callable[..., Any])
SAMPLES, REMAP_SAMPLES, ROUNDS = 64, 8, 7

_OPTIONS = (
    click.option("--json", "as_json", is_flag=True, help="For programs: pyperf's format."),
    click.option("-o", "--output", metavar="FILE", help="Keep the results, in pyperf's format."),
    click.option("--list", "listed", is_flag=True, help="List the scenarios and measure nothing."),
    click.option(
        "--rounds", default=ROUNDS, show_default=True, type=click.IntRange(1, 1000),
        help="Memory is made anew for each round.",
    ),
    click.option("--cpu", type=click.IntRange(0), help="Measure on this CPU."),
    click.option("--plot", metavar="FILE.png", help="Draw the distributions (needs matplotlib)."),
    click.option(
        "--source", "source_name", type=click.Choice(NAMES), default="auto", show_default=True,
        help="Prove by walks of the module, or by /proc/PID/pagemap.",
    ),
)  # fmt: skip


EXAMPLES = {
    "fault": ("write cow-parent thp", "--inside write -o before.json"),
    "walk": ("", "hit tlb-miss tlb-huge --plot walk.png"),
    "remap": ("move-pte move-pmd --sizes 64K,2M,32M", "unmap -o unmap.json"),
    "compare": ("before.json after.json", "before.json after.json --least 5"),
}


def subcommand(name: str) -> Callable[[Command], click.Command]:
    """A command of the group, with examples at the end of its help."""
    from ptscope.cli import examples

    return bench.command(name, epilog=examples(f"bench {name}", EXAMPLES[name]))


def with_options(command: Command) -> Command:
    """The options that all that measure have."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


samples_option = click.option(
    "--samples", default=SAMPLES, show_default=True, type=click.IntRange(2, 4096),
    help="Samples of each round; fewer where there is no room for more.",
)  # fmt: skip


@click.group("bench", context_settings={"help_option_names": ["-h", "--help"]})
def bench() -> None:
    """Measure what faults, remaps and walks cost.

    Each sample is proven: what the address has before and after is looked at through the
    module's walks, or pagemap, and the kernel's count of faults has to fit. A scenario that did
    not happen is an error (exit status 1), not a number.
    """


@subcommand("fault")
@click.argument("names", nargs=-1, metavar="[SCENARIO]...")
@samples_option
@click.option(
    "--inside", is_flag=True,
    help="One more round of each with probes: where in the kernel the time goes (as root).",
)  # fmt: skip
@with_options
def fault(names: Sequence[str], samples: int, inside: bool, **options: Any) -> int:
    """What a page fault costs, by what the kernel has to do for it.

    Without names, all scenarios. They are explained in bench/SCENARIOS.md.
    """
    from ptscope.bench.faults import FAULTS

    return _measure_rows("fault", FAULTS, names, samples, options, inside)


@subcommand("walk")
@click.argument("names", nargs=-1, metavar="[SCENARIO]...")
@samples_option
@with_options
def walk(names: Sequence[str], samples: int, **options: Any) -> int:
    """What a walk costs: by the hardware, by pagemap, by the module.

    Without names, all scenarios. They are explained in bench/SCENARIOS.md.
    """
    from ptscope.bench.walks import WALKS

    return _measure_rows("walk", WALKS, names, samples, options)


@subcommand("remap")
@click.argument("names", nargs=-1, metavar="[SCENARIO]...")
@click.option(
    "--samples", default=REMAP_SAMPLES, show_default=True, type=click.IntRange(2, 1000),
    help="Samples of each size in each round; fewer where they take more than 256 MiB.",
)  # fmt: skip
@click.option(
    "--sizes", metavar="SIZE,...", help="Sizes of the range, as 4K,2M,1G. Default: up to 1G."
)
@with_options
def remap(names: Sequence[str], samples: int, sizes: str | None, **options: Any) -> int:
    """What it costs to move, change or drop a range, by its size.

    Without names, all scenarios. Through the medians of the sizes a line is laid: what every
    call costs, and what every page adds. They are explained in bench/SCENARIOS.md.
    """
    from ptscope.bench.remaps import REMAPS, SIZES
    from ptscope.views.bench import listing

    rows = _chosen(REMAPS, names)
    if options["listed"]:
        click.echo(listing([(row.name, row.title) for row in rows]))
        return EXIT_DONE
    given = () if sizes is None else (_size(text) for text in sizes.split(","))
    wanted = list(dict.fromkeys(given)) or SIZES

    def run(setting: Setting, ticker: Ticker) -> list[Measured]:
        from ptscope.bench.remap_run import measure_remap

        return [each for row in rows for each in measure_remap(row, wanted, setting, ticker.tell)]

    return _measure("remap", run, samples, options)


def _size(text: str) -> int:
    """A size in bytes, as 4K, 2M, 1G; whole pages only."""
    number, unit = text.strip()[:-1], text.strip()[-1:].upper()
    factors = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    if unit not in factors or not number.isascii() or not number.isdigit() or len(number) > 5:
        raise UsageError(f"{text!r} is no size", "write a number and K, M or G, as 4K,2M,1G")
    size = int(number) * factors[unit]
    if not size or size % os.sysconf("SC_PAGE_SIZE"):
        raise UsageError(f"{text} is not a number of whole pages")
    return size


def _measure_rows(
    group: str,
    table: Sequence[Any],
    names: Sequence[str],
    samples: int,
    options: dict[str, Any],
    inside: bool = False,
) -> int:
    from ptscope.bench.run import measure
    from ptscope.views.bench import listing

    rows = _chosen(table, names)
    if options["listed"]:
        click.echo(listing([(row.name, row.title) for row in rows]))
        return EXIT_DONE

    def run(setting: Setting, ticker: Ticker) -> list[Measured]:
        measured = [
            _not_asked_for(row) if row.alters and not names else measure(row, setting, ticker.tell)
            for row in rows
        ]
        if inside:
            _look_inside(rows, measured, setting, ticker)
        return measured

    return _measure(group, run, samples, options)


def _look_inside(
    rows: Sequence[Any], measured: Sequence[Measured], setting: Setting, ticker: Ticker
) -> None:
    """After all figures are there: probes slow down everything, whether they are read or not."""
    from ptscope.bench.inside import look_inside, probes

    with probes() as tools:
        for row, each in zip(rows, measured, strict=True):
            if each.unavailable is None and not each.errors:
                ticker.tell(f"{each.name}, with probes")
                each.inside = look_inside(row, setting, tools)


def _not_asked_for(row: Any) -> Measured:
    from ptscope.bench.result import Measured

    return Measured(
        row.name,
        row.title,
        unavailable=f"it changes {row.alters} for a moment, for the whole machine",
        remedy=f"`ptscope bench fault {row.name}` does it",
    )


def _chosen(table: Sequence[Any], names: Sequence[str]) -> list[Any]:
    known = {row.name: row for row in table}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(f"no scenario is called {unknown[0]!r}", "`--list` names them")
    return [known[name] for name in dict.fromkeys(names)] if names else list(table)


def _measure(
    group: str,
    run: Callable[[Setting, Ticker], list[Measured]],
    samples: int,
    options: dict[str, Any],
) -> int:
    """Measure and show; the exit status."""
    from ptscope.bench.clock import calibrate
    from ptscope.bench.conditions import Conditions, gather
    from ptscope.bench.known import Frames
    from ptscope.bench.looks import Eyes
    from ptscope.bench.memory import Geometry
    from ptscope.bench.run import Setting
    from ptscope.bench.timing import pinned

    _check_before(options)
    choice = choose(options["source_name"], "self")
    if choice.instead_of_module is not None:
        explain_fallback(choice.instead_of_module)
    source = choice.source
    hidden = isinstance(source, PagemapSource) and source.frames_hidden
    cpus = sorted(os.sched_getaffinity(0))
    cpu = cpus[-1] if options["cpu"] is None else options["cpu"]
    if cpu not in cpus:
        raise UsageError(f"CPU {cpu} is not one this process may run on", f"those are {cpus}")
    with pinned(cpu), Ticker() as ticker, closing(Frames()) as frames:
        ticker.tell("comparing clocks")
        clock = calibrate()
        setting = Setting(
            clock=clock,
            eyes=Eyes(source, hidden),
            geometry=Geometry.of(source.layout),
            cpu=cpu,
            serving_cpu=next((each for each in cpus if each != cpu), -1),
            samples=samples,
            rounds=options["rounds"],
            frames=frames,
        )
        conditions = gather(clock, setting.geometry, source.name, cpu)
        if hidden:
            conditions = Conditions({**conditions.facts, "frames": "hidden from who is not root"})
        measured = run(setting, ticker)
    return _show(group, measured, conditions, options)


def _check_before(options: dict[str, Any]) -> None:
    """Refuse what would fail after minutes of measuring."""
    if options["plot"]:
        from ptscope.bench.plot import check_available

        check_available(Path(options["plot"]))
    for name in ("output", "plot"):
        path = options[name]
        if path == "":
            raise UsageError(f"the name of the file for --{name} is empty", "give a name")
        if path and not Path(path).absolute().parent.is_dir():
            raise CannotWrite(f"cannot write {path}: there is no such directory")
        if path and Path(path).is_dir():
            raise CannotWrite(f"cannot write {path}: it is a directory")
    both = [Path(options[name]).resolve() for name in ("output", "plot") if options[name]]
    if len(set(both)) < len(both):
        raise UsageError("--output and --plot are one file", "give each its own name")


def _show(
    group: str, measured: list[Measured], conditions: Conditions, options: dict[str, Any]
) -> int:
    from ptscope.bench import store
    from ptscope.bench.result import problems
    from ptscope.views.bench import render

    document = store.document(measured, conditions)
    nothing = all(each.unavailable for each in measured)
    if not options["as_json"]:
        click.echo(render(group, measured, conditions))
    elif not nothing:  # of which the error tells
        click.echo(json.dumps(document))
    if nothing:
        raise Unsupported("nothing of it can be measured here", "`--list` names all scenarios")
    if options["output"]:
        _write(Path(options["output"]), store.encoded(document))
    if options["plot"]:
        from ptscope.bench.plot import drawn

        _write(Path(options["plot"]), drawn(Path(options["plot"]), group, measured, conditions))
    found = list(problems(measured))
    for text in found:
        click.echo(f"ptscope: {text}", err=True)
    return EXIT_FOUND if found else EXIT_DONE


def _write(path: Path, data: bytes) -> None:
    """The whole file, or none; raises CannotWrite."""
    from ptscope.snapshot.atomic import whole_file

    with whole_file(path, replace=True) as output:
        output.write(data)


@subcommand("compare")
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option("--json", "as_json", is_flag=True, help="For programs: one object.")
@click.option(
    "--least", default=1.0, show_default=True, metavar="PERCENT", type=click.FloatRange(0),
    help="A smaller difference counts as none.",
)  # fmt: skip
def compare(first: str, second: str, as_json: bool, least: float) -> int:
    """Compare two files of results; exit status 1 when something differs.

    A difference is shown only where the confidence interval (95 % for all of them together)
    leaves out that there is none. It goes by how rounds differ, which are of one process in each
    file: two processes of the same kernel may differ by more, so measure again to be sure.
    """
    if not math.isfinite(least):
        raise UsageError(f"{least} is no part of a figure", "`--least 5` ignores less than 5 %")
    from ptscope.bench.compare import compare as compare_
    from ptscope.bench.store import read
    from ptscope.views.bench import comparison_json, render_comparison

    result = compare_(read(Path(first)), read(Path(second)), least / 100)
    if not result.differences:
        raise UsageError("the two files have no benchmark in common")
    click.echo(json.dumps(comparison_json(result)) if as_json else render_comparison(result))
    return EXIT_FOUND if result.found else EXIT_DONE
