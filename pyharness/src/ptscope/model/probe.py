# SPDX-License-Identifier: GPL-2.0-or-later
"""Finds out what the model has to know of the running kernel."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

from ptscope.decode.layout import Layout
from ptscope.model.kernel import PMD, PTE, PUD, X86, Geometry, Kernel

THP = Path("/sys/kernel/mm/transparent_hugepage")
KSM = Path("/sys/kernel/mm/ksm/run")
KNOWN = Path("/dev/ptscope-map")
DAMON = ("module/damon_*/parameters/enabled", "kernel/mm/damon/admin/kdamonds/*/state")
"""Below /sys: what has it watch memory. Debian's kernels have damon_stat do so from 6.17 on."""
FAULT_AROUND = Path("/sys/kernel/debug/fault_around_bytes")
DEFAULT_FAULT_AROUND = 65536  # mm/memory.c
# As many as all processes together can come to need.
HUGETLB_WANTED = 32


def geometry_of(layout: Layout | None) -> Geometry:
    """From a layout; without one, that of pages and PMDs with 8-byte entries."""
    if layout is not None:
        return Geometry({level.number: level.shift for level in layout.levels})
    shift = os.sysconf("SC_PAGE_SIZE").bit_length() - 1
    if shift == X86.shift:
        return X86
    return Geometry({PTE: shift, PMD: shift + shift - 3})


def probe(layout: Layout | None) -> Kernel:
    """The running kernel, on this machine. Without a layout (pagemap), what does not show there
    is taken as usual."""
    release = platform.release()
    found = re.match(r"(\d+)\.(\d+)", release)
    assert found is not None, release
    version = int(found[1]), int(found[2])
    page = os.sysconf("SC_PAGE_SIZE")
    around = int(_text(FAULT_AROUND) or DEFAULT_FAULT_AROUND)
    x86 = platform.machine() == "x86_64"
    geometry = geometry_of(layout)
    return Kernel(
        version=version,
        arch=platform.machine(),
        geometry=geometry,
        soft_dirty=_has_bit(layout, "soft_dirty"),
        uffd_wp=_has_bit(layout, "uffd_wp"),
        thp=_chosen(_text(THP / "enabled")) or "never",
        huge_zero=_text(THP / "use_zero_page") == "1",
        khugepaged=_text(THP / "khugepaged/defrag") == "1",
        old_prefaulted=platform.machine() == "aarch64",
        hardware_dirty=x86,
        table_reclaim=version >= (6, 14),
        fault_around=max(around // page, 1),
        swap=len((_text(Path("/proc/swaps")) or "").splitlines()) > 1,
        nodes=_nodes(),
        pkeys=x86 and layout is not None and " ospke " in (_text(Path("/proc/cpuinfo")) or ""),
        hugetlb=_free_hugetlb(geometry.huge) >= HUGETLB_WANTED,
        # pagemap does not show how large a mapping is.
        gigantic=layout is not None
        and PUD in geometry.shifts
        and _free_hugetlb(1 << geometry.shifts[PUD]) > 0,
        uffd_minor=(x86 or platform.machine() == "aarch64") and version >= (5, 14),
        ksm=_text(KSM) == "0",
        watched=any(
            _text(path) in ("Y", "on") for glob in DAMON for path in Path("/sys").glob(glob)
        ),
        known=layout is not None and os.access(KNOWN, os.R_OK | os.W_OK),
    )


def _has_bit(layout: Layout | None, name: str) -> bool:
    """Whether entries have a bit of the kernel's own; riscv64 keeps these two where the CPU has to
    leave them alone, which not all do (Svrsw60t59b)."""
    if layout is None:
        return platform.machine() == "x86_64"
    spare = layout.arch != "riscv64" or layout.runtime.get("svrsw60t59b") == 1
    return spare and f"bit.{name}" in layout.facts


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _chosen(text: str | None) -> str | None:
    """The word in brackets, as files of sysfs mark what is chosen."""
    found = re.search(r"\[(\w+)\]", text or "")
    return found[1] if found else None


def _free_hugetlb(size: int) -> int:
    """Free pages of a size in bytes."""
    folder = Path(f"/sys/kernel/mm/hugepages/hugepages-{size >> 10}kB")
    return int(_text(folder / "free_hugepages") or 0)


def _nodes() -> int:
    text = _text(Path("/sys/devices/system/node/has_memory")) or "0"
    count = 0
    for part in text.split(","):
        first, _, last = part.partition("-")
        count += int(last or first) - int(first) + 1
    return count
