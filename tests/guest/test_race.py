# SPDX-License-Identifier: GPL-2.0-or-later
"""Walkers read the page tables of a process that never stops changing them.

What must hold: no splat (the harness reads the kernel's log), every answer consistent in itself
(chains.c, itself tested by tests/host/test_chains.py), and afterwards nothing kept. That the race
took place is shown by counts, the kernel's own among them.
"""

from __future__ import annotations

import gzip
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import rawfiles
import witness

HERE = Path(__file__).parent
SECONDS = int(os.environ["PTSCOPE_VM_RACE"])
MOST_SECONDS = 4 * SECONDS
"""For a machine so busy that not enough happens in the time."""
HUGETLB_BYTES = 64 << 20
"""Of huge pages, but at least `HUGETLB_PAGES` of them."""
HUGETLB_PAGES = 16
THP = Path("/sys/kernel/mm/transparent_hugepage")
SETTINGS = {
    f"{THP}/enabled": "always",
    f"{THP}/defrag": "always",
    f"{THP}/shmem_enabled": "always",
    f"{THP}/khugepaged/scan_sleep_millisecs": "50",
    f"{THP}/khugepaged/alloc_sleep_millisecs": "50",
    f"/sys/kernel/mm/hugepages/hugepages-{witness.HUGE >> 10}kB/nr_hugepages":
        str(max(HUGETLB_PAGES, HUGETLB_BYTES // witness.HUGE)),
    "/proc/sys/kernel/kptr_restrict": "1",  # with 0 even root is shown hashes in /proc/vmallocinfo
}

CONFIG = Path("/proc/config.gz")
"""Debian's kernels have none."""


def built_with(option: str) -> bool:
    """Whether this kernel says that it was built with an option."""
    return CONFIG.exists() and f"\n{option}=y\n" in gzip.decompress(CONFIG.read_bytes()).decode()


LACKS = {
    "Debian's kernels are built without READ_ONLY_THP_FOR_FS":
        not built_with("CONFIG_READ_ONLY_THP_FOR_FS"),
    "MADV_COLLAPSE came with 6.1": witness.release() < (6, 1),
    "whole PUD entries are moved from 5.11 on": witness.release() < (5, 11),
    "MADV_DONTNEED frees PTE tables from 6.14 on": witness.release() < (6, 14),
    "there is one NUMA node": not Path("/sys/devices/system/node/node1").exists(),
}
"""What the kernel or the machine lacks, and whether it does here."""
MAY_FAIL = {
    # retract_page_tables() of mm/khugepaged.c: mmap_write_trylock() up to 6.4.
    "a table is retracted only if nobody holds the target's mmap_lock, up to 6.4":
        witness.release() < (6, 5),
}
"""What the kernel gives up when it would have to wait, and whether it is so here."""


@dataclass(frozen=True)
class Happening:
    """Something that must happen during the race, and how often at least.

    In 30 s, two emulated CPUs of an idle machine do many times as much.
    """

    name: str
    least: int
    unless: str = ""
    """The only excuse, a key of `LACKS`: then it must not happen at all."""
    may_fail: str = ""
    """A key of `MAY_FAIL`: then it must have been tried so often."""


OPERATIONS = (
    Happening("map", 100),
    Happening("unmap", 50),
    Happening("unmap_part", 50),
    Happening("touch", 100),
    Happening("protect", 25),
    Happening("protect_part", 25),
    Happening("discard", 25),
    Happening("pageout", 5),
    Happening("move", 5),
    Happening("fork", 10),
    Happening("tables", 30),
    Happening("move_pte", 3),
    Happening("move_pmd", 3),
    Happening("move_dontunmap", 3),
    Happening("unmap_neighbour", 3),
    Happening("swap", 3),
    Happening("compact", 2),
    Happening("khugepaged", 2),
    Happening("share", 3),
    Happening("unshare", 3),
    Happening("collapse", 5, "MADV_COLLAPSE came with 6.1"),
    Happening("retract", 3, "MADV_COLLAPSE came with 6.1",
              "a table is retracted only if nobody holds the target's mmap_lock, up to 6.4"),
    Happening("retract_text", 3, "Debian's kernels are built without READ_ONLY_THP_FOR_FS"),
    Happening("move_pud", 3, "whole PUD entries are moved from 5.11 on"),
    Happening("reclaim", 3, "MADV_DONTNEED frees PTE tables from 6.14 on"),
    Happening("move_pages", 3, "there is one NUMA node"),
)
"""Counted by churn, which looks whether they really came about."""
KERNEL_EVENTS = (
    Happening("thp_fault_alloc", 20),
    Happening("thp_file_alloc", 5),
    Happening("thp_split_pmd", 10),
    Happening("thp_split_page", 2),
    Happening("thp_collapse_alloc", 3),
    Happening("pswpout", 50),
    Happening("pswpin", 50),
    Happening("pgmigrate_success", 50),
    Happening("compact_isolated", 50),
    Happening("thp_migration_success", 5, "there is one NUMA node"),
)
"""Counted by the kernel in /proc/vmstat."""
LEAST_ANSWERS = {
    "walk": 500, "points": 100, "dump": 100, "tables": 100, "mortal": 100, "kernel": 200,
}
LEAST_ENDS = {"deaths": 10, "exited": 1, "execed": 1, "gone": 10}
"""Of targets that end or become another program while they are walked."""


@dataclass(frozen=True)
class Outcome:
    """What a program said and counted."""

    status: int
    text: str

    @property
    def counts(self) -> dict[str, int]:
        """The ``name=value`` words of its last line."""
        words = self.text.splitlines()[-1].split()
        return {key: int(value) for key, value in (word.split("=") for word in words)}


@pytest.fixture(scope="module")
def settings(swap: None) -> Iterator[None]:
    before = {path: Path(path).read_text() for path in SETTINGS}
    for path, value in SETTINGS.items():
        Path(path).write_text(value)
    yield
    for path, text in before.items():
        # the choice in force stands in brackets
        Path(path).write_text(text[text.index("[") + 1 : text.index("]")] if "[" in text else text)


@pytest.fixture(scope="module")
def khugepaged() -> Iterator[None]:
    """khugepaged with the same right to a CPU as anyone: by default, it gets what is left over."""
    (pid,) = (
        int(comm.parent.name)
        for comm in Path("/proc").glob("[0-9]*/comm") if comm.read_text() == "khugepaged\n"
    )
    nice = os.getpriority(os.PRIO_PROCESS, pid)
    os.setpriority(os.PRIO_PROCESS, pid, 0)
    yield
    os.setpriority(os.PRIO_PROCESS, pid, nice)


@dataclass(frozen=True)
class Race:
    """The whole of it."""

    churn: Outcome
    walkers: dict[str, Outcome]
    stats: dict[str, int]
    events: dict[str, int]
    free_before: int
    """kB"""


@pytest.fixture(scope="module")
def race(settings: None, khugepaged: None) -> Race:
    free = witness.meminfo_kb("MemAvailable")
    stats = rawfiles.stats()
    before = {event.name: witness.vmstat(event.name) for event in KERNEL_EVENTS}

    def events() -> dict[str, int]:
        return {name: witness.vmstat(name) - count for name, count in before.items()}

    churn = start("churn", "7")
    pids = f"{churn.pid},{said(churn)['partner']}"
    targets = dict.fromkeys(LEAST_ANSWERS, pids) | {"mortal": str(HERE / "churn"), "kernel": "0"}
    walkers = {
        mode: start("walker", mode, target, str(2 * MOST_SECONDS), str(seed))
        for seed, (mode, target) in enumerate(targets.items())
    }
    begin = time.monotonic()
    time.sleep(SECONDS)
    while time.monotonic() < begin + MOST_SECONDS and (
        too_few(asked(churn), OPERATIONS)
        or too_few(events(), KERNEL_EVENTS)
        or too_idle({mode: asked(process) for mode, process in walkers.items()})
    ):
        time.sleep(2)
    outcomes = {mode: finish(process) for mode, process in walkers.items()}
    return Race(
        churn=finish(churn),
        walkers=outcomes,
        stats={key: value - stats[key] for key, value in rawfiles.stats().items()},
        events=events(),
        free_before=free,
    )


def start(*words: str) -> subprocess.Popen[str]:
    program, *arguments = words
    return subprocess.Popen(
        [str(HERE / program), *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True)


def asked(process: subprocess.Popen[str]) -> dict[str, int]:
    """What churn or a walker has counted so far; nothing of one that has ended, which is told of
    when it is looked at."""
    process.send_signal(signal.SIGUSR1)
    return said(process) if process.poll() is None else {}


def said(process: subprocess.Popen[str]) -> dict[str, int]:
    """Its next line."""
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], 60)[0], f"{process.args!r} does not answer"
    line = process.stdout.readline()
    assert "=" in line, line or f"{process.args!r} has ended"
    return Outcome(0, line).counts


def of_tries(counts: Mapping[str, int]) -> dict[str, str]:
    """Each operation's count with how often it was tried."""
    return {each.name: f"{counts[each.name]}/{counts[f'{each.name}.tried']}" for each in OPERATIONS}


def show(what: str, figures: Mapping[str, object]) -> None:
    """One line."""
    print(f"{what}:", *(f"{name}={figure}" for name, figure in figures.items()))


def too_few(counts: Mapping[str, int], happenings: Iterable[Happening]) -> dict[str, int]:
    """Those of the counts that are below their least; what has an excuse must have been tried."""
    few = {}
    for each in happenings:
        excused = LACKS.get(each.unless) or MAY_FAIL.get(each.may_fail)
        name = f"{each.name}.tried" if excused else each.name
        if counts.get(name, each.least) < each.least:
            few[name] = counts[name]
    return few


def too_idle(counts: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """The walkers that have not answered often enough, and ends of targets that were too few."""
    few = {
        mode: counts[mode]["answers"]
        for mode, least in LEAST_ANSWERS.items() if counts[mode].get("answers", least) < least
    }
    ends = counts["mortal"]
    return few | {
        name: ends[name] for name, least in LEAST_ENDS.items() if ends.get(name, least) < least
    }


def unexcused(counts: Mapping[str, int], happenings: Iterable[Happening]) -> dict[str, int]:
    """Those of the counts that show that an excuse is none."""
    return {
        each.name: counts[each.name]
        for each in happenings if counts[each.name] and LACKS.get(each.unless)
    }


def finish(process: subprocess.Popen[str]) -> Outcome:
    process.terminate()
    try:
        text, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    return Outcome(process.returncode, text)


@pytest.mark.parametrize("mode", LEAST_ANSWERS)
def test_every_answer_is_consistent(race: Race, mode: str) -> None:
    outcome = race.walkers[mode]
    assert outcome.status == 0, outcome.text
    assert outcome.counts["inconsistent"] == 0, outcome.text


def test_the_race_took_place(race: Race, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():  # the figures belong to the result, and not only when it is bad
        print()
        show("churn, of so many tries", of_tries(race.churn.counts))
        show("kernel", race.events)
        show("module", race.stats)
        for mode, outcome in race.walkers.items():
            show(f"walker {mode}", {key: n for key, n in outcome.counts.items() if n})
    assert race.churn.status == 0, race.churn.text
    done = race.churn.counts
    few = too_few(done, OPERATIONS) | too_few(race.events, KERNEL_EVENTS)
    assert few == {}, "this happened too seldom"


def test_what_did_not_happen_could_not(
    race: Race, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        for reason, holds in LACKS.items():
            names = [each.name for each in (*OPERATIONS, *KERNEL_EVENTS) if each.unless == reason]
            if holds:
                print(f"\nnot raced: {', '.join(names)}, because {reason}", end="")
    assert unexcused(race.churn.counts, OPERATIONS) == {}
    assert unexcused(race.events, KERNEL_EVENTS) == {}
    # two nodes were asked for on the command line wherever the kernel can play them
    assert ("numa=fake=2" in Path("/proc/cmdline").read_text().split()) is (
        witness.MACHINE == "x86_64")
    assert LACKS["there is one NUMA node"] is (witness.MACHINE != "x86_64")
    assert race.churn.counts["high"] == (witness.user_bits() > 48)


def test_walkers_answered_and_targets_went_away_meanwhile(race: Race) -> None:
    few = too_idle({mode: outcome.counts for mode, outcome in race.walkers.items()})
    assert few == {}, "this happened too seldom"


def test_holes_were_walked_and_tables_awaited_under_the_write_lock(race: Race) -> None:
    assert race.walkers["walk"].counts["outside"] > 50
    assert race.stats["write_lock_batches"] > 0


def test_two_cpus_raced_and_freed_pages_were_marked() -> None:
    assert (os.cpu_count() or 1) >= 2
    assert "page_poison=1" in Path("/proc/cmdline").read_text().split()


def test_nothing_is_kept(
    race: Race, eventually: Callable[[Callable[[], bool], str], None]
) -> None:
    # free pages that wait on the CPUs' own lists count as used: tens of MiB
    eventually(lambda: witness.meminfo_kb("MemAvailable") > race.free_before - 128 * 1024,
               "the memory of the race is free again")
    assert subprocess.run(["rmmod", "ptscope"], check=False).returncode == 0
    subprocess.run(["insmod", "/lib/ptscope/ptscope.ko"], check=True)
