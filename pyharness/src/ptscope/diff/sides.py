# SPDX-License-Identifier: GPL-2.0-or-later
"""What two snapshots have in common, and so what can be compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ptscope.errors import UsageError
from ptscope.snapshot.facts import Header
from ptscope.snapshot.reader import Snapshot


@dataclass(frozen=True)
class Sides:
    """Both headers; `frames` says whether frames and swap slots mean the same, `notes` is what a
    reader must know of a comparison of the two. `page` is the bytes of the smaller page."""

    old: Header
    new: Header
    old_name: str
    new_name: str
    frames: bool
    page: int
    notes: tuple[str, ...]

    @classmethod
    def of(cls, old: Snapshot, new: Snapshot) -> Sides:
        """Raises UsageError when there is nothing to compare: a process and the kernel half."""
        a, b = old.header, new.header
        if (a.target.pid is None) is not (b.target.pid is None):
            raise UsageError(
                f"{old.name} and {new.name} have no address in common: one is of a process, the "
                "other of the kernel half"
            )
        return cls(
            a,
            b,
            old.name,
            new.name,
            frames=_same_boot(a, b),
            page=min(a.layout.page_size, b.layout.page_size),
            notes=tuple(_notes(a, b)),
        )


def _same_boot(old: Header, new: Header) -> bool:
    return bool(old.boot_id) and old.boot_id == new.boot_id


def _notes(old: Header, new: Header) -> Iterator[str]:
    if not _same_boot(old, new):
        yield "of two boots: frames and swap slots are not compared"
    elif (old.target.pid, old.target.start_ticks) != (new.target.pid, new.target.start_ticks):
        yield "of two processes: what is at the same address is compared"
    elif old.target.exe != new.target.exe:
        yield "the process executed another program in between"
    if _same_boot(old, new) and old.time > new.time:
        yield "OLD was taken after NEW"
    if old.layout != new.layout:
        yield (
            f"of kernels with different layouts ({old.layout.name}, {new.layout.name}): what "
            "entries mean is compared, not their bits"
        )
    if old.ranges != new.ranges:
        yield "only addresses that are in both are compared"
    if old.with_vmas is not new.with_vmas:
        yield "one has no VMAs: those of the other are not compared"
