# SPDX-License-Identifier: GPL-2.0-or-later
"""The module's walk against /proc/PID/pagemap: two witnesses of the same entry.

What pagemap must say follows from the entry and its VMA by the rules of fs/proc/task_mmu.c, the
same from 5.10 to 6.12 where nothing else is said. A difference that lasts is a bug in one of the
two.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ptscope.decode.entry import Entry
from ptscope.decode.layout import Layout
from ptscope.raw.pagemap import Page
from ptscope.source.pagemap import PagemapFile, PagemapSource
from ptscope.target.process import Process
from ptscope.walk import MAPPED, Walk, Walker

# A live process changes between the two readings: a difference counts when it is there each time.
ATTEMPTS = 3
PAUSE = 0.02  # seconds

SWAPPED = ("swap", "migration", "device", "hwpoison", "marker")


@dataclass(frozen=True)
class Expected:
    """What pagemap must say of a page, and why where the entry alone would suggest otherwise."""

    present: bool = False
    swapped: bool = False
    frame: int | None = None
    swap_type: int | None = None
    swap_offset: int | None = None
    soft_dirty: bool = False
    uffd_wp: bool = False
    note: str | None = None


@dataclass(frozen=True)
class Difference:
    """One property that the two disagree about."""

    what: str
    walk: int | bool | None
    pagemap: int | bool | None

    def to_json(self) -> dict[str, object]:
        """Both values; numbers as hex text."""
        return {"what": self.what, "walk": _shown(self.walk), "pagemap": _shown(self.pagemap)}

    def __str__(self) -> str:
        return f"{self.what}: walk {_shown(self.walk)}, pagemap {_shown(self.pagemap)}"


@dataclass(frozen=True)
class Comparison:
    """The result for one address; `hidden` when frames could not be compared."""

    walk: Walk
    differences: tuple[Difference, ...]
    hidden: bool
    attempts: int
    note: str | None

    @property
    def agrees(self) -> bool:
        """True when pagemap says what it must."""
        return not self.differences

    def to_json(self) -> dict[str, object]:
        """The `compare` object of `walk --json`."""
        return {
            "agrees": self.agrees,
            "differences": [difference.to_json() for difference in self.differences],
            "frames_hidden": self.hidden,
            "attempts": self.attempts,
            "note": self.note,
        }


def compare(walker: Walker, process: Process, walks: Sequence[Walk]) -> Iterator[Comparison]:
    """Compare walks through the module with pagemap, walking again where they differ.

    Raises what a walk and a PagemapFile raise.
    """
    hidden = PagemapSource().frames_hidden
    with PagemapFile(process.proc, hidden) as pagemap:
        for walk in walks:
            for attempt in range(1, ATTEMPTS + 1):
                want = expected(walk)
                found = differences(want, pagemap.read(walk.address))
                # The walk was of the address space first found: is pagemap's the same?
                process.check_unchanged()
                if not found or attempt == ATTEMPTS:
                    break
                time.sleep(PAUSE)
                (walk,) = walker.walk([walk.address])
            yield Comparison(walk, found, hidden, attempt, want.note)


def expected(walk: Walk) -> Expected:
    """What pagemap must say where this walk was made; ValueError for one of leaves only."""
    vma, layout, last = walk.vma, walk.layout, walk.last
    if layout is None or last is None:
        raise ValueError("a walk without levels cannot be compared with pagemap")
    if vma is None:
        empty = last.state == "none"
        return Expected(note=None if empty else "outside every VMA pagemap shows nothing")
    soft_dirty_vma = _has(layout, vma.vm_flags, "softdirty")
    if _has(layout, vma.vm_flags, "pfnmap"):
        # mm/pagewalk.c, walk_page_test: such a VMA is one hole to every walker.
        return Expected(soft_dirty=soft_dirty_vma, note="pagemap skips VM_PFNMAP mappings")
    hugetlb = _has(layout, vma.vm_flags, "hugetlb")
    uffd_wp = bool(last.uffd_wp) and pagemap_has_uffd_wp(layout.release)
    if last.state in MAPPED:
        return Expected(
            present=True,
            frame=walk.mapping.pfn,
            # pagemap_hugetlb_range does not look at the entry's own soft-dirty bit.
            soft_dirty=soft_dirty_vma or (bool(last.soft_dirty) and not hugetlb),
            uffd_wp=uffd_wp,
        )
    if hugetlb or last.state not in SWAPPED or last.swap is None:
        note = "pagemap shows only present hugetlb pages" if last.state in SWAPPED else None
        return Expected(soft_dirty=soft_dirty_vma, uffd_wp=uffd_wp, note=note)
    return Expected(
        swapped=True,
        swap_type=last.swap.type,
        swap_offset=_swap_offset(layout, walk.address, last),
        soft_dirty=soft_dirty_vma or bool(last.soft_dirty),
        uffd_wp=uffd_wp,
    )


def pagemap_has_uffd_wp(release: str) -> bool:
    """Whether pagemap shows write protection by userfaultfd: from 5.14 on (fs/proc/task_mmu.c)."""
    numbers = re.match(r"(\d+)\.(\d+)", release)
    return numbers is None or (int(numbers[1]), int(numbers[2])) >= (5, 14)


def _swap_offset(layout: Layout, address: int, last: Entry) -> int | None:
    if last.swap is None:
        return None
    # An entry with a frame is shown as that frame, without what else its offset holds
    # (swp_offset_pfn, from 6.1); below a huge entry each page has a frame of its own.
    offset = last.swap.offset if last.pfn is None else last.pfn
    size = last.page_size or layout.page_size
    return offset + (address & (size - 1)) // layout.page_size


def differences(want: Expected, page: Page) -> tuple[Difference, ...]:
    """Where a page is not as expected. Hidden numbers are not compared."""
    rows: list[tuple[str, int | bool | None, int | bool | None]] = [
        ("present", want.present, page.present),
        ("swapped", want.swapped, page.swapped),
        ("soft-dirty", want.soft_dirty, page.soft_dirty),
        ("uffd-wp", want.uffd_wp, page.uffd_wp),
    ]
    if not page.hidden:
        rows += [
            ("frame", want.frame, page.frame),
            ("swap type", want.swap_type, page.swap_type),
            ("swap offset", want.swap_offset, page.swap_offset),
        ]
    return tuple(Difference(*row) for row in rows if row[1] != row[2])


def _has(layout: Layout, vm_flags: int | None, name: str) -> bool:
    return bool((vm_flags or 0) & layout.facts.get(f"vm.{name}", 0))


def _shown(value: int | bool | None) -> object:
    return hex(value) if isinstance(value, int) and not isinstance(value, bool) else value
