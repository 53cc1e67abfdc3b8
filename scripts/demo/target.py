#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""A process worth looking at: it has one page of every kind, says where, and waits.

Prints `NAME ADDRESS EXPLANATION` lines and then `ready`; ends when its standard input does.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from pathlib import Path

HUGE = 2 << 20
PAGE = 4096
MADV_HUGEPAGE = 14  # include/uapi/asm-generic/mman-common.h

libc = ctypes.CDLL(None, use_errno=True)
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def anonymous(size: int) -> int:
    """The address of ``size`` bytes of private anonymous memory that stays mapped."""
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    assert isinstance(address, int)
    assert address != ctypes.c_void_p(-1).value
    return address


def mapping(name: str) -> int:
    """Where the first mapping called ``name`` in /proc/self/maps begins."""
    with Path("/proc/self/maps").open(encoding="utf-8") as maps:
        for line in maps:
            if line.rstrip().endswith(name):
                return int(line.split("-")[0], 16)
    raise SystemExit(f"this process has no {name}")


def function(name: str) -> int:
    """Where a function of the C library is, which this process has already called."""
    address = ctypes.cast(getattr(libc, name), ctypes.c_void_p).value
    assert address is not None
    return address


def stack_pointer() -> int:
    """The stack pointer at the read of /proc/self/syscall (proc(5): the last field but one)."""
    return int(Path("/proc/self/syscall").read_text().split()[-2], 16)


def main() -> None:
    """Prepare one of each and say where."""
    huge_area = anonymous(2 * HUGE)
    huge = (huge_area + HUGE - 1) & -HUGE
    libc.madvise(huge, HUGE, MADV_HUGEPAGE)
    ctypes.memset(huge, 0x55, PAGE)

    hidden = anonymous(3 * PAGE) + PAGE
    ctypes.memset(hidden, 0x55, PAGE)
    libc.mprotect(hidden, PAGE, 0)

    hole = anonymous(3 * PAGE) + PAGE
    ctypes.memset(hole, 0x55, PAGE)
    libc.munmap(hole, PAGE)

    places = (
        ("heap", mapping("[heap]"), "the first page of the heap, written by the allocator"),
        ("stack", stack_pointer(), "the page the stack pointer is in"),
        ("text", function("mprotect"), "a function of the C library: a page of a file, executable"),
        ("huge", huge + 5 * PAGE, "inside a transparent huge page of 2 MiB"),
        ("protnone", hidden, "written, then mprotect(PROT_NONE): the frame stays, the CPU refuses"),
        ("hole", hole, "written, then unmapped: a hole between two mappings"),
    )
    for name, address, explanation in places:
        print(name, hex(address), explanation)
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
