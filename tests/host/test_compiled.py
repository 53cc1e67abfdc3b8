# SPDX-License-Identifier: GPL-2.0-or-later
"""The C decoder agrees with the reference decoder in every field that it has."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ptscope.decode.arch import architecture
from ptscope.decode.compiled import ATTRIBUTE, compiled, entry_of
from ptscope.decode.entry import Entry, decode, has_attribute
from ptscope.decode.layout import Layout, available, load
from ptscope.decode.swap_kinds import SPECIAL_KINDS
from ptscope.decode.table import STATES
from ptscope.errors import UsageError
from values import values

VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent.parent / "vectors" / "decode.json").read_text()
)
# Values for each layout. The reference decoder does some ten thousand a second: a million for
# each of them takes a quarter of an hour, and is for `make agree`.
COUNT = int(os.environ.get("PTSCOPE_VALUES", "4000"))
SEED = int(os.environ.get("PTSCOPE_SEED", "1"))
# Attributes that an Entry has not, but folds of permissions ask for.
FOLDED = ("exec.user", "exec.kernel")


def wordless(entry: Entry) -> Entry:
    """The entry as C knows it."""
    return replace(entry, flags=(), reason="")


def disagreements(layout: Layout, level_name: str, raws: list[int]) -> list[str]:
    """What the two decoders say differently."""
    level = layout.level(level_name)
    decoded = compiled(layout).decode_array(level_name, raws)
    assert len(decoded) == len(raws)
    found = []
    for raw, one in zip(raws, decoded, strict=True):
        entry = decode(layout, level_name, raw)
        expected = wordless(entry)
        got = entry_of(level, raw, one)
        folds = [
            name
            for name in FOLDED
            if has_attribute(layout, entry, name) is not bool(one.set & ATTRIBUTE[name])
        ]
        if got != expected or folds:
            found.append(f"{layout.name} {level_name} {raw:#018x}: {expected} is not {got} {folds}")
    return found


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["id"])
def test_every_vector(vector: dict[str, Any]) -> None:
    layout = load(vector["layout"]).with_context(vector["context"])
    assert disagreements(layout, vector["level"], [int(vector["raw"], 16)]) == []


@pytest.mark.parametrize("name", available())
def test_random_values(name: str) -> None:
    layout = load(name)
    for level in layout.levels:
        raws = list(values(layout, level.name, -(-COUNT // len(layout.levels)), SEED))
        assert disagreements(layout, level.name, raws) == []


@pytest.mark.parametrize("name", available())
def test_values_reach_every_state(name: str) -> None:
    """What the values do not reach, the test above does not test."""
    layout = load(name)
    reached = {
        STATES[one.state]
        for level in layout.levels
        for one in compiled(layout).decode_array(
            level.name, list(values(layout, level.name, 4000, SEED))
        )
    }
    # What a kernel has: the states of its architecture, and those of its special swap types.
    there = {row.state for row in architecture(layout.arch).states}
    there |= {
        kind.state for name, kind in SPECIAL_KINDS.items() if f"swap.kind.{name}" in layout.facts
    }
    assert reached == there
    assert len(there) >= len(STATES) - 2


def test_bytes_and_numbers_are_the_same() -> None:
    layout = load()
    raws = list(values(layout, "pte", 50, SEED))
    data = b"".join(raw.to_bytes(8, "little") for raw in raws)
    rules = compiled(layout)
    level = layout.level("pte")
    expected = [entry_of(level, raw, one) for raw, one in
                zip(raws, rules.decode_array("pte", raws), strict=True)]
    # Bytes at an odd address, as a slice of something larger may be.
    for given in (data, bytearray(data), memoryview(b"x" + data)[1:]):
        decoded = rules.decode_array("pte", given)
        assert [entry_of(level, raw, one) for raw, one in zip(raws, decoded, strict=True)] == (
            expected)
    assert len(rules.decode_array("pte", b"")) == 0


def test_what_cannot_be_decoded() -> None:
    rules = compiled(load().with_context({"paging_levels": 4}))
    with pytest.raises(ValueError, match="whole entries"):
        rules.decode_array("pte", b"1234567")
    with pytest.raises(UsageError, match="folded"):
        rules.decode_array("p4d", [0])
    with pytest.raises(IndexError):
        rules.decode_array("pte", [0])[1]
