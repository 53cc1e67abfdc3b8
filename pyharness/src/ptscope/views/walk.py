# SPDX-License-Identifier: GPL-2.0-or-later
"""A walk as text for people: a line a level, then what follows from them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import click

from ptscope.compare import Comparison
from ptscope.views.entry import size_text
from ptscope.views.text import middle_cut, printable
from ptscope.walk import Step, Walk

WIDTH = 80
LABEL = 11
COLOURS = {"table": "blue", "leaf": "green", "none": "bright_black", "invalid": "red"}
OTHER_COLOUR = "yellow"

STATES = {
    "none": "not mapped: the {level} entry is empty",
    "protnone": "mapped, but not for the hardware (PROT_NONE or NUMA hint)",
    "splitting": "mapped, but not for the hardware (a huge page being split)",
    "swap": "swapped out",
    "migration": "not mapped: the page is being migrated",
    "device": "not mapped: the page is in device memory",
    "hwpoison": "not mapped: the page has a memory error",
    "marker": "not mapped: a marker",
    "invalid": "invalid: {reason}",
}
# pagemap leaves out whole kinds of mappings (VM_PFNMAP), and calls every special entry swapped.
PAGEMAP_STATES = {
    "none": "none that pagemap shows",
    "swap": "not mapped: swapped out, or a special entry that pagemap calls so",
}


def render(walk: Walk) -> str:
    """All lines of one walk, without the last newline, at most 80 columns wide."""
    return "\n".join(_lines(walk))


def render_comparison(comparison: Comparison) -> str:
    """The lines that say whether pagemap agrees."""
    if comparison.differences:
        each = "; ".join(str(difference) for difference in comparison.differences)
        text = click.style("DIFFERS", fg="red", bold=True)
        detail = f" at each of {comparison.attempts} readings: {each}"
    else:
        text = click.style("agrees", fg="green")
        detail = " (frames hidden)" if comparison.hidden else ""
        detail += f" ({comparison.note})" if comparison.note else ""
    return "\n".join(labelled("pagemap", "X" * len(click.unstyle(text)) + detail)).replace(
        "X" * len(click.unstyle(text)), text, 1
    )


def _lines(walk: Walk) -> Iterator[str]:
    who = "kernel half" if walk.pid is None else f"{walk.pid} {printable(walk.comm or '')}"
    if walk.leader_exited:
        who += " (its main thread has exited)"
    yield click.style(f"{who}, address {walk.address:#x}", bold=True)
    yield from _levels(walk)
    yield from labelled("mapping", _mapping(walk))
    yield from labelled("effective", _effective(walk))
    if walk.pid is not None:
        yield from labelled("vma", _vma(walk))
    # What a frame is used for is known of the machine as it is now, and not in a snapshot.
    if walk.mapping.pfn is not None and walk.source != "snapshot":
        yield from labelled("frame", _frame(walk))
    yield from labelled("source", _source(walk))


def _levels(walk: Walk) -> Iterator[str]:
    rows = [(step.level, step) for step in walk.levels]
    if walk.user_pgd is not None:
        # What user mode runs on under PTI, next to the kernel's own root entry.
        rows.insert(0, ("user", walk.user_pgd))
    names = max((len(name) for name, _ in rows), default=0)
    places = max((len(f"{s.entry.entry_pa:#x}") for _, s in rows if s.entry), default=0)
    for name, step in rows:
        yield from _level(f"{name:<{names}}", step, places)


def _level(name: str, step: Step, places: int) -> Iterator[str]:
    if step.folded:
        yield f"{name}   - folded"
        return
    if step.entry is None or step.decoded is None:
        return
    where = f"{step.entry.raw:#018x} at {step.entry.entry_pa:#{places}x}"
    head = f"{name} {step.index:>3} {where}  "
    state = step.decoded.state
    # A table or leaf is present by being one.
    flags = [flag for flag in step.decoded.flags if flag != "present"]
    lines = wrapped(" ".join([state, *flags]), len(head))
    colour = COLOURS.get(state, OTHER_COLOUR)
    yield head + click.style(state, fg=colour) + lines[0][len(state) :]
    for line in lines[1:]:
        yield " " * len(head) + line


def _mapping(walk: Walk) -> str:
    mapping = walk.mapping
    parts = []
    if mapping.state != "leaf":
        reason = walk.last.reason if walk.last else ""
        words = {**STATES, **PAGEMAP_STATES} if walk.leaf else STATES
        parts.append(words[mapping.state].format(level=mapping.level, reason=reason))
    if walk.last is not None and walk.last.swap is not None:
        swap = walk.last.swap
        parts.append(f"{swap.kind}, type {swap.type}, offset {swap.offset:#x}")
    elif walk.leaf is not None and walk.leaf.page.swap_offset is not None:
        page = walk.leaf.page
        parts.append(f"type {page.swap_type}, offset {page.swap_offset:#x}")
    if mapping.pa is not None and mapping.pfn is not None:
        parts.append(f"physical {mapping.pa:#x}, frame {mapping.pfn:#x}")
    if walk.leaf is not None and walk.leaf.page.present and mapping.pfn is None:
        parts.append("mapped; its frame is hidden without CAP_SYS_ADMIN")
    if mapping.page_size is not None and mapping.pa is not None:
        parts.append(f"{size_text(mapping.page_size)} page")
        if mapping.mapping_size not in (None, mapping.page_size):
            parts.append(f"one of a group of {size_text(mapping.mapping_size or 0)}")
    elif walk.leaf is not None and walk.leaf.page.present:
        parts.append(
            "page size not visible"
            if mapping.page_size is None
            else f"{size_text(mapping.page_size)} page"
        )
    return ", ".join(parts)


def _effective(walk: Walk) -> str:
    allowed = walk.effective
    if allowed is None:
        return "not visible without the module: it depends on all levels"
    if not any((allowed.read, allowed.write, allowed.exec, allowed.user)):
        deciding = sorted({level for level in allowed.decided_by.values() if level})
        return "no access" + (f": {', '.join(deciding)} decides" if deciding else "")
    names = ("read", "write", "exec", "user")
    given = " ".join(name for name in names if getattr(allowed, name))
    denied = [f"no {name} ({level})" for name, level in allowed.decided_by.items() if level]
    return ", ".join([given, *denied])


def _vma(walk: Walk) -> str:
    vma = walk.vma
    if vma is None:
        return "none: the address is in a hole"
    name = printable(vma.name) or ("anonymous" if not vma.inode else f"inode {vma.inode}")
    offset = f" at offset {vma.offset:#x}" if vma.inode else ""
    name = middle_cut(name, WIDTH - LABEL)
    return f"{vma.start:#x}-{vma.end:#x} {vma.permissions} {name}{offset}"


def _frame(walk: Walk) -> str:
    frame = walk.frame
    if frame is None:
        return "not visible: /proc/kpageflags needs root"
    times = {None: "", 0: "", 1: ", mapped once"}
    count = times.get(frame.map_count, f", mapped {frame.map_count} times")
    return f"{frame.kind}{count}; flags: {' '.join(frame.words) or 'none'}"


def _source(walk: Walk) -> str:
    if walk.leaf is not None:
        what = "pagemap: leaves only, no lock"
    elif walk.lock == "none":
        what = f"{walk.source}, layout {_layout(walk)}, no lock: a snapshot, read twice and equal"
    else:
        what = f"{walk.source}, layout {_layout(walk)}, mmap_lock held for {_LOCKED[walk.lock]}"
    return f"{what}; kernel {walk.kernel}"


_LOCKED = {"read": "reading", "write": "writing"}


def _layout(walk: Walk) -> str:
    return "unknown" if walk.layout is None else walk.layout.name


def labelled(label: str, text: str) -> Iterator[str]:
    """`text` wrapped beside its label."""
    first, *more = wrapped(text, LABEL)
    yield click.style(f"{label:<{LABEL}}", dim=True) + first
    for line in more:
        yield " " * LABEL + line


def wrapped(text: str, used: int) -> list[str]:
    """The lines of `text` that fit beside `used` columns; paths and names are not broken."""
    room = WIDTH - used
    lines = textwrap.wrap(text, room, break_on_hyphens=False, break_long_words=False)
    return lines or [""]
