# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs the command ``ptscope``: in this process, which takes milliseconds, or as users do."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
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


def run(*words: object, uid: int | None = None, timeout: float = 60.0) -> Result:
    """Run it as a process of its own, as user ``uid`` with no other group when given."""
    done = subprocess.run(
        [sys.executable, "-m", "ptscope", *(str(word) for word in words)],
        capture_output=True, text=True, check=False, timeout=timeout, user=uid, group=uid,
        extra_groups=None if uid is None else [],
    )
    return Result(done.returncode, done.stdout, done.stderr)


def walk(target: object, address: int, *options: str) -> dict[str, Any]:
    """``ptscope walk --json`` of one address, which must succeed."""
    result = ptscope("walk", target, hex(address), "--json", *options)
    assert result.status == 0, result.out + result.err
    answer = result.json
    assert isinstance(answer, dict)
    return answer
