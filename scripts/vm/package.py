# SPDX-License-Identifier: GPL-2.0-or-later
"""The virtual environment with the package in it, and what of it goes into guests."""

from __future__ import annotations

import sys
from pathlib import Path

from . import paths, store
from .errors import BuildError, SetupError
from .proc import need, run
from .say import say

SOURCE = paths.PACKAGE / "src" / "ptscope"
CORE_INPUTS = (
    paths.PACKAGE / "pyproject.toml",
    paths.PACKAGE / "setup.py",
    SOURCE / "core",
    SOURCE / "model" / "puppet.c",
    paths.KMOD / "ptscope.h",
)


def _key() -> str:
    return store.digest(
        sys.version,
        str(paths.REPO),
        *(
            store.tree_digest(path, skip=lambda p: "__pycache__" in p.parts or p.name == "_core.c")
            for path in CORE_INPUTS
        ),
    )


def core() -> Path | None:
    """The cffi extension, wherever the build has left it."""
    for folder in (SOURCE, *paths.VENV.glob("lib/python3*/site-packages/ptscope")):
        for found in folder.glob("_core.*.so"):
            return found
    return None


def build() -> Path:
    """Make .venv with the package and what tests need, unless it is there; returns its python."""
    python = paths.VENV / "bin" / "python"
    stamp = paths.VENV / "ptscope-stamp"
    key = _key()
    with store.locked(f"venv-{store.digest(str(paths.REPO))}"):
        if stamp.exists() and stamp.read_text() == key and python.exists() and core():
            return python
        if not python.exists():
            say("making .venv")
            run(
                [sys.executable, "-m", "venv", paths.VENV],
                what="making .venv",
                error=SetupError,
                remedy="run: make packages (python3-venv is needed)",
            )
        need("gcc", "gcc")
        say("installing the package and its development tools into .venv")
        run(
            [
                python,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "--editable",
                f"{paths.PACKAGE}[dev]",
            ],
            what="installing the package",
            remedy="is the network there, and the package index reachable?",
        )
        if core() is None:
            raise BuildError("the package was installed but has no _core extension")
        stamp.write_text(key)
    return python


def for_guest() -> Path:
    """The directory of the package, with its extension built, as it goes into a guest."""
    build()
    return SOURCE
