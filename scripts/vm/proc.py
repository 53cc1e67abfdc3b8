# SPDX-License-Identifier: GPL-2.0-or-later
"""Run host programs whose output matters only when they fail."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import oserrors
from .errors import BuildError, SetupError, VmError

SHOWN_LINES = 30
"""Lines of a failed program's output that are shown."""


def need(program: str, package: str) -> str:
    """The path of ``program``; raises `SetupError` naming the Debian package that has it."""
    # Debian keeps some of what is needed (depmod) in sbin, which is not in every PATH.
    path = shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if path is None:
        raise SetupError(
            f"{program} is not installed", f"run: make packages (or: apt-get install {package})"
        )
    return path


def run(
    command: Sequence[str | Path],
    *,
    what: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    error: type[VmError] = BuildError,
    remedy: str | None = None,
) -> str:
    """Run ``command`` to its end and return what it printed on standard output.

    ``what`` names the work in the error raised (of type ``error``) when it fails, with the end of
    the program's output; ``remedy`` gives way to another when there was no room on a disk.
    """
    # What programs say is searched here and in callers, in English.
    full_env = {**os.environ, "LC_ALL": "C.UTF-8", **(env or {})}
    try:
        done = subprocess.run(
            [str(part) for part in command],
            cwd=cwd,
            env=full_env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as failure:
        raise error(f"{what}: {failure}", remedy) from failure
    if done.returncode != 0:
        if oserrors.FULL_TEXT.search(done.stdout + done.stderr):
            remedy = oserrors.room()
        tail = (done.stdout + done.stderr).rstrip().splitlines()[-SHOWN_LINES:]
        text = "\n".join(f"    {line}" for line in tail)
        raise error(f"{what}: {command[0]} exited with {done.returncode}\n{text}", remedy)
    return done.stdout
