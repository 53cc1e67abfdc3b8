# SPDX-License-Identifier: GPL-2.0-or-later
"""`ptscope bench`: what faults, remaps and walks cost, with proof of what happened."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    from ptscope.bench.run import Setting, Tell

Command = TypeVar("Command", bound=Callable[..., Any])
SAMPLES, REMAP_SAMPLES, ROUNDS = 64, 8, 7

_OPTIONS = (
    click.option("--json", "as_json", is_flag=True, help="For programs: pyperf's format."),
    click.option("-o", "--output", metavar="FILE", help="Keep the results, in pyperf's format."),
    click.option("--list", "listed", is_flag=True, help="List the scenarios and measure nothing."),
    click.option(
        "--rounds", default=ROUNDS, show_default=True, type=click.IntRange(1, 1000),
        help="Each is measured by a process of its own.",
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
    "explain": ("write cow-parent", "| less"),
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

    Without names, all scenarios. `ptscope bench explain NAME` tells what each is.
    """
    from ptscope.bench.faults import FAULTS

    return _measure_rows("fault", FAULTS, names, samples, options, inside)


@subcommand("walk")
@click.argument("names", nargs=-1, metavar="[SCENARIO]...")
@samples_option
@with_options
def walk(names: Sequence[str], samples: int, **options: Any) -> int:
    """What a walk costs: by the hardware, by pagemap, by the module.

    Without names, all scenarios. `ptscope bench explain NAME` tells what each is.
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
    call costs, and what every page adds. `ptscope bench explain NAME` tells what each is.
    """
    from ptscope.bench.remaps import REMAPS, SIZES
    from ptscope.views.bench import listing

    rows = _chosen(REMAPS, names)
    if options["listed"]:
        click.echo(listing([(row.name, row.title) for row in rows]))
        return EXIT_DONE
    given = () if sizes is None else (_size(text) for text in sizes.split(","))
    wanted = list(dict.fromkeys(given)) or SIZES

    return _measure("remap", rows, samples, options, sizes=tuple(wanted), asked=sizes is not None)


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
    from ptscope.views.bench import listing

    rows = _chosen(table, names)
    if options["listed"]:
        click.echo(listing([(row.name, row.title) for row in rows]))
        return EXIT_DONE
    left = [row.name for row in rows if row.alters and not names]
    return _measure(group, rows, samples, options, inside=inside, left=left)


def _look_inside(
    rows: Sequence[Any], measured: Mapping[str, Sequence[Measured]], setting: Setting, tell: Tell
) -> None:
    """After all figures are there: probes slow down everything, whether they are read or not."""
    from ptscope.bench.inside import look_inside, probes

    with probes() as tools:
        for row in rows:
            for each in measured.get(row.name, ()):
                if each.unavailable is None and not each.errors:
                    tell(f"{each.name}, with probes")
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
        raise _no_scenario(unknown[0], known, "`--list` names all")
    return [known[name] for name in dict.fromkeys(names)] if names else list(table)


def _no_scenario(name: str, known: Iterable[str], every: str) -> UsageError:
    """The remedy says which names may have been meant, and where all are."""
    import difflib

    near = " or ".join(difflib.get_close_matches(name, known))
    return UsageError(f"no scenario is called {name!r}", f"{near}? {every}" if near else every)


def _measure(
    group: str,
    rows: Sequence[Any],
    samples: int,
    options: dict[str, Any],
    *,
    sizes: tuple[int, ...] = (),
    asked: bool = False,
    inside: bool = False,
    left: Sequence[str] = (),
) -> int:
    """Measure and show; the exit status. What is `left` has to be asked for by its name."""
    from ptscope.bench.clock import calibrate
    from ptscope.bench.conditions import Conditions
    from ptscope.bench.known import Frames
    from ptscope.bench.process import Order, measure_rounds
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
    with Ticker() as ticker:
        ticker.tell("comparing clocks")
        with pinned(cpu):
            clock = calibrate()
        order = Order(
            group=group,
            names=tuple(row.name for row in rows if row.name not in left),
            clock=clock,
            cpu=cpu,
            serving_cpu=next((each for each in cpus if each != cpu), -1),
            samples=samples,
            source=source.name,
            sizes=sizes,
            asked=asked,
        )
        results = measure_rounds(order, options["rounds"], ticker.tell)
        if inside:
            with pinned(cpu), closing(Frames()) as frames:
                setting = order.setting(source, frames)
                _look_inside(rows, results.measured, setting, ticker.tell)
    conditions = results.conditions
    if hidden:
        conditions = Conditions({**conditions.facts, "frames": "hidden from who is not root"})
    measured = [
        each for row in rows for each in results.measured.get(row.name) or [_not_asked_for(row)]
    ]
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
    leaves out that there is none. It goes by how rounds differ, each of which is a process of
    its own. What the machine was busy with while a file was made is in it all the same: measure
    both again to be sure.
    """
    if not math.isfinite(least):
        raise UsageError(f"{least} is no part of a figure", "`--least 5` ignores less than 5 %")
    from ptscope.bench.compare import compare as compare_
    from ptscope.bench.store import read
    from ptscope.views.bench import comparison_json, render_comparison

    result = compare_(read(Path(first)), read(Path(second)), least / 100)
    if not result.differences:
        raise UsageError("the two files have no benchmark in common")
    if len(result.untold) == len(result.differences):
        raise UsageError(
            "a file has one round only: how far two rounds are apart is not known",
            "measure with --rounds 2 or more",
        )
    click.echo(json.dumps(comparison_json(result)) if as_json else render_comparison(result))
    return EXIT_FOUND if result.found else EXIT_DONE


@subcommand("explain")
@click.argument("names", nargs=-1, metavar="[SCENARIO]...")
def explain(names: Sequence[str]) -> int:
    """What a scenario is in the kernel, what proves it, what to conclude and what not.

    Without names, the whole page: how to read a figure, and all scenarios.
    """
    from ptscope.bench.explain import PAGE, explanations
    from ptscope.views.bench import explained

    page = PAGE.read_text()
    known = explanations(page)
    for name in names:
        if name not in known:
            raise _no_scenario(name, known, "without a name, all are told")
    wanted = {name: known[name] for name in names}
    click.echo(explained(wanted) if wanted else page.rstrip())
    return EXIT_DONE
