# SPDX-License-Identifier: GPL-2.0-or-later
"""The module as a source, with a file that answers as ptscope.h says in place of debugfs."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import streams as s
from ptscope.decode.layout import Layout, load
from ptscope.errors import (
    BadStream,
    ChangedIdentity,
    Exited,
    KernelThread,
    NoSuchProcess,
    NotPermitted,
    PtscopeError,
    Unstable,
    Unsupported,
    UsageError,
)
from ptscope.host import Host
from ptscope.source.base import RawWalk
from ptscope.source.module import ModuleSource, named_layout

STACK = 0x7FFE4C1F2000
HEAP = 0x55D155772000
HIGH = 0x00FF_0000_0000_1000


@dataclass
class Dump(io.RawIOBase):
    """A `dump` file: takes a request, gives batches, or fails as it is told."""

    batches: list[bytes]
    written: list[bytes] = field(default_factory=list)
    write_error: int = 0
    read_error: int = 0

    def write(self, data: object) -> int:
        if self.write_error:
            raise OSError(self.write_error, os.strerror(self.write_error))
        assert isinstance(data, bytes)
        self.written.append(data)
        return len(data)

    def read(self, size: int | None = -1) -> bytes:
        assert size is not None
        assert size >= 4096
        if self.read_error:
            raise OSError(self.read_error, os.strerror(self.read_error))
        return self.batches.pop(0) if self.batches else b""


def source(dump: Dump, layout: Layout = s.FIVE, root: Path = Path("/")) -> ModuleSource:
    opener: Callable[[Path], io.RawIOBase] = lambda path: dump  # noqa: E731
    return ModuleSource(Host(root), Path("/nowhere"), layout, opener=opener)


def walk(*batches: bytes, addresses: tuple[int, ...] = (STACK,), layout: Layout = s.FIVE) -> list[
    RawWalk
]:  # fmt: skip
    return source(Dump(list(batches)), layout).walk(42, addresses)


def test_one_address() -> None:
    area = s.vma(0x7FFE4C1D2000, 0x7FFE4C1F3000)
    dump = Dump([s.batch() + area + s.chain(STACK, s.LEAF_BITS) + s.end()])
    (result,) = source(dump).walk(42, [STACK])
    assert [entry.level for entry in result.entries] == [5, 4, 3, 2, 1]
    assert [entry.entry_pa & ~0xFFF for entry in result.entries] == [
        0x10000, 0x11000, 0x12000, 0x13000, 0x14000,
    ]  # fmt: skip
    assert result.entries[-1].raw == s.LEAF_BITS
    assert result.entries[-1].index == STACK >> 12 & 511
    assert result.user_pgd is None
    assert result.lock == "read"
    assert result.vma is not None
    assert (result.vma.permissions, result.vma.offset, result.vma.device) == (
        "rw-p", 0x2000, "08:01",
    )  # fmt: skip
    assert dump.written[0][8:12] == (42).to_bytes(4, "little")


def test_targets_have_their_numbers() -> None:
    for pid, number in (("self", 0), (7, 7)):
        dump = Dump([s.batch() + s.chain(STACK, 0) + s.end()])
        source(dump).walk(pid, [STACK])  # type: ignore[arg-type]
        assert int.from_bytes(dump.written[0][8:12], "little", signed=True) == number
    address = 0xFFFF_FFFF_8100_0000
    dump = Dump([s.batch(lock=s.NONE) + s.chain(address, 0) + s.end()])
    (result,) = source(dump).walk("kernel", [address])
    assert int.from_bytes(dump.written[0][8:12], "little", signed=True) == -1
    assert result.lock == "none"


def test_anonymous_vma_has_no_offset() -> None:
    raw = bytearray(s.vma(STACK, STACK + 4096))
    raw[-16:] = bytes(16)  # inode and device
    (result,) = walk(s.batch() + bytes(raw) + s.chain(STACK, 0) + s.end())
    assert result.vma is not None
    assert (result.vma.offset, result.vma.inode) == (0, 0)


def test_many_addresses_over_several_batches() -> None:
    results = walk(
        s.batch(0, s.READ) + s.vma(HEAP, HEAP + 8192) + s.chain(HEAP, 1) + s.chain(HEAP + 4096, 0),
        s.batch(1, s.WRITE) + s.chain(HIGH, 0, last=s.PUD),
        s.batch(2, s.READ) + s.vma(STACK, STACK + 4096) + s.chain(STACK, 3) + s.end(),
        addresses=(HEAP, HEAP + 4096, HIGH, STACK),
    )
    assert [result.entries[-1].raw for result in results] == [1, 0, 0, 3]
    assert [result.lock for result in results] == ["read", "read", "write", "read"]
    assert [result.vma is not None for result in results] == [True, True, False, True]


def test_the_same_address_twice() -> None:
    data = s.batch() + s.chain(STACK, 1) + s.chain(STACK, 1) + s.end()
    assert len(walk(data, addresses=(STACK, STACK))) == 2


def test_walks_that_end_at_the_root() -> None:
    data = s.batch() + s.chain(HEAP, 0, last=s.PGD) + s.chain(STACK, 0, last=s.PGD) + s.end()
    results = walk(data, addresses=(HEAP, STACK))
    assert [len(result.entries) for result in results] == [1, 1]


def test_four_levels_and_the_user_root_of_pti() -> None:
    def pti(address: int) -> bytes:
        index = s.PTI.index("pgd", address)
        raw = [0x11000 | s.TABLE_BITS]
        user = s.table(s.PGD, index, raw, 0x9000, address & -(1 << 39), s.USER_PGD)
        return user + s.chain(address, s.LEAF_BITS, layout=s.PTI)

    data = s.batch() + pti(HEAP) + pti(STACK) + s.end()
    for result in walk(data, addresses=(HEAP, STACK), layout=s.PTI):
        assert [entry.level for entry in result.entries] == [5, 3, 2, 1]
        assert result.user_pgd is not None
        assert result.user_pgd.entry_pa & ~0xFFF == 0x9000


def test_a_batch_that_resumes_replaces_what_was_begun() -> None:
    again = s.chain(STACK, 5, base=0x40000)
    root = s.table(
        s.PGD, 0, [0x41000 | s.TABLE_BITS], 0x40000, 0, s.AGAIN
    ) + again[len(s.table(s.PGD, 0, [0], 0, 0)) :]  # fmt: skip
    begun = s.batch() + s.chain(HEAP, 1) + s.table(s.PGD, 0, [0x67], 0x10000, 0)
    results = walk(begun, s.batch(1) + root + s.end(), addresses=(HEAP, STACK))
    assert [result.entries[0].entry_pa for result in results] == [0x10000, 0x40000]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (s.batch() + s.end(), "0 walks for 1"),
        (s.batch() + s.chain(STACK, 0) * 2 + s.end(), "2 walks for 1"),
        (s.batch() + s.chain(HEAP, 0) + s.end(), "another p4d entry"),
        (s.batch() + s.chain(STACK + 4096, 0) + s.end(), "another pte entry"),
        (s.batch() + s.table(5, 0, [0, 0], 4096, 0) + s.end(), "another pgd entry"),
        (s.batch() + s.table(5, 0, [0], 4096, 1 << 48) + s.end(), "maps 0x1000000000000"),
        (s.batch() + s.table(5, 0, [0], 4096, 0, s.USER_PGD) + s.end(), "no root entry"),
        (
            s.batch() + s.chain(STACK, 0, last=s.P4D) + s.table(4, 255, [0], 4096, 0) + s.end(),
            "out of order",
        ),
        (s.batch() + s.chain(STACK, 0), "without its end"),
        (s.batch() + s.vma(0, 4096) + s.end() + b"\0" * 8, "cannot stand"),
        (b"", "without its end"),
    ],
)
def test_a_stream_that_contradicts_the_request(data: bytes, words: str) -> None:
    with pytest.raises(BadStream, match=words):
        walk(*([data] if data else []))


def test_a_stream_that_goes_on_after_its_end() -> None:
    whole = s.batch() + s.chain(STACK, 0) + s.end()
    with pytest.raises(BadStream, match="after its end"):
        walk(whole, s.batch(1) + s.end())


@pytest.mark.parametrize(
    ("status", "kind"), [(s.EXITED, Exited), (s.EXECED, ChangedIdentity), (s.UNSTABLE, Unstable)]
)
def test_end_of_the_target(status: int, kind: type[PtscopeError]) -> None:
    with pytest.raises(kind) as caught:
        walk(s.batch() + s.end(status, STACK))
    assert caught.value.exit_status == 3


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ESRCH, NoSuchProcess),
        (errno.EOPNOTSUPP, KernelThread),
        (errno.ENXIO, Exited),
        (errno.ERANGE, UsageError),
        (errno.EADDRNOTAVAIL, UsageError),
        (errno.EPROTO, Unsupported),
        (errno.EPROTONOSUPPORT, Unsupported),
        (errno.EBADMSG, BadStream),
        (errno.E2BIG, BadStream),
        (errno.EINVAL, BadStream),
        (errno.EPERM, NotPermitted),
        (errno.EACCES, NotPermitted),
    ],
)
def test_refused_request(number: int, kind: type[PtscopeError]) -> None:
    with pytest.raises(kind) as caught:
        source(Dump([], write_error=number)).walk(42, [STACK])
    assert type(caught.value) is kind


def test_read_that_fails() -> None:
    with pytest.raises(BadStream, match="buffer"):
        source(Dump([], read_error=errno.EMSGSIZE)).walk(42, [STACK])


@pytest.mark.parametrize(
    ("layout", "pid", "address", "words"),
    [
        (s.FOUR, 1, 0x0000_8000_0000_0000, "4-level paging.*48-bit"),
        (s.FIVE, 1, 0x0100_0000_0000_0000, "5-level paging.*57-bit"),
        (s.FOUR, 1, 0xFFFF_FFFF_8000_0000, "is a kernel address"),
        (s.FOUR, "kernel", 0x1000, "is a user address"),
    ],
)
def test_address_out_of_place(layout: Layout, pid: int, address: int, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        source(Dump([]), layout).walk(pid, [address])


def test_more_addresses_than_a_request_takes() -> None:
    dumps = [
        Dump([s.batch() + s.chain(STACK, 0, last=s.PGD) * count + s.end()]) for count in (1024, 3)
    ]
    left = list(dumps)
    many = ModuleSource(Host(), Path("/nowhere"), s.FIVE, opener=lambda path: left.pop(0))
    assert len(many.walk(1, [STACK] * 1027)) == 1027
    assert [len(dump.written[0]) for dump in dumps] == [24 + 16 * 1024, 24 + 16 * 3]


def test_layout_is_named_after_the_shipped_one_it_equals() -> None:
    shipped = load("debian-6.1-amd64")
    text = "".join(
        f"{key} {value}\n"
        for key, value in [
            ("format", 1),
            ("arch", shipped.arch),
            ("release", "6.1.0-99-amd64"),
            *shipped.facts.items(),
            *((f"runtime.{key}", value) for key, value in s.PTI.runtime.items()),
        ]
    )
    named = named_layout(Layout.from_text(text))
    assert (named.name, named.release) == ("debian-6.1-amd64", "6.1.0-99-amd64")
    assert named.runtime == s.PTI.runtime
    other = text.replace("bit.special 9", "bit.special 10")
    assert other != text
    assert named_layout(Layout.from_text(other)).name == "live"
