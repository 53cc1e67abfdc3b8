# SPDX-License-Identifier: GPL-2.0-or-later
"""Walking leaves no trace: nothing changes in the target, nothing is kept, nothing leaks."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import signal
import subprocess
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import command
import pytest
import rawfiles
import witness
from puppet import Puppet

PAGE = witness.PAGE
HUGE = witness.HUGE
MIB = 1 << 20
CLONE_NEWPID = 0x20000000
MODULE = "/lib/ptscope/ptscope.ko"
LIBC = ctypes.CDLL(None, use_errno=True)

Eventually = Callable[[Callable[[], bool], str], None]
MANY_PAGES = 2048
TRIES = 5

pytestmark = pytest.mark.any_variant


@pytest.fixture
def large(puppet: Puppet) -> Puppet:
    """A puppet whose dump takes several batches of the smallest size."""
    small_pages(puppet)
    return puppet


def small_pages(puppet: Puppet) -> None:
    """Many entries: newer kernels align what is mapped, so that it may have huge pages."""
    address = puppet.map(MANY_PAGES * PAGE)
    puppet.advise(address, MANY_PAGES * PAGE, "nohugepage")
    puppet.touch("write", address, MANY_PAGES)


def user_last() -> int:
    return int(rawfiles.layout()["runtime.user_last"], 16)


def soft_dirty_bits(pid: int) -> list[tuple[int, bool]]:
    return [
        (vma.start + i * PAGE, page.soft_dirty)
        for vma in witness.vmas(pid)
        for i, page in enumerate(witness.pagemap(pid, vma.start, (vma.end - vma.start) // PAGE))
        if page.present
    ]


Entries = list[tuple[int, str, tuple[int, ...]]]
"""Address, level, and raw entries of each record of a dump."""


@dataclass(frozen=True)
class State:
    """What must not change: the kernel's figures, soft-dirty bits, and every entry of the dump."""

    figures: list[str]
    status: dict[str, str]
    soft_dirty: list[tuple[int, bool]]
    entries: Entries

    @property
    def not_of_ageing(self) -> State:
        """All that stays when the kernel, looking for memory to reclaim, clears accessed bits."""
        figures = [figure for figure in self.figures if not figure.startswith("Referenced")]
        entries = [
            (address, level, tuple(raw & ~accessed_bit() for raw in raws))
            for address, level, raws in self.entries
        ]
        return replace(self, figures=figures, entries=entries)


def accessed_bit() -> int:
    return 1 << int(rawfiles.layout()["bit.accessed"])


def state_of(pid: int) -> State:
    figures = re.findall(
        r"^(?:Rss|Pss|Referenced|Private_Dirty|Shared_Dirty|Private_Clean|Anonymous|AnonHugePages"
        r"|Swap): .*$",
        Path(f"/proc/{pid}/smaps").read_text(), re.MULTILINE)
    status = witness.status(pid)
    return State(
        figures=figures,
        status={key: status[key] for key in ("VmRSS", "VmPTE", "VmSwap", "VmSize", "VmLck")},
        soft_dirty=soft_dirty_bits(pid),
        entries=raw_entries(pid),
    )


def raw_entries(pid: int) -> Entries:
    return [
        (record.address, record.level, record.entries)
        for batch in rawfiles.dump(pid, [(0, user_last())])
        for record in batch.records if isinstance(record, rawfiles.Table)
    ]


def newly_accessed(before: Entries, after: Entries) -> list[str]:
    """Places whose accessed bit is set now and was not, in dumps that are otherwise equal."""
    return [
        f"{level} {address:#x} + {i}"
        for (address, level, old), (_, _, new) in zip(before, after, strict=True)
        for i in range(len(old)) if new[i] & ~old[i] & accessed_bit()
    ]


@contextlib.contextmanager
def stopped(pid: int, eventually: Eventually) -> Iterator[None]:
    """Nothing of a process runs: after an answer, it still has to come to its next read()."""
    os.kill(pid, signal.SIGSTOP)
    try:
        eventually(lambda: witness.status(pid)["State"].startswith("T"), "the process has stopped")
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_nothing_changes_in_the_target(
    puppet: Puppet, swap: None, eventually: Eventually
) -> None:
    """In no try anything but what ageing clears, in one of them not even that.

    kswapd is woken for want of a huge page, too, and clears accessed bits when it likes; nobody
    sets one of a process that does not run. A walk that clears them does so in each try.
    """
    address = puppet.map(64 * PAGE)
    puppet.touch("write", address, 32)
    puppet.touch("read", address + 40 * PAGE, 8)
    puppet.advise(address + 8 * PAGE, 4 * PAGE, "pageout")
    puppet.protect(address + 16 * PAGE, PAGE, "none")
    huge = puppet.map(HUGE, align=HUGE)
    puppet.advise(huge, HUGE, "hugepage")
    puppet.touch("write", huge)
    hugetlb = puppet.map(HUGE, huge=HUGE.bit_length() - 1)
    puppet.touch("write", hugetlb)
    for what in "14":  # accessed bits, soft-dirty bits
        Path(f"/proc/{puppet.pid}/clear_refs").write_text(what)
    puppet.touch("write", address, 2)
    places = [address + i * PAGE for i in range(64)] + [huge, hugetlb, 0x1000, witness.nowhere()]

    with stopped(puppet.pid, eventually):
        before = state_of(puppet.pid)
        if rawfiles.has("bit.soft_dirty"):
            assert {True, False} == {is_dirty for _, is_dirty in before.soft_dirty}, (
                "clear_refs did not take the soft-dirty bits away")
        for _ in range(TRIES):
            before = state_of(puppet.pid)
            ptes = [raw for _, level, raws in before.entries if level == "pte"
                    for raw in raws if raw & 1]
            assert {bool(raw & accessed_bit()) for raw in ptes} == {True, False}
            walk_all(puppet.pid, places, huge)
            after = state_of(puppet.pid)
            assert after.not_of_ageing == before.not_of_ageing
            assert newly_accessed(before.entries, after.entries) == []
            if after == before:
                return
    pytest.fail(f"accessed bits were cleared in each of {TRIES} tries")


def walk_all(pid: int, places: list[int], huge: int) -> None:
    for place in places:
        rawfiles.walk(pid, place)
    ranges = [(place, place) for place in sorted(places)]
    rawfiles.dump(pid, ranges, rawfiles.WITH_VMAS | rawfiles.WITH_USER_PGD)
    rawfiles.dump(pid, [(0, user_last())], rawfiles.WITH_VMAS, rawfiles.MIN_READ)
    command.walk(pid, huge)


def test_nothing_is_kept_open() -> None:
    def open_files() -> list[str]:
        # the descriptor that lists the directory is gone when it is looked at
        return sorted(str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir()
                      if entry.is_symlink())

    command.walk("self", 0x1000)
    before = open_files()
    for _ in range(5):
        command.walk("self", 0x1000)
        command.ptscope("walk", 4194303, "0x1000")
    assert open_files() == before


def test_stats_count_what_was_done(puppet: Puppet) -> None:
    address = puppet.map(PAGE)
    puppet.touch("write", address)
    before = rawfiles.stats()
    rawfiles.walk(puppet.pid, address)
    batches = rawfiles.dump(puppet.pid, [(address, address)])
    gained = {key: value - before[key] for key, value in rawfiles.stats().items()}
    assert list(gained) == ["walks", "dumps", "batches", "write_lock_batches", "kernel_retries",
                            "entries", "longest_lock_ns", "map_pages"]
    assert (gained["walks"], gained["dumps"]) == (1, 1)
    assert gained["batches"] == 1 + len(batches)
    # the text walk asks for the user copy of the root too
    assert gained["entries"] == 2 * witness.levels() + witness.pti()
    assert rawfiles.stats()["longest_lock_ns"] > 0


def test_killed_target_is_freed_while_its_dump_is_open(
    puppet: Puppet, eventually: Eventually
) -> None:
    size = 256 * MIB
    address = puppet.map(size)
    puppet.touch("write", address, size // PAGE)
    small_pages(puppet)
    with rawfiles.opened("dump") as fd:
        os.write(fd, rawfiles.request(puppet.pid, [(0, user_last())]))
        first = rawfiles.parse(os.read(fd, rawfiles.MIN_READ))
        assert not any(isinstance(record, rawfiles.End) for record in first.records)
        used = witness.free_kb()
        os.kill(puppet.pid, signal.SIGKILL)
        puppet.wait()
        # of what is freed, tens of MiB wait on the CPUs' own lists and do not count as free
        eventually(lambda: witness.free_kb() > used + size // 2 // 1024,
                   "the killed process's memory is free although its dump file is open")
        last = rawfiles.parse(os.read(fd, rawfiles.MAX_READ))
        (end,) = last.records
        assert isinstance(end, rawfiles.End)
        assert end.status == "exited"
        assert os.read(fd, rawfiles.MAX_READ) == b""


def test_exit_and_zombie_in_the_middle_of_a_dump(large: Puppet) -> None:
    child = large.fork()
    with rawfiles.opened("dump") as fd:
        os.write(fd, rawfiles.request(child.pid, [(0, user_last())]))
        batch = rawfiles.parse(os.read(fd, rawfiles.MIN_READ))
        child.exit_to_zombie()
        (end,) = rawfiles.parse(os.read(fd, rawfiles.MIN_READ)).records
    assert isinstance(end, rawfiles.End)
    assert end.status == "exited"
    last = next(r for r in reversed(batch.records) if isinstance(r, rawfiles.Table))
    assert end.address >= last.address > 0


def test_exec_in_the_middle_of_a_dump(large: Puppet) -> None:
    with rawfiles.opened("dump") as fd:
        os.write(fd, rawfiles.request(large.pid, [(0, user_last())]))
        os.read(fd, rawfiles.MIN_READ)
        large.exec()
        (end,) = rawfiles.parse(os.read(fd, rawfiles.MIN_READ)).records
    assert isinstance(end, rawfiles.End)
    assert end.status == "execed"
    # the new image is walked by a new request
    text = large.where("text")
    assert rawfiles.walk(large.pid, text).entries[-1].level == "pte"


def test_leader_exits_in_the_middle_of_a_dump(large: Puppet) -> None:
    """The address space lives on with the thread, so the dump goes on."""
    with rawfiles.opened("dump") as fd:
        os.write(fd, rawfiles.request(large.pid, [(0, user_last())]))
        os.read(fd, rawfiles.MIN_READ)
        large.leader_exit()
        *_, last = rawfiles.read_batches(fd)
    assert isinstance(last.records[-1], rawfiles.End)
    assert last.records[-1].status == "done"


def test_many_walks_do_not_hold_the_address_space(eventually: Eventually) -> None:
    """mm_users comes back: were it kept, this would eat 192 MiB."""
    size = 16 * MIB
    free = witness.free_kb()
    for _ in range(12):
        with Puppet() as puppet:
            address = puppet.map(size)
            puppet.touch("write", address, size // PAGE)
            for _ in range(5):
                rawfiles.walk(puppet.pid, address)
                rawfiles.dump(puppet.pid, [(address, address + size - 1)])
            command.walk(puppet.pid, address)
    eventually(lambda: witness.free_kb() > free - 96 * MIB // 1024,
               "the memory of processes that have ended is free")


def rmmod() -> subprocess.CompletedProcess[str]:
    return subprocess.run(["rmmod", "ptscope"], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ["walk", "dump", "stats", "layout"])
def test_module_stays_while_a_file_is_open(name: str) -> None:
    with rawfiles.opened(name):
        refused = rmmod()
        assert refused.returncode != 0
        assert re.search("in use|busy|unavailable", refused.stderr), refused.stderr
        assert Path("/sys/module/ptscope").exists()


def test_module_can_be_unloaded_and_loaded_again(puppet: Puppet) -> None:
    address = puppet.map(PAGE)
    puppet.touch("write", address)
    before = rawfiles.walk(puppet.pid, address)
    try:
        assert rmmod().returncode == 0
        assert not rawfiles.FILES.exists()
        result = command.ptscope("walk", puppet.pid, hex(address), "--source", "module")
        assert result.status == 5
        assert "not loaded" in result.err
        assert "insmod" in result.err
    finally:
        subprocess.run(["insmod", MODULE], check=True)
    assert rawfiles.stats()["walks"] == 0
    assert rawfiles.walk(puppet.pid, address).entries == before.entries


def in_pid_namespace(action: Callable[[], None]) -> str:
    """Run an action as process 1 of a new PID namespace; its traceback, empty when all was well."""
    read_end, write_end = os.pipe()
    middle = os.fork()
    if not middle:
        try:
            if LIBC.unshare(CLONE_NEWPID):
                os.write(write_end, b"unshare failed")
                os._exit(1)
            inner = os.fork()
            if not inner:
                try:
                    action()
                except BaseException:
                    os.write(write_end, traceback.format_exc().encode())
                os._exit(0)
            os.waitpid(inner, 0)
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        text = pipe.read().decode()
    os.waitpid(middle, 0)
    return text


def test_pid_means_the_process_of_the_caller_s_namespace(puppet: Puppet) -> None:
    outside = puppet.pid

    def inside() -> None:
        assert os.getpid() == 1
        address = rawfiles.vma_of_own_stack()
        walk = rawfiles.walk(1, address)
        assert (walk.pid, walk.entries) == (1, rawfiles.walk("self", address).entries)
        with pytest.raises(OSError) as error:
            rawfiles.walk(outside, address)
        assert error.value.errno == errno.ESRCH
        with pytest.raises(OSError) as error:
            rawfiles.dump(outside, [(address, address)])
        assert error.value.errno == errno.ESRCH

    assert in_pid_namespace(inside) == ""
    assert rawfiles.walk(1, 0x1000).comm != walk_comm_of_self()


def walk_comm_of_self() -> str | None:
    return rawfiles.walk("self", 0x1000).comm
