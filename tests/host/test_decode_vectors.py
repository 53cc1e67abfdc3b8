# SPDX-License-Identifier: GPL-2.0-or-later
"""Every vector decodes as given, in every key it gives."""

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
# How many vectors the file has for each layout, so that none is lost unnoticed.
COUNTS = {
    "debian-5.10-amd64": 4,
    "debian-6.1-amd64": 29,
    "debian-6.12-amd64": 8,
    "debian-7.2-amd64": 8,
    "debian-5.10-arm64": 1,
    "debian-6.1-arm64": 8,
    "debian-6.12-arm64": 6,
    "debian-7.2-arm64": 1,
    "debian-6.12-riscv64": 9,
    "debian-7.2-riscv64": 1,
}
# Layouts that the file says nothing about.
WITHOUT_VECTORS = {"debian-7.3-amd64", "debian-6.12-arm64-16k", "debian-7.2-arm64-16k"}
# No vector is invalid, and none a device entry.
STATES_SHOWN = set(STATES) - {"device", "invalid"}


def test_no_vector_is_left_out() -> None:
    assert Counter(vector["layout"] for vector in VECTORS) == COUNTS
    assert len({vector["id"] for vector in VECTORS}) == len(VECTORS) == 75


def test_every_layout_of_the_file_ships() -> None:
    assert set(available()) == set(COUNTS) | WITHOUT_VECTORS


def test_every_state_is_shown() -> None:
    assert {vector["expect"]["state"] for vector in VECTORS} == STATES_SHOWN


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["id"])
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
