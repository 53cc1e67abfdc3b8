# SPDX-License-Identifier: GPL-2.0-or-later
"""One page-table entry, decoded.

`decode` is the reference decoder: one function of (layout, level, raw value).
It knows no architecture; what the bits mean comes from `rules.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ptscope.decode.layout import U64_MAX, Layout
from ptscope.decode.rules import Row, Rules, StateRow, SwapRules, rules_for
from ptscope.decode.swap_kinds import UNKNOWN_MARKER
from ptscope.decode.table import MAPPED
from ptscope.errors import UsageError

_NO_REASON = ""
# States whose entry says what may be accessed.
_WITH_ACCESS = ("table", *MAPPED)


@dataclass(frozen=True, slots=True)
class Access:
    """What one entry alone allows.

    For a table entry: what it leaves possible below it.  `exec` of an entry
    without `user` is execution by the kernel.
    """

    read: bool
    write: bool
    exec: bool
    user: bool

    def to_json(self) -> dict[str, object]:
        """The four permissions by name."""
        return {"read": self.read, "write": self.write, "exec": self.exec, "user": self.user}


@dataclass(frozen=True, slots=True)
class Swap:
    """The parts of a swap entry, or of a special entry that has its form.

    `offset` is in pages for real swap, as stored: for entries with a frame it
    may have further bits above the frame number.  `kind` is ``swap``, or the
    name of the special type.
    """

    type: int
    offset: int
    kind: str

    def to_json(self) -> dict[str, object]:
        """Type, offset as hex text, and kind."""
        return {"type": self.type, "offset": hex(self.offset), "kind": self.kind}


@dataclass(frozen=True, slots=True)
class Entry:
    """A decoded entry.

    `pa` is the physical address (bytes) of the page or of the next table, `pfn`
    the same in pages; None without a frame.  `page_size` is the bytes one such
    entry stands for, `mapping_size` the bytes that the entries grouped with it
    map together.  A property is None when entries in this state do not carry
    it, or this kernel has no bit for it: that is "unsupported", not "no".
    `flags` are the words for the bits that are set, `reason` says why an
    invalid entry is invalid.
    """

    level: str
    raw: int
    state: str
    hw_present: bool
    pa: int | None = None
    pfn: int | None = None
    page_size: int | None = None
    mapping_size: int | None = None
    contiguous: bool = False
    access: Access | None = None
    accessed: bool | None = None
    dirty: bool | None = None
    soft_dirty: bool | None = None
    uffd_wp: bool | None = None
    special: bool | None = None
    global_: bool | None = None
    encrypted: bool | None = None
    shadow_stack: bool | None = None
    pkey: int | None = None
    swap: Swap | None = None
    flags: tuple[str, ...] = ()
    reason: str = _NO_REASON

    def to_json(self) -> dict[str, object]:
        """All fields as JSON-able objects; raw value and addresses as ``"0x…"`` text."""
        return {
            "level": self.level,
            "raw": hex(self.raw),
            "state": self.state,
            "hw_present": self.hw_present,
            "pa": None if self.pa is None else hex(self.pa),
            "pfn": None if self.pfn is None else hex(self.pfn),
            "page_size": self.page_size,
            "mapping_size": self.mapping_size,
            "contiguous": self.contiguous,
            "access": None if self.access is None else self.access.to_json(),
            "accessed": self.accessed,
            "dirty": self.dirty,
            "soft_dirty": self.soft_dirty,
            "uffd_wp": self.uffd_wp,
            "special": self.special,
            "global": self.global_,
            "encrypted": self.encrypted,
            "shadow_stack": self.shadow_stack,
            "pkey": self.pkey,
            "swap": None if self.swap is None else self.swap.to_json(),
            "flags": list(self.flags),
            "reason": self.reason or None,
        }


@dataclass(frozen=True, slots=True)
class NamedBits:
    """Set bits and the word for them; `low` and `high` are bit numbers."""

    word: str
    low: int
    high: int


def decode(layout: Layout, level_name: str, raw: int) -> Entry:
    """Decode the 64-bit value `raw`, found in a table of the level `level_name`.

    Never fails on a value: what the kernel and the hardware cannot mean is
    ``invalid`` with a reason.  Raises UsageError when `raw` is no 64-bit value and
    when the level is unknown or folded in `layout`.
    """
    rules = rules_for(layout, level_name)
    if not 0 <= raw <= U64_MAX:
        raise UsageError(
            f"{raw:#x} is not a 64-bit value", remedy=f"give a value from 0 to {U64_MAX:#x}"
        )
    for row in rules.states:
        if row.fits(raw):
            break
    else:
        row = _UNKNOWN
    if row.state == "swap" and rules.swap is not None:
        return _swapped(rules, rules.swap, raw)
    return _framed(rules, row, raw)


def named_bits(layout: Layout, entry: Entry) -> tuple[NamedBits, ...]:
    """The set bits of an entry with their words, lowest first.

    Bits of the address and of swap type and offset are left out; a set bit
    that means nothing in this state is called ``unused``.
    """
    return _named(rules_for(layout, entry.level), entry.state, entry.raw)


def has_attribute(layout: Layout, entry: Entry, name: str) -> bool:
    """True when a named attribute of the architecture's table holds for an entry."""
    return bool(_attribute(rules_for(layout, entry.level), entry.state, name, entry.raw))


_UNKNOWN = StateRow("invalid", Row(0, 0), 0, 0, "no rule of this architecture fits")


def _framed(rules: Rules, row: StateRow, raw: int) -> Entry:
    """An entry in a state that is told by its bits alone."""
    state = row.state
    pa = page_size = mapping_size = None
    contiguous = False
    if state == "table" or state in MAPPED:
        pa = 0
        flipped = raw ^ row.flip
        for piece in rules.address:
            bits = flipped & piece.mask
            pa |= bits << piece.shift if piece.shift >= 0 else bits >> -piece.shift
    if pa is not None and state in MAPPED:
        page_size = mapping_size = rules.level.span
        pa &= ~(page_size - 1)
        for group in rules.groups:
            if group.row.fits(raw):
                contiguous = True
                mapping_size = page_size * group.entries
                if group.in_address:
                    pa &= ~(mapping_size - 1)
                break
    hw_present = _any(rules.present, raw)
    return Entry(
        level=rules.level.name,
        raw=raw,
        state=state,
        hw_present=hw_present,
        pa=pa,
        pfn=None if pa is None else pa >> rules.page_shift,
        page_size=page_size,
        mapping_size=mapping_size,
        contiguous=contiguous,
        access=_access(rules, state, raw),
        accessed=_attribute(rules, state, "accessed", raw),
        dirty=_attribute(rules, state, "dirty", raw),
        soft_dirty=_attribute(rules, state, "soft_dirty", raw),
        uffd_wp=_attribute(rules, state, "uffd_wp", raw),
        special=_attribute(rules, state, "special", raw),
        global_=_attribute(rules, state, "global_", raw),
        encrypted=_attribute(rules, state, "encrypted", raw),
        shadow_stack=_attribute(rules, state, "shadow_stack", raw),
        pkey=_pkey(rules, state, raw),
        flags=_flags(rules, state, raw),
        reason=row.reason,
    )


def _swapped(rules: Rules, swap: SwapRules, raw: int) -> Entry:
    """An entry whose state is told by its swap type."""
    number = swap.type.read(raw)
    offset = swap.offset.read(raw)
    kind = swap.kinds.get(number)
    hw_present = _any(rules.present, raw)
    if kind is None:
        return Entry(
            level=rules.level.name,
            raw=raw,
            state="invalid",
            hw_present=hw_present,
            reason=f"this kernel has no swap type {number} at this level",
        )
    pfn = offset & swap.frame_mask if kind.frame else None
    page_size = None if kind.state == "marker" else rules.level.span
    name = kind.kind
    uffd_wp = _attribute(rules, kind.state, "uffd_wp", raw)
    if kind.marker:
        name = next((word for bit, word in swap.markers if offset & bit), UNKNOWN_MARKER)
        uffd_wp = bool(uffd_wp) or bool(offset & swap.uffd_wp_marker)
    return Entry(
        level=rules.level.name,
        raw=raw,
        state=kind.state,
        hw_present=hw_present,
        pa=None if pfn is None else pfn << rules.page_shift,
        pfn=pfn,
        page_size=page_size,
        mapping_size=page_size,
        accessed=bool(offset & swap.young) if kind.ages else None,
        dirty=bool(offset & swap.dirty) if kind.ages else None,
        soft_dirty=_attribute(rules, kind.state, "soft_dirty", raw),
        uffd_wp=uffd_wp,
        swap=Swap(number, offset, name),
        flags=_flags(rules, kind.state, raw),
    )


def _any(rows: tuple[Row, ...], raw: int) -> bool:
    return any(row.fits(raw) for row in rows)


def _attribute(rules: Rules, state: str, name: str, raw: int) -> bool | None:
    rows = rules.attributes[state].get(name)
    return None if rows is None else _any(rows, raw)


def _access(rules: Rules, state: str, raw: int) -> Access | None:
    if state not in _WITH_ACCESS:
        return None
    return Access(
        read=bool(_attribute(rules, state, "access.read", raw)),
        write=bool(_attribute(rules, state, "access.write", raw)),
        exec=bool(_attribute(rules, state, "access.exec", raw)),
        user=bool(_attribute(rules, state, "access.user", raw)),
    )


def _pkey(rules: Rules, state: str, raw: int) -> int | None:
    if rules.pkey is None or not _any(rules.pkey_rows.get(state, ()), raw):
        return None
    return rules.pkey.read(raw)


def _flags(rules: Rules, state: str, raw: int) -> tuple[str, ...]:
    return tuple(bits.word for bits in _named(rules, state, raw))


def _named(rules: Rules, state: str, raw: int) -> tuple[NamedBits, ...]:
    if state == "invalid" and not _any(rules.present, raw):
        return ()
    found = [
        _bits(row.word if row.field is None else f"{row.word}={row.field.read(raw)}", row.mask)
        for row in rules.words[state]
        if raw & row.mask
    ]
    if rules.pkey is not None and _pkey(rules, state, raw):
        found.append(_bits(f"pkey={rules.pkey.read(raw)}", rules.pkey.mask))
    rest = raw & ~rules.explained[state]
    while rest:
        bit = rest & -rest
        found.append(_bits("unused", bit))
        rest ^= bit
    return tuple(sorted(found, key=lambda bits: bits.low))


def _bits(word: str, mask: int) -> NamedBits:
    return NamedBits(word, (mask & -mask).bit_length() - 1, mask.bit_length() - 1)
