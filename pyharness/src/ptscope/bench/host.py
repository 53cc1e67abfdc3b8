# SPDX-License-Identifier: GPL-2.0-or-later
"""What the Python side costs on this machine: the C decoder's speed, and how long commands start.

Times of a machine that does other things too, so each figure is the best of several.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

DECODER_LEAST = 100e6  # entries a second, on one core
START_MOST = 0.150  # seconds
STARTS = 10
STARTED: tuple[tuple[str, ...], ...] = (
    ("--help",),
    ("decode", "0x8000000108f2e867", "--level", "pte"),
)


@dataclass(frozen=True)
class Figure:
    """One figure; `text` and `limit` are for people, `value` is in entries a second or seconds."""

    name: str
    value: float
    text: str
    limit: str
    holds: bool

    def to_json(self) -> dict[str, object]:
        """The object that `python3 -m ptscope.bench` prints."""
        return {
            "name": self.name,
            "value": self.value,
            "text": self.text,
            "limit": self.limit,
            "holds": self.holds,
        }


def decoder() -> list[Figure]:
    """Entries a second that the C core classifies and sums."""
    from ptscope.decode.speed import bench_decoder

    speed = bench_decoder()
    kinds = (("like those of programs", speed.likely), ("without likeness", speed.hostile))
    return [
        Figure(
            name=f"entries classified and summed, {kind}",
            value=value,
            text=f"{value / 1e6:,.0f} million/s",
            limit=f"at least {DECODER_LEAST / 1e6:,.0f} million/s",
            holds=value >= DECODER_LEAST,
        )
        for kind, value in kinds
    ]


def start(arguments: Sequence[str]) -> float:
    """Seconds that `ptscope ARGUMENTS` takes, from its start to its end."""
    begin = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "ptscope", *arguments],
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    return time.perf_counter() - begin


def starts(measure: Callable[[Sequence[str]], float] = start) -> list[Figure]:
    """How long commands take that everybody runs often."""
    figures = []
    for arguments in STARTED:
        seconds = min(measure(arguments) for _ in range(STARTS))
        figures.append(
            Figure(
                name=f"ptscope {' '.join(arguments)}",
                value=seconds,
                text=f"{seconds * 1000:.0f} ms",
                limit=f"at most {START_MOST * 1000:.0f} ms",
                holds=seconds <= START_MOST,
            )
        )
    return figures
