# SPDX-License-Identifier: GPL-2.0-or-later
"""How many entries a second the C core classifies and sums on this machine.

Two address spaces are made up, each of as many full tables as one read of the module gives. The
likely one has what programs have: runs of frames, few kinds of entries, some swap, some holes. In
the hostile one no two neighbours have anything in common: each entry has another frame and one of
all the combinations of the bits that the decoder looks at.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ptscope._core import ffi, lib
from ptscope.decode.compiled import compiled
from ptscope.decode.layout import Layout, Level, load
from ptscope.decode.rules import Row, rules_for
from ptscope.raw.stream import batch_buffer
from ptscope.raw.summary import Summary

# Full tables of one batch of PTSCOPE_MAX_READ bytes.
TABLES = 60
SECONDS = 0.5
# How many pages follow each other in memory: 3.7 in the mean.
RUNS = (1, 1, 1, 1, 1, 2, 2, 4, 8, 16)


@dataclass(frozen=True)
class DecoderSpeed:
    """Entries a second on one core, empty ones included; the best of several rounds."""

    layout: str
    likely: float
    hostile: float
    entries: int


def bench_decoder(layout: Layout | None = None, seconds: float = SECONDS) -> DecoderSpeed:
    """Measure for about `seconds` for each of the two address spaces."""
    layout = layout or load()
    rng = random.Random(1)
    likely = _batch(layout, [list(_likely(layout, rng)) for _ in range(TABLES)])
    hostile = _batch(layout, [list(_hostile(layout, rng)) for _ in range(TABLES)])
    return DecoderSpeed(
        layout=layout.name,
        likely=_measure(layout, likely, seconds),
        hostile=_measure(layout, hostile, seconds),
        entries=TABLES * layout.levels[-1].entries,
    )


def _measure(layout: Layout, batch: memoryview, seconds: float) -> float:
    summary = Summary(compiled(layout))
    entries = TABLES * layout.levels[-1].entries
    best = 0.0
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        summary.begin_again()
        start = time.perf_counter()
        summary.count(batch)
        best = max(best, entries / (time.perf_counter() - start))
    return best


def _likely(layout: Layout, rng: random.Random) -> Iterator[int]:
    """The entries of one PTE table as a program has them."""
    level = layout.levels[-1]
    left = level.entries
    classes = _mapped_classes(layout)[:6]
    swapped = _swapped_classes(layout)[:1]
    while left:
        count = min(left, rng.choice(RUNS))
        left -= count
        what = rng.random()
        if what < 0.03:
            yield from [0] * count
            continue
        some = swapped if what < 0.06 else classes
        raw = rng.choice(some)
        first = rng.randrange(1 << 22)
        for frame in range(first, first + count):
            yield _with_frame(layout, raw, frame)


def _hostile(layout: Layout, rng: random.Random) -> Iterator[int]:
    """The entries of one PTE table, each of another class than the one before."""
    classes = _mapped_classes(layout) + _swapped_classes(layout)
    for _ in range(layout.levels[-1].entries):
        yield _with_frame(layout, rng.choice(classes), rng.randrange(1 << 22))


def _mapped_classes(layout: Layout) -> list[int]:
    """Present entries without a frame, one for each combination of the bits that have a name."""
    level = layout.levels[-1]
    present = rules_for(layout, level.name).present[0]
    bits = [
        1 << layout.facts[f"bit.{name}"]
        for name in ("accessed", "dirty", "write", "user", "nx", "uxn", "exec", "soft_dirty",
                     "uffd_wp", "read", "rdonly", "ng", "global")
        if f"bit.{name}" in layout.facts
    ]  # fmt: skip
    base = present.value | _page_bits(layout)
    classes = [base]
    for bit in bits:
        classes += [raw ^ bit for raw in classes]
    # The first ones, which `_likely` takes, have the first bits: accessed, dirty, writable.
    return classes


def _page_bits(layout: Layout) -> int:
    """What a leaf at the last level has besides the present bit."""
    names = {"arm64": ("table", "user", "ng"), "riscv64": ("read", "user")}
    return sum(1 << layout.facts[f"bit.{name}"] for name in names.get(layout.arch, ("user",)))


def _swapped_classes(layout: Layout) -> list[int]:
    """One entry of each swap type, with an offset that no marker has."""
    rules = rules_for(layout, layout.levels[-1].name)
    if rules.swap is None:
        return []
    kind, offset = rules.swap.type, rules.swap.offset
    return [
        (number << kind.shift) | ((0x1000 << offset.shift) ^ (offset.flip & offset.mask))
        for number in rules.swap.kinds
    ]


def _with_frame(layout: Layout, raw: int, frame: int) -> int:
    """The entry with another frame; for a swap entry, with another offset."""
    piece = rules_for(layout, layout.levels[-1].name).address[0]
    moved = frame << layout.facts["page_shift"]
    return raw ^ ((moved >> piece.shift if piece.shift > 0 else moved) & piece.mask)


def _batch(layout: Layout, tables: list[list[int]]) -> memoryview:
    """One batch with one VMA that all these PTE tables map, as the module gives it."""
    *upper, last = layout.levels
    start = 1 << 30
    size = last.entries * last.span
    out = [_head(), _vma(start, start + len(tables) * size)]
    for number, raws in enumerate(tables):
        address = start + number * size
        # Going on in the next table, only the entry that points to it comes first.
        for level in upper if not number else upper[-1:]:
            raw = _with_frame(layout, _table_entry(layout), 1)
            out.append(_table(level, layout.index(level, address), [raw], address & -level.span))
        out.append(_table(last, 0, raws, address))
    data = b"".join(out)
    buffer = batch_buffer(len(data))
    buffer[:] = data
    return buffer


def _table_entry(layout: Layout) -> int:
    """An entry that points to a table at frame 0."""
    rules = rules_for(layout, layout.levels[-2].name)
    row: Row = next(row.row for row in rules.states if row.state == "table")
    return row.value


def _record(kind: int, body: bytes) -> bytes:
    return struct.pack("=HHI", kind, 0, 8 + len(body)) + body


def _head() -> bytes:
    size = ffi.sizeof("struct ptscope_batch")
    fields = (lib.PTSCOPE_MAGIC, lib.PTSCOPE_VERSION, size, 0, 0, lib.PTSCOPE_LOCK_READ, 0)
    return _record(lib.PTSCOPE_RECORD_BATCH, struct.pack("=IHHQQII", *fields))


def _vma(start: int, end: int) -> bytes:
    return _record(lib.PTSCOPE_RECORD_VMA, struct.pack("=QQQQQQII", start, end, 3, 0, 0, 0, 0, 0))


def _table(level: Level, index: int, raws: list[int], address: int) -> bytes:
    head = struct.pack("=QQHHI", address, 0x1000, level.number, index, len(raws))
    return _record(lib.PTSCOPE_RECORD_TABLE, head + struct.pack(f"={len(raws)}Q", *raws))


def main() -> None:
    """Print the figures for each layout that ships: `python3 -m ptscope.decode.speed`."""
    from ptscope.decode.layout import available

    for name in available():
        speed: Any = bench_decoder(load(name))
        print(f"{name:24} likely {speed.likely / 1e6:6.0f} M/s  hostile {speed.hostile / 1e6:6.0f}")


if __name__ == "__main__":
    main()
