# SPDX-License-Identifier: GPL-2.0-or-later
"""``ptscope check`` on real processes: nothing to find, whatever they do, unless somebody lies."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import command
import known
import pytest
import witness
from ptscope.check.invariants import NAMES, of_half
from ptscope.check.process import Checked, Checker
from ptscope.errors import TargetError
from ptscope.source.module import ModuleSource
from ptscope.target.process import find
from puppet import Puppet, PuppetError

PAGE = witness.PAGE
HUGE = witness.HUGE
MIB = 1 << 20
DRIVERS = ("remap", "insert", "fault", *(["huge"] if known.HAS_HUGE else []))
"""All ways in which a driver maps frames."""
HUGETLB = Path(f"/sys/kernel/mm/hugepages/hugepages-{HUGE >> 10}kB/nr_hugepages")


def check(*words: object) -> dict[str, Any]:
    """The answer of a check that must find nothing, or in which all that it found is shown."""
    result = command.ptscope("check", *words, "--json")
    answer = result.json
    found = [row for process in answer.get("processes", ()) for row in process["findings"]]
    assert (result.status, found) == (0, []), answer.get("error")
    assert isinstance(answer, dict)
    return answer


def settled(answer: dict[str, Any]) -> None:
    """Nothing changed meanwhile in a process that does nothing."""
    assert answer["summary"]["changed"] == 0, answer
    assert answer["summary"]["suspects_left"] == 0, answer


@pytest.fixture
def hugetlb_pages() -> Iterator[None]:
    """Some huge pages in the pool."""
    before = HUGETLB.read_text()
    HUGETLB.write_text("8")
    assert int(HUGETLB.read_text()) == 8
    yield
    HUGETLB.write_text(before)


def test_a_process_with_everything(puppet: Puppet, swap: None, hugetlb_pages: None) -> None:
    """Zero page, swap, PROT_NONE, THP, huge zero page, hugetlb, shared memory, device, markers."""
    small = puppet.map(64 * PAGE)
    puppet.touch("write", small, 32)
    puppet.touch("read", small + 40 * PAGE, 8)
    puppet.advise(small + 8 * PAGE, 4 * PAGE, "pageout")
    puppet.protect(small + 16 * PAGE, PAGE, "none")
    for how, prot in (("write", None), ("read", None), ("write", "none")):
        huge = puppet.map(HUGE, align=HUGE)
        puppet.advise(huge, HUGE, "hugepage")
        puppet.touch(how, huge)
        if prot:
            puppet.protect(huge, HUGE, prot)
    hugetlb = puppet.map(2 * HUGE, huge=HUGE.bit_length() - 1)
    puppet.touch("write", hugetlb)
    shared = puppet.map(16 * PAGE, kind="shared")
    puppet.touch("write", shared, 8)
    puppet.map(4 * PAGE, prot="x")
    puppet.stack(MIB)
    device = puppet.known(2 * HUGE // PAGE)
    for kind in DRIVERS:
        for prot in ("rw", "r", "none"):
            address = puppet.map(HUGE + 4 * PAGE, fd=device, kind=kind, prot=prot, align=HUGE)
            if prot != "none":
                puppet.touch("read", address, 4)
                puppet.touch("read", address + HUGE, 4)
        puppet.touch("write", puppet.map(4 * PAGE, fd=device, kind=kind), 2)
    child = puppet.fork()
    answer = check(puppet.pid, child.pid)
    settled(answer)
    layout = ModuleSource.open().layout
    for process in answer["processes"]:
        assert process["entries"] > 100
        assert process["pages_compared"] > 3 * HUGE // PAGE
    named = {row["invariant"] for row in answer["unchecked"]} | set(answer["invariants"])
    assert named >= {row.name for row in of_half("user", layout.arch)}
    # Only what cannot be asked of this machine is left out.
    assert {row["invariant"] for row in answer["unchecked"]} <= {"groups", "pti-copies"}
    assert ("pti-copies" in answer["invariants"]) == witness.pti()


@pytest.mark.any_variant
def test_write_protection_by_userfaultfd_and_guard_regions(puppet: Puppet) -> None:
    address = puppet.map(32 * PAGE)
    puppet.touch("write", address, 24)
    lines = (
        f"uffd {address:#x} {16 * PAGE:#x} register",
        f"uffd {address:#x} {8 * PAGE:#x} wp",
        f"advise {address + 20 * PAGE:#x} {2 * PAGE:#x} guard_install",
    )
    done = 0
    for line in lines:
        try:
            puppet.command(line)
        except PuppetError:
            continue  # kernels without
        done += 1
    # CONFIG_HAVE_ARCH_USERFAULTFD_WP came to x86 with 5.7 and to arm64 with 6.10, guard regions
    # with 6.13.
    protects = {"x86_64": (5, 7), "aarch64": (6, 10)}.get(witness.MACHINE)
    known = 2 * (protects is not None and witness.release() >= protects)
    assert done >= known + (witness.release() >= (6, 13))
    settled(check(puppet.pid))


@pytest.mark.any_variant
def test_shared_hugetlb_tables(puppet: Puppet, hugetlb_pages: None) -> None:
    """Two processes that map a whole PUD of one hugetlb file share the table of PMDs."""
    length = witness.span("pmd") * witness.ENTRIES
    address = puppet.map(2 * length, huge=HUGE.bit_length() - 1, kind="shared", flags="noreserve")
    puppet.touch("write", address, 2, length)
    child = puppet.fork()
    child.touch("read", address, 2, length)
    answer = check(puppet.pid, child.pid)
    settled(answer)


@pytest.mark.any_variant
def test_every_process(puppet: Puppet) -> None:
    answer = check("--all")
    pids = {row["pid"] for row in answer["processes"]}
    assert {1, puppet.pid, os.getpid()} <= pids
    assert answer["kernel_threads"] > 5
    assert answer["summary"]["processes"] == len(pids)
    assert answer["summary"]["entries"] > 1000


def test_the_kernel_half() -> None:
    answer = check("kernel")
    assert {"kernel-pages", "kernel-write-exec", "tables-in-ram"} <= set(answer["invariants"])
    assert ("frames-known" in answer["invariants"]) == (witness.MACHINE == "x86_64")
    assert answer["summary"]["entries"] > 1000


@pytest.mark.any_machine
def test_itself_and_the_text(puppet: Puppet) -> None:
    result = command.run("check", "self", puppet.pid)
    assert result.status == 0, result
    last = result.out.splitlines()[-1]
    assert re.fullmatch(
        r"\d+ invariants, [\d ]+ entries, 2 processes: 0 findings, \d+ changed", last
    ), result


@pytest.mark.any_machine
def test_only_and_skip(puppet: Puppet) -> None:
    only = check(puppet.pid, "--only", "resident", "--only", "table-count")
    assert only["invariants"] == ["resident", "table-count"]
    assert only["processes"][0]["pages_compared"] == 0
    assert "pagemap" not in check(puppet.pid, "--skip", "pagemap")["invariants"]


@contextmanager
def instead(path: Path, text: str) -> Iterator[None]:
    """Another text in place of a file of /proc."""
    lie = Path("/tmp/lie")
    lie.write_text(text)
    subprocess.run(["mount", "--bind", str(lie), str(path)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(path)], check=True)


@pytest.mark.any_machine
def test_a_lie_of_the_kernel_is_found(puppet: Puppet) -> None:
    """One table more in VmPTE, one page less in a VMA's Rss: end to end, with the exit status."""
    address = puppet.map(16 * PAGE)
    puppet.touch("write", address, 16)
    proc = Path(f"/proc/{puppet.pid}")
    status, smaps = (proc / "status").read_text(), (proc / "smaps").read_text()
    table = witness.status_kb(puppet.pid, "VmPTE")
    wrong = re.sub(r"(?m)^VmPTE:.*$", f"VmPTE:\t{table + PAGE // 1024:8} kB", status)
    assert wrong != status
    with instead(proc / "status", wrong):
        result = command.ptscope("check", puppet.pid, "--json")
    assert result.status == 1
    (finding,) = result.json["processes"][0]["findings"]
    assert finding["invariant"] == "table-count"
    assert finding["entries_say"] == f"{table} KiB in tables"
    assert finding["witness_says"] == f"{table + PAGE // 1024} KiB"

    head = next(line for line in smaps.splitlines() if line.startswith(f"{address:08x}-"))
    before, _, after = smaps.partition(head)
    figure = f"Rss:            {16 * PAGE // 1024:8} kB"
    assert figure in after
    lie = figure.replace(f"{16 * PAGE // 1024}", f"{15 * PAGE // 1024}")
    with instead(proc / "smaps", before + head + after.replace(figure, lie, 1)):
        result = command.ptscope("check", puppet.pid)
    assert result.status == 1
    assert "resident" in result.out
    assert f"{address:#x}-" in result.out
    assert f"Rss: {15 * PAGE // 1024} KiB" in result.out
    settled(check(puppet.pid))


@pytest.mark.any_machine
def test_processes_that_exit_meanwhile() -> None:
    """A shell that starts processes as fast as it can."""
    shell = subprocess.Popen(["sh", "-c", "while :; do /bin/true; sleep 0.01; done"])
    try:
        for _ in range(3):
            check("--all", "--only", "permissions")
    finally:
        shell.kill()
        shell.wait()


@pytest.mark.any_machine
def test_a_process_that_exits_is_an_error_where_it_was_asked_for() -> None:
    short = subprocess.Popen([sys.executable, "-c", ""])
    short.wait()
    assert command.ptscope("check", short.pid).status == 3


@pytest.mark.any_machine
def test_checked_by_hand(puppet: Puppet) -> None:
    """The same from Python: a Checked has all figures."""
    checker = Checker.here(ModuleSource.open(), frozenset(NAMES))
    try:
        result: Checked = checker.check(find(puppet.pid))
    except TargetError as error:
        raise AssertionError(error.cause) from error
    assert result.vmas == len(witness.vmas(puppet.pid))
    assert result.seconds > 0
