# SPDX-License-Identifier: GPL-2.0-or-later
"""A line on stderr that says how far something long has come."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from ptscope.views.walk import WIDTH

SILENT = 2.0  # seconds: what is done before that needs no progress
INTERVAL = 0.2  # seconds


class Ticker:
    """Shows a line once something takes longer than SILENT, if stderr is a terminal."""

    def __init__(self) -> None:
        # None for who was started with it closed.
        self._wanted = sys.stderr is not None and sys.stderr.isatty()
        self._next = time.monotonic() + SILENT
        self._shown = False

    def __enter__(self) -> Ticker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.clear()

    def tell(self, text: str) -> None:
        """Show `text` in place of what was shown before."""
        now = time.monotonic()
        if self._wanted and now >= self._next:
            sys.stderr.write(f"\r{text[: WIDTH - 1]:<{WIDTH - 1}}")
            sys.stderr.flush()
            self._next = now + INTERVAL
            self._shown = True

    def clear(self) -> None:
        """Remove the line, before something else is written to the terminal."""
        if self._shown:
            sys.stderr.write(f"\r{'':{WIDTH - 1}}\r")
            sys.stderr.flush()
            self._shown = False
