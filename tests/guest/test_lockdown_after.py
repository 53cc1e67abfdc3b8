# SPDX-License-Identifier: GPL-2.0-or-later
"""A guest that was locked down after the module had been loaded, in either mode."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import command
import pytest
import rawfiles


def mode() -> str:
    text = Path("/sys/kernel/security/lockdown").read_text()
    found = text[text.index("[") + 1 : text.index("]")]
    assert found in ("integrity", "confidentiality"), "lockdown was not raised"
    return found


def test_the_module_is_loaded() -> None:
    assert Path("/sys/module/ptscope").exists()


@pytest.mark.parametrize("name", ["walk", "dump"])
def test_files_that_can_be_written_are_refused(name: str) -> None:
    """Debugfs itself refuses them in either mode (fs/debugfs/file.c, debugfs_locked_down)."""
    with pytest.raises(PermissionError) as error:
        os.open(rawfiles.FILES / name, os.O_RDWR)
    assert error.value.errno == errno.EPERM


def test_the_map_device_tells_addresses_and_is_refused_where_reading_is() -> None:
    """It writes nothing of the kernel's, so integrity is not concerned."""
    try:
        os.close(os.open("/dev/ptscope-map", os.O_RDWR))
        found = 0
    except OSError as error:
        found = error.errno or 0
    assert found == (errno.EPERM if mode() == "confidentiality" else 0)


def test_doctor_names_lockdown_and_the_remedy() -> None:
    result = command.run("doctor", "--json")
    assert result.status == 4, result.out + result.err
    answer = result.json
    checks = {check["name"]: check for check in answer["checks"]}
    assert checks["module"]["status"] == "ok"
    assert checks["lockdown"]["status"] == "fail"
    assert mode() in checks["lockdown"]["text"]
    assert "lockdown" in checks["lockdown"]["remedy"]
    assert "lockdown" in checks["module files"]["text"]
    assert answer["error"]["kind"] == "NotPermitted"


def test_walk_names_lockdown_and_the_remedy() -> None:
    result = command.ptscope("walk", "self", "0x1000", "--source", "module")
    assert (result.status, result.out) == (4, "")
    assert f"lockdown ({mode()})" in result.err
    assert "remedy: " in result.err
    assert command.ptscope("walk", "kernel", "0xffffffff81000000").status == 4


def test_walk_falls_back_and_says_why() -> None:
    result = command.ptscope("walk", "self", "0x1000", "--json")
    assert result.status == 0
    assert "lockdown" in result.err
    assert result.json["source"] == "pagemap"
