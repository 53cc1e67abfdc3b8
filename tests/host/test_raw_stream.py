# SPDX-License-Identifier: GPL-2.0-or-later
"""The stream of a whole process: one buffer, every batch checked, no end papered over."""

from __future__ import annotations

import errno
import io
import os
import struct
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import streams as s
from ptscope.errors import (
    BadStream,
    ChangedIdentity,
    Exited,
    NoSuchProcess,
    PtscopeError,
    Unstable,
    UsageError,
)
from ptscope.host import Host
from ptscope.raw.records import End
from ptscope.raw.stream import WITH_USER_PGD, WITH_VMAS, BatchChecker, batch_buffer
from ptscope.source.module import ModuleSource
from ptscope.source.stream import Progress, RawStream, entries_by_number, open_stream

PAGE = 4096


@dataclass(eq=False)
class Dump(io.RawIOBase):
    """A `dump` file that gives batches, each into the caller's buffer."""

    batches: list[bytes]
    error: int = 0
    written: bytes = b""
    buffers: list[int] = field(default_factory=list)

    def write(self, data: object) -> int:
        assert isinstance(data, bytes)
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        self.written += data
        return len(data)

    def readinto(self, buffer: object) -> int:
        assert isinstance(buffer, memoryview)
        if not self.batches:
            return 0
        data = self.batches.pop(0)
        buffer[: len(data)] = data
        self.buffers.append(len(buffer))
        return len(data)


def source(dump: Dump) -> ModuleSource:
    return ModuleSource(Host(), Path("/nowhere"), s.FIVE, opener=lambda path: dump)


FIRST = s.batch() + s.vma(0x1000, 0x9000) + s.chain(0x2000, 0x5867)
SECOND = s.batch(1) + s.vma(0x1000, 0x9000, flags=s.AGAIN) + s.table(
    s.PGD, 0, [0x67], 0x1000, 0, s.AGAIN)  # fmt: skip


def test_batches_one_after_the_other() -> None:
    dump = Dump([FIRST, SECOND + s.end()])
    with open_stream(source(dump), 7) as stream:
        protocol: RawStream = stream
        seen = [bytes(batch) for batch in protocol]
    assert seen == [FIRST, SECOND + s.end()]
    assert dump.closed
    assert dump.buffers == [262144] * 2
    # all of the user half, with VMAs
    assert struct.unpack("=IHHiIIIQQ", dump.written) == (
        s.MAGIC, s.VERSION, 24, 7, WITH_VMAS, 1, 16, 0, s.FIVE.user_last)  # fmt: skip
    assert stream.end == End("done", 0)
    # five entries, and one again
    assert stream.progress == Progress(2, 2, 6, 5, 1234, 0x2000)


def test_the_buffer_is_used_again_and_cannot_be_written() -> None:
    with open_stream(source(Dump([FIRST, SECOND + s.end()])), 7) as stream:
        batches = iter(stream)
        first = next(batches)
        assert bytes(first) == FIRST
        assert first.readonly
        next(batches)
        assert bytes(first[: len(SECOND)]) == SECOND[: len(first)]


def test_what_is_asked_for() -> None:
    dump = Dump([])
    with open_stream(source(dump), "kernel", vmas=False, user_pgd=True) as stream:
        assert stream.request.ranges == ((s.FIVE.kernel_first, (1 << 64) - 1),)
    assert struct.unpack_from("=iI", dump.written, 8) == (-1, WITH_USER_PGD)
    with pytest.raises(UsageError), open_stream(source(Dump([])), 7, [(2, 1)]):
        pass


@pytest.mark.parametrize(
    ("batches", "error"),
    [
        ([FIRST], BadStream),
        ([], BadStream),
        ([FIRST, FIRST], BadStream),
        ([FIRST + s.end(), s.batch(1) + s.end()], BadStream),
        ([FIRST[:-8]], BadStream),
        ([FIRST + s.end(s.EXITED)], Exited),
        ([FIRST + s.end(s.EXECED)], ChangedIdentity),
        ([FIRST + s.end(s.UNSTABLE)], Unstable),
    ],
)
def test_a_stream_that_is_not_whole(batches: list[bytes], error: type[PtscopeError]) -> None:
    with open_stream(source(Dump(list(batches))), 7) as stream, pytest.raises(error):
        for _ in stream:
            pass


def test_a_refused_request_closes_the_file() -> None:
    dump = Dump([], error=errno.ESRCH)
    with pytest.raises(NoSuchProcess):
        open_stream(source(dump), 7)
    assert dump.closed


def test_facts_of_a_batch() -> None:
    data = FIRST + s.end(s.EXITED, 0x3000)
    buffer = batch_buffer(len(data))
    buffer[:] = data
    facts = BatchChecker(entries_by_number(s.FIVE)).check(buffer)
    assert (facts.lock, facts.lock_ns, facts.vmas, facts.tables) == ("read", 1234, 1, 5)
    assert (facts.entries, facts.address) == (5, 0x2000)
    assert facts.end == End("exited", 0x3000)


def test_memory_does_not_grow_with_the_stream() -> None:
    """As many batches as a process of 60 GiB gives."""
    import tracemalloc

    table = s.table(s.PTE, 0, [0x5867] * 512, 0x5000, 0)
    down = s.chain(0, 0x5867)
    size = 500

    class Endless(Dump):
        def readinto(self, buffer: object) -> int:
            assert isinstance(buffer, memoryview)
            if self.count > size:
                return 0
            data = s.batch(self.count) + down + table * 60
            data += s.end() if self.count == size else b""
            self.count += 1
            buffer[: len(data)] = data
            return len(data)

        count = 0

    tracemalloc.start()
    try:
        with open_stream(source(Endless([])), 7) as stream:
            for _ in stream:
                pass
        assert stream.progress.entries == (size + 1) * (60 * 512 + 5)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
