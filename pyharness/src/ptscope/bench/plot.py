# SPDX-License-Identifier: GPL-2.0-or-later
"""Distributions, and cost over size, as a picture. The only place that needs matplotlib."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ptscope.bench.conditions import Conditions
from ptscope.bench.fit import fit
from ptscope.bench.result import Measured
from ptscope.bench.stats import median, quantile
from ptscope.bench.store import why_missing
from ptscope.errors import Unsupported, UsageError

WIDTH, ROW = 9.0, 0.28
"""Inches."""
ORIENTATION_SINCE = (3, 10)
"""Of matplotlib, which has deprecated `vert` since."""


def check_available(path: Path) -> None:
    """Raise Unsupported when there is no matplotlib, and UsageError when it has no such format."""
    import importlib.util

    if importlib.util.find_spec("matplotlib") is None:
        raise Unsupported(
            "drawing needs matplotlib, which is not installed",
            "`pip install matplotlib`, or Debian's python3-matplotlib",
        )
    from matplotlib.backend_bases import FigureCanvasBase

    if path.suffix and path.suffix[1:].lower() not in FigureCanvasBase.get_supported_filetypes():
        raise UsageError(f"cannot draw {path}: no such kind of picture", "end its name with .png")


def _lying() -> dict[str, Any]:
    """How matplotlib is told that boxes lie."""
    import matplotlib

    if matplotlib.__version_info__[:2] >= ORIENTATION_SINCE:
        return {"orientation": "horizontal"}
    return {"vert": False}


def drawn(path: Path, group: str, measured: Sequence[Measured], conditions: Conditions) -> bytes:
    """A picture, as a file of this name holds it: its kind follows from the name.

    `check_available()` says whether it can be drawn.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = [each for each in measured if why_missing(each) is None]
    over_size = any(each.family for each in shown)
    figure = Figure(figsize=(WIDTH, 6.5 if over_size else 1.6 + ROW * max(4, len(shown))))
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    (_draw_sizes if over_size else _draw_distributions)(axes, shown)
    facts = conditions.facts
    axes.set_title(
        f"ptscope bench {group}: {facts['kernel']}, {facts['cpu_model_name']}\n"
        f"{facts['accelerator']}; {facts['levels']} levels; clock {facts['clock']}",
        fontsize=9,
    )
    axes.grid(True, which="major", alpha=0.3)
    figure.tight_layout()
    picture = io.BytesIO()
    figure.savefig(picture, dpi=120, format=path.suffix[1:] or "png")
    return picture.getvalue()


def _draw_distributions(axes: Any, shown: Sequence[Measured]) -> None:
    """A row a scenario: the box holds the middle half, the line in it is the median.

    Whiskers reach from the first to the 99th percentile.
    """
    boxes = []
    for each in shown:
        ordered = sorted(each.values)
        boxes.append(
            {
                "label": each.name,
                "whislo": quantile(ordered, 0.01),
                "q1": quantile(ordered, 0.25),
                "med": quantile(ordered, 0.5),
                "q3": quantile(ordered, 0.75),
                "whishi": quantile(ordered, 0.99),
                "fliers": [],
            }
        )
    places = list(range(len(boxes)))
    axes.bxp(
        boxes,
        positions=places,
        **_lying(),
        widths=0.6,
        showfliers=False,
        patch_artist=True,
        boxprops={"facecolor": "#9ecae1", "linewidth": 0.6},
        medianprops={"color": "#08306b", "linewidth": 1.6},
        whiskerprops={"linewidth": 0.6},
        capprops={"linewidth": 0.6},
    )
    axes.set_yticks(places, [box["label"] for box in boxes], fontsize=8)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("ns a sample; box: middle half, line: median, whiskers: 1st to 99th percentile")


def _draw_sizes(axes: Any, shown: Sequence[Measured]) -> None:
    """Medians over pages, a line a scenario with its middle half as a band, and what was fitted."""
    families: dict[str, list[Measured]] = {}
    for each in shown:
        families.setdefault(each.family or each.name, []).append(each)
    for number, (family, members) in enumerate(families.items()):
        colour = f"C{number % 10}"
        pages = [each.pages or 1 for each in members]
        medians = [median(each.values) for each in members]
        lows = [quantile(sorted(each.values), 0.25) for each in members]
        highs = [quantile(sorted(each.values), 0.75) for each in members]
        style = "-" if number < 10 else "--"
        label = family
        line = fit([(size, each.by_round) for size, each in zip(pages, members, strict=True)])
        if line is not None:
            label += f": {line.fixed.value:,.0f} ns + {line.page.value:,.2f} ns a page"
        axes.plot(pages, medians, style, marker="o", markersize=3, color=colour, label=label)
        axes.fill_between(pages, lows, highs, color=colour, alpha=0.15)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("pages")
    axes.set_ylabel("ns a call; band: middle half")
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
