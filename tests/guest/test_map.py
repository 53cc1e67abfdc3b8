# SPDX-License-Identifier: GPL-2.0-or-later
"""`ptscope map` against smaps, statm and VmPTE, of processes that hold still and that do not."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import command
import pytest
import rawfiles
import witness
from ptscope.source.stream import ModuleStream, open_stream
from puppet import Puppet

PAGE = witness.PAGE
HUGE = witness.HUGE
KB = 1024
# One program that never holds still: it maps, writes and unmaps as fast as it can.
RESTLESS = """
import mmap, os
print(os.getpid(), flush=True)
while True:
    with mmap.mmap(-1, 64 * mmap.PAGESIZE) as area:
        for page in range(64):
            area[page * mmap.PAGESIZE] = 1
"""


def mapped(target: object, *options: str, status: int = 0) -> dict[str, Any]:
    """The JSON of a map that must end with that status."""
    result = command.ptscope("map", target, "--json", *options)
    assert result.status == status, result.out or result.err
    answer = result.json
    assert isinstance(answer, dict)
    return answer


def at(answer: dict[str, Any], address: int) -> dict[str, Any]:
    """The VMA of an address."""
    for vma in answer["vmas"]:
        if int(vma["start"], 16) <= address < int(vma["end"], 16):
            assert isinstance(vma, dict)
            return vma
    raise AssertionError(f"no VMA at {address:#x}")


def test_every_vma_is_what_smaps_says(furnished: Puppet) -> None:
    answer = mapped(furnished.pid)
    vmas = witness.vmas(furnished.pid)
    assert [(int(vma["start"], 16), int(vma["end"], 16)) for vma in answer["vmas"]] == [
        (vma.start, vma.end) for vma in vmas]
    total = 0
    for ours, vma in zip(answer["vmas"], vmas, strict=True):
        figures = witness.smaps(furnished.pid, vma.start)
        assert ours["name"] == vma.name
        assert ours["permissions"] == vma.permissions
        if ours["not_huge_because"] == "hugetlb":
            assert ours["resident"] == KB * (
                figures["Private_Hugetlb"] + figures["Shared_Hugetlb"])
            continue
        assert ours["resident"] == KB * figures["Rss"], vma
        assert ours["pmd_mapped"] == KB * figures["AnonHugePages"], vma
        if "/dev/zero" not in vma.name:
            assert ours["swap"] == KB * figures["Swap"], vma
        total += ours["resident"]
    compared = answer["compared"]
    assert compared == {
        "vmas": len(vmas), "vmpte": "equal", "statm": compared["statm"], "changed": [],
        "findings": []}
    assert compared["statm"] in ("equal", "close")
    assert total <= answer["total"]["resident"]


def test_sizes_swap_and_permissions(furnished: Puppet) -> None:
    total = mapped(furnished.pid)["total"]
    assert total["by_size"][str(HUGE)] == 4 * HUGE
    assert total["pmd_mapped"] == 4 * HUGE
    # what pageout leaves depends on the kernel; every second of eight pages was there
    assert 0 < total["swap"] <= 4 * PAGE
    # every second of the four pages without permission
    assert total["not_present"] == 2 * PAGE
    assert total["mapped"] == sum(total["by_size"].values())
    # the zero page is special
    assert total["special"] >= 16 * PAGE
    assert 0 < total["executable"] < total["mapped"]
    assert sum(run["bytes"] for run in total["runs"]) == total["mapped"] - total["special"]
    # each huge page is a run, or part of a longer one
    long = [run for run in total["runs"] if run["pages"] >= witness.ENTRIES]
    assert sum(run["bytes"] for run in long) >= 4 * HUGE


def test_tables_are_vmpte(furnished: Puppet) -> None:
    answer = mapped(furnished.pid)
    tables = answer["page_tables"]
    kib = witness.status_kb(furnished.pid, "VmPTE")
    assert tables["expected_vmpte"] == answer["counters"]["vmpte"] == kib * KB
    assert tables["kept_beside_huge_pages"] == 2 * PAGE
    assert set(tables["by_level"]) == set(witness.level_names()[1:])
    assert tables["all"] == tables["root"] + sum(tables["by_level"].values()) + 2 * PAGE
    counted = sum(
        count for vma in answer["vmas"] for count in vma["tables"].values())
    assert counted * PAGE == sum(tables["by_level"].values())


@pytest.mark.any_variant
def test_the_huge_zero_page_is_not_resident(puppet: Puppet) -> None:
    address = puppet.map(2 * HUGE, align=HUGE)
    puppet.advise(address, 2 * HUGE, "hugepage")
    puppet.touch("read", address, 2, HUGE)
    if not witness.kpageflags(witness.page(puppet.pid, address).pfn) >> witness.KPF_THP & 1:
        pytest.fail("the kernel did not map the huge zero page")
    vma = at(mapped(puppet.pid), address)
    assert (vma["huge_zero"], vma["mapped"], vma["resident"]) == (2 * HUGE, 2 * HUGE, 0)
    puppet.touch("write", address)
    answer = mapped(puppet.pid)
    vma = at(answer, address)
    # up to 6.12 a write splits it, and only one page is copied (do_huge_pmd_wp_page())
    assert vma["resident"] in (PAGE, HUGE)
    assert vma["resident"] == KB * witness.smaps(puppet.pid, address)["Rss"]
    assert (vma["huge_zero"], vma["mapped"]) == (HUGE, 2 * HUGE)
    assert answer["compared"]["vmpte"] == "equal"


@pytest.mark.any_variant
def test_what_could_be_huge(puppet: Puppet) -> None:
    """Aligned ranges with pages; not where madvise forbids it, and not what is huge."""
    address = puppet.map(4 * HUGE, align=HUGE)
    puppet.advise(address, 4 * HUGE, "nohugepage")
    puppet.touch("write", address, 2, HUGE)
    vma = at(mapped(puppet.pid), address)
    assert (vma["could_be_huge"], vma["not_huge_because"]) == (0, "nohugepage")
    puppet.advise(address, 4 * HUGE, "hugepage")
    puppet.touch("write", address + 3 * HUGE)
    vma = at(mapped(puppet.pid), address)
    assert (vma["could_be_huge"], vma["not_huge_because"]) == (2 * HUGE, None)
    assert vma["by_size"] == {str(PAGE): 2 * PAGE, str(HUGE): HUGE}
    shared = puppet.map(2 * HUGE, kind="shared", align=HUGE)
    puppet.touch("write", shared)
    vma = at(mapped(puppet.pid), shared)
    assert (vma["could_be_huge"], vma["not_huge_because"]) == (HUGE, None)
    code = at(mapped(puppet.pid), puppet.where("text"))
    assert (code["could_be_huge"], code["not_huge_because"]) == (0, "file")


class Liar:
    """A stream of which one PTE table, the last one, has one page less or more."""

    def __init__(self, stream: ModuleStream, address: int) -> None:
        self._stream = stream
        self._address = address

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def __enter__(self) -> Liar:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.__exit__(None, None, None)

    def __iter__(self) -> Iterator[memoryview]:
        for batch in self._stream:
            lied = bytearray(batch)
            view = memoryview(lied)
            self._lie(view)
            yield view

    def _lie(self, view: memoryview) -> None:
        offset = 0
        while offset < len(view):
            kind = int.from_bytes(view[offset : offset + 2], "little")
            size = int.from_bytes(view[offset + 4 : offset + 8], "little")
            if kind == 3:
                start = int.from_bytes(view[offset + 8 : offset + 16], "little")
                level = int.from_bytes(view[offset + 24 : offset + 26], "little")
                count = int.from_bytes(view[offset + 28 : offset + 32], "little")
                index = (self._address - start) // PAGE
                if level == 1 and 0 <= index < count:
                    view[offset + 32 + 8 * index : offset + 40 + 8 * index] = bytes(8)
            offset += size


@pytest.mark.any_machine
def test_a_source_that_lies_is_found_out(
    puppet: Puppet, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = puppet.map(16 * PAGE)
    puppet.touch("write", address, 8)
    def lying(*args: Any, **more: Any) -> Any:
        return Liar(open_stream(*args, **more), address + 3 * PAGE)

    monkeypatch.setattr("ptscope.cli.map.open_stream", lying)
    answer = mapped(puppet.pid, status=1)
    (finding,) = answer["compared"]["findings"]
    assert finding["what"] == "Rss"
    assert finding["kernel"] - finding["entries"] == PAGE
    assert int(finding["start"], 16) <= address < int(finding["end"], 16)
    result = command.ptscope("map", puppet.pid)
    assert result.status == 1
    assert "1 DIFFER" in result.out


@pytest.mark.any_machine
def test_a_process_that_never_holds_still() -> None:
    """Whatever it does meanwhile is a change, never a finding."""
    with subprocess.Popen([sys.executable, "-c", RESTLESS], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            for _ in range(5):
                answer = mapped(process.pid)
                assert answer["compared"]["findings"] == []
        finally:
            process.kill()


@pytest.mark.any_variant
@pytest.mark.parametrize("target", ["self", 1])
def test_other_processes(target: object) -> None:
    answer = mapped(target)
    assert answer["pid"] == (os.getpid() if target == "self" else 1)
    assert answer["total"]["resident"] > 0
    assert answer["compared"]["findings"] == []


@pytest.mark.any_machine
def test_text_and_csv(furnished: Puppet) -> None:
    text = command.ptscope("map", furnished.pid)
    assert text.status == 0, text.err
    lines = text.out.splitlines()
    assert [line for line in lines if len(line) > 80] == []
    assert "PUDs to PTEs are VmPTE exactly" in text.out
    assert any(line.endswith("[stack]") for line in lines)
    answer = mapped(furnished.pid)
    table = command.ptscope("map", furnished.pid, "--csv")
    rows = list(csv.DictReader(io.StringIO(table.out)))
    assert [row["start"] for row in rows] == [vma["start"] for vma in answer["vmas"]]
    assert sum(int(row["mapped"]) for row in rows) == answer["total"]["mapped"]


@pytest.mark.any_variant
def test_without_the_module_there_are_leaves(furnished: Puppet) -> None:
    answer = mapped(furnished.pid, "--source", "pagemap")
    whole = mapped(furnished.pid)
    assert answer["leaves_only"]
    assert answer["page_tables"] is None
    for ours, theirs in zip(answer["vmas"], whole["vmas"], strict=True):
        assert ours["start"] == theirs["start"]
        assert ours["by_size"] == theirs["by_size"] or theirs["not_huge_because"] == "device"
        if ours["not_huge_because"] != "hugetlb":
            assert ours["resident"] == theirs["resident"]


@pytest.mark.any_machine
def test_layout_and_kernel_are_named(puppet: Puppet) -> None:
    answer = mapped(puppet.pid)
    assert answer["kernel"] == os.uname().release
    assert answer["source"] == "module"
    assert answer["layout"] is not None
    assert answer["page_size"] == 1 << int(rawfiles.layout()["page_shift"]) == PAGE


def peak(pid: int) -> int:
    """Peak memory of a `ptscope map` of a process, in bytes."""
    code = (
        "import resource, sys; from ptscope.cli import run; status = run(sys.argv[1:]);"
        "print(status, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "map", str(pid)],
        capture_output=True, text=True, check=True, timeout=300,
    )
    status, kib = done.stderr.split()[-2:]
    assert status == "0", done.stdout + done.stderr
    return int(kib) * KB


@pytest.mark.any_machine
def test_memory_does_not_grow_with_the_process(puppet: Puppet) -> None:
    """4 GiB resident, of 64 MiB of memory that is mapped 64 times."""
    small = peak(puppet.pid)
    length = 64 << 20
    fd = puppet.memfd(length)
    begin = time.monotonic()
    for _ in range(64):
        puppet.map(length, fd=fd, flags="populate")
        # on an emulated CPU this takes long
        if time.monotonic() - begin > 60:
            break
    resident = int(Path(f"/proc/{puppet.pid}/statm").read_text().split()[1]) * PAGE
    large = peak(puppet.pid)
    print(f"{resident >> 20} MiB resident: peak {large >> 10} KiB; small: {small >> 10} KiB")
    assert resident >= 512 << 20
    assert large - small < 4 << 20
