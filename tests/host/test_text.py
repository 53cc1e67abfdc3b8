# SPDX-License-Identifier: GPL-2.0-or-later
"""Text of others, made fit for a terminal."""

from __future__ import annotations

import pytest
from ptscope.views.text import middle_cut


@pytest.mark.parametrize(
    ("text", "room", "cut"),
    [
        ("/usr/bin/cat", 12, "/usr/bin/cat"),
        ("/usr/bin/cat", 10, "/us…in/cat"),
        ("/usr/bin/cat", 1, "…"),
        ("", 0, ""),
    ],
)
def test_of_a_long_path_beginning_and_end_stay(text: str, room: int, cut: str) -> None:
    assert middle_cut(text, room) == cut
    assert len(cut) <= max(room, 1)
