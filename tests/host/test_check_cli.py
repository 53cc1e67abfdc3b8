# SPDX-License-Identifier: GPL-2.0-or-later
"""The command `ptscope check`, and the files it reads besides pagemap."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from ptscope.check import plan, process
from ptscope.check import run as many
from ptscope.check.invariants import INVARIANTS, NAMES
from ptscope.check.process import Checked, Target
from ptscope.check.run import Report, check_all
from ptscope.check.witness import (
    Range,
    memory_nodes,
    parse_iomem,
    parse_vmallocinfo,
    read_status,
    within,
)
from ptscope.cli import run
from ptscope.errors import ChangedIdentity, Exited, KernelThread, NoSuchProcess, NotPermitted
from ptscope.source.choose import Choice
from ptscope.views.check import render_checked, render_end
from test_check import RODATA, bits, checked, honest
from world import World


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "--list"]) == 0
    text = capsys.readouterr().out
    for row in INVARIANTS:
        assert f"\n{row.name} " in f"\n{text}"
    assert max(len(line) for line in text.splitlines()) <= 80
    assert run(["check", "--list", "--json", "--only", "resident"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert set(row) == {
        "name", "half", "what", "why", "where", "witness", "since", "arches", "bound",
    }  # fmt: skip
    assert row["name"] == "resident"


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (["check"], "nothing to check"),
        (["check", "--all", "1"], "give no PID with it"),
        (["check", "1", "--only", "resist"], "no invariant is called 'resist'"),
        (["check", "1", "--skip", "resist"], "no invariant is called 'resist'"),
        (["check", "x"], "'x' is no target"),
        (["check", "--al"], "--al"),
    ],
)
def test_wrong_usage(capsys: pytest.CaptureFixture[str], words: list[str], cause: str) -> None:
    assert run(words) == 2
    assert cause in capsys.readouterr().err


def test_itself_without_the_module(capsys: pytest.CaptureFixture[str]) -> None:
    """This very process, by what /proc shows: some invariants, and why not the others."""
    assert run(["check", "self", "--source", "pagemap", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["source"] == "pagemap"
    assert answer["layout"] is None
    assert set(answer["invariants"]) | {row["invariant"] for row in answer["unchecked"]} == {
        row.name for row in INVARIANTS if row.half != "kernel"
    }
    assert "vm-size" in answer["invariants"]
    assert {row["why"] for row in answer["unchecked"] if row["invariant"] == "levels"} == {
        "it needs the module"
    }
    assert answer["summary"]["findings"] == 0
    assert answer["summary"]["processes"] == 1
    assert answer["summary"]["entries"] == answer["processes"][0]["entries"] > 100


def test_the_kernel_half_needs_the_module(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "kernel", "--source", "pagemap"]) == 5
    assert "module" in capsys.readouterr().err


class Some:
    """A process that is one, or is none as `error` says."""

    comm = "some"
    proc = Path("/nowhere")

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def check_unchanged(self) -> None:
        """It does not."""


class Checks:
    """Checks whatever is there; process 5 exits, and 6 executes, while that is done."""

    def check(self, target: Target) -> Checked:
        if target.pid == 5:
            raise Exited("it exited")
        if target.pid == 6:
            raise ChangedIdentity("it executed")
        return Checked(target.pid, target.comm, entries=10, changed=Counter(resident=1))

    def check_kernel(self) -> Checked:
        raise AssertionError


def find(pid: int) -> Some:
    errors = {
        2: KernelThread("a kernel thread"),
        3: NoSuchProcess("no process has PID 3"),
        4: NotPermitted("not yours"),
    }
    if pid in errors:
        raise errors[pid]
    return Some(pid)


def report() -> Report:
    return Report("module", "debian-6.1-amd64", "6.1.0", INVARIANTS, ())


def test_all_goes_on_whatever_becomes_of_a_process() -> None:
    result = report()
    steps = list(check_all(Checks(), result, range(1, 8), find))
    assert len(steps) == 7
    assert [row.pid for row in result.checked] == [1, 7]
    assert result.kernel_threads == 1
    assert {row.pid: row.why for row in result.skipped} == {
        3: "no process has PID 3", 4: "not yours", 5: "it exited", 6: "it executed",
    }  # fmt: skip
    assert result.summary() == (
        f"{len(NAMES)} invariants, 20 entries, 2 processes: 0 findings, 2 changed"
    )
    text = render_end(result)
    assert "4 processes were not checked" in text
    assert text.splitlines()[-1] == result.summary()
    assert result.to_json()["summary"] == {
        "invariants": len(NAMES), "entries": 20, "processes": 2, "findings": 0, "changed": 2,
        "changed_by_invariant": {"resident": 2}, "suspects_left": 0,
    }  # fmt: skip


def test_findings_as_text(tmp_path: Path) -> None:
    world = honest(tmp_path)
    world.comm = "no\x1bbody"
    bits("write", at=RODATA)(world)
    text = render_checked(checked(world, "permissions"))
    assert "no\\x1bbody" in text
    assert "permissions" in text
    assert f"{RODATA:#x} pte raw 0x" in text
    assert "writable" in text
    assert "VMA r--p" in text


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A module that is loaded, and a process that it can read."""
    world = honest(tmp_path)
    checker = world.checker()
    monkeypatch.setattr(plan, "choose", lambda name, pid: Choice(checker.source, None))
    monkeypatch.setattr(
        process.Checker, "here", lambda source, wanted: replace(checker, wanted=wanted)
    )
    monkeypatch.setattr(many, "find", lambda pid: world)
    return world


def test_a_process_through_the_module(module: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "42"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert re.search(r"^not checked: groups: not on x86_64$", out, re.M)
    assert re.search(r"^not checked: pti-copies: PTI is off$", out, re.M)
    assert re.search(r"^source module, kernel \S+, layout debian-6.1-amd64$", out, re.M)
    last = out.splitlines()[-1]
    # Those of the user half, but for the two.
    count = sum(row.half != "kernel" for row in INVARIANTS) - 2
    assert re.fullmatch(rf"{count} invariants, \d+ entries, 1 process: 0 findings, 0 changed", last)

    bits("write", at=RODATA)(module)
    assert run(["check", "42"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("42 nobody\n  permissions\n")
    assert out.endswith("1 finding, 0 changed\n")
    assert run(["check", "42", "--skip", "permissions", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert "permissions" not in answer["invariants"]
    assert run(["check", "42", "--only", "permissions", "--json"]) == 1
    (only,) = json.loads(capsys.readouterr().out)["processes"]
    assert [row["invariant"] for row in only["findings"]] == ["permissions"]
    assert set(only) == {
        "pid", "comm", "findings", "changed", "entries", "pages_compared", "vmas", "tables",
        "suspects_left", "seconds",
    }  # fmt: skip


def test_iomem() -> None:
    text = (
        "00000000-00000fff : Reserved\n00001000-0009fbff : System RAM\n"
        "00100000-3fffffff : System RAM\n  01000000-01ffffff : Kernel code\n"
        "fe000000-feffffff : PCI Bus 0000:00\n  fe000000-fe0fffff : 0000:00:02.0\n"
        "100000000-13fffffff : System RAM (kmem)\n"
    )
    ranges = parse_iomem(text)
    assert ranges is not None
    assert ranges.known == (
        Range(0, 0x9FFFF), Range(0x100000, 0x3FFFFFFF), Range(0xFE000000, 0xFEFFFFFF),
        Range(0x100000000, 0x13FFFFFFF),
    )  # fmt: skip
    assert ranges.ram == (
        Range(0x1000, 0x9FBFF), Range(0x100000, 0x3FFFFFFF), Range(0x100000000, 0x13FFFFFFF),
    )  # fmt: skip
    assert within(ranges.ram, 0x1000, 0x1FFF)
    assert not within(ranges.ram, 0x9F000, 0xA0FFF)
    assert parse_iomem("00000000-00000000 : System RAM\n00000000-00000000 : PCI Bus\n") is None


def test_what_drivers_map() -> None:
    text = (
        "0x00000000d2b3a7fb-0x000000003c3cd1f1    8192 of_iomap+0x4c/0x70 phys=0x000000000c000000 "
        "ioremap\n"
        "0x0000000012345678-0x0000000012345679   20480 acpi_os_map+0x1/0x2 phys=0x00000000bffe0010 "
        "ioremap\n"
        "0x0000000012345678-0x0000000012345679   20480 dup_task+0x1/0x2 pages=4 vmalloc N0=4\n"
    )
    assert parse_vmallocinfo(text) == [
        Range(0xC000000, 0xC000FFF),
        Range(0xBFFE0000, 0xBFFE3FFF),
    ]


def test_status_of_this_process() -> None:
    status = read_status(Path("/proc/self"))
    assert status.vm_size == status.statm_size
    assert status.vm_pte
    assert status.threads >= 1


def test_nodes(tmp_path: Path) -> None:
    for text, count in (("0\n", 1), ("0-1\n", 2), ("0,2-3\n", 3), ("\n", 1)):
        (tmp_path / "nodes").write_text(text)
        assert memory_nodes(tmp_path / "nodes") == count
    assert memory_nodes(tmp_path / "none") == 1
