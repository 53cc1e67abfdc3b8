# SPDX-License-Identifier: GPL-2.0-or-later
"""Reads a snapshot: opening it checks that it is whole, reading a chunk that it is sound.

The heads of all chunks are looked at first, which takes little time, so that a file that was cut
short is refused before anything of it is shown. Payloads are read when they are asked for, one
at a time.
"""

from __future__ import annotations

import bisect
import shlex
import shutil
import sys
import tempfile
from array import array
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from ptscope.errors import BadSnapshot, UsageError
from ptscope.raw.stream import MAX_READ
from ptscope.snapshot.container import (
    DATA,
    DONE,
    MAGIC,
    MAPS,
    Chunk,
    damaged,
    read_head,
    read_payload,
    read_preamble,
    truncated,
)
from ptscope.snapshot.facts import Header, Trailer
from ptscope.snapshot.writer import BATCH_LENGTH
from ptscope.target.vma import Vma, parse_maps

ORDER = (MAPS, DATA, DONE)


class Snapshot:
    """An open snapshot file. It can be read several times over, and at several places at once."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        """Check `file`, which can be sought, from its beginning to its end. Raises BadSnapshot."""
        self._file = file
        self.name = name
        self.header = Header.parse(read_preamble(file, name), name)
        # Where each chunk begins; for those of batches, also where they end and how many came.
        self._maps = array("Q")
        self._data = array("Q")
        self._lasts = array("Q")
        self._sequences = array("Q")
        done = self._index()
        self.trailer = Trailer.parse(read_payload(file, done, name), name)
        chunks = len(self._maps) + len(self._data) + 1
        batches = self._sequences[-1] if self._sequences else 0
        totals = self.trailer.totals
        if (chunks, batches) != (totals.chunks, totals.batches):
            raise damaged(
                name,
                f"it has {chunks} chunks with {batches} batches, and says that it had "
                f"{totals.chunks} with {totals.batches}",
            )

    @classmethod
    def open(cls, path: str) -> Snapshot:
        """The snapshot in a file; `-` is standard input.

        What cannot be sought, a pipe, is copied to a file without a name first. Raises BadSnapshot,
        and UsageError when there is no such file.
        """
        if not path:
            raise UsageError("the name of the snapshot is empty", "give one, or - for stdin")
        name = "standard input" if path == "-" else path
        try:
            file: BinaryIO = sys.stdin.buffer if path == "-" else Path(path).open("rb")  # noqa: SIM115
            if not file.seekable():
                copy: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115
                # A pipe that is no snapshot may have no end, and would fill the disk.
                start = file.read(len(MAGIC))
                copy.write(start)
                if start == MAGIC:
                    shutil.copyfileobj(file, copy)
                copy.seek(0)
                file = copy
            return cls(file, name)
        except FileNotFoundError:
            raise UsageError(
                f"there is no file {name}", f"`ptscope dump PID -o {shlex.quote(name)}` makes one"
            ) from None
        except OSError as error:
            raise UsageError(f"cannot read {name}: {error.strerror}") from None

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def vmas(self) -> Iterator[Vma]:
        """The VMAs of /proc/PID/maps, which was read just before the tables, in order of address.

        Raises BadSnapshot.
        """
        try:
            yield from parse_maps(self._maps_lines())
        except ValueError:
            raise damaged(self.name, "what should be /proc/PID/maps in it is not") from None

    def batches(self) -> Iterator[memoryview]:
        """All batches, in order, as the module gave them. Raises BadSnapshot."""
        for position in range(len(self._data)):
            yield from self._chunk(position)

    def batches_near(self, address: int) -> Iterator[tuple[int, memoryview]]:
        """The batches in which all about `address` is, with their numbers, without reading others.

        Tables come in order of address, and each batch reads the way down from the root anew: all
        there is of an address is in the last chunk that ends at or below it, or in the one after.
        """
        before = bisect.bisect_right(self._lasts, address)
        for position in range(max(before - 1, 0), min(before + 1, len(self._data))):
            yield from enumerate(
                self._chunk(position), self._sequences[position - 1] if position else 0
            )

    def _index(self) -> Chunk:
        """Note where all chunks are, up to the one of the trailer, which is given back."""
        stage = 0
        at = self._file.tell()
        size = self._file.seek(0, 2)
        while True:
            self._file.seek(at)
            head = read_head(self._file, self.name)
            if ORDER.index(head.kind) < stage:
                raise damaged(self.name, f"the chunk at byte {at} is misplaced")
            stage = ORDER.index(head.kind)
            if head.kind == MAPS:
                self._maps.append(at)
            elif head.kind == DATA:
                self._data.append(at)
                if head.last < (self._lasts[-1] if self._lasts else 0):
                    raise damaged(self.name, "its chunks are not in the order of their addresses")
                self._lasts.append(head.last)
                before = self._sequences[-1] if self._sequences else 0
                self._sequences.append(before + head.batches)
            at = head.offset + head.stored
            if at > size:
                raise truncated(self.name)
            if head.kind == DONE:
                break
        if at != size:
            raise damaged(self.name, "something follows its end")
        return head

    def _payload(self, offset: int) -> bytes:
        self._file.seek(offset)
        return read_payload(self._file, read_head(self._file, self.name), self.name)

    def _chunk(self, position: int) -> Iterator[memoryview]:
        raw = memoryview(self._payload(self._data[position]))
        before = self._sequences[position - 1] if position else 0
        at = 0
        for _ in range(self._sequences[position] - before):
            if len(raw) - at < BATCH_LENGTH.size:
                raise self._bad_batches()
            (length,) = BATCH_LENGTH.unpack_from(raw, at)
            at += BATCH_LENGTH.size
            if length > min(len(raw) - at, MAX_READ):
                raise self._bad_batches()
            yield raw[at : at + length]
            at += length
        if at != len(raw):
            raise self._bad_batches()

    def _bad_batches(self) -> BadSnapshot:
        return damaged(self.name, "the batches in it are not as long as it says")

    def _maps_lines(self) -> Iterator[str]:
        rest = b""
        for offset in self._maps:
            *lines, rest = (rest + self._payload(offset)).split(b"\n")
            for line in lines:
                yield line.decode(errors="backslashreplace")
        if rest:
            raise damaged(self.name, "what should be /proc/PID/maps in it ends within a line")
