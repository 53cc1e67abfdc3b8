# SPDX-License-Identifier: GPL-2.0-or-later
"""The command as a stranger meets it: wrong input, other streams, missing parts, and its speed."""

from __future__ import annotations

import json
import os
import pty
import re
import resource
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from ptscope.cli import COMMANDS, cli, run
from ptscope.cli.numbers import parse_address, parse_target
from ptscope.errors import UsageError

PTSCOPE = [sys.executable, "-m", "ptscope"]


def ptscope(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    return subprocess.run([*PTSCOPE, *arguments], capture_output=True, text=True, check=False)


def stack_top() -> int:
    """The end of this process's stack; the page below it is always there."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    stack = next(line for line in maps if "[stack]" in line)
    return int(stack.split()[0].partition("-")[2], 16)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("4096", 4096),
        ("0x7ffe4c1f2123", 0x7FFE4C1F2123),
        ("0XFF", 255),
        ("0xffffffffffffffff", 2**64 - 1),
        ("007", 7),
    ],
)
def test_addresses(text: str, value: int) -> None:
    assert parse_address(text) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is no address"),
        ("heap", "is no address"),
        ("7ffe4c1f2000", "hex without 0x"),
        ("0x", "is no address"),
        ("0xzz", "is no address"),
        ("0x10000000000000000", "64 bits"),
        ("18446744073709551616", "64 bits"),
        ("-1", "negative"),
        ("-0x1000", "negative"),
        ("1_000", "is no address"),
        ("1.5", "is no address"),
        (" 1", "is no address"),
        ("9" * 5000, "5000 characters"),
        ("\u0661", "is no address"),
        ("0x1000-0x2000", "is no address"),
    ],
)
def test_words_that_are_no_address(
    text: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match=words):
        parse_address(text)
    assert run(["walk", "self", text]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err


@pytest.mark.parametrize("text", ["", "1.0", "0x10", "me", "-1", "+1", "Kernel", "1 "])
def test_words_that_are_no_target(text: str) -> None:
    with pytest.raises(UsageError):
        parse_target(text)
    assert run(["walk", text, "0x1000"]) == 2


@pytest.mark.parametrize("text", ["0", "-5", "4194305", "99999999999999999999", "9" * 5000])
def test_numbers_that_are_no_pid(text: str) -> None:
    assert run(["walk", text, "0x1000"]) == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["walk"],
        ["walk", "self"],
        ["walk", "self", "0x1000", "--jsn"],
        ["walk", "self", "0x1000", "--source", "magic"],
        ["walk", "self", "0x1000", "--source", "pagemap", "--compare"],
        ["walk", "kernel", "0xffffffff81000000", "--compare"],
        ["wlak", "self", "0x1000"],
        ["--wrong"],
        ["doctor", "--module", "/no/such/file.ko"],
        ["doctor", "extra"],
    ],
)
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    first, *rest = err.splitlines()
    assert first.startswith("ptscope: ")
    assert "Traceback" not in err
    assert len(rest) <= 1


@pytest.mark.parametrize("words", [["self"], ["1"], ["--source", "pagemap", "self"]])
def test_proc_of_another_pid_namespace(words: list[str]) -> None:
    """PID 1 means another process in /proc than to system calls."""
    command = ["unshare", "--pid", "--fork", *PTSCOPE, "walk", *words, "0x1000"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (5, "")
    cause, remedy = result.stderr.splitlines()
    assert "belongs to another PID namespace" in cause
    assert "mount -t proc proc /proc" in remedy
    assert "--mount-proc" in remedy
    command[1:1] = ["--mount-proc"]
    works = subprocess.run([*command, "--source", "pagemap"], capture_output=True, check=False)
    assert works.returncode == 0


@pytest.mark.parametrize("words", [["walk", "self", "0x1000"], ["doctor"]])
def test_without_proc(words: list[str], tmp_path: Path) -> None:
    hide = f"mount --bind {shlex.quote(str(tmp_path))} /proc && exec {shlex.join(PTSCOPE)} "
    command = ["unshare", "--mount", "sh", "-c", hide + shlex.join(words)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 5
    assert "/proc is not mounted" in result.stderr + result.stdout
    assert "Traceback" not in result.stderr
    assert "CAP_SYS_ADMIN is missing" not in result.stdout


def test_name_of_a_process_cannot_steer_the_terminal() -> None:
    code = "import ctypes; ctypes.CDLL(None).prctl(15, b'\\x1b[2J', 0, 0, 0)"  # PR_SET_NAME
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie keeps its name
        result = ptscope("walk", str(process.pid), "0x1000")
    assert result.returncode == 3
    assert "\\x1b[2J" in result.stderr
    assert "\x1b" not in result.stderr


def test_errors_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, kind, status in (
        (["walk", "self", "nowhere", "--json"], "UsageError", 2),
        (["walk", "4194304", "0x1000", "--json"], "NoSuchProcess", 3),
        (["walk", "self", "--json"], "UsageError", 2),
    ):
        assert run(arguments) == status
        out, err = capsys.readouterr()
        error = json.loads(out)["error"]
        assert (error["kind"], error["exit_status"]) == (kind, status)
        assert error["cause"]
        assert err == ""


def test_walk_of_ourselves_through_pagemap() -> None:
    top = stack_top()
    result = ptscope("walk", "--source", "pagemap", "--json", str(os.getpid()), hex(top - 8), "3")
    assert result.returncode == 0
    assert result.stderr == ""
    mapped, hole = (json.loads(line) for line in result.stdout.splitlines())
    assert mapped["pid"] == os.getpid()
    assert mapped["comm"] == Path("/proc/self/comm").read_text().strip()
    assert mapped["mapping"]["state"] == "leaf"
    assert int(mapped["mapping"]["pa"], 16) % 4096 == 4096 - 8
    assert mapped["vma"]["name"] == "[stack]"
    assert mapped["frame"]["kind"] == "anonymous"
    assert mapped["leaves_only"] is True
    assert (hole["mapping"]["state"], hole["vma"]) == ("none", None)


def test_walk_without_privilege() -> None:
    result = subprocess.run(
        [
            *("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", *PTSCOPE),
            *("walk", "--source", "pagemap", "--json", str(os.getpid()), hex(stack_top() - 8)),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    answer = json.loads(result.stdout)
    assert answer["frames_hidden"] is True
    assert answer["mapping"]["state"] == "leaf"
    assert answer["mapping"]["pa"] is None
    assert answer["frame"] is None


def test_root_without_cap_sys_ptrace() -> None:
    """Root of a container, who is told what is missing rather than to become root."""
    # Recent kernels let CAP_PERFMON, which CAP_SYS_ADMIN stands for, read too (kernel/fork.c,
    # may_access_mm). Containers have none of the three.
    lost = "-sys_ptrace,-perfmon,-sys_admin"
    loss = ["setpriv", f"--bounding-set={lost}", f"--inh-caps={lost}", *PTSCOPE]
    nobody = ["setpriv", "--reuid=65534", "--clear-groups", "sh", "-c", "echo ready; read line"]
    with subprocess.Popen(nobody, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        words = ["walk", "--source", "pagemap", str(process.pid), "0x1000"]
        result = subprocess.run([*loss, *words], capture_output=True, text=True, check=False)
        process.kill()
    assert result.returncode == 4
    assert "CAP_SYS_PTRACE is missing" in result.stderr
    assert "--cap-add SYS_PTRACE" in result.stderr
    assert "somebody else" not in result.stderr
    doctor = subprocess.run(
        [*loss, "doctor", "--json"], capture_output=True, text=True, check=False
    )
    checks = {check["name"]: check for check in json.loads(doctor.stdout)["checks"]}
    assert checks["ptrace"]["status"] == "warn"
    assert "CAP_SYS_PTRACE is missing" in checks["ptrace"]["text"]


def test_help_is_fast_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; from ptscope.cli import run; run(['--help']);"
        "print([m for m in ('cffi', '_cffi_backend', 'rich', 'psutil', 'ptscope._core')"
        " if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines()[-1] == "[]"
    for name, row in COMMANDS.items():
        assert name in result.stdout
        assert row.help in result.stdout
    # Its own CPU time, and the least of five: the clock on the wall tells how busy the machine is.
    assert min(cpu_seconds([*PTSCOPE, "--help"]) for _ in range(5)) < 0.15


def cpu_seconds(command: list[str]) -> float:
    """Seconds of CPU that a command takes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help(command: str) -> None:
    result = ptscope(command, "--help")
    assert result.returncode == 0
    assert result.stdout.startswith(f"Usage: ptscope {command}")


def test_no_arguments_is_help() -> None:
    result = ptscope()
    assert result.returncode == 0
    assert "Commands:" in result.stdout


def test_layout_without_the_module_names_the_shipped_ones() -> None:
    result = ptscope("layout")
    assert result.returncode in (4, 5)
    assert "`ptscope layout --name NAME`" in result.stderr


def test_closed_pipe_is_quiet() -> None:
    many = ["3"] * 2000
    with subprocess.Popen(
        [*PTSCOPE, "walk", "--source", "pagemap", "self", *many],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == -signal.SIGPIPE


@pytest.mark.parametrize(
    "words",
    [
        ("walk", "--source", "pagemap", "self", "3"),
        ("map", "0", "--json"),
        ("map", "--frob", "--json"),
    ],
    ids=" ".join,
)
def test_full_disk_is_said_in_one_line(words: Sequence[str]) -> None:
    """Also where it is an error that cannot be written."""
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [*PTSCOPE, *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert result.returncode == os.EX_IOERR
    assert result.stderr == "ptscope: cannot write the output: No space left on device\n"


def test_an_error_that_cannot_be_said_is_in_the_status() -> None:
    with Path("/dev/full").open("w") as full:
        result = subprocess.run([*PTSCOPE, "map", "0"], stderr=full, check=False)
    assert result.returncode == UsageError.exit_status


def test_closed_stdout_is_an_error() -> None:
    command = ["sh", "-c", f"exec {shlex.join(PTSCOPE)} decode 1 --level pte >&-"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == os.EX_IOERR
    assert result.stderr == "ptscope: cannot write the output: stdout is closed\n"


@pytest.mark.parametrize(
    ("setting", "coloured"),
    [({}, True), ({"NO_COLOR": ""}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)
def test_colours(setting: dict[str, str], coloured: bool) -> None:
    ours, theirs = pty.openpty()
    inherited = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    subprocess.run(
        [*PTSCOPE, "decode", "0x67", "--level", "pte"],
        stdout=theirs,
        env={**inherited, "TERM": "xterm", **setting},
        check=True,
    )
    os.close(theirs)
    assert (b"\x1b[" in os.read(ours, 4096)) == coloured
    os.close(ours)


def walk_without(part: str) -> subprocess.CompletedProcess[str]:
    """A walk where the import of `part` fails."""
    code = (
        f"import sys; sys.modules[{part!r}] = None\n"
        "from ptscope.cli import run\n"
        "sys.exit(run(['walk', '--source', 'pagemap', 'self', '3']))"
    )
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("part", ["ptscope._core", "psutil"])
def test_missing_part_is_named(part: str) -> None:
    result = walk_without(part)
    assert result.returncode == 5
    assert result.stderr.startswith("ptscope: a part of ptscope cannot be loaded: ")
    assert part in result.stderr


def test_cffi_itself_is_needed_to_build_only() -> None:
    # A guest has its backend, the package _cffi_backend, and nothing else of it.
    assert walk_without("cffi").returncode == 0


@pytest.mark.parametrize(
    ("inherited", "status"),
    [
        (signal.SIG_DFL, -signal.SIGINT),
        # What `sh` does for `ptscope … &` in a script: Ctrl-C is meant for what runs in front.
        (signal.SIG_IGN, 7),
    ],
)
def test_interrupt_is_quiet_and_stays_ignored_where_it_was(
    inherited: signal.Handlers, status: int
) -> None:
    code = (
        "import os, signal, ptscope.cli as cli, ptscope.__main__ as main\n"
        "cli.run = lambda arguments: os.kill(os.getpid(), signal.SIGINT) or 7\n"
        "main.main()\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, inherited),
    )
    assert result.returncode == status
    assert result.stderr == ""


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_with_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    shown = [line.strip() for line in lines[lines.index("  Examples:") + 1 :]]
    assert shown
    assert max(map(len, lines)) <= 80
    group = cli.make_context("ptscope", ["--help"], resilient_parsing=True)
    command = cli.get_command(group, name)
    assert command is not None
    for line in shown:
        # The shell's part: where the output goes, and a PID from another command.
        words = shlex.split(re.sub(r"\$\(.*?\)", "1", line.partition(" > ")[0]))
        assert words[:2] == ["ptscope", name]
        # Parsed, not run: an option that is gone raises.
        command.make_context(name, words[2:], parent=group)


def test_doctor_names_what_is_missing() -> None:
    result = ptscope("doctor", "--json")
    answer = json.loads(result.stdout)
    assert result.returncode == answer["exit_status"]
    names = [check["name"] for check in answer["checks"]]
    assert len(set(names)) == len(names)
    if answer["exit_status"]:
        assert answer["error"]["cause"]
        assert any(check["status"] == "fail" for check in answer["checks"])
    else:
        assert answer["error"] is None
    text = ptscope("doctor")
    assert text.returncode == result.returncode
    assert max(map(len, text.stdout.splitlines())) <= 80
