# SPDX-License-Identifier: GPL-2.0-or-later
"""Text that comes from elsewhere, made fit for a terminal."""

from __future__ import annotations

import re

# Control characters; what makes a terminal write from right to left, or break a line; and halves of
# characters, which Python makes of bytes that are no UTF-8 and which cannot be written.
_UNFIT = re.compile(r"[\0-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def middle_cut(text: str, room: int) -> str:
    """`text` in at most `room` columns: of what is too long, the beginning and the end.

    Of a path both tell more than what is between them.
    """
    if len(text) <= room:
        return text
    begin = max(room - 1, 0) // 3
    return text[:begin] + "…" + text[len(text) - (room - 1 - begin) :]


def printable(text: str) -> str:
    """Text of another process or file, without the characters that could steer a terminal."""
    return _UNFIT.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
