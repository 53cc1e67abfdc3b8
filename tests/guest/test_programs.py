# SPDX-License-Identifier: GPL-2.0-or-later
"""Every command about a whole process, on programs as there are: large, split up, huge, far away.

The commands compare what they say with the kernel themselves (map with smaps, statm and VmPTE,
check with all of it, walk with pagemap), and end with 1 when it differs; here each has to end
with 0, and the same process has to look the same to all of them.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import command
import pytest
import witness

PAGE = witness.PAGE
HUGE = witness.HUGE
GIB = 1 << 30
MANY_VMAS = 10_000
MOST_VMAS = 100_000
LONGEST_MAP = 120.0
"""Seconds: a machine that takes longer to map MOST_VMAS does no more than that with them."""
RESIDENT = 4 * GIB
ROOM = 512 << 20
"""Bytes that a guest needs beside the memory of a program."""
MAX_MAP_COUNT = Path("/proc/sys/vm/max_map_count")
KHUGEPAGED = Path("/sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs")
HUGETLB = Path(f"/sys/kernel/mm/hugepages/hugepages-{HUGE >> 10}kB/nr_hugepages")

# What the programs below begin with: calls that Python has no functions for.
CALLS = f"""
import ctypes, mmap, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
PAGE, HUGE = {PAGE}, {HUGE}
RW, PRIVATE, HUGETLB = 3, 0x22, 0x40000
def ok(result):
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
def anonymous(size, flags=0):
    address = libc.mmap(None, size, RW, PRIVATE | flags, -1, 0)
    if address == ctypes.c_void_p(-1).value:
        ok(-1)
    return address
"""

HEAP = "heap = [bytes(200) for _ in range(200_000)]"
FILES = """
size = 4 << 20
with open("/tmp/of-a-program", "wb") as out:
    out.write(os.urandom(size))
file = os.open("/tmp/of-a-program", os.O_RDWR)
private = mmap.mmap(file, size, mmap.MAP_PRIVATE)
shared = mmap.mmap(file, size, mmap.MAP_SHARED)
read = mmap.mmap(file, size, mmap.MAP_SHARED, mmap.PROT_READ)
memory = mmap.mmap(-1, size)
total = sum(read[i] for i in range(0, size, PAGE))
for i in range(0, size // 2, PAGE):
    private[i] = shared[i] = memory[i] = 1
if not os.fork():
    memory[0] = 2
    time.sleep(1000)
"""
HUGE_PAGES = """
small = anonymous(8 * HUGE)
start = -(-small // HUGE) * HUGE
ok(libc.madvise(start, 4 * HUGE, 14))
ctypes.memset(start, 1, 4 * HUGE)
ok(libc.mprotect(start + HUGE, PAGE, 1))
pool = anonymous(4 * HUGE, HUGETLB)
ctypes.memset(pool, 1, 3 * HUGE)
"""
VMAS = """
start = anonymous(VMAS * PAGE)
for page in range(0, VMAS, 2):
    ok(libc.mprotect(start + page * PAGE, PAGE, 1))
for page in range(1, VMAS, 16):
    ctypes.memset(start + page * PAGE, 1, 1)
"""
# MADV_NOHUGEPAGE, MADV_POPULATE_WRITE (from 5.14): a million PTEs.
LARGE = f"""
start = anonymous({RESIDENT})
ok(libc.madvise(start, {RESIDENT}, 15))
ok(libc.madvise(start, {RESIDENT}, 23))
"""
NAMESPACES = """
NEWNS, NEWPID = 0x20000, 0x20000000
ok(libc.unshare(NEWNS | NEWPID))
child = os.fork()
if not child:
    os.mkdir("/tmp/elsewhere") if not os.path.exists("/tmp/elsewhere") else None
    ok(libc.mount(b"none", b"/tmp/elsewhere", b"tmpfs", 0, None))
    ok(libc.mount(b"proc", b"/proc", b"proc", 0, None))
    with open("/tmp/elsewhere/file", "wb") as out:
        out.write(bytes(1 << 20))
    here = open("/tmp/elsewhere/file", "r+b")
    seen = mmap.mmap(here.fileno(), 0)
    seen[0] = 1
    time.sleep(1000)
time.sleep(1)
print(child, flush=True)
"""


@dataclass(frozen=True)
class Program:
    """A program, and what a guest must have for it."""

    name: str
    source: str
    memory: int = 64 << 20
    """Bytes."""
    vmas: int = 0
    pool: int = 0
    """Huge pages."""


PROGRAMS = (
    Program("Python with a heap", HEAP),
    Program("files and shared memory", FILES),
    Program("THP and hugetlb", HUGE_PAGES, pool=4),
    Program("many VMAs", f"VMAS = {MANY_VMAS}\n{VMAS}", vmas=MANY_VMAS),
    Program("most VMAs", f"VMAS = {MOST_VMAS}\n{VMAS}", memory=512 << 20, vmas=MOST_VMAS),
    Program("4 GiB resident", LARGE, memory=RESIDENT),
    Program("namespaces of its own", NAMESPACES),
)


@pytest.fixture(autouse=True, scope="module")
def no_khugepaged() -> Iterator[None]:
    """What it collapses between two dumps would be a difference, and rightly so."""
    before = KHUGEPAGED.read_text()
    KHUGEPAGED.write_text("3600000")
    time.sleep(1)
    yield
    KHUGEPAGED.write_text(before)


def available() -> int:
    """Bytes of memory that can be had (MemAvailable)."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no MemAvailable")


@contextlib.contextmanager
def running(program: Program) -> Iterator[int]:
    """The PID of the program once it holds still."""
    if available() < program.memory + ROOM:
        pytest.skip(f"{program.name}: needs {program.memory + ROOM >> 20} MiB of memory, there are"
                    f" {available() >> 20}")
    limit, pool = MAX_MAP_COUNT.read_text(), HUGETLB.read_text()
    MAX_MAP_COUNT.write_text(str(max(int(limit), 2 * program.vmas)))
    HUGETLB.write_text(str(program.pool))
    source = f"{CALLS}\n{program.source}\nprint(os.getpid(), flush=True)\ntime.sleep(1000)\n"
    process = subprocess.Popen(
        [sys.executable, "-c", source], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first.strip(), "the program has failed"
        time.sleep(0.5)
        yield int(first)
    finally:
        subprocess.run(["kill", "-KILL", f"-{process.pid}"], check=False)
        process.wait()
        HUGETLB.write_text(pool)
        MAX_MAP_COUNT.write_text(limit)


def timed(*words: object) -> command.Result:
    """Run a command as users do, which must end with 0; says how long it took."""
    start = time.monotonic()
    result = command.run(*words, timeout=600)
    print(f"{time.monotonic() - start:6.1f} s  ptscope {' '.join(map(str, words))}")
    assert result.status == 0, (words, result.out[-3000:], result.err[-3000:])
    return result


def stack_of(pid: int) -> int:
    """An address that is there: the last page of the stack, with the program's environment."""
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        if line.endswith("[stack]"):
            return int(line.split()[0].split("-")[1], 16) - PAGE
    raise AssertionError(f"{pid} has no stack")


def all_commands(pid: int, folder: Path) -> None:
    """Everything that can be asked about a process, one after another."""
    start = time.monotonic()
    mapped = timed("map", pid, "--json").json
    took = time.monotonic() - start
    if took > LONGEST_MAP:
        pytest.skip(f"map of {len(mapped['vmas'])} VMAs agrees, and took {took:.0f} s here: the "
                    f"other commands are left out, which is done from {LONGEST_MAP:.0f} s on")
    checked = timed("check", pid, "--json").json
    assert checked["processes"][0]["pid"] == mapped["pid"] == pid
    vmas = len(mapped["vmas"])
    first, second = folder / "first.pts", folder / "second.pts"
    timed("dump", pid, "-o", first)
    timed("dump", pid, "-o", second)
    shown = timed("show", first, "--json").json
    assert len(shown["vmas"]) == vmas
    assert shown["total"]["mapped"] == mapped["total"]["mapped"]
    timed("diff", first, second)
    timed("check", "--from", first)
    address = stack_of(pid)
    walk = timed("walk", pid, hex(address), "--compare", "--json").json
    offline = timed("show", first, hex(address), "--json").json
    assert walk["levels"][-1]["raw"] in str(offline)
    found = timed("who", pid, hex(address), "--json").json
    assert any(row["pid"] == pid for row in found["processes"])
    print(f"{vmas} VMAs, {first.stat().st_size} bytes of snapshot")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_program(program: Program, tmp_path: Path) -> None:
    with running(program) as pid:
        all_commands(pid, tmp_path)


def test_the_first_process(tmp_path: Path) -> None:
    all_commands(1, tmp_path)


def test_itself_while_it_runs(tmp_path: Path) -> None:
    """It changes while it looks at itself: that is no finding, and no disagreement."""
    timed("map", "self")
    timed("check", "self")
    timed("dump", "self", "-o", tmp_path / "self.pts")
    timed("show", tmp_path / "self.pts")


def test_all_of_them_at_once() -> None:
    answer = timed("check", "--all", "--json").json
    assert answer["summary"]["findings"] == 0
