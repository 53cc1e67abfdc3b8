# SPDX-License-Identifier: GPL-2.0-or-later
"""`ptscope model`: what it refuses, and what it lists."""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import closing
from pathlib import Path

import pytest
from ptscope.cli import run
from ptscope.errors import Unsupported
from ptscope.model.drive import Puppet, PuppetGone
from ptscope.model.operations import OPERATIONS


def test_an_operation_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["model", "--only", "teleport"]) == 2
    error = capsys.readouterr().err
    assert "no operation is called 'teleport'" in error
    assert "ptscope model --list" in error


@pytest.mark.parametrize("words", [["--steps", "0"], ["--seconds", "-1"], ["--seed", "-3"]])
def test_numbers_that_cannot_be_meant(words: list[str]) -> None:
    assert run(["model", *words]) == 2


def test_every_operation_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["model", "--list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == [row.name for row in OPERATIONS]
    assert all(len(row["does"]) > 10 for row in rows)


def test_without_hypothesis(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    monkeypatch.delitem(sys.modules, "ptscope.model.search", raising=False)
    assert run(["model", "--steps", "1"]) == 5
    error = capsys.readouterr().err
    assert "hypothesis, which makes up the sequences, cannot be loaded" in error
    assert "python3-hypothesis" in error


def test_without_the_puppet(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="the process that the model predicts"):
        Puppet(tmp_path / "puppet")


def test_a_puppet_that_is_killed() -> None:
    with closing(Puppet()) as puppet:
        pid = puppet.start(1)
        puppet.require_all()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(PuppetGone, match="was killed") as error:
            puppet.command(1, "mmap 0 4096 3 34 -1 0")
        assert "--seed" in str(error.value.remedy)
        with pytest.raises(PuppetGone, match="was killed"):
            puppet.require_all()


def test_a_puppet_that_does_not_run(tmp_path: Path) -> None:
    program = tmp_path / "puppet"
    program.write_bytes(b"\x7fELF nothing of the kind")
    program.chmod(0o755)
    with pytest.raises(Unsupported, match="cannot be started"):
        Puppet(program)
