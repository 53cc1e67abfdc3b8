# SPDX-License-Identifier: GPL-2.0-or-later
"""Holds what was seen against the prediction, and learns frames from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from ptscope.decode.table import STATES
from ptscope.model.kernel import PTE
from ptscope.model.observe import (
    PM_FRAME,
    PM_GUARD,
    PM_PRESENT,
    PM_SOFT_DIRTY,
    PM_SWAP,
    PM_UFFD_WP,
    Key,
    ModuleView,
    PagemapView,
    SeenVma,
    View,
)
from ptscope.model.predict import ACCESSED, EMPTY, WORDS, Prediction, of_entry
from ptscope.model.state import Entry, Leaf, Page, Space, Swapped, Table, Vma

MOST = 20
"""Differences that are reported of one step."""


@dataclass(frozen=True)
class Difference:
    """One thing that is not as predicted."""

    slot: int
    level: int
    address: int
    predicted: str
    seen: str
    raw: int | None = None

    def to_json(self) -> dict[str, object]:
        """For programs; addresses and raw values as hex text."""
        return {
            "process": self.slot,
            "level": self.level,
            "address": hex(self.address),
            "predicted": self.predicted,
            "seen": self.seen,
            "raw": None if self.raw is None else hex(self.raw),
        }


def compare(space: Space, view: View, changed: set[Key]) -> list[Difference]:
    """Compare all that changed in the model or in the tables; what did not was compared before."""
    out = compare_vmas(space, view.vmas)
    if isinstance(view, PagemapView):
        out += _compare_pagemap(space, view, changed)
    else:
        assert isinstance(view, ModuleView)
        out += _compare_tables(space, view, changed)
    space.changed.clear()
    return out[:MOST]


# ---- VMAs


def compare_vmas(space: Space, seen: list[SeenVma]) -> list[Difference]:
    """Every address must be in a VMA with the predicted permissions.

    Where VMAs that are alike meet, the kernel decides whether they are one (it depends on their
    anon_vma): the model takes over its borders, which decide where huge pages fit.
    """
    out: list[Difference] = []
    own = _joined((v.start, v.end, (v.prot, v.shared)) for v in space.vmas)
    theirs = _joined((v.start, v.end, (v.prot, v.shared)) for v in seen)
    if own != theirs:
        for start, end, what in own:
            if (start, end, what) not in theirs:
                out.append(Difference(space.slot, 0, start, _vma_words(end, what), "no such VMA"))
        for start, end, what in theirs:
            if (start, end, what) not in own:
                out.append(Difference(space.slot, 0, start, "no such VMA", _vma_words(end, what)))
        return out
    borders = [(vma.start, vma.end) for vma in seen]
    if borders != [(vma.start, vma.end) for vma in space.vmas]:
        space.vmas = [_adopted(space, vma) for vma in seen]
    for vma, shown in zip(space.vmas, seen, strict=True):
        # VM_SOFTDIRTY does not keep VMAs apart: a joint one has that of whichever is kept.
        if shown.soft_dirty is not None:
            vma.soft_dirty = shown.soft_dirty
    return out


def _joined(
    pieces: Iterable[tuple[int, int, tuple[str, bool]]],
) -> list[tuple[int, int, tuple[str, bool]]]:
    out: list[tuple[int, int, tuple[str, bool]]] = []
    for start, end, what in pieces:
        if out and out[-1][1] == start and out[-1][2] == what:
            out[-1] = (out[-1][0], end, what)
        else:
            out.append((start, end, what))
    return out


def _vma_words(end: int, what: tuple[str, bool]) -> str:
    prot, shared = what
    return f"VMA to {end:#x} {prot or 'none'} {'shared' if shared else 'private'}"


def _adopted(space: Space, seen: SeenVma) -> Vma:
    """The VMA with the borders that were seen, put together from the model's."""
    pieces = space.overlapping(seen.start, seen.end)
    first = pieces[0]
    pgoff = first.page_of(seen.start, space.geometry.shift)
    return replace(
        first,
        start=seen.start,
        end=seen.end,
        pgoff=pgoff,
        anon_vma=any(piece.anon_vma for piece in pieces),
        guarded=any(piece.guarded for piece in pieces),
    )


# ---- all levels


def _compare_tables(space: Space, view: ModuleView, changed: set[Key]) -> list[Difference]:
    out: list[Difference] = []
    by_level: dict[int, list[int]] = {}
    for level, index in space.changed | changed:
        by_level.setdefault(level, []).append(index)
    for level in sorted(by_level, reverse=True):
        indices = sorted(by_level[level])
        seen, entries = view.raws[level], space.entries[level]
        raws = [seen.get(index, 0) for index in indices]
        decoded = view.decode(level, raws).array
        for position, index in enumerate(indices):
            entry, raw = entries.get(index), raws[position]
            if entry is None and not raw:
                continue
            problem = _match(space, view, (level, index), entry, raw, decoded[position])
            if problem is not None:
                out.append(problem)
                if len(out) >= MOST:
                    return out
    return out


def _match(
    space: Space, view: ModuleView, key: Key, entry: Entry | None, raw: int, decoded: Any
) -> Difference | None:
    level, index = key
    if isinstance(entry, Leaf) and space.kernel.watched and not decoded.set & ACCESSED:
        # What is not accessed as predicted may have been, and DAMON has cleared the bit.
        entry.accessed = False
    wanted = EMPTY if entry is None else of_entry(space, level, index, entry)
    address = index << space.shifts[level]
    state = STATES[decoded.state]

    def difference(what: str = "") -> Difference:
        return Difference(
            space.slot, level, address, wanted.words(), what or _seen_words(decoded, wanted), raw
        )

    if state != wanted.state or (decoded.set ^ wanted.bits) & wanted.care & decoded.known:
        return difference()
    if isinstance(entry, Leaf):
        if decoded.has & 2 and decoded.pkey != wanted.pkey:
            return difference(f"protection key {decoded.pkey}")
        return _match_frame(space, entry.page, decoded, difference)
    if isinstance(entry, Table):
        return _match_table(space, view, key, entry, decoded, difference)
    if isinstance(entry, Swapped):
        if entry.slot.offset is None:
            entry.slot.offset = decoded.swap_offset
        elif entry.slot.offset != decoded.swap_offset:
            return difference(f"swap offset {decoded.swap_offset:#x}, not {entry.slot.offset:#x}")
    return None


def _match_frame(
    space: Space, page: Page, decoded: Any, difference: Callable[[str], Difference]
) -> Difference | None:
    """A page keeps its frame, and two pages never have the same."""
    frame = page.known_frame()
    if frame is not None:
        if decoded.pfn != frame:
            return difference(f"frame {decoded.pfn:#x}, not {frame:#x}")
        return None
    frame = decoded.pfn
    if page.size > 1 and frame % page.size:
        return difference(f"frame {frame:#x} is not aligned to {page.size} pages")
    if frame == page.other_than:
        return difference(f"frame {frame:#x} as before, but a copy was made")
    other = learn(space, page, frame)
    if other is not None:
        return difference(f"frame {frame:#x}, which another page has ({other.kind})")
    return None


def learn(space: Space, page: Page, frame: int) -> Page | None:
    """The frame of a page is seen for the first time; gives the other page that has it."""
    if page.whole is not None:
        page.frame = frame
        page, frame = page.whole, frame - page.offset
    other = space.world.frames.setdefault(frame, page)
    page.frame = frame
    return None if other is page else other


def _match_table(
    space: Space,
    view: ModuleView,
    key: Key,
    table: Table,
    decoded: Any,
    difference: Callable[[str], Difference],
) -> Difference | None:
    """A table keeps its place, is where its entry points to, and is no page of the process."""
    shift = space.shifts[PTE]
    if table.frame is not None and table.frame != decoded.pa >> shift:
        return difference(f"table at frame {decoded.pa >> shift:#x}")
    home = view.homes.get(key)
    if home is not None and home != decoded.pa:
        return difference(f"points to {decoded.pa:#x}, but its table is at {home:#x}")
    if table.frame is None and decoded.pa >> shift in space.world.frames:
        return difference(f"table at {decoded.pa:#x}, which is a page of the process")
    table.frame = decoded.pa >> shift
    return None


def _seen_words(decoded: Any, wanted: Prediction) -> str:
    state = STATES[decoded.state]
    if state == "none":
        return "empty"
    care = decoded.known & (wanted.care or ~0)
    yes = [word for bit, word in WORDS.items() if care & bit and decoded.set & bit]
    no = [word for bit, word in WORDS.items() if care & bit and not decoded.set & bit]
    text = " ".join((state, *yes))
    if no and wanted.care:
        text += ", not " + " ".join(no)
    return text + (f", frame {decoded.pfn:#x}" if decoded.has & 1 else "")


# ---- pagemap


def _compare_pagemap(space: Space, view: PagemapView, changed: set[Key]) -> list[Difference]:
    """Of each page: present or swapped, the frame, uffd-wp, guard; soft-dirty where the VMA's
    own does not cover it."""
    out: list[Difference] = []
    shift = space.geometry.shift
    indices: set[int] = {index for level, index in changed if level == PTE}
    for level, index in space.changed:
        first = index << space.shifts[level] >> shift
        if level == PTE or isinstance(space.entries[level].get(index), Leaf):
            indices.update(range(first, first + (1 << space.shifts[level] - shift)))
    for index in sorted(indices):
        problem = _match_word(space, index << shift, view.raws[PTE].get(index, 0))
        if problem is not None:
            out.append(problem)
            if len(out) >= MOST:
                break
    return out


def _match_word(space: Space, address: int, word: int) -> Difference | None:
    found = space.at(address)
    wanted = EMPTY if found is None else of_entry(space, *found)
    want = 0
    page: Page | None = None
    if found is not None:
        level, index, entry = found
        if isinstance(entry, Leaf):
            want = PM_PRESENT | (PM_UFFD_WP if entry.uffd_wp else 0)
            offset = (address >> space.geometry.shift) - (
                index << space.shifts[level] >> space.geometry.shift
            )
            page = entry.page.part(offset) if level > PTE else entry.page
        elif isinstance(entry, Swapped):
            want = PM_SWAP | (PM_UFFD_WP if entry.uffd_wp else 0)
        else:
            kind = getattr(entry, "kind", "")
            want = PM_SWAP | (0 if kind == "guard" else PM_UFFD_WP)
    care = PM_PRESENT | PM_SWAP | PM_UFFD_WP
    vma = space.find(address)
    if page is not None and vma is not None and not vma.soft_dirty:
        assert found is not None
        care |= PM_SOFT_DIRTY
        want |= PM_SOFT_DIRTY if getattr(found[2], "soft_dirty", False) else 0
    if (word ^ want) & care:
        return Difference(space.slot, PTE, address, wanted.words(), _word_words(word), word)
    if page is not None:
        frame = word & PM_FRAME
        known = page.known_frame()
        if known is None:
            if learn(space, page, frame) is not None:
                return Difference(
                    space.slot, PTE, address, wanted.words(), f"frame {frame:#x} of another page"
                )
        elif known != frame:
            return Difference(
                space.slot, PTE, address, wanted.words(), f"frame {frame:#x}, not {known:#x}", word
            )
    return None


def _word_words(word: int) -> str:
    words = [
        text
        for bit, text in (
            (PM_PRESENT, "present"),
            (PM_SWAP, "swapped"),
            (PM_SOFT_DIRTY, "soft-dirty"),
            (PM_UFFD_WP, "uffd-wp"),
            (PM_GUARD, "guard"),
        )
        if word & bit
    ]
    return " ".join(words) or "empty"
