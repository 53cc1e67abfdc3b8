# SPDX-License-Identifier: GPL-2.0-or-later
"""What a snapshot says of itself, as text for people."""

from __future__ import annotations

from collections.abc import Iterator

import click

from ptscope.decode.layout import Layout
from ptscope.snapshot.facts import Header, Memory, Target, Trailer
from ptscope.space.usage import Usage
from ptscope.views.text import printable
from ptscope.views.walk import labelled

# What is shown of the memory facts, all in KiB.
SHOWN = ("VmRSS", "VmSwap", "HugetlbPages", "VmPTE")


def render_facts(header: Header, trailer: Trailer) -> str:
    """The lines about the snapshot as a whole, without the last newline."""
    return "\n".join(_facts(header, trailer))


def _facts(header: Header, trailer: Trailer) -> Iterator[str]:
    yield click.style(f"{target_text(header.target)}, dumped {header.time}", bold=True)
    if header.target.exe is not None:
        yield from labelled("program", printable(header.target.exe))
    ranges = [f"{first:#x} to {last:#x}" for first, last in header.ranges]
    more = [f"and {len(ranges) - 4} more"] if len(ranges) > 4 else []
    yield from labelled("addresses", ", ".join([*ranges[:4], *more]))
    totals = trailer.totals
    yield from labelled(
        "holds",
        f"{count(totals.entries, 'entry', 'entries')} in {count(totals.tables, 'part', 'parts')} "
        f"of tables, {count(totals.vmas, 'VMA', 'VMAs')}, "
        f"{count(totals.batches, 'batch', 'batches')}",
    )
    if header.memory.status:
        yield from labelled("memory", _memory(header.memory, trailer.memory))
    yield from labelled(
        "source",
        f"{header.source}, layout {header.layout.name}; kernel {printable(header.kernel)}; "
        f"written by {printable(header.writer)}",
    )


def render_usage(layout: Layout, usage: Usage) -> str:
    """What is mapped where no VMAs are known, without the last newline."""
    pages = [
        f"{size // 1024}K x {amount // size}" for size, amount in sorted(usage.by_size.items())
    ]
    tables = [f"{level.name} {usage.tables.get(level.name, 0)}" for level in layout.levels[1:]]
    lines = [*labelled("pages", ", ".join(pages) or "none"), *labelled("tables", ", ".join(tables))]
    return "\n".join(lines)


def _memory(before: Memory, after: Memory) -> str:
    parts = []
    for key in SHOWN:
        if key in before.status:
            now = after.status.get(key)
            became = "" if now in (before.status[key], None) else f" (then {now})"
            parts.append(f"{key} {before.status[key]} KiB{became}")
    return ", ".join(parts)


def target_text(target: Target) -> str:
    """The PID and the name, or `kernel half`."""
    if target.pid is None:
        return "kernel half"
    exited = " (its main thread has exited)" if target.leader_exited else ""
    return f"{target.pid} {printable(target.comm or '')}{exited}"


def count(number: int, one: str, several: str) -> str:
    """A number and its noun."""
    return f"{number} {one if number == 1 else several}"
