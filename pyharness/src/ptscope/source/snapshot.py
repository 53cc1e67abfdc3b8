# SPDX-License-Identifier: GPL-2.0-or-later
"""A snapshot file as a source: what the module gave then, on any machine, now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from types import TracebackType

from ptscope.decode.entry import decode
from ptscope.decode.layout import Layout, Level
from ptscope.errors import BadStream, UsageError
from ptscope.raw.records import ENTRY_SIZE, Batch, End, Lock, RawEntry, RawTable, RawVma
from ptscope.raw.stream import BatchChecker, batch_buffer, parse_batch
from ptscope.snapshot.container import damaged
from ptscope.snapshot.reader import Snapshot
from ptscope.source.assemble import vma_of
from ptscope.source.base import RawWalk
from ptscope.source.module import check_address
from ptscope.source.stream import Progress, Request, entries_by_number
from ptscope.target.process import Pid
from ptscope.target.vma import Vma, named

# A run of entries that repeat each other is one record at each level, or a few where it was cut by
# the end of a batch: more than this is no work of the module.
MOST_MOVES = 64


class SnapshotStream(AbstractContextManager["SnapshotStream"]):
    """A RawStream from a snapshot: its batches one after the other, in one buffer.

    Raises BadSnapshot in place of BadStream: whatever breaks a rule there is the file's fault.
    """

    source = "snapshot"

    def __init__(self, snapshot: Snapshot) -> None:
        """Nothing is read before the stream is iterated. The snapshot stays the caller's."""
        self._snapshot = snapshot
        header = snapshot.header
        self.layout = header.layout
        self.request = Request(
            pid_of(snapshot), header.ranges, header.with_vmas, header.with_user_pgd
        )
        self.progress = Progress()
        self._checker = BatchChecker(entries_by_number(header.layout))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    @property
    def end(self) -> End | None:
        """The end record; None until it has come."""
        return self._checker.end

    def __iter__(self) -> Iterator[memoryview]:
        """The batches; see RawStream."""
        name = self._snapshot.name
        buffer = batch_buffer()
        size = 0
        for data in self._snapshot.batches():
            batch = buffer[: len(data)]
            batch[:] = data
            try:
                self.progress.add(self._checker.check(batch))
            except BadStream as error:
                raise damaged(name, error.cause) from None
            size += len(data)
            yield batch.toreadonly()
        totals = self._snapshot.trailer.totals
        came = self.progress
        if (
            self.end is None
            or self.end.status != self._snapshot.trailer.end
            or (size, came.batches, came.vmas, came.tables, came.entries)
            != (totals.bytes, totals.batches, totals.vmas, totals.tables, totals.entries)
        ):
            raise damaged(name, "what it holds is not what its trailer counts")


@dataclass(frozen=True)
class SnapshotSource:
    """Walks in a snapshot. What it shows of an address was read in one hold of the lock, then."""

    snapshot: Snapshot
    name: str = "snapshot"

    @property
    def layout(self) -> Layout:
        """The layout of the kernel that the snapshot is from."""
        return self.snapshot.header.layout

    def walk(self, pid: Pid, addresses: Sequence[int]) -> list[RawWalk]:
        """The walks of the addresses; `pid` must be that of the snapshot.

        An entry that was empty was not dumped, but its table was or is what the entry above points
        to. Raises UsageError for an address that was not dumped, BadSnapshot.
        """
        if pid != pid_of(self.snapshot):
            raise UsageError(f"{self.snapshot.name} is of {pid_of(self.snapshot)}, not of {pid}")
        for address in addresses:
            check_dumped(self.snapshot, address)
        return [self._walk(address) for address in addresses]

    def _walk(self, address: int, moves: int = 0) -> RawWalk:
        entries = entries_by_number(self.layout)
        best = _Chain([], None, "none")
        root_pa: int | None = None
        vma: RawVma | None = None
        for sequence, data in self.snapshot.batches_near(address):
            try:
                batch = parse_batch(bytes(data), sequence, entries)
            except BadStream as error:
                raise damaged(self.snapshot.name, error.cause) from None
            for record in batch.records:
                if isinstance(record, RawVma) and record.start <= address < record.end:
                    vma = record
                elif isinstance(record, RawTable) and record.level == self.layout.levels[0].number:
                    root_pa = record.table_pa if not record.user_pgd else root_pa
            chain = _chain(self.layout, address, batch)
            # The batch that went furthest down is the one that read what is there.
            if len(chain.entries) > len(best.entries) or not best.entries:
                best = chain
        if root_pa is None:
            raise UsageError(
                f"{self.snapshot.name} has no table at all: nothing was mapped in what was dumped"
            )
        if best.repeated is not None:
            if moves == MOST_MOVES:
                raise damaged(self.snapshot.name, "entries repeat others without end")
            found = (*best.entries, *self._below_repeated(best.repeated, address, moves + 1))
        else:
            found = tuple(self._with_empty(best.entries, address, root_pa))
        return RawWalk(
            address=address,
            entries=found,
            user_pgd=best.user,
            vma=None if vma is None else vma_of(self.layout, vma),
            lock=best.lock,
        )

    def _below_repeated(
        self, table: RawTable, address: int, moves: int
    ) -> Iterator[RawEntry]:
        """What was reported below the entry that those of ``table`` repeat, as of ``address``."""
        level = next(each for each in self.layout.levels if each.number == table.level)
        moved = (address & -level.span) - (table.address - level.span)
        for entry in self._walk(address - moved, moves).entries:
            if entry.level < table.level:
                yield replace(entry, address=entry.address + moved)

    def _with_empty(
        self, chain: Sequence[RawEntry], address: int, root_pa: int
    ) -> Iterator[RawEntry]:
        """The entries that were dumped, and the empty one at which the walk ended."""
        yield from chain
        levels = self.layout.levels
        if not chain:
            yield _empty(self.layout, levels[0], address, root_pa)
        elif len(chain) < len(levels):
            decoded = decode(self.layout, levels[len(chain) - 1].name, chain[-1].raw)
            if decoded.state == "table" and decoded.pa is not None:
                yield _empty(self.layout, levels[len(chain)], address, decoded.pa)


@dataclass(frozen=True)
class _Chain:
    """What a batch has of the way to an address: entries from the root on, maybe none."""

    entries: Sequence[RawEntry]
    user: RawEntry | None
    lock: Lock
    repeated: RawTable | None = None
    """Has the last entry, if it repeats the one before: see ptscope.h."""


def _chain(layout: Layout, address: int, batch: Batch) -> _Chain:
    found: dict[int, RawEntry] = {}
    user: RawEntry | None = None
    repeated: RawTable | None = None
    levels = {level.number: level for level in layout.levels}
    for table in batch.records:
        if not isinstance(table, RawTable):
            continue
        level = levels[table.level]
        position = (address >> level.shift) - (table.address >> level.shift)
        if 0 <= position < len(table.raws):
            entry = table.entry(position, level.span)
            if table.user_pgd:
                user = entry
            else:
                found[table.level] = entry
                repeated = table if table.repeated else None
    entries: list[RawEntry] = []
    for level in layout.levels:
        if level.number not in found:
            break
        entries.append(found[level.number])
    return _Chain(entries, user, batch.lock, repeated)


def _empty(layout: Layout, level: Level, address: int, table_pa: int) -> RawEntry:
    index = layout.index(level, address)
    return RawEntry(
        level=level.number,
        index=index,
        raw=0,
        entry_pa=table_pa + ENTRY_SIZE * index,
        address=address & -level.span,
    )


def pid_of(snapshot: Snapshot) -> Pid:
    """The target of a snapshot, as sources are asked for it."""
    pid = snapshot.header.target.pid
    return "kernel" if pid is None else pid


def check_dumped(snapshot: Snapshot, address: int) -> None:
    """Raise UsageError for an address that is not in the ranges of a snapshot."""
    header = snapshot.header
    check_address(header.layout, address, kernel=header.target.pid is None)
    if not any(first <= address <= last for first, last in header.ranges):
        held = ", ".join(f"{first:#x} to {last:#x}" for first, last in header.ranges[:4])
        more = f" and {len(header.ranges) - 4} more ranges" if len(header.ranges) > 4 else ""
        raise UsageError(
            f"address {address:#x} was not dumped",
            f"{snapshot.name} holds {held}{more}",
        )


def name_of(snapshot: Snapshot, vma: Vma) -> Vma:
    """A VMA with the name that the snapshot's maps give the same range of the same file."""
    for other in snapshot.vmas():
        if other.start >= vma.start:
            return named(vma, [other])
    return vma
