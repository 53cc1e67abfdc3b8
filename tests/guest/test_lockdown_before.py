# SPDX-License-Identifier: GPL-2.0-or-later
"""A guest whose kernel was locked down (integrity) before the module could be loaded."""

from __future__ import annotations

import errno
import subprocess
from pathlib import Path

import command

MODULE = "/lib/ptscope/ptscope.ko"


def test_the_kernel_refuses_the_module() -> None:
    assert "[integrity]" in Path("/sys/kernel/security/lockdown").read_text()
    done = subprocess.run(["insmod", MODULE], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "not permitted" in done.stderr.lower(), (done.stderr, errno.EPERM)
    assert not Path("/sys/module/ptscope").exists()


def test_doctor_names_lockdown_and_the_remedy() -> None:
    result = command.run("doctor", "--json")
    assert result.status == 4, result.out + result.err
    answer = result.json
    checks = {check["name"]: check for check in answer["checks"]}
    assert checks["lockdown"]["status"] == "fail"
    assert "integrity" in checks["lockdown"]["text"]
    assert "lockdown" in checks["module"]["text"]
    assert "boot without lockdown" in checks["module"]["remedy"]
    assert answer["error"]["kind"] == "NotPermitted"
    people = command.ptscope("doctor")
    assert people.status == 4
    assert "integrity" in people.out + people.err


def test_walk_names_lockdown_and_the_remedy() -> None:
    result = command.ptscope("walk", "self", "0x1000", "--source", "module")
    assert (result.status, result.out) == (4, "")
    assert "lockdown (integrity)" in result.err
    assert "remedy: " in result.err
    fallen_back = command.ptscope("walk", "self", "0x1000")
    assert fallen_back.status == 0
    assert "lockdown" in fallen_back.err
