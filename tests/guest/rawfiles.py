# SPDX-License-Identifier: GPL-2.0-or-later
"""The module's debugfs files, read with nothing but this and ``struct``.

A second reader of the formats of kmod/ptscope.h and kmod/README.md, so that a mistake in the
package's own reader is not invisible, and a way to send requests that the package never makes.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

FILES = Path("/sys/kernel/debug/ptscope")
MAGIC = 0x43535450
VERSION = 1
SELF = 0
KERNEL = -1
WITH_VMAS = 1
WITH_USER_PGD = 2
MIN_READ = 4096
MAX_READ = 262144
MAX_RANGES = 1024
PAGE = os.sysconf("SC_PAGE_SIZE")

REQUEST = struct.Struct("<IHHiIII")
RANGE = struct.Struct("<QQ")
RECORD = struct.Struct("<HHI")
BATCH = struct.Struct("<HHIIHHQQII")
VMA = struct.Struct("<HHIQQQQQQII")
TABLE = struct.Struct("<HHIQQHHI")
END = struct.Struct("<HHIIIQ")

AGAIN = 1
USER_PGD = 2
REPEATED = 8
LOCKS = {1: "read", 2: "write", 3: "none"}
ENDS = {1: "done", 2: "exited", 3: "execed", 4: "unstable"}
LEVELS = {5: "pgd", 4: "p4d", 3: "pud", 2: "pmd", 1: "pte"}


def request(
    pid: int,
    ranges: list[tuple[int, int]],
    flags: int = 0,
    *,
    magic: int = MAGIC,
    version: int = VERSION,
    header_size: int = REQUEST.size,
    range_count: int | None = None,
    range_size: int = RANGE.size,
) -> bytes:
    """A request; the keywords are for making wrong ones."""
    count = len(ranges) if range_count is None else range_count
    head = REQUEST.pack(magic, version, header_size, pid, flags, count, range_size)
    return head + b"".join(RANGE.pack(first, last) for first, last in ranges)


@dataclass(frozen=True)
class Table:
    """Part of a table."""

    flags: int
    address: int
    table_pa: int
    level: str
    index: int
    entries: tuple[int, ...]


@dataclass(frozen=True)
class Vma:
    """A VMA record."""

    flags: int
    start: int
    end: int
    vm_flags: int
    inode: int


@dataclass(frozen=True)
class End:
    """The end record."""

    status: str
    address: int


@dataclass
class Batch:
    """One read()."""

    sequence: int
    lock: str
    lock_ns: int
    records: list[Table | Vma | End] = field(default_factory=list)


def parse(data: bytes) -> Batch:
    """The records of one batch; asserts what the header file promises of each."""
    kind, flags, size, magic, version, header, sequence, lock_ns, lock, _ = BATCH.unpack_from(data)
    assert (kind, flags, size, magic, version, header) == (1, 0, 40, MAGIC, VERSION, 40)
    batch = Batch(sequence, LOCKS[lock], lock_ns)
    offset = size
    while offset < len(data):
        kind, flags, size = RECORD.unpack_from(data, offset)
        assert size % 8 == 0
        assert RECORD.size <= size <= len(data) - offset
        if kind == 2:
            assert size == VMA.size
            _, _, _, start, end, vm_flags, _, _, inode, _, _ = VMA.unpack_from(data, offset)
            batch.records.append(Vma(flags, start, end, vm_flags, inode))
        elif kind == 3:
            _, _, _, address, pa, level, index, count = TABLE.unpack_from(data, offset)
            assert size == TABLE.size + 8 * count
            entries = struct.unpack_from(f"<{count}Q", data, offset + TABLE.size)
            batch.records.append(Table(flags, address, pa, LEVELS[level], index, entries))
        else:
            assert (kind, size) == (4, END.size)
            _, _, _, status, reserved, address = END.unpack_from(data, offset)
            assert reserved == 0
            assert offset + size == len(data)
            batch.records.append(End(ENDS[status], address))
        offset += size
    return batch


@contextmanager
def opened(name: str) -> Iterator[int]:
    """A descriptor of one of the module's files."""
    flags = os.O_RDWR if name in ("walk", "dump") else os.O_RDONLY
    fd = os.open(FILES / name, flags | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def read_batches(fd: int, size: int = MAX_READ) -> Iterator[Batch]:
    """The rest of a dump, batch by batch, each read into a buffer of ``size`` bytes."""
    while data := os.read(fd, size):
        yield parse(data)


def dump(
    pid: int, ranges: list[tuple[int, int]], flags: int = 0, size: int = MAX_READ
) -> list[Batch]:
    """A whole dump."""
    with opened("dump") as fd:
        os.write(fd, request(pid, ranges, flags))
        batches = list(read_batches(fd, size))
    assert [batch.sequence for batch in batches] == list(range(len(batches)))
    assert isinstance(batches[-1].records[-1], End)
    return batches


@dataclass(frozen=True)
class Entry:
    """One entry of a walk, in text or binary alike."""

    level: str
    index: int
    raw: int
    pa: int


@dataclass(frozen=True)
class Walk:
    """What ``walk`` printed."""

    pid: int | None
    comm: str | None
    address: int
    lock: str
    vma: tuple[int, int] | None
    snapshot: bool
    entries: tuple[Entry, ...]
    user_pgd: Entry | None


_ENTRY = re.compile(
    r"(user_pgd|pgd|p4d|pud|pmd|pte) (\d+) raw (0x[0-9a-f]{16}) at (0x[0-9a-f]{16})"
)


def parse_walk(text: str) -> Walk:
    """The text of ``walk``; asserts that every line is one of those documented."""
    pid: int | None = None
    comm = vma = None
    address = -1
    lock = ""
    snapshot = False
    entries = []
    user_pgd = None
    for line in text.splitlines():
        words = line.split()
        if match := _ENTRY.fullmatch(line):
            entry = Entry(match[1], int(match[2]), int(match[3], 16), int(match[4], 16))
            if entry.level == "user_pgd":
                user_pgd = entry
            else:
                entries.append(entry)
        elif words[0] == "pid":
            pid, comm = int(words[1]), line.split(" comm ", 1)[1]
        elif words[0] == "address":
            address = int(words[1], 16)
        elif words[0] == "lock":
            lock = words[1]
        elif line == "vma none":
            vma = None
        elif words[0] == "vma":
            vma = (int(words[1], 16), int(words[2], 16))
        elif words[0] == "snapshot":
            snapshot = True
        else:
            assert line == "kernel", f"not documented: {line!r}"
    return Walk(pid, comm, address, lock, vma, snapshot, tuple(entries), user_pgd)


def walk_text(target: int | str, address: int) -> str:
    """Ask ``walk`` for one address."""
    with opened("walk") as fd:
        os.write(fd, f"{target} {address:#x}\n".encode())
        parts = []
        while part := os.read(fd, 65536):
            parts.append(part)
    return b"".join(parts).decode()


def walk(target: int | str, address: int) -> Walk:
    """The same, parsed."""
    return parse_walk(walk_text(target, address))


def stats() -> dict[str, int]:
    """The counters."""
    lines = (FILES / "stats").read_text().splitlines()
    return {key: int(value) for key, value in (line.split() for line in lines)}


def layout() -> dict[str, str]:
    """The facts as text by key."""
    lines = (FILES / "layout").read_text().splitlines()
    return dict(line.split(" ", 1) for line in lines)


def has(fact: str) -> bool:
    """Whether the layout states a fact, and the machine uses what it is about."""
    facts = layout()
    # riscv64 keeps both in bits that the hardware leaves alone with an extension only
    unused = facts.get("runtime.svrsw60t59b") == "0" and fact in ("bit.soft_dirty", "bit.uffd_wp")
    return fact in facts and not unused


def vma_of_own_stack() -> int:
    """An address of the caller's stack, without a look into /proc by PID."""
    for line in Path("/proc/thread-self/maps").read_text().splitlines():
        if line.endswith("[stack]"):
            return int(line.split()[0].split("-")[1], 16) - PAGE
    raise AssertionError("no stack")
