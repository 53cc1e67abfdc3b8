# SPDX-License-Identifier: GPL-2.0-or-later
"""Under which conditions something was measured: they stand in every file of results."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ptscope._core import ffi, lib
from ptscope.bench.clock import Clock
from ptscope.bench.memory import Geometry
from ptscope.doctor.checks import HYPERVISORS
from ptscope.host import Host

THP = "sys/kernel/mm/transparent_hugepage"
# Name in the file of results, and where the kernel says it. `{cpu}` is the one measured on.
SETTINGS: tuple[tuple[str, str], ...] = (
    ("governor", "sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor"),
    ("thp", f"{THP}/enabled"),
    ("thp_shmem", f"{THP}/shmem_enabled"),
    ("thp_defrag", f"{THP}/defrag"),
    ("khugepaged_scan_ms", f"{THP}/khugepaged/scan_sleep_millisecs"),
    ("khugepaged_pages", f"{THP}/khugepaged/pages_to_scan"),
    ("numa_balancing", "proc/sys/kernel/numa_balancing"),
    ("nodes", "sys/devices/system/node/online"),
    ("clocksource", "sys/devices/system/clocksource/clocksource0/current_clocksource"),
    ("fault_around_bytes", "sys/kernel/debug/fault_around_bytes"),
    ("swappiness", "proc/sys/vm/swappiness"),
    ("command_line", "proc/cmdline"),
)
EMULATED = "emulated, not comparable with hardware"
WARMTH = (
    "code warm, by the sample before or a rehearsal; data cold, in no cache of the CPU's own"
)


@dataclass(frozen=True)
class Conditions:
    """Everything that a figure depends on and that can be known, by name."""

    facts: dict[str, str | int | float]

    @property
    def emulated(self) -> bool:
        """Whether the CPU is software."""
        return EMULATED in str(self.facts.get("accelerator", ""))


def gather(
    clock: Clock, geometry: Geometry, source: str, cpu: int, host: Host | None = None
) -> Conditions:
    """The conditions on this machine now."""
    host = host or Host()
    facts: dict[str, str | int | float] = {
        "kernel": host.release,
        "machine": host.machine,
        "cpu_model_name": cpu_model(host.root) or platform.processor() or "unknown",
        "cpu_count": os.cpu_count() or 1,
        "cpu_affinity": str(cpu),
        "accelerator": accelerator(host.root),
        "levels": len(geometry.spans),
        "page_size": geometry.page,
        "source": source,
        "vmas": (_text(host.root / "proc/self/maps") or "").count("\n") + 1,
        "clock": clock.name,
        "clock_ns_per_tick": clock.ns_per_tick,
        "clock_overhead_ns": clock.overhead * clock.ns_per_tick,
        "clock_resolution_ns": clock.resolution,
        "warmth": WARMTH,
        "mitigations": "; ".join(mitigations(host.root)) or "not told",
    }
    if clock.note:
        facts["clock_note"] = clock.note
    for name, where in SETTINGS:
        text = _text(host.root / where.format(cpu=cpu))
        if text is not None:
            facts[name] = chosen(text)
    facts.setdefault("governor", "none: the kernel does not set the CPU's frequency")
    return Conditions(facts)


def chosen(text: str) -> str:
    """What stands in brackets where the kernel lists what could be chosen, else all of it."""
    found = re.search(r"\[(\S+)\]", text)
    return found[1] if found else text


def cpu_model(root: Path) -> str | None:
    """What the CPU is called."""
    text = _text(root / "proc/cpuinfo") or ""
    found = re.search(r"^(?:model name|uarch|isa|CPU part)\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else None


def accelerator(root: Path = Path("/")) -> str:
    """The bare machine, or what runs the CPU.

    x86 says it by cpuid. Elsewhere QEMU's own machine is known by its name in the device tree, and
    the CPU is software unless the kernel found KVM's calls.
    """
    signature = ffi.new("char[13]")
    if lib.ptscope_hypervisor(signature):
        text = ffi.string(signature).decode("latin-1")
        name, comparable = HYPERVISORS.get(text, (f"unknown ({text!r})", True))
        return name if comparable else f"{name.split(':')[0].split(',')[0]}: {EMULATED}"
    tree = _text(root / "proc/device-tree/compatible") or ""
    if "linux,dummy-virt" in tree or "riscv-virtio" in tree:
        return f"QEMU: {EMULATED}"
    return "none: a machine of its own"


def mitigations(root: Path) -> Iterator[str]:
    """Those against flaws of the CPU that cost time at each entry to the kernel."""
    folder = root / "sys/devices/system/cpu/vulnerabilities"
    names = sorted(each.name for each in folder.iterdir()) if folder.is_dir() else []
    for name in names:
        text = _text(folder / name)
        if text and text != "Not affected":
            yield f"{name}: {text}"


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").replace("\0", " ").strip()
    except OSError:
        return None
