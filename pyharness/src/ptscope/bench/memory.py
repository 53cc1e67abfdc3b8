# SPDX-License-Identifier: GPL-2.0-or-later
"""System calls on our own address space, and where in it there is room.

The numbers are those of include/uapi/asm-generic/mman*.h, which x86-64, arm64 and riscv64 share.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from dataclasses import dataclass
from pathlib import Path

from ptscope._core import ffi, lib
from ptscope.decode.layout import Layout

PROT_NONE, PROT_READ, PROT_WRITE = 0, 1, 2
RW = PROT_READ | PROT_WRITE
MAP_SHARED, MAP_PRIVATE, MAP_FIXED, MAP_ANONYMOUS = 0x01, 0x02, 0x10, 0x20
MAP_GROWSDOWN, MAP_NORESERVE, MAP_POPULATE = 0x0100, 0x4000, 0x8000
MAP_HUGETLB, MAP_FIXED_NOREPLACE = 0x40000, 0x100000
MAP_HUGE_SHIFT = 26
ANON = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE
SHARED = MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE
MREMAP_MAYMOVE, MREMAP_FIXED, MREMAP_DONTUNMAP = 1, 2, 4
MADV_DONTNEED, MADV_FREE, MADV_HUGEPAGE, MADV_NOHUGEPAGE = 4, 8, 14, 15
MADV_DONTFORK, MADV_DONTDUMP, MADV_PAGEOUT, MADV_GUARD_INSTALL = 10, 16, 21, 102

CALLS: dict[str, int] = {
    name: getattr(lib, f"PTSCOPE_CALL_{name.upper()}")
    for name in (
        "getppid", "mmap", "munmap", "mremap", "mprotect", "madvise", "mlock", "munlock",
        "pkey_alloc", "pkey_free", "pkey_mprotect", "userfaultfd", "ioctl", "prctl", "pread",
    )
}  # fmt: skip


def call(name: str, *arguments: int) -> int:
    """One system call; raises OSError with its error."""
    padded = [argument & (1 << 64) - 1 for argument in arguments] + [0] * (6 - len(arguments))
    result: int = lib.ptscope_call(CALLS[name], ffi.new("unsigned long long[6]", padded))
    if result < 0:
        raise OSError(-result, f"{name}: {os.strerror(-result)}")
    return result


def map_memory(
    size: int, flags: int = ANON, prot: int = RW, fd: int = -1, at: int = 0, offset: int = 0
) -> int:
    """mmap(); the address."""
    return call("mmap", at, size, prot, flags, fd, offset)


def unmap(address: int, size: int) -> None:
    """munmap()."""
    call("munmap", address, size)


def advise(address: int, size: int, advice: int) -> None:
    """madvise()."""
    call("madvise", address, size, advice)


def reserve(size: int, align: int, offset: int = 0) -> int:
    """Map `size` bytes without access, so that nothing else gets in; the address.

    It lies `offset` bytes after a multiple of `align`. Raises OSError (ENOMEM) where the address
    space has no such hole.
    """
    whole = size + align + offset
    start = map_memory(whole, ANON, PROT_NONE)
    base = -(-start // align) * align + offset
    if base > start:
        unmap(start, base - start)
    if base + size < start + whole:
        unmap(base + size, start + whole - base - size)
    return base


CACHE = Path("/sys/devices/system/cpu/cpu0/cache/index2/size")
CACHE_BYTES = 2 << 20
"""Of a second-level cache, where the kernel does not tell."""
LINE = 64


@functools.cache
def _elsewhere() -> tuple[int, int]:
    """Memory twice as large as the second-level cache: address and size in bytes."""
    try:
        found = re.fullmatch(r"(\d+)K", CACHE.read_text().strip())
    except OSError:
        found = None
    size = 2 * (CACHE_BYTES if found is None else int(found[1]) << 10)
    address = map_memory(size)
    # A child would share its pages, each of which would be copied then when it is written next.
    advise(address, size, MADV_DONTFORK)
    return address, size


def work_elsewhere() -> None:
    """Write to other memory, so that what is measured next finds its data in no cache of the CPU's
    own, however long ago it was used."""
    address, size = _elsewhere()
    touch(address, size, LINE, write=True)


def touch(address: int, size: int, stride: int, write: bool) -> None:
    """Read or write one byte in each `stride` bytes."""
    lib.ptscope_touch(address, stride, -(-size // stride), write)


@dataclass(frozen=True)
class Geometry:
    """How an address is split: the bytes that one entry maps, by level from the PTE up."""

    page: int
    spans: tuple[int, ...]
    user_end: int

    @property
    def pmd(self) -> int:
        """What one PMD entry maps, in bytes."""
        return self.spans[1]

    @property
    def pud(self) -> int:
        """What one PUD entry maps, in bytes."""
        return self.spans[2]

    def level(self, size: int) -> int:
        """The highest level whose entries map no more than `size` bytes; 0 is the PTE."""
        return max(number for number, span in enumerate(self.spans) if span <= size)

    def above(self, size: int) -> int | None:
        """What an entry of the level above maps; None above the root."""
        level = self.level(size) + 1
        return self.spans[level] if level < len(self.spans) else None

    @classmethod
    def of(cls, layout: Layout | None) -> Geometry:
        """Of a layout, or as far as it can be known without one."""
        if layout is not None:
            spans = tuple(level.span for level in reversed(layout.levels))
            return cls(layout.page_size, spans, layout.user_last + 1)
        page = os.sysconf("SC_PAGE_SIZE")
        entries = page // 8
        spans = tuple(page * entries**level for level in range(_levels()))
        return cls(page, spans, spans[-1] * entries // 2)


def _levels() -> int:
    """Levels of the running kernel without the module's word for it.

    x86: the kernel clears la57 from the flags when it does not use it. riscv64: the `mmu` line.
    arm64 tells nothing; four is what most have.
    """
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(errors="replace")
        words = set(text.split())
        if "la57" in words or "sv57" in words:
            return 5
        if "sv39" in words:
            return 3
    return 4
