# SPDX-License-Identifier: GPL-2.0-or-later
"""What is said of a scenario in SCENARIOS.md, which lies beside this module."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

PAGE = Path(__file__).with_name("SCENARIOS.md")
CELLS = re.compile(r"(?<!\\)\|")

Explanation = tuple[tuple[str, str], ...]
"""The headings of a table and what stands below them, of one row, as plain text."""


def explanations(page: str) -> Mapping[str, Explanation]:
    """The rows of all tables by the names in their first cell, as `write` in backquotes."""
    found: dict[str, Explanation] = {}
    headings: list[str] = []
    for line in page.splitlines():
        cells = [cell.strip() for cell in CELLS.split(line)[1:-1]]
        if not cells:
            headings = []
        elif not headings:
            headings = cells
        else:
            names = re.findall(r"`([^`]+)`", cells[0])
            rest = zip(headings[1:], cells[1:], strict=True)
            row = tuple((heading, _plain(cell)) for heading, cell in rest if cell)
            found |= dict.fromkeys(names, row)
    return found


def _plain(text: str) -> str:
    return text.replace("**", "").replace("`", "")
