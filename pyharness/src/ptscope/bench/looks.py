# SPDX-License-Identifier: GPL-2.0-or-later
"""The state of the tables at some addresses, before and after something was timed.

Through the module whole walks, and so which tables there are; without it what pagemap shows of the
leaves. A `Look` says None of what its source does not show.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path

from ptscope.decode.entry import Entry, decode
from ptscope.raw.pagemap import Page, split
from ptscope.raw.records import ENTRY_SIZE
from ptscope.source.base import RawWalk, Source
from ptscope.source.module import ModuleSource
from ptscope.target.frame import BITS, Frame
from ptscope.target.vma import Vma, find_vma, read_maps
from ptscope.walk import MAPPED

# Of one kernel there are few different entries but for the frame; many addresses share them.
_decode = lru_cache(maxsize=4096)(decode)


@dataclass(frozen=True)
class Look:
    """What an address had at one moment.

    `depth` is how many levels the walk went through, `tables` the frame of the table at each of
    them, root first, and `page_size` what the leaf maps in bytes. `frame` is that of the address,
    `allowed` what its VMA permits, as `rw-`.
    """

    state: str
    depth: int | None = None
    page_size: int | None = None
    frame: int | None = None
    writable: bool | None = None
    dirty: bool | None = None
    accessed: bool | None = None
    soft_dirty: bool | None = None
    uffd_wp: bool | None = None
    pkey: int | None = None
    tables: tuple[int, ...] | None = None
    allowed: str | None = None

    @property
    def zero(self) -> bool | None:
        """Whether the frame is a zero page; None when it cannot be known."""
        return None if self.frame is None else is_zero_page(self.frame)


@dataclass(frozen=True)
class Expect:
    """What a `Look` has to be; None: anything.

    `frame` compares with the look before: `same` or `other`.
    """

    state: str | None = None
    page_size: int | None = None
    writable: bool | None = None
    dirty: bool | None = None
    soft_dirty: bool | None = None
    uffd_wp: bool | None = None
    zero: bool | None = None
    allowed: str | None = None
    frame: str | None = None


_COMPARED = tuple(field.name for field in fields(Expect) if field.name not in ("frame", "state"))


def differences(expect: Expect, look: Look, before: Look | None = None) -> list[str]:
    """What of a look is not as it has to be; what its source does not show is not compared."""
    found = []
    if expect.state is not None and not _same_state(expect.state, look):
        found.append(f"the entry is {look.state}, not {expect.state}")
    for name in _COMPARED:
        wanted, seen = getattr(expect, name), getattr(look, name)
        if wanted is not None and seen is not None and wanted != seen:
            found.append(f"{name.replace('_', ' ')} is {seen}, not {wanted}")
    if expect.frame is not None and before is not None:
        known = look.frame is not None and before.frame is not None
        if known and (look.frame == before.frame) != (expect.frame == "same"):
            now = "the same" if look.frame == before.frame else "another"
            found.append(f"it has {now} frame")
    return found


def _same_state(wanted: str, look: Look) -> bool:
    if look.depth is not None:
        return look.state == wanted
    # pagemap: protnone is present, all that is neither present nor empty is "swapped", and a
    # guard marker is shown from 6.15 on only.
    seen = {"protnone": ("leaf",), "marker": ("swap", "marker", "none")}
    return look.state in seen.get(wanted, (wanted,))


_zero_frames: set[int] = set()


def is_zero_page(pfn: int) -> bool | None:
    """Whether a frame is a zero page. There are few of them, and they stay what they are."""
    if pfn in _zero_frames:
        return True
    frame = Frame.read(pfn)
    if frame is None:
        return None
    if frame.flags >> BITS["zero-page"] & 1:
        _zero_frames.add(pfn)
        return True
    return False


@dataclass(frozen=True)
class Eyes:
    """Looks through one source. `frames_hidden`: pagemap does not show us frames."""

    source: Source
    frames_hidden: bool = False

    @property
    def whole(self) -> bool:
        """Whether tables are seen, not leaves alone."""
        return isinstance(self.source, ModuleSource)

    def look(self, pid: int, addresses: Sequence[int]) -> list[Look]:
        """A look at each address. Raises what the source raises."""
        if isinstance(self.source, ModuleSource):
            return [self._of_walk(raw) for raw in self.source.walk(pid, addresses)]
        return self._of_pagemap(pid, addresses)

    def _of_walk(self, raw: RawWalk) -> Look:
        layout = self.source.layout
        assert layout is not None
        last = raw.entries[-1]
        name = next(level.name for level in layout.levels if level.number == last.level)
        entry: Entry = _decode(layout, name, last.raw)
        mapped = entry.state in MAPPED
        frame = None
        if mapped and entry.pfn is not None and entry.page_size is not None:
            frame = entry.pfn + raw.address % entry.page_size // layout.page_size
        return Look(
            state=entry.state,
            depth=len(raw.entries),
            page_size=entry.page_size if mapped else None,
            frame=frame,
            writable=None if entry.access is None else entry.access.write,
            dirty=entry.dirty,
            accessed=entry.accessed,
            soft_dirty=entry.soft_dirty,
            uffd_wp=entry.uffd_wp,
            pkey=entry.pkey,
            tables=tuple(
                (each.entry_pa - ENTRY_SIZE * each.index) // layout.page_size
                for each in raw.entries
            ),
            allowed=None if raw.vma is None else raw.vma.permissions[:3],
        )

    def _of_pagemap(self, pid: int, addresses: Sequence[int]) -> list[Look]:
        size = os.sysconf("SC_PAGE_SIZE")
        fd = os.open(f"/proc/{pid}/pagemap", os.O_RDONLY)
        try:
            data = b"".join(os.pread(fd, 8, address // size * 8) for address in addresses)
        finally:
            os.close(fd)
        vmas = read_maps(Path(f"/proc/{pid}"))
        return [
            _of_page(page, find_vma(vmas, address))
            for page, address in zip(split(data, self.frames_hidden), addresses, strict=True)
        ]


def _of_page(page: Page, vma: Vma | None) -> Look:
    state = "leaf" if page.present else "swap" if page.swapped else "none"
    if page.guard:
        state = "marker"
    # Without soft-dirty in the kernel the bit is never set, so that it is clear says nothing.
    return Look(
        state=state,
        frame=page.frame,
        soft_dirty=page.soft_dirty,
        uffd_wp=page.uffd_wp,
        allowed=None if vma is None else vma.permissions[:3],
    )


def table_bytes(pid: int) -> int:
    """What the kernel counts as PTE, PMD and PUD tables of a process (VmPTE), in bytes."""
    text = Path(f"/proc/{pid}/status").read_text(errors="replace")
    found = re.search(r"^VmPTE:\s*(\d+)", text, re.MULTILINE)
    return 0 if found is None else int(found[1]) * 1024
