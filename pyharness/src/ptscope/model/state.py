# SPDX-License-Identifier: GPL-2.0-or-later
"""The state of address spaces: VMAs, the pages they have, and every entry of their tables.

What is in `Space.entries` is what the tables must hold; `predict` only adds what follows from the
VMA. Addresses are in bytes; an index is an address shifted by its level's shift, so that it is
unique within the level.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from ptscope.model.kernel import PMD, PTE, Kernel

if TYPE_CHECKING:
    from ptscope.source.known import MapKind

ALL = "rwx"


@dataclass(slots=True, eq=False)
class Page:
    """Memory that entries map, of one folio: which frame it has is learnt when it is first seen.

    A huge page that is mapped page by page has `parts`, each with its own exclusivity, whose
    frames follow from that of the `whole`.
    """

    kind: str
    """anon, cache, zero, huge_zero, hugetlb, known."""
    size: int = 1
    """Base pages."""
    frame: int | None = None
    """Number of the first frame, in base pages; None as long as nobody has looked."""
    mapped: int = 0
    """Entries that map it, in all processes."""
    exclusive: bool = False
    """PageAnonExclusive (from 5.19): no other process has it, so that a write need not copy."""
    whole: Page | None = None
    offset: int = 0
    parts: list[Page] | None = None
    other_than: int | None = None
    """The frame of the page it is a copy of, which is not free before the copy is made."""
    split: bool = False
    """The folio may have been split, so that its parts are folios of their own."""
    unsure: bool = False
    """Whether it is exclusive depends on references that do not show here; of shared memory:
    whether it is there still after reclaim, which may drop what nobody has written."""
    lazy: bool = False
    """MADV_FREE has been told of it: while it is clean, reclaim drops it."""
    from_swap: bool = False
    """It was swapped in, so that swap may still have it too."""
    written: bool = False
    """Of the page cache: some entry was dirty."""
    dirty: bool = False
    """Of the page cache: it has heard of that (PG_dirty), from a fault or as the entry went."""

    @property
    def large(self) -> bool:
        """Whether it is, or is part of, a folio of several pages."""
        return self.size > 1 or self.whole is not None

    def part(self, offset: int) -> Page:
        """The page at `offset` (base pages) of a huge page."""
        if self.parts is None:
            self.parts = [
                Page(self.kind, whole=self, offset=i, exclusive=self.exclusive)
                for i in range(self.size)
            ]
        return self.parts[offset]

    def known_frame(self) -> int | None:
        """The frame it must have, or None when any will do."""
        if self.whole is not None and self.frame is None and self.whole.frame is not None:
            self.frame = self.whole.frame + self.offset
        return self.frame


@dataclass(slots=True, eq=False)
class Table:
    """An entry that points to a table of the next level; its frame, once seen."""

    frame: int | None = None


@dataclass(slots=True, eq=False)
class Leaf:
    """An entry with a page. What it permits beyond `write` follows from its VMA."""

    page: Page
    write: bool = False
    dirty: bool = False
    accessed: bool = True
    soft_dirty: bool = False
    uffd_wp: bool = False
    pkey: int = 0


@dataclass(slots=True, eq=False)
class Slot:
    """Where a page is in swap space."""

    offset: int | None = None
    """None as long as nobody has looked."""
    page: Page | None = None
    """The page it became when it was last swapped in while other entries had the slot."""


@dataclass(slots=True, eq=False)
class Swapped:
    """A swap entry. Entries of the same page have the same slot."""

    slot: Slot
    soft_dirty: bool = False
    uffd_wp: bool = False
    exclusive: bool = False


@dataclass(slots=True, eq=False)
class Marker:
    """An entry without a page that only says something: `uffd_wp`, or `guard`."""

    kind: str


Entry = Table | Leaf | Swapped | Marker


@dataclass(slots=True, eq=False)
class Object:
    """What a mapping of a file, or of shared memory, shows: its page cache.

    `level` is that of the entries that map it: PTE, or the level of a hugetlbfs page. `known` is
    how memory with known frames is mapped (remap, insert, fault), and empty for all else.
    """

    name: str
    pages: int
    level: int = PTE
    cache: dict[int, Page] = field(default_factory=dict)
    fd: int = -1
    """Its descriptor in the puppet; -1: memory without a name."""
    known: MapKind | Literal[""] = ""


@dataclass(slots=True)
class Vma:
    """A virtual memory area. `flags` are what madvise, mlock and userfaultfd have set."""

    start: int
    end: int
    prot: str
    """Letters of `rwx`; none of them: PROT_NONE."""
    object: Object | None = None
    pgoff: int = 0
    shared: bool = False
    flags: frozenset[str] = frozenset()
    anon_vma: bool = False
    """It has had anonymous pages: what fork looks at (vma_needs_copy)."""
    guarded: bool = False
    """It has had guards (VM_MAYBE_GUARD, from 6.19), which keeps no VMAs apart."""
    soft_dirty: bool = True
    """VM_SOFTDIRTY: everything in it counts as soft-dirty; cleared by clear_refs."""
    pkey: int = 0

    @property
    def small(self) -> bool:
        """Its pages are not those of hugetlbfs."""
        return self.object is None or self.object.level == PTE

    @property
    def known(self) -> MapKind | Literal[""]:
        """How frames that are known are mapped; empty for all other memory."""
        return "" if self.object is None else self.object.known

    def page_of(self, address: int, shift: int) -> int:
        """The page of the object that is mapped at an address."""
        return self.pgoff + (address - self.start >> shift)

    def alike(self, other: Vma) -> bool:
        """Whether both have the same attributes, so that they may be one VMA."""
        return (
            self.prot == other.prot
            and self.object is other.object
            and self.shared == other.shared
            and self.flags == other.flags
            and self.pkey == other.pkey
        )


Choose = Callable[["Space", int, Sequence[str], str, "Page | None"], str]
"""(space, address, outcomes, reason, page) -> the outcome: see `choice`."""


@dataclass(eq=False)
class Space:
    """One process."""

    world: World
    slot: int
    vmas: list[Vma] = field(default_factory=list)
    """Sorted, without overlap; only those of the arena."""
    entries: dict[int, dict[int, Entry]] = field(default_factory=dict)
    """By level, then by index."""
    changed: set[tuple[int, int]] = field(default_factory=set)
    """What has to be compared anew, by level and index."""
    foreign: tuple[tuple[int, int], ...] = ()
    """VMAs outside the arena, which hold their tables: (start, end)."""
    vmas_changed: bool = True
    uffd: bool = False
    """It has a userfaultfd."""

    def __post_init__(self) -> None:
        self.kernel = self.world.kernel
        self.geometry = self.kernel.geometry
        self.shifts = self.geometry.shifts
        for level in self.geometry.levels:
            self.entries.setdefault(level, {})

    # ---- VMAs

    def find(self, address: int) -> Vma | None:
        """The VMA that has the address."""
        at = bisect_right(self.vmas, address, key=_start) - 1
        if at >= 0 and address < self.vmas[at].end:
            return self.vmas[at]
        return None

    def overlapping(self, start: int, end: int) -> list[Vma]:
        """All VMAs that have an address in start to end."""
        return [vma for vma in self.vmas if vma.start < end and start < vma.end]

    def covered(self, start: int, end: int) -> bool:
        """Whether every address of it is in a VMA."""
        at = start
        for vma in self.overlapping(start, end):
            if vma.start > at:
                return False
            at = vma.end
        return at >= end

    def carve(
        self, start: int, end: int, changing: Callable[[Vma], bool] = lambda vma: True
    ) -> list[Vma]:
        """Split VMAs so that none crosses start or end, and give those between.

        Only those that are `changing`: one that is already as it shall be is not split, and with it
        no huge page (the model first split those of any).
        """
        for border in (start, end):
            vma = self.find(border)
            if vma is not None and vma.start < border and changing(vma):
                self._split_vma(vma, border)
        return [vma for vma in self.overlapping(start, end) if changing(vma)]

    def _split_vma(self, vma: Vma, border: int) -> None:
        """A VMA that ends within a huge page has it mapped page by page (vma_adjust_trans_huge)."""
        index = border >> self.shifts[PMD]
        if border % self.geometry.huge and isinstance(self.entries[PMD].get(index), Leaf):
            self.split_huge(vma, index)
        pgoff = vma.page_of(border, self.geometry.shift)
        upper = replace(vma, start=border, pgoff=pgoff)
        vma.end = border
        self.vmas.insert(self.vmas.index(vma) + 1, upper)
        self.vmas_changed = True

    def insert(self, vma: Vma) -> None:
        """Add a VMA where there is none."""
        self.vmas.insert(bisect_right(self.vmas, vma.start, key=_start), vma)
        self.vmas_changed = True

    def merge(self) -> None:
        """Make neighbours that are alike one.

        The kernel does so when nothing else keeps them apart; `compare` takes over what it really
        did. Of two of which one has an anon_vma 6.12 makes one, or not: they are left apart, as it
        cannot be known afterwards which it was (the model first joined them).
        """
        shift = self.geometry.shift
        merged: list[Vma] = []
        for vma in self.vmas:
            before = merged[-1] if merged else None
            if (
                before is not None
                and before.end == vma.start
                and before.alike(vma)
                and before.anon_vma == vma.anon_vma
                and before.page_of(vma.start, shift) == vma.pgoff
            ):
                before.end = vma.end
                before.guarded |= vma.guarded
                before.soft_dirty |= vma.soft_dirty
            else:
                merged.append(vma)
        self.vmas = merged

    # ---- entries

    def put(self, level: int, index: int, entry: Entry) -> None:
        """Set an entry; the tables above it come into being."""
        self.drop(level, index)
        self.ensure(level, index)
        self.entries[level][index] = entry
        self.changed.add((level, index))
        if isinstance(entry, Leaf):
            entry.page.mapped += 1

    def drop(self, level: int, index: int) -> Entry | None:
        """Clear an entry, and give what it was."""
        old = self.entries[level].pop(index, None)
        if old is not None:
            self.changed.add((level, index))
            if isinstance(old, Leaf):
                old.page.mapped -= 1
                self.world.unmapped(old.page)
        return old

    def unmap(self, level: int, index: int) -> Entry | None:
        """Clear an entry for good; if it is dirty, its page is told (zap_pte_range)."""
        old = self.drop(level, index)
        if isinstance(old, Leaf) and old.dirty:
            old.page.dirty = True
        return old

    def ensure(self, level: int, index: int) -> None:
        """The tables that an entry needs above it."""
        address = index << self.shifts[level]
        for above in self.geometry.levels:
            if above <= level:
                continue
            at = address >> self.shifts[above]
            if at in self.entries[above]:
                return
            self.entries[above][at] = Table()
            self.changed.add((above, at))

    def at(self, address: int) -> tuple[int, int, Entry] | None:
        """The leaf, swap entry or marker of an address, as (level, index, entry)."""
        for level in self.geometry.levels:
            entry = self.entries[level].get(address >> self.shifts[level])
            if entry is not None:
                index = address >> self.shifts[level]
                return None if isinstance(entry, Table) else (level, index, entry)
        return None

    def within(self, level: int, start: int, end: int) -> list[int]:
        """Indices of the entries of a level that lie in start to end, in order."""
        shift = self.shifts[level]
        first, last = start >> shift, end - 1 >> shift
        entries = self.entries[level]
        if last - first < len(entries):
            return [index for index in range(first, last + 1) if index in entries]
        return sorted(index for index in entries if first <= index <= last)

    def leaves(self, start: int, end: int) -> Iterator[tuple[int, int, Entry]]:
        """All entries but tables in start to end, as (level, index, entry)."""
        for level in self.geometry.levels:
            for index in self.within(level, start, end):
                entry = self.entries[level][index]
                if not isinstance(entry, Table):
                    yield level, index, entry

    def mark(self, start: int, end: int) -> None:
        """What is in start to end has another VMA now: it has to be compared anew."""
        for level, index, _ in self.leaves(start, end):
            self.changed.add((level, index))

    def has_table(self, address: int) -> bool:
        """Whether a PTE table is there for an address."""
        return isinstance(self.entries[PMD].get(address >> self.shifts[PMD]), Table)

    def split_huge(self, vma: Vma, index: int) -> None:
        """Map page by page what a PMD entry maps (mm/huge_memory.c, __split_huge_pmd_locked).

        Accessed, soft-dirty and uffd-wp go to all pages; dirty too from 6.2, while up to 6.1 the
        entries are clean and the page remembers. A huge zero page becomes 512 zero pages. Pages of
        a file are unmapped instead: they come back by faults.
        """
        old = self.entries[PMD][index]
        assert isinstance(old, Leaf)
        old.page.mapped += 1  # so that it does not count as free meanwhile
        self.unmap(PMD, index)
        huge = self.geometry.per_huge
        first = index * huge
        if vma.object is not None:
            old.page.mapped -= 1
            return
        dirty = old.dirty and self.kernel.since(6, 2)
        self.entries[PMD][index] = Table()
        self.changed.add((PMD, index))
        for i in range(huge):
            if old.page.kind == "huge_zero":
                leaf = Leaf(self.world.zero, uffd_wp=old.uffd_wp, pkey=old.pkey)
            else:
                part = old.page.part(i)
                part.exclusive = old.page.exclusive
                leaf = Leaf(
                    part,
                    write=old.write,
                    dirty=dirty,
                    accessed=old.accessed,
                    # On x86 and riscv setting dirty sets soft-dirty too.
                    soft_dirty=old.soft_dirty or (dirty and self.kernel.soft_dirty),
                    uffd_wp=old.uffd_wp,
                    pkey=old.pkey,
                )
            self.put(PTE, first + i, leaf)
        old.page.mapped -= 1

    def free_tables(self, start: int, end: int) -> None:
        """Tables that serve no VMA any more are freed (mm/memory.c, free_pgtables)."""
        for level in self.geometry.levels[1:]:
            shift = self.shifts[level]
            for index in self.within(level, start, end):
                first, last = index << shift, (index + 1 << shift)
                if isinstance(self.entries[level][index], Table) and not self._serves(first, last):
                    self.drop(level, index)

    def _serves(self, start: int, end: int) -> bool:
        return bool(self.overlapping(start, end)) or any(
            first < end and start < last for first, last in self.foreign
        )


def _start(vma: Vma) -> int:
    return vma.start


@dataclass(eq=False)
class World:
    """All processes, what they share, and who decides where the kernel may choose."""

    kernel: Kernel
    choose: Choose
    spaces: dict[int, Space] = field(default_factory=dict)
    objects: list[Object] = field(default_factory=list)
    frames: dict[int, Page] = field(default_factory=dict)
    """Pages that have memory of their own, by their first frame: two never have the same."""

    def __post_init__(self) -> None:
        self.zero = Page("zero")
        self.huge_zero = Page("huge_zero", size=self.kernel.geometry.per_huge)

    def unmapped(self, page: Page) -> None:
        """A page has lost an entry: without any, anonymous memory is free."""
        if page.kind not in ("anon", "hugetlb") or page.mapped:
            return
        whole = page.whole or page
        if whole.mapped or any(part.mapped for part in whole.parts or ()):
            return
        self.forget(whole)

    def swapped(self, slot: Slot) -> int:
        """How many entries have a slot."""
        return sum(
            isinstance(entry, Swapped) and entry.slot is slot
            for space in self.spaces.values()
            for entry in space.entries[PTE].values()
        )

    def forget(self, page: Page) -> None:
        """Its frame may be used for something else."""
        if page.frame is not None and self.frames.get(page.frame) is page:
            del self.frames[page.frame]

    def release(self) -> None:
        """Shared memory that nobody maps, and no descriptor names, is free."""
        for file in list(self.objects):
            if file.fd < 0 and not any(
                vma.object is file for space in self.spaces.values() for vma in space.vmas
            ):
                self.objects.remove(file)
                for page in file.cache.values():
                    self.forget(page)
