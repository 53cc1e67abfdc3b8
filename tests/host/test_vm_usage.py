# SPDX-License-Identifier: GPL-2.0-or-later
"""What a person types reaches the guest as typed, and what is wrong is said before any work."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import vmpath
from vm import quick
from vm.plan import MAIN, Row

ECHO = "for each; do echo \"<$each>\"; done"


def made(tmp_path: Path, *words: str, **environment: str) -> list[str]:
    """The harness's arguments, one a line, when make is given ``words``."""
    fake = tmp_path / "fake"
    fake.write_text(f"#!/bin/sh\n{ECHO}\n")
    fake.chmod(0o755)
    done = subprocess.run(
        ["make", "-s", f"VM={fake}", *words],
        cwd=vmpath.SCRIPTS.parent,
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return (done.stdout.removeprefix("<install>\n") + done.stderr).splitlines()


SCRIPT = """for i in 1 2; do echo $i $HOME $(id -u) $$ "a  b" 'c' `d`; done"""


def test_make_passes_the_command_on_as_typed(tmp_path: Path) -> None:
    expected = ["<run>", "<-->", f"<{SCRIPT}>"]
    assert made(tmp_path, "vm", f"RUN={SCRIPT}") == expected
    assert made(tmp_path, "vm", RUN=SCRIPT) == expected


def test_make_wants_a_command(tmp_path: Path) -> None:
    assert made(tmp_path, "vm")[0].startswith("usage: make vm RUN=")


def test_make_passes_a_folder_with_spaces_on(tmp_path: Path) -> None:
    folder = "a $b/c  'd"
    assert f"<{folder}>" in made(tmp_path, "vm", "RUN=true", f"FILES={folder}")
    assert made(tmp_path, "vm-shell", f"FILES={folder}") == ["<shell>", "<--files>", f"<{folder}>"]


def test_make_passes_tests_on(tmp_path: Path) -> None:
    tests = "-k 'walk and not $x' tests/guest/test_walk.py"
    assert made(tmp_path, "vm-quick", f"TESTS={tests}") == ["<quick>", f"<--tests={tests}>"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], Row(MAIN, "5-level", ()).pytest()),
        (["-k", "layout"], [*Row(MAIN, "5-level", ()).pytest(), "-k", "layout"]),
        (["tests/guest/test_a.py", "-x"], ["/tests/guest/test_a.py", "-x"]),
        (["/tests/guest/test_a.py::b"], ["/tests/guest/test_a.py::b"]),
    ],
)
def test_options_alone_choose_among_the_main_tests(words: list[str], expected: list[str]) -> None:
    assert quick._in_guest(words, Row(MAIN, "5-level", ())) == expected
