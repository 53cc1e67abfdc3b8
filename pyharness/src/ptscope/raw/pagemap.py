# SPDX-License-Identifier: GPL-2.0-or-later
"""Entries of /proc/PID/pagemap, split in bulk by the C core.

The format is that of Documentation/admin-guide/mm/pagemap.rst: frame in bits 54:0 of a present
page, swap type in 4:0 and offset in 54:5 of a swapped one, soft-dirty 55, exclusive 56, uffd-wp 57,
guard 58 (from 6.15), file or shared 61, swapped 62, present 63.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ptscope._core import ffi, lib

PAGEMAP_ENTRY = 8  # bytes


@dataclass(frozen=True, slots=True)
class Page:
    """What pagemap says of one page.

    `frame` is None when the page is not present or frames are hidden from us; `swap_type` and
    `swap_offset` likewise. pagemap calls every non-present entry that is not empty "swapped":
    migration, device and marker entries too.
    """

    present: bool
    swapped: bool
    hidden: bool
    frame: int | None
    swap_type: int | None
    swap_offset: int | None
    soft_dirty: bool
    exclusive: bool
    uffd_wp: bool
    file: bool
    guard: bool


def split(data: bytes, hidden: bool) -> list[Page]:
    """Pages of consecutive 8-byte pagemap entries; `hidden` when the kernel zeroes frames for us.

    Raises ValueError when the length is not a multiple of 8 bytes.
    """
    if len(data) % PAGEMAP_ENTRY:
        raise ValueError("pagemap data is not a multiple of 8 bytes long")
    count = len(data) // PAGEMAP_ENTRY
    raws = ffi.new("unsigned long long[]", count)
    ffi.memmove(raws, data, len(data))
    pages = ffi.new("struct ptscope_page[]", count)
    lib.ptscope_pagemap_split(raws, count, pages)

    def swap_known(page: Any) -> bool:
        return bool(page.swapped and not page.present and not hidden)

    return [
        Page(
            present=bool(page.present),
            swapped=bool(page.swapped),
            hidden=hidden,
            frame=page.frame if page.present and not hidden else None,
            swap_type=page.swap_type if swap_known(page) else None,
            swap_offset=page.swap_offset if swap_known(page) else None,
            soft_dirty=bool(page.soft_dirty),
            exclusive=bool(page.exclusive),
            uffd_wp=bool(page.uffd_wp),
            file=bool(page.file),
            guard=bool(page.guard),
        )
        for page in pages
    ]


@dataclass(frozen=True, slots=True)
class PageSums:
    """Sums over pages, in pages; runs of consecutive frames by the logarithm of their length."""

    present: int
    swapped: int
    file: int
    exclusive: int
    soft_dirty: int
    uffd_wp: int
    runs: Mapping[int, int]
    run_pages: Mapping[int, int]


class PageSummary:
    """Sums up entries of pagemap in the order of their addresses."""

    def __init__(self) -> None:
        self._sums = ffi.new("struct ptscope_page_sums *")

    def add(self, data: bytes) -> None:
        """Take entries that follow those before."""
        count = len(data) // PAGEMAP_ENTRY
        raws = ffi.new("unsigned long long[]", count)
        ffi.memmove(raws, data, count * PAGEMAP_ENTRY)
        lib.ptscope_pagemap_sum(raws, count, self._sums)

    def finish(self) -> PageSums:
        """The sums; a run that goes on ends here."""
        sums = self._sums
        lib.ptscope_pagemap_sum_end(sums)
        return PageSums(
            present=sums.present,
            swapped=sums.swapped,
            file=sums.file,
            exclusive=sums.exclusive,
            soft_dirty=sums.soft_dirty,
            uffd_wp=sums.uffd_wp,
            runs={log: runs for log, runs in enumerate(sums.runs) if runs},
            run_pages={log: pages for log, pages in enumerate(sums.run_pages) if pages},
        )
