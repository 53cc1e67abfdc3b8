# SPDX-License-Identifier: GPL-2.0-or-later
"""What the kernel says elsewhere: smaps, status, statm, /proc/iomem, the zero page's frame."""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ptscope.source.pagemap import PagemapFile
from ptscope.target.access import cannot_read

PROC = Path("/proc")
NODES = Path("/sys/devices/system/node/has_memory")
KIB = 1024

_VMA_LINE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) ([rwxsp-]{4}) ")
# /proc/iomem calls memory so, whatever else lies in it; hot-added memory of a driver has its
# driver's name behind it.
_RAM = "System RAM"


@dataclass(frozen=True)
class SmapsVma:
    """What smaps says of one VMA; figures in bytes by their name."""

    start: int
    end: int
    figures: Mapping[str, int]
    flags: frozenset[str] = frozenset()
    """The words of VmFlags (Documentation/filesystems/proc.rst)."""

    def __getitem__(self, name: str) -> int:
        return self.figures.get(name, 0)


@dataclass(frozen=True)
class Range:
    """Physical addresses, both ends inside."""

    first: int
    last: int


@dataclass(frozen=True)
class Ranges:
    """Physical memory as /proc/iomem has it: sorted, and joined where ranges touch."""

    known: tuple[Range, ...]
    ram: tuple[Range, ...]


def parse_smaps(lines: Iterable[str]) -> dict[int, SmapsVma]:
    """The VMAs of an smaps file by their start."""
    vmas: dict[int, SmapsVma] = {}
    figures: dict[str, int] = {}
    start = 0
    for line in lines:
        # The line of a VMA begins with its address, whatever its file is called.
        if line[:1].isupper():
            name, _, rest = line.partition(":")
            if rest.endswith(" kB\n"):
                figures[name] = int(rest[:-4]) * KIB
            elif name == "VmFlags":
                vmas[start] = replace(vmas[start], flags=frozenset(rest.split()))
        elif match := _VMA_LINE.match(line):
            figures = {}
            start = int(match[1], 16)
            vmas[start] = SmapsVma(start, int(match[2], 16), figures)
    return vmas


def read_smaps(proc: Path) -> dict[int, SmapsVma]:
    """The VMAs of the process whose directory is `proc`, by their start.

    No lock spans the whole file. Raises as `target.access.cannot_read` says.
    """
    path = proc / "smaps"
    try:
        with path.open(errors="replace") as lines:
            return parse_smaps(lines)
    except OSError as error:
        raise cannot_read(path, error) from None


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
    """Read both files. Raises as `target.access.cannot_read` says."""
    try:
        text = (proc / "status").read_text(errors="replace")
        pages = [int(word) for word in (proc / "statm").read_text().split()]
    except OSError as error:
        raise cannot_read(proc / "status", error) from None
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


def read_iomem(proc: Path = PROC) -> Ranges | None:
    """What /proc/iomem says; None when it cannot be read or hides its addresses."""
    try:
        return parse_iomem((proc / "iomem").read_text(errors="replace"))
    except OSError:
        return None


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
