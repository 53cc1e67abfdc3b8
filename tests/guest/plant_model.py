# SPDX-License-Identifier: GPL-2.0-or-later
"""Faults that the model must find: in what is seen of the tables, and in its own rules.

Host tests plant them over a twin of the model, guest tests over the real kernel. The table in
tests/README.md says what finds each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

from ptscope.decode.layout import Layout
from ptscope.model import faults, state
from ptscope.model.calls import mapping, process
from ptscope.model.kernel import PMD, PTE
from ptscope.model.observe import ModuleView, View
from ptscope.model.state import Leaf, Space, Vma
from ptscope.raw.records import RawTable

Tables = list[RawTable]
EACH = 8
CHOSEN = 5
"""Of every 8 pages, the one the faults are about."""


def _chosen(table: RawTable, change: Callable[[int], int]) -> RawTable:
    """The table with what `change` makes of every chosen entry that is there."""
    raws = tuple(
        change(raw) if raw and (table.index + at) % EACH == CHOSEN else raw
        for at, raw in enumerate(table.raws)
    )
    return replace(table, raws=raws)


def _at_pte(tables: Tables, change: Callable[[int], int]) -> Tables:
    return [_chosen(table, change) if table.level == PTE else table for table in tables]


def permission_flipped(tables: Tables, layout: Layout, memory: dict[int, RawTable]) -> Tables:
    """An entry permits writing that does not, or the other way round."""
    bit = 1 << layout.facts["bit.write"]
    return _at_pte(tables, lambda raw: raw ^ bit)


def frame_shifted(tables: Tables, layout: Layout, memory: dict[int, RawTable]) -> Tables:
    """An entry shows the next frame from the second look on: a page seems to have moved.

    The second look at the page, not at its table: a frame that is another one from the beginning
    is wrong only by chance, when some other page has it.
    """
    unit = 1 << layout.facts["page_shift"]
    out = []
    for table in tables:
        if table.level == PTE:
            before = memory.get(table.address >> 21)
            seen = (
                {before.index + at for at, raw in enumerate(before.raws) if raw} if before else ()
            )
            raws = tuple(
                raw + unit if raw and at in seen and at % EACH == CHOSEN else raw
                for at, raw in enumerate(table.raws, table.index)
            )
            memory[table.address >> 21] = table
            out.append(replace(table, raws=raws))
        else:
            out.append(table)
    return out


def level_dropped(tables: Tables, layout: Layout, memory: dict[int, RawTable]) -> Tables:
    """The PTE table of every second PMD entry is left out."""
    return [table for table in tables if table.level != PTE or not table.address >> 21 & 1]


def dirty_lost(tables: Tables, layout: Layout, memory: dict[int, RawTable]) -> Tables:
    """An entry is shown clean."""
    bit = 1 << layout.facts["bit.dirty"]
    return _at_pte(tables, lambda raw: raw & ~bit)


def freed_table_shown(tables: Tables, layout: Layout, memory: dict[int, RawTable]) -> Tables:
    """PMD entries that pointed to a table are shown for ever."""
    there = set()
    for table in tables:
        if table.level == PMD:
            for at, raw in enumerate(table.raws):
                if raw:
                    where = table.address + (at << 21)
                    there.add(where)
                    memory[where] = replace(
                        table, address=where, index=table.index + at, raws=(raw,)
                    )
    return tables + [kept for where, kept in memory.items() if where not in there]


SOURCES: dict[str, Callable[[Tables, Layout, dict[int, RawTable]], Tables]] = {
    "permission_flipped": permission_flipped,
    "frame_shifted": frame_shifted,
    "level_dropped": level_dropped,
    "dirty_lost": dirty_lost,
    "freed_table_shown": freed_table_shown,
}


def planted(name: str) -> Callable[[View], View]:
    """For `open_session(view=...)`: views with this fault. A process has a memory of its own."""

    def plant(view: View) -> View:
        assert isinstance(view, ModuleView)
        read, layout, memory = view.read, view._layout, dict[int, RawTable]()

        def wrong() -> tuple[list[object], Tables]:
            vmas, tables = read()
            return list(vmas), SOURCES[name](tables, layout, memory)

        view.read = wrong  # type: ignore[method-assign, assignment]
        return view

    return plant


# ---- rules of the model, each replaced by a wrong one


def _fork_keeps_writable(space: Space, child: Space, vma: Vma) -> None:
    for level, index, entry in list(space.leaves(vma.start, vma.end)):
        if isinstance(entry, Leaf):
            child.put(level, index, replace(entry, accessed=False))


def _always_copies(space: Space, index: int, leaf: Leaf) -> bool:
    return False


def _never_copies(space: Space, index: int, leaf: Leaf) -> bool:
    return True


def _no_neighbours(space: Space, vma: Vma, address: int) -> None:
    return


def _tables_stay(space: Space, start: int, end: int) -> None:
    return


def _writable_at_once(space: Space, vma: Vma, level: int, leaf: Leaf, index: int) -> bool:
    return "w" in vma.prot


def _clean_when_fresh(space: Space, vma: Vma, index: int) -> None:
    page = state.Page("anon", exclusive=True)
    space.put(PTE, index, Leaf(page, write="w" in vma.prot, accessed=True))


RULES: dict[str, tuple[object, str, object]] = {
    "fork leaves the permission to write": (process, "_copy_entries", _fork_keeps_writable),
    "a write to a page that was shared always copies": (faults, "_may_reuse", _always_copies),
    "a write to a shared page never copies": (faults, "_may_reuse", _never_copies),
    "a read of a file maps one page alone": (faults, "do_fault_around", _no_neighbours),
    "munmap frees no tables": (Space, "free_tables", _tables_stay),
    "mprotect makes every entry writable": (mapping, "may_write_at_once", _writable_at_once),
    "a page that was written is clean": (faults, "put_fresh", _clean_when_fresh),
}


@contextmanager
def wrong_rule(name: str) -> Iterator[None]:
    """The model with this rule wrong."""
    where, attribute, wrong = RULES[name]
    with patch.object(where, attribute, wrong):
        yield


@contextmanager
def right_rule(name: str) -> Iterator[None]:
    """Within `wrong_rule`, the model as it is: for a twin that must not have the fault."""
    where, attribute, _ = RULES[name]
    with patch.object(where, attribute, ORIGINALS[name]):
        yield


ORIGINALS = {name: getattr(where, attribute) for name, (where, attribute, _) in RULES.items()}
