# SPDX-License-Identifier: GPL-2.0-or-later
"""What /proc/PID/smaps says of the page sizes of one VMA."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from ptscope.target.vma import Vma

PMD_SIZE = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
# Fields that count what PMDs map: anonymous, shmem and file THP
# (Documentation/filesystems/proc.rst).
PMD_FIELDS = ("AnonHugePages", "ShmemPmdMapped", "FilePmdMapped")


@dataclass(frozen=True, slots=True)
class Sizes:
    """All in bytes; `pmd_size` is None on kernels without transparent huge pages."""

    kernel_page: int
    resident: int
    pmd_mapped: int
    pmd_size: int | None


def read_sizes(proc: Path, vma: Vma) -> Sizes | None:
    """The sizes of `vma`; None when smaps cannot be read or has no such VMA any more.

    smaps is a sequence of VMAs, and the kernel visits the pages of each one that is read, so
    reading stops at the one that is asked for.
    """
    try:
        with (proc / "smaps").open(errors="replace") as lines:
            begin = f"{vma.start:08x}-{vma.end:08x} "
            for line in lines:
                if line.startswith(begin):
                    return _sizes(takewhile(lambda text: text.split()[0].endswith(":"), lines))
    except OSError:
        return None
    return None


def _sizes(lines: Iterable[str]) -> Sizes:
    kib = {}
    for line in lines:
        name, _, rest = line.partition(":")
        if rest.endswith(" kB\n"):
            kib[name] = int(rest.split()[0])
    return Sizes(
        kernel_page=kib.get("KernelPageSize", 0) * 1024,
        resident=kib.get("Rss", 0) * 1024,
        pmd_mapped=sum(kib.get(name, 0) for name in PMD_FIELDS) * 1024,
        pmd_size=int(PMD_SIZE.read_text()) if PMD_SIZE.exists() else None,
    )
