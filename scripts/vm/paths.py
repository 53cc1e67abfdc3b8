# SPDX-License-Identifier: GPL-2.0-or-later
"""Where things are: in the checkout and in the cache."""

from __future__ import annotations

import os
from pathlib import Path

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


def cache() -> Path:
    """The cache directory, created when absent; a run without it works, but downloads again."""
    base = os.environ.get("XDG_CACHE_HOME")
    path = (Path(base) if base else Path.home() / ".cache") / "ptscope"
    path.mkdir(parents=True, exist_ok=True)
    return path


def named(path: Path) -> str:
    """A path as a person in the checkout would type it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
