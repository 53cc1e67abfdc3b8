# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs the command ``ptscope``: in this process, which takes milliseconds, or as users do."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ptscope.cli import run as run_line


@dataclass(frozen=True)
class Result:
    """What a command gave."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as JSON."""
        return json.loads(self.out)


def ptscope(*words: object) -> Result:
    """Run it in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = run_line([str(word) for word in words])
    return Result(status, out.getvalue(), err.getvalue())


def run(
    *words: object, timeout: float = 120.0, environment: dict[str, str] | None = None
) -> Result:
    """Run it as users do, in a process of its own: on an emulated CPU that takes seconds."""
    done = subprocess.run(
        [sys.executable, "-m", "ptscope", *(str(word) for word in words)],
        capture_output=True, text=True, check=False, timeout=timeout, env=environment,
    )
    return Result(done.returncode, done.stdout, done.stderr)


def forked(action: Callable[[], Result]) -> Result:
    """The result of ``action`` in a fork of this process, which may give up its privileges."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(read_end)
            try:
                result = action()
            except BaseException:
                result = Result(-1, "", traceback.format_exc())
            with os.fdopen(write_end, "w") as pipe:
                json.dump([result.status, result.out, result.err], pipe)
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return Result(*json.loads(text))


def walk_status(target: object, address: int, *options: str) -> tuple[int, dict[str, Any]]:
    """Exit status and answer of ``ptscope walk --json`` of one address."""
    result = ptscope("walk", target, hex(address), "--json", *options)
    answer = result.json
    assert isinstance(answer, dict)
    return result.status, answer


def walk(target: object, address: int, *options: str) -> dict[str, Any]:
    """The same, which must succeed."""
    status, answer = walk_status(target, address, *options)
    assert status == 0, answer
    return answer
