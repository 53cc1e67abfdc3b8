# SPDX-License-Identifier: GPL-2.0-or-later
"""Raw values to try decoders on: any 64 bits, and values near those that mean something."""

from __future__ import annotations

import random
from collections.abc import Iterator

from ptscope.decode.layout import Layout
from ptscope.decode.rules import Row, Rules, rules_for

U64 = (1 << 64) - 1


def values(layout: Layout, level: str, count: int, seed: int) -> Iterator[int]:
    """`count` values for entries of one level; equal seeds give equal values.

    Half are uniform. The others satisfy some rows of the level's rules, with few bits elsewhere,
    or differ from such a value in up to three bits: where one rule ends and the next begins.
    """
    rng = random.Random(f"{layout.name} {level} {seed}")
    rules = rules_for(layout, level)
    rows = _rows(rules)
    yield from (0, U64)
    for number in range(count - 2):
        if number % 2:
            yield rng.getrandbits(64)
            continue
        raw = rng.choice((0, rng.getrandbits(64), rng.getrandbits(64) & rng.getrandbits(64)))
        for row in rng.choices(rows, k=rng.randrange(1, 4)):
            raw = (raw & ~row.mask) | row.value
        if rules.swap is not None and rng.random() < 0.3:
            kind = rng.choice(tuple(rules.swap.kinds or (0,)))
            field = rules.swap.type
            raw = (raw & ~field.mask) | ((kind << field.shift) ^ (field.flip & field.mask))
        for _ in range(rng.randrange(4)):
            raw ^= 1 << rng.randrange(64)
        yield raw


def _rows(rules: Rules) -> list[Row]:
    rows = [row.row for row in rules.states] + list(rules.present)
    rows += [group.row for group in rules.groups]
    for by_name in rules.attributes.values():
        rows += [row for found in by_name.values() if found for row in found]
    rows += [Row(row.some, row.some & -row.some) for row in rules.states if row.some]
    if rules.swap is not None:
        shift = rules.swap.offset.shift
        for bit in (rules.swap.young, rules.swap.dirty, *(bit for bit, _ in rules.swap.markers)):
            rows.append(Row((bit << shift) & U64, (bit << shift) & U64))
    return list(dict.fromkeys(rows))
