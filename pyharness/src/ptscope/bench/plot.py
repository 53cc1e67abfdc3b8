# SPDX-License-Identifier: GPL-2.0-or-later
"""Distributions, and cost over size, as a picture. The only place that needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ptscope.bench.conditions import Conditions
from ptscope.bench.result import Measured
from ptscope.errors import Unsupported


def check_available() -> None:
    """Raise Unsupported when there is no matplotlib."""
    import importlib.util

    if importlib.util.find_spec("matplotlib") is None:
        raise Unsupported(
            "drawing needs matplotlib, which is not installed",
            "`pip install matplotlib`, or Debian's python3-matplotlib",
        )


def draw(path: Path, group: str, measured: Sequence[Measured], conditions: Conditions) -> None:
    """Write a picture; its kind follows from the name of the file. Raises OSError."""
    raise NotImplementedError
