# SPDX-License-Identifier: GPL-2.0-or-later
"""What `ptscope bench` measures, in a guest whose clock counts instructions.

Each sample of each scenario is proven by walks of the module, so that all end without an error says
that the kernel did what each claims. Figures repeat, so two runs of the set have to agree, and a
slowdown that was planted has to be reported.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import command
import pytest
import witness
from ptscope._core import lib
from ptscope.bench import store
from ptscope.bench.clock import calibrate
from ptscope.bench.compare import compare
from ptscope.bench.conditions import Conditions, gather
from ptscope.bench.faults import FAULTS
from ptscope.bench.looks import Eyes
from ptscope.bench.memory import Geometry
from ptscope.bench.remap_run import measure_remap
from ptscope.bench.remaps import REMAPS
from ptscope.bench.result import Measured
from ptscope.bench.run import Setting, measure
from ptscope.bench.store import Stored
from ptscope.bench.timing import Action, pinned, take
from ptscope.bench.walks import WALKS
from ptscope.source.module import ModuleSource

LOOPS = Path(__file__).with_name("loops")
PAGE, HUGE = witness.PAGE, witness.HUGE
HUGETLB = Path(f"/sys/kernel/mm/hugepages/hugepages-{HUGE >> 10}kB/nr_hugepages")
SAMPLES, ROUNDS = 9, 3
AGREE = 0.001
"""How far the medians of two runs may be apart."""
LIKE_OTHERS = 0.05
"""How far those of independent loops may be."""
SLOWER = 0.05
X86 = os.uname().machine == "x86_64"
KERNEL = witness.release()

# What cannot be measured here, and why that is so.
ABSENT: dict[str, bool] = {
    "depth-pgd": int(os.environ["PTSCOPE_VM_LEVELS"]) < 5,
    "depth-p4d": int(os.environ["PTSCOPE_VM_LEVELS"]) < 4,
    "signal-guard": KERNEL < (6, 13),
    "signal-pkey": not X86,
    "soft-dirty": not X86,
    "uffd-minor": KERNEL < (5, 14),
    "uffd-wp": not X86,
    "move-pud": KERNEL < (5, 11),
}


@dataclass(frozen=True)
class Bench:
    """How it is measured, and everything measured once."""

    setting: Setting
    conditions: Conditions
    measured: list[Measured]

    def named(self, name: str) -> Measured:
        """One of them."""
        return next(each for each in self.measured if each.name == name)


def sizes(geometry: Geometry) -> list[int]:
    """Few and small: an emulated CPU makes one page ready after the other."""
    return [4 * PAGE, 16 * PAGE, 64 * PAGE, geometry.pmd, 2 * geometry.pmd, geometry.pud]


def run_all(setting: Setting) -> list[Measured]:
    """All scenarios."""
    measured = [measure(row, setting) for row in (*FAULTS, *WALKS)]
    few = replace(setting, samples=4)
    for row in REMAPS:
        wanted = sizes(setting.geometry)
        if row.name != "move-pud":
            wanted = wanted[:-1]
        measured += measure_remap(row, wanted, few)
    return measured


@pytest.fixture(scope="module")
def setting(swap: None) -> Iterator[Setting]:
    before = HUGETLB.read_text()
    HUGETLB.write_text(str(2 * SAMPLES))
    source = ModuleSource.open()
    with pinned(0):
        yield Setting(
            clock=calibrate(),
            eyes=Eyes(source),
            geometry=Geometry.of(source.layout),
            cpu=0,
            serving_cpu=-1,
            samples=SAMPLES,
            rounds=ROUNDS,
        )
    HUGETLB.write_text(before)


@pytest.fixture(scope="module")
def swap() -> None:
    if "zram0" in Path("/proc/swaps").read_text():
        return
    if not Path("/sys/block/zram0").exists():
        subprocess.run(["modprobe", "zram"], check=True)
    Path("/sys/block/zram0/disksize").write_text(str(64 << 20))
    subprocess.run(["mkswap", "/dev/zram0"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["swapon", "/dev/zram0"], check=True)


@pytest.fixture(scope="module")
def bench(setting: Setting) -> Bench:
    conditions = gather(setting.clock, setting.geometry, "module", 0)
    return Bench(setting, conditions, run_all(setting))


def stored(measured: Sequence[Measured], conditions: Conditions) -> dict[str, Stored]:
    """As a file would give them."""
    content = json.loads(json.dumps(store.document(measured, conditions)))
    return {each.name: each for each in store._benchmarks(content)}


def test_all_that_can_be_measured_is(bench: Bench) -> None:
    missing = {each.name: each.unavailable for each in bench.measured if each.unavailable}
    assert missing.keys() == {name for name, absent in ABSENT.items() if absent}, missing


def test_every_sample_did_what_it_should(bench: Bench) -> None:
    assert {each.name: each.errors[0] for each in bench.measured if each.errors} == {}
    assert all(each.values for each in bench.measured if not each.unavailable)


def test_the_kernel_counts_a_fault_a_sample(bench: Bench) -> None:
    judged = [row.name for row in FAULTS if row.faults == 1]
    assert len(judged) > 25
    for name in judged:
        each = bench.named(name)
        if not each.unavailable:
            assert each.faults == each.samples, name


def test_tables_are_made_level_by_level(bench: Bench) -> None:
    levels = int(os.environ["PTSCOPE_VM_LEVELS"])
    for made, name in enumerate(("write", "depth-pmd", "depth-pud", "depth-p4d", "depth-pgd")):
        if made < levels:
            assert bench.named(name).tables == {made}
    medians = [
        statistics.median(bench.named(name).values)
        for name in ("write", "depth-pmd", "depth-pud", "depth-p4d", "depth-pgd")[:levels]
    ]
    assert medians == sorted(medians)


def test_two_runs_agree(bench: Bench) -> None:
    again = run_all(bench.setting)
    apart = {}
    for one, other in zip(bench.measured, again, strict=True):
        if one.values and other.values:
            ratio = statistics.median(other.values) / statistics.median(one.values)
            if abs(ratio - 1) > AGREE:
                apart[one.name] = round(ratio, 4)
    assert apart == {}


def turn(setting: Setting) -> float:
    """What one empty loop takes, in ns."""
    turns = 10_000
    nothing = Action(lib.PTSCOPE_DO_NOTHING, spin=turns)
    return statistics.median(
        setting.clock.ns(each.ticks) / turns for each in take(setting.clock.kind, nothing, [0] * 9)
    )


@pytest.mark.parametrize("name", ["write", "cow-parent", "depth-pmd"])
def test_a_planted_slowdown_is_reported(bench: Bench, name: str) -> None:
    row = next(row for row in FAULTS if row.name == name)
    before = bench.named(name)
    spin = round(SLOWER * statistics.median(before.values) / turn(bench.setting))
    slower = measure(row, replace(bench.setting, spin=spin))
    result = compare(stored([before], bench.conditions), stored([slower], bench.conditions))
    (found,) = result.differences
    assert found.verdict == "slower", found
    assert found.ratio == pytest.approx(1 + SLOWER, abs=0.005)
    same = measure(row, bench.setting)
    (found,) = compare(
        stored([before], bench.conditions), stored([same], bench.conditions)
    ).differences
    assert found.verdict == "no difference shown", found


@functools.cache
def loop(name: str, count: int) -> float:
    """The median of an independent loop, in ns, without the first."""
    done = subprocess.run([LOOPS, name, str(count)], stdout=subprocess.PIPE, check=True, text=True)
    return statistics.median([float(line) for line in done.stdout.split()][1:])


@pytest.mark.parametrize("name", ["syscall", "read", "write", "dontneed-write", "cow-parent"])
def test_independent_loops_agree(bench: Bench, name: str) -> None:
    ours = statistics.median(bench.named(name).values)
    assert ours == pytest.approx(loop(name, 25), rel=LIKE_OTHERS)


@pytest.mark.parametrize(("name", "pages"), [("move-pte-256K", 64), ("move-pmd-4M", 1024)])
def test_independent_moves_agree(bench: Bench, name: str, pages: int) -> None:
    if PAGE != 4096:
        pytest.skip("sizes are named for pages of 4 KiB")
    ours = statistics.median(bench.named(name).values)
    assert ours == pytest.approx(loop(f"move-{pages}", 9), rel=LIKE_OTHERS)


def test_command_writes_what_compare_reads(tmp_path: Path) -> None:
    for name in ("a", "b"):
        done = command.run(
            "bench", "fault", "write", "read", "--samples", "4", "--rounds", "2",
            "-o", str(tmp_path / name), "--json",
        )  # fmt: skip
        assert done.status == 0, done.err
        document = done.json
        assert document == json.loads((tmp_path / name).read_text())
        assert document["metadata"]["source"] == "module"
        assert "not comparable" in document["metadata"]["accelerator"]
    result = command.run("bench", "compare", str(tmp_path / "a"), str(tmp_path / "b"))
    assert result.status == 0, result.out
    assert "no difference shown in 2" in result.out
