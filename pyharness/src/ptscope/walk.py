# SPDX-License-Identifier: GPL-2.0-or-later
"""A walk, interpreted: raw entries and a layout become levels, a mapping and a permission."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ptscope.decode.effective import Effective, effective
from ptscope.decode.entry import Entry, decode
from ptscope.decode.layout import Layout
from ptscope.errors import BadStream
from ptscope.host import Host
from ptscope.raw.records import ENTRY_SIZE, Lock, RawEntry
from ptscope.source.base import RawLeaf, RawWalk, Source
from ptscope.target.frame import Frame
from ptscope.target.process import Pid, Process, find, find_self
from ptscope.target.vma import Vma, named, read_maps

# States of an entry that has a page, whether or not the hardware may use it.
MAPPED = ("leaf", "protnone", "splitting")


@dataclass(frozen=True)
class Step:
    """One level of a walk. `entry` and `decoded` are None where it is folded or not reached."""

    level: str
    folded: bool
    index: int | None
    entry: RawEntry | None
    decoded: Entry | None

    def to_json(self) -> dict[str, object]:
        """One object of `levels` in `walk --json`."""
        return {
            "level": self.level,
            "folded": self.folded,
            "index": self.index,
            "raw": None if self.entry is None else f"{self.entry.raw:#018x}",
            "entry_pa": None if self.entry is None else hex(self.entry.entry_pa),
            "decoded": None if self.decoded is None else self.decoded.to_json(),
        }


@dataclass(frozen=True)
class Mapping:
    """What an address maps to.

    `state` is that of the entry at which the walk ended, `level` its level (None when the source
    does not show it). `pa` is the physical address of the very byte and `pfn` the frame it lies
    in, not the first one of a huge page. Sizes are in bytes.
    """

    state: str
    level: str | None
    pa: int | None
    pfn: int | None
    page_size: int | None
    mapping_size: int | None

    def to_json(self) -> dict[str, object]:
        """The `mapping` object of `walk --json`."""
        return {
            "state": self.state,
            "level": self.level,
            "pa": None if self.pa is None else hex(self.pa),
            "pfn": None if self.pfn is None else hex(self.pfn),
            "page_size": self.page_size,
            "mapping_size": self.mapping_size,
        }


@dataclass(frozen=True)
class Walk:
    """A walk of one address, and under which conditions it was made.

    `pid` and `comm` are None for the kernel half. `levels` and `effective` are empty when the
    source shows leaves only. `leaf` is what such a source said. `lock` tells what kept the tables
    alive; with `none` the walk is a snapshot.
    """

    pid: int | None
    comm: str | None
    leader_exited: bool
    address: int
    source: str
    kernel: str
    layout: Layout | None
    lock: Lock
    levels: tuple[Step, ...]
    user_pgd: Step | None
    mapping: Mapping
    effective: Effective | None
    vma: Vma | None
    frame: Frame | None
    leaf: RawLeaf | None = field(default=None, repr=False)

    @property
    def last(self) -> Entry | None:
        """The entry at which the walk ended."""
        return next((step.decoded for step in reversed(self.levels) if step.decoded), None)

    def to_json(self) -> dict[str, object]:
        """The object that `walk --json` prints: addresses and raw values as `0x…` text."""
        return {
            "pid": self.pid,
            "comm": self.comm,
            "leader_exited": self.leader_exited,
            "address": hex(self.address),
            "source": self.source,
            "kernel": self.kernel,
            "layout": None if self.layout is None else self.layout.name,
            "lock": self.lock,
            "levels": [step.to_json() for step in self.levels],
            "user_pgd": None if self.user_pgd is None else self.user_pgd.to_json(),
            "mapping": self.mapping.to_json(),
            "effective": None if self.effective is None else self.effective.to_json(),
            "vma": None if self.vma is None else self.vma.to_json(),
            "frame": None if self.frame is None else self.frame.to_json(),
            "leaves_only": self.leaf is not None,
            "frames_hidden": self.leaf is not None and self.leaf.page.hidden,
        }


@dataclass(frozen=True)
class Walker:
    """Walks one target through one source."""

    source: Source
    pid: Pid
    process: Process | None
    kernel: str

    @classmethod
    def of(cls, source: Source, pid: Pid, process: Process | None) -> Walker:
        """A walker on this machine; `process` is None for the kernel half."""
        return cls(source, pid, process, Host().release)

    def walk(self, addresses: Sequence[int]) -> list[Walk]:
        """Walk the addresses, in their order.

        Raises what the source raises; ChangedIdentity or Exited when the process that answered is
        not the one that was found; BadStream when the entries contradict each other.
        """
        raws = self.source.walk(self.pid, addresses)
        vmas: tuple[Vma, ...] = ()
        if self.process is not None:
            vmas = read_maps(self.process.proc)
            self.process.check_unchanged()
        who = Who.of(self.process)
        return [interpret(raw, self.source, self.kernel, who, vmas, Frame.read) for raw in raws]


@dataclass(frozen=True)
class Who:
    """Of whom walks are; `pid` and `comm` are None for the kernel half."""

    pid: int | None
    comm: str | None
    leader_exited: bool

    @classmethod
    def of(cls, process: Process | None) -> Who:
        """A process that was found; None: the kernel half."""
        if process is None:
            return cls(None, None, False)
        return cls(process.pid, process.comm, process.leader_exited)


def interpret(
    raw: RawWalk,
    source: Source,
    kernel: str,
    who: Who,
    vmas: Sequence[Vma],
    frame_of: Callable[[int], Frame | None],
) -> Walk:
    """What raw entries mean.

    `vmas` give the VMA its name, `frame_of` says what a frame is; `kernel` is the release that the
    entries are from. Raises BadStream when the entries contradict each other.
    """
    layout = source.layout
    levels: tuple[Step, ...] = ()
    user_pgd: Step | None = None
    allowed: Effective | None = None
    if raw.leaf is not None or layout is None:
        if raw.leaf is None:
            raise BadStream(f"the source {source.name} gave entries without a layout")
        mapping = leaf_mapping(raw.address, raw.leaf, raw.vma)
    else:
        levels, user_pgd = steps(layout, raw)
        entries = [step.decoded for step in levels if step.decoded]
        mapping = mapping_of(layout, raw.address, entries[-1])
        allowed = effective(layout, entries, None if user_pgd is None else user_pgd.decoded)
    return Walk(
        pid=who.pid,
        comm=who.comm,
        leader_exited=who.leader_exited,
        address=raw.address,
        source=source.name,
        kernel=kernel,
        layout=layout,
        lock=raw.lock,
        levels=levels,
        user_pgd=user_pgd,
        mapping=mapping,
        effective=allowed,
        vma=None if raw.vma is None else named(raw.vma, vmas),
        frame=None if mapping.pfn is None else frame_of(mapping.pfn),
        leaf=raw.leaf,
    )


def target_of(pid: Pid) -> Process | None:
    """The process that a command line's target means; None for the kernel half.

    Raises what `find` raises.
    """
    if pid == "kernel":
        return None
    return find_self() if pid == "self" else find(pid)


def steps(layout: Layout, raw: RawWalk) -> tuple[tuple[Step, ...], Step | None]:
    """The levels of a walk, root first, all names of the layout; and the PTI user root entry.

    Raises BadStream when the walk is not a chain: an entry that does not point to the table of the
    next, or one that points further than the walk went.
    """
    numbers = {level.name: level.number for level in layout.levels}
    entries = {entry.level: entry for entry in raw.entries}
    levels = []
    for name in layout.all_level_names:
        if layout.is_folded(name):
            levels.append(Step(name, True, None, None, None))
            continue
        entry = entries.get(numbers[name])
        decoded = None if entry is None else decode(layout, name, entry.raw)
        levels.append(Step(name, False, layout.index(name, raw.address), entry, decoded))
    reached = [step for step in levels if step.entry is not None]
    for above, below in pairwise(reached):
        _check_link(above, below)
    last = reached[-1]
    if last.decoded is not None and last.decoded.state == "table":
        raise BadStream(f"the walk of {raw.address:#x} stops at a {last.level} that is a table")
    if raw.user_pgd is None:
        return tuple(levels), None
    root = reached[0].level
    user = decode(layout, root, raw.user_pgd.raw)
    step = Step(root, False, raw.user_pgd.index, raw.user_pgd, user)
    # Most of the kernel half is missing from the user copy.
    if user.state == "table" and len(reached) > 1:
        _check_link(step, reached[1])
    return tuple(levels), step


def _check_link(above: Step, below: Step) -> None:
    assert above.decoded is not None
    assert below.entry is not None
    table = below.entry.entry_pa - ENTRY_SIZE * below.entry.index
    if above.decoded.state != "table" or above.decoded.pa != table:
        points = "no table" if above.decoded.pa is None else f"{above.decoded.pa:#x}"
        raise BadStream(
            f"the walk is no chain: the {above.level} entry is {above.decoded.state} to {points}, "
            f"but the {below.level} entry was read from a table at {table:#x}"
        )


def mapping_of(layout: Layout, address: int, last: Entry) -> Mapping:
    """The mapping of an address from the entry at which its walk ended."""
    pa = None
    if last.state in MAPPED and last.pa is not None:
        size = last.mapping_size or last.page_size or layout.page_size
        # Entries that are grouped may all hold the address of the group (riscv Svnapot), or each
        # its own (arm64 contiguous): the low bits are those of the address either way.
        pa = last.pa | (address & (size - 1))
    return Mapping(
        state=last.state,
        level=last.level,
        pa=pa,
        pfn=None if pa is None else pa // layout.page_size,
        page_size=last.page_size,
        mapping_size=last.mapping_size,
    )


def leaf_mapping(address: int, leaf: RawLeaf, vma: Vma | None) -> Mapping:
    """The mapping as pagemap tells it.

    A present page of a VMA that allows nothing is PROT_NONE; a NUMA hint cannot be told from an
    ordinary page, and the kinds of special entries (migration, marker, …) not from swap.
    """
    page = leaf.page
    state = "swap" if page.swapped else "none"
    if page.present:
        state = "protnone" if vma is not None and vma.permissions[:3] == "---" else "leaf"
    base = leaf.base_size
    return Mapping(
        state=state,
        level=None,
        pa=None if page.frame is None else page.frame * base + address % base,
        pfn=page.frame,
        page_size=leaf.page_size,
        mapping_size=leaf.page_size,
    )
