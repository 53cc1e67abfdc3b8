# SPDX-License-Identifier: GPL-2.0-or-later
"""Writes a snapshot as its parts come, with a few batches in memory at most."""

from __future__ import annotations

import datetime
import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from ptscope.snapshot.container import DATA, DONE, MAPS, Sink, chunk, preamble
from ptscope.snapshot.facts import Header, Memory, Totals, Trailer
from ptscope.source.stream import RawStream
from ptscope.target.access import cannot_read

# Bytes of batches, or of maps, that are compressed together: more would help little.
CHUNK = 256 << 10

BATCH_LENGTH = struct.Struct("<Q")


class SnapshotWriter:
    """Takes the parts of a snapshot in their order; `finish` makes it whole."""

    def __init__(self, sink: Sink, header: Header) -> None:
        """Write the header."""
        self._sink = sink
        self.chunk_size = CHUNK
        self._pending = bytearray()
        self._batches = 0  # pending
        self._last = 0
        self._bytes = 0
        self._maps_bytes = 0
        self._chunks = 0
        sink.write(preamble(json.dumps(header.to_json()).encode()))

    def add_maps(self, text: bytes) -> None:
        """A piece of /proc/PID/maps; all pieces come before the first batch."""
        for start in range(0, len(text), CHUNK):
            piece = text[start : start + CHUNK]
            self._write(MAPS, piece)
            self._maps_bytes += len(piece)

    def add_stream(self, stream: RawStream) -> Iterator[None]:
        """All batches of a stream; yields after each of them. Raises what the stream raises."""
        for batch in stream:
            self._pending += BATCH_LENGTH.pack(len(batch))
            self._pending += batch
            self._batches += 1
            self._bytes += len(batch)
            # A VMA that is reported again begins before where the stream has come to.
            self._last = max(self._last, stream.progress.address)
            if len(self._pending) >= self.chunk_size:
                self._flush()
            yield
        if self._batches:
            self._flush()

    def finish(self, stream: RawStream, memory: Memory) -> Trailer:
        """Write the trailer, when all of the stream has come."""
        assert stream.end is not None
        progress = stream.progress
        totals = Totals(
            chunks=self._chunks + 1,
            maps_bytes=self._maps_bytes,
            bytes=self._bytes,
            batches=progress.batches,
            vmas=progress.vmas,
            tables=progress.tables,
            entries=progress.entries,
            longest_lock_ns=progress.longest_lock_ns,
        )
        trailer = Trailer(totals, stream.end.status, now(), memory)
        self._write(DONE, json.dumps(trailer.to_json()).encode())
        return trailer

    def _flush(self) -> None:
        self._write(DATA, bytes(self._pending), self._batches, self._last)
        self._pending.clear()
        self._batches = 0

    def _write(self, kind: bytes, raw: bytes, batches: int = 0, last: int = 0) -> None:
        self._sink.write(chunk(kind, raw, batches, last))
        self._chunks += 1


def read_maps_text(proc: Path) -> Iterator[bytes]:
    """The text of /proc/PID/maps in pieces. Raises what `read_maps` does."""
    path = proc / "maps"
    try:
        with path.open("rb", buffering=0) as maps:
            while text := maps.read(CHUNK):
                yield text
    except OSError as error:
        raise cannot_read(path, error) from None


def now() -> str:
    """UTC in ISO 8601, to the microsecond."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")


def boot_id(proc: Path = Path("/proc")) -> str:
    """What tells one boot from the next; empty where the kernel does not say."""
    try:
        return (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def executable(proc: Path) -> str | None:
    """The path of the program that a process runs; None when it may not be known."""
    try:
        return os.fsencode((proc / "exe").readlink()).decode(errors="backslashreplace")
    except OSError:
        return None
