# SPDX-License-Identifier: GPL-2.0-or-later
"""Scenarios on the machine that the tests run on, proven by pagemap; guests have them all.

No time is compared with a clock: only with another program's, taken in turns.
"""

from __future__ import annotations

import errno
import os
import re
import resource
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from ptscope._core import lib
from ptscope.bench import memory
from ptscope.bench.clock import Clock, calibrate
from ptscope.bench.faults import FAULTS, READ
from ptscope.bench.looks import Expect, Eyes, Look, differences
from ptscope.bench.memory import Geometry
from ptscope.bench.remap_run import measure_remap, moved
from ptscope.bench.remaps import REMAPS, Ground
from ptscope.bench.result import sort_samples
from ptscope.bench.run import Setting, interrupts, measure
from ptscope.bench.stage import NotHere, Stage
from ptscope.bench.timing import Action, pinned, take
from ptscope.bench.worker import carry_out
from ptscope.cli import run
from ptscope.source.pagemap import PagemapSource

GUEST = Path(__file__).parents[1] / "guest"
ROWS = {row.name: row for row in FAULTS}
EVERYWHERE = ("read", "write", "write-after-read", "depth-pmd", "depth-pud", "cow-parent",
              "cow-child", "cow-reuse-child", "shm-new", "shm-write", "dontneed-write", "stack",
              "signal-none", "none-to-read", "file-write")  # fmt: skip
PAGE = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(scope="module")
def clock() -> Clock:
    return calibrate()


@pytest.fixture(scope="module")
def setting(clock: Clock) -> Iterator[Setting]:
    source = PagemapSource()
    cpus = sorted(os.sched_getaffinity(0))
    with pinned(cpus[-1]):
        yield Setting(
            clock=clock,
            eyes=Eyes(source, source.frames_hidden),
            geometry=Geometry.of(None),
            cpu=cpus[-1],
            serving_cpu=cpus[0],
            samples=12,
            rounds=2,
        )


@pytest.mark.parametrize("name", EVERYWHERE)
def test_each_sample_is_proven_and_counted(setting: Setting, name: str) -> None:
    measured = measure(ROWS[name], setting)
    assert measured.unavailable is None
    assert measured.errors == []
    assert measured.samples == 24
    assert measured.faults == 24 * (ROWS[name].faults or 0)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"before": Expect("leaf")}, "before, 0x[0-9a-f]+: the entry is none, not leaf"),
        ({"after": Expect("none")}, "after, 0x[0-9a-f]+: the entry is leaf, not none"),
        ({"faults": 2}, "the kernel counted 1 faults, not 2"),
        ({"result": 7}, "the result is 0, not 7"),
        ({"tables": 1}, "VmPTE grew by [0-9]+ tables, not 12"),
        ({"neighbour": Expect("swap")}, "the page beside 0x[0-9a-f]+: the entry is"),
        ({"action": READ, "after": Expect("leaf", zero=False)}, "zero is True, not False"),
    ],
)
def test_what_did_not_happen_is_an_error(
    setting: Setting, change: dict[str, object], text: str
) -> None:
    if "zero" in text and setting.eyes.frames_hidden:
        pytest.skip("frames are hidden from who is not root")
    measured = measure(replace(ROWS["write"], **change), setting)  # type: ignore[arg-type]
    assert measured.values == []
    assert len(measured.errors) == 24
    assert re.search(text, measured.errors[0]), measured.errors[0]


def test_a_scenario_that_did_not_happen_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = replace(ROWS["write"], action=Action(lib.PTSCOPE_DO_NOTHING))
    monkeypatch.setattr("ptscope.bench.faults.FAULTS", (wrong,))
    monkeypatch.setattr("ptscope.bench.process._one_process", carry_out)
    words = ["bench", "fault", "--samples", "3", "--rounds", "1", "--source", "pagemap"]
    assert run(words) == 1
    shown = capsys.readouterr()
    assert "3 of 3 samples did not do what they should" in shown.err
    assert "did not happen" in shown.out


def remap_names() -> list[str]:
    # What only the module has is played in guests.
    return [row.name for row in REMAPS if row.content not in ("huge", "device")]


@pytest.mark.parametrize("name", remap_names())
def test_remaps_are_proven(setting: Setting, name: str) -> None:
    row = next(row for row in REMAPS if row.name == name)
    geometry = setting.geometry
    sizes = (geometry.pmd, 16 * PAGE, geometry.pud)
    size = next(size for size in sizes if row.fits(size, geometry))
    (measured,) = measure_remap(row, [size], replace(setting, samples=3, rounds=1))
    assert measured.unavailable is None
    assert measured.errors == []
    assert len(measured.values) + measured.marked + len(measured.first) == 3


def test_what_may_not_be_locked_is_not_tried(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (8 << 10, 8 << 10))
    row = next(row for row in REMAPS if row.name == "mlock")
    few = replace(setting, samples=2, rounds=1)
    small, large = measure_remap(row, [PAGE, 4 * PAGE], few)
    assert small.unavailable is None
    assert large.unavailable == "16 KiB are to be locked, and 8 KiB may be (RLIMIT_MEMLOCK)"


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.EAGAIN])
def test_what_limits_forbid_leaves_the_others_measured(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def one_page(ground: Ground) -> None:
        if ground.size > PAGE:
            raise OSError(number, "mmap: not today")
        make(ground)

    make = Ground.make
    monkeypatch.setattr(Ground, "make", one_page)
    row = next(row for row in REMAPS if row.name == "unmap")
    few = replace(setting, samples=3, rounds=2)
    small, large = measure_remap(row, [PAGE, 4 * PAGE], few)
    assert small.unavailable is None
    assert small.values
    assert large.unavailable == "mmap: not today"
    assert "ulimit" in str(large.remedy)


def test_an_error_of_another_kind_passes(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(ground: Ground) -> None:
        raise OSError(errno.EINVAL, "mmap: never")

    monkeypatch.setattr(Ground, "make", broken)
    row = next(row for row in REMAPS if row.name == "unmap")
    with pytest.raises(OSError, match="never"):
        measure_remap(row, [PAGE], setting)


def test_a_remap_that_did_something_else_is_an_error(setting: Setting) -> None:
    row = next(row for row in REMAPS if row.name == "unmap")
    for change, text in (
        ({"at_old": "same"}, "the entry is none, not leaf"),
        ({"freed": lambda ground: 9}, "tables, not 9"),
        ({"faults": lambda ground: 1}, "counted 0 faults, not 1"),
        ({"result": lambda ground: 4}, "gave 0x0, not 0x4"),
    ):
        (measured,) = measure_remap(
            replace(row, **change), [4 * PAGE], replace(setting, samples=2, rounds=1)
        )
        assert text in measured.errors[0]


def test_a_table_that_was_copied_was_not_moved() -> None:
    """The proof of how something was moved, on walks of four levels."""
    ground = object.__new__(Ground)
    ground.content = "pages"

    def look(*tables: int) -> Look:
        return Look("leaf", depth=4, tables=tables)

    before = look(1, 2, 3, 4)
    for by, good in (
        ("pte", look(1, 2, 30, 40)),
        ("pmd", look(1, 2, 30, 4)),
        ("pud", look(1, 2, 3, 4)),
    ):
        assert list(moved(by, ground, before, good)) == []
    assert list(moved("pmd", ground, before, look(1, 2, 30, 40)))
    assert list(moved("pud", ground, before, look(1, 2, 30, 4)))
    assert list(moved("pte", ground, before, look(1, 2, 30, 4)))
    assert list(moved("pmd", ground, before, look(1, 2, 3, 4)))
    ground.near = True
    assert list(moved("pmd", ground, before, look(1, 2, 3, 4))) == []
    assert list(moved("pmd", ground, before, look(1, 2, 30, 4)))
    assert list(moved("pte", ground, before, look(1, 2, 3, 40)))


def test_what_is_done_again_and_again_is_proven_each_time(setting: Setting) -> None:
    """By the count of faults, and by what the calls give."""
    few = replace(setting, samples=5, rounds=1)
    row = next(row for row in FAULTS if row.name == "write-again")
    measured = measure(replace(row, again=(Action(lib.PTSCOPE_DO_NOTHING),)), few)
    assert "the kernel counted 0 faults, not 1" in measured.errors[0]
    assert len(measured.errors) == 4
    remap = next(row for row in REMAPS if row.name == "move-pte-again")
    nothing = replace(remap, again=lambda ground: (Action(lib.PTSCOPE_DO_NOTHING),))
    (moved_once,) = measure_remap(nothing, [4 * PAGE], few)
    assert moved_once.errors
    shrunk = next(row for row in REMAPS if row.name == "shrink-again")
    bad = Action(lib.PTSCOPE_DO_CALL, memory.CALLS["madvise"], (0, PAGE, -1))
    (cut_once,) = measure_remap(replace(shrunk, again=lambda ground: (bad,)), [4 * PAGE], few)
    assert "the call failed: Invalid argument" in cut_once.errors[0]


def test_looks_that_say_nothing_are_not_compared() -> None:
    expect = Expect("leaf", writable=True, dirty=True, frame="same")
    assert differences(expect, Look("leaf"), Look("leaf")) == []
    assert differences(Expect("protnone"), Look("leaf")) == []
    assert differences(Expect("protnone"), Look("leaf", depth=4)) != []
    assert differences(expect, Look("leaf", writable=False), Look("leaf")) != []
    assert differences(expect, Look("leaf", frame=3), Look("leaf", frame=4)) != []


def test_places_leave_the_first_of_each_table(setting: Setting) -> None:
    stage = Stage(setting.geometry, setting.eyes.source, setting.clock.kind, 1100)
    with stage:
        stage.lay_out(PAGE)
        entries = setting.geometry.pmd // PAGE
        assert len(stage.addresses) == 1100
        assert all(address // PAGE % entries for address in stage.addresses)
        assert stage.anchors == [stage.base + n * setting.geometry.pmd for n in range(3)]
        assert stage.addresses[-1] < stage.base + stage.size
    with pytest.raises(NotHere):
        Stage(setting.geometry, setting.eyes.source, setting.clock.kind, 9).lay_out(1 << 50)


def test_spinning_is_part_of_what_is_timed(clock: Clock) -> None:
    def ticks(spin: int) -> float:
        action = Action(lib.PTSCOPE_DO_NOTHING, spin=spin)
        return min(sample.ticks for sample in take(clock.kind, action, [0] * 50))

    assert ticks(0) < ticks(1000) < ticks(100_000)


def test_a_sample_in_which_the_thread_slept_is_marked(clock: Clock) -> None:
    """Waiting for another process is a context switch, and the kernel counts it."""
    ours, theirs = socket.socketpair()
    buffer = memory.map_memory(PAGE)
    memory.touch(buffer, 1, 1, write=True)
    child = os.fork()
    if not child:
        theirs.recv(1)
        time.sleep(0.2)
        theirs.send(b"x")
        os._exit(0)
    asks = Action(lib.PTSCOPE_DO_ASK, arguments=(ours.fileno(), buffer, 1, buffer, 1))
    (sample,) = take(clock.kind, asks, [0])
    os.waitpid(child, 0)
    memory.unmap(buffer, PAGE)
    assert sample.result == 1
    assert sample.voluntary >= 1
    assert sort_samples(clock, [sample], [None]).marked


def test_interrupts_are_counted_by_cpu(tmp_path: Path) -> None:
    path = tmp_path / "interrupts"
    path.write_text(
        "           CPU0       CPU3\n  0:         10          7   IO-APIC  timer\n"
        "LOC:        100         30   Local timer interrupts\nERR:          0\n"
    )
    assert interrupts(0, path) == 110
    assert interrupts(3, path) == 37
    assert interrupts(0, tmp_path / "none") == 0
