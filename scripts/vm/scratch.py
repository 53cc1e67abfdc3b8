# SPDX-License-Identifier: GPL-2.0-or-later
"""A directory for what one run needs: gone with the run, or at the next start if it was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

LOCK = "lock"
"""A file in each directory, locked while its run lives: a PID says nothing about another container
that shares /tmp, nor after it was given to another process."""


def _lock(folder: Path) -> int | None:
    """Lock a directory; None when a living run has it, or when it went away meanwhile."""
    try:
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(handle).st_nlink:
            return handle
    except OSError:
        pass
    os.close(handle)
    return None


def _forget_stale(prefix: str) -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        # What has no lock file is being made at this moment, or is somebody else's.
        handle = _lock(folder) if folder.is_dir() and not folder.is_symlink() else None
        if handle is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(handle)


def _make(prefix: str) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        (folder / LOCK).touch()
        handle = _lock(folder)
        # Otherwise a run that starts now took it for a stale one, and removes it.
        if handle is not None:
            return folder, handle


@contextlib.contextmanager
def scratch_dir(kind: str) -> Iterator[Path]:
    """A new temporary directory ptscope-KIND-*; removes what killed runs of this kind left."""
    prefix = f"ptscope-{kind}-"
    _forget_stale(prefix)
    folder, handle = _make(prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)
