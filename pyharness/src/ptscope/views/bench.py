# SPDX-License-Identifier: GPL-2.0-or-later
"""What was measured as text for people: a line a scenario, then the conditions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from ptscope.bench.compare import Comparison, Difference
from ptscope.bench.conditions import Conditions
from ptscope.bench.delays import COUNTERS
from ptscope.bench.fit import Estimate, fit
from ptscope.bench.result import Measured
from ptscope.bench.stats import sparkline
from ptscope.bench.store import why_missing
from ptscope.views.text import printable
from ptscope.views.walk import labelled

if TYPE_CHECKING:
    from ptscope.bench.explain import Explanation
    from ptscope.bench.inside import Inside

NAME, SHORT, FIGURE, SPARK = 20, 19, 8, 12
BENT = 0.25
"""A part of a median: sizes that lie further off the line are told."""


def time_text(ns: float) -> str:
    """A time of at most three digits: `812 ns`, `1.53 us`, `42.0 ms`."""
    if ns < 0.995:
        return f"{ns * 1e3:.0f} ps"
    for unit, size in (("ns", 1.0), ("us", 1e3), ("ms", 1e6)):
        if ns < 999.5 * size:
            value = ns / size
            digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
            return f"{value:.{digits}f} {unit}"
    return f"{ns / 1e9:.2f} s"


def listing(rows: Sequence[tuple[str, str]]) -> str:
    """The names of scenarios and what they are."""
    return "\n".join(f"{name:<{NAME}} {title}" for name, title in rows)


def explained(wanted: Mapping[str, Explanation]) -> str:
    """What scenarios are, a paragraph each."""
    paragraphs = (
        [name, *(line for label, text in row for line in labelled_at(NAME, f"  {label}", text))]
        for name, row in wanted.items()
    )
    return "\n\n".join("\n".join(lines) for lines in paragraphs)


def render(group: str, measured: Sequence[Measured], conditions: Conditions) -> str:
    """The table and the conditions, at most 80 columns wide."""
    return "\n".join([*_table(group, measured), "", *_conditions(measured, conditions)])


def _table(group: str, measured: Sequence[Measured]) -> Iterator[str]:
    spark = "least to p99"
    yield (
        f"{group:<{NAME}} {'median':>{FIGURE}} {'IQR':>{FIGURE}} {'p99':>{FIGURE}}"
        f" {spark:<{SPARK}}  tables"
    )
    told: set[str] = set()
    reasons: dict[str, str] = {}
    for family, members in _families(measured):
        for each in members:
            yield from _line(each, reasons)
            if each.inside is not None:
                yield from _inside(each.inside, told)
        yield from _fitted(family, members)


def _inside(inside: Inside, told: set[str]) -> Iterator[str]:
    """What the round with probes has shown, below the scenario's line; each lack is told once."""
    parts = inside.parts
    if parts is not None:
        before = f"{time_text(parts.entry)} to handle_mm_fault"
        if parts.exception is not None:
            before += f" ({time_text(parts.exception)} to the first tracepoint)"
        lock = ""
        if parts.lock is not None:
            lock = f"; mmap_lock taken in {time_text(parts.lock)}"
        yield from labelled_at(
            NAME,
            "  inside",
            f"{before}, {time_text(parts.handled)} in it, {time_text(parts.back)} back; with "
            f"probes {time_text(parts.whole)} in all{lock}",
        )
    if inside.delays:
        titles = {each.name: each.title for each in COUNTERS}
        yield from labelled_at(
            NAME,
            "  waited",
            "; ".join(
                f"{titles[name]}: {delay.count}, {time_text(delay.ns)}"
                for name, delay in inside.delays.items()
            ),
        )
    for why in inside.missing:
        if why not in told:
            told.add(why)
            yield from labelled_at(NAME, "  not told", why)


def _families(measured: Sequence[Measured]) -> Iterator[tuple[str, list[Measured]]]:
    """What stands together: one scenario in all its sizes."""
    for key, members in itertools.groupby(measured, lambda each: each.family or each.name):
        yield key, list(members)


def _fitted(family: str, members: Sequence[Measured]) -> Iterator[str]:
    """The line through the sizes of a scenario, where it is one."""
    points = [
        (each.pages, each.by_round)
        for each in members
        if each.pages is not None and why_missing(each) is None
    ]
    line = fit(points)
    if line is None:
        return
    bent = f"; sizes lie up to {line.off:.0%} off" if line.off > BENT else ""
    yield from labelled_at(
        NAME,
        "",
        f"= {_estimate(line.fixed)} + {_estimate(line.page)} a page{bent}",
    )


def _estimate(estimate: Estimate) -> str:
    if math.isinf(estimate.low):
        return f"{signed_time(estimate.value)} (one round: how sure is not known)"
    ends = f"{signed_time(estimate.low)} to {signed_time(estimate.high)}"
    return f"{signed_time(estimate.value)} ({ends})"


def signed_time(ns: float) -> str:
    """A time that may be below zero, as a fixed part that is lost in the error may."""
    return f"-{time_text(-ns)}" if ns < 0 else time_text(ns)


def _line(each: Measured, reasons: dict[str, str]) -> Iterator[str]:
    """`reasons` are those that were told before, and of what."""
    why = why_missing(each)
    if why is not None:
        colour = "red" if each.errors else "bright_black"
        whole = f"{why} ({each.remedy})" if each.remedy else why
        first = reasons.setdefault(whole, each.name)
        head, *more = labelled_at(NAME, each.name, whole if first == each.name else f"as {first}")
        yield click.style(head, fg=colour)
        yield from more
        return
    summary = each.summary
    assert summary is not None
    figures = (summary.median, summary.upper - summary.lower, summary.p99)
    text = " ".join(f"{time_text(value):>{FIGURE}}" for value in figures)
    line = f"{each.name:<{NAME}} {text} {sparkline(each.values, SPARK)}  {_made(each)}"
    yield line.rstrip()


def labelled_at(width: int, label: str, text: str) -> list[str]:
    """`text` wrapped beside a label of `width` columns, within 80."""
    import textwrap

    lines = textwrap.wrap(printable(text), 79 - width, break_on_hyphens=False) or [""]
    return [f"{label:<{width}} {lines[0]}", *(" " * (width + 1) + line for line in lines[1:])]


def _made(each: Measured) -> str:
    words = []
    if each.errors:
        words.append(click.style(f"{len(each.errors)} ERRORS", fg="red"))
    seen = sorted(each.tables - {0}, key=abs)
    if seen:
        # What is remapped tells how many tables went, a fault how many came.
        count = -seen[-1] if each.family else seen[-1]
        words.append(f"{count:+d}")
    return ", ".join(words)


def _conditions(measured: Sequence[Measured], conditions: Conditions) -> Iterator[str]:
    facts = conditions.facts
    samples = sum(each.samples for each in measured)
    marked = sum(each.marked for each in measured)
    kept = sum(each.kept for each in measured)
    first = [value for each in measured for value in each.first]
    yield from labelled(
        "samples",
        f"{samples} in all; the first of each round ({len(first)}) are apart, as are {marked} "
        "that lost the CPU"
        + (f"; {kept} longer than half a tick lost it too and are kept" if kept else ""),
    )
    faults = sum(each.faults for each in measured)
    yield from labelled("faults", f"{faults} counted by the kernel (getrusage)")
    proven = (
        "walks of the module"
        if facts["source"] == "module"
        else ("pagemap: leaves alone, tables only as far as VmPTE counts them")
    )
    if "frames" in facts:
        proven += f"; frames are {facts['frames']}: whether a frame is another is not proven"
    yield from labelled("proven by", proven)
    ns = float(facts["clock_overhead_ns"])
    yield from labelled(
        "clock",
        f"{facts['clock']}; its own {ns:.1f} ns taken off, less than "
        f"{float(facts['clock_resolution_ns']):.1f} ns refused"
        + (f"; {facts['clock_note']}" if "clock_note" in facts else ""),
    )
    yield from labelled(
        "machine",
        printable(
            f"{facts['cpu_model_name']}, CPU {facts['cpu_affinity']} of {facts['cpu_count']}; "
            f"{facts['accelerator']}; governor {facts['governor']}"
        ),
    )
    yield from labelled(
        "kernel",
        printable(
            f"{facts['kernel']}, {facts['levels']} levels; THP {facts.get('thp', 'none')}, "
            f"khugepaged every {facts.get('khugepaged_scan_ms', '-')} ms, NUMA balancing "
            f"{facts.get('numa_balancing', 'none')}"
        ),
    )
    yield from labelled("against", printable(f"{facts['mitigations']}"))


def render_comparison(comparison: Comparison) -> str:
    """A line a benchmark, and what else is different."""
    return "\n".join(_comparison(comparison))


def _comparison(comparison: Comparison) -> Iterator[str]:
    yield f"{'':<{SHORT}} {'first':>{FIGURE}} {'second':>{FIGURE}}  change interval in %"
    for each in comparison.differences:
        yield _difference(each)
    yield ""
    untold = comparison.untold
    count, found = len(comparison.differences) - len(untold), len(comparison.found)
    if count:
        yield f"{found} of {count} differ" if found else f"no difference shown in {count}"
    if found:
        yield from labelled(
            "beware",
            "what the machine was busy with while a file was made is in it: what is seen again "
            "with two more files is the kernel's",
        )
    if untold:
        those = printable(", ".join(each.name for each in untold))
        yield from labelled(
            "not told", f"{those}: a file has one round only; measure with --rounds 2 or more"
        )
    for which, names in (("A", comparison.only_first), ("B", comparison.only_second)):
        if names:
            yield from labelled(f"only {which}", printable(", ".join(names)))
    for name, one, other in comparison.unlike:
        yield from labelled("unlike", printable(f"{name}: {one} / {other}"))


def _difference(each: Difference) -> str:
    change = f"{_percent(each.ratio)} %"
    interval = f"{_percent(each.low)} to {_percent(each.high)}"
    colours = {"slower": "red", "faster": "green"}
    verdict = click.style(each.verdict, fg=colours.get(each.verdict))
    return (
        f"{printable(each.name)[:SHORT]:<{SHORT}} {time_text(each.first):>{FIGURE}}"
        f" {time_text(each.second):>{FIGURE}} {change:>7} {interval:<14} {verdict}"
    )


def _percent(ratio: float) -> str:
    """A change of at most five characters; `?` where there is no end."""
    if ratio in (0, float("inf")):
        return "?"
    percent = (ratio - 1) * 100
    if percent >= 9999.5:
        return ">9999"
    return f"{percent:+.{1 if abs(percent) < 9.95 else 0}f}"


def comparison_json(comparison: Comparison) -> dict[str, object]:
    """The object of `bench compare --json`; times in ns, an end without a value is null."""

    def end(value: float) -> float | None:
        return None if value in (0, float("inf")) else value

    return {
        "benchmarks": [
            {
                "name": each.name,
                "first_ns": each.first,
                "second_ns": each.second,
                "ratio": each.ratio,
                "low": end(each.low),
                "high": end(each.high),
                "verdict": each.verdict,
            }
            for each in comparison.differences
        ],
        "only_first": list(comparison.only_first),
        "only_second": list(comparison.only_second),
        "unlike": [
            {"name": name, "first": one, "second": other} for name, one, other in comparison.unlike
        ],
    }
