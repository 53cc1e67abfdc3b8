# SPDX-License-Identifier: GPL-2.0-or-later
"""What one architecture's decoding table is made of.

A table names bits; where those bits are is a fact of the layout.  So a table
says "a leaf has `present` and `huge` set", the layout says that `huge` is bit
7, and `rules.py` joins the two into plain mask and value rows.  The same table
serves every kernel of its architecture.

Names in a table resolve like this:

* ``"accessed"``          the bit at fact ``bit.accessed``
* ``"swap.bit.uffd_wp"``  the bit at fact ``swap.bit.uffd_wp``
* ``"mask.pfn"``          the mask of that fact
* ``"pxn_table"``         bits of that name in the architecture's `fixed`, which no
                          kernel chooses and so no layout states
* ``"runtime.c_mask"``    the mask of that runtime fact
* ``"unaligned"``         address bits that must be zero in a leaf of the level,
                          because they lie below the size it maps

A name whose fact the layout does not have never matches: a kernel without a
feature has no bit for it.

Rows are tried in order and the first that fits decides, so a row may rely on
what the rows before it have already taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

# States with a frame the kernel counts as mapped, by hardware or by itself.
MAPPED = ("leaf", "protnone", "splitting")
# States of an entry that is neither empty nor known to the hardware.
SWAPPED = ("swap", "migration", "device", "hwpoison", "marker")
# Every state, in the order documentation lists them.
STATES = ("none", "table", *MAPPED, *SWAPPED, "invalid")

NO_CONDITION: Mapping[str, int] = {}
# What a context key changes about a layout; None removes a key.
Changes = Mapping[str, int | None]


@dataclass(frozen=True)
class Match:
    """Bits that must be one and bits that must be zero, under a condition.

    `when` maps runtime facts (without ``runtime.``), or else facts, to the value
    they must have; a fact the layout lacks counts as 0.
    """

    ones: tuple[str, ...] = ()
    zeros: tuple[str, ...] = ()
    when: Mapping[str, int] = field(default_factory=lambda: NO_CONDITION)


@dataclass(frozen=True)
class State:
    """One row of the ordered state table.

    `only`, if given, is the list of bits that may be set: all others must be
    zero.  `any_of`, if given, asks for at least one of its bits as well.
    `inverted` says that the frame is stored inverted in this state.  `reason`
    tells people why an entry is invalid.
    """

    state: str
    levels: tuple[str, ...]
    ones: tuple[str, ...] = ()
    zeros: tuple[str, ...] = ()
    only: tuple[str, ...] | None = None
    any_of: tuple[str, ...] = ()
    inverted: bool = False
    reason: str = ""
    when: Mapping[str, int] = field(default_factory=lambda: NO_CONDITION)


@dataclass(frozen=True)
class Attribute:
    """A property of an entry: true when any of the matches holds.

    `name` is a field of `Entry`, ``access.read`` and so on for one of `Access`, or
    what a `Fold` asks for.  States not listed in any row of a name do not have the
    property, and no state has it where `when` does not hold.
    """

    name: str
    states: tuple[str, ...]
    any_of: tuple[Match, ...]
    when: Mapping[str, int] = field(default_factory=lambda: NO_CONDITION)


@dataclass(frozen=True)
class Piece:
    """Raw bits under `mask` moved left by `shift`, a number or a fact, are bits of the address."""

    mask: str
    shift: int | str = 0
    when: Mapping[str, int] = field(default_factory=lambda: NO_CONDITION)


@dataclass(frozen=True)
class Group:
    """Several entries that together make one mapping (contiguous, Svnapot).

    `entries` is their number, or the name of the fact that has it.  With
    `in_address` the low address bits of the entry encode the size and must be
    cleared from the address.
    """

    levels: tuple[str, ...]
    match: Match
    entries: int | str
    in_address: bool = False


@dataclass(frozen=True)
class Field:
    """A number of several bits: `width` bits from bit `low` on (both facts).

    It counts in a state when any of the matches given for it holds.
    """

    low: str
    width: str
    rows: tuple[tuple[tuple[str, ...], tuple[Match, ...]], ...]


@dataclass(frozen=True)
class Word:
    """The word for a set bit, in the states and at the levels where it has it.

    With `number` the bits are a number, and shown as ``word=number`` when it is not 0.
    """

    word: str
    bit: str
    states: tuple[str, ...]
    levels: tuple[str, ...]
    number: bool = False
    when: Mapping[str, int] = field(default_factory=lambda: NO_CONDITION)


@dataclass(frozen=True)
class Fold:
    """How a permission of a whole walk follows from its entries.

    Always as the AND over all levels walked; what differs is what each entry is asked.
    `user` is the attribute for a page that user mode has access to, `kernel` for
    one it has not; without them it is ``access.PERMISSION`` for both.
    """

    permission: str
    user: str = ""
    kernel: str = ""

    def attribute(self, is_user: bool) -> str:
        """The name of the attribute that each entry is asked for."""
        return (self.user if is_user else self.kernel) or f"access.{self.permission}"


@dataclass(frozen=True)
class ContextKey:
    """What a person may override about a layout, and all that follows from it.

    `values` says what is accepted, for error messages.  `derive` takes the
    facts, the runtime facts and the value, and returns what changes, by the keys
    of the module's text (``runtime.levels``, ``page_shift``; None removes one);
    it raises ValueError for a value that cannot be on this kernel.
    """

    values: str
    derive: Callable[[Mapping[str, int], Mapping[str, int], int | None], Changes]


@dataclass(frozen=True)
class Architecture:
    """Everything the decoder knows about one architecture.

    Context keys are applied in the order in which they stand here.
    """

    name: str
    level_names: tuple[str, ...]
    required: tuple[str, ...]
    present: tuple[Match, ...]
    states: tuple[State, ...]
    attributes: tuple[Attribute, ...]
    address: tuple[Piece, ...]
    # Masks outside of which raw bits are no address bits, whatever the pieces say.
    address_within: tuple[str, ...]
    # Address bits which a leaf above the last level uses for something else.
    leaf_reuses: tuple[str, ...]
    groups: tuple[Group, ...]
    pkey: Field | None
    words: tuple[Word, ...]
    context: Mapping[str, ContextKey]
    # Masks of bits that are the same on every kernel, by name.
    fixed: Mapping[str, int] = field(default_factory=lambda: NO_CONDITION)
    # The order is that of `Access`.
    folds: tuple[Fold, ...] = (Fold("read"), Fold("write"), Fold("exec"), Fold("user"))
