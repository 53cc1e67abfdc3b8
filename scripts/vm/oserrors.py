# SPDX-License-Identifier: GPL-2.0-or-later
"""What a person can do when the host's own files fail: no room, no permission."""

from __future__ import annotations

import errno
import re
import shutil
import tempfile
from pathlib import Path

from . import paths
from .errors import SetupError

FULL = (errno.ENOSPC, errno.EDQUOT)
DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
FULL_TEXT = re.compile(r"No space left on device|Disk quota exceeded|enough free space in")
"""How programs put it: strerror's texts, and what apt says before it downloads."""
NEEDED = {"cache": 1500, "temporary files": 1500, "build": 300}
"""MB that one kernel's guests need at most: 0.9 GB in the cache, while an image is made as much in
the temporary directory, and what is built in the checkout."""


def _existing(path: Path) -> Path:
    return next(each for each in (path, *path.parents) if each.exists())


def room() -> str:
    """The remedy for a full disk: how many MB to free, and where."""
    places = {
        "cache": paths.cache_path(),
        "temporary files": Path(tempfile.gettempdir()),
        "build": paths.BUILD,
    }
    # Of several places on one file system the first names it.
    first: dict[int, Path] = {}
    needed: dict[int, int] = {}
    for name, path in places.items():
        device = _existing(path).stat().st_dev
        first.setdefault(device, path)
        needed[device] = needed.get(device, 0) + NEEDED[name]
    short = {}
    for device, path in first.items():
        short[path] = needed[device] - shutil.disk_usage(_existing(path)).free // 1_000_000
    asked = [f"free {mb} MB in {path}" for path, mb in short.items() if mb > 0]
    fullest = max(short, key=lambda path: short[path])
    return " and ".join(asked) or f"free {needed[_existing(fullest).stat().st_dev]} MB in {fullest}"


def explain(error: OSError) -> SetupError | None:
    """The same with a remedy; None for what a person can do nothing about: a defect here."""
    place = f"{error.filename}: " if error.filename else ""
    cause = f"{place}{error.strerror}"
    if error.errno in FULL:
        where = "" if error.filename else ", or where this command's output goes"
        return SetupError(cause, f"{room()}{where}")
    if error.errno in DENIED:
        return SetupError(cause, "run as root; the checkout and the cache are written to")
    return None
