# SPDX-License-Identifier: GPL-2.0-or-later
"""Writes a snapshot as its parts come, with a few batches in memory at most."""

from __future__ import annotations

import datetime
import json
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from ptscope.decode.layout import Layout
from ptscope.errors import BadStream
from ptscope.raw.records import End
from ptscope.raw.survey import survey
from ptscope.snapshot.container import DATA, DONE, MAPS, NOTHING, Sink, chunk, preamble
from ptscope.snapshot.facts import Header, Memory, Totals, Trailer
from ptscope.target.access import cannot_read

# Bytes of batches, or of maps, that are compressed together: more would help little.
CHUNK = 256 << 10

BATCH_LENGTH = struct.Struct("<Q")


def write(
    sink: Sink, header: Header, maps: Iterable[bytes], batches: Iterator[memoryview | bytes]
) -> SnapshotWriter:
    """Write a header, the text of /proc/PID/maps and all batches of a stream; not the trailer.

    Raises BadStream when the batches are no stream, and what its arguments raise.
    """
    writer = SnapshotWriter(sink, header)
    for text in maps:
        writer.add_maps(text)
    for batch in batches:
        writer.add_batch(batch)
    return writer


class SnapshotWriter:
    """Takes the parts of a snapshot in their order; `finish` makes it whole."""

    def __init__(self, sink: Sink, header: Header) -> None:
        """Write the header."""
        self._sink = sink
        self._entries = entries_by_level(header.layout)
        self._pending = bytearray()
        self._batches = 0  # pending
        self._first = NOTHING
        self.totals = Totals()
        self.end: End | None = None
        sink.write(preamble(json.dumps(header.to_json()).encode()))

    def add_maps(self, text: bytes) -> None:
        """A piece of /proc/PID/maps; all pieces come before the first batch."""
        assert not self.totals.batches
        for start in range(0, len(text), CHUNK):
            piece = text[start : start + CHUNK]
            self._write(MAPS, piece)
            self.totals = replace(self.totals, maps_bytes=self.totals.maps_bytes + len(piece))

    def add_batch(self, batch: memoryview | bytes) -> None:
        """One batch as it was read. Raises BadStream when it is not the next one."""
        if self.end is not None:
            raise BadStream("the module's stream goes on after its end record")
        facts = survey(batch, self.totals.batches, self._entries)
        self._pending += BATCH_LENGTH.pack(len(batch))
        self._pending += batch
        self._batches += 1
        self._first = min(self._first, facts.first)
        self.end = facts.end
        totals = self.totals
        self.totals = replace(
            totals,
            batches=totals.batches + 1,
            bytes=totals.bytes + len(batch),
            tables=totals.tables + facts.tables,
            entries=totals.entries + facts.entries,
            vmas=totals.vmas + facts.vmas,
            longest_lock_ns=max(totals.longest_lock_ns, facts.lock_ns),
        )
        if len(self._pending) >= CHUNK:
            self._flush()

    def finish(self, memory: Memory) -> Trailer:
        """Write what is left, and the trailer. Raises BadStream when the stream had no end."""
        if self.end is None:
            raise BadStream(
                "the module's stream stopped without its end record",
                "look for messages of the kernel (`dmesg`) and report it",
            )
        if self._batches:
            self._flush()
        trailer = Trailer(
            replace(self.totals, chunks=self.totals.chunks + 1), self.end.status, now(), memory
        )
        self._write(DONE, json.dumps(trailer.to_json()).encode())
        return trailer

    def _flush(self) -> None:
        self._write(DATA, bytes(self._pending), self._batches, self._first)
        self._pending.clear()
        self._batches = 0
        self._first = NOTHING

    def _write(self, kind: bytes, raw: bytes, items: int = 0, first: int = NOTHING) -> None:
        self._sink.write(chunk(kind, raw, items, first))
        self.totals = replace(self.totals, chunks=self.totals.chunks + 1)


def read_maps_text(proc: Path) -> Iterator[bytes]:
    """The text of /proc/PID/maps in pieces. Raises what `read_maps` does."""
    path = proc / "maps"
    try:
        with path.open("rb", buffering=0) as maps:
            while text := maps.read(CHUNK):
                yield text
    except OSError as error:
        raise cannot_read(path, error) from None


def entries_by_level(layout: Layout) -> Mapping[int, int]:
    """How many entries a table of each walked level has, by the level's wire number."""
    return {level.number: level.entries for level in layout.levels}


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
