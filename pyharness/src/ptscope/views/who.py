# SPDX-License-Identifier: GPL-2.0-or-later
"""Who maps a frame, as text for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from ptscope.target.frame import Frame
from ptscope.views.entry import size_text
from ptscope.views.text import middle_cut, printable
from ptscope.views.walk import WIDTH, labelled
from ptscope.views.walk import render as render_walk
from ptscope.walk import Walk
from ptscope.who.answer import Answer, Mapper, Mapping
from ptscope.who.places import Place

HEADS = ("pid", "comm", "address", "perms", "size", "vma")
PLURALS = {"mapping": "s", "address space": "s", "process": "es", "kernel thread": "s"}
SHOWN = 64  # mappings of one process
LETTERS = (("read", "r"), ("write", "w"), ("exec", "x"))
NAMED_SKIPPED = 8


def render(answer: Answer) -> str:
    """All lines, without the last newline."""
    return "\n".join(_lines(answer))


def render_unmapped(walk: Walk) -> str:
    """For an address without a frame."""
    return f"{render_walk(walk)}\n\nno frame is mapped there, so nobody else can map it"


def _lines(answer: Answer) -> Iterator[str]:
    yield click.style(f"frame {answer.pfn:#x}", bold=True)
    yield from labelled("frame", _frame(answer.after))
    rows = [row for mapper in answer.mappers for row in _rows(mapper)]
    if answer.kernel:
        rows += [_row(("", "kernel"), Mapping(place)) for place in answer.kernel]
    if rows:
        yield ""
        yield from _table([HEADS, *rows])
        yield ""
    yield from labelled("found", _found(answer))
    for mapper, mapping in answer.lasting:
        where = f"{mapper.process.pid} at {mapping.place.address:#x}"
        text = f"{where}: pagemap shows {mapping.lasting}, at each of several readings"
        yield from labelled("DIFFERS", text)
    yield from labelled("looked at", _looked(answer))
    for each in answer.skipped[:NAMED_SKIPPED]:
        yield from labelled("skipped", printable(f"{each.pid} {each.comm}: {each.cause}"))
    if len(answer.skipped) > NAMED_SKIPPED:
        yield from labelled("skipped", f"{len(answer.skipped) - NAMED_SKIPPED} more")
    yield from labelled("source", _source(answer))


def _frame(frame: Frame | None) -> str:
    if frame is None:
        return "not visible: /proc/kpageflags needs root"
    if frame.map_count is None:
        return f"{frame.kind}: no page of the kernel stands for it"
    times = {0: "not mapped by the kernel's count", 1: "mapped once"}
    count = times.get(frame.map_count, f"mapped {frame.map_count} times")
    return f"{frame.kind}, {count}; flags: {' '.join(frame.words) or 'none'}"


def _rows(mapper: Mapper) -> Iterator[tuple[str, ...]]:
    process = mapper.process
    names = (str(process.pid), printable(process.comm))
    for mapping in mapper.mappings[:SHOWN]:
        yield _row(names, mapping)
    more = len(mapper.mappings) - SHOWN
    if more > 0:
        yield (*names, f"and {more} more", "", "", "")
    for sharer in mapper.sharers:
        same = f"shares the address space of {process.pid}"
        yield (str(sharer.pid), printable(sharer.comm), same, "", "", "")


def _row(names: tuple[str, str], mapping: Mapping) -> tuple[str, ...]:
    place = mapping.place
    times = f" ({place.count} times, {size_text(place.stride)} apart)" if place.count > 1 else ""
    return (
        *names,
        f"{place.address:#x}{times}",
        _permissions(place),
        _size(place),
        _vma(place) + ("  DIFFERS" if mapping.lasting else ""),
    )


def _permissions(place: Place) -> str:
    """What the tables allow; without them what the VMA does, in parentheses."""
    allowed = place.effective
    if allowed is None:
        return f"({place.vma.permissions[:3]})" if place.vma else ""
    return "".join(letter if getattr(allowed, name) else "-" for name, letter in LETTERS)


def _size(place: Place) -> str:
    entry = place.entry
    if entry is None:
        return ""
    words = size_text(entry.page_size) if entry.page_size else ""
    if entry.mapping_size not in (None, entry.page_size):
        words += f" of {size_text(entry.mapping_size or 0)}"
    return words if entry.state == "leaf" else f"{words} {entry.state}"


def _vma(place: Place) -> str:
    vma = place.vma
    if vma is None:
        return "none"
    name = printable(vma.name) or ("anonymous" if not vma.inode else f"inode {vma.inode}")
    return f"{vma.permissions} {name}"


NARROWEST = 16  # columns of a name, whatever stands before it


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    # Text in place of an address (somebody who shares) does not make the column wider.
    widths = [max(len(row[i]) for row in rows if row[i + 1 :] and row[3]) for i in range(5)]
    for row in rows:
        cells = [
            cell.rjust(width) if i == 0 else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=False))
        ]
        line = "  ".join([*cells, ""])
        yield (line + middle_cut(row[5], max(WIDTH - len(line), NARROWEST))).rstrip()


def _some(count: int, noun: str) -> str:
    return f"{count} {noun if count == 1 else noun + PLURALS[noun]}"


def _found(answer: Answer) -> str:
    count = answer.found
    if answer.moving:
        return f"{_some(count, 'mapping')}; the kernel's count changed meanwhile"
    counted = answer.counted
    if counted is None:
        return f"{_some(count, 'mapping')}; the kernel does not count those of such a frame"
    text = f"{count} of {_some(counted, 'mapping')}"
    if count < counted:
        text += (
            "; the others may be of processes not looked at"
            if answer.limited or answer.skipped
            else "; the others are of no process that is seen here: another PID namespace, a "
            "process that exited meanwhile, or the kernel"
        )
    elif count > counted:
        text += "; the kernel counts a page table that processes share (hugetlb) once"
    return text


def _looked(answer: Answer) -> str:
    parts = [_some(answer.looked, "address space")]
    if answer.entries:
        parts.append(f"{answer.entries} entries")
    if answer.sharing:
        parts.append(f"shared with {_some(answer.sharing, 'process')} more")
    if answer.kernel_threads:
        parts.append(f"without {_some(answer.kernel_threads, 'kernel thread')}, which have none")
    if answer.kernel is not None:
        parts.append("the kernel half")
    if answer.changed:
        parts.append(f"{_some(answer.changed, 'mapping')} gone when looked at again")
    if answer.limited:
        parts.append("only those asked for")
    return ", ".join(parts)


def _source(answer: Answer) -> str:
    if answer.layout is None:
        return f"pagemap: leaves only, no lock; slow; kernel {answer.release}"
    return f"module, layout {answer.layout.name}; kernel {answer.release}"
