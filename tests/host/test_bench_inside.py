# SPDX-License-Identifier: GPL-2.0-or-later
"""What `bench fault --inside` makes of taskstats and of the kernel's ring buffer."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click import unstyle
from hypothesis import given
from hypothesis import strategies as st
from ptscope.bench.clock import Clock
from ptscope.bench.delays import (
    COUNTERS,
    MOVED,
    Accounting,
    Counter,
    Delay,
    parse,
    since,
)
from ptscope.bench.inside import Inside, Part, Probes, look_inside, middle, split
from ptscope.bench.result import Measured, Round
from ptscope.bench.stage import NotHere
from ptscope.bench.store import _benchmark
from ptscope.bench.timing import Sample
from ptscope.bench.tracing import ENTER, LEAVE, LOST, Moment, parse_page, tracing
from ptscope.views.bench import _inside, labelled_at

RAW_CLOCK = Clock(kind=4, ns_per_tick=1.0, overhead=20, resolution=5.0)


# ---- taskstats --------------------------------------------------------------


def stats(version: int, size: int, **delays: tuple[int, int]) -> bytes:
    data = bytearray(size)
    struct.pack_into("=H", data, 0, version)
    for each in COUNTERS:
        if each.name in delays:
            struct.pack_into("=QQ", data, each.offset, *delays[each.name])
    return bytes(data)


def test_counters_lie_where_the_system_header_has_them(tmp_path: Path) -> None:
    """The compiler's word, for the counters that the header of this machine knows."""
    source = tmp_path / "at.c"
    rows = "\n".join(
        f'#if TASKSTATS_VERSION >= {each.since}\n'
        f'printf("{each.name} %zu %zu\\n", offsetof(struct taskstats, {each.name}_count),'
        f' offsetof(struct taskstats, {each.name}_delay_total));\n#endif'
        for each in COUNTERS
    )
    source.write_text(
        "#include <linux/taskstats.h>\n#include <stddef.h>\n#include <stdio.h>\n"
        f'int main(void) {{ printf("%d\\n", TASKSTATS_VERSION);\n{rows}\nreturn 0; }}\n'
    )
    subprocess.run(["cc", "-o", tmp_path / "at", source], check=True)
    version, *lines = subprocess.run(
        [tmp_path / "at"], stdout=subprocess.PIPE, check=True, text=True
    ).stdout.splitlines()
    if int(version) == MOVED:
        pytest.skip("the header is of the version that has other places")
    places = {each.name: each.offset for each in COUNTERS}
    assert len(lines) >= 5
    for line in lines:
        name, count, total = line.split()
        assert (int(count), int(total)) == (places[name], places[name] + 8)


def test_delays_are_read_by_version() -> None:
    data = stats(13, 416, wpcopy=(3, 900), swapin=(2, 50), compact=(1, 7))
    found = parse(data)
    assert (found["wpcopy"], found["swapin"]) == (Delay(3, 900), Delay(2, 50))
    assert "wpcopy" not in parse(stats(12, 400))
    assert "compact" not in parse(stats(10, 352))
    assert since(found, parse(stats(13, 416, wpcopy=(1, 100), swapin=(2, 50)))) == {
        "wpcopy": Delay(2, 800),
        "compact": Delay(1, 7),
    }


@pytest.mark.parametrize("data", [b"", stats(1, 100), stats(MOVED, 528)])
def test_statistics_that_lie_elsewhere_are_refused(data: bytes) -> None:
    with pytest.raises(NotHere):
        parse(data)


class Node:
    """A netlink message, as far as it is asked for attributes."""

    def __init__(self, **attributes: object) -> None:
        self.attributes = attributes

    def get_attr(self, name: str) -> object:
        return self.attributes.get(name)


class Socket:
    prid = 7

    def __init__(self, answers: list[Node] | Exception) -> None:
        self.answers = answers
        self.asked: list[Any] = []

    def nlm_request(self, message: Any, family: int, msg_flags: int) -> list[Node]:
        self.asked.append((message["attrs"], family, msg_flags))
        if isinstance(self.answers, Exception):
            raise self.answers
        return self.answers


def question() -> dict[str, Any]:
    return {"attrs": []}


def test_taskstats_is_asked_for_one_thread() -> None:
    group = Node(TASKSTATS_TYPE_STATS=stats(13, 416, wpcopy=(3, 900)))
    socket = Socket([Node(TASKSTATS_TYPE_AGGR_PID=group)])
    assert Accounting(socket, question, 1).of(42)["wpcopy"] == Delay(3, 900)
    assert socket.asked == [([["TASKSTATS_CMD_ATTR_PID", 42]], 7, 1)]


@pytest.mark.parametrize(
    "answers", [[], [Node()], [Node(TASKSTATS_TYPE_AGGR_PID=Node())], OSError("no")]
)
def test_no_answer_is_said(answers: list[Node] | Exception) -> None:
    with pytest.raises(NotHere):
        Accounting(Socket(answers), question, 1).of(1)


# ---- the ring buffer --------------------------------------------------------


def page(start: int, *events: bytes, committed: int | None = None) -> bytes:
    """A page of the ring buffer as trace_pipe_raw gives it."""
    data = b"".join(events)
    return struct.pack("=QQ", start, len(data) if committed is None else committed) + data


def event(delta: int, number: int, words: int = 3) -> bytes:
    data = struct.pack("=HBBi", number, 0, 0, 77).ljust(4 * words, b"\0")
    return struct.pack("=I", delta << 5 | words) + data


def long_event(delta: int, number: int, size: int) -> bytes:
    data = struct.pack("=H", number).ljust(size, b"\0")
    return struct.pack("=II", delta << 5, size + 4) + data


def extend(delta: int) -> bytes:
    return struct.pack("=II", (delta & (1 << 27) - 1) << 5 | 30, delta >> 27)


def stamp(ns: int) -> bytes:
    return struct.pack("=II", (ns & (1 << 27) - 1) << 5 | 31, ns >> 27 & (1 << 32) - 1)


@given(
    st.integers(0, 1 << 58),
    st.lists(
        st.tuples(
            st.one_of(st.integers(0, (1 << 27) - 1), st.integers(1 << 27, 1 << 50)),
            st.integers(1, 65535),
            st.integers(2, 40),
        )
    ),
)
def test_events_come_back_with_their_times(
    start: int, events: list[tuple[int, int, int]]
) -> None:
    packed, expected, now = [], [], start
    for delta, number, words in events:
        now += delta
        if delta >= 1 << 27:
            packed.append(extend(delta))
            delta = 0
        made = event(delta, number, words) if words <= 28 else long_event(delta, number, 4 * words)
        packed.append(made)
        expected.append((now, number))
    assert list(parse_page(page(start, *packed))) == expected


def test_padding_absolute_times_and_the_end() -> None:
    rest = struct.pack("=II", 1 << 5 | 29, 12) + b"\0" * 8
    end = struct.pack("=I", 29) + b"\xff" * 40
    data = page(1000, event(5, 3), rest, stamp(5000), event(1, 4), end)
    assert list(parse_page(data)) == [(1005, 3), (5001, 4)]


def test_lost_events_are_no_result() -> None:
    with pytest.raises(NotHere):
        list(parse_page(page(0, event(1, 1), committed=16 | LOST)))


def test_a_kernel_without_tracing_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotHere) as raised, tracing((tmp_path,)):
        pass
    assert raised.value.remedy is not None
    # A folder that is no tracefs: its files cannot be written.
    (tmp_path / "instances").mkdir()
    with pytest.raises(NotHere), tracing((tmp_path,)):
        pass


# ---- the parts of a fault ---------------------------------------------------


def sample(start: int, ticks: int, **others: int) -> Sample:
    return Sample(
        ticks=ticks, result=0, minor=1, major=0, voluntary=0, involuntary=0, cpu=0, start=start
    )


def moments(*pairs: tuple[int, str]) -> list[Moment]:
    return [Moment(ns, name) for ns, name in pairs]


def test_a_fault_is_shared_out() -> None:
    found = list(
        split(
            [sample(1000, 520), sample(2000, 500)],
            moments(
                (900, ENTER), (950, LEAVE),  # what happened before is not the sample's
                (1050, "exception"), (1060, "lock"), (1090, "locked"), (1110, ENTER),
                (1410, LEAVE), (1900, "exception"),
            ),
            RAW_CLOCK,
        )
    )  # fmt: skip
    assert found == [Part(entry=100, handled=300, back=100, exception=40, lock=30)]
    assert found[0].whole == 500


def test_a_fault_that_is_entered_twice_counts_once() -> None:
    (found,) = split(
        [sample(0, 1020)],
        moments((110, ENTER), (210, LEAVE), (710, ENTER), (910, LEAVE)),
        RAW_CLOCK,
    )
    assert (found.entry, found.handled, found.back, found.lock) == (600, 300, 100, None)
    assert found.whole == 1000


def test_what_was_not_left_is_no_part() -> None:
    assert list(split([sample(0, 100)], moments((50, ENTER)), RAW_CLOCK)) == []
    assert list(split([sample(0, 100)], [], RAW_CLOCK)) == []
    assert middle([]) is None


def test_the_middle_of_parts() -> None:
    parts = [Part(1, 10, 3), Part(2, 20, 2, lock=4.0), Part(30, 30, 1)]
    assert middle(parts) == Part(2, 20, 2, None, 4.0)


class Trace:
    """A tracing instance whose moments lie in the middle of each sample."""

    missing: tuple[str, ...] = ()

    def __init__(self, found: list[Moment]) -> None:
        self.found = found

    @contextmanager
    def recorded(self, pid: int) -> Iterator[None]:
        yield

    def moments(self) -> list[Moment]:
        return self.found


def played(
    monkeypatch: pytest.MonkeyPatch, tools: Probes, errors: list[str] | None = None
) -> Inside:
    """look_inside() of a round that needs no kernel."""

    def one_round(scenario: Any, setting: Any, measured: Any, watch: Any) -> Round:
        with watch.around(1):
            pass
        watch.took([sample(0, 100), sample(1000, 100), sample(2000, 100)])
        return Round(errors=errors or [])

    monkeypatch.setattr("ptscope.bench.inside.one_round", one_round)
    monkeypatch.setattr("ptscope.bench.inside.replace", lambda setting, **_: setting)
    scenario: Any = Measured("x", "y")
    setting: Any = None
    return look_inside(scenario, setting, tools)


def test_the_first_sample_is_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    found = moments(*((1000 * n + at, name) for n in range(3) for at, name in
                      ((40 + n, ENTER), (60 + n, LEAVE))))  # fmt: skip
    trace: Any = Trace(found)
    inside = played(monkeypatch, Probes(RAW_CLOCK, trace=trace, missing=["no taskstats"]))
    assert inside.parts == Part(31.5, 20, 28.5)
    assert (inside.samples, inside.missing) == (3, ("no taskstats",))


def test_what_did_not_happen_has_no_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    trace: Any = Trace([])
    nothing = played(monkeypatch, Probes(RAW_CLOCK, trace=trace))
    assert nothing.parts is None
    assert nothing.missing == ("handle_mm_fault() was not called",)
    wrong = played(monkeypatch, Probes(RAW_CLOCK, trace=trace), errors=["no"])
    assert wrong == Inside(missing=("with probes it did not happen: no",))


def test_it_is_shown_and_kept() -> None:
    inside = Inside(
        samples=9,
        parts=Part(100, 300, 50, 40, 30.0),
        delays={"wpcopy": Delay(9, 4500)},
        missing=("there is no swap",),
    )
    told: set[str] = set()
    text = unstyle("\n".join(_inside(inside, told)))
    for part in ("100 ns to handle_mm_fault", "300 ns in it", "450 ns in all", "taken in 30.0 ns",
                 "copies on write: 9, 4.50 us", "there is no swap"):  # fmt: skip
        assert part in " ".join(text.split())
    assert "there is no swap" not in "\n".join(_inside(inside, told))
    assert max(map(len, text.splitlines())) <= 80
    measured = Measured("write", "t", rounds=[Round([1.0])], inside=inside)
    facts = _benchmark(measured)["metadata"]
    assert isinstance(facts, dict)
    assert facts["inside_entry_ns"] == 100
    assert facts["inside_lock_ns"] == 30
    assert facts["delay_wpcopy_count"] == 9
    assert facts["inside_missing"] == "there is no swap"


def test_counters_do_not_overlap() -> None:
    ordered: list[Counter] = sorted(COUNTERS, key=lambda each: each.offset)
    for one, other in pairwise(ordered):
        assert one.offset + 16 <= other.offset
        assert one.since <= other.since
    assert labelled_at(4, "a", "b") == ["a    b"]
