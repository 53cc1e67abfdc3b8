# SPDX-License-Identifier: GPL-2.0-or-later
"""What the tables of a process hold: all levels through the module, or pages through pagemap.

A `View` keeps what was seen of one process, and gives what has changed since, so that the work of
a step is what the step has changed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ptscope.decode.compiled import CompiledRules, compiled
from ptscope.decode.layout import Layout
from ptscope.decode.table import STATES
from ptscope.errors import Exited
from ptscope.model.kernel import PMD, PTE, Geometry
from ptscope.model.state import Page, Space
from ptscope.raw.records import RawTable, RawVma
from ptscope.raw.stream import MAX_READ, WITH_VMAS, build_request, parse_batch
from ptscope.source.module import ModuleSource
from ptscope.source.stream import entries_by_number
from ptscope.target.vma import read_maps

Key = tuple[int, int]
"""Level and index."""


@dataclass(frozen=True, slots=True)
class SeenVma:
    """A VMA as it was seen. Whether it is soft-dirty as a whole maps does not show: None."""

    start: int
    end: int
    prot: str
    shared: bool
    soft_dirty: bool | None


class View(Protocol):
    """What was seen of one process."""

    name: str
    raws: dict[int, dict[int, int]]
    """By level, then by index, as in `Space.entries`; pagemap's words at level PTE."""
    vmas: list[SeenVma]

    def look(self) -> set[Key]:
        """Look again; what is not as it was."""

    def outcome(self, address: int, page: Page | None) -> Mapping[str, bool | None]:
        """Which of the outcomes of `choice` the entry of an address shows."""


def differing(old: Mapping[int, int], new: Mapping[int, int]) -> dict[int, int]:
    """Indices whose value differs, with the new one (0: gone)."""
    if not old:
        return dict(new)
    changed = {index: raw for index, raw in new.items() if old.get(index) != raw}
    for index in old.keys() - new.keys():
        changed[index] = 0
    return changed


class ModuleView:
    """All levels of one process, through the module."""

    name = "module"

    def __init__(
        self, source: ModuleSource, pid: int, geometry: Geometry, ranges: Sequence[tuple[int, int]]
    ) -> None:
        """`ranges` are (first, last), both inside."""
        self._source = source
        self._path = source.directory / "dump"
        self._request = build_request(pid, WITH_VMAS, ranges)
        self._limits = entries_by_number(source.layout)
        self._rules: CompiledRules = compiled(source.layout)
        self._names = {level.number: level.name for level in source.layout.levels}
        self._layout: Layout = source.layout
        self._shifts = geometry.shifts
        self._parts: dict[Key, tuple[int, ...]] = {}
        self.pid = pid
        self.raws: dict[int, dict[int, int]] = {level: {} for level in geometry.levels}
        self.homes: dict[Key, int] = {}
        """Where tables are, by the level and index of the entry that points to them."""
        self.vmas: list[SeenVma] = []
        self._raw_vmas: list[RawVma] = []
        self._soft_dirty = source.layout.facts.get("vm.softdirty", 0)
        self._vm = {
            letter: source.layout.facts[f"vm.{name}"]
            for letter, name in (("r", "read"), ("w", "write"), ("x", "exec"), ("s", "mayshare"))
        }

    def look(self) -> set[Key]:
        """One request; see View."""
        vmas, tables = self.read()
        if vmas != self._raw_vmas:
            self._raw_vmas = vmas
            self.vmas = [self._seen(vma) for vma in vmas]
        return self._absorb(tables)

    def read(self) -> tuple[list[RawVma], list[RawTable]]:
        """The records of one request, those that came twice left out."""
        vmas: list[RawVma] = []
        tables: list[RawTable] = []
        sequence = 0
        fd = os.open(self._path, os.O_RDWR)
        try:
            os.write(fd, self._request)
            while data := os.read(fd, MAX_READ):
                batch = parse_batch(data, sequence, self._limits)
                sequence += 1
                for record in batch.records:
                    if isinstance(record, RawVma):
                        if not record.again:
                            vmas.append(record)
                    elif not record.again:
                        tables.append(record)
                if batch.end is not None and batch.end.status != "done":
                    raise Exited(f"the process {self.pid} is gone: {batch.end.status}")
        except OSError as error:
            raise self._source.explained(self._path, self.pid, error) from None
        finally:
            os.close(fd)
        return vmas, tables

    def _seen(self, vma: RawVma) -> SeenVma:
        prot = "".join(letter for letter in "rwx" if vma.vm_flags & self._vm[letter])
        return SeenVma(
            vma.start,
            vma.end,
            prot,
            bool(vma.vm_flags & self._vm["s"]),
            bool(vma.vm_flags & self._soft_dirty) if self._soft_dirty else None,
        )

    def _absorb(self, tables: Iterable[RawTable]) -> set[Key]:
        shifts = self._shifts
        parts: dict[Key, tuple[int, ...]] = {}
        homes: dict[Key, int] = {}
        for table in tables:
            level = table.level
            parts[level, table.address >> shifts[level]] = table.raws
            above = level + 1
            if above in shifts:
                homes[above, table.address >> shifts[above]] = table.table_pa
        changed: set[Key] = set()
        before, self._parts = self._parts, parts
        old: dict[int, dict[int, int]] = {}
        new: dict[int, dict[int, int]] = {}
        for where, source, target in ((parts, before, new), (before, parts, old)):
            for key, raws in where.items():
                if source.get(key) is not raws and source.get(key) != raws:
                    level, first = key
                    values = target.setdefault(level, {})
                    for index, raw in enumerate(raws, first):
                        if raw:
                            values[index] = raw
        for level in old.keys() | new.keys():
            seen = self.raws[level]
            for index, raw in differing(old.get(level, {}), new.get(level, {})).items():
                changed.add((level, index))
                if raw:
                    seen[index] = raw
                else:
                    seen.pop(index, None)
        for key, home in homes.items():
            if self.homes.get(key) != home:
                changed.add(key)
        self.homes = homes
        return changed

    def decode(self, level: int, raws: Sequence[int]) -> Any:
        """Entries of one level, as `struct ptscope_decoded`."""
        return self._rules.decode_array(self._names[level], raws)

    def at(self, address: int) -> tuple[int, Any] | None:
        """The entry of an address that is no table, as (level, decoded); None without one."""
        for level, shift in sorted(self._shifts.items()):
            raw = self.raws[level].get(address >> shift)
            if raw:
                decoded = self.decode(level, [raw])[0]
                return None if STATES[decoded.state] == "table" else (level, decoded)
        return None

    def outcome(self, address: int, page: Page | None) -> Mapping[str, bool | None]:
        """See View and choice.OUTCOMES."""
        found = self.at(address)
        huge_shift = self._shifts[PMD]
        has_table = bool(self.raws[PMD].get(address >> huge_shift)) and (
            found is None or found[0] < PMD
        )
        out: dict[str, bool | None] = {
            "huge": found is not None and found[0] >= PMD,
            "small": found is None or found[0] < PMD,
            "table": has_table,
            "no-table": not has_table,
        }
        if found is None:
            return out | {"present": False, "absent": True}
        level, entry = found
        state = STATES[entry.state]
        mapped = state in ("leaf", "protnone")
        out |= {"present": mapped, "absent": not mapped}
        out |= {"kept": mapped, "swapped": state == "swap"}
        if page is not None and mapped:
            want = page.known_frame()
            frame = entry.pfn
            if level > PTE:
                frame += address % (1 << self._shifts[level]) >> self._shifts[PTE]
            out |= {"same": want is None or frame == want, "fresh": want is None or frame != want}
        for yes, no, bit in (
            ("accessed", "old", IS_ACCESSED),
            ("dirty", "clean", IS_DIRTY),
            ("soft-dirty", "soft-clean", IS_SOFT_DIRTY),
            ("writable", "read-only", MAY_WRITE),
        ):
            out |= {yes: bool(entry.set & bit), no: not entry.set & bit}
        return out


def _bits() -> tuple[int, int, int, int]:
    from ptscope.decode.compiled import ATTRIBUTE

    return (
        ATTRIBUTE["accessed"],
        ATTRIBUTE["dirty"],
        ATTRIBUTE["soft_dirty"],
        ATTRIBUTE["access.write"],
    )


IS_ACCESSED, IS_DIRTY, IS_SOFT_DIRTY, MAY_WRITE = _bits()

# /proc/PID/pagemap (Documentation/admin-guide/mm/pagemap.rst)
PM_FRAME = (1 << 55) - 1
PM_SOFT_DIRTY, PM_EXCLUSIVE, PM_UFFD_WP, PM_GUARD = 1 << 55, 1 << 56, 1 << 57, 1 << 58
PM_FILE, PM_SWAP, PM_PRESENT = 1 << 61, 1 << 62, 1 << 63


@dataclass
class PagemapView:
    """The pages of one process as /proc/PID/pagemap shows them: no tables, no permissions."""

    pid: int
    geometry: Geometry
    ranges: Sequence[tuple[int, int]]
    name: str = "pagemap"
    raws: dict[int, dict[int, int]] = field(default_factory=lambda: {PTE: {}})
    vmas: list[SeenVma] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._proc = Path("/proc") / str(self.pid)
        self._words: dict[int, bytes] = {}

    def look(self) -> set[Key]:
        """See View. What is outside of all VMAs has no pages, and pagemap says so of itself."""
        self.vmas = [
            SeenVma(
                vma.start,
                vma.end,
                vma.permissions[:3].replace("-", ""),
                vma.permissions[3] == "s",
                None,
            )
            for vma in read_maps(self._proc)
            if any(vma.start <= last and first < vma.end for first, last in self.ranges)
        ]
        shift = self.geometry.shift
        changed: set[Key] = set()
        words: dict[int, bytes] = {}
        with (self._proc / "pagemap").open("rb", buffering=0) as file:
            for vma in self.vmas:
                first = vma.start >> shift
                data = os.pread(file.fileno(), 8 * (vma.end - vma.start >> shift), 8 * first)
                words[first] = data
        now = {
            index: word
            for first, data in words.items()
            for index, word in enumerate(memoryview(data).cast("Q"), first)
            if word & ~PM_SOFT_DIRTY
        }
        for index in differing(self.raws[PTE], now):
            changed.add((PTE, index))
        self.raws[PTE] = now
        return changed

    def outcome(self, address: int, page: Page | None) -> Mapping[str, bool | None]:
        """See View; what pagemap does not show is None."""
        word = self.raws[PTE].get(address >> self.geometry.shift, 0)
        present = bool(word & PM_PRESENT)
        out: dict[str, bool | None] = {
            "present": present,
            "absent": not present,
            "kept": present,
            "swapped": bool(word & PM_SWAP),
        }
        if page is not None and present:
            want = page.known_frame()
            same = want is None or word & PM_FRAME == want
            out |= {"same": same, "fresh": want is None or not same}
        return out


class Seen:
    """A `Choose` that looks: the first of the permitted outcomes that the entry shows.

    Where the view does not show it, the first outcome counts. `log` has what was chosen in a step.
    """

    def __init__(self, views: Mapping[int, View]) -> None:
        self._views = views
        self.log: list[tuple[int, str, str]] = []

    def __call__(
        self,
        space: Space,
        address: int,
        outcomes: Sequence[str],
        reason: str,
        page: Page | None = None,
    ) -> str:
        """See choice."""
        shown = self._views[space.slot].outcome(address, page)
        chosen = next((outcome for outcome in outcomes if shown.get(outcome)), outcomes[0])
        self.log.append((address, chosen, reason))
        return chosen
