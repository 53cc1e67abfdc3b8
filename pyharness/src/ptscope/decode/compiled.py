# SPDX-License-Identifier: GPL-2.0-or-later
"""The reference decoder's rules as C structs, for tables of entries rather than single ones.

What `decode_array` gives agrees with `decode` in every field except `flags` and `reason`, the words
for people: whoever shows an entry decodes it with `decode`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from ptscope._core import ffi, lib
from ptscope.decode.entry import Access, Entry, Swap
from ptscope.decode.layout import U64_MAX, Layout, Level
from ptscope.decode.rules import Row, Rules, SwapRules, rules_for
from ptscope.decode.swap_kinds import MARKER_KINDS, PLAIN_SWAP, SPECIAL_KINDS, UNKNOWN_MARKER
from ptscope.decode.table import MAPPED, STATES
from ptscope.errors import Unsupported

# Numbers of states in C by name, and the names in the order of the numbers.
STATE: Mapping[str, int] = {name: getattr(lib, f"PTSCOPE_STATE_{name.upper()}") for name in STATES}
# The bit of each attribute, by its name in `Entry`, in `Access` (with "access."), or for a fold.
ATTRIBUTE: Mapping[str, int] = {
    "accessed": lib.PTSCOPE_IS_ACCESSED,
    "dirty": lib.PTSCOPE_IS_DIRTY,
    "soft_dirty": lib.PTSCOPE_IS_SOFT_DIRTY,
    "uffd_wp": lib.PTSCOPE_IS_UFFD_WP,
    "special": lib.PTSCOPE_IS_SPECIAL,
    "global_": lib.PTSCOPE_IS_GLOBAL,
    "encrypted": lib.PTSCOPE_IS_ENCRYPTED,
    "shadow_stack": lib.PTSCOPE_IS_SHADOW_STACK,
    "access.read": lib.PTSCOPE_MAY_READ,
    "access.write": lib.PTSCOPE_MAY_WRITE,
    "access.exec": lib.PTSCOPE_MAY_EXEC,
    "access.user": lib.PTSCOPE_MAY_USER,
    "exec.user": lib.PTSCOPE_USER_EXEC,
    "exec.kernel": lib.PTSCOPE_KERNEL_EXEC,
    "hw_present": lib.PTSCOPE_IS_PRESENT,
    "contiguous": lib.PTSCOPE_IS_CONTIGUOUS,
}
# Kinds of swap entries by number; 0 is none.
KINDS = (
    "",
    PLAIN_SWAP,
    *SPECIAL_KINDS,
    *(kind for _, kind in MARKER_KINDS),
    UNKNOWN_MARKER,
)
KIND = {name: number for number, name in enumerate(KINDS)}

HAS_FRAME: int = lib.PTSCOPE_HAS_FRAME
HAS_PKEY: int = lib.PTSCOPE_HAS_PKEY
HAS_SWAP: int = lib.PTSCOPE_HAS_SWAP

_WITH_ACCESS = ("table", *MAPPED)

# What `decode_array` takes: 8 bytes an entry in the order of the machine, or numbers.
Raws = bytes | bytearray | memoryview | Sequence[int]


@dataclass(frozen=True)
class Decoded:
    """Decoded entries: `array[i]` is a ``struct ptscope_decoded`` (core/decode.h).

    Its `state` is a number of STATE, `known` and `set` are bits of ATTRIBUTE, `has` of HAS_...,
    `swap_kind` a number of KIND.
    """

    level: Level
    array: Any
    count: int

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Any]:
        return (self.array[position] for position in range(self.count))

    def __getitem__(self, position: int) -> Any:
        if not 0 <= position < self.count:
            raise IndexError(position)
        return self.array[position]


@dataclass(frozen=True)
class CompiledRules:
    """The rules of every level of one layout. `levels` maps a level's name to its C struct.

    `by_number` is the same for C: pointers by wire level, NULL for one that is folded.
    """

    layout: Layout
    levels: Mapping[str, Any]
    by_number: Any = field(repr=False)

    def decode_array(self, level_name: str, raws: Raws) -> Decoded:
        """Decode entries of tables of one level.

        Raises UsageError when the level is unknown or folded, ValueError when bytes are not whole
        entries.
        """
        level = self.layout.level(level_name)
        values, count = _words(raws)
        out = ffi.new("struct ptscope_decoded[]", count)
        lib.ptscope_decode(self.levels[level_name], values, count, out)
        return Decoded(level, out, count)


@lru_cache(maxsize=64)
def compiled(layout: Layout) -> CompiledRules:
    """The compiled rules of a layout, kept after the first use.

    Raises Unsupported for a layout whose facts contradict each other.
    """
    levels = {level.name: _compile(rules_for(layout, level.name)) for level in layout.levels}
    by_number = ffi.new("struct ptscope_rules *[6]")
    for level in layout.levels:
        by_number[level.number] = levels[level.name]
    return CompiledRules(layout, levels, by_number)


def entry_of(level: Level, raw: int, decoded: Any) -> Entry:
    """The Entry that a ``struct ptscope_decoded`` stands for, without `flags` and `reason`."""

    def known(name: str) -> bool | None:
        bit = ATTRIBUTE[name]
        return bool(decoded.set & bit) if decoded.known & bit else None

    def may(name: str) -> bool:
        return bool(decoded.set & ATTRIBUTE[f"access.{name}"])

    state = STATES[decoded.state]
    has = decoded.has
    return Entry(
        level=level.name,
        raw=raw,
        state=state,
        hw_present=bool(known("hw_present")),
        pa=decoded.pa if has & HAS_FRAME else None,
        pfn=decoded.pfn if has & HAS_FRAME else None,
        page_size=decoded.page_size or None,
        mapping_size=decoded.mapping_size or None,
        contiguous=bool(known("contiguous")),
        access=(
            Access(may("read"), may("write"), may("exec"), may("user"))
            if state in _WITH_ACCESS
            else None
        ),
        accessed=known("accessed"),
        dirty=known("dirty"),
        soft_dirty=known("soft_dirty"),
        uffd_wp=known("uffd_wp"),
        special=known("special"),
        global_=known("global_"),
        encrypted=known("encrypted"),
        shadow_stack=known("shadow_stack"),
        pkey=decoded.pkey if has & HAS_PKEY else None,
        swap=(
            Swap(decoded.swap_type, decoded.swap_offset, KINDS[decoded.swap_kind])
            if has & HAS_SWAP
            else None
        ),
    )


def _words(raws: Raws) -> tuple[Any, int]:
    if not isinstance(raws, (bytes, bytearray, memoryview)):
        return ffi.new("unsigned long long[]", raws), len(raws)
    view = memoryview(raws).cast("B")
    if len(view) % 8:
        raise ValueError(f"{len(view)} bytes are not whole entries")
    count = len(view) // 8
    # The C side wants words; whether a Python object's bytes are aligned is no contract.
    values = ffi.new("unsigned long long[]", count)
    ffi.memmove(values, view, len(view))
    return values, count


def _compile(rules: Rules) -> Any:
    """One level's rules as a ``struct ptscope_rules``."""
    out = ffi.new("struct ptscope_rules *")
    pool = _Pool(out.rows, lib.PTSCOPE_MAX_ROWS)
    out.span = rules.level.span
    out.level = rules.level.number
    out.page_shift = rules.page_shift
    out.present = pool.put(rules.present)
    out.state_count = _fill(
        out.states,
        lib.PTSCOPE_MAX_STATE_ROWS,
        (
            {
                "mask": row.row.mask,
                "value": row.row.value,
                "some": row.some,
                "flip": row.flip,
                "state": STATE[row.state],
            }
            for row in rules.states
        ),
    )
    out.piece_count = _fill(
        out.pieces,
        lib.PTSCOPE_MAX_PIECES,
        (
            {"mask": piece.mask, "left": max(piece.shift, 0), "right": max(-piece.shift, 0)}
            for piece in rules.address
        ),
    )
    out.group_count = _fill(
        out.groups,
        lib.PTSCOPE_MAX_GROUPS,
        (
            {
                "row": {"mask": group.row.mask, "value": group.row.value},
                "entries": group.entries,
                "in_address": group.in_address,
            }
            for group in rules.groups
        ),
    )
    for state, number in STATE.items():
        per_state = out.per_state[number]
        for name, bit in ATTRIBUTE.items():
            if bit < 1 << lib.PTSCOPE_ATTRIBUTES:
                rows = rules.attributes[state].get(name)
                # `Access` has no "unsupported": what has no bit is not allowed.
                if name.startswith("access.") and state in _WITH_ACCESS:
                    rows = rows or ()
                per_state.attributes[bit.bit_length() - 1] = pool.put(rows)
        per_state.pkey = pool.put(rules.pkey_rows.get(state))
    if rules.pkey is not None:
        out.has_pkey = 1
        out.pkey = (rules.pkey.mask, rules.pkey.flip, rules.pkey.shift)
    if rules.swap is not None:
        _compile_swap(out, rules.swap)
    return out


def _compile_swap(out: Any, swap: SwapRules) -> None:
    out.has_swap = 1
    out.swap_type = (swap.type.mask, swap.type.flip, swap.type.shift)
    out.swap_offset = (swap.offset.mask, swap.offset.flip, swap.offset.shift)
    out.frame_mask = swap.frame_mask & U64_MAX
    out.young = swap.young & U64_MAX
    out.dirty = swap.dirty & U64_MAX
    out.uffd_wp_marker = swap.uffd_wp_marker
    out.unknown_marker = KIND[UNKNOWN_MARKER]
    if max(swap.kinds, default=0) >= lib.PTSCOPE_SWAP_TYPES:
        raise Unsupported(f"a layout with swap type {max(swap.kinds)}")
    for number, kind in swap.kinds.items():
        out.kinds[number] = {
            "kind": KIND[kind.kind],
            "state": STATE[kind.state],
            "frame": kind.frame,
            "ages": kind.ages,
            "marker": kind.marker,
        }
    out.marker_count = _fill(
        out.markers,
        lib.PTSCOPE_MAX_MARKERS,
        ({"bit": bit, "kind": KIND[kind]} for bit, kind in swap.markers),
    )


class _Pool:
    """The rows of one level, equal sequences of them kept once."""

    def __init__(self, rows: Any, room: int) -> None:
        self._rows = rows
        self._room = room
        self._used = 0
        self._known: dict[tuple[Row, ...], int] = {}

    def put(self, rows: tuple[Row, ...] | None) -> dict[str, int]:
        """A ``struct ptscope_rows`` for these; None: there is no bit for it."""
        if rows is None:
            return {"first": 0, "count": 0, "known": 0}
        if rows not in self._known:
            if self._used + len(rows) > self._room:
                raise Unsupported("a layout with more rows than the C decoder has room for")
            for row in rows:
                self._rows[self._used] = (row.mask, row.value)
                self._used += 1
            self._known[rows] = self._used - len(rows)
        return {"first": self._known[rows], "count": len(rows), "known": 1}


def _fill(array: Any, room: int, values: Iterable[Any]) -> int:
    """Put values into a C array of `room`; how many there were."""
    count = 0
    for count, value in enumerate(values, 1):
        if count > room:
            raise Unsupported("a layout with more rows than the C decoder has room for")
        array[count - 1] = value
    return count
