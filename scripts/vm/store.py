# SPDX-License-Identifier: GPL-2.0-or-later
"""Things made once and kept: complete or absent, whatever interrupts the making.

Everything is made under a temporary name beside its place and renamed when complete, under a lock
file, so two runs that start at once make it once and a killed run leaves nothing that looks whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from . import paths
from .say import say

KEPT = 3
"""Things of a kind that are kept: `forget_others`."""
KEPT_SECONDS = 24 * 3600


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the cache's lock called ``name``; says so when another run holds it first."""
    folder = paths.cache() / "locks"
    folder.mkdir(exist_ok=True)
    with (folder / name).open("w", encoding="ascii") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another run that prepares {name}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _prefix(final: Path) -> str:
    return f".partial-{final.name}-"


def make_dir(final: Path, fill: Callable[[Path], None], lock: str) -> Path:
    """Return ``final``, a directory that ``fill(temporary directory)`` makes when it is absent."""
    if final.exists():
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    with locked(lock):
        if final.exists():
            return final
        # Under the lock nobody else makes this: what lies about was left by a killed run.
        for stale in final.parent.glob(_prefix(final) + "*"):
            shutil.rmtree(stale, ignore_errors=True)
        partial = Path(tempfile.mkdtemp(prefix=_prefix(final), dir=final.parent))
        try:
            fill(partial)
            partial.chmod(0o755)
            partial.rename(final)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    return final


def make_file(final: Path, fill: Callable[[Path], None], lock: str) -> Path:
    """Return ``final``, a file that ``fill(temporary path)`` writes when it is absent."""
    if final.exists():
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    with locked(lock):
        if not final.exists():
            for stale in final.parent.glob(_prefix(final) + "*"):
                stale.unlink()
            partial = final.parent / f"{_prefix(final)}{os.getpid()}"
            try:
                fill(partial)
                partial.rename(final)
            finally:
                partial.unlink(missing_ok=True)
    return final


def forget_others(keep: Path, pattern: str) -> None:
    """Remove what is beside ``keep``, matches ``pattern`` and was not used for long.

    Another checkout with other inputs shares the cache and may be reading what it made: the
    `KEPT` used last remain, and all that was used within `KEPT_SECONDS`.
    """
    # The time of the last use, for the next to look here.
    with contextlib.suppress(OSError):
        os.utime(keep)
    used: list[tuple[float, Path]] = []
    for other in keep.parent.glob(pattern):
        if other != keep:
            with contextlib.suppress(FileNotFoundError):
                used.append((other.stat().st_mtime, other))
    for when, other in sorted(used, reverse=True)[KEPT - 1 :]:
        if time.time() - when < KEPT_SECONDS:
            continue
        if other.is_dir():
            shutil.rmtree(other, ignore_errors=True)
        else:
            other.unlink(missing_ok=True)


def write(path: Path, text: str) -> None:
    """Replace a small text file in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.parent / f"{_prefix(path)}{os.getpid()}"
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def digest(*parts: str | bytes) -> str:
    """A short name for these inputs: equal exactly when all parts are equal and in this order."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "little"))
        total.update(data)
    return total.hexdigest()[:16]


def tree_digest(*roots: Path, skip: Callable[[Path], bool] = lambda path: False) -> str:
    """`digest` of the names, modes and contents of files and of all files under directories."""
    parts: list[str | bytes] = []
    for root in roots:
        for path in sorted([root, *root.rglob("*")]):
            if path.is_file() and not skip(path):
                parts += [
                    str(path.relative_to(root)),
                    oct(path.stat().st_mode & 0o111),
                    path.read_bytes(),
                ]
    return digest(*parts)
