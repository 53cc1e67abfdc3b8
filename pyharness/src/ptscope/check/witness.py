# SPDX-License-Identifier: GPL-2.0-or-later
"""What the kernel says elsewhere: smaps, status, statm, /proc/iomem, the zero page's frame."""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ptscope.source.pagemap import PagemapFile
from ptscope.target.access import cannot_read, mm_gone
from ptscope.target.smaps import SmapsVma, read_smaps

PROC = Path("/proc")
NODES = Path("/sys/devices/system/node/has_memory")
KIB = 1024

# /proc/iomem calls memory so, whatever else lies in it; hot-added memory of a driver has its
# driver's name behind it.
_RAM = "System RAM"
_MAPPED = re.compile(r"\S+\s+(\d+)\s.*\bphys=(0x[0-9a-f]+)")


@dataclass(frozen=True)
class Range:
    """Physical addresses, both ends inside."""

    first: int
    last: int


FIXED: Mapping[str, tuple[Range, ...]] = {
    "x86_64": (
        # The ISA bus is what is no RAM in the first MiB, and the kernel maps all of it
        # (ISA_END_ADDRESS of arch/x86/include/asm/e820/api.h, arch/x86/mm/init.c).
        Range(0, 0xFFFFF),
        # The local APIC (APIC_DEFAULT_PHYS_BASE of arch/x86/include/asm/apicdef.h): iomem lists it
        # where the firmware does.
        Range(0xFEE0_0000, 0xFEE0_0FFF),
    ),
}
"""What is where by the architecture's definition, by its name in a layout."""


@dataclass(frozen=True)
class Ranges:
    """Physical memory as /proc/iomem has it: sorted, and joined where ranges touch."""

    known: tuple[Range, ...]
    ram: tuple[Range, ...]


def smaps_of(proc: Path) -> dict[int, SmapsVma]:
    """What smaps says of each VMA, by its start. Raises as `target.smaps.read_smaps`."""
    return {row.vma.start: row for row in read_smaps(proc)}


@dataclass(frozen=True)
class Status:
    """Figures of status in bytes, `threads`, and statm's size and resident in bytes.

    None where the kernel does not have it.
    """

    vm_size: int | None
    vm_rss: int | None
    vm_swap: int | None
    vm_pte: int | None
    hugetlb: int | None
    threads: int
    statm_size: int
    statm_resident: int


def read_status(proc: Path) -> Status:
    """Read both files. Raises NotPermitted, Exited or ChangedIdentity."""
    try:
        text = (proc / "status").read_text(errors="replace")
        pages = [int(word) for word in (proc / "statm").read_text().split()]
    except OSError as error:
        raise cannot_read(proc / "status", error) from None
    # A task without an address space has no line of memory.
    if len(pages) < 2 or "VmSize:" not in text:
        raise mm_gone(proc)
    values = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)

    def size(name: str) -> int | None:
        return int(values[name].split()[0]) * KIB if name in values else None

    page = os.sysconf("SC_PAGE_SIZE")
    return Status(
        vm_size=size("VmSize"),
        vm_rss=size("VmRSS"),
        vm_swap=size("VmSwap"),
        vm_pte=size("VmPTE"),
        hugetlb=size("HugetlbPages"),
        threads=int(values.get("Threads", "1")),
        statm_size=pages[0] * page,
        statm_resident=pages[1] * page,
    )


def parse_iomem(text: str) -> Ranges | None:
    """The ranges of /proc/iomem; None where the kernel hides addresses (all are 0 then)."""
    known: list[Range] = []
    ram: list[Range] = []
    page = mmap.PAGESIZE
    for line in text.splitlines():
        span, separator, name = line.strip().partition(" : ")
        first, dash, last = span.partition("-")
        if not separator or not dash:
            continue
        found = Range(int(first, 16), int(last, 16))
        # The registers of a device may take less than a page, and are mapped by a page.
        known.append(Range(found.first & -page, found.last | page - 1))
        if name.startswith(_RAM):
            ram.append(found)
    if not any(row.first for row in known):
        return None
    return Ranges(joined(known), joined(ram))


def parse_vmallocinfo(text: str) -> list[Range]:
    """What drivers have mapped by ioremap(), listed there or not in iomem: of_iomap() claims none.

    The sizes that are shown have a guard page in them (mm/vmalloc.c, s_show()).
    """
    found = []
    for line in text.splitlines():
        if match := _MAPPED.match(line):
            first = int(match[2], 16) & -mmap.PAGESIZE
            found.append(Range(first, first + max(int(match[1]) - mmap.PAGESIZE, 1) - 1))
    return found


def read_ranges(arch: str, proc: Path = PROC) -> Ranges | None:
    """RAM and devices, as /proc/iomem and /proc/vmallocinfo have them.

    None when iomem cannot be read or hides its addresses. What `FIXED` has is always known.
    """
    try:
        ranges = parse_iomem((proc / "iomem").read_text(errors="replace"))
        mapped = parse_vmallocinfo((proc / "vmallocinfo").read_text(errors="replace"))
    except OSError:
        return None
    if ranges is None:
        return None
    return Ranges(joined([*ranges.known, *mapped, *FIXED.get(arch, ())]), ranges.ram)


def joined(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """The same addresses in as few ranges as can be, sorted."""
    out: list[Range] = []
    for row in sorted(ranges, key=lambda row: row.first):
        if out and row.first <= out[-1].last + 1:
            out[-1] = Range(out[-1].first, max(out[-1].last, row.last))
        else:
            out.append(row)
    return tuple(out)


def within(ranges: Iterable[Range], first: int, last: int) -> bool:
    """Whether one of the ranges holds all of `first` to `last`."""
    return any(row.first <= first and last <= row.last for row in ranges)


def zero_page_frame() -> int | None:
    """The frame of the zero page: what a private page of ours maps that was only read.

    None where frames are hidden.
    """
    size = mmap.PAGESIZE
    with mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ) as memory:
        memory[0]
        address = _address_of(memory)
        with PagemapFile(PROC / "self", hidden=False) as pagemap:
            return pagemap.read(address).frame or None


def _address_of(memory: mmap.mmap) -> int:
    from ptscope._core import ffi

    return int(ffi.cast("unsigned long long", ffi.from_buffer(memory)))


def memory_nodes(path: Path = NODES) -> int:
    """How many nodes have memory; 1 on kernels without nodes."""
    try:
        text = path.read_text().strip()
    except OSError:
        return 1
    count = 0
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        count += int(last or first) - int(first) + 1
    return max(count, 1)
