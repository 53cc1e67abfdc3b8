# SPDX-License-Identifier: GPL-2.0-or-later
"""What changed between two snapshots, as text for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import click

from ptscope.diff.events import Tables
from ptscope.diff.merge import Change, Raw
from ptscope.diff.report import Area, Page, Range, Totals
from ptscope.diff.sides import Sides
from ptscope.diff.words import words
from ptscope.snapshot.facts import Header
from ptscope.target.vma import Vma
from ptscope.views.entry import size_text
from ptscope.views.show import count, target_text
from ptscope.views.text import middle_cut, printable
from ptscope.views.walk import LABEL, WIDTH, labelled, wrapped


def sides_lines(sides: Sides) -> Iterator[str]:
    """What is compared."""
    yield from labelled("old", _side(sides.old_name, sides.old))
    yield from labelled("new", _side(sides.new_name, sides.new))
    for note in sides.notes:
        yield from labelled("note", note)


def _side(name: str, header: Header) -> str:
    file = middle_cut(printable(name), WIDTH - LABEL - 1)
    return (
        f"{file}: {target_text(header.target)}, {header.time}, kernel {printable(header.kernel)}"
    )


def area_lines(area: Area) -> Iterator[str]:
    """The heading of an area."""
    vma = area.new or area.old
    if vma is None:
        yield click.style(f"{area.start:#x}-{area.end:#x} outside of VMAs", bold=True)
        return
    start, end = (area.start, area.end) if None in (area.old, area.new) else (vma.start, vma.end)
    head = f"{start:#x}-{end:#x} "
    yield click.style(head + middle_cut(_called(vma), WIDTH - len(head)), bold=True)
    if area.old is not None and area.new is not None and _span(area.old) != _span(area.new):
        yield f"  was {_range(area.old)}"
    for word in area.changes:
        yield f"  {printable(word)}"


def range_line(item: Range, page: int) -> str:
    """One range of equal change."""
    pages = (item.end - item.start) // page
    where = f"  {item.start:#x}-{item.end:#x} {pages:>7} "
    return where + _beside(item.change, len(where))


@lru_cache(maxsize=1024)
def _beside(change: Change, used: int) -> str:
    """The words for a change, wrapped beside so many columns."""
    return ("\n" + " " * used).join(wrapped(", ".join(words(change)), used))


def page_lines(item: Page) -> Iterator[str]:
    """One page, its entries below."""
    size = size_text(item.size)
    yield f"  {item.address:#x} {size}: {', '.join(words(item.change))}"
    yield f"    {_entry(item.old)} became {_entry(item.new)}"


def totals_lines(totals: Totals, tables: tuple[Tables, Tables], sides: Sides) -> Iterator[str]:
    """The tables at the end."""
    for before, after in totals.moved:
        called = middle_cut(_called(after), WIDTH - LABEL - 1)
        yield from labelled("moved", f"{_range(before)} to {_range(after)} {called}")
    if not totals.areas:
        yield "nothing changed"
        return
    yield click.style("pages changed, by VMA", bold=True)
    for area in totals.areas:
        vma = area.new or area.old
        name = "outside of VMAs" if vma is None else _called(vma)
        head = f"{area.changed:>9}  {area.start:#x}-{area.end:#x} "
        yield head + middle_cut(name, WIDTH - len(head))
        parts = [f"{number} {word}" for word, number in area.pages.most_common()]
        for line in wrapped(", ".join([*area.changes, *parts]), 11):
            yield " " * 11 + printable(line)
    yield click.style(
        f"in all {count(totals.changed, 'page', 'pages')} of {size_text(sides.page)}", bold=True
    )
    for word, number in totals.pages.most_common():
        yield f"{number:>9}  {word}"
    old, new = tables
    if _all(sides) and old.count != new.count:
        parts = [
            f"{name} {old.count.get(name, 0)} to {new.count.get(name, 0)}"
            for name in dict.fromkeys([*old.count, *new.count])
            if old.count.get(name) != new.count.get(name)
        ]
        yield from labelled("tables", ", ".join(parts))


def sides_json(sides: Sides) -> dict[str, object]:
    """The first object: what is compared."""
    return {
        "type": "files",
        "old": _side_json(sides.old_name, sides.old),
        "new": _side_json(sides.new_name, sides.new),
        "frames_compared": sides.frames,
        "page_size": sides.page,
        "notes": list(sides.notes),
    }


def _side_json(name: str, header: Header) -> dict[str, object]:
    whole = header.to_json()
    keys = ("target", "time", "source", "kernel", "machine", "boot_id", "request")
    return {"file": name, **{key: whole[key] for key in keys}, "layout": header.layout.name}


def area_json(area: Area) -> dict[str, object]:
    """One object for an area, after those of what is in it."""
    return {
        "type": "vma",
        "start": hex(area.start),
        "end": hex(area.end),
        "old": None if area.old is None else area.old.to_json(),
        "new": None if area.new is None else area.new.to_json(),
        "changes": list(area.changes),
        "pages_changed": area.changed,
        "pages": dict(area.pages),
    }


def range_json(item: Range, page: int) -> dict[str, object]:
    """One object for a range of equal change."""
    return {
        "type": "range",
        "start": hex(item.start),
        "end": hex(item.end),
        "pages": (item.end - item.start) // page,
        "changes": list(words(item.change)),
    }


def page_json(item: Page) -> dict[str, object]:
    """One object for a page."""
    return {
        "type": "page",
        "address": hex(item.address),
        "size": item.size,
        "changes": list(words(item.change)),
        "old": _entry_json(item.old),
        "new": _entry_json(item.new),
    }


def totals_json(
    totals: Totals, tables: tuple[Tables, Tables], sides: Sides
) -> dict[str, object]:
    """The last object."""
    old, new = tables
    return {
        "type": "total",
        "different": bool(totals.areas),
        "pages_changed": totals.changed,
        "pages": dict(totals.pages),
        "moved": [[old.to_json(), new.to_json()] for old, new in totals.moved],
        "tables": {"old": old.count, "new": new.count} if _all(sides) else None,
    }


def _all(sides: Sides) -> bool:
    """Whether tables were counted: of several ranges, one that is in two of them comes twice."""
    return sides.old.ranges == sides.new.ranges and len(sides.old.ranges) == 1


def _called(vma: Vma) -> str:
    name = printable(vma.name) or ("anonymous" if not vma.inode else f"inode {vma.inode}")
    return f"{vma.permissions} {name}"


def _range(vma: Vma) -> str:
    return f"{vma.start:#x}-{vma.end:#x}"


def _span(vma: Vma) -> tuple[int, int]:
    return vma.start, vma.end


def _entry(entry: Raw | None) -> str:
    return "none" if entry is None else f"{entry.level} {entry.raw:#018x}"


def _entry_json(entry: Raw | None) -> dict[str, object] | None:
    return None if entry is None else {"level": entry.level, "raw": f"{entry.raw:#018x}"}
