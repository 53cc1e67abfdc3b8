# SPDX-License-Identifier: GPL-2.0-or-later
"""The same without the module: pages from /proc/PID/pagemap, sizes from smaps.

Tables, and the entries' own bits (accessed, dirty, writable, …), are not visible here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from ptscope.raw.pagemap import PageSummary
from ptscope.source.pagemap import PagemapFile
from ptscope.space.rows import Row
from ptscope.space.usage import Usage
from ptscope.target.process import Process
from ptscope.target.smaps import PMD_FIELDS, PMD_SIZE, SmapsVma, read_smaps

CHUNK = 1 << 15  # entries read at once: 256 KiB
# Words of VmFlags that rule huge pages out (fs/proc/task_mmu.c, show_smap_vma_flags).
BARRIERS = (
    ("ht", "hugetlb"),
    ("pf", "device"),
    ("io", "device"),
    ("mm", "device"),
    ("nh", "nohugepage"),
)


def leaf_rows(
    process: Process, hidden: bool, on_pages: Callable[[int], None] | None = None
) -> Iterator[Row]:
    """The VMAs with what pagemap and smaps show; no lock spans what is read here.

    `hidden`: frames are hidden from us, so runs are not known. `on_pages` is told the address
    that is looked at. Raises as read_smaps and PagemapFile.
    """
    with PagemapFile(process.proc, hidden) as pagemap:
        for witness in read_smaps(process.proc):
            # The vsyscall page belongs to the kernel: pagemap does not reach it.
            if witness.vma.start >> 63:
                continue
            yield _row(pagemap, witness, hidden, on_pages)
        process.check_unchanged()


def _row(
    pagemap: PagemapFile,
    witness: SmapsVma,
    hidden: bool,
    on_pages: Callable[[int], None] | None,
) -> Row:
    page = os.sysconf("SC_PAGE_SIZE")
    vma = witness.vma
    sums = PageSummary()
    barrier = next((word for flag, word in BARRIERS if flag in witness.flags), None)
    # smaps looks at the entries itself: where it finds nothing, a hole of terabytes is left out.
    if witness.get("Rss", "Swap", "Shared_Hugetlb", "Private_Hugetlb"):
        for first in range(vma.start // page, vma.end // page, CHUNK):
            count = min(CHUNK, vma.end // page - first)
            sums.add(pagemap.read_many(first, count))
            if on_pages is not None:
                on_pages(first * page)
    found = sums.finish()
    present = found.present * page
    pmd_mapped = witness.get(*PMD_FIELDS)
    huge = _by_size(witness, present, pmd_mapped, page)
    usage = Usage(
        mapped=present,
        by_size=huge,
        resident=present if barrier == "hugetlb" else witness.get("Rss"),
        pmd_mapped=pmd_mapped,
        swap=witness.get("Swap"),
        properties={"soft_dirty": found.soft_dirty * page, "uffd_wp": found.uffd_wp * page},
        runs={} if hidden else found.runs,
        run_pages={} if hidden else found.run_pages,
    )
    return Row(vma, usage, witness, barrier, False, None)


def _by_size(witness: SmapsVma, present: int, pmd_mapped: int, page: int) -> dict[int, int]:
    """Bytes by size of the mapping, as far as smaps tells it."""
    kernel_page = witness.figures.get("KernelPageSize", page)
    if kernel_page > page:
        return {kernel_page: present} if present else {}
    sizes = {page: max(present - pmd_mapped, 0)}
    if pmd_mapped and PMD_SIZE.exists():
        sizes[int(PMD_SIZE.read_text())] = pmd_mapped
    return {size: amount for size, amount in sizes.items() if amount}
