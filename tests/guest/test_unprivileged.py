# SPDX-License-Identifier: GPL-2.0-or-later
"""Without privilege: the cause and the remedy are named, and what can be done without it is done."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
from pathlib import Path

import command
import pytest
import rawfiles
from puppet import Puppet

NOBODY = 65534
CAP_SYS_ADMIN = 21
PR_CAPBSET_DROP = 24


def drop_sys_admin() -> None:
    """Root that execs after this has every capability but CAP_SYS_ADMIN."""
    if ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_SYS_ADMIN, 0, 0, 0):
        os._exit(99)


def root_without_sys_admin(*words: object) -> command.Result:
    done = subprocess.run(
        [sys.executable, "-m", "ptscope", *map(str, words)],
        capture_output=True, text=True, check=False, timeout=60, preexec_fn=drop_sys_admin)
    return command.Result(done.returncode, done.stdout, done.stderr)


def test_doctor_names_the_privilege() -> None:
    result = command.run("doctor", "--json", uid=NOBODY)
    assert result.status == 4, result.out + result.err
    answer = result.json
    checks = {check["name"]: check for check in answer["checks"]}
    assert checks["capability"]["status"] == "fail"
    assert "CAP_SYS_ADMIN" in checks["capability"]["text"]
    assert "root" in checks["capability"]["remedy"]
    assert (answer["source"], answer["error"]["kind"]) == ("pagemap", "NotPermitted")


@pytest.mark.parametrize("run", [
    lambda *words: command.run(*words, uid=NOBODY), root_without_sys_admin,
], ids=["nobody", "root without CAP_SYS_ADMIN"])
def test_walk_by_the_module_names_the_privilege(run: object, puppet: Puppet) -> None:
    assert callable(run)
    result = run("walk", puppet.pid, hex(puppet.where("text")), "--source", "module")
    assert result.status == 4, result.out + result.err
    assert result.out == ""
    assert "CAP_SYS_ADMIN" in result.err and "remedy: " in result.err and "root" in result.err


def test_somebody_else_s_process_is_not_shown(puppet: Puppet) -> None:
    result = command.run("walk", puppet.pid, hex(puppet.where("text")), uid=NOBODY)
    assert result.status == 4, result.out + result.err
    assert "belongs to somebody else" in result.err


def test_own_process_is_shown_with_frames_hidden() -> None:
    """Hidden is not frame 0, and not a mismatch."""
    place = Path(sys.executable).resolve()
    script = (
        "import sys; from ptscope.cli import run; from ptscope.target.vma import read_maps;"
        "from pathlib import Path;"
        "vma = next(v for v in read_maps(Path('/proc/self')) if v.name == '[stack]');"
        "sys.exit(run(['walk', 'self', hex(vma.end - 64), '--json']))"
    )
    done = subprocess.run(
        [place, "-c", script], capture_output=True, text=True, check=False,
        user=NOBODY, group=NOBODY, extra_groups=[], timeout=60)
    assert done.returncode == 0, done.stderr
    walk = command.Result(0, done.stdout, "").json
    assert walk["source"] == "pagemap" and walk["frames_hidden"] is True
    assert (walk["mapping"]["state"], walk["mapping"]["pfn"]) == ("leaf", None)
    assert "CAP_SYS_ADMIN" in done.stderr


def test_an_open_file_gives_nothing_to_who_has_no_privilege() -> None:
    """A descriptor can be handed on; the privilege is asked for at each use."""
    script = (
        "import os, sys\n"
        "codes = []\n"
        "for action in (lambda: os.write(int(sys.argv[1]), b'self 0x1000'),\n"
        "               lambda: os.read(int(sys.argv[2]), 4096)):\n"
        "    try:\n"
        "        action()\n"
        "        codes.append(0)\n"
        "    except OSError as error:\n"
        "        codes.append(error.errno)\n"
        "print(codes)\n"
    )
    with rawfiles.opened("walk") as fresh, rawfiles.opened("walk") as asked:
        os.write(asked, b"self 0x1000")
        done = subprocess.run(
            [sys.executable, "-c", script, str(fresh), str(asked)], capture_output=True, text=True,
            check=True, user=NOBODY, group=NOBODY, extra_groups=[], pass_fds=(fresh, asked))
        assert done.stdout.strip() == str([errno.EPERM, errno.EPERM])
        assert os.read(asked, 4096)


def test_nobody_cannot_open_the_files() -> None:
    for name in ("layout", "walk", "dump", "stats"):
        done = subprocess.run(
            [sys.executable, "-c", f"open('/sys/kernel/debug/ptscope/{name}')"],
            capture_output=True, text=True, check=False, user=NOBODY, group=NOBODY, extra_groups=[])
        assert "PermissionError" in done.stderr
