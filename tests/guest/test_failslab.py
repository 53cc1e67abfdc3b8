# SPDX-License-Identifier: GPL-2.0-or-later
"""Every allocation of every call of the module fails once: an error each time, and nothing lost.

failer.c makes one system call again and again, with the first allocation in it failing, the
second and so on, until none is left to fail. What fails is not the module's own allocations
alone but all those of the kernel on the way, which is what the module meets too.
"""

from __future__ import annotations

import errno
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import rawfiles
import witness
from known import DEVICE, KIND_SHIFT, KINDS
from puppet import Puppet

FAILER = Path(__file__).with_name("failer")
MODULE = "/lib/ptscope/ptscope.ko"
DEBUG = Path("/sys/kernel/debug")
SLABS = Path("/sys/kernel/slab")
SIZED = re.compile(r"kmalloc-(cg-)?\d+k?")
OF_A_PROCESS = ("mm_struct", "pid", "task_struct")
ROUNDS = 60
"""Often enough that one object lost in each round stands out."""
NOISE = ROUNDS // 2
PAGE = witness.PAGE
MAP_PAGES = 24
BUFFER_KB = rawfiles.MAX_READ // 1024
SETTINGS = {
    # Without these only what may not sleep would fail, and no single pages.
    "failslab/ignore-gfp-wait": "N",
    "fail_page_alloc/ignore-gfp-wait": "N",
    "fail_page_alloc/ignore-gfp-highmem": "N",
    "fail_page_alloc/min-order": "0",
    # A stack dump for each of thousands of failures would drown the log.
    "failslab/verbose": "0",
    "fail_page_alloc/verbose": "0",
}

Eventually = Callable[[Callable[[], bool], str], None]


@pytest.fixture(scope="module", autouse=True)
def settings() -> Iterator[None]:
    before = {name: (DEBUG / name).read_text().strip() for name in SETTINGS}
    for name, value in SETTINGS.items():
        (DEBUG / name).write_text(value)
    yield
    for name, value in before.items():
        (DEBUG / name).write_text(value)


@dataclass(frozen=True)
class Step:
    """One call, in which allocation number ``nth`` failed if there was one."""

    nth: int
    error: int
    injected: bool
    after: int
    """The errno of the same call right after one that failed."""
    moved: int
    """Bytes that the last call read or wrote."""


def failer(*words: object) -> list[Step]:
    """Run it."""
    done = subprocess.run(
        [str(FAILER), *map(str, words)], capture_output=True, text=True, check=False, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
    steps = []
    for line in done.stdout.splitlines():
        nth, error, injected, after, moved = map(int, line.split())
        steps.append(Step(nth, error, bool(injected), after, moved))
    return steps


def objects() -> dict[str, int]:
    """How many objects the kernel's allocator has given out: of each size, and `OF_A_PROCESS`.

    Writing to ``shrink`` empties what the CPUs keep for themselves, and KASAN's quarantine.
    """
    counts = {}
    sizes = [path.name for path in SLABS.iterdir() if SIZED.fullmatch(path.name)]
    for name in (*sizes, *OF_A_PROCESS):
        (SLABS / name / "shrink").write_text("1")
        counts[name] = int((SLABS / name / "objects").read_text().split()[0])
    return counts


@dataclass(frozen=True)
class Operation:
    """A call of one of the files, with what is written first."""

    call: str
    file: str
    request: Callable[[int], bytes] | None
    least: int
    """So many of its allocations can fail, at least: fewer, and the test has seen nothing."""
    more: tuple[object, ...] = ()
    """What else failer is told."""


def whole(pid: int) -> bytes:
    """Everything of a process."""
    last = int(rawfiles.layout()["runtime.user_last"], 16)
    return rawfiles.request(pid, [(0, last)], rawfiles.WITH_VMAS | rawfiles.WITH_USER_PGD)


def points(pid: int) -> bytes:
    """As many ranges as a request may have."""
    return rawfiles.request(pid, [(0x1000, 0x1000)] * rawfiles.MAX_RANGES)


def text(pid: int) -> bytes:
    """A walk in text."""
    return f"{pid} 0x400000".encode()


def kernel(pid: int) -> bytes:
    """The text of the kernel."""
    start = witness.symbol("_stext")
    return rawfiles.request(rawfiles.KERNEL, [(start, start + (1 << 20))])


def kernel_text(pid: int) -> bytes:
    """The same as a walk in text."""
    return f"kernel {witness.symbol('_stext'):#x}".encode()


OPERATIONS = {
    "open layout": Operation("open", "layout", None, 4),
    "open stats": Operation("open", "stats", None, 4),
    "open walk": Operation("open", "walk", text, 4),
    "open dump": Operation("open", "dump", whole, 4),
    "ask walk": Operation("write", "walk", text, 2),
    "ask walk of the kernel": Operation("write", "walk", kernel_text, 4),
    "ask dump": Operation("write", "dump", whole, 2),
    "ask dump of many ranges": Operation("write", "dump", points, 2),
    "ask dump of the kernel": Operation("write", "dump", kernel, 4),
    "read layout": Operation("read", "layout", None, 1),
    "read stats": Operation("read", "stats", None, 1),
    "read walk": Operation("read", "walk", text, 0),
    "read dump": Operation("read", "dump", whole, 0),
    "read dump of the kernel": Operation("read", "dump", kernel, 0),
    "open map device": Operation("open", str(DEVICE), None, 1),
    "ask map device": Operation("write", str(DEVICE), lambda pid: b"%d" % MAP_PAGES, MAP_PAGES),
    "read map device": Operation("read", str(DEVICE), lambda pid: b"%d" % MAP_PAGES, 0),
    **{f"mmap {name}": Operation(
        "mmap", str(DEVICE), lambda pid: b"%d" % MAP_PAGES, 2 if kind.at_once else 1,
        (kind.number << KIND_SHIFT, MAP_PAGES * PAGE),
    ) for name, kind in KINDS.items()},
}


def check(steps: list[Step], least: int) -> None:
    """Each call failed cleanly, or did without what it did not get; and then worked."""
    injected = [step for step in steps if step.injected]
    errors = sorted({errno.errorcode.get(step.error, str(step.error)) for step in injected})
    print(f"{max(step.nth for step in steps) - 1} allocations, errors {errors}")
    assert {step.error for step in steps if not step.injected} == {0}
    assert {step.error for step in injected} <= {0, errno.ENOMEM}
    assert {step.after for step in steps} == {0}
    assert max(step.nth for step in steps) > least


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_call_without_memory(
    name: str, puppet: Puppet, tmp_path: Path, eventually: Eventually
) -> None:
    operation = OPERATIONS[name]
    request: Path | str = "-"
    if operation.request:
        request = tmp_path / "request"
        request.write_bytes(operation.request(puppet.pid))
    words = (operation.call, rawfiles.FILES / operation.file, request, *operation.more)
    check(failer(1, *words), operation.least)  # fills the kernel's caches, too

    before, free = objects(), witness.free_kb()
    steps = failer(ROUNDS, *words)
    check(steps, operation.least)
    assert len({step.moved for step in steps}) == 1, "a call that succeeded gave less"

    def lost() -> dict[str, int]:
        return {
            cache: count - before.get(cache, 0)
            for cache, count in objects().items()
            if count - before.get(cache, 0) >= NOISE
        }

    eventually(lambda: not lost(), "no objects are left over")
    eventually(lambda: witness.free_kb() > free - ROUNDS * BUFFER_KB // 2,
               "the buffers are free again")


def test_the_target_is_let_go(tmp_path: Path, eventually: Eventually) -> None:
    """What failed must not hold on to the address space or the PID that it was about."""
    before = objects()
    for _ in range(NOISE):
        with Puppet() as puppet:
            (tmp_path / "request").write_bytes(whole(puppet.pid))
            failer(1, "write", rawfiles.FILES / "dump", tmp_path / "request")
            (tmp_path / "request").write_bytes(text(puppet.pid))
            failer(1, "write", rawfiles.FILES / "walk", tmp_path / "request")

    def grown() -> dict[str, int]:
        now = objects()
        return {
            kind: now[kind] - before[kind]
            for kind in OF_A_PROCESS if now[kind] > before[kind] + 4
        }

    eventually(lambda: not grown(), "the processes are gone altogether")


@pytest.fixture
def unloaded() -> Iterator[None]:
    """Without the module."""
    subprocess.run(["rmmod", "ptscope"], check=True)
    yield
    if not Path("/sys/module/ptscope").exists():
        subprocess.run(["insmod", MODULE], check=True)
    assert (rawfiles.FILES / "layout").exists()


@pytest.mark.usefixtures("unloaded")
def test_loading_without_memory() -> None:
    """A load that fails leaves no files; one that succeeds leaves all of them."""
    steps = failer(1, "insmod", MODULE)
    injected = [step for step in steps if step.injected]
    print(f"{len(injected)} allocations, {sum(1 for s in injected if s.error)} of them fatal")
    assert {step.error for step in injected} <= {0, errno.ENOMEM}
    assert {step.after for step in steps} == {0}
    assert len(injected) > 20
    assert not rawfiles.FILES.exists()


@pytest.mark.usefixtures("unloaded")
def test_unloading_without_memory() -> None:
    steps = failer(1, "rmmod", MODULE)
    assert {(step.error, step.after) for step in steps} == {(0, 0)}
    assert not rawfiles.FILES.exists()


def test_nobody_uses_the_module() -> None:
    assert Path("/sys/module/ptscope/refcnt").read_text().strip() == "0"
    assert rawfiles.stats()["dumps"] >= 0
    assert rawfiles.stats()["map_pages"] == 0
