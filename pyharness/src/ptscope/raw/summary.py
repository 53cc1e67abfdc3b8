# SPDX-License-Identifier: GPL-2.0-or-later
"""Sums over a stream, made by the C core: what each VMA has, by level, state and attribute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ptscope._core import ffi, lib
from ptscope.decode.compiled import ATTRIBUTE, KINDS, CompiledRules
from ptscope.decode.layout import Layout
from ptscope.decode.table import STATES
from ptscope.errors import BadStream
from ptscope.raw.records import RawVma
from ptscope.raw.stream import limits_of, raw_vma, stream_error

_VMA: int = lib.PTSCOPE_SUMMARY_VMA
_ATTRIBUTE_NAMES = tuple(sorted(ATTRIBUTE, key=lambda name: ATTRIBUTE[name]))

Counts = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class LevelSums:
    """Entries of one level; counts that are 0 are left out.

    `states` is by state, `mapped` by attribute (names of decode.compiled.ATTRIBUTE) of entries
    that have a page, `swapped` of those in the form of a swap entry. `groups` counts entries by the
    number of the group they are part of, in the order of the level's rules.
    """

    states: Counts
    mapped: Counts
    swapped: Counts
    groups: Mapping[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class EntrySums:
    """What the entries of a VMA add up to. VMAs that are alike have the same object.

    `levels` is by name, `tables` counts tables by their own level, each for the first VMA that it
    maps an address of. `kinds` counts entries by kind of swap entry. `runs` counts maximal runs
    of pages whose frames follow each other, and `run_pages` their pages, by the length's logarithm
    to base 2. `small_ranges` are ranges of one PMD entry, wholly in the VMA, with pages mapped by
    PTEs: `small_range_pages`.
    """

    levels: Mapping[str, LevelSums]
    tables: Counts
    kinds: Counts
    runs: Mapping[int, int]
    run_pages: Mapping[int, int]
    small_ranges: int
    small_range_pages: int


@dataclass(frozen=True, slots=True)
class VmaSums:
    """What one VMA has; `vma` is None for what lies outside of all VMAs.

    `huge_frames` are candidates for the huge zero page: frames of clean, read-only huge pages, with
    the number of entries. `changed`: the VMA was another in a later batch; `batches`: how many it
    was read in.
    """

    vma: RawVma | None
    entries: EntrySums
    huge_zero: int
    huge_frames: Mapping[int, int]
    huge_frames_lost: int
    changed: bool
    batches: int


@dataclass
class Summary:
    """Sums up the batches of one stream, in their order."""

    rules: CompiledRules
    _state: Any = field(init=False, repr=False)
    _names: Mapping[int, str] = field(init=False, repr=False)
    _known: dict[bytes, EntrySums] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        layout = self.layout
        self._names = {level.number: level.name for level in layout.levels}
        self._state = ffi.new("struct ptscope_summary *")
        limits = limits_of({level.number: level.entries for level in layout.levels})
        lib.ptscope_summary_start(self._state, limits)
        for level in layout.levels:
            lib.ptscope_summary_level(self._state, self.rules.levels[level.name])

    @property
    def layout(self) -> Layout:
        """The layout of the kernel that the stream is from."""
        return self.rules.layout

    def know_huge_zero(self, pfn: int) -> None:
        """From now on count entries that map this frame as those of the huge zero page."""
        self._state.zero_pfn = pfn

    def add(self, batch: memoryview) -> Iterator[VmaSums]:
        """Take the next batch; gives the VMAs that it completes. Must be exhausted.

        Raises BadStream when the batch breaks a rule of ptscope.h.
        """
        state = self._state
        code = lib.ptscope_summary_batch(state, ffi.from_buffer(batch), len(batch))
        while not code and (code := lib.ptscope_summary_next(state)) == _VMA:
            yield self._sums(state.done, with_vma=True)
            code = 0
        if code:
            raise self._broken(code)

    def count(self, batch: memoryview) -> int:
        """Take the next batch and throw away the VMAs it completes; how many they were.

        For measuring, and for whoever wants `total` only.
        """
        state = self._state
        count = 0
        code = lib.ptscope_summary_batch(state, ffi.from_buffer(batch), len(batch))
        while not code and (code := lib.ptscope_summary_next(state)) == _VMA:
            count += 1
            code = 0
        if code:
            raise self._broken(code)
        return count

    def begin_again(self) -> None:
        """Take the next batch as the first of a new stream; what was counted is kept."""
        self._state.sequence = 0

    def finish(self) -> VmaSums | None:
        """The last VMA, after the last batch; None when there was none."""
        if lib.ptscope_summary_finish(self._state) == _VMA:
            return self._sums(self._state.done, with_vma=True)
        return None

    def outside(self) -> VmaSums:
        """What was outside of all VMAs, after `finish`; everything, in a stream without VMAs."""
        return self._sums(self._state.outside, with_vma=False)

    def _broken(self, code: int) -> BadStream:
        return stream_error(self._state.sequence - 1, self._state.cursor.offset, code)

    def _sums(self, sums: Any, with_vma: bool) -> VmaSums:
        # Of a hundred thousand VMAs most are small, and nearly all alike.
        key = ffi.buffer(ffi.addressof(sums))[_ENTRIES]
        entries = self._known.get(key)
        if entries is None:
            if len(self._known) == MOST_KNOWN:
                self._known.clear()
            entries = self._known[key] = self._entries(sums)
        frames = sums.frame_count
        return VmaSums(
            vma=raw_vma(sums.vma) if with_vma else None,
            entries=entries,
            huge_zero=sums.huge_zero,
            huge_frames={frame.pfn: frame.count for frame in sums.frames[0:frames]}
            if frames
            else {},
            huge_frames_lost=sums.frames_lost,
            changed=bool(sums.changed),
            batches=sums.batches,
        )

    def _entries(self, sums: Any) -> EntrySums:
        # Most VMAs have entries at few levels, and many have none at all.
        filled = sums.filled
        with_runs = filled & lib.PTSCOPE_FILLED_RUNS
        return EntrySums(
            levels={
                name: _level(sums.levels[number]) if filled >> number & 1 else _EMPTY
                for number, name in self._names.items()
            },
            tables=self._tables(sums) if filled & lib.PTSCOPE_FILLED_TABLES else {},
            kinds=_named(KINDS, sums.kinds) if filled & lib.PTSCOPE_FILLED_KINDS else {},
            runs=_numbered(sums.runs) if with_runs else {},
            run_pages=_numbered(sums.run_pages) if with_runs else {},
            small_ranges=sums.small_ranges,
            small_range_pages=sums.small_range_pages,
        )

    def _tables(self, sums: Any) -> Counts:
        return {
            name: count for number, name in self._names.items() if (count := sums.tables[number])
        }


# The part of the C structure that an EntrySums is made of; what is filled follows from it.
_ENTRIES = slice(
    ffi.offsetof("struct ptscope_sums", "levels"),
    ffi.offsetof("struct ptscope_sums", "huge_zero"),
)
MOST_KNOWN = 1024
_EMPTY = LevelSums({}, {}, {}, {})


def _level(level: Any) -> LevelSums:
    return LevelSums(
        states=_named(STATES, level.states),
        mapped=_named(_ATTRIBUTE_NAMES, level.mapped),
        swapped=_named(_ATTRIBUTE_NAMES, level.swapped),
        groups=_numbered(level.groups),
    )


def _named(names: tuple[str, ...], counts: Any) -> Counts:
    return {
        name: count
        for name, count in zip(names, ffi.unpack(counts, len(names)), strict=True)
        if count
    }


def _numbered(counts: Any) -> Mapping[int, int]:
    return {number: count for number, count in enumerate(counts) if count}
