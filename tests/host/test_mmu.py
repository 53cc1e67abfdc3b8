# SPDX-License-Identifier: GPL-2.0-or-later
"""QEMU's own MMU as a witness.

A process spins in user mode on a page whose walk ptscope has reported. The host stops the whole
machine, sees by CPL and CR3 that this very process is running, asks QEMU where the address leads
(gva2gpa), and walks the guest's memory itself.
"""

from __future__ import annotations

import copy
import json
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mmu
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from vm import commands, kernels, module, package, prepare, variants  # noqa: E402
from vm.guest import Guest  # noqa: E402
from vm.overlay import Contents  # noqa: E402
from vm.prepare import Options  # noqa: E402
from vm.qemu import Machine  # noqa: E402

MEMORY = 1024
"""MiB: all of it below the hole under 4 GiB, so that a physical address is an offset."""
TRIES = 200
SECONDS = 120.0


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """A guest whose memory is a file."""
    scratch = tmp_path_factory.mktemp("mmu")
    bootable = prepare.debian(kernels.DEFAULT)
    assert bootable.fetched is not None
    contents = Contents(
        module=module.build(bootable.fetched, bootable.release),
        package=package.for_guest(),
        tests=commands.tests(),
    )
    options = Options(
        memory=MEMORY, gigantic=0, name="mmu", contents=contents, ram_file=scratch / "ram")
    return prepare.machine(bootable, options, scratch)


def stop_in_user_mode(guest: Guest, roots: set[int]) -> mmu.Registers:
    """Stop the machine while its CPU is in user mode with one of these root tables."""
    seen = []
    for _ in range(TRIES):
        guest.monitor.execute("stop")
        registers = mmu.parse_registers(guest.monitor.human("info registers"))
        if registers.cpl == 3 and registers.root in roots:
            return registers
        seen.append((registers.cpl, hex(registers.cr3)))
        guest.monitor.execute("cont")
        time.sleep(0.01)
    raise AssertionError(f"the process was never met in user mode: {seen[-5:]}")


def gva2gpa(guest: Guest, address: int) -> int:
    """Where QEMU's MMU leads an address."""
    text = guest.monitor.human(f"gva2gpa {address:#x}")
    word, _, number = text.strip().partition(" ")
    assert word == "gpa:", text
    return int(number, 16)


def roots_of(walk: dict[str, Any]) -> set[int]:
    """The root tables of a process: the kernel's and, under PTI, the user's."""
    steps = [walk["levels"][0], walk["user_pgd"]]
    return {int(step["entry_pa"], 16) & -4096 for step in steps if step is not None}


@pytest.mark.parametrize("variant", ["5-level", "4-level", "pti"])
def test_processor_walks_as_reported(machine: Machine, variant: str) -> None:
    row = variants.variant(variant, "amd64")
    levels = kernels.kernel(kernels.DEFAULT).levels[variant]
    own = replace(machine, variant=row, log=machine.log.with_stem(f"mmu-{variant}"))
    compared = []
    with Guest(own) as guest:
        guest.expect_module("loaded")
        job = guest.start(["python3", "/tests/guest/spinner.py"], stdin=True)
        for line in job.lines(SECONDS):
            report = json.loads(line)
            walk = report["walk"]
            address = int(walk["address"], 16)
            registers = stop_in_user_mode(guest, roots_of(walk))
            gpa = gva2gpa(guest, address)
            with guest.ram() as ram:
                found = mmu.translate(
                    lambda pa, ram=ram: struct.unpack_from("<Q", ram, pa)[0],  # type: ignore[misc]
                    registers, address)
            guest.monitor.execute("cont")
            job.write(b"go on\n")
            assert mmu.differences(walk, found, gpa, registers) == [], report["kind"]
            assert len(found.steps) == levels - (report["kind"] == "2 MiB")
            assert bool(registers.cr4 & mmu.LA57) is (levels == 5)
            assert (walk["user_pgd"] is not None) is row.pti
            compared.append(report["kind"])
        assert job.status == 0
        guest.finish()
    assert compared == ["4 KiB", "2 MiB"]


# ---- the comparison itself ------------------------------------------------

ADDRESS = 0x7F12_3456_7328
TABLES = {0x1000: 39, 0x2000: 30, 0x3000: 21, 0x4000: 12}
PAGE = 0x8000_0000_0ABC_D867


def memory() -> dict[int, int]:
    """Tables of one address: its words by physical address."""
    tables = list(TABLES)
    following = [table | 0x67 for table in tables[1:]] + [PAGE]
    return {
        table + 8 * (ADDRESS >> TABLES[table] & 511): value
        for table, value in zip(tables, following, strict=True)
    }


def honest() -> dict[str, Any]:
    """The walk that ptscope would report of it."""
    names = ("pgd", "pud", "pmd", "pte")
    return {
        "address": hex(ADDRESS),
        "levels": [
            {"level": name, "entry_pa": hex(pa), "raw": hex(raw)}
            for name, (pa, raw) in zip(names, memory().items(), strict=True)
        ],
        "user_pgd": None,
        "mapping": {"pa": hex(0xABCD328)},
    }


def flip(bit: int, level: int = 3) -> Callable[[dict[str, Any]], None]:
    """A source that reports one bit of one entry wrongly."""

    def lie(walk: dict[str, Any]) -> None:
        step = walk["levels"][level]
        step["raw"] = hex(int(step["raw"], 16) ^ 1 << bit)

    return lie


def shift_frame(walk: dict[str, Any]) -> None:
    walk["mapping"]["pa"] = hex(int(walk["mapping"]["pa"], 16) + 4096)


def drop_level(walk: dict[str, Any]) -> None:
    del walk["levels"][2]


def another_entry(walk: dict[str, Any]) -> None:
    walk["levels"][3]["entry_pa"] = hex(int(walk["levels"][3]["entry_pa"], 16) + 8)


LIES = {
    "NX": flip(63), "writable": flip(1), "user": flip(2, level=0), "a frame bit": flip(20),
    "soft-dirty": flip(11), "a table bit": flip(13, level=1), "the physical address": shift_frame,
    "a level": drop_level, "the place of an entry": another_entry,
}
REGISTERS = mmu.Registers(cpl=3, cr3=0x1000, cr4=0)


def test_honest_walk_agrees() -> None:
    found = mmu.translate(memory().__getitem__, REGISTERS, ADDRESS)
    assert found.pa == 0xABCD328
    assert mmu.differences(honest(), found, 0xABCD328, REGISTERS) == []


@pytest.mark.parametrize("name", LIES)
def test_a_source_that_lies_is_caught(name: str) -> None:
    walk = copy.deepcopy(honest())
    LIES[name](walk)
    found = mmu.translate(memory().__getitem__, REGISTERS, ADDRESS)
    assert mmu.differences(walk, found, 0xABCD328, REGISTERS) != []


@pytest.mark.parametrize("bit", [5, 6])
def test_bits_that_the_processor_sets_do_not_count(bit: int) -> None:
    walk = honest()
    flip(bit)(walk)
    found = mmu.translate(memory().__getitem__, REGISTERS, ADDRESS)
    assert mmu.differences(walk, found, 0xABCD328, REGISTERS) == []


def test_another_process_s_root_is_caught() -> None:
    other = replace(REGISTERS, cr3=0x9000)
    found = mmu.translate(memory().__getitem__, REGISTERS, ADDRESS)
    assert mmu.differences(honest(), found, 0xABCD328, other) != []


def test_pti_counts_the_user_copy() -> None:
    """The user copy of the root is the next page; the kernel's copy may differ in NX."""
    words = memory()
    root_pa = next(iter(words))
    words[root_pa + 0x8000] = words[root_pa]  # the roots are at 0x8000 and 0x9000
    walk = honest()
    walk["levels"][0] = walk["levels"][0] | {
        "raw": hex(words[root_pa] | 1 << 63), "entry_pa": hex(root_pa + 0x7000)}
    walk["user_pgd"] = {"raw": hex(words[root_pa]), "entry_pa": hex(root_pa + 0x8000)}
    registers = replace(REGISTERS, cr3=0x9000 | 0x803)
    found = mmu.translate(words.__getitem__, registers, ADDRESS)
    assert mmu.differences(walk, found, 0xABCD328, registers) == []

