# SPDX-License-Identifier: GPL-2.0-or-later
"""The running kernel's layout, against the shipped one and what the machine itself says."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import command
import pytest
import rawfiles
import witness
from ptscope.decode.layout import Layout, load

# What the machine decides, for each architecture: everything else the kernel does.
CONTEXT: dict[str, Callable[[], dict[str, int | None]]] = {
    "x86_64": lambda: {"paging_levels": witness.levels(), "pti": witness.pti()},
    "aarch64": lambda: {"lpa2": witness.user_bits() == 52},
    "riscv64": lambda: {"paging_levels": witness.levels()},
}
ARCH = {"aarch64": "arm64"}
"""What `uname -m` calls otherwise than ptscope."""


def live() -> Layout:
    return Layout.from_text((rawfiles.FILES / "layout").read_text(), name="live")


def test_shipped_layout_is_the_live_one() -> None:
    shipped = load(os.environ.get("PTSCOPE_VM_LAYOUT", "debian-6.1-amd64"))
    running = live()
    here = shipped.with_context(CONTEXT[witness.MACHINE]())
    assert dict(here.facts) == dict(running.facts)
    assert dict(here.runtime) == dict(running.runtime)
    assert here.levels == running.levels


def test_levels_are_those_of_this_variant() -> None:
    running = live()
    expected = int(os.environ.get("PTSCOPE_VM_LEVELS", witness.levels()))
    assert len(running.levels) == expected == witness.levels()
    assert tuple(level.name for level in running.levels) == witness.level_names()
    pti = int(os.environ.get("PTSCOPE_VM_PTI", witness.pti()))
    assert running.runtime.get("pti", 0) == pti == witness.pti()
    assert running.is_folded("p4d") is (expected < 5)
    assert running.user_last == (1 << witness.user_bits()) - 1


def test_release_is_this_kernel() -> None:
    facts = rawfiles.layout()
    assert (facts["format"], facts["arch"], facts["release"]) == (
        "1", ARCH.get(witness.MACHINE, witness.MACHINE), os.uname().release)


def test_command_shows_the_live_layout() -> None:
    shown = command.ptscope("layout", "--json")
    assert shown.status == 0, shown.err
    assert Layout.from_json(shown.out).runtime == live().runtime


@pytest.mark.skipif(
    witness.MACHINE != "x86_64", reason="only x86 says in /proc/cpuinfo how wide addresses are")
def test_physical_mask_is_the_cpu_s() -> None:
    """x86: bits of /proc/cpuinfo 'address sizes'; the kernel's mask may be wider (52 bits)."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    sizes = next(line for line in lines if line.startswith("address sizes"))
    bits = int(sizes.split(":")[1].split()[0])
    assert live().runtime["physical_mask"] >= (1 << bits) - 1
