# SPDX-License-Identifier: GPL-2.0-or-later
"""Checks one target: scans it, compares sums, and confirms what is suspect."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Protocol

from ptscope.check.confirm import Confirmer, Outcome, TwiceReached
from ptscope.check.counts import Counting, Disagreement, of_process, of_vma
from ptscope.check.judge import Judge, Violation
from ptscope.check.rules import Machine
from ptscope.check.scan import GROUP, Area, PagemapReader, Scan, Scanner
from ptscope.check.witness import (
    Ranges,
    Status,
    memory_nodes,
    read_ranges,
    read_status,
    smaps_of,
    zero_page_frame,
)
from ptscope.compare import pagemap_has_uffd_wp
from ptscope.raw.pagemap import Page
from ptscope.source.base import RawWalk
from ptscope.source.module import ModuleSource
from ptscope.source.pagemap import PagemapFile
from ptscope.source.stream import open_stream
from ptscope.target.frame import BITS, Frame
from ptscope.target.process import Pid
from ptscope.target.smaps import Beside, SmapsVma, read_smaps

# Witnesses that a target without a directory in /proc lacks: the kernel half.
_SUMS_OF_VMAS = ("resident", "huge", "hugetlb", "swapped")
_SUMS = ("vm-size", "rss-counters", "hugetlb-counter", "table-count")


class Target(Protocol):
    """What is checked; `target.process.Process` is one."""

    @property
    def pid(self) -> int:
        """Its PID."""

    @property
    def comm(self) -> str:
        """What it calls itself."""

    @property
    def proc(self) -> Path:
        """Its directory under /proc."""

    def check_unchanged(self) -> None:
        """Raise Exited or ChangedIdentity when it is not what it was."""


@dataclass(frozen=True)
class Finding:
    """One invariant that does not hold, with the evidence: both values, and where."""

    invariant: str
    pid: int | None
    comm: str | None
    address: int | None
    level: str | None
    raw: int | None
    entry_pa: int | None
    vma: tuple[int, int] | None
    ours: str
    theirs: str
    witness: str

    def to_json(self) -> dict[str, object]:
        """Addresses and raw values as `0x…` text."""
        return {
            "invariant": self.invariant,
            "pid": self.pid,
            "comm": self.comm,
            "address": None if self.address is None else hex(self.address),
            "level": self.level,
            "raw": None if self.raw is None else f"{self.raw:#018x}",
            "entry_pa": None if self.entry_pa is None else hex(self.entry_pa),
            "vma": None if self.vma is None else [hex(self.vma[0]), hex(self.vma[1])],
            "entries_say": self.ours,
            "witness": self.witness,
            "witness_says": self.theirs,
        }


@dataclass
class Checked:
    """The result for one target; `changed` counts by invariant what did not hold still.

    `more` suspects were beyond what is looked at again.
    """

    pid: int | None
    comm: str | None
    findings: list[Finding] = field(default_factory=list)
    changed: Counter[str] = field(default_factory=Counter)
    entries: int = 0
    pages: int = 0
    vmas: int = 0
    tables: int = 0
    more: int = 0
    seconds: float = 0.0

    def to_json(self) -> dict[str, object]:
        """One object of `processes`."""
        return {
            "pid": self.pid,
            "comm": self.comm,
            "findings": [finding.to_json() for finding in self.findings],
            "changed": dict(sorted(self.changed.items())),
            "entries": self.entries,
            "pages_compared": self.pages,
            "vmas": self.vmas,
            "tables": self.tables,
            "suspects_left": self.more,
            "seconds": round(self.seconds, 6),
        }


class HugeZeroPage:
    """Tells of the frame of a huge page whether it is the huge zero page, by /proc/kpageflags."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._known: dict[int, bool] = {}

    def __call__(self, pfn: int) -> bool:
        """Asks once for each frame, until `forget`."""
        if pfn not in self._known:
            frame = Frame.read(pfn, self._proc)
            self._known[pfn] = frame is not None and bool(frame.flags >> BITS["zero-page"] & 1)
        return self._known[pfn]

    def forget(self) -> None:
        """It may be freed, and made anew elsewhere."""
        self._known.clear()


class Live:
    """Readings of a live process, or of the kernel half, for `confirm`."""

    def __init__(
        self, source: ModuleSource, pid: Pid, target: Target | None, scanner: Scanner,
        pagemap: PagemapFile | None, huge_zero: HugeZeroPage | None = None,
    ) -> None:  # fmt: skip
        self._source = source
        self._pid = pid
        self._target = target
        self._scanner = scanner
        self._pagemap = pagemap
        self._huge_zero = huge_zero

    def walk(self, addresses: Sequence[int]) -> Sequence[RawWalk]:
        """See `confirm.Readings`."""
        return self._source.walk(self._pid, addresses)

    def page(self, address: int) -> Page:
        """See `confirm.Readings`."""
        assert self._pagemap is not None
        return self._pagemap.read(address)

    def scan(
        self, ranges: Sequence[tuple[int, int]] | None, pages: PagemapReader | None = None
    ) -> Scan:
        """See `confirm.Readings`; with `pages` compared on the way."""
        if self._huge_zero is not None:
            self._huge_zero.forget()
        pti = bool(self._source.layout.runtime.get("pti")) and self._pid != "kernel"
        with open_stream(self._source, self._pid, ranges, user_pgd=pti) as stream:
            return self._scanner.scan(stream, pages)

    def smaps(self) -> Mapping[int, SmapsVma]:
        """See `confirm.Readings`."""
        assert self._target is not None
        return smaps_of(self._target.proc)

    def in_order(self) -> Iterator[SmapsVma]:
        """smaps, each VMA when it is asked for."""
        assert self._target is not None
        return read_smaps(self._target.proc)

    def status(self) -> Status:
        """See `confirm.Readings`."""
        assert self._target is not None
        return read_status(self._target.proc)


@dataclass
class Checker:
    """Checks targets on one machine through the module."""

    source: ModuleSource
    wanted: frozenset[str]
    machine: Machine
    ranges: Ranges | None
    counting: Counting
    hidden: bool = False
    huge_zero: HugeZeroPage = field(default_factory=HugeZeroPage)
    sleep: Callable[[float], None] = time.sleep
    read_ranges: Callable[[], Ranges | None] | None = None
    """Reads `ranges` anew: a device may have come since."""

    def __post_init__(self) -> None:
        """Make what serves for all targets."""
        self._scanner = Scanner(
            self.machine,
            self.ranges if self.wanted & {"frames-known", "tables-in-ram"} else None,
            self.huge_zero,
            pagemap_has_uffd_wp(self.source.layout.release),
            self.hidden,
        )

    @classmethod
    def here(cls, source: ModuleSource, wanted: frozenset[str]) -> Checker:
        """A checker that knows this machine."""
        zero = zero_page_frame()
        ranges = partial(read_ranges, source.layout.arch)
        return cls(
            source,
            wanted,
            Machine(source.layout, zero, memory_nodes()),
            ranges(),
            Counting(source.layout, os.cpu_count() or 1),
            hidden=zero is None,
            read_ranges=ranges,
        )

    def check(self, target: Target) -> Checked:
        """Check a process.

        Raises the TargetErrors when it exits or executes another program meanwhile, NotPermitted.
        """
        began = time.monotonic()
        with _opened(target.proc, self.hidden) as pagemap:
            live = Live(
                self.source, target.pid, target, self._scanner, pagemap.file, self.huge_zero
            )
            pages = PagemapReader(pagemap.fd) if "pagemap" in self.wanted else None
            scan = live.scan(None, pages)
            out = _begun(scan, target.pid, target.comm)
            confirmer = self._confirmer(live, scan)
            outcomes = [*self._of_entries(confirmer, scan), confirmer.pages(scan.differing)]
            outcomes += self._sums(confirmer, live, scan)
            target.check_unchanged()
            pagemap.file.check_alive()
        return self._finished(out, outcomes, scan, began)

    @property
    def not_of_kernel(self) -> frozenset[str]:
        """What cannot be asked of the kernel half here.

        Other than on x86 it maps the I/O space of PCI, by pci_remap_iospace(), from a window that
        neither iomem nor vmallocinfo names.
        """
        return frozenset() if self.source.layout.arch == "x86_64" else frozenset({"frames-known"})

    def check_kernel(self) -> Checked:
        """Check the kernel half. Raises Unstable when it changes all the time."""
        began = time.monotonic()
        live = Live(self.source, "kernel", None, self._scanner, None)
        scan = live.scan(None)
        confirmer = replace(self._confirmer(live, scan), wanted=self.wanted - self.not_of_kernel)
        return self._finished(
            _begun(scan, None, None), self._of_entries(confirmer, scan), scan, began
        )

    def _confirmer(self, live: Live, scan: Scan) -> Confirmer:
        ranges = self.ranges
        if scan.suspects and ranges is not None and self.read_ranges is not None:
            ranges = self.read_ranges()
        return Confirmer(live, Judge(self.machine, ranges), self.wanted, self.sleep)

    def _of_entries(self, confirmer: Confirmer, scan: Scan) -> list[Outcome]:
        names = {level.number: level.name for level in self.source.layout.levels}
        addresses = sorted({row.address for row in scan.suspects if row.why & ~GROUP})
        groups = [(row.address, names[row.level]) for row in scan.suspects if row.why & GROUP]
        outcomes = [confirmer.entries(addresses), confirmer.groups(groups)]
        if "tables-once" in self.wanted and scan.areas:
            outcomes.append(confirmer.tables(scan.reached_twice()[:MOST_TABLES]))
        return outcomes

    def _sums(self, confirmer: Confirmer, live: Live, scan: Scan) -> list[Outcome]:
        outcomes = []
        if self.wanted.intersection(_SUMS_OF_VMAS):
            smaps = Beside(live.in_order())
            vmas: list[tuple[Area, str]] = []
            for area in scan.areas:
                theirs = smaps.find(area.start, area.end)
                if theirs is None:
                    vmas += [(area, name) for name in _SUMS_OF_VMAS if name in self.wanted][:1]
                    continue
                vmas += [
                    (area, row.invariant)
                    for row in of_vma(self.counting, area, theirs)
                    if row.invariant in self.wanted
                ]
            outcomes.append(confirmer.vmas(self.counting, vmas))
        if self.wanted.intersection(_SUMS):
            found = [
                (row.invariant, row.witness_name)
                for row in of_process(self.counting, scan, live.status())
                if row.invariant in self.wanted
            ]
            outcomes.append(confirmer.process(self.counting, found))
        return outcomes

    def _finished(
        self, out: Checked, outcomes: Sequence[Outcome], scan: Scan, began: float
    ) -> Checked:
        for outcome in outcomes:
            out.findings += [finding_of(out, row) for row in outcome.findings]
            out.changed.update(outcome.changed)
        out.more = scan.more
        out.seconds = time.monotonic() - began
        return out


MOST_TABLES = 64


class _opened(AbstractContextManager["_opened"]):
    """A pagemap file for single pages and one for many, of the same address space."""

    def __init__(self, proc: Path, hidden: bool) -> None:
        self.file = PagemapFile(proc, hidden)
        self.fd = os.open(proc / "pagemap", os.O_RDONLY)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self.fd)
        self.file.__exit__(kind, error, trace)


def _begun(scan: Scan, pid: int | None, comm: str | None) -> Checked:
    return Checked(
        pid, comm, entries=scan.entries, pages=scan.pages, vmas=len(scan.areas),
        tables=len(scan.tables),
    )  # fmt: skip


def finding_of(of: Checked, row: Violation | Disagreement | TwiceReached) -> Finding:
    """The finding for what was confirmed of a target."""
    make = partial(Finding, pid=of.pid, comm=of.comm)
    if isinstance(row, Violation):
        return make(
            invariant=row.invariant, address=row.address, level=row.level, raw=row.entry.raw,
            entry_pa=row.entry.entry_pa, vma=None, ours=row.ours, theirs=row.theirs,
            witness=WITNESS.get(row.invariant, "the VMA or the entry's own form"),
        )  # fmt: skip
    if isinstance(row, TwiceReached):
        return make(
            invariant="tables-once", address=row.second.address, level=None, raw=None,
            entry_pa=None, vma=None, ours=f"the table at {row.second.pa:#x}",
            theirs=f"{row.first.address:#x} leads to it too", witness="the tables",
        )  # fmt: skip
    area = row.area
    return make(
        invariant=row.invariant, address=None if area is None else area.start, level=None, raw=None,
        entry_pa=None, vma=None if area is None else (area.start, area.end),
        ours=f"{row.tables >> 10} KiB {row.what}", theirs=f"{row.witness >> 10} KiB",
        witness=row.witness_name,
    )  # fmt: skip


WITNESS = {
    "pagemap": "pagemap",
    "frames-known": "/proc/iomem",
    "tables-in-ram": "/proc/iomem",
    "pti-copies": "the user copy of the root",
    "levels": "the entry above",
}
