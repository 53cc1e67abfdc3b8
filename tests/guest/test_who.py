# SPDX-License-Identifier: GPL-2.0-or-later
"""Who maps a frame: against the pagemaps of all processes, and in each way a page can be shared."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import witness
from command import ptscope, run
from own import Own
from puppet import Commands, Puppet

pytestmark = pytest.mark.any_variant

PAGE = witness.PAGE
HUGE = witness.HUGE
KSM = Path("/sys/kernel/mm/ksm")
CLONE_VM = 0x100


def who(*words: object) -> Any:
    """The answer of ``ptscope who --json``, which must succeed."""
    result = ptscope("who", *words, "--json")
    assert result.status == 0, (result.out, result.err)
    return result.json


def mappings(answer: Any) -> dict[int, dict[int, Any]]:
    """By PID and address."""
    return {
        process["pid"]: {int(each["address"], 0): each for each in process["mappings"]}
        for process in answer["processes"]
    }


def permissions(mapping: Any) -> str:
    allowed = mapping["effective"]
    return "".join(
        letter if allowed[name] else "-"
        for name, letter in (("read", "r"), ("write", "w"), ("exec", "x"))
    )


def frame_at(process: Commands, address: int) -> int:
    return witness.page(process.pid, address).pfn


def test_one_page_of_three_processes_at_other_addresses(puppet: Puppet) -> None:
    fd = puppet.memfd(4 * PAGE)
    children = [puppet.fork(), puppet.fork()]
    at = {}
    for process, prot, access in zip(
        [puppet, *children], ("rw", "r", "rx"), ("write", "read", "read"), strict=True
    ):
        hole = process.map(64 * PAGE, prot="none")
        address = process.map(4 * PAGE, fd=fd, prot=prot, at=hole + 8 * PAGE, fixed=True)
        process.touch(access, address + 2 * PAGE)
        at[process.pid] = address + 2 * PAGE
    answer = who(hex(frame_at(puppet, at[puppet.pid])))
    found = mappings(answer)
    assert {pid: list(places) for pid, places in found.items()} == {
        pid: [address] for pid, address in at.items()
    }
    assert [permissions(found[pid][at[pid]]) for pid in at] == ["rw-", "r--", "r-x"]
    for pid, address in at.items():
        vma = found[pid][address]["vma"]
        assert int(vma["start"], 0) == address - 2 * PAGE
        assert vma["name"].startswith("/memfd:")
        assert found[pid][address]["pagemap_agrees"] is True
    assert answer["mappings_found"] == answer["mappings_counted"] == 3
    assert answer["frame"]["kind"] == "file"
    assert answer["looked_at"]["all"] is True


def test_a_page_before_and_after_copy_on_write(puppet: Puppet) -> None:
    address = puppet.map(PAGE)
    puppet.touch("write", address)
    child = puppet.fork()
    child.touch("read", address)
    before = who(puppet.pid, hex(address))
    found = mappings(before)
    assert set(found) == {puppet.pid, child.pid}
    assert {permissions(places[address]) for places in found.values()} == {"r--"}
    assert before["mappings_counted"] == 2
    child.touch("write", address)
    assert set(mappings(who(before["pfn"]))) == {puppet.pid}
    after = mappings(who(child.pid, hex(address)))
    assert set(after) == {child.pid}
    assert permissions(after[child.pid][address]) == "rw-"


def test_a_small_part_of_a_transparent_huge_page(puppet: Puppet) -> None:
    huge = puppet.map(2 * HUGE, align=HUGE)
    puppet.advise(huge, 2 * HUGE, "hugepage")
    puppet.touch("write", huge)
    address = huge + 5 * PAGE
    assert witness.smaps(puppet.pid, huge)["AnonHugePages"] == HUGE >> 10
    answer = who(hex(frame_at(puppet, address)))
    (mapping,) = mappings(answer)[puppet.pid].values()
    assert int(mapping["address"], 0) == address
    assert (mapping["level"], mapping["page_size"]) == ("pmd", HUGE)
    assert answer["mappings_found"] == answer["mappings_counted"] == 1


def test_a_hugetlb_page_of_two_processes(puppet: Puppet) -> None:
    address = puppet.map(HUGE, kind="shared", huge=HUGE.bit_length() - 1)
    puppet.touch("write", address)
    child = puppet.fork()
    child.touch("read", address)
    answer = who(puppet.pid, hex(address + 3 * PAGE))
    found = mappings(answer)
    assert set(found) == {puppet.pid, child.pid}
    for places in found.values():
        (mapping,) = places.values()
        assert int(mapping["address"], 0) == address + 3 * PAGE
        assert mapping["page_size"] == HUGE
        assert mapping["pagemap_agrees"] is True
    assert answer["frame"]["kind"] == "hugetlb"


def test_the_zero_page_is_mapped_many_times(puppet: Puppet) -> None:
    address = puppet.map(700 * PAGE)
    puppet.advise(address, 700 * PAGE, "nohugepage")
    puppet.touch("read", address, 700)
    answer = who(puppet.pid, hex(address + 9 * PAGE))
    assert answer["frame"]["kind"] == "zero page"
    assert answer["mappings_counted"] is None
    places = mappings(answer)[puppet.pid]
    covered = {
        start + i * place["stride"] for start, place in places.items()
        for i in range(place["count"])
    }  # fmt: skip
    assert covered >= {address + i * PAGE for i in range(700)}
    assert len(places) < 20, "equal neighbours are one place"


@pytest.fixture
def ksm() -> Iterator[None]:
    if not KSM.is_dir():
        pytest.skip("this kernel has no KSM")
    (KSM / "pages_to_scan").write_text("1000")
    (KSM / "run").write_text("1")
    yield
    (KSM / "run").write_text("2")
    (KSM / "run").write_text("0")


def test_pages_that_were_merged(
    puppet: Puppet, ksm: None, eventually: Callable[[Callable[[], bool], str], None]
) -> None:
    address = puppet.map(8 * PAGE)
    puppet.advise(address, 8 * PAGE, "nohugepage")
    puppet.advise(address, 8 * PAGE, "mergeable")
    for i in (1, 4):
        puppet.store(address + i * PAGE, b"the same" * 512)

    def merged() -> bool:
        return frame_at(puppet, address + PAGE) == frame_at(puppet, address + 4 * PAGE)

    eventually(merged, "KSM merges two equal pages")
    answer = who(puppet.pid, hex(address + PAGE))
    assert answer["frame"]["kind"] == "ksm"
    places = mappings(answer)[puppet.pid]
    assert set(places) == {address + PAGE, address + 4 * PAGE}
    assert {permissions(place) for place in places.values()} == {"r--"}


def test_a_page_that_its_owner_may_not_touch(puppet: Puppet) -> None:
    address = puppet.map(PAGE)
    puppet.touch("write", address)
    pfn = frame_at(puppet, address)
    puppet.protect(address, PAGE, "none")
    (mapping,) = mappings(who(hex(pfn)))[puppet.pid].values()
    assert (mapping["state"], permissions(mapping)) == ("protnone", "---")
    assert mapping["mapped"] is True


def everybody(pfn: int) -> dict[int, set[int]]:
    """Who maps a frame by the pagemaps of all processes, page by page."""
    found: dict[int, set[int]] = {}
    for path in Path("/proc").iterdir():
        if not path.name.isdecimal():
            continue
        pid = int(path.name)
        for vma in witness.vmas(pid):
            pages = witness.pagemap(pid, vma.start, (vma.end - vma.start) // PAGE)
            for i, each in enumerate(pages):
                if each.present and each.pfn == pfn:
                    found.setdefault(pid, set()).add(vma.start + i * PAGE)
    return found


@pytest.fixture
def other_python() -> Iterator[int]:
    """Another process with the same libraries."""
    with subprocess.Popen(
        [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"],
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


def test_a_page_of_libc_in_all_processes_that_have_it(other_python: int) -> None:
    libc = next(
        vma for vma in witness.vmas("self") if "/libc.so" in vma.name and "x" in vma.permissions
    )
    shared = None
    for address in range(libc.start, libc.end, PAGE):
        mine, theirs = witness.page("self", address), None
        if mine.present:
            theirs = everybody(mine.pfn)
            if len(theirs) > 1:
                shared = (mine.pfn, theirs)
                break
    assert shared is not None, "no page of libc is mapped by two processes"
    pfn, want = shared
    assert other_python in want
    answer = who(hex(pfn))
    found = mappings(answer)
    assert {pid: set(places) for pid, places in found.items()} == want
    assert answer["mappings_counted"] == sum(len(places) for places in want.values())
    for places in found.values():
        for place in places.values():
            assert (permissions(place), place["vma"]["permissions"]) == ("r-x", "r-xp")


def test_without_the_module_the_same_is_found(puppet: Puppet) -> None:
    fd = puppet.memfd(PAGE)
    address = puppet.map(PAGE, fd=fd)
    puppet.touch("write", address)
    child = puppet.fork()
    child.touch("read", address)
    pids = [word for each in (puppet, child) for word in ("--pid", each.pid)]
    by_tables = who(puppet.pid, hex(address), *pids)
    by_leaves = who(puppet.pid, hex(address), *pids, "--source", "pagemap")
    assert mappings(by_tables).keys() == mappings(by_leaves).keys() == {puppet.pid, child.pid}
    for places in mappings(by_leaves).values():
        assert list(places) == [address]
    assert by_leaves["mappings_found"] == by_leaves["mappings_counted"] == 2
    assert by_leaves["looked_at"]["all"] is False


def test_processes_that_share_an_address_space_are_one(own: Own) -> None:
    """clone(CLONE_VM) without CLONE_THREAD, as vfork() does."""
    address = own.map(PAGE)
    own.touch("write", address)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.clone.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    stack = own.map(64 * PAGE)
    pause = ctypes.cast(libc.pause, ctypes.c_void_p)
    sharer = libc.clone(pause, stack + 64 * PAGE, CLONE_VM | signal.SIGCHLD, None)
    assert sharer > 0
    try:
        answer = who(os.getpid(), hex(address))
    finally:
        os.kill(sharer, signal.SIGKILL)
        os.waitpid(sharer, 0)
    (process,) = answer["processes"]
    assert process["pid"] == os.getpid()
    assert [each["pid"] for each in process["sharing"]] == [sharer]
    assert answer["mappings_found"] == answer["mappings_counted"] == 1


def test_the_kernel_half_has_the_frame_too(puppet: Puppet) -> None:
    """The linear map has all of RAM."""
    address = puppet.map(PAGE)
    puppet.touch("write", address)
    answer = who(puppet.pid, hex(address), "--pid", puppet.pid, "--kernel")
    assert any(each["effective"]["write"] for each in answer["kernel_half"])
    for each in answer["kernel_half"]:
        assert not each["effective"]["user"]


@pytest.mark.any_machine
def test_a_frame_that_nobody_maps(puppet: Puppet) -> None:
    address = puppet.map(PAGE)
    puppet.touch("write", address)
    answer = who(puppet.pid, hex(address))
    table = int(mappings(answer)[puppet.pid][address]["entry_pa"], 0) // PAGE
    nobody = who(table)
    assert nobody["processes"] == []
    assert nobody["mappings_found"] == 0


@pytest.mark.any_machine
def test_an_address_without_a_page(puppet: Puppet) -> None:
    address = puppet.map(PAGE)
    answer = who(puppet.pid, hex(address))
    assert (answer["pfn"], answer["processes"]) == (None, [])
    assert "nobody else can map it" in ptscope("who", puppet.pid, hex(address)).out


@pytest.mark.any_machine
def test_for_people(puppet: Puppet) -> None:
    address = puppet.map(PAGE)
    puppet.touch("write", address)
    result = run("who", puppet.pid, hex(address))
    assert result.status == 0, result.err
    (row,) = (line.split() for line in result.out.splitlines() if hex(address) in line)
    assert row[:4] == [str(puppet.pid), "puppet", hex(address), "rw-"]
    assert "1 of 1 mapping" in result.out


@pytest.mark.any_machine
@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("0x1", "0x2", "0x3"), 2),
        (("nonsense",), 2),
        ((hex(1 << 60),), 2),
        (("4194304", "0x1000"), 3),
        (("0x1", "--pid", "2"), 3),
    ],
)
def test_wrong_words(words: tuple[str, ...], status: int) -> None:
    result = ptscope("who", *words)
    assert result.status == status, (result.out, result.err)
    assert result.err.startswith("ptscope: ")
