# SPDX-License-Identifier: GPL-2.0-or-later
"""What the kernel itself says about a process, read without any part of ptscope.

The tests compare ptscope with this, so it shares no code with it.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")
ENTRIES = PAGE // 8
"""Entries of a table below the root, on every architecture."""
HUGE = PAGE * ENTRIES
"""What an entry of a PMD table maps."""
MACHINE = os.uname().machine

# include/uapi/linux/kernel-page-flags.h
KPF_HUGE = 17
KPF_THP = 22
KPF_ZERO_PAGE = 24
KPF_ANON = 12
KPF_SWAPBACKED = 14


@dataclass(frozen=True)
class PagemapEntry:
    """One page of /proc/PID/pagemap (Documentation/admin-guide/mm/pagemap.rst)."""

    raw: int

    @property
    def present(self) -> bool:
        return bool(self.raw >> 63 & 1)

    @property
    def swapped(self) -> bool:
        return bool(self.raw >> 62 & 1)

    @property
    def file_or_shared(self) -> bool:
        return bool(self.raw >> 61 & 1)

    @property
    def uffd_wp(self) -> bool:
        return bool(self.raw >> 57 & 1)

    @property
    def soft_dirty(self) -> bool:
        return bool(self.raw >> 55 & 1)

    @property
    def pfn(self) -> int:
        assert self.present
        return self.raw & (1 << 55) - 1

    @property
    def swap_type(self) -> int:
        assert self.swapped
        return self.raw & 31

    @property
    def swap_offset(self) -> int:
        assert self.swapped
        return self.raw >> 5 & (1 << 50) - 1


@dataclass(frozen=True)
class Vma:
    """One line of /proc/PID/maps."""

    start: int
    end: int
    permissions: str
    name: str


def vmas(pid: int | str) -> list[Vma]:
    """All VMAs in user space: the vsyscall page belongs to the kernel."""
    found = []
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        span, permissions, *rest = line.split(maxsplit=5)
        start, end = (int(word, 16) for word in span.split("-"))
        if start < 1 << 63:
            found.append(Vma(start, end, permissions, rest[3] if len(rest) > 3 else ""))
    return found


def pagemap(pid: int | str, address: int, count: int = 1) -> list[PagemapEntry]:
    """The entries of ``count`` pages from the page of ``address`` on."""
    with Path(f"/proc/{pid}/pagemap").open("rb", buffering=0) as file:
        data = os.pread(file.fileno(), 8 * count, address // PAGE * 8)
    return [PagemapEntry(raw) for (raw,) in struct.iter_unpack("<Q", data)]


def page(pid: int | str, address: int) -> PagemapEntry:
    """The pagemap entry of one address; where the file ends nothing is mapped."""
    entries = pagemap(pid, address)
    return entries[0] if entries else PagemapEntry(0)


def smaps(pid: int | str, address: int) -> dict[str, int]:
    """Figures of the VMA of ``address`` in /proc/PID/smaps, in kB."""
    figures: dict[str, int] = {}
    inside = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        key, *words = line.split()
        if not key.endswith(":"):
            start, end = (int(word, 16) for word in key.split("-"))
            inside = start <= address < end
        elif inside and len(words) == 2 and words[1] == "kB":
            figures[key[:-1]] = int(words[0])
    return figures


def status(pid: int | str) -> dict[str, str]:
    """/proc/PID/status as text by key."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def status_kb(pid: int | str, key: str) -> int:
    """A figure of /proc/PID/status in kB."""
    return int(status(pid)[key].split()[0])


def kpageflags(pfn: int) -> int:
    """Flags of a frame in /proc/kpageflags."""
    with Path("/proc/kpageflags").open("rb", buffering=0) as file:
        (flags,) = struct.unpack("<Q", os.pread(file.fileno(), 8, pfn * 8))
    return int(flags)


def meminfo_kb(key: str) -> int:
    """A figure of /proc/meminfo in kB."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0])
    raise KeyError(key)


def vmstat(key: str) -> int:
    """A counter of /proc/vmstat."""
    for line in Path("/proc/vmstat").read_text().splitlines():
        name, value = line.split()
        if name == key:
            return int(value)
    raise KeyError(key)


def release() -> tuple[int, int]:
    """Version of the running kernel."""
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int(minor.split("-")[0])


def cpuinfo(key: str) -> str:
    """The first line of /proc/cpuinfo with this key."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    raise KeyError(key)


def _mappable(address: int) -> bool:
    """Whether the kernel maps a page at this address when asked for it."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    # private, anonymous, MAP_FIXED_NOREPLACE
    place = libc.mmap(address, PAGE, 0, 0x100022, -1, 0)
    if place not in (None, ctypes.c_void_p(-1).value):
        libc.munmap(place, PAGE)
    return bool(place == address)


@functools.cache
def user_bits() -> int:
    """How many low bits of an address tell user addresses apart."""
    if MACHINE == "x86_64":
        # the kernel clears the flag when it does not run with five levels
        return 56 if "la57" in cpuinfo("flags").split() else 47
    if MACHINE == "riscv64":
        # the upper half of the bits of the name is the kernel's
        return int(cpuinfo("mmu").removeprefix("sv")) - 1
    # arm64 has a root of its own for the kernel, and says nowhere how wide the user's is
    return 52 if _mappable(1 << 51) else 48 if _mappable(1 << 47) else 47


@functools.cache
def levels() -> int:
    """Page-table levels: as many as the bits of an address need."""
    # where one root serves both halves, the kernel's is one bit more
    bits = user_bits() + (MACHINE != "aarch64")
    page_bits = PAGE.bit_length() - 1
    return -(-(bits - page_bits) // (page_bits - 3))


@functools.cache
def level_names() -> tuple[str, ...]:
    """Linux's names of the walked levels, root first: with fewer than five, P4D and then PUD are
    folded."""
    return {
        5: ("pgd", "p4d", "pud", "pmd", "pte"),
        4: ("pgd", "pud", "pmd", "pte"),
        3: ("pgd", "pmd", "pte"),
    }[levels()]


def span(level: str) -> int:
    """Bytes that an entry of this level maps or leads to."""
    names = level_names()
    return PAGE << (len(names) - 1 - names.index(level)) * (ENTRIES.bit_length() - 1)


def nowhere() -> int:
    """An address that neither the kernel nor a C library ever chooses."""
    return 0x2000_0000_0000 if user_bits() > 46 else 0x10_0000_0000


def pti() -> bool:
    """Whether user mode runs on its own page tables, as the kernel's log and sysfs say.

    A CPU that is not vulnerable shows "Not affected" there even with pti=on, so the command line
    decides.
    """
    return "pti=on" in Path("/proc/cmdline").read_text().split()


@dataclass(frozen=True)
class Segment:
    """A program header of /proc/kcore: kernel memory and where it lies physically."""

    virtual: int
    physical: int
    size: int


def kcore_segments() -> Iterator[Segment]:
    """The loadable segments of /proc/kcore whose physical address is known."""
    with Path("/proc/kcore").open("rb", buffering=0) as file:
        head = file.read(64)
        (offset,) = struct.unpack_from("<Q", head, 0x20)
        size, count = struct.unpack_from("<HH", head, 0x36)
        table = os.pread(file.fileno(), size * count, offset)
    for i in range(count):
        header = struct.unpack_from("<IIQQQQQQ", table, i * size)
        kind, _, _, virtual, physical, _, memory, _ = header
        if kind == 1 and physical != (1 << 64) - 1:
            yield Segment(virtual, physical, memory)


def direct_map(physical: int) -> int:
    """The address of the kernel's direct mapping for a physical address, from /proc/kcore."""
    for segment in kcore_segments():
        # the direct map is the segment of whole RAM areas in the upper half below vmalloc
        if segment.physical <= physical < segment.physical + segment.size:
            return segment.virtual + physical - segment.physical
    raise AssertionError(f"no segment of /proc/kcore holds {physical:#x}")


def free_kb() -> int:
    """Free memory, with what CPUs keep in their lists (tens of MiB), which MemFree leaves out."""
    kept = re.findall(r"^ +count: +(\d+)$", Path("/proc/zoneinfo").read_text(), re.MULTILINE)
    return meminfo_kb("MemFree") + sum(map(int, kept)) * PAGE // 1024


@functools.cache
def _symbol(name: str) -> int | None:
    # Line by line: an emulated kernel takes seconds to print all, and the image's are first.
    with Path("/proc/kallsyms").open() as file:
        for line in file:
            address, _, symbol_name, *_ = line.split()
            if symbol_name == name:
                return int(address, 16)
    return None


def symbol(name: str) -> int:
    """Address of a symbol of the kernel's image, from /proc/kallsyms."""
    address = _symbol(name)
    if address is None:
        raise KeyError(name)
    return address


def kernel_text() -> int:
    """Address of the beginning of "Kernel code" of /proc/iomem.

    arm64 counts what is before _stext to it from 6.2 on, and only then shows _text.
    """
    try:
        return symbol("_text")
    except KeyError:
        return symbol("_stext")


def iomem(name: str) -> tuple[int, int]:
    """First and last physical address of a named range in /proc/iomem."""
    for line in Path("/proc/iomem").read_text().splitlines():
        span, _, what = line.strip().partition(" : ")
        if what == name:
            first, last = (int(word, 16) for word in span.split("-"))
            return first, last
    raise KeyError(name)
