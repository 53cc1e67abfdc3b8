# SPDX-License-Identifier: GPL-2.0-or-later
"""The bytes of a snapshot file, whatever they mean: preamble, chunks, checksums (FORMAT.md).

Nothing is trusted: each number is checked before it is used, and a chunk is checked whole before
any of it is given out.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from ptscope.errors import BadSnapshot

# The first byte is no ASCII, so that no text is taken for a snapshot; a copy that converts the ends
# of lines changes the last.
MAGIC = b"\x93PTSNAP\n"
VERSION = 1

_PREAMBLE = struct.Struct("<8sHHI")
_HEAD = struct.Struct("<4sIIIQI")
_CRC = struct.Struct("<I")
HEAD_SIZE = _HEAD.size + _CRC.size

# Bytes. Writers keep far below them; they bound what a damaged file can make a reader allocate.
MOST_HEADER = 1 << 20
MOST_RAW = 4 << 20
MOST_STORED = MOST_RAW + (1 << 16)

MAPS = b"MAPS"
DATA = b"DATA"
DONE = b"DONE"
KINDS = (MAPS, DATA, DONE)

class Sink(Protocol):
    """What chunks are written to."""

    def write(self, data: bytes, /) -> object:
        """Take all of the bytes, or raise OSError."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """The head of one chunk; its payload begins at byte `offset` of the file.

    `stored` and `raw` are bytes before and after decompression, `batches` how many are in it,
    `last` the address of the last table or VMA so far.
    """

    kind: bytes
    stored: int
    raw: int
    batches: int
    last: int
    crc: int
    offset: int


def preamble(header: bytes) -> bytes:
    """The beginning of a file, with its header and their checksum."""
    start = _PREAMBLE.pack(MAGIC, VERSION, 0, len(header)) + header
    return start + _CRC.pack(zlib.crc32(start))


def chunk(kind: bytes, raw: bytes, batches: int = 0, last: int = 0) -> bytes:
    """A whole chunk, compressed."""
    import zstandard

    stored = zstandard.ZstdCompressor(level=3, write_checksum=True).compress(raw)
    head = _HEAD.pack(kind, len(stored), len(raw), batches, last, zlib.crc32(stored))
    return head + _CRC.pack(zlib.crc32(head)) + stored


def read_preamble(file: BinaryIO, name: str) -> bytes:
    """The header of a file that is read from its beginning.

    Raises BadSnapshot when it is no snapshot, one of another version, cut short or damaged.
    """
    start = file.read(_PREAMBLE.size)
    if not start.startswith(MAGIC):
        if start and MAGIC.startswith(start):
            raise truncated(name)
        raise BadSnapshot(
            f"{name} is no snapshot" if start else f"{name} is no snapshot: it is empty",
            "`ptscope dump PID -o FILE` makes one",
        )
    if len(start) < _PREAMBLE.size:
        raise truncated(name)
    _, version, reserved, size = _PREAMBLE.unpack(start)
    if version != VERSION:
        raise BadSnapshot(
            f"{name} is a snapshot of version {version}, and this ptscope reads version {VERSION}",
            "use the ptscope that wrote it, or a newer one",
        )
    if reserved or size > MOST_HEADER:
        raise damaged(name, "its header has an impossible size")
    header = file.read(size)
    crc = file.read(_CRC.size)
    if len(header) < size or len(crc) < _CRC.size:
        raise truncated(name)
    if _CRC.unpack(crc) != (zlib.crc32(start + header),):
        raise damaged(name, "the checksum of its header is wrong")
    return header


def read_head(file: BinaryIO, name: str) -> Chunk:
    """The head of the chunk that begins where `file` stands.

    Raises BadSnapshot when there is none, or no sound one.
    """
    offset = file.tell()
    data = file.read(HEAD_SIZE)
    if len(data) < HEAD_SIZE:
        raise truncated(name)
    head = data[: _HEAD.size]
    if data[_HEAD.size :] != _CRC.pack(zlib.crc32(head)):
        raise damaged(name, f"the checksum of the chunk at byte {offset} is wrong")
    kind, stored, raw, batches, last, crc = _HEAD.unpack(head)
    if kind not in KINDS or stored > MOST_STORED or raw > MOST_RAW:
        raise damaged(name, f"the chunk at byte {offset} is of no kind or size that there is")
    return Chunk(kind, stored, raw, batches, last, crc, offset + HEAD_SIZE)


def read_payload(file: BinaryIO, chunk: Chunk, name: str) -> bytes:
    """What a chunk holds, checked and decompressed. Raises BadSnapshot."""
    import zstandard

    file.seek(chunk.offset)
    stored = file.read(chunk.stored)
    if len(stored) < chunk.stored:
        raise truncated(name)
    if zlib.crc32(stored) != chunk.crc:
        raise damaged(name, f"the checksum of what is at byte {chunk.offset} is wrong")
    try:
        # The size that the frame claims comes first: it decides how much is allocated.
        if zstandard.frame_content_size(stored) != chunk.raw:
            raise damaged(name, f"what is at byte {chunk.offset} has another size than it says")
        raw = zstandard.ZstdDecompressor().decompress(stored, max_output_size=chunk.raw)
    except zstandard.ZstdError as error:
        raise damaged(name, f"what is at byte {chunk.offset} is not zstd: {error}") from None
    if len(raw) != chunk.raw:
        raise damaged(name, f"what is at byte {chunk.offset} has another size than it says")
    return raw


def truncated(name: str) -> BadSnapshot:
    """The error for a file that ends too early."""
    return BadSnapshot(
        f"{name} is cut short: its end is missing", "copy it anew from where it was made"
    )


def damaged(name: str, what: str) -> BadSnapshot:
    """The error for a file that is not what was written."""
    return BadSnapshot(f"{name} is damaged: {what}", "copy it anew from where it was made")
