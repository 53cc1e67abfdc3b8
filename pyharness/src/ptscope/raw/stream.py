# SPDX-License-Identifier: GPL-2.0-or-later
"""Both directions of the module's `dump` file, through the C core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ptscope._core import ffi, lib
from ptscope.errors import BadStream, UsageError
from ptscope.raw.records import Batch, End, EndStatus, Lock, RawTable, RawVma

PID_SELF: int = lib.PTSCOPE_PID_SELF
PID_KERNEL: int = lib.PTSCOPE_PID_KERNEL
WITH_VMAS: int = lib.PTSCOPE_WITH_VMAS
WITH_USER_PGD: int = lib.PTSCOPE_WITH_USER_PGD
MAX_RANGES: int = lib.PTSCOPE_MAX_RANGES
MAX_READ: int = lib.PTSCOPE_MAX_READ

SAME_VERSION = "use a module and a ptscope of the same version"

_LOCKS: dict[int, Lock] = {
    lib.PTSCOPE_LOCK_READ: "read",
    lib.PTSCOPE_LOCK_WRITE: "write",
    lib.PTSCOPE_LOCK_NONE: "none",
}
_ENDS: dict[int, EndStatus] = {
    lib.PTSCOPE_END_DONE: "done",
    lib.PTSCOPE_END_EXITED: "exited",
    lib.PTSCOPE_END_EXECED: "execed",
    lib.PTSCOPE_END_UNSTABLE: "unstable",
}


def build_request(pid: int, flags: int, ranges: Sequence[tuple[int, int]]) -> bytes:
    """A request for the `dump` file; each range is (first, last), both inside it.

    Raises UsageError for no range, more than MAX_RANGES, or one that ends before it starts.
    """
    size = ffi.sizeof("struct ptscope_request") + len(ranges) * ffi.sizeof("struct ptscope_range")
    buffer = ffi.new("uint64_t[]", -(-size // 8))
    used = lib.ptscope_request_build(
        buffer,
        ffi.sizeof(buffer),
        pid,
        flags,
        ffi.new("struct ptscope_range[]", list(ranges)),
        len(ranges),
    )
    if used < 0:
        raise UsageError(f"the request cannot be made: {_bad(used)}")
    return bytes(ffi.buffer(buffer, used))


def parse_batch(data: bytes | bytearray, sequence: int, entries: Mapping[int, int]) -> Batch:
    """The records of one batch, every one of them checked.

    `sequence` is the number the batch must have; `entries` gives the entries of a table for each
    wire level that the kernel walks. Raises BadStream, naming the rule that the bytes break and
    where.
    """
    # The core wants 8-byte alignment; whether a Python object happens to have it is no contract.
    words = ffi.new("uint64_t[]", -(-len(data) // 8))
    ffi.memmove(words, data, len(data))
    limits = limits_of(entries)
    cursor = ffi.new("struct ptscope_cursor *")
    bad = lib.ptscope_cursor_start(cursor, words, len(data), sequence, limits)
    if bad:
        raise stream_error(sequence, 0, bad)

    head: Any = None
    end: End | None = None
    records: list[RawTable | RawVma] = []
    while (kind := lib.ptscope_cursor_next(cursor)) > 0:
        if kind == lib.PTSCOPE_RECORD_BATCH:
            head = ffi.cast("struct ptscope_batch *", cursor.record)
        elif kind == lib.PTSCOPE_RECORD_VMA:
            records.append(raw_vma(ffi.cast("struct ptscope_vma *", cursor.record)))
        elif kind == lib.PTSCOPE_RECORD_TABLE:
            records.append(_table(ffi.cast("struct ptscope_table *", cursor.record)))
        else:
            record = ffi.cast("struct ptscope_end *", cursor.record)
            end = End(_ENDS[record.status], record.address)
    if kind < 0:
        raise stream_error(sequence, cursor.offset, kind)
    return Batch(
        sequence=head.sequence,
        lock=_LOCKS[head.lock],
        lock_ns=head.lock_ns,
        retries=head.retries,
        records=tuple(records),
        end=end,
    )


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """What one batch holds; `address` is that of its last table or VMA, `lock_ns` in ns.

    `vmas` and `tables` count records, `entries` leaves out those that came before already.
    """

    sequence: int
    lock: Lock
    lock_ns: int
    retries: int
    vmas: int
    tables: int
    entries: int
    address: int
    end: End | None


class BatchChecker:
    """Checks the batches of one stream, in their order, record by record, without copying them."""

    def __init__(self, entries: Mapping[int, int]) -> None:
        """`entries` as in parse_batch."""
        self._limits = limits_of(entries)
        self._facts = ffi.new("struct ptscope_batch_facts *")
        self._sequence = 0
        self.end: End | None = None

    def check(self, data: memoryview) -> BatchFacts:
        """The facts of the next batch, which must be aligned to 8 bytes.

        Raises BadStream when it breaks a rule of ptscope.h, or comes after the end.
        """
        sequence = self._sequence
        if self.end is not None:
            raise BadStream("the stream goes on after its end record", SAME_VERSION)
        facts = self._facts
        bad = lib.ptscope_batch_check(
            ffi.from_buffer(data), len(data), sequence, self._limits, facts
        )
        if bad:
            raise stream_error(sequence, facts.offset, bad)
        if facts.end_status:
            self.end = End(_ENDS[facts.end_status], facts.end_address)
        self._sequence += 1
        return BatchFacts(
            sequence=sequence,
            lock=_LOCKS[facts.lock],
            lock_ns=facts.lock_ns,
            retries=facts.retries,
            vmas=facts.vmas,
            tables=facts.tables,
            entries=facts.entries,
            address=facts.address,
            end=self.end,
        )


def batch_buffer(size: int = MAX_READ) -> memoryview:
    """A buffer for batches: writable, of `size` bytes, aligned as the core wants it."""
    return memoryview(ffi.buffer(ffi.new("uint64_t[]", size // 8))).cast("B")


def limits_of(entries: Mapping[int, int]) -> Any:
    """A ``struct ptscope_limits``: the entries of a table for each wire level that is walked."""
    limits = ffi.new("struct ptscope_limits *")
    for level, count in entries.items():
        limits.entries[level] = count
    return limits


def stream_error(sequence: int, offset: int, code: int) -> BadStream:
    """The error for a batch that breaks the rule that a PTSCOPE_BAD_ code stands for."""
    return BadStream(
        f"the module's stream is broken in batch {sequence} at byte {offset}: {_bad(code)}",
        SAME_VERSION,
    )


def lock_name(number: int) -> Lock:
    """The name of a lock of ptscope_batch."""
    return _LOCKS[number]


def raw_vma(record: Any) -> RawVma:
    """A ``struct ptscope_vma``."""
    return RawVma(
        start=record.start,
        end=record.end,
        vm_flags=record.vm_flags,
        page_prot=record.page_prot,
        pgoff=record.pgoff,
        inode=record.inode,
        dev_major=record.dev_major,
        dev_minor=record.dev_minor,
        hugetlb=bool(record.record.flags & lib.PTSCOPE_HUGETLB),
        again=bool(record.record.flags & lib.PTSCOPE_AGAIN),
    )


def _table(record: Any) -> RawTable:
    return RawTable(
        level=record.level,
        index=record.index,
        table_pa=record.table_pa,
        address=record.address,
        raws=tuple(ffi.unpack(ffi.cast("uint64_t *", record + 1), record.count)),
        again=bool(record.record.flags & lib.PTSCOPE_AGAIN),
        user_pgd=bool(record.record.flags & lib.PTSCOPE_USER_PGD),
        repeated=bool(record.record.flags & lib.PTSCOPE_REPEATED),
    )


def _bad(code: int) -> str:
    text: bytes = ffi.string(lib.ptscope_bad_text(code))
    return text.decode()
