# SPDX-License-Identifier: GPL-2.0-or-later
"""A kernel made of a second model: what the model's machinery is tested with where no kernel is.

The twin takes the same steps as the model, and its entries are encoded as x86 has them, so that
observing, decoding, comparing, searching and shrinking run as they do on a real one. A fault in
what it shows, or a rule that only one of the two has, must be found.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ptscope.decode.layout import Layout, load
from ptscope.model import choice
from ptscope.model.drive import Answer
from ptscope.model.kernel import PMD, PTE, Kernel
from ptscope.model.observe import ModuleView, View
from ptscope.model.operations import Arena, Call, Draws, Table
from ptscope.model.run import Stage
from ptscope.model.session import ABOVE, BELOW, MIDDLE
from ptscope.model.state import Entry, Leaf, Marker, Page, Space, Swapped, Vma, World
from ptscope.model.state import Table as TableEntry
from ptscope.raw.records import RawTable, RawVma

LAYOUT = load("debian-6.1-amd64")
ARENA = Arena(MIDDLE - BELOW, MIDDLE + ABOVE)
FREE_FROM = 0x1000
INVERT = ((1 << 52) - 1) & ~0xFFF
PKEY_SHIFT = 59


class Twin:
    """The second model, and the frames it has given out."""

    def __init__(self, kernel: Kernel, layout: Layout = LAYOUT) -> None:
        self.kernel = kernel
        self.layout = layout
        self.world = World(kernel, choice.first)
        self._next = FREE_FROM
        self._slots = 0
        self._bits = {
            name: 1 << layout.facts[f"bit.{name}"]
            for name in (
                "present", "write", "user", "accessed", "dirty", "soft_dirty", "uffd_wp", "huge",
                "nx", "protnone", "special", "global",
            )
        }  # fmt: skip

    def frame(self, page: Page | TableEntry) -> int:
        """The frame of a page or table; it gets one when it has none."""
        known = page.frame if isinstance(page, TableEntry) else page.known_frame()
        if known is not None:
            return known
        if isinstance(page, Page) and page.whole is not None:
            return self.frame(page.whole) + page.offset
        size = page.size if isinstance(page, Page) else 1
        self._next = (self._next + size - 1) // size * size
        page.frame = self._next
        self._next += size
        return page.frame

    def encode(self, space: Space, level: int, entry: Entry, vma: Vma | None) -> int:
        """The raw value of an entry."""
        bit = self._bits
        if isinstance(entry, TableEntry):
            flags = bit["present"] | bit["write"] | bit["user"] | bit["accessed"] | bit["dirty"]
            return self.frame(entry) << 12 | flags
        if isinstance(entry, Swapped):
            return self._swap_entry(entry)
        if isinstance(entry, Marker):
            raise NotImplementedError("the twin has no markers")
        assert isinstance(entry, Leaf)
        assert vma is not None
        flags = bit["huge"] if level > PTE else 0
        for name, on in (
            ("accessed", entry.accessed),
            ("dirty", entry.dirty),
            ("soft_dirty", entry.soft_dirty),
            ("uffd_wp", entry.uffd_wp),
            ("special", entry.page.kind == "zero"),
            ("nx", "x" not in vma.prot),
        ):
            flags |= bit[name] if on else 0
        address = self.frame(entry.page) << 12
        if not vma.prot:
            return (address ^ INVERT) | flags | bit["protnone"] | vma.pkey << PKEY_SHIFT
        flags |= bit["present"] | bit["user"] | (bit["write"] if entry.write else 0)
        return address | flags | vma.pkey << PKEY_SHIFT

    def _swap_entry(self, entry: Swapped) -> int:
        """__swp_entry of x86: the offset is inverted, the type (0) in the highest bits."""
        if entry.slot.offset is None:
            self._slots += 1
            entry.slot.offset = self._slots
        raw = (~entry.slot.offset << 14 & (1 << 64) - 1) >> 5
        return raw | (2 if entry.soft_dirty else 0) | (4 if entry.uffd_wp else 0)

    def vma_flags(self, vma: Vma) -> int:
        """vm_flags."""
        names = [{"r": "read", "w": "write", "x": "exec"}[letter] for letter in vma.prot]
        names += ["mayshare", "shared"] if vma.shared else []
        names += ["softdirty"] if vma.soft_dirty else []
        return sum(self.layout.facts[f"vm.{name}"] for name in names)

    def read(self, slot: int) -> tuple[list[RawVma], list[RawTable]]:
        """What the module would give of one process."""
        space = self.world.spaces[slot]
        vmas = [
            RawVma(vma.start, vma.end, self.vma_flags(vma), 0, 0, 0, 0, 0, False, False)
            for vma in space.vmas
        ]
        tables: list[RawTable] = []
        for level in reversed(space.geometry.levels):
            shift = space.shifts[level]
            for index in sorted(space.entries[level]):
                entry = space.entries[level][index]
                raw = self.encode(space, level, entry, space.find(index << shift))
                tables.append(
                    RawTable(
                        level,
                        index % 512,
                        self._home(space, level, index),
                        index << shift,
                        (raw,),
                        False,
                        False,
                    )
                )
        return vmas, tables

    def _home(self, space: Space, level: int, index: int) -> int:
        above = level + 1
        if above not in space.shifts:
            return 0x1000
        entry = space.entries[above].get(index << space.shifts[level] >> space.shifts[above])
        assert isinstance(entry, TableEntry)
        return self.frame(entry) << 12


class TwinView(ModuleView):
    """What is seen of a process of the twin."""

    def __init__(self, twin: Twin, slot: int) -> None:
        source: Any = SimpleNamespace(directory=Path("/nowhere"), layout=twin.layout)
        super().__init__(source, slot, twin.kernel.geometry, [(ARENA.start, ARENA.end - 1)])
        self._twin = twin
        self._slot = slot

    def read(self) -> tuple[list[RawVma], list[RawTable]]:
        return self._twin.read(self._slot)


class TwinPuppet:
    """Takes each step that the model is about to take; PIDs are slots."""

    def __init__(self, twin: Twin, around: Callable[[], AbstractContextManager[None]]) -> None:
        self.twin = twin
        self.pids: dict[int, int] = {}
        self.pending: Call | None = None
        self._around = around

    def start(self, slot: int) -> int:
        self.twin.world.spaces[slot] = Space(self.twin.world, slot)
        self.pids[slot] = slot
        return slot

    def _take(self) -> Answer:
        assert self.pending is not None
        with self._around():
            outcome = self.pending.apply(0, 0)
        self.twin.world.release()
        if isinstance(outcome, str):
            return Answer(0, 0, "" if outcome == "ok" else outcome)
        return Answer(0, outcome)

    def command(self, slot: int, line: str) -> Answer:
        return self._take()

    def clear_refs(self, slot: int, what: str) -> None:
        self._take()

    def fork(self, parent: int, slot: int) -> int:
        self._take()
        self.pids[slot] = slot
        return slot

    def exit(self, slot: int) -> int:
        self._take()
        del self.pids[slot]
        return 0

    def require_all(self) -> None:
        """They are."""

    def end_all(self) -> None:
        self.twin.world.spaces.clear()
        self.twin.world.objects.clear()
        self.pids.clear()


class TwinTable(Table):
    """Makes the step for the twin too."""

    def __init__(self, puppet: TwinPuppet, only: frozenset[str] | None = None) -> None:
        super().__init__(only)
        self._puppet = puppet

    def make(self, world: World, arena: Arena, draws: Draws) -> Call | None:
        number = draws.left
        call = super().make(world, arena, draws)
        if call is not None:
            self._puppet.pending = super().make(self._puppet.twin.world, arena, Draws(number))
            assert self._puppet.pending is not None
            assert self._puppet.pending.text == call.text
        return call


def twin_stage(
    kernel: Kernel,
    twin_kernel: Kernel | None = None,
    view: Callable[[View], View] = lambda view: view,
    around: Callable[[], AbstractContextManager[None]] = nullcontext,
    only: frozenset[str] | None = None,
) -> Stage:
    """A stage whose kernel is a twin. `around` surrounds each step that the twin takes."""
    twin = Twin(twin_kernel or kernel)
    puppet: Any = TwinPuppet(twin, around)
    return Stage(
        puppet,
        kernel,
        ARENA,
        lambda pid: view(TwinView(twin, pid)),
        TwinTable(puppet, only),
        foreign=lambda pid, arena: (),
    )


__all__ = ["ARENA", "PMD", "Twin", "TwinView", "twin_stage"]
