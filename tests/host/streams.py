# SPDX-License-Identifier: GPL-2.0-or-later
"""Streams of the module, put together byte by byte from what ptscope.h says.

This is the format written down a second time, on purpose: tests that made their streams with
the code under test would not see a mistake in it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from ptscope.decode.layout import load

MAGIC = 0x43535450
VERSION = 1
BATCH, VMA, TABLE, END = 1, 2, 3, 4
AGAIN, USER_PGD, HUGETLB, REPEATED = 1, 2, 4, 8
READ, WRITE, NONE = 1, 2, 3
DONE, EXITED, EXECED, UNSTABLE = 1, 2, 3, 4
PTE, PMD, PUD, P4D, PGD = 1, 2, 3, 4, 5

FIVE = load("debian-6.1-amd64").with_context({"paging_levels": 5})
FOUR = FIVE.with_context({"paging_levels": 4})
PTI = FOUR.with_context({"pti": 1})

TABLE_BITS = 0x67  # present, write, user, accessed, dirty
LEAF_BITS = 0x8000000000000867  # the same, soft-dirty and nx


def record(kind: int, flags: int, body: bytes, size: int | None = None) -> bytes:
    """Any record; `size` lies about its length."""
    return struct.pack("=HHI", kind, flags, 8 + len(body) if size is None else size) + body


def batch(sequence: int = 0, lock: int = READ, magic: int = MAGIC, version: int = VERSION) -> bytes:
    """A batch record; 1234 ns under the lock."""
    return record(BATCH, 0, struct.pack("=IHHQQII", magic, version, 40, sequence, 1234, lock, 0))


def vma(start: int, end: int, vm_flags: int = 0x73, flags: int = 0) -> bytes:
    """A VMA record of a file at page 2; readable, writable, private by default."""
    body = struct.pack("=QQQQQQII", start, end, vm_flags, 0x25, 2, 77, 8, 1)
    return record(VMA, flags, body)


def table(
    level: int, index: int, raws: Sequence[int], table_pa: int, address: int, flags: int = 0
) -> bytes:
    """A table record with its raw entries."""
    body = struct.pack("=QQHHI", address, table_pa, level, index, len(raws))
    return record(TABLE, flags, body + struct.pack(f"={len(raws)}Q", *raws))


def end(status: int = DONE, address: int = 0, reserved: int = 0) -> bytes:
    """An end record."""
    return record(END, 0, struct.pack("=IIQ", status, reserved, address))


def chain(
    address: int, leaf: int, last: int = PTE, layout: object = FIVE, base: int = 0x10000
) -> bytes:
    """Tables from the root down to level `last`, whose entry is `leaf`.

    The table of each level lies one page after the one above it, from `base` on.
    """
    assert isinstance(layout, type(FIVE))
    out = b""
    levels = [level for level in layout.levels if level.number >= last]
    for position, level in enumerate(levels):
        here = base + 0x1000 * position
        raw = leaf if level.number == last else here + 0x1000 | TABLE_BITS
        index = layout.index(level, address)
        out += table(level.number, index, [raw], here, address & -level.span)
    return out
