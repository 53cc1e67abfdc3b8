# SPDX-License-Identifier: GPL-2.0-or-later
"""What /proc/PID/smaps says of the VMAs of a process."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from ptscope.target.access import cannot_read, mm_gone
from ptscope.target.vma import Vma, parse_map

PMD_SIZE = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
# Fields that count what PMDs map: anonymous, shmem and file THP
# (Documentation/filesystems/proc.rst).
PMD_FIELDS = ("AnonHugePages", "ShmemPmdMapped", "FilePmdMapped")

_FIGURE = re.compile(r"^(\w+): +(\d+) kB$", re.MULTILINE)
_ELIGIBLE = re.compile(r"^THPeligible: +(\d+)$", re.MULTILINE)
_FLAGS = re.compile(r"^VmFlags: (.*)$", re.MULTILINE)
MOST_BODIES = 1024


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
    figures_of = _Bodies()
    header = ""
    body: list[str] = []
    for line in lines:
        # Names of figures begin with a capital, the address in a header is in small letters.
        if "A" <= line < "[":
            body.append(line)
            continue
        if header:
            yield SmapsVma(parse_map(header), *figures_of("".join(body)))
        header, body = line, []
    if header:
        yield SmapsVma(parse_map(header), *figures_of("".join(body)))


class Beside:
    """Finds VMAs in smaps that are asked for in the order of their addresses."""

    def __init__(self, smaps: Iterable[SmapsVma]) -> None:
        self._smaps = iter(smaps)
        self._next: SmapsVma | None = None

    def find(self, start: int, end: int) -> SmapsVma | None:
        """The VMA from `start` to `end`; None when there is none of just these bounds."""
        while self._next is None or self._next.vma.start < start:
            self._next = next(self._smaps, None)
            if self._next is None:
                return None
        vma = self._next.vma
        return self._next if (vma.start, vma.end) == (start, end) else None


class _Bodies:
    """What the text below the headers says; that of VMAs that are alike is parsed once.

    There may be a hundred thousand VMAs, most of them small, and nearly all alike. Whoever keeps
    them all keeps one set of figures for those that are.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[Mapping[str, int], bool | None, tuple[str, ...]]] = {}

    def __call__(self, text: str) -> tuple[Mapping[str, int], bool | None, tuple[str, ...]]:
        """Figures, eligibility and flags."""
        found = self._known.get(text)
        if found is None:
            if len(self._known) == MOST_BODIES:
                self._known.clear()
            found = self._known[text] = (
                {name: int(number) * 1024 for name, number in _FIGURE.findall(text)},
                None if (match := _ELIGIBLE.search(text)) is None else match[1] != "0",
                () if (match := _FLAGS.search(text)) is None else tuple(match[1].split()),
            )
        return found


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
