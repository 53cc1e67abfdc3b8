# SPDX-License-Identifier: GPL-2.0-or-later
"""Real processes: which can be walked, and what is said of those that cannot."""

from __future__ import annotations

import errno
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ptscope.errors import (
    ChangedIdentity,
    Exited,
    KernelThread,
    NoSuchProcess,
    TargetError,
    Unsupported,
    UsageError,
)
from ptscope.source.pagemap import PagemapFile, PagemapSource, frames_visible
from ptscope.target.access import cannot_read
from ptscope.target.frame import BITS, Frame
from ptscope.target.process import PID_LIMIT, find, find_self
from ptscope.target.smaps import read_sizes
from ptscope.target.vma import Vma, find_vma, named, parse_maps, read_maps

LEADER_EXITS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print("ready", flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


def until(holds: Callable[[], bool]) -> None:
    """Wait for up to 10 seconds."""
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(["sleep", "60"], text=True) as process:
        until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n")
        yield process
        process.kill()


def test_self_and_another(child: subprocess.Popen[str]) -> None:
    assert find_self().pid == os.getpid()
    found = find(child.pid)
    assert (found.comm, found.leader_exited) == ("sleep", False)
    assert found.proc == Path(f"/proc/{child.pid}")
    found.check_unchanged()


def test_zombie_and_gone(child: subprocess.Popen[str]) -> None:
    found = find(child.pid)
    child.kill()
    until(lambda: state(child.pid) == "Z")
    with pytest.raises(Exited, match="zombie"):
        find(child.pid)
    child.wait()
    with pytest.raises(NoSuchProcess):
        find(child.pid)
    with pytest.raises(Exited):
        found.check_unchanged()
    with pytest.raises(Exited):
        read_maps(found.proc)
    with pytest.raises(Exited):
        PagemapFile(found.proc, hidden=False)


@pytest.fixture
def shell() -> Iterator[subprocess.Popen[str]]:
    """A shell that executes another program when it is sent a line."""
    with subprocess.Popen(
        ["sh", "-c", "echo ready; read line; exec sleep 60"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def execute(shell: subprocess.Popen[str]) -> None:
    assert shell.stdin is not None
    shell.stdin.write("go\n")
    shell.stdin.flush()
    until(lambda: Path(f"/proc/{shell.pid}/comm").read_text() == "sleep\n")


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    until(lambda: state(process.pid) == "Z")


@pytest.mark.parametrize(("end", "kind"), [(execute, ChangedIdentity), (kill, Exited)])
def test_address_space_that_goes_away(
    shell: subprocess.Popen[str],
    end: Callable[[subprocess.Popen[str]], None],
    kind: type[TargetError],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = find(shell.pid)
    address = read_maps(found.proc)[0].start

    def late_maps(proc: Path) -> tuple[Vma, ...]:
        end(shell)
        return read_maps(proc)

    with PagemapFile(found.proc, hidden=False) as pagemap:
        pagemap.read(address)
        # Between pagemap and maps, which would be of two programs.
        monkeypatch.setattr("ptscope.source.pagemap.read_maps", late_maps)
        monkeypatch.setattr(PagemapSource, "frames_hidden", False)
        with pytest.raises(kind):
            PagemapSource().walk(shell.pid, [address])
        with pytest.raises(kind):
            pagemap.read(address)
    with pytest.raises(kind):
        found.check_unchanged()


def test_zombie_of_ours_is_not_somebody_else_s(child: subprocess.Popen[str]) -> None:
    kill(child)
    for read in (read_maps, lambda proc: PagemapFile(proc, hidden=False)):
        with pytest.raises(Exited):
            read(Path(f"/proc/{child.pid}"))
    # Its files belong to root, so its owner may not open them.
    refused = PermissionError(errno.EACCES, "Permission denied")
    assert isinstance(cannot_read(Path(f"/proc/{child.pid}/pagemap"), refused), Exited)


def test_exited_leader_with_a_live_thread() -> None:
    command = [sys.executable, "-c", LEADER_EXITS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        until(lambda: state(process.pid) == "Z")
        found = find(process.pid)
        assert found.leader_exited
        assert found.proc.parent == Path(f"/proc/{process.pid}/task")
        maps = read_maps(found.proc)
        assert maps
        (walk,) = PagemapSource().walk(process.pid, [maps[0].start])
        assert walk.leaf is not None
        process.send_signal(signal.SIGKILL)


def test_thread_id() -> None:
    ready = threading.Event()
    ids: list[int] = []

    def run() -> None:
        ids.append(threading.get_native_id())
        ready.wait()

    thread = threading.Thread(target=run)
    thread.start()
    until(lambda: bool(ids))
    try:
        assert find(ids[0]).pid == ids[0]
    finally:
        ready.set()
        thread.join()


def test_kernel_thread() -> None:
    threads = (pid for pid in range(2, 200) if Path(f"/proc/{pid}/stat").exists())
    pid = next(pid for pid in threads if not Path(f"/proc/{pid}/cmdline").read_bytes())
    with pytest.raises(KernelThread, match="kernel thread"):
        find(pid)


@pytest.mark.parametrize("pid", [0, -1, PID_LIMIT + 1, 2**31, 2**64])
def test_numbers_that_are_no_pid(pid: int) -> None:
    with pytest.raises(UsageError):
        find(pid)


def test_pid_of_nobody() -> None:
    with pytest.raises(NoSuchProcess):
        find(PID_LIMIT)


def test_parse_maps() -> None:
    lines = [
        "55d155772000-55d155774000 r--p 00001000 08:01 77     /usr/bin/a name (deleted)\n",
        "7ffe4c1d2000-7ffe4c1f3000 rw-p 00000000 00:00 0                          [stack]\n",
        "7f0000000000-7f0000001000 ---p 00000000 00:00 0 \n",
    ]
    text, stack, hole = parse_maps(lines)
    assert text == Vma(
        0x55D155772000, 0x55D155774000, "r--p", 0x1000, "08:01", 77, "/usr/bin/a name (deleted)"
    )
    assert (stack.name, hole.name) == ("[stack]", "")
    assert find_vma([text, stack, hole], 0x7FFE4C1F2FFF) is stack
    assert find_vma([text, stack, hole], 0x7FFE4C1F3000) is None
    unnamed = Vma(stack.start, stack.end, "rw-p", 0, "00:00", 0, "", vm_flags=3)
    assert named(unnamed, [text, stack]).name == "[stack]"
    assert named(unnamed, [text]).name == ""


def address_of(buffer: mmap.mmap) -> int:
    from ptscope._core import ffi

    return int(ffi.cast("uintptr_t", ffi.from_buffer(buffer)))


def test_pagemap_of_our_own_memory() -> None:
    size = mmap.PAGESIZE
    with mmap.mmap(-1, 4 * size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        start = address_of(memory)
        memory[0] = 1
        assert memory[size] == 0
        written, read, untouched = PagemapSource().walk(
            "self", [start + 5, start + size, start + 2 * size]
        )
    assert written.leaf is not None
    assert read.leaf is not None
    assert untouched.leaf is not None
    assert (written.leaf.page.present, written.leaf.page_size) == (True, size)
    assert (untouched.leaf.page.present, untouched.leaf.page.frame) == (False, None)
    assert written.vma is not None
    assert written.vma.permissions == "rw-p"
    frame = written.leaf.page.frame
    assert frame is not None
    assert frame > 0
    # The page that was only read is the shared page of zeros.
    assert read.leaf.page.frame is not None
    zero = Frame.read(read.leaf.page.frame)
    assert zero is not None
    assert zero.kind == "zero page"


def test_huge_page_sizes() -> None:
    size = 4 << 20
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        memory[0] = 1
        start = address_of(memory)
        vma = find_vma(read_maps(Path("/proc/self")), start)
        assert vma is not None
        sizes = read_sizes(Path("/proc/self"), vma)
        assert sizes is not None
        assert (sizes.kernel_page, sizes.pmd_mapped) == (mmap.PAGESIZE, 0)
        assert sizes.resident >= mmap.PAGESIZE
    assert read_sizes(Path("/proc/self"), vma) is None


@pytest.mark.parametrize(
    "address",
    [1 << 56, 1 << 63, 0xFFFF_FFFF_FFFF_F000, 0xFFFF_FFFF_FFFF_FFFF, 0x00FF_FFFF_FFFF_F000],
)
def test_address_beyond_pagemap(address: int) -> None:
    with pytest.raises(UsageError, match="beyond the user half"):
        PagemapSource().walk("self", [address])


def test_pagemap_has_no_kernel_half() -> None:
    with pytest.raises(Unsupported):
        PagemapSource().walk("kernel", [0xFFFF_FFFF_8100_0000])


def test_frames_are_visible_to_root_and_hidden_from_others() -> None:
    assert frames_visible()
    code = "from ptscope.source.pagemap import frames_visible; print(frames_visible())"
    without = subprocess.run(
        [
            "setpriv",
            "--bounding-set=-sys_admin",
            "--inh-caps=-sys_admin",
            sys.executable,
            "-c",
            code,
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert without.stdout == "False\n"


@pytest.mark.parametrize(
    ("flags", "kind"),
    [
        (("nopage",), "device"),
        (("zero-page", "thp", "anon"), "zero page"),
        (("ksm", "anon", "mmap"), "ksm"),
        (("hugetlb", "anon"), "hugetlb"),
        (("anon", "swapbacked", "lru"), "anonymous"),
        (("uptodate", "lru", "mmap"), "file"),
        (("reserved",), "reserved"),
        ((), "other"),
    ],
)
def test_frame_kinds(flags: tuple[str, ...], kind: str) -> None:
    frame = Frame(7, sum(1 << BITS[name] for name in flags), 1)
    assert frame.kind == kind
    assert set(frame.words) == set(flags)


def test_frame_beyond_all_memory_is_a_device(tmp_path: Path) -> None:
    frame = Frame.read((1 << 52) - 1 >> 12)
    assert frame is not None
    assert (frame.kind, frame.map_count) == ("device", None)
    assert Frame.read(1, tmp_path) is None
