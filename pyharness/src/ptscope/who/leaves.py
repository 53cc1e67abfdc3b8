# SPDX-License-Identifier: GPL-2.0-or-later
"""Where a frame is mapped, without the module: every page of every VMA in /proc/PID/pagemap.

Slow: pagemap is read for each page of address space, whether something is there or not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from ptscope._core import ffi, lib
from ptscope.raw.pagemap import PAGEMAP_ENTRY
from ptscope.source.pagemap import PagemapFile
from ptscope.target.process import Process
from ptscope.target.vma import Vma, read_maps
from ptscope.who.places import Place, joined

CHUNK = 1 << 17  # pages of one read


def leaf_places(
    process: Process, pfn: int, tell: Callable[[int], None] = lambda address: None
) -> Iterator[Place]:
    """The places in one process, in order. `tell` hears how far it has come.

    Raises what reading pagemap and maps raises.
    """
    with PagemapFile(process.proc, hidden=False) as pagemap:
        yield from joined(
            place
            for vma in read_maps(process.proc)
            for place in _in_vma(pagemap, vma, pfn, tell)
        )
        pagemap.check_alive()


def _in_vma(
    pagemap: PagemapFile, vma: Vma, pfn: int, tell: Callable[[int], None]
) -> Iterator[Place]:
    page_size = os.sysconf("SC_PAGE_SIZE")
    first, last = vma.start // page_size, vma.end // page_size
    for start in range(first, last, CHUNK):
        tell(start * page_size)
        data = pagemap.read_many(start, min(CHUNK, last - start))
        count = len(data) // PAGEMAP_ENTRY
        raws = ffi.new("unsigned long long[]", count)
        ffi.memmove(raws, data, count * PAGEMAP_ENTRY)
        i = lib.ptscope_find_page(raws, count, 0, pfn)
        while i < count:
            yield Place((start + i) * page_size, 1, page_size, vma)
            i = lib.ptscope_find_page(raws, count, i + 1, pfn)
        if count < min(CHUNK, last - start):
            return  # vsyscall: beyond the user half
