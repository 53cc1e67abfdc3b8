# SPDX-License-Identifier: GPL-2.0-or-later
"""Rounds that are a process each: what they give together, and how they end."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import psutil
import pytest
from ptscope.bench import process
from ptscope.bench.clock import Clock, calibrate
from ptscope.bench.conditions import Conditions
from ptscope.bench.process import Failure, Order, Results, measure_rounds
from ptscope.bench.result import Measured, Round
from ptscope.bench.run import Tell
from ptscope.cli import run
from ptscope.errors import NotPermitted, Unsupported

CPU = max(os.sched_getaffinity(0))
PTSCOPE = (sys.executable, "-m", "ptscope")
LONG = ("bench", "fault", "write", "--rounds", "1000", "--source", "pagemap")
PATIENCE = 20.0  # seconds


@pytest.fixture(scope="module")
def clock() -> Clock:
    return calibrate()


def order(clock: Clock, *names: str, group: str = "fault") -> Order:
    return Order(group, names, clock, CPU, -1, samples=4, source="pagemap", sizes=(4096, 1 << 16))


def test_each_round_is_a_process(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    popen = subprocess.Popen

    def counted(words: list[str], stdin: IO[bytes], stdout: int) -> subprocess.Popen[bytes]:
        worker = popen(words, stdin=stdin, stdout=stdout)
        started.append(worker.pid)
        return worker

    monkeypatch.setattr("ptscope.bench.process.subprocess.Popen", counted)
    told: list[str] = []
    results = measure_rounds(order(clock, "read", "write"), 3, told.append)
    assert len(set(started) - {os.getpid()}) == 3
    for name in ("read", "write"):
        (measured,) = results.measured[name]
        assert [len(each.values) + len(each.marked) for each in measured.rounds] == [3, 3, 3]
        assert measured.samples == measured.faults == 12
    assert told[:3] == ["read, round 1 of 3", "write, round 1 of 3", "read, round 2 of 3"]
    assert results.conditions.facts["processes"] == 3


def test_sizes_keep_their_order(clock: Clock) -> None:
    results = measure_rounds(order(clock, "protect", group="remap"), 2)
    found = results.measured["protect"]
    assert [(each.name, len(each.rounds)) for each in found] == [
        ("protect-4K", 2), ("protect-64K", 2),
    ]  # fmt: skip


def instead(monkeypatch: pytest.MonkeyPatch, answer: Callable[[Order], Results]) -> list[Order]:
    """What each process would have been asked."""
    asked: list[Order] = []

    def one_process(order: Order, tell: Tell) -> Results:
        asked.append(order)
        return answer(order)

    monkeypatch.setattr("ptscope.bench.process._one_process", one_process)
    return asked


def test_what_cannot_be_played_is_not_tried_again(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(order: Order) -> Results:
        found = {"read": [Measured("read", "", rounds=[Round([1.0])], samples=1)]}
        if "write" in order.names:
            found["write"] = [Measured("write", "", unavailable="no", remedy="none")]
        return Results(found, Conditions({}))

    asked = instead(monkeypatch, answer)
    results = measure_rounds(order(clock, "read", "write"), 3)
    assert [each.names for each in asked] == [("read", "write"), ("read",), ("read",)]
    assert results.measured["read"][0].samples == 3
    assert results.measured["write"][0].unavailable == "no"


def test_what_a_later_round_cannot_play_is_told(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its figures before that are none: the file would have fewer rounds than it says."""

    def answer(order: Order) -> Results:
        made = Measured("read", "", rounds=[Round([1.0])], samples=1)
        if len(asked) > 1:
            made = Measured("read", "", unavailable="no memory", remedy="get some")
        return Results({"read": [made]}, Conditions({}))

    asked = instead(monkeypatch, answer)
    (measured,) = measure_rounds(order(clock, "read"), 3).measured["read"]
    assert (measured.unavailable, measured.remedy) == ("no memory", "get some")


def test_an_error_of_the_process_is_ours(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    failure = pickle.dumps(Failure(NotPermitted, "it is locked", "unlock it"))
    answers(monkeypatch, f"import sys; sys.stdout.buffer.write({failure!r})")
    with pytest.raises(NotPermitted) as caught:
        measure_rounds(order(clock, "read"), 1)
    assert (caught.value.cause, caught.value.remedy) == ("it is locked", "unlock it")


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("import os; os.kill(os.getpid(), 9)", -9),
        ("import sys; sys.exit(3)", 3),
    ],
)
def test_a_process_without_an_answer_is_told(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, program: str, status: int
) -> None:
    answers(monkeypatch, program)
    with pytest.raises(Unsupported, match=rf"ended with status {status}\b"):
        measure_rounds(order(clock, "read"), 1)


def answers(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr(process, "WORKER", ("-c", program))


def test_a_module_of_the_same_name_in_the_folder_is_none_of_ours(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ptscope.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    assert measure_rounds(order(clock, "read"), 1).measured["read"][0].samples == 4


def workers(parent: psutil.Process) -> list[psutil.Process]:
    return [
        each for each in parent.children(recursive=True) if "ptscope.bench.worker" in each.cmdline()
    ]


def wait_for(what: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_who_is_ended_leaves_no_process(number: signal.Signals) -> None:
    """A terminal sends Ctrl-C to all of them; here only the first gets the signal."""
    # Whoever ignores Ctrl-C hands that down.
    with subprocess.Popen([*PTSCOPE, *LONG], stderr=subprocess.DEVNULL) as main:
        main_process = psutil.Process(main.pid)
        wait_for(lambda: bool(workers(main_process)))
        found = workers(main_process)
        main.send_signal(number)
        assert main.wait(PATIENCE) == -number
        wait_for(lambda: not any(each.is_running() for each in found))


STAND_IN = """
import pathlib, sys, time
from ptscope.bench import run, worker
path = pathlib.Path(sys.argv[1])
def play(steps, stage):
    stage.closing.callback(path.write_text, "before")
    path.write_text("changed")
    time.sleep(60)
run.play = play
worker.main()
"""
"""It changes a file, as a scenario does a setting of the machine."""
ORDERING = """
import pickle, sys
from ptscope.bench import process
process.WORKER = ("-c", *sys.argv[1:])
process.measure_rounds(pickle.load(sys.stdin.buffer), 1)
"""


@pytest.mark.parametrize(
    ("program", "words", "number", "status"),
    [
        (STAND_IN, [], signal.SIGINT, 128 + signal.SIGINT),
        (STAND_IN, [], signal.SIGTERM, 128 + signal.SIGTERM),
        (ORDERING, [STAND_IN], signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_what_was_changed_is_put_back_when_it_is_ended(
    tmp_path: Path, program: str, words: list[str], number: int, status: int
) -> None:
    """The process itself, or, without a chance to say so, who ordered it."""
    setting = tmp_path / "setting"
    setting.write_text("before")
    with subprocess.Popen(
        [sys.executable, "-c", program, *words, str(setting)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as ended:
        assert ended.stdin is not None
        ended.stdin.write(pickle.dumps(order(calibrate(), "read")))
        ended.stdin.close()
        wait_for(lambda: setting.read_text() == "changed")
        ended.send_signal(number)
        assert ended.wait(PATIENCE) == status
    wait_for(lambda: setting.read_text() == "before")


def test_a_file_says_that_rounds_are_processes(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--samples", "3", "--rounds", "2", "--source", "pagemap", "--json"]
    assert run(["bench", "fault", "read", *words]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["metadata"]["processes"] == 2
    assert len(document["benchmarks"][0]["runs"]) == 2
