# SPDX-License-Identifier: GPL-2.0-or-later
"""Snapshots of real processes, and what changed between two of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import command
import pytest
import witness
from ptscope.errors import ChangedIdentity, Exited, PtscopeError
from ptscope.snapshot.atomic import Output, whole_file
from ptscope.snapshot.reader import Snapshot
from ptscope.snapshot.take import take
from ptscope.source.module import ModuleSource
from ptscope.target.process import find
from puppet import Puppet

pytestmark = pytest.mark.any_variant

PAGE = witness.PAGE
HUGE = witness.HUGE

# What the hardware and the kernel's search for old pages do to a page at any time.
AT_ANY_TIME = {"accessed since", "accessed bit cleared"}


def dump(pid: object, path: Path, *options: str) -> None:
    result = command.ptscope("dump", pid, "-o", path, *options)
    assert result.status == 0, result.err


def difference(old: Path, new: Path, *options: str) -> tuple[int, list[dict[str, Any]]]:
    result = command.ptscope("diff", old, new, "--json", *options)
    assert result.status in (0, 1), result.err
    return result.status, [json.loads(line) for line in result.out.splitlines()]


def pages_within(
    lines: list[dict[str, Any]], start: int, length: int
) -> dict[int, tuple[str, ...]]:
    """Changed pages by their number from `start` on, without what may happen at any time."""
    found = {}
    for line in lines:
        if line["type"] != "page":
            continue
        address, size = int(line["address"], 16), line["size"]
        words = tuple(word for word in line["changes"] if word not in AT_ANY_TIME)
        if words and start <= address < start + length:
            for page in range(address, address + size, PAGE):
                found[(page - start) // PAGE] = words
    return found


def small(puppet: Puppet, pages: int) -> int:
    """Private memory that is mapped by small pages only."""
    address = puppet.map(pages * PAGE)
    puppet.advise(address, pages * PAGE, "nohugepage")
    return address


def test_pages_that_come_go_and_change(puppet: Puppet, swap: None, tmp_path: Path) -> None:
    """Each page of a few mappings is told, and no other."""
    old, new = tmp_path / "old", tmp_path / "new"
    work = small(puppet, 64)
    puppet.touch("write", work, 32)
    zero = small(puppet, 8)
    puppet.touch("read", zero, 4)  # the zero page, read-only
    out = small(puppet, 8)
    puppet.touch("write", out, 8)
    puppet.advise(out + 4 * PAGE, 4 * PAGE, "pageout")
    assert all(page.swapped for page in witness.pagemap(puppet.pid, out + 4 * PAGE, 4))
    dump(puppet.pid, old)

    puppet.touch("write", work + 40 * PAGE, 3)
    puppet.advise(work, 2 * PAGE, "dontneed")
    puppet.protect(work + 4 * PAGE, 2 * PAGE, "r")
    puppet.protect(work + 8 * PAGE, PAGE, "none")
    puppet.unmap(work + 12 * PAGE, 2 * PAGE)
    puppet.touch("write", zero, 2)
    puppet.advise(out, 2 * PAGE, "pageout")
    assert all(page.swapped for page in witness.pagemap(puppet.pid, out, 2))
    puppet.touch("read", out + 4 * PAGE, 1)
    puppet.touch("write", out + 5 * PAGE, 1)
    dump(puppet.pid, new)

    status, lines = difference(old, new, "--pages")
    assert status == 1
    found = pages_within(lines, work, 64 * PAGE)
    assert {n: words[0] for n, words in found.items()} == {
        0: "page vanished", 1: "page vanished",
        4: "became read-only", 5: "became read-only",
        8: "protection none",
        12: "page vanished", 13: "page vanished",
        40: "page appeared", 41: "page appeared", 42: "page appeared",
    }  # fmt: skip
    found = pages_within(lines, zero, 8 * PAGE)
    assert set(found) == {0, 1}
    for words in found.values():
        assert words[:2] == ("moved frame", "became writable")
    found = pages_within(lines, out, 8 * PAGE)
    # What is read ahead with the page that is asked for comes in as well, or it does not.
    assert {n: found[n][0] for n in (0, 1, 4, 5)} == {
        0: "swapped out", 1: "swapped out", 4: "swapped in", 5: "swapped in"}
    assert {words[0] for n, words in found.items() if n in (6, 7)} <= {"swapped in"}
    assert set(found) <= {0, 1, 4, 5, 6, 7}

    vmas = {int(line["start"], 16): line for line in lines if line["type"] == "vma"}
    assert vmas[work + 4 * PAGE]["changes"][0] == "permissions rw-p became r--p"
    assert vmas[work + 8 * PAGE]["changes"][0] == "permissions rw-p became ---p"
    assert "VMA shrank" in vmas[work + 12 * PAGE]["changes"]
    assert lines[0]["old"]["target"]["pid"] == puppet.pid
    assert lines[0]["frames_compared"] is True

    status, lines = difference(old, old)
    assert (status, [line["type"] for line in lines]) == (0, ["files", "total"])


def test_huge_pages_that_are_split(puppet: Puppet, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    huge = puppet.map(2 * HUGE, align=HUGE)
    puppet.advise(huge, 2 * HUGE, "hugepage")
    puppet.touch("write", huge, 1)
    assert witness.smaps(puppet.pid, huge)["AnonHugePages"] == HUGE // 1024
    dump(puppet.pid, old)
    puppet.protect(huge + 5 * PAGE, PAGE, "r")
    puppet.touch("write", huge + HUGE, 1)
    dump(puppet.pid, new)
    status, lines = difference(old, new, "--pages")
    assert status == 1
    pages = HUGE // PAGE
    found = pages_within(lines, huge, 2 * HUGE)
    assert set(found) == set(range(2 * pages))
    for number in range(pages):
        assert found[number][0] == "split", number
        assert ("became read-only" in found[number]) is (number == 5), number
        assert "moved frame" not in found[number], number
    assert {found[number] for number in range(pages, 2 * pages)} == {("huge page appeared",)}
    # The same as ranges: the huge page that came is one line.
    _, lines = difference(old, new)
    ranges = [line for line in lines if line["type"] == "range"]
    (came,) = [line for line in ranges if line["changes"] == ["huge page appeared"]]
    assert (int(came["start"], 16), came["pages"]) == (huge + HUGE, pages)


def test_small_pages_that_become_huge(puppet: Puppet, tmp_path: Path) -> None:
    if witness.release() < (6, 1):
        pytest.skip("MADV_COLLAPSE is of 6.1")
    old, new = tmp_path / "old", tmp_path / "new"
    area = puppet.map(HUGE, align=HUGE)
    puppet.advise(area, HUGE, "nohugepage")
    puppet.touch("write", area, HUGE // PAGE)
    puppet.advise(area, HUGE, "hugepage")
    dump(puppet.pid, old)
    puppet.advise(area, HUGE, "collapse")
    dump(puppet.pid, new)
    _, lines = difference(old, new, "--pages")
    found = pages_within(lines, area, HUGE)
    assert set(found) == set(range(HUGE // PAGE))
    assert {words[0] for words in found.values()} == {"became huge"}


def test_vmas_that_come_go_grow_and_move(puppet: Puppet, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    gone, moving = small(puppet, 4), small(puppet, 4)
    puppet.protect(gone + PAGE, PAGE, "r")  # so that it is one with nothing else
    puppet.touch("write", moving, 4)
    program_break, _ = puppet.brk()
    dump(puppet.pid, old)
    puppet.unmap(gone, 4 * PAGE)
    puppet.brk(64 * PAGE)
    place = puppet.remap(moving, 4 * PAGE, 4 * PAGE, f"maymove to={1 << 36:#x}")
    dump(puppet.pid, new)
    status, lines = difference(old, new)
    assert status == 1
    told = {int(line["start"], 16): line["changes"] for line in lines if line["type"] == "vma"}
    assert any("VMA vanished" in told.get(gone + i * PAGE, []) or
               "VMA shrank" in told.get(gone + i * PAGE, []) for i in range(4))
    assert "VMA appeared" in told[place]
    assert any(words == ["VMA grew"] or words == ["VMA appeared"]
               for start, words in told.items() if start >= program_break - PAGE)
    moved = [(int(a["start"], 16), int(b["start"], 16)) for a, b in lines[-1]["moved"]]
    assert all(to == place for _, to in moved)


def test_a_walk_in_a_snapshot_is_the_walk_of_then(
    puppet: Puppet, swap: None, tmp_path: Path
) -> None:
    """Of every VMA, of pages beside each other, and of holes; the process stands still."""
    work = small(puppet, 64)
    puppet.touch("write", work, 32, 2 * PAGE)
    puppet.advise(work + 8 * PAGE, 4 * PAGE, "pageout")
    huge = puppet.map(HUGE, align=HUGE)
    puppet.advise(huge, HUGE, "hugepage")
    puppet.touch("write", huge, 1)
    os.kill(puppet.pid, signal.SIGSTOP)
    path = tmp_path / "a.pts"
    dump(puppet.pid, path)
    addresses = [vma.start for vma in witness.vmas(puppet.pid) if vma.name != "[vsyscall]"]
    addresses += [work + page * PAGE for page in range(64)]
    addresses += [huge, huge + 7 * PAGE + 5, huge - PAGE, 0, 1 << 30]
    words = [hex(address) for address in addresses]
    live = command.ptscope("walk", puppet.pid, *words, "--json")
    shown = command.ptscope("show", path, *words, "--json")
    assert (live.status, shown.status) == (0, 0), shown.err
    pairs = list(zip(live.out.splitlines(), shown.out.splitlines(), strict=True))
    assert len(pairs) == len(addresses)
    accessed = 1 << ModuleSource.open().layout.facts["bit.accessed"]
    for one, other in pairs:
        a, b = json.loads(one), json.loads(other)
        assert b["source"] == "snapshot"
        assert b["frame"] is None
        for key in ("address", "pid", "comm", "mapping", "effective", "vma", "kernel"):
            assert a[key] == b[key], (a["address"], key)
        for mine, theirs in zip(a["levels"], b["levels"], strict=True):
            for key in ("level", "index", "folded", "entry_pa"):
                assert mine[key] == theirs[key], (a["address"], key)
            raws = [None if x["raw"] is None else int(x["raw"], 16) & ~accessed
                    for x in (mine, theirs)]
            assert raws[0] == raws[1], a["address"]


def test_show_sums_up_what_the_kernel_counted(puppet: Puppet, tmp_path: Path) -> None:
    work = small(puppet, 200)
    puppet.touch("write", work, 150)
    os.kill(puppet.pid, signal.SIGSTOP)
    path = tmp_path / "a.pts"
    dump(puppet.pid, path)
    result = command.ptscope("show", path)
    assert result.status == 0, result.err
    assert "PUDs to PTEs are VmPTE exactly" in " ".join(result.out.split())
    answer = command.ptscope("show", path, "--json").json
    assert answer["snapshot"]["target"]["pid"] == puppet.pid
    assert answer["compared"]["vmpte"] == "equal"
    told = {int(vma["start"], 16): vma["name"] for vma in answer["vmas"]}
    assert told == {
        v.start: v.name for v in witness.vmas(puppet.pid) if v.name != "[vsyscall]"}


def test_ranges(puppet: Puppet, tmp_path: Path) -> None:
    work = small(puppet, 64)
    puppet.touch("write", work, 64)
    path = tmp_path / "a.pts"
    dump(puppet.pid, path, "--range", f"{work + 8 * PAGE:#x}+{8 * PAGE:#x}",
         "--range", f"{work + 16 * PAGE:#x}-{work + 24 * PAGE:#x}", "--no-vmas")
    with Snapshot.open(str(path)) as snapshot:
        assert snapshot.header.ranges == ((work + 8 * PAGE, work + 24 * PAGE - 1),)
        assert snapshot.trailer.totals.vmas == 0
    assert command.ptscope("show", path, hex(work + 8 * PAGE)).status == 0
    assert command.ptscope("show", path, hex(work)).status == 2
    for text in ("5", "0x10-0x10", "0x20-0x10", "0x10+0", "-5-6", hex(1 << 63) + "+0x1000"):
        assert command.ptscope("dump", puppet.pid, "-o", "x", f"--range={text}").status == 2, text
    assert not Path("x").exists()


def test_the_kernel_half(tmp_path: Path) -> None:
    path = tmp_path / "k.pts"
    text = witness.kernel_text() & -HUGE
    dump("kernel", path, "--range", f"{text:#x}+{4 * HUGE:#x}")
    shown = command.ptscope("show", path, hex(text + 5), "--json").json
    live = command.walk("kernel", text + 5)
    assert shown["levels"] == live["levels"]
    assert (shown["pid"], shown["vma"]) == (None, None)
    assert "kernel half" in command.ptscope("show", path).out
    assert difference(path, path)[0] == 0


@pytest.mark.any_machine
def test_itself(tmp_path: Path) -> None:
    path = tmp_path / "self.pts"
    dump("self", path)
    with Snapshot.open(str(path)) as snapshot:
        assert snapshot.header.target.pid == os.getpid()
        assert any(vma.name == "[stack]" for vma in snapshot.vmas())


@pytest.mark.any_machine
def test_through_a_pipe(puppet: Puppet) -> None:
    done = subprocess.run(
        f"{sys.executable} -m ptscope dump {puppet.pid} -o - | {sys.executable} -m ptscope show -",
        shell=True, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"{puppet.pid} puppet, dumped" in done.stdout
    assert "standard output:" in done.stderr


class _Meanwhile(Output):
    """An output during whose first write something happens to the target."""

    def __init__(self, out: Output, action: Callable[[], object]) -> None:
        self._out = out
        self._action: Callable[[], object] | None = action

    def write(self, data: bytes, /) -> None:
        if self._action is not None:
            action, self._action = self._action, None
            action()
        self._out.write(data)


@pytest.mark.any_machine
@pytest.mark.parametrize(
    ("name", "error"), [("close", Exited), ("exec", ChangedIdentity)]
)
def test_a_target_that_goes_meanwhile_leaves_no_file(
    name: str, error: type[PtscopeError], puppet: Puppet, tmp_path: Path
) -> None:
    process, source = find(puppet.pid), ModuleSource.open()
    with pytest.raises(error), whole_file(tmp_path / "a.pts", replace=False) as out:
        take(source, process, None, True, _Meanwhile(out, getattr(puppet, name)))
    assert error.exit_status == 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.any_machine
def test_no_room(puppet: Puppet, tmp_path: Path) -> None:
    work = small(puppet, 4096)
    puppet.touch("write", work, 4096)
    options = f"size={2 * PAGE}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(tmp_path)], check=True)
    try:
        # With pages of 16K one of them is enough for a snapshot: none is left.
        filler = tmp_path / "filler"
        filler.write_bytes(bytes(2 * PAGE))
        result = command.run("dump", puppet.pid, "-o", tmp_path / "a.pts")
        assert result.status == 74, result
        assert "No space left on device" in result.err
        assert list(tmp_path.iterdir()) == [filler]
        filler.unlink()
        room = os.statvfs(tmp_path)
        assert room.f_bfree == room.f_blocks
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.any_machine
def test_an_existing_file_is_kept(puppet: Puppet, tmp_path: Path) -> None:
    path = tmp_path / "a.pts"
    path.write_bytes(b"mine")
    assert command.ptscope("dump", puppet.pid, "-o", path).status == 2
    assert path.read_bytes() == b"mine"
    dump(puppet.pid, path, "--force")
    assert command.ptscope("show", path).status == 0


@pytest.mark.any_machine
def test_two_processes(puppet: Puppet, tmp_path: Path) -> None:
    """A fork differs in what it has written since, and shares all other frames."""
    old, new = tmp_path / "old", tmp_path / "new"
    work = small(puppet, 16)
    puppet.touch("write", work, 16)
    child = puppet.fork()
    child.touch("write", work + 3 * PAGE, 2)
    dump(puppet.pid, old)
    dump(child.pid, new)
    status, lines = difference(old, new, "--pages")
    assert status == 1
    assert lines[0]["notes"] == ["of two processes: what is at the same address is compared"]
    found = {n: w[0] for n, w in pages_within(lines, work, 16 * PAGE).items()
             if w[0] != "soft-dirty since"}
    assert found == {3: "moved frame", 4: "moved frame"}
    child.exit_to_zombie()
    child.reap()
