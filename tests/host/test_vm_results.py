# SPDX-License-Identifier: GPL-2.0-or-later
"""How test runs are judged: nothing that is missing may look like success."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast
from xml.etree import ElementTree

import pytest
import vmpath  # noqa: F401
from vm import junit, paths, testrun
from vm.errors import NoResult, TimedOut, UsageError
from vm.guest import Guest, Job
from vm.inside import wire
from vm.junit import Counts
from vm.kernels import KERNELS
from vm.plan import MAIN, PLAN, SCENARIO_FILES, Row, matrix_rows
from vm.variants import VARIANTS

GOOD = b"""<?xml version="1.0" encoding="utf-8"?><testsuites><testsuite name="pytest" tests="3">
<testcase classname="a" name="one"/>
<testcase classname="a" name="two"><skipped message="no"/></testcase>
<testcase classname="a" name="three"/></testsuite></testsuites>"""
BAD = GOOD.replace(
    b'name="three"/>', b'name="three"><failure message="x">assert</failure></testcase>'
)
ERROR = GOOD.replace(
    b'name="three"/>', b'name="three"><error message="x">fixture</error></testcase>'
)
SKIPS = b'<testsuites><testsuite><testcase name="a"><skipped/></testcase></testsuite></testsuites>'


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """JUnit files of these tests do not mix with those of the run they are part of."""
    monkeypatch.setattr(paths, "JUNIT", tmp_path / "junit")
    return tmp_path / "junit"


def test_a_good_run(elsewhere: Path) -> None:
    result = testrun.judge("row", GOOD, 0, 1.5)
    assert result.counts == Counts(2, 0, 1)
    assert result.good
    suite = ElementTree.parse(elsewhere / "row.xml").getroot().find("testsuite")
    assert suite is not None
    assert {key: suite.get(key) for key in ("name", "tests", "failures", "skipped")} == {
        "name": "row",
        "tests": "3",
        "failures": "0",
        "skipped": "1",
    }


@pytest.mark.parametrize("document", [BAD, ERROR])
def test_a_failed_test(document: bytes) -> None:
    result = testrun.judge("row", document, 1, 1.0)
    assert result.counts == Counts(1, 1, 1)
    assert result.failures == ("a::three",)
    assert not result.good


@pytest.mark.parametrize(
    ("document", "status", "problem", "expected"),
    [
        (None, 0, "", "no JUnit file"),
        (None, 4, "", "exit status: 4"),
        (b"", 0, "", "not JUnit XML"),
        (b"<testsuites><testsuite></testsu", 0, "", "not JUnit XML"),
        (b"<html/>", 0, "", "not JUnit XML"),
        (b"<testsuites/>", 5, "", "no test ran"),
        (SKIPS, 0, "", "no test ran"),
        (GOOD, 3, "", "exit status is 3"),
        (GOOD, 0, "the guest's kernel reported 1 problem(s)\nBUG: \x00\x1b", "reported 1 problem"),
    ],
)
def test_what_is_missing_or_wrong_counts_as_a_failure(
    elsewhere: Path, document: bytes | None, status: int, problem: str, expected: str
) -> None:
    result = testrun.judge("row", document, status, 1.0, problem)
    assert expected in result.problem
    assert result.counts.failed == 1
    assert not result.good
    written = junit.parse((elsewhere / "row.xml").read_bytes())
    assert junit.count(written) == result.counts


def test_the_last_line_is_the_sum_and_failures_are_named() -> None:
    good = testrun.judge("one", GOOD, 0, 1.0)
    bad = testrun.judge("two", BAD, 1, 1.0)
    none = testrun.judge("three", None, 1, 1.0)
    lines = testrun.summary([good, bad, none]).splitlines()
    assert lines[-1] == "3 passed, 2 failed, 2 skipped"
    assert "FAILED two: a::three" in lines
    assert any(line.startswith("FAILED three: no JUnit file") for line in lines)


def test_rows_have_names_of_their_own_and_real_variants() -> None:
    names = [row.name for row in PLAN]
    assert len(set(names)) == len(names)
    assert testrun.HOST not in names
    for row in PLAN:
        assert row.variant in VARIANTS
        assert row.module in ("loaded", "none", "refused")


def test_every_variant_runs_the_main_tests_and_every_scenario_file_has_a_row() -> None:
    main = {row.variant for row in PLAN if row.scenario == MAIN}
    assert {"5-level", "4-level", "pti"} <= main
    rows = [*PLAN, *(row for each in KERNELS.values() for row in matrix_rows(each))]
    named = {name for row in rows for name in row.tests}
    assert named == set(SCENARIO_FILES)
    for row in rows:
        ignored = {part.rpartition("/")[2] for part in row.pytest() if part.startswith("--ignore=")}
        assert ignored == (set() if row.tests else set(SCENARIO_FILES))


def test_every_file_a_row_names_exists() -> None:
    for name in SCENARIO_FILES:
        assert (paths.TESTS / "guest" / name).is_file()


def test_rows_are_selected_by_name_or_scenario() -> None:
    assert testrun.select([]) == (True, list(PLAN))
    host, rows = testrun.select(["race"])
    assert not host
    assert {row.scenario for row in rows} == {"race"}
    assert testrun.select(["host"]) == (True, [])
    with pytest.raises(UsageError, match="nonesuch"):
        testrun.select(["nonesuch", "host"])


def test_row_names() -> None:
    assert Row(MAIN, "pti", ()).name == "pti"
    assert Row("race", "pti", ("test_race.py",)).name == "race-pti"


def test_frames_survive_being_cut_anywhere() -> None:
    frames = [
        wire.Frame(wire.OUT, 1, b"hello"),
        wire.Frame(wire.EXIT, 1, json.dumps({"status": 3, "error": ""}).encode()),
        wire.Frame(wire.BYE, 0),
    ]
    data = b"".join(frame.encode() for frame in frames)
    for step in (1, 2, 7, len(data)):
        left = bytearray(data)

        def read(size: int, left: bytearray = left, step: int = step) -> bytes:
            part = bytes(left[: min(size, step)])
            del left[: len(part)]
            return part

        assert [wire.read_frame(read) for _ in range(4)] == [*frames, None]


def test_a_stream_that_ends_inside_a_frame_gives_no_frame() -> None:
    data = bytearray(wire.Frame(wire.OUT, 1, b"hello").encode()[:-1])

    def read(size: int) -> bytes:
        part = bytes(data[:size])
        del data[:size]
        return part

    assert wire.read_frame(read) is None


class _Sent:
    """In place of a guest: what a job sends to it."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, kind: bytes, job: int, data: bytes = b"") -> None:
        self.sent.append(kind)


def test_a_commands_time_is_told_from_a_guests_end() -> None:
    sent = _Sent()
    job = Job(cast("Guest", sent), 1)
    with pytest.raises(TimedOut, match=r"was not done after 0\.01 s"):
        job.wait(0.01)
    assert sent.sent == [wire.KILL]
    job.deliver(None)
    with pytest.raises(NoResult, match="the guest ended before") as caught:
        job.wait(0.01)
    assert not isinstance(caught.value, TimedOut)
