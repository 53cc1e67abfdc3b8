# SPDX-License-Identifier: GPL-2.0-or-later
"""Progress for people, on standard error: standard output belongs to the guest's command."""

from __future__ import annotations

import sys
import threading
import time

_start = time.monotonic()
_lock = threading.Lock()
_quiet = False


def be_quiet() -> None:
    """Only problems from now on (``--quiet``)."""
    global _quiet
    _quiet = True


def say(message: str) -> None:
    """Print one line of progress, with the seconds since the harness started."""
    if not _quiet:
        warn(f"[{time.monotonic() - _start:6.1f} s] {message}")


def warn(message: str) -> None:
    """Print one line that is shown even when quiet."""
    with _lock:
        print(message, file=sys.stderr, flush=True)
