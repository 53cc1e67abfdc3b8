# SPDX-License-Identifier: GPL-2.0-or-later
"""What /proc/PID/smaps says of the VMAs of a process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from ptscope.target.access import cannot_read, mm_gone
from ptscope.target.vma import Vma, parse_maps

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


@dataclass(frozen=True, slots=True)
class SmapsVma:
    """One VMA of smaps: its figures in bytes by their names there (``Rss``, ``Swap``, …).

    `thp_eligible` is the kernel's own answer whether it would map huge pages here now (5.0 and
    later), `flags` are the words of two letters of ``VmFlags``.
    """

    vma: Vma
    figures: Mapping[str, int]
    thp_eligible: bool | None = None
    flags: tuple[str, ...] = field(default=())

    def get(self, *names: str) -> int:
        """The sum of these figures, in bytes; one that this kernel does not have counts as 0."""
        return sum(self.figures.get(name, 0) for name in names)


def read_smaps(proc: Path) -> Iterator[SmapsVma]:
    """All VMAs, one after the other, each read when it is asked for.

    The kernel takes the lock anew for each page of text, so the VMAs are not from one moment.
    Raises NotPermitted, Unsupported, Exited or ChangedIdentity as `read_maps`.
    """
    path = proc / "smaps"
    try:
        with path.open(errors="backslashreplace") as lines:
            found = False
            for found_vma in parse_smaps(lines):
                found = True
                yield found_vma
    except OSError as error:
        raise cannot_read(path, error) from None
    if not found:
        raise mm_gone(proc)


def parse_smaps(lines: Iterable[str]) -> Iterator[SmapsVma]:
    """The VMAs of the lines of a `smaps` file (Documentation/filesystems/proc.rst)."""
    vma: Vma | None = None
    figures: dict[str, int] = {}
    eligible: bool | None = None
    flags: tuple[str, ...] = ()
    for line in lines:
        # Names of figures begin with a capital, the address in a header is in small letters.
        if not line[0].isupper():
            if vma is not None:
                yield SmapsVma(vma, figures, eligible, flags)
            (vma,) = parse_maps([line])
            figures, eligible, flags = {}, None, ()
            continue
        name, _, rest = line.partition(":")
        if rest.endswith(" kB\n"):
            figures[name] = int(rest[:-4]) * 1024
        elif name == "THPeligible":
            eligible = rest.strip() != "0"
        elif name == "VmFlags":
            flags = tuple(rest.split())
    if vma is not None:
        yield SmapsVma(vma, figures, eligible, flags)


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
