# SPDX-License-Identifier: GPL-2.0-or-later
"""Where things are: in the checkout and in the cache."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from .errors import SetupError

REPO = Path(__file__).resolve().parents[2]
KMOD = REPO / "kmod"
PACKAGE = REPO / "pyharness"
TESTS = REPO / "tests"
DEMO = REPO / "scripts" / "demo"
INSIDE = Path(__file__).resolve().parent / "inside"
VENV = REPO / ".venv"
BUILD = REPO / "build"
JUNIT = BUILD / "junit"
MATRIX_JUNIT = BUILD / "junit-matrix"
LOGS = BUILD / "logs"
CACHE_REMEDY = "run as root, or set XDG_CACHE_HOME to a directory that can be written to"


def cache_path() -> Path:
    """Where the cache is or would be; raises `SetupError` when that cannot be known."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "ptscope"
    except RuntimeError as error:
        raise SetupError(str(error), CACHE_REMEDY) from error


def cache() -> Path:
    """The cache directory, created when absent; a run without it works, but downloads again.

    Raises `SetupError` when it cannot be created or written to.
    """
    path = cache_path()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise SetupError(f"cannot make the cache {path}: {error.strerror}", CACHE_REMEDY) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise SetupError(f"cannot write to the cache {path}", CACHE_REMEDY)
    return path


def named(path: Path) -> str:
    """A path as a person in the checkout would type it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
