# SPDX-License-Identifier: GPL-2.0-or-later
"""The tables of a whole address space as a stream of batches, one in memory at a time.

Whoever reads a process reads a `RawStream`, and so does not know whether it comes from the module
or from a snapshot file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path
from types import TracebackType
from typing import Protocol

from ptscope.decode.layout import U64_MAX, Layout
from ptscope.raw.records import End
from ptscope.raw.stream import (
    MAX_RANGES,
    WITH_USER_PGD,
    WITH_VMAS,
    BatchChecker,
    BatchFacts,
    batch_buffer,
    build_request,
)
from ptscope.source.module import NUMBERS, ModuleSource, check_end
from ptscope.target.process import Pid

Ranges = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Request:
    """What was asked for; `ranges` are (first, last) addresses, both inside."""

    pid: Pid
    ranges: tuple[tuple[int, int], ...]
    vmas: bool
    user_pgd: bool


@dataclass
class Progress:
    """What has come so far. `longest_lock_ns` is the longest hold of the target's lock in ns.

    `vmas` and `tables` count records, `entries` leaves out those marked AGAIN; `address` is the
    place the stream has come to.
    """

    batches: int = 0
    vmas: int = 0
    tables: int = 0
    entries: int = 0
    longest_lock_ns: int = 0
    address: int = 0

    def add(self, facts: BatchFacts) -> None:
        """Take a batch into account."""
        self.batches += 1
        self.vmas += facts.vmas
        self.tables += facts.tables
        self.entries += facts.entries
        self.longest_lock_ns = max(self.longest_lock_ns, facts.lock_ns)
        self.address = facts.address or self.address


class RawStream(Protocol):
    """Batches of records, checked, each valid until the next is asked for.

    A batch is a memoryview of bytes, aligned to 8, as the module's read() gave it
    (kmod/ptscope.h); `raw.stream.parse_batch` makes Python objects of one, `core/summary.h` sums
    up. A stream is iterated once. It ends when all that was asked for has come, with `end` set;
    otherwise it raises the TargetError that says why not, or BadStream.
    """

    @property
    def source(self) -> str:
        """`module` or `snapshot`."""

    @property
    def layout(self) -> Layout:
        """The layout of the kernel that the entries are from."""

    @property
    def request(self) -> Request:
        """What was asked for."""

    @property
    def progress(self) -> Progress:
        """How far it has come."""

    @property
    def end(self) -> End | None:
        """The end record; None until it has come."""

    def __iter__(self) -> Iterator[memoryview]:
        """The batches."""


def entries_by_number(layout: Layout) -> Mapping[int, int]:
    """Entries of a table by wire level, as the functions of `raw.stream` want it."""
    return {level.number: level.entries for level in layout.levels}


def whole(layout: Layout, pid: Pid) -> tuple[tuple[int, int], ...]:
    """The range that is all of a process, or all of the kernel half."""
    if pid == "kernel":
        return ((layout.kernel_first, U64_MAX),)
    return ((0, layout.user_last),)


def open_stream(
    source: ModuleSource,
    pid: Pid,
    ranges: Ranges | None = None,
    *,
    vmas: bool = True,
    user_pgd: bool = False,
) -> ModuleStream:
    """Ask the module for `ranges` of a process (None: all of it); use it as a context manager.

    At most MAX_RANGES ranges. Raises UsageError for ranges that cannot be, NotPermitted,
    Unsupported, and NoSuchProcess, KernelThread or Exited.
    """
    return ModuleStream(
        source,
        Request(
            pid, tuple(whole(source.layout, pid) if ranges is None else ranges), vmas, user_pgd
        ),
    )


class ModuleStream(AbstractContextManager["ModuleStream"]):
    """A RawStream from the module's `dump` file, read into one buffer that is used again."""

    source = "module"

    def __init__(self, source: ModuleSource, request: Request) -> None:
        """Open the file and write the request; see open_stream."""
        self._source = source
        self.layout = source.layout
        self.request = request
        self.progress = Progress()
        self._path: Path = source.directory / "dump"
        self._checker = BatchChecker(entries_by_number(source.layout))
        flags = (WITH_VMAS if request.vmas else 0) | (WITH_USER_PGD if request.user_pgd else 0)
        pid = request.pid
        data = build_request(NUMBERS[pid] if isinstance(pid, str) else pid, flags, request.ranges)
        try:
            self._file: RawIOBase = source.opener(self._path)
        except OSError as error:
            raise source.explained(self._path, pid, error) from None
        try:
            self._file.write(data)
        except OSError as error:
            self._file.close()
            raise source.explained(self._path, pid, error) from None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    @property
    def end(self) -> End | None:
        """The end record; None until it has come."""
        return self._checker.end

    def __iter__(self) -> Iterator[memoryview]:
        """The batches; see RawStream."""
        buffer = batch_buffer()
        while size := self._read(buffer):
            batch = buffer[:size].toreadonly()
            self.progress.add(self._checker.check(batch))
            yield batch
        check_end(self.request.pid, self.end)

    def _read(self, buffer: memoryview) -> int:
        try:
            return self._file.readinto(buffer) or 0
        except OSError as error:
            raise self._source.explained(self._path, self.request.pid, error) from None


__all__ = [
    "MAX_RANGES",
    "ModuleStream",
    "Progress",
    "RawStream",
    "Request",
    "entries_by_number",
    "open_stream",
    "whole",
]
