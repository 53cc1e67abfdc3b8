# SPDX-License-Identifier: GPL-2.0-or-later
"""What a page frame is: /proc/kpageflags and /proc/kpagecount.

Both files hold one 64-bit word a frame; bit numbers are those of
include/uapi/linux/kernel-page-flags.h, which only ever grows.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

KPF_THP = 22

_STABLE = (
    "locked", "error", "referenced", "uptodate", "dirty", "lru", "active", "slab", "writeback",
    "reclaim", "buddy", "mmap", "anon", "swapcache", "swapbacked", "compound-head",
    "compound-tail", "hugetlb", "unevictable", "hwpoison", "nopage", "ksm", "thp", "offline",
    "zero-page", "idle", "page-table",
)  # fmt: skip
# Those for kernel hackers begin at bit 32 (include/linux/kernel-page-flags.h). The ones after these
# two change their meaning with the kind of page.
_INTERNAL = ("reserved", "mlocked")
NAMES = {**dict(enumerate(_STABLE)), **dict(enumerate(_INTERNAL, 32))}
BITS = {name: bit for bit, name in NAMES.items()}

# The first row whose flag is set names the frame; the order is from the special to the general.
KINDS = (
    ("nopage", "device"),
    ("hwpoison", "hwpoison"),
    ("zero-page", "zero page"),
    ("ksm", "ksm"),
    ("hugetlb", "hugetlb"),
    ("anon", "anonymous"),
    ("page-table", "page table"),
    ("slab", "slab"),
    ("buddy", "free"),
    ("offline", "offline"),
    ("reserved", "reserved"),  # the kernel's image, the vDSO in it, firmware
    # Page cache, shared memory included, is on an LRU list or at least up to date.
    ("lru", "file"),
    ("unevictable", "file"),
    ("uptodate", "file"),
)


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame: its raw flags, and how many page tables map it.

    `map_count` is None for frames that the kernel keeps no page of: device memory.
    """

    pfn: int
    flags: int
    map_count: int | None

    @classmethod
    def read(cls, pfn: int, proc: Path = Path("/proc")) -> Frame | None:
        """The frame `pfn`; None without the privilege to read the files, or without the files."""
        try:
            flags = _word(proc / "kpageflags", pfn)
            count = _word(proc / "kpagecount", pfn)
        except OSError:
            return None
        # Beyond the last frame of RAM the files end: no page stands for such a frame.
        if flags is None or flags >> BITS["nopage"] & 1:
            return cls(pfn, 1 << BITS["nopage"], None)
        return cls(pfn, flags, count)

    @property
    def kind(self) -> str:
        """anonymous, file, zero page, ksm, hugetlb, device, …; `other` for what no row names."""
        return next((kind for name, kind in KINDS if self.flags >> BITS[name] & 1), "other")

    @property
    def words(self) -> tuple[str, ...]:
        """The names of the flags that are set."""
        return tuple(name for bit, name in NAMES.items() if self.flags >> bit & 1)

    def to_json(self) -> dict[str, object]:
        """The `frame` object of `walk --json`."""
        return {
            "pfn": hex(self.pfn),
            "kind": self.kind,
            "flags": list(self.words),
            "raw_flags": hex(self.flags),
            "map_count": self.map_count,
        }


def _word(path: Path, pfn: int) -> int | None:
    fd = os.open(path, os.O_RDONLY)
    try:
        data = os.pread(fd, 8, pfn * 8)
    finally:
        os.close(fd)
    return struct.unpack("=Q", data)[0] if len(data) == 8 else None
