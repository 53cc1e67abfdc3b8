# SPDX-License-Identifier: GPL-2.0-or-later
"""Build ptscope.ko against a kernel's headers, outside the source tree, when something changed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from . import paths, store
from .errors import BuildError
from .fetch import Fetched
from .proc import need, run
from .say import say

SOURCES = ("*.c", "*.h", "Kbuild", "Makefile", "*.mk", "*.sh")
KEPT = 4
"""Builds kept for a release."""


def _sources() -> list[Path]:
    found = [
        path
        for pattern in SOURCES
        for path in paths.KMOD.rglob(pattern)
        if not path.name.endswith(".mod.c")
    ]
    if not (paths.KMOD / "Makefile").exists():
        raise BuildError(f"{paths.KMOD} has no Makefile")
    return sorted(found)


def build(fetched: Fetched, release: str) -> Path:
    """ptscope.ko for a release whose headers ``fetched`` has. The second time costs nothing."""
    sources = _sources()
    key = store.digest(
        str(fetched.root),
        release,
        *(
            part
            for path in sources
            for part in (str(path.relative_to(paths.KMOD)), path.read_bytes())
        ),
    )
    # The key is in the name: another run may be using what older sources made.
    home = paths.BUILD / "kmod"
    folder = home / f"{release}-{key}"
    built, complete = folder / "ptscope.ko", folder / "complete"
    if complete.exists():
        return built
    with store.locked(f"kmod-{store.digest(str(home), release)}"):
        if complete.exists():
            return built
        say(f"building ptscope.ko for {release}")
        shutil.rmtree(folder, ignore_errors=True)
        for path in sources:
            copy = folder / path.relative_to(paths.KMOD)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
            shutil.copymode(path, copy)
        run(
            [need("make", "make"), "-C", folder, f"KDIR={fetched.headers(release)}"],
            what=f"building ptscope.ko for {release}",
        )
        if not built.exists():
            raise BuildError(f"kmod/Makefile made no ptscope.ko in {folder}")
        complete.touch()
        _forget_old(home, release)
    return built


def _forget_old(home: Path, release: str) -> None:
    """Remove all but the `KEPT` newest builds for a release."""
    builds = [
        p
        for p in home.glob(f"{release}-*")
        if re.fullmatch(r"[0-9a-f]{16}", p.name[len(release) + 1 :])
    ]
    for old in sorted(builds, key=lambda p: p.stat().st_mtime, reverse=True)[KEPT:]:
        shutil.rmtree(old, ignore_errors=True)
