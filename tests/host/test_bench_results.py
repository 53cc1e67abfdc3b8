# SPDX-License-Identifier: GPL-2.0-or-later
"""What becomes of samples: figures, files that pyperf reads, comparisons, tables, pictures."""

from __future__ import annotations

import errno
import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click import unstyle
from hypothesis import given
from hypothesis import strategies as st
from ptscope.bench import explain, store
from ptscope.bench.clock import Clock, Pair, rate
from ptscope.bench.compare import Verdict, compare, student
from ptscope.bench.conditions import Conditions, chosen, gather
from ptscope.bench.faults import FAULTS
from ptscope.bench.fit import fit
from ptscope.bench.memory import Geometry
from ptscope.bench.remaps import REMAPS
from ptscope.bench.result import Measured, Round, problems, sort_samples
from ptscope.bench.stats import quantile, sparkline
from ptscope.bench.timing import Sample
from ptscope.bench.walks import WALKS
from ptscope.cli import run
from ptscope.errors import UsageError
from ptscope.views.bench import render, render_comparison, time_text

CLOCK = Clock(kind=4, ns_per_tick=1.0, overhead=20, resolution=5.0)
GEOMETRY = Geometry(4096, (4096, 2 << 20, 1 << 30, 512 << 30), 1 << 47)


def sample(ticks: int, **others: int) -> Sample:
    return Sample(**{
        "ticks": ticks, "result": 0, "minor": 1, "major": 0, "voluntary": 0, "involuntary": 0,
        "cpu": 0, **others,
    })  # fmt: skip


def conditions() -> Conditions:
    return gather(CLOCK, GEOMETRY, "pagemap", 0)


def noisy(name: str, around: float, seed: int, runs: int = 7, family: str = "") -> Measured:
    """Rounds as a machine gives them: each has a level of its own, and a tail."""
    source = random.Random(seed)
    made = Measured(name, "for a test", family=family, proven_by="pagemap")
    for _ in range(runs):
        level = around * source.gauss(1, 0.01)
        values = [level * (1 + source.expovariate(20)) for _ in range(40)]
        made.rounds.append(Round(values, [level * 4]))
        made.samples += 41
        made.faults += 41
    return made


def written(path: Path, *measured: Measured) -> Path:
    path.write_bytes(store.encoded(store.document(measured, conditions())))
    return path


@given(st.lists(st.floats(1, 1e9), min_size=1, max_size=200), st.floats(0, 1))
def test_quantiles_lie_between_the_ends_and_rise(values: list[float], part: float) -> None:
    ordered = sorted(values)
    assert ordered[0] <= quantile(ordered, part) <= ordered[-1]
    assert quantile(ordered, part) <= quantile(ordered, min(1, part + 0.1)) * (1 + 1e-12)
    assert quantile(ordered, 0) == ordered[0]


@given(st.lists(st.floats(1, 1e9), min_size=1, max_size=300), st.integers(1, 30))
def test_sparkline_has_its_width_and_shows_where_values_are(
    values: list[float], width: int
) -> None:
    line = sparkline(values, width)
    assert len(line) == width
    assert "█" in line
    assert line[0] != " "


def test_sparkline_of_two_heaps() -> None:
    line = sparkline([1.0] * 50 + [100.0] * 25, 10)
    assert (line[0], line[-1], set(line[1:-1])) == ("█", "▄", {" "})


def test_samples_are_sorted_by_what_happened_to_them() -> None:
    made = sort_samples(
        CLOCK,
        [
            sample(500),
            sample(120),
            sample(9000, involuntary=1),
            sample(8000, voluntary=1),
            sample(130),
            sample(7),
        ],
        [None, None, None, None, "not what it should be", None],
    )
    assert made.first == [480]
    assert made.values == [100, 1.0]  # never less than a tick
    assert made.marked == [8980, 7980]
    assert made.errors == ["not what it should be"]
    # Where the scenario takes half a tick and more, it is rarely alone; elsewhere others were long.
    long = sort_samples(
        CLOCK,
        [sample(7_000_000), sample(5_000_020, involuntary=1), sample(6_000_020)],
        [None] * 3,
    )
    assert (long.values, long.marked, long.kept) == ([5_000_000, 6_000_000], [], 1)
    all_lost = sort_samples(CLOCK, [sample(5_000_020, involuntary=1)] * 2, [None] * 2)
    assert (len(all_lost.values), all_lost.kept) == (1, 2)
    lost = sort_samples(
        CLOCK, [sample(0), sample(5_000_020, involuntary=1), sample(100)], [None] * 3
    )
    assert (lost.values, lost.marked, lost.kept) == ([80], [5_000_000], 0)
    waits = sort_samples(CLOCK, [sample(0), sample(8000, voluntary=1)], [None] * 2, waits=True)
    assert waits.values == [7980]


def test_a_sample_that_did_not_happen_is_an_error_not_a_number() -> None:
    measured = Measured("x", "y", rounds=[sort_samples(CLOCK, [sample(9)] * 3, ["no"] * 3)])
    measured.samples = 3
    assert store.document([measured], conditions())["benchmarks"] == []
    assert list(problems([measured])) == ["x: 3 of 3 samples did not do what they should: no"]
    assert "did not happen: no" in render("fault", [measured], conditions())


def test_a_figure_below_the_resolution_is_refused() -> None:
    measured = Measured("hit", "y", rounds=[Round([4.0] * 9)], resolution=5.0)
    assert measured.refused
    document = store.document([measured], conditions())
    assert document["benchmarks"] == []
    metadata = document["metadata"]
    assert isinstance(metadata, dict)
    assert "below what the clock can tell" in metadata["missing_hit"]
    text = render("walk", [measured], conditions())
    assert "below what the clock can tell" in text
    assert "4.00 ns" not in text
    measured.resolution = 3.9
    assert not measured.refused


def pairs(*ticks: int, width: int = 0) -> Callable[[int], Pair]:
    readings = iter([Pair(count, 20_000_000 * number, width) for number, count in enumerate(ticks)])
    return lambda kind: next(readings)


def test_a_clock_is_calibrated() -> None:
    assert rate(1, pairs(0, 40_000_000, 80_000_000), lambda _: None) == 0.5


@pytest.mark.parametrize("ticks", [(5, 5, 5), (0, 40_000_000, 90_000_000), (9, 5, 1)])
def test_a_clock_that_is_not_steady_is_not_used(ticks: tuple[int, ...]) -> None:
    assert rate(1, pairs(*ticks), lambda _: None) is None


# Student's distribution, as in any table of it: two-sided.
@pytest.mark.parametrize(
    ("inside", "freedom", "t"),
    [(0.95, 1, 12.706), (0.95, 2, 4.303), (0.95, 5, 2.571), (0.99, 7, 3.499), (0.999, 30, 3.646)],
)
def test_student(inside: float, freedom: int, t: float) -> None:
    assert student(inside, freedom) == pytest.approx(t, abs=0.001)


def verdicts(first: Sequence[Measured], second: Sequence[Measured]) -> list[Verdict]:
    def read(measured: Sequence[Measured]) -> dict[str, store.Stored]:
        content = json.loads(json.dumps(store.document(measured, conditions())))
        return {each.name: each for each in store._benchmarks(content)}

    return [each.verdict for each in compare(read(first), read(second)).differences]


def test_no_difference_is_shown_where_there_is_none() -> None:
    """Of 400 comparisons of the same with itself, at 95 % for 20 together, about one may be."""
    called = 0
    for batch in range(20):
        first = [noisy(str(n), 1000, 1000 * batch + n) for n in range(20)]
        second = [noisy(str(n), 1000, 1000 * batch + 500 + n) for n in range(20)]
        called += sum(each != "no difference shown" for each in verdicts(first, second))
    assert called <= 4


@pytest.mark.parametrize(("factor", "verdict"), [(1.05, "slower"), (0.95, "faster")])
def test_a_planted_difference_is_shown(factor: float, verdict: Verdict) -> None:
    found = [
        verdicts([noisy("a", 1000, seed)], [noisy("a", 1000 * factor, seed + 50)])[0]
        for seed in range(20)
    ]
    assert found.count(verdict) >= 19
    assert found.count("slower" if verdict == "faster" else "faster") == 0


def test_a_change_is_that_of_the_figures_beside_it() -> None:
    first = {"a": store.Stored("a", ((1.0, 9.0, 9.0), (3.0,), (3.0,)), {})}
    second = {"a": store.Stored("a", ((5.0,), (4.0, 1.0, 1.0), (4.0,)), {})}
    (found,) = compare(first, second).differences
    assert found.ratio == pytest.approx(found.second / found.first)
    assert found.first == pytest.approx((9 * 3 * 3) ** (1 / 3))


def test_one_run_shows_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verdicts([noisy("a", 1, 1, runs=1)], [noisy("a", 9, 2, runs=1)]) == ["one round"]
    one = written(tmp_path / "one", noisy("a", 9, 1, runs=1), noisy("b", 9, 1))
    assert run(["bench", "compare", str(one), str(one)]) == 0
    shown = capsys.readouterr().out
    assert "no difference shown in 1" in shown
    assert "a: a file has one round only" in " ".join(shown.split())
    alone = written(tmp_path / "alone", noisy("a", 9, 1, runs=1))
    assert run(["bench", "compare", str(alone), str(one)]) == 2
    assert "a file has one round only" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"values": [0.0]}, "values that are no times"),
        ({"values": [-1.0]}, "values that are no times"),
        ({"values": [float("nan")]}, "values that are no times"),
        ({"values": [float("inf")]}, "values that are no times"),
        ({"values": [1e-300]}, "values that are no times"),
        ({"values": []}, "a run without values"),
        (None, "a run without values"),
    ],
)
def test_figures_that_are_no_times(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any] | None, says: str
) -> None:
    path = written(tmp_path / "a", noisy("a", 9, 1))
    content = json.loads(path.read_text())
    content["benchmarks"][0]["runs"] = [] if change is None else [change]
    path.write_text(json.dumps(content))
    assert run(["bench", "compare", str(path), str(path)]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[" * 100_000, "it is not JSON"),
        ("", "it is not JSON"),
        ("[]", "it has not what pyperf's format has"),
        ('{"benchmarks": []}', "has no benchmark in it"),
        ('{"version": "9.0", "benchmarks": []}', "its format is version 9.0, and 1.0 is known"),
    ],
)
def test_files_that_are_no_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    path = tmp_path / "a"
    path.write_text(text)
    assert run(["bench", "compare", str(path), str(path)]) == 2
    assert says in capsys.readouterr().err


def test_a_name_twice_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "a", noisy("a", 9, 1), noisy("a", 9, 2))
    assert run(["bench", "compare", str(path), str(path)]) == 2
    assert "two benchmarks of one name" in capsys.readouterr().err


@pytest.mark.parametrize("step", ["abc", -1, float("nan")])
def test_a_resolution_that_is_no_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], step: object
) -> None:
    path = written(tmp_path / "a", noisy("a", 9, 1))
    content = json.loads(path.read_text())
    content["benchmarks"][0]["metadata"]["resolution_ns"] = step
    path.write_text(json.dumps(content))
    assert run(["bench", "compare", str(path), str(path)]) == 2
    assert "a resolution_ns that is no time" in capsys.readouterr().err


def test_what_is_asked_for_twice_is_measured_once(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--samples", "3", "--rounds", "1", "--source", "pagemap", "--json"]
    assert run(["bench", "fault", "read", "read", *words]) == 0
    assert len(json.loads(capsys.readouterr().out)["benchmarks"]) == 1
    assert run(["bench", "remap", "protect", "--sizes", "64K,64k", *words]) == 0
    assert len(json.loads(capsys.readouterr().out)["benchmarks"]) == 1


def test_a_file_that_cannot_be_written_loses_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is shown all the same, and the file is what it was."""
    path = tmp_path / "a"
    path.write_text("before")
    monkeypatch.setattr("ptscope.snapshot.atomic.os.fsync", _full)
    words = ["--samples", "3", "--rounds", "1", "--source", "pagemap", "-o", str(path)]
    assert run(["bench", "fault", "read", *words]) == 74
    shown = capsys.readouterr()
    assert "\nread " in shown.out
    assert "No space left" in shown.err
    assert path.read_text() == "before"


def _full(fd: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_nothing_measured_is_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a"
    words = ["remap", "move-pmd", "--sizes", "64K", "--source", "pagemap", "-o", str(path)]
    assert run(["bench", *words]) == 5
    assert "nothing of it can be measured here" in capsys.readouterr().err
    assert not path.exists()
    assert run(["bench", *words, "--json"]) == 5
    assert "error" in json.loads(capsys.readouterr().out)


def test_two_results_are_two_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = str(tmp_path / "a.png")
    assert run(["bench", "fault", "read", "-o", name, "--plot", name]) == 2
    assert "are one file" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_hidden_frames_are_told() -> None:
    facts = {**conditions().facts, "frames": "hidden from who is not root"}
    shown = render("fault", [noisy("a", 9, 1)], Conditions(facts))
    assert "whether a frame is another is not proven" in " ".join(shown.split())


def unsteady(pages: int, source: random.Random) -> list[list[float]]:
    """Rounds that have more of their luck in common than their samples have apart."""
    return [
        [(900 + 25 * pages) * luck * source.gauss(1, 0.01) for _ in range(8)]
        for luck in (source.gauss(1, 0.03) for _ in range(9))
    ]


def test_a_line_is_found_again() -> None:
    inside = 0
    for seed in range(12):
        source = random.Random(seed)
        points = [(pages, unsteady(pages, source)) for pages in (1, 4, 16, 64, 256, 1024, 4096)]
        line = fit(points)
        assert line is not None
        inside += line.fixed.low < 900 < line.fixed.high
        inside += line.page.low < 25 < line.page.high
        assert line.page.high - line.page.low < 2
        assert line.off < 0.05
    assert inside >= 19  # of 24, at 95 % each
    assert fit(points[:2]) is None
    bent = fit([(pages, [[float(pages**2)] * 5] * 2) for pages in (10, 20, 40, 80)])
    assert bent is not None
    assert bent.off > 0.25


def test_how_sure_a_line_is_takes_two_rounds() -> None:
    line = fit([(pages, [[900.0 + 25 * pages] * 5]) for pages in (1, 4, 16)])
    assert line is not None
    assert line.page.value == pytest.approx(25)
    assert (line.page.low, line.page.high) == (-math.inf, math.inf)


def pyperf(*words: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pyperf", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_pyperf_reads_the_files(tmp_path: Path) -> None:
    one = written(tmp_path / "a.json", noisy("write", 1000, 1), noisy("read", 400, 2))
    other = written(tmp_path / "b.json", noisy("write", 1300, 3), noisy("read", 400, 4))
    shown = pyperf("show", one)
    assert shown.startswith("write\n")
    assert "Mean +- std dev: 1.05 us" in shown
    stats = pyperf("stats", one)
    assert "Total number of values: 280" in stats
    assert "Number of warmup per run: 1" in stats
    assert "#" in pyperf("hist", one)
    compared = pyperf("compare_to", one, other)
    assert "write: Mean" in compared
    assert "slower" in compared
    assert "- accelerator: " in pyperf("metadata", one)
    assert pyperf("check", one)


def test_a_file_comes_back_as_it_was(tmp_path: Path) -> None:
    measured = noisy("write", 1000, 1)
    (stored,) = store.read(written(tmp_path / "a", measured)).values()
    assert stored.name == "write"
    assert stored.values == pytest.approx(measured.values)
    assert len(stored.runs) == 7
    assert stored.facts["faults_counted"] == measured.faults


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"benchmarks": [3]}', '{"benchmarks": [{}]}'])
def test_what_is_no_file_of_results_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a").write_text(text)
    with pytest.raises(UsageError):
        store.read(tmp_path / "a")
    with pytest.raises(UsageError):
        store.read(tmp_path / "missing")


def test_tables_fit_80_columns() -> None:
    measured = [
        noisy("cow-reuse-parent", 3.2e6, 1),
        noisy("write", 0.4, 2),
        *(noisy(f"move-dontunmap-{size}", 999_000 * 10**n, n, family="move-dontunmap")
          for n, size in enumerate(("4K", "16K", "128M"))),
        Measured("swap-in", "t", unavailable="there is no swap", remedy="a long remedy " * 9),
        Measured("thp", "t", rounds=[Round(errors=["before, 0x7f: the entry is none, not leaf"])]),
    ]  # fmt: skip
    for number, each in enumerate(measured):
        each.pages = 1 << number
        each.tables = {513}
    text = unstyle(render("fault", measured, conditions()))
    assert max(map(len, text.splitlines())) <= 80, text
    assert "a page" in text
    comparison = compare(
        {each.name: store.Stored(each.name, ((1.0, 2.0), (1.5, 1.2)), {}) for each in measured},
        {each.name: store.Stored(each.name, ((1e5, 2e5), (1e5, 2e5)), {}) for each in measured},
    )
    assert max(map(len, unstyle(render_comparison(comparison)).splitlines())) <= 80


def test_a_step_of_the_clock_is_no_difference() -> None:
    def with_median(seconds: float, resolution: float) -> dict[str, store.Stored]:
        facts = {"resolution_ns": resolution}
        return {"write": store.Stored("write", ((seconds,), (seconds,)), facts)}

    def verdict(resolution: float) -> str:
        first, second = with_median(8.1e-6, resolution), with_median(8.0e-6, resolution)
        return compare(first, second).differences[0].verdict

    assert verdict(100.0) == "no difference shown"
    assert verdict(1.0) == "faster"


def test_a_vma_more_is_no_other_condition() -> None:
    def with_vmas(count: int) -> dict[str, store.Stored]:
        return {"write": store.Stored("write", ((1.0,), (1.5,)), {"vmas": count, "levels": 4})}

    assert compare(with_vmas(165), with_vmas(166)).unlike == ()
    assert compare(with_vmas(165), with_vmas(200)).unlike == (("vmas", "165", "200"),)


@pytest.mark.parametrize(
    ("ns", "text"),
    [(0.4, "400 ps"), (0.999, "1.00 ns"), (99.96, "100 ns"), (999.4, "999 ns"), (999.6, "1.00 us"),
     (1.5e6, "1.50 ms"), (2.25e9, "2.25 s")],
)  # fmt: skip
def test_times(ns: float, text: str) -> None:
    assert time_text(ns) == text


def test_conditions_say_what_was_chosen() -> None:
    assert chosen("always [madvise] never") == "madvise"
    assert chosen("1") == "1"
    facts = conditions().facts
    for name in ("kernel", "cpu_model_name", "accelerator", "levels", "clock", "governor",
                 "mitigations", "warmth", "cpu_affinity"):  # fmt: skip
        assert facts[name], name


def test_pictures(tmp_path: Path) -> None:
    from ptscope.bench.plot import check_available, drawn

    path = tmp_path / "a.png"
    two = drawn(path, "fault", [noisy("a", 9, 1), noisy("b", 900, 2)], conditions())
    sizes = [noisy(f"a-{n}", 100 + n, n, family="a") for n in (1, 4, 16)]
    for each, pages in zip(sizes, (1, 4, 16), strict=True):
        each.pages = pages
    for picture in (two, drawn(path, "remap", sizes, conditions())):
        assert picture.startswith(b"\x89PNG")
    check_available(path)
    with pytest.raises(UsageError):
        check_available(tmp_path / "x.nothing")


def test_matplotlib_is_imported_for_pictures_only() -> None:
    script = (
        "import sys\nsys.modules['matplotlib'] = None\nimport ptscope.cli.bench, "
        "ptscope.bench.run, ptscope.bench.remap_run, ptscope.bench.plot, ptscope.views.bench\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["fault", "nonsense"], 2),
        (["remap", "--sizes", "3"], 2),
        (["remap", "--sizes", "1K"], 2),
        (["remap", "--sizes", "4K,x"], 2),
        (["fault", "read", "-o", "/nowhere/at/all"], 74),
        (["fault", "read", "--cpu", "99999"], 2),
        (["fault", "read", "-o", "/tmp"], 74),
        (["fault", "read", "--plot", "/tmp/a.nothing"], 2),
        (["compare", "/nowhere/a", "/nowhere/b"], 2),
        (["compare", "/nowhere/a", "/nowhere/b", "--least", "nan"], 2),
    ],
)
def test_mistakes_are_told(
    words: list[str], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", *words]) == status
    assert capsys.readouterr().err.startswith("ptscope: ")


@pytest.mark.parametrize("group", ["fault", "remap", "walk"])
def test_scenarios_are_listed_and_explained(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", group, "--list"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert len(names) == len(set(names)) > 5
    assert run(["bench", "explain", *names]) == 0
    told = capsys.readouterr().out.split("\n\n")
    assert [text.splitlines()[0] for text in told] == names
    for text in told:
        assert len(text.splitlines()) > 2
        assert max(map(len, text.splitlines())) <= 80


def test_all_that_is_explained_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row.name for row in (*FAULTS, *WALKS)} | {row.name for row in REMAPS}
    page = explain.PAGE.read_text()
    assert explain.explanations(page).keys() == rows
    assert run(["bench", "explain"]) == 0
    assert capsys.readouterr().out == page


def test_a_name_that_is_none_brings_one_to_mind(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["fault", "cow-parnet"], ["explain", "cow-parnet"]):
        assert run(["bench", *words]) == 2
        assert "cow-parent" in capsys.readouterr().err


def test_sizes_that_do_not_fit_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--samples", "2", "--rounds", "1", "--source", "pagemap"]
    assert run(["bench", "remap", "move-pte", "protect", "--sizes", "64K,2M", *words]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "move-pte cannot be measured here: 2M does not fit (sizes of it: 4K and mult" in shown
    assert shown.count("not fit") == 1
