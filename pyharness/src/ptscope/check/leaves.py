# SPDX-License-Identifier: GPL-2.0-or-later
"""The invariants that can be checked without the module: sums of pagemap against smaps and status.

pagemap shows no tables, and of a leaf only where its page is. It does not tell a page under
migration from a swapped one, nor special pages from others, so sums have bounds that are wider than
those of entries.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ptscope._core import ffi, lib
from ptscope.check.confirm import AGREEING, LONGEST_PAUSE, PAUSE, TRIES
from ptscope.check.invariants import Invariant
from ptscope.check.process import Checked, Finding, HugeZeroPage, Target
from ptscope.check.witness import (
    Ranges,
    Status,
    read_ranges,
    read_status,
    smaps_of,
    zero_page_frame,
)
from ptscope.errors import Unsupported
from ptscope.raw.pagemap import PAGEMAP_ENTRY
from ptscope.source.pagemap import PagemapFile
from ptscope.target.smaps import SmapsVma
from ptscope.target.vma import Vma, read_maps

LEAF_INVARIANTS = ("frames-known", "vm-size", "resident", "hugetlb", "swapped")
# Pages of pagemap read at once, and the most of a VMA: pagemap takes its time for holes too.
ROOM = 1 << 16
MOST_PAGES = 1 << 26
# What one finding's looking for the huge zero page may cost.
MOST_FRAMES = 1 << 20

_PRESENT = 1 << 63
_FRAME = (1 << 55) - 1


@dataclass(frozen=True)
class Leaves:
    """What pagemap shows of a VMA, in pages."""

    present: int
    swapped: int
    zero: int
    digest: int
    outside: int
    outside_at: int


@dataclass
class LeafChecker:
    """Checks processes by what /proc shows. `zero_pfn` is None where frames are hidden."""

    wanted: frozenset[str]
    zero_pfn: int | None
    ranges: Ranges | None
    huge_zero: HugeZeroPage = field(default_factory=HugeZeroPage)
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        """Allocate what C works with."""
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._words = ffi.new("unsigned long long[]", ROOM)
        self._buffer = memoryview(ffi.buffer(self._words)).cast("B")
        known = self.ranges.known if self.ranges is not None and self._frames else ()
        self._ranges = ffi.new("struct ptscope_range[]", [(row.first, row.last) for row in known])
        self._range_count = len(known)

    @classmethod
    def here(cls, wanted: frozenset[str]) -> LeafChecker:
        """A checker that knows this machine."""
        return cls(wanted, zero_page_frame(), read_ranges(os.uname().machine))

    @property
    def _frames(self) -> bool:
        return (
            "frames-known" in self.wanted and self.zero_pfn is not None and self.ranges is not None
        )

    def why_not(self, row: Invariant) -> str | None:
        """Why one of LEAF_INVARIANTS cannot be checked."""
        if row.name in ("frames-known", "resident") and self.zero_pfn is None:
            return "frames are hidden from us: run ptscope as root"
        if row.name == "frames-known" and self.ranges is None:
            return "/proc/iomem hides addresses from us"
        return None

    def check_kernel(self) -> Checked:
        """The kernel half has no pagemap."""
        raise Unsupported("/proc shows nothing of the kernel half", "it needs the module")

    def check(self, target: Target) -> Checked:
        """Check a process. Raises the TargetErrors, NotPermitted."""
        began = time.monotonic()
        out = Checked(target.pid, target.comm)
        with PagemapFile(target.proc, self.zero_pfn is None) as pagemap:
            fd = os.open(target.proc / "pagemap", os.O_RDONLY)
            try:
                vmas = read_maps(target.proc)
                # The vsyscall page of x86 is no VMA of the process.
                vmas = tuple(vma for vma in vmas if vma.end <= 1 << 63)
                out.vmas = len(vmas)
                self._vmas(out, target, fd, vmas)
                if "vm-size" in self.wanted:
                    self._settle(out, "vm-size", lambda: self._size(target, out))
                target.check_unchanged()
                pagemap.check_alive()
            finally:
                os.close(fd)
        out.seconds = time.monotonic() - began
        return out

    def _vmas(self, out: Checked, target: Target, fd: int, vmas: tuple[Vma, ...]) -> None:
        seen = {}
        for vma in vmas:
            if (vma.end - vma.start) // self._page > MOST_PAGES:
                out.more += 1
                continue
            seen[vma.start] = leaves = self._leaves(fd, vma)
            out.entries += leaves.present + leaves.swapped
            if leaves.outside:
                self._settle(
                    out,
                    "frames-known",
                    lambda vma=vma: self._outside(fd, vma, out),  # type: ignore[misc]
                )
        if not self.wanted & {"resident", "hugetlb", "swapped"}:
            return
        smaps = smaps_of(target.proc)
        for vma in vmas:
            theirs = smaps.get(vma.start)
            if vma.start not in seen:
                continue
            if theirs is None or theirs.vma.end != vma.end:
                out.changed["resident"] += 1
                continue
            for invariant in {
                row.invariant for row in self._sums(out, vma, seen[vma.start], theirs, fd)
            }:
                self._settle(
                    out, invariant,
                    lambda vma=vma, name=invariant: self._again(out, target, fd, vma, name),  # type: ignore[misc]
                )  # fmt: skip

    def _settle(
        self, out: Checked, invariant: str, look: Callable[[], tuple[object, Finding | None] | None]
    ) -> None:
        """Look until the same is seen AGREEING times in a row, or it has changed (see confirm)."""
        last: object = None
        length = 0
        pause = PAUSE
        for attempt in range(TRIES):
            if attempt:
                self.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            seen = look()
            if seen is None:
                length = 0
                continue
            key, finding = seen
            if finding is None:
                if attempt:
                    out.changed[invariant] += 1
                return
            length = length + 1 if length and key == last else 1
            last = key
            if length == AGREEING:
                out.findings.append(finding)
                return
        out.changed[invariant] += 1

    def _again(
        self, out: Checked, target: Target, fd: int, vma: Vma, invariant: str
    ) -> tuple[object, Finding | None] | None:
        before = self._leaves(fd, vma)
        smaps: Mapping[int, SmapsVma] = smaps_of(target.proc)
        after = self._leaves(fd, vma)
        theirs = smaps.get(vma.start)
        if before != after or theirs is None or theirs.vma.end != vma.end:
            return None
        found = [
            row for row in self._sums(out, vma, before, theirs, fd) if row.invariant == invariant
        ]
        return (before, dict(theirs.figures)), found[0] if found else None

    def _sums(
        self, out: Checked, vma: Vma, leaves: Leaves, theirs: SmapsVma, fd: int
    ) -> Iterator[Finding]:
        page = self._page
        hugetlb = "ht" in theirs.flags
        # What pagemap calls swapped may be a page under migration, which smaps counts as resident.
        least = leaves.present - leaves.zero
        most = least + leaves.swapped
        rows: list[tuple[str, int, int, int, str]] = []
        if hugetlb:
            both = theirs.get("Shared_Hugetlb", "Private_Hugetlb")
            # pagemap shows of hugetlb only what is present.
            rows.append(("hugetlb", leaves.present * page, 1 << 64, both, "Hugetlb"))
        elif "mm" not in theirs.flags and "pf" not in theirs.flags and self.zero_pfn is not None:
            if theirs.get("Rss") < least * page:
                least -= self._huge_zero_pages(fd, vma)
            rows.append(("resident", least * page, most * page, theirs.get("Rss"), "Rss"))
        if not vma.inode and not hugetlb:
            rows.append(("swapped", 0, leaves.swapped * page, theirs.get("Swap"), "Swap"))
        for invariant, low, high, figure, name in rows:
            if invariant in self.wanted and not low <= figure <= high:
                yield Finding(
                    invariant, out.pid, out.comm, vma.start, None, None, None, (vma.start, vma.end),
                    f"{low >> 10} to {high >> 10} KiB by pagemap", f"{figure >> 10} KiB", name,
                )  # fmt: skip

    def _size(self, target: Target, out: Checked) -> tuple[object, Finding | None] | None:
        def size() -> int:
            return sum(vma.end - vma.start for vma in read_maps(target.proc) if vma.end <= 1 << 63)

        before = size()
        status: Status = read_status(target.proc)
        if before != size():
            return None
        finding = None
        if status.vm_size is not None and status.vm_size != before:
            finding = Finding(
                "vm-size", out.pid, out.comm, None, None, None, None, None,
                f"{before >> 10} KiB in VMAs of maps", f"{status.vm_size >> 10} KiB", "VmSize",
            )  # fmt: skip
        return (before, status.vm_size), finding

    def _outside(self, fd: int, vma: Vma, out: Checked) -> tuple[object, Finding | None] | None:
        leaves = self._leaves(fd, vma)
        if not leaves.outside:
            return leaves, None
        address = vma.start + leaves.outside_at * self._page
        return leaves, Finding(
            "frames-known", out.pid, out.comm, address, None, None, None, None,
            f"{leaves.outside} frames", "in no range", "/proc/iomem",
        )  # fmt: skip

    def _leaves(self, fd: int, vma: Vma) -> Leaves:
        sums = ffi.new("struct ptscope_leaves *")
        zero = (1 << 64) - 1 if self.zero_pfn is None else self.zero_pfn
        for done, count in self._read(fd, vma):
            lib.ptscope_check_leaves(
                self._words, count, self._ranges, self._range_count, zero, self._page, done, sums
            )
        return Leaves(
            sums.present, sums.swapped, sums.zero, sums.digest, sums.outside, sums.outside_at
        )

    def _huge_zero_pages(self, fd: int, vma: Vma) -> int:
        """Pages of the VMA that the huge zero page maps: whole aligned PMDs of one frame each."""
        if vma.inode:
            return 0
        self.huge_zero.forget()
        per_pmd = self._page // PAGEMAP_ENTRY
        found = 0
        first = vma.start // self._page
        for done, count in self._read(fd, vma):
            words: Any = self._words
            for i in range(-(first + done) % per_pmd, count, per_pmd):
                if words[i] & _PRESENT and self.huge_zero(words[i] & _FRAME):
                    found += min(per_pmd, count - i)
        return found

    def _read(self, fd: int, vma: Vma) -> Iterator[tuple[int, int]]:
        """Fill the buffer piece by piece: how many pages came before, and how many these are."""
        first, total = vma.start // self._page, (vma.end - vma.start) // self._page
        done = 0
        while done < total:
            want = min(ROOM, total - done)
            came = os.preadv(fd, [self._buffer[: want * 8]], (first + done) * 8) // 8
            if not came:
                return
            yield done, came
            done += came


__all__ = ["LEAF_INVARIANTS", "LeafChecker", "Leaves"]
