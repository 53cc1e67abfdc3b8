# SPDX-License-Identifier: GPL-2.0-or-later
"""Run host programs whose output matters only when they fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import oserrors
from .errors import BuildError, SetupError, VmError

SHOWN_LINES = 30
"""Lines of a failed program's output that are shown."""

_lock = threading.Lock()
_running: set[subprocess.Popen[str]] = set()
_stopped = False


def stop() -> None:
    """End the programs that run in other threads, and let none begin: `run` raises there.

    A signal for this process alone, unlike Ctrl-C in a terminal, does not reach them.
    """
    global _stopped
    with _lock:
        _stopped = True
        for process in _running:
            process.terminate()


def _communicate(
    command: Sequence[str], cwd: Path | None, env: Mapping[str, str]
) -> tuple[int, str, str]:
    """Exit status and output."""
    with _lock:
        if _stopped:
            raise VmError("interrupted")
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        _running.add(process)
    with process:
        try:
            out, err = process.communicate()
        except BaseException:
            process.kill()
            raise
        finally:
            with _lock:
                _running.discard(process)
    return process.returncode, out, err


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
        status, out, err = _communicate([str(part) for part in command], cwd, full_env)
    except OSError as failure:
        raise error(f"{what}: {failure}", remedy) from failure
    if status != 0:
        if oserrors.FULL_TEXT.search(out + err):
            remedy = oserrors.room()
        tail = (out + err).rstrip().splitlines()[-SHOWN_LINES:]
        text = "\n".join(f"    {line}" for line in tail)
        raise error(f"{what}: {command[0]} exited with {status}\n{text}", remedy)
    return out
