# SPDX-License-Identifier: GPL-2.0-or-later
"""An architecture's table and a layout's facts, joined into mask and value rows.

What comes out has no names to look up any more: a decoder tests
``raw & mask == value`` row by row, whatever the architecture.  Rules are made
once for each layout and level and kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from ptscope.decode.arch import architecture
from ptscope.decode.layout import Layout, Level
from ptscope.decode.swap_kinds import MARKER_KINDS, PLAIN_SWAP, SPECIAL_KINDS
from ptscope.decode.table import STATES, Architecture, Match
from ptscope.errors import Unsupported

_U64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Row:
    """Fits a raw value when ``raw & mask == value``."""

    mask: int
    value: int

    def fits(self, raw: int) -> bool:
        """True when the raw value has these bits."""
        return raw & self.mask == self.value


@dataclass(frozen=True, slots=True)
class StateRow:
    """A row of the ordered state table; `some` asks for one bit more out of several (0: none).

    `flip` is what to exclusive-or the raw value with before its address is read.
    """

    state: str
    row: Row
    some: int
    flip: int
    reason: str

    def fits(self, raw: int) -> bool:
        """True when the raw value is in this state, no row before having fitted."""
        return self.row.fits(raw) and (not self.some or bool(raw & self.some))


@dataclass(frozen=True, slots=True)
class PieceRow:
    """Raw bits under `mask`, moved left by `shift` (right when negative), are address bits."""

    mask: int
    shift: int


@dataclass(frozen=True, slots=True)
class GroupRow:
    """Entries that fit are one of `entries` that make one mapping together."""

    row: Row
    entries: int
    in_address: bool


@dataclass(frozen=True, slots=True)
class BitField:
    """A number held in contiguous bits, exclusive-or'ed with `flip` where it is stored inverted."""

    mask: int
    shift: int
    flip: int = 0

    def read(self, raw: int) -> int:
        """The number in the raw value."""
        return ((raw ^ self.flip) & self.mask) >> self.shift


@dataclass(frozen=True, slots=True)
class KindRow:
    """What a swap type means at this level."""

    kind: str
    state: str
    frame: bool
    ages: bool
    marker: bool


@dataclass(frozen=True, slots=True)
class SwapRules:
    """How entries that are swap entries, or look like it, are read.

    `young` and `dirty` are bits of the offset, 0 on kernels that do not keep
    them; a type that is not in `kinds` is not used by this kernel at this level.
    """

    type: BitField
    offset: BitField
    frame_mask: int
    young: int
    dirty: int
    kinds: Mapping[int, KindRow]
    markers: tuple[tuple[int, str], ...]
    uffd_wp_marker: int


@dataclass(frozen=True, slots=True)
class WordRow:
    """The word for bits that are set; `field` reads their number where they are one."""

    word: str
    mask: int
    field: BitField | None = None


@dataclass(frozen=True, slots=True)
class Rules:
    """All rows for one level of one layout.

    In `attributes`, by state: the attribute's rows, of which any may fit, or None
    when this kernel has no bit for it.  `explained`, by state: all bits that have
    a meaning; others are shown as unnamed.
    """

    level: Level
    page_shift: int
    present: tuple[Row, ...]
    states: tuple[StateRow, ...]
    attributes: Mapping[str, Mapping[str, tuple[Row, ...] | None]]
    address: tuple[PieceRow, ...]
    groups: tuple[GroupRow, ...]
    pkey: BitField | None
    pkey_rows: Mapping[str, tuple[Row, ...]]
    swap: SwapRules | None
    words: Mapping[str, tuple[WordRow, ...]]
    explained: Mapping[str, int]


@lru_cache(maxsize=256)
def rules_for(layout: Layout, level_name: str) -> Rules:
    """The rules for one level of a layout, kept after the first use.

    Raises UsageError for a level that is unknown or folded, Unsupported for a
    layout whose facts contradict each other.
    """
    return _Compiler(layout, layout.level(level_name)).rules()


class _Compiler:
    """Resolves the names of one architecture's table with the facts of one layout."""

    def __init__(self, layout: Layout, level: Level) -> None:
        self.layout = layout
        self.level = level
        self.table: Architecture = architecture(layout.arch)
        self.pieces = tuple(self._pieces())
        self.address_mask = 0
        for piece in self.pieces:
            self.address_mask |= piece.mask

    def rules(self) -> Rules:
        """Compile everything."""
        pkey, pkey_rows = self._pkey()
        words = {state: self._words(state) for state in STATES}
        swap = self._swap()
        return Rules(
            level=self.level,
            page_shift=self.layout.facts["page_shift"],
            present=self._rows(self.table.present) or (),
            states=tuple(self._states()),
            attributes={state: self._attributes(state) for state in STATES},
            address=self.pieces,
            groups=tuple(self._groups()),
            pkey=pkey,
            pkey_rows=pkey_rows,
            swap=swap,
            words=words,
            explained={
                state: self._explained(state, words[state], pkey, pkey_rows, swap)
                for state in STATES
            },
        )

    def _mask(self, name: str) -> int | None:
        """The mask a name stands for; None when this kernel has no such thing."""
        if name == "unaligned":
            return self._unaligned()
        if name.startswith("runtime."):
            return self.layout.runtime.get(name.removeprefix("runtime."))
        if name.startswith("mask."):
            return self.layout.facts.get(name)
        if name in self.table.fixed:
            return self.table.fixed[name]
        bit = self.layout.facts.get(name if name.startswith("swap.bit.") else f"bit.{name}")
        return None if bit is None else 1 << bit

    def _masks(self, names: Iterable[str]) -> int:
        """All of the names together, absent ones left out."""
        mask = 0
        for name in names:
            mask |= self._mask(name) or 0
        return mask

    def _holds(self, when: Mapping[str, int]) -> bool:
        known = {**self.layout.facts, **self.layout.runtime}
        return all(known.get(key, 0) == value for key, value in when.items())

    def _row(self, ones: Iterable[str], zeros: Iterable[str]) -> Row | None:
        """None when a bit that has to be one does not exist, or is a mask without bits."""
        masks = [self._mask(name) for name in ones]
        if not all(masks):
            return None
        value = 0
        for mask in masks:
            value |= mask or 0
        return Row(value | self._masks(zeros), value)

    def _rows(self, matches: Iterable[Match]) -> tuple[Row, ...] | None:
        """The rows of the matches that apply; None when none can, for want of a bit."""
        exists = False
        rows: list[Row] = []
        for match in matches:
            exists = exists or all(self._mask(name) is not None for name in match.ones)
            row = self._row(match.ones, match.zeros)
            if row is not None and self._holds(match.when):
                rows.append(row)
        return tuple(rows) if exists else None

    def _states(self) -> Iterable[StateRow]:
        for state in self.table.states:
            if self.level.name not in state.levels or not self._holds(state.when):
                continue
            if state.only is not None:
                row: Row | None = Row(_U64 & ~self._masks(state.only), 0)
            else:
                row = self._row(state.ones, state.zeros)
            some = self._masks(state.any_of)
            if row is None or (state.any_of and not some):
                continue
            flip = self.address_mask if state.inverted else 0
            yield StateRow(state.state, row, some, flip, state.reason)

    def _attributes(self, state: str) -> Mapping[str, tuple[Row, ...] | None]:
        return {
            attribute.name: self._rows(attribute.any_of) if self._holds(attribute.when) else None
            for attribute in self.table.attributes
            if state in attribute.states
        }

    def _pieces(self) -> Iterable[PieceRow]:
        keep = _U64
        for name in self.table.address_within:
            keep &= self._mask(name) or 0
        for piece in self.table.address:
            mask = self._mask(piece.mask)
            shift = piece.shift
            if isinstance(shift, str):
                shift = self.layout.facts.get(shift, 0)
            if mask is not None and self._holds(piece.when):
                yield PieceRow(mask & keep, shift)

    def _unaligned(self) -> int:
        """Raw address bits that lie below the size an entry of this level maps."""
        mask = 0
        for piece in self.pieces:
            below = self.level.span - 1
            mask |= piece.mask & (
                below >> piece.shift if piece.shift >= 0 else below << -piece.shift
            )
        return mask & ~self._masks(self.table.leaf_reuses)

    def _groups(self) -> Iterable[GroupRow]:
        for group in self.table.groups:
            row = self._row(group.match.ones, group.match.zeros)
            entries = group.entries
            if isinstance(entries, str):
                entries = self.layout.facts.get(entries, 0)
            usable = self.level.name in group.levels and self._holds(group.match.when)
            if row is not None and entries and usable:
                yield GroupRow(row, entries, group.in_address)

    def _pkey(self) -> tuple[BitField | None, Mapping[str, tuple[Row, ...]]]:
        field = self.table.pkey
        if field is None or field.low not in self.layout.facts:
            return None, {}
        low = self.layout.facts[field.low]
        mask = ((1 << self.layout.facts.get(field.width, 0)) - 1) << low
        rows = {
            state: self._rows(matches) or () for states, matches in field.rows for state in states
        }
        return BitField(mask, low), rows

    def _words(self, state: str) -> tuple[WordRow, ...]:
        rows = []
        for word in self.table.words:
            mask = self._mask(word.bit)
            usable = self.level.name in word.levels and self._holds(word.when)
            if mask and state in word.states and usable:
                shift = (mask & -mask).bit_length() - 1
                field = BitField(mask, shift) if word.number else None
                rows.append(WordRow(word.word, mask, field))
        return tuple(sorted(rows, key=lambda row: row.mask))

    def _explained(
        self,
        state: str,
        words: Iterable[WordRow],
        pkey: BitField | None,
        pkey_rows: Mapping[str, tuple[Row, ...]],
        swap: SwapRules | None,
    ) -> int:
        mask = 0
        for row in words:
            mask |= row.mask
        if pkey is not None and state in pkey_rows:
            mask |= pkey.mask
        if swap is not None and any(kind.state == state for kind in swap.kinds.values()):
            return mask | swap.type.mask | swap.offset.mask
        return mask | self.address_mask

    def _swap(self) -> SwapRules | None:
        facts = self.layout.facts
        if "swap.type_mask" not in facts or "swap.offset_mask" not in facts:
            return None
        offset_mask = facts["swap.offset_mask"]
        inverted = facts.get("swap.offset_inverted", 0)
        pfn_bits = self.layout.runtime.get("swap_pfn_bits")
        type_field = self._field(facts["swap.type_mask"])
        special = {
            facts[f"swap.kind.{name}"]: KindRow(
                name, kind.state, kind.frame, kind.ages and pfn_bits is not None, name == "marker"
            )
            for name, kind in SPECIAL_KINDS.items()
            if f"swap.kind.{name}" in facts
        }
        kinds = dict(special)
        # THP is split before it is swapped out and hugetlb never is, so real swap
        # stands at the last level only.
        if self.level is self.layout.levels[-1]:
            # Special types are the highest: all below the lowest of them are
            # swap files (MAX_SWAPFILES in include/linux/swap.h).
            types = 1 << type_field.mask.bit_count()
            for number in range(min(special, default=types)):
                kinds[number] = KindRow(PLAIN_SWAP, "swap", False, False, False)
        markers = tuple(
            (facts[f"swap.marker.{name}"], kind)
            for name, kind in MARKER_KINDS
            if f"swap.marker.{name}" in facts
        )
        return SwapRules(
            type=type_field,
            offset=self._field(offset_mask, offset_mask if inverted else 0),
            frame_mask=_U64 if pfn_bits is None else (1 << pfn_bits) - 1,
            young=0 if pfn_bits is None else 1 << pfn_bits,
            dirty=0 if pfn_bits is None else 2 << pfn_bits,
            kinds=kinds,
            markers=markers,
            uffd_wp_marker=facts.get("swap.marker.uffd_wp", 0),
        )

    def _field(self, mask: int, flip: int = 0) -> BitField:
        shift = (mask & -mask).bit_length() - 1
        if not mask or (mask >> shift) & ((mask >> shift) + 1):
            raise Unsupported(f"layout {self.layout.name}: swap mask {mask:#x} is not one field")
        return BitField(mask, shift, flip)
