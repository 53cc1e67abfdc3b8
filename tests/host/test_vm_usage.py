# SPDX-License-Identifier: GPL-2.0-or-later
"""What a person types reaches the guest as typed, and what is wrong is said before any work."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import vmpath
from test_vm_setup import bzimage
from vm import oserrors, paths, proc, quick
from vm.errors import BuildError, SetupError, UsageError, VmError
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
    return (done.stdout.removeprefix("<packages>\n") + done.stderr).splitlines()


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


MAIN_PY = vmpath.SCRIPTS / "vm" / "main.py"


def harness(
    *words: str, shell: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the harness, with ``shell`` (redirections) after its words."""
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {shell}', "sh", sys.executable, str(MAIN_PY), *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("cache", ["/proc/nope", "/dev/null"])
def test_a_cache_that_cannot_be_made_is_explained(cache: str) -> None:
    done = harness("run", "true", XDG_CACHE_HOME=cache)
    assert done.returncode == SetupError.exit_status
    assert f"cannot make the cache {cache}/ptscope" in done.stderr
    assert "set XDG_CACHE_HOME" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_closed_output_is_explained() -> None:
    done = harness("kdir", shell=">&-")
    assert done.returncode == UsageError.exit_status
    assert done.stderr == (
        "vm: standard output is closed\n  remedy: to drop what it gets: >/dev/null\n"
    )
    done = harness("test", "--only", "nonesuch", shell="2>&-")
    assert (done.returncode, done.stdout) == (UsageError.exit_status, "")


FULL = """
import sys
from vm import commands, main
from vm.inside import wire

def run(options):
    commands._pass_on(wire.OUT, b"text")
    return 0

commands.kdir = run
sys.argv[1:] = ["kdir"]
sys.exit(main.main())
"""


def test_an_output_without_room_is_explained() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", FULL],
            env={**os.environ, "PYTHONPATH": str(vmpath.SCRIPTS)},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.stderr == (
        "vm: cannot write the command's output: No space left on device\n"
        "  remedy: make room where it goes, or send it elsewhere: >FILE\n"
    )
    assert done.returncode == SetupError.exit_status


def test_a_program_without_room_gets_a_remedy_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "not" / "there"))
    said = "E: Write error - write (28: No space left on device)"
    with pytest.raises(SetupError) as caught:
        proc.run(
            ["sh", "-c", f"echo '{said}' >&2; exit 100"],
            what="downloading",
            error=SetupError,
            remedy="is the network there?",
        )
    assert caught.value.remedy is not None
    assert caught.value.remedy.startswith("free ")
    assert f" MB in {paths.cache_path()}" in caught.value.remedy


def test_programs_of_other_threads_end_when_the_run_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proc, "_stopped", False)
    with ThreadPoolExecutor(1) as pool:
        building = pool.submit(proc.run, ["sleep", "100"], what="building")
        while not (proc._running or building.done()):
            time.sleep(0.01)
        proc.stop()
        with pytest.raises(BuildError, match="sleep exited with -15"):
            building.result(timeout=20)
        with pytest.raises(VmError, match="interrupted"):
            pool.submit(proc.run, ["true"], what="what comes next").result(timeout=20)


def test_what_the_system_refuses_is_explained() -> None:
    denied = oserrors.explain(PermissionError(errno.EACCES, "Permission denied", "/x"))
    assert denied is not None
    assert denied.cause == "/x: Permission denied"
    assert "root" in (denied.remedy or "")
    full = oserrors.explain(OSError(errno.ENOSPC, "No space left on device", "/x"))
    assert full is not None
    assert " MB in " in (full.remedy or "")
    assert oserrors.explain(FileNotFoundError(errno.ENOENT, "No such file", "/x")) is None


@pytest.mark.parametrize(
    ("words", "cause", "remedy"),
    [
        (["--smp=0"], "--smp: not a whole number from 1 on: '0'", "run --help"),
        (["--memory=-1"], "--memory: not a whole number", "run --help"),
        (["--timeout=-5"], "--timeout: not a number of seconds above 0: '-5'", "run --help"),
        (["--timeout=nan"], "--timeout: not a number of seconds above 0", "run --help"),
        (["--modules=/tmp"], "--modules is for a kernel of your own", "--kernel"),
        (["--kernel=/bin/true"], "/bin/true is not a bzImage", "--modules DIR"),
        (["--kernel=/none"], "there is no kernel /none", ""),
        (["--module=/none"], "there is no module /none", ""),
        (["--files=/none"], "/none is not a directory", "FILES"),
        (["--variant=none"], "no variant of amd64", "5-level"),
        (["--debian=none"], "no kernel", "debian-6.1-amd64"),
    ],
)
def test_wrong_usage_is_said_before_anything_is_built(
    words: list[str], cause: str, remedy: str, tmp_path: Path
) -> None:
    done = harness("run", *words, "true", XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert done.returncode == UsageError.exit_status
    said, _, advice = done.stderr.partition("remedy: ")
    assert cause in said
    assert remedy in advice
    assert not (tmp_path / "cache").exists()


def test_a_kernel_and_its_parts_are_checked_before_anything_is_built(tmp_path: Path) -> None:
    image = bzimage(tmp_path / "bzImage", b"6.9.0-mine (me@here)")
    cache = str(tmp_path / "cache")
    done = harness("run", f"--kernel={image}", "true", XDG_CACHE_HOME=cache)
    assert "no ptscope.ko was given" in done.stderr
    done = harness("run", f"--kernel={image}", "--modules=/tmp", "true", XDG_CACHE_HOME=cache)
    assert "/tmp has no modules of 6.9.0-mine" in done.stderr
    assert not (tmp_path / "cache").exists()


def test_jobs_are_at_least_one() -> None:
    done = harness("test", "--jobs=0")
    assert (done.returncode, "Traceback" in done.stderr) == (UsageError.exit_status, False)
