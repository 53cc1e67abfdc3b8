# SPDX-License-Identifier: GPL-2.0-or-later
"""Walkers read the page tables of a process that never stops changing them.

What must hold: no splat (the harness reads the kernel's log), every answer consistent in itself
(chains.c, itself tested by tests/host/test_chains.py), and afterwards nothing kept. That the race
took place is shown by counts, the kernel's own among them.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import rawfiles
import witness

HERE = Path(__file__).parent
SECONDS = 30
MOST_SECONDS = 120
"""For a machine so busy that not enough happens in 30 s."""
SETTINGS = {
    "/sys/kernel/mm/transparent_hugepage/enabled": "always",
    "/sys/kernel/mm/transparent_hugepage/defrag": "always",
    "/sys/kernel/mm/transparent_hugepage/shmem_enabled": "always",
    "/sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs": "50",
    "/sys/kernel/mm/transparent_hugepage/khugepaged/alloc_sleep_millisecs": "50",
    f"/sys/kernel/mm/hugepages/hugepages-{witness.HUGE >> 10}kB/nr_hugepages": "32",
    "/proc/sys/kernel/kptr_restrict": "1",  # with 0 even root is shown hashes in /proc/vmallocinfo
}

# At least this often; in 30 s, two emulated CPUs of an idle machine do many times as much.
LEAST_OPERATIONS = {
    "map": 100, "unmap": 50, "unmap_part": 50, "touch": 100, "protect": 25, "protect_part": 25,
    "discard": 25, "collapse": 5, "move": 5, "fork": 10, "pageout": 2, "tables": 30,
}
if witness.release() < (6, 1):
    del LEAST_OPERATIONS["collapse"]  # MADV_COLLAPSE is newer; khugepaged collapses all the same
LEAST_ANSWERS = {"walk": 500, "points": 100, "dump": 100, "tables": 100, "kernel": 200}
LEAST_KERNEL_EVENTS = {"thp_fault_alloc": 20, "thp_split_pmd": 10, "thp_collapse_alloc": 3}


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
def race(settings: None) -> Race:
    free = witness.meminfo_kb("MemAvailable")
    stats = rawfiles.stats()
    events = {key: witness.vmstat(key) for key in LEAST_KERNEL_EVENTS}
    churn = start("churn", "7")
    walkers = {
        mode: start("walker", mode, str(churn.pid), str(2 * MOST_SECONDS), str(seed))
        for seed, mode in enumerate(LEAST_ANSWERS)
    }
    begin = time.monotonic()
    time.sleep(SECONDS)
    while time.monotonic() < begin + MOST_SECONDS and too_few(
        asked(churn), LEAST_OPERATIONS
    ) | too_few({key: witness.vmstat(key) - events[key] for key in events}, LEAST_KERNEL_EVENTS):
        time.sleep(2)
    outcomes = {mode: finish(process) for mode, process in walkers.items()}
    return Race(
        churn=finish(churn),
        walkers=outcomes,
        stats={key: value - stats[key] for key, value in rawfiles.stats().items()},
        events={key: witness.vmstat(key) - events[key] for key in events},
        free_before=free,
    )


def start(*words: str) -> subprocess.Popen[str]:
    program, *arguments = words
    return subprocess.Popen(
        [str(HERE / program), *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True)


def asked(churn: subprocess.Popen[str]) -> dict[str, int]:
    """How often each operation has happened so far."""
    churn.send_signal(signal.SIGUSR1)
    assert churn.stdout is not None
    assert select.select([churn.stdout], [], [], 60)[0], "churn does not answer"
    return Outcome(0, churn.stdout.readline()).counts


def too_few(counts: dict[str, int], least: dict[str, int]) -> dict[str, int]:
    """Those of the counts that are below their least."""
    return {key: counts[key] for key in least if counts[key] < least[key]}


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


def test_the_race_took_place(race: Race) -> None:
    print("operations:", race.churn.counts)
    print("kernel:", race.events)
    print("module:", race.stats)
    for mode, outcome in race.walkers.items():
        print(f"{mode}:", outcome.counts)
    assert race.churn.status == 0, race.churn.text
    done = race.churn.counts
    assert done["high"] == (witness.levels() == 5)
    answers = {mode: outcome.counts["answers"] for mode, outcome in race.walkers.items()}
    few = (
        too_few(done, LEAST_OPERATIONS)
        | too_few(answers, LEAST_ANSWERS)
        | too_few(race.events, LEAST_KERNEL_EVENTS)
    )
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
