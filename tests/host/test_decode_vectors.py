# SPDX-License-Identifier: GPL-2.0-or-later
"""Every vector of a shipped layout decodes as given, in every key it gives."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from ptscope.decode.entry import decode
from ptscope.decode.layout import available, load
from ptscope.decode.table import STATES

VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent.parent / "vectors" / "decode.json").read_text()
)
# Each shipped layout and how many vectors the file has for it; the rest of the
# file belongs to layouts that do not ship yet, named so that none is forgotten.
SHIPPED = {"debian-6.1-amd64": 29}
NOT_SHIPPED = {
    "debian-5.10-amd64",
    "debian-6.12-amd64",
    "debian-7.2-amd64",
    "debian-5.10-arm64",
    "debian-6.1-arm64",
    "debian-6.12-arm64",
    "debian-7.2-arm64",
    "debian-6.12-riscv64",
    "debian-7.2-riscv64",
}
# States that the vectors of shipped layouts show; device entries need another
# config, and no vector is invalid.
STATES_SHOWN = set(STATES) - {"device", "invalid"}
TAKEN = [vector for vector in VECTORS if vector["layout"] in SHIPPED]


def test_no_vector_is_left_out() -> None:
    counts = Counter(vector["layout"] for vector in VECTORS)
    assert {name: counts[name] for name in SHIPPED} == SHIPPED
    assert set(counts) == set(SHIPPED) | NOT_SHIPPED
    assert len({vector["id"] for vector in VECTORS}) == len(VECTORS)


def test_every_layout_that_ships_has_vectors() -> None:
    assert set(available()) == set(SHIPPED)


def test_every_state_is_shown() -> None:
    assert {vector["expect"]["state"] for vector in TAKEN} == STATES_SHOWN


@pytest.mark.parametrize("vector", TAKEN, ids=lambda vector: vector["id"])
def test_vector(vector: dict[str, Any]) -> None:
    layout = load(vector["layout"]).with_context(vector["context"])
    assert layout.arch == vector["arch"]
    got = decode(layout, vector["level"], int(vector["raw"], 16)).to_json()
    assert vector["expect"], "a vector that expects nothing tests nothing"
    compared = {}
    for key, expected in vector["expect"].items():
        value: Any = got[key]
        # `access` and `swap` may expect some of their members only.
        compared[key] = {k: value[k] for k in expected} if isinstance(expected, dict) else value
    assert compared == vector["expect"], vector["why"]
