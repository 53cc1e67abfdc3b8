# SPDX-License-Identifier: GPL-2.0-or-later
"""The remap scenarios: a row each, played on ranges of many sizes. SCENARIOS.md explains them."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ptscope._core import lib
from ptscope.bench import memory
from ptscope.bench.faults import LOW
from ptscope.bench.memory import (
    MREMAP_DONTUNMAP,
    MREMAP_FIXED,
    MREMAP_MAYMOVE,
    PROT_READ,
    RW,
    Geometry,
)
from ptscope.bench.stage import NotHere
from ptscope.bench.timing import Action
from ptscope.source.known import KnownFrames, MapKind

Content = Literal["pages", "nothing", "sparse", "huge", "device", "one"]
Fate = Literal["same", "none", "fresh", "moved", "half", "cut"]

K, M, G = 1 << 10, 1 << 20, 1 << 30
SIZES = (4 * K, 16 * K, 64 * K, 256 * K, 1 * M, 2 * M, 8 * M, 32 * M, 128 * M, 512 * M, 1 * G)


@dataclass
class Ground:
    """Where one scenario is played: a range at `old`, and a place for it at `new`.

    `number` tells grounds apart that are there at a time. `shared`: it is shared memory.

    Both lie far from all other mappings, each at the beginning of what a PUD entry maps, `new`
    `skew` bytes after it; with `near` it lies beside `old`, so that the table whose entries are
    moved is there and stays. A page in another such range keeps the tables above them. With
    `device` it is a mapping of the first of the `known` pages of the module's device, made in this
    way.
    """

    geometry: Geometry
    size: int
    content: Content
    skew: int = 0
    device: MapKind | None = None
    known: KnownFrames | None = None
    shared: bool = False
    near: bool = False
    number: int = 0
    old: int = 0
    new: int = 0

    def __post_init__(self) -> None:
        pud = self.geometry.pud
        # Room for a range that grows, and a whole PUD without anything on both sides.
        step = (2 + -(-2 * self.size // pud)) * pud
        start = -(-LOW // pud) * pud + self.number * 4 * step
        self.old = start + step
        self.new = self.old + (2 * self.size if self.near else step) + self.skew
        if self.new + 2 * step > self.geometry.user_end:
            raise NotHere("the address space is too small")
        self.anchor = start
        flags = memory.ANON | memory.MAP_FIXED_NOREPLACE
        memory.map_memory(self.page, flags, at=self.anchor)
        memory.touch(self.anchor, 1, 1, write=True)

    @property
    def page(self) -> int:
        """Bytes of the smallest page."""
        return self.geometry.page

    @property
    def pages(self) -> int:
        """Pages of the range."""
        return self.size // self.page

    @property
    def stride(self) -> int:
        """Bytes from one page that is there to the next."""
        spread = {"sparse": self.geometry.pmd, "huge": self.geometry.pmd, "one": self.size}
        return spread.get(self.content, self.page)

    @property
    def populated(self) -> int:
        """How many entries there are."""
        return 0 if self.content in ("nothing", "device") else self.size // self.stride

    def make(self) -> None:
        """Have the range at `old` as it has to be, and nothing at `new`."""
        self.clear()
        if self.device is not None:
            # The other ways have all entries at once, and that is what is timed.
            if self.device == "fault":
                memory.call("mmap", *self.device_call())
            return
        kind = memory.SHARED if self.shared else memory.ANON
        memory.map_memory(self.size, kind | memory.MAP_FIXED_NOREPLACE, at=self.old)
        advice = memory.MADV_HUGEPAGE if self.content == "huge" else memory.MADV_NOHUGEPAGE
        try:
            memory.advise(self.old, self.size, advice)
        except OSError:
            if self.content == "huge":
                raise NotHere("this kernel has no transparent huge pages") from None
        if self.content != "nothing":
            memory.touch(self.old, self.size, self.stride, write=True)

    def device_call(self) -> tuple[int, ...]:
        """What mmap() is given to map the pages of the device at `old`."""
        assert self.known is not None
        assert self.device is not None
        flags = memory.MAP_SHARED | memory.MAP_FIXED
        offset = KnownFrames.offset(self.device)
        return (self.old, self.size, RW, flags, self.known.file.fileno(), offset)

    def frame(self, address: int) -> int | None:
        """The frame number a page of the device has to have at `old`; None without one."""
        if self.known is None:
            return None
        return self.known.addresses[(address - self.old) // self.page] // self.page

    def clear(self) -> None:
        """Nothing of it is mapped."""
        for start in (self.old, self.new):
            memory.unmap(start, 2 * self.size)

    def close(self) -> None:
        """Take everything away."""
        with contextlib.suppress(OSError):
            self.clear()
            memory.unmap(self.anchor, self.page)

    def probes(self, start: int) -> list[int]:
        """Addresses to look at: the ends, and some between."""
        last = self.size // self.stride - 1
        numbers = sorted({0, last // 3, last // 2, last})
        return [start + number * self.stride for number in numbers]

    def tables(self) -> int:
        """PTE and PMD tables that this range alone needs."""
        spans = self.geometry.spans
        huge = self.content == "huge"
        return sum(-(-self.size // span) for span in spans[2 if huge else 1 : 3])


@dataclass(frozen=True)
class Remap:
    """One scenario.

    `at_old` and `at_new` are what has become of the entries afterwards (`half`: the second half is
    gone, `cut`: and the first is another one), `moves` the level whose entries are moved, so that
    the tables below it are found under the new address; with `near` to a place in the same table.
    `freed` counts the tables that go, None: that is told, not judged. `faults` are those the kernel
    counts, None: that depends. `device`: it is played on known frames, which each entry has to
    show, mapped in this way. `undo` has the range as it was; without it the range is made anew for
    each sample. `rehearsed`: what is timed is done to another range of the size, with one page,
    just before, so that the caches hold the kernel's code and data for it. `again`: this undoes it,
    and all samples of a round follow each other at once, each after that; walks prove what was
    before the first and after the last, and results the others. `locks`: it needs to lock as much.
    """

    name: str
    title: str
    content: Content
    action: Callable[[Ground], Action]
    at_old: Fate
    at_new: Fate | None = None
    moves: Literal["pte", "pmd", "pud"] | None = None
    writable: bool | None = None
    freed: Callable[[Ground], int] | None = None
    faults: Callable[[Ground], int | None] = lambda ground: 0
    result: Callable[[Ground], int | None] = lambda ground: 0
    least: Callable[[Geometry], int] = lambda geometry: geometry.page
    below: Callable[[Geometry], int] | None = None
    most: Callable[[Geometry], int] | None = None
    skewed: bool = False
    shared: bool = False
    near: bool = False
    undo: Callable[[Ground], None] | None = None
    again: Callable[[Ground], tuple[Action, ...]] | None = None
    forks: bool = False
    rehearsed: bool = True
    device: MapKind | None = None
    locks: bool = False
    since: tuple[int, int] = (0, 0)

    def fits(self, size: int, geometry: Geometry) -> bool:
        """Whether it is played with ranges of this size."""
        least = self.least(geometry)
        return (
            size >= least
            and size % least == 0
            and (self.below is None or size < self.below(geometry))
            and (self.most is None or size <= self.most(geometry))
        )


def _call(name: str, *arguments: int) -> Action:
    return Action(lib.PTSCOPE_DO_CALL, memory.CALLS[name], arguments)


def _move(flags: int = MREMAP_MAYMOVE | MREMAP_FIXED) -> Callable[[Ground], Action]:
    return lambda ground: _call(
        "mremap", ground.old, ground.size, ground.size, flags, ground.new
    )


def _moved_back(ground: Ground) -> tuple[Action, ...]:
    flags = MREMAP_MAYMOVE | MREMAP_FIXED
    return (_call("mremap", ground.new, ground.size, ground.size, flags, ground.old),)


def _swap(ground: Ground) -> None:
    """What was moved is the range now, and goes back next time."""
    ground.old, ground.new = ground.new, ground.old


def _protect_again(ground: Ground) -> None:
    memory.call("mprotect", ground.old, ground.size, RW)
    memory.touch(ground.old, ground.size, ground.stride, write=True)


def _shrink(ground: Ground) -> Action:
    return _call("mremap", ground.old, ground.size, ground.size // 2, 0)


def _shrink_again(ground: Ground) -> None:
    memory.call("mremap", ground.old, 2 * ground.size, ground.size, 0)


def _populate(ground: Ground) -> Action:
    memory.unmap(ground.old, ground.size)
    return _map_again(ground)


def _map_again(ground: Ground) -> Action:
    flags = memory.MAP_PRIVATE | memory.MAP_ANONYMOUS | memory.MAP_POPULATE
    return _call(
        "mmap", ground.old, ground.size, RW, flags | memory.MAP_FIXED, (1 << 64) - 1, 0
    )


def _made_again(ground: Ground) -> tuple[Action, ...]:
    """What was moved goes; a range of its kind is mapped and written, and room for it is found."""
    return (
        _call("munmap", ground.new, ground.size),
        _call("munmap", ground.old, ground.size),
        _map_call(ground, ground.old),
        Action(lib.PTSCOPE_DO_FILL, arguments=(ground.page,), inner=ground.pages),
        *_room_found(ground),
    )


def _room_found(ground: Ground) -> tuple[Action, ...]:
    """Something is mapped at the new place and goes, as one does who looks whether it is free."""
    return _map_call(ground, ground.new), _call("munmap", ground.new, ground.size)


def _map_call(ground: Ground, place: int) -> Action:
    kind = memory.SHARED if ground.shared else memory.ANON
    flags = kind | memory.MAP_FIXED_NOREPLACE
    return _call("mmap", place, ground.size, RW, flags, (1 << 64) - 1, 0)


def _cut_away(ground: Ground) -> tuple[Action, ...]:
    """What was moved goes, and the range is there again."""
    return (
        _call("munmap", ground.new, ground.size),
        _map_again(ground),
        *_room_found(ground),
    )


def _mapped_again(ground: Ground) -> tuple[Action, ...]:
    return (_map_again(ground), *_room_found(ground))


def _map_device(ground: Ground) -> Action:
    return _call("mmap", *ground.device_call())


def _touch(ground: Ground) -> Action:
    return Action(lib.PTSCOPE_DO_TOUCH, arguments=(ground.page,), inner=ground.pages)


def _two_pages(geometry: Geometry) -> int:
    return 2 * geometry.page


def _pmd(geometry: Geometry) -> int:
    return geometry.pmd


def _pud(geometry: Geometry) -> int:
    return geometry.pud


def _a_quarter(span: Callable[[Geometry], int]) -> Callable[[Geometry], int]:
    """Of what one table maps: there is room for both ranges, and for each to grow."""
    return lambda geometry: span(geometry) // 4


def _new(ground: Ground) -> int:
    return ground.new


def _old(ground: Ground) -> int:
    return ground.old


def _pages(ground: Ground) -> int:
    return ground.pages


REMAPS: tuple[Remap, ...] = (
    Remap("move-pte", "mremap, entry by entry", "pages", _move(), "none", "moved", "pte",
          result=_new, below=_pmd, undo=_swap),
    Remap("move-pmd", "mremap by PMDs: both 2 MiB aligned", "pages", _move(), "none", "moved",
          "pmd", result=_new, least=_pmd, below=_pud, undo=_swap),
    Remap("move-pud", "mremap by PUDs: both 1 GiB aligned", "sparse", _move(), "none", "moved",
          "pud", result=_new, least=_pud, undo=_swap, since=(5, 11)),
    Remap("move-skewed", "mremap to a page further: by entries", "pages", _move(), "none", "moved",
          "pte", result=_new, least=_pmd, skewed=True, undo=_swap),
    Remap("move-shm", "mremap of shared memory, by PMDs", "pages", _move(), "none", "moved",
          "pmd", result=_new, least=_pmd, below=_pud, shared=True, undo=_swap),
    Remap("move-shm-skewed", "the same to a page further: by entries", "pages", _move(), "none",
          "moved", "pte", result=_new, least=_pmd, shared=True, skewed=True, undo=_swap),
    Remap("move-pte-near", "mremap by entries in one PTE table", "pages", _move(), "none", "moved",
          "pte", result=_new, most=_a_quarter(_pmd), near=True, undo=_swap),
    Remap("move-pmd-near", "mremap by PMDs in one PMD table", "pages", _move(), "none", "moved",
          "pmd", result=_new, least=_pmd, most=_a_quarter(_pud), near=True, undo=_swap),
    Remap("move-shm-near", "mremap of shared memory in one PMD table", "pages", _move(),
          "none", "moved", "pmd", result=_new, least=_pmd, most=_a_quarter(_pud), shared=True,
          near=True, undo=_swap),
    Remap("move-pte-again", "mremap to and fro, near, by entries", "pages", _move(), "none",
          "moved", "pte", result=_new, most=_a_quarter(_pmd), near=True, again=_moved_back),
    Remap("move-pmd-again", "mremap to and fro, near, by PMDs", "pages", _move(), "none", "moved",
          "pmd", result=_new, least=_pmd, most=_a_quarter(_pud), near=True, again=_moved_back),
    Remap("move-pte-fresh", "mremap of memory just made, near", "pages", _move(), "none", "fresh",
          result=_new, most=_a_quarter(_pmd), near=True, again=_made_again),
    Remap("dontunmap-fresh", "the same, MREMAP_DONTUNMAP", "pages",
          _move(MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP), "none", "fresh", result=_new,
          most=_a_quarter(_pmd), near=True, again=_made_again),
    Remap("move-shm-fresh", "mremap of shared memory just made, near", "pages", _move(), "none",
          "fresh", result=_new, least=_pmd, most=_a_quarter(_pud), shared=True, near=True,
          again=_made_again),
    Remap("move-shm-skewed-fresh", "the same to a page further: by entries", "pages", _move(),
          "none", "fresh", result=_new, least=_pmd, most=_a_quarter(_pud), shared=True, near=True,
          skewed=True, again=_made_again),
    Remap("dontunmap-again", "mremap to and fro, MREMAP_DONTUNMAP", "pages",
          _move(MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP), "none", "moved", result=_new,
          most=_a_quarter(_pmd), near=True, again=_moved_back),
    Remap("shrink-again", "mremap to half the size, and mmap again", "pages", _shrink, "cut",
          result=_old, least=_two_pages, again=_mapped_again),
    Remap("shrink-move-again", "mremap to half the size, elsewhere", "pages",
          lambda ground: _call("mremap", ground.old, ground.size, ground.size // 2,
                               MREMAP_MAYMOVE | MREMAP_FIXED, ground.new), "none", "cut",
          result=_new, least=_two_pages, most=_a_quarter(_pmd), near=True, again=_cut_away),
    Remap("resize-none", "mremap to the size that it has", "pages",
          lambda ground: _call("mremap", ground.old, ground.size, ground.size, 0), "same",
          result=_old, again=lambda ground: ()),
    Remap("move-empty", "mremap, nothing there to move", "nothing", _move(), "none", "none",
          result=_new, undo=_swap),
    Remap("move-huge", "mremap of huge pages", "huge", _move(), "none", "moved", "pmd",
          result=_new, least=_pmd, undo=_swap),
    Remap("move-dontunmap", "mremap, MREMAP_DONTUNMAP", "pages",
          _move(MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP), "none", "moved", result=_new),
    Remap("grow", "mremap to twice the size, in place", "pages",
          lambda ground: _call("mremap", ground.old, ground.size, 2 * ground.size, 0), "same",
          result=_old, undo=_shrink_again),
    Remap("shrink", "mremap to half the size", "pages", _shrink, "half", result=_old,
          least=_two_pages),
    Remap("protect", "mprotect to read-only", "pages",
          lambda ground: _call("mprotect", ground.old, ground.size, PROT_READ), "same",
          writable=False, freed=lambda ground: 0, undo=_protect_again),
    Remap("unmap", "munmap, tables freed", "pages",
          lambda ground: _call("munmap", ground.old, ground.size), "none",
          freed=Ground.tables),
    Remap("dontneed", "MADV_DONTNEED", "pages",
          lambda ground: _call("madvise", ground.old, ground.size, memory.MADV_DONTNEED), "none"),
    Remap("fork", "fork of this process, by its size", "pages",
          lambda ground: Action(lib.PTSCOPE_DO_FORK), "same", writable=False,
          # The caller's own stack is shared then, and copied at once.
          faults=lambda ground: None, result=lambda ground: None, undo=_protect_again, forks=True,
          rehearsed=False),
    Remap("mlock", "mlock, nothing there", "nothing",
          lambda ground: _call("mlock", ground.old, ground.size), "fresh", faults=_pages,
          rehearsed=False, locks=True),
    Remap("device-remap", "mmap, remap_pfn_range()", "device", _map_device, "fresh",
          result=_old, device="remap", rehearsed=False),
    Remap("device-insert", "mmap, vm_insert_page() of the same", "device", _map_device, "fresh",
          result=_old, device="insert", rehearsed=False),
    Remap("device-fault", "a fault for each: vmf_insert_pfn()", "device", _touch, "fresh",
          faults=_pages, device="fault", rehearsed=False),
    Remap("populate", "mmap, MAP_POPULATE", "nothing", _populate, "fresh", faults=_pages,
          result=_old, rehearsed=False),
)  # fmt: skip


def size_text(size: int) -> str:
    """A size as `4K`, `2M`, `1G`."""
    for unit, amount in (("G", G), ("M", M), ("K", K)):
        if size % amount == 0:
            return f"{size // amount}{unit}"
    return str(size)


def release() -> tuple[int, int]:
    """Version of the running kernel: (7, 3) of `7.3-rc5`."""
    found = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return (0, 0) if found is None else (int(found[1]), int(found[2]))
