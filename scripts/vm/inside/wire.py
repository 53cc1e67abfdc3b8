# SPDX-License-Identifier: GPL-2.0-or-later
"""The frames that host and guest exchange over a virtio-serial port; both sides import this file.

A frame is a kind (one byte), a job number and a length (32 bits each, little-endian), then that
many bytes. The host numbers its jobs; frames about a job carry its number.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

PORT = "ptscope.agent"
"""Name of the virtio-serial port."""

HEADER = struct.Struct("<cII")
CHUNK = 1 << 16
"""Bytes of output sent in one frame at most."""

OWN_JOB = 0
"""The job that a guest starts without being told (vm.job on its command line)."""

# host to guest
RUN = b"R"  # JSON: argv, env, cwd
FILES = b"F"  # a tar to unpack at /; answered with EXIT
FETCH = b"G"  # JSON: path; answered with OUT frames that make a tar, then EXIT
STDIN = b"I"  # bytes for the job's standard input; none means end of file
KILL = b"K"  # JSON: signal
BYE = b"Q"  # power off

# guest to host
HELLO = b"H"  # JSON: what booted
OUT = b"O"
ERR = b"E"
EXIT = b"X"  # JSON: status (as a shell reports it), error


@dataclass(frozen=True)
class Frame:
    """One message."""

    kind: bytes
    job: int
    data: bytes = b""

    def encode(self) -> bytes:
        """The bytes on the wire."""
        return HEADER.pack(self.kind, self.job, len(self.data)) + self.data


def read_frame(read: Callable[[int], bytes]) -> Frame | None:
    """The next frame from ``read(n)``, which returns at most n bytes and none at the end.

    None at the end of the stream, also when it ends inside a frame.
    """
    header = _exactly(read, HEADER.size)
    if header is None:
        return None
    kind, job, length = HEADER.unpack(header)
    data = _exactly(read, length)
    return None if data is None else Frame(kind, job, data)


def _exactly(read: Callable[[int], bytes], size: int) -> bytes | None:
    parts = []
    while size:
        part = read(size)
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
