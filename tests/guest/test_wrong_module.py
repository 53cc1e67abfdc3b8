# SPDX-License-Identifier: GPL-2.0-or-later
"""A guest with a module that was built for another kernel."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import command
import pytest

OTHER = "/lib/ptscope/ptscope-other.ko"


@pytest.fixture
def installed() -> None:
    """The wrong module where the right one belongs, as after an upgrade of the kernel."""
    Path("/lib/ptscope/ptscope.ko").write_bytes(Path(OTHER).read_bytes())


def test_the_kernel_refuses_the_module() -> None:
    done = subprocess.run(["insmod", OTHER], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert not Path("/sys/module/ptscope").exists()


def test_doctor_names_both_kernels_of_a_named_module() -> None:
    result = command.run("doctor", "--json", "--module", OTHER)
    assert result.status == 5, result.out + result.err
    checks = {check["name"]: check for check in result.json["checks"]}
    for name in ("module file", "module"):
        assert checks[name]["status"] == "fail"
        assert "built for" in checks[name]["text"]
        assert os.uname().release in checks[name]["text"]
        assert "linux-headers-" + os.uname().release in checks[name]["remedy"]


def test_doctor_and_walk_name_both_kernels(installed: None) -> None:
    doctor = command.ptscope("doctor")
    assert doctor.status == 5, doctor.out
    walk = command.ptscope("walk", "self", "0x1000", "--source", "module")
    assert (walk.status, walk.out) == (5, "")
    for text in (" ".join((doctor.out + doctor.err).split()), walk.err):
        assert "was built for kernel" in text
        assert os.uname().release in text
        assert f"linux-headers-{os.uname().release}" in text
    assert "remedy: " in walk.err
