# SPDX-License-Identifier: GPL-2.0-or-later
"""What is known of a frame and of all who map it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ptscope.decode.layout import Layout
from ptscope.target.frame import Frame
from ptscope.target.process import Process
from ptscope.who.places import Place
from ptscope.who.processes import Skipped

# Frames of which the kernel does not count (or not only by page tables) who maps them.
UNCOUNTED = ("zero page", "device", "reserved", "page table", "slab", "free", "offline")


@dataclass(frozen=True)
class Mapping:
    """A place, and what pagemap says of it.

    `agrees` is None where pagemap shows no such pages, or it was not asked. `lasting` says what it
    shows instead where the two differed at each of several readings.
    """

    place: Place
    agrees: bool | None = None
    lasting: str | None = None

    def to_json(self) -> dict[str, object]:
        """An object of `mappings` in `who --json`."""
        place, entry = self.place, self.place.entry
        return {
            "address": hex(place.address),
            "count": place.count,
            "stride": place.stride,
            "level": None if entry is None else entry.level,
            "raw": None if entry is None else f"{entry.raw:#018x}",
            "entry_pa": None if place.entry_pa is None else hex(place.entry_pa),
            "state": "leaf" if entry is None else entry.state,
            "mapped": place.mapped,
            "page_size": None if entry is None else entry.page_size,
            "mapping_size": None if entry is None else entry.mapping_size,
            "effective": None if place.effective is None else place.effective.to_json(),
            "vma": None if place.vma is None else place.vma.to_json(),
            "lock": place.lock,
            "pagemap_agrees": self.agrees,
            "pagemap_shows": self.lasting,
        }


@dataclass(frozen=True)
class Mapper:
    """A process that maps the frame; those of `sharers` have the same address space."""

    process: Process
    sharers: tuple[Process, ...]
    mappings: tuple[Mapping, ...]

    @property
    def mapped(self) -> int:
        """How many entries map the frame."""
        return sum(m.place.count for m in self.mappings if m.place.mapped)

    def to_json(self) -> dict[str, object]:
        """An object of `processes` in `who --json`."""
        return {
            "pid": self.process.pid,
            "comm": self.process.comm,
            "sharing": [{"pid": each.pid, "comm": each.comm} for each in self.sharers],
            "mappings": [mapping.to_json() for mapping in self.mappings],
        }


@dataclass
class Answer:
    """The answer for one frame; it grows while processes are looked at.

    `before` and `after` are what kpageflags and kpagecount said then. `looked` counts address
    spaces, `entries` what was looked at in them, `limited` says that only some processes were
    wanted. `kernel` are places in the kernel half, None when that was not looked at.
    """

    pfn: int
    source: str
    release: str
    layout: Layout | None
    limited: bool
    before: Frame | None
    after: Frame | None = None
    looked: int = 0
    sharing: int = 0
    kernel_threads: int = 0
    entries: int = 0
    changed: int = 0
    mappers: list[Mapper] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    kernel: list[Place] | None = None

    @property
    def found(self) -> int:
        """How many entries map the frame."""
        return sum(mapper.mapped for mapper in self.mappers)

    @property
    def counted(self) -> int | None:
        """How many the kernel counts; None when it does not, or the number just changed."""
        frame = self.after
        if frame is None or self.before is None or frame.kind in UNCOUNTED:
            return None
        return frame.map_count if frame.map_count == self.before.map_count else None

    @property
    def moving(self) -> bool:
        """Whether the kernel's count changed while processes were looked at."""
        return (
            self.before is not None
            and self.after is not None
            and self.before.map_count != self.after.map_count
        )

    @property
    def lasting(self) -> list[tuple[Mapper, Mapping]]:
        """Places of which pagemap said something else, each time."""
        return [
            (mapper, mapping)
            for mapper in self.mappers
            for mapping in mapper.mappings
            if mapping.lasting
        ]

    def to_json(self) -> dict[str, object]:
        """The object that `who --json` prints."""
        return {
            "pfn": hex(self.pfn),
            "source": self.source,
            "kernel": self.release,
            "layout": None if self.layout is None else self.layout.name,
            "frame": None if self.after is None else self.after.to_json(),
            "mappings_found": self.found,
            "mappings_counted": self.counted,
            "count_changed_meanwhile": self.moving,
            "processes": [mapper.to_json() for mapper in self.mappers],
            "kernel_half": None
            if self.kernel is None
            else [Mapping(place).to_json() for place in self.kernel],
            "looked_at": {
                "all": not self.limited,
                "address_spaces": self.looked,
                "sharing_one": self.sharing,
                "kernel_threads_left_out": self.kernel_threads,
                "entries": self.entries,
            },
            "changed_meanwhile": self.changed,
            "skipped": [each.to_json() for each in self.skipped],
        }
