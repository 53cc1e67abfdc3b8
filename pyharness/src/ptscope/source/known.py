# SPDX-License-Identifier: GPL-2.0-or-later
"""Memory whose frames are known without looking at any page table: /dev/ptscope-map.

The module allocates the pages and says where they are; whoever maps them knows what each walk has
to give. They are freed when the file is closed and no mapping of it is left.
"""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import struct
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path
from types import TracebackType
from typing import Literal

from ptscope._core import ffi, lib
from ptscope.errors import BadStream, PtscopeError, Unsupported, UsageError
from ptscope.host import Host
from ptscope.source.availability import not_loaded, refused
from ptscope.source.module import open_unbuffered

MapKind = Literal["remap", "insert", "fault", "huge"]
KINDS: dict[MapKind, int] = {
    "remap": lib.PTSCOPE_MAP_REMAP,
    "insert": lib.PTSCOPE_MAP_INSERT,
    "fault": lib.PTSCOPE_MAP_FAULT,
    "huge": lib.PTSCOPE_MAP_HUGE,
}
"""How pages are mapped, each by the kernel function of ptscope.h."""
MAX_BYTES: int = lib.PTSCOPE_MAP_MAX_BYTES
KIND_SHIFT: int = lib.PTSCOPE_MAP_SHIFT
DEVICE = Path("dev/ptscope-map")
CLASS = Path("sys/class/misc/ptscope-map")
ANEW = "load the module of this version: `rmmod ptscope`, then insmod it anew"

# What write() says (ptscope.h), where it is not a matter of privilege.
ERRNOS: dict[int, tuple[type[PtscopeError], str, str | None]] = {
    errno.ERANGE: (
        UsageError,
        "{device} gives 1 to {most} pages, not {pages}",
        None,
    ),
    errno.ENOSPC: (
        Unsupported,
        "{device} has no {pages} pages left: all open files together have {most}",
        "close others, or ask for fewer",
    ),
    errno.ENOMEM: (Unsupported, "the kernel has no memory for {pages} pages", "ask for fewer"),
}


def no_device(host: Host) -> PtscopeError:
    """Why /dev/ptscope-map does not exist."""
    path = host.root / DEVICE
    if not host.module_loaded:
        return not_loaded(host)
    try:
        major, minor = (host.root / CLASS / "dev").read_text().split(":")
    except (OSError, ValueError):
        return Unsupported(f"the module that is loaded has no {path}", ANEW)
    return Unsupported(
        f"the module is loaded, but {path} does not exist: /dev is not a devtmpfs",
        f"as root: `mknod -m 600 {path} c {int(major)} {int(minor)}`",
    )


def cannot_use(host: Host, error: OSError) -> PtscopeError:
    """What an error of open() means, or a refusal by any other call."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return no_device(host)
    if isinstance(error, PermissionError):
        return refused(host)
    # A node that is left over from a module that is gone.
    if error.errno in (errno.ENXIO, errno.ENODEV) and not host.module_loaded:
        return not_loaded(host)
    return Unsupported(f"{host.root / DEVICE}: {error.strerror}")


@dataclass(frozen=True)
class KnownMapping:
    """Pages mapped into this process; `close` unmaps them, and has to wait for no page."""

    area: mmap.mmap
    address: int
    frames: tuple[int, ...]
    """Physical address of each page, in bytes."""

    def close(self) -> None:
        """Unmap it."""
        self.area.close()


class KnownFrames(AbstractContextManager["KnownFrames"]):
    """An open file of the device and the pages that it owns."""

    def __init__(self, file: RawIOBase, addresses: tuple[int, ...]) -> None:
        self.file = file
        self.addresses = addresses
        """Physical address of each page, in bytes."""

    def stretches(self, pages: int) -> int:
        """How many stretches of frames that follow each other the first `pages` are."""
        pairs = itertools.pairwise(self.addresses[:pages])
        return 1 + sum(first + mmap.PAGESIZE != then for first, then in pairs)

    @classmethod
    def allocate(
        cls,
        pages: int,
        host: Host | None = None,
        opener: Callable[[Path], RawIOBase] = open_unbuffered,
    ) -> KnownFrames:
        """So many pages, filled with zeros.

        Raises Unsupported (no module, no device, no memory), NotPermitted, UsageError for a number
        that is no number of pages, BadStream when the device contradicts itself.
        """
        host = host or Host()
        path = host.root / DEVICE
        try:
            file = opener(path)
        except OSError as error:
            raise cannot_use(host, error) from None
        try:
            file.write(str(pages).encode())
            return cls(file, read_addresses(file, pages))
        except OSError as error:
            file.close()
            row = ERRNOS.get(error.errno or 0)
            if row is None:
                raise cannot_use(host, error) from None
            kind, cause, remedy = row
            most = MAX_BYTES // mmap.PAGESIZE
            raise kind(cause.format(device=path, pages=pages, most=most), remedy) from None
        except BaseException:
            file.close()
            raise

    @staticmethod
    def offset(kind: MapKind, page: int = 0) -> int:
        """What to give to mmap(), in bytes, to map pages from number `page` on in this way."""
        return (KINDS[kind] << KIND_SHIFT) + page * mmap.PAGESIZE

    def map(
        self,
        kind: MapKind,
        first: int = 0,
        count: int | None = None,
        prot: int = mmap.PROT_READ | mmap.PROT_WRITE,
    ) -> KnownMapping:
        """Map `count` pages (all that follow) from number `first` on, where the kernel likes.

        Raises Unsupported when this kernel cannot map in this way, UsageError beyond the pages.
        """
        if count is None:
            count = len(self.addresses) - first
        frames = self.addresses[first : first + count]
        if first < 0 or count < 1 or len(frames) < count:
            raise UsageError(f"there are no {count} pages from number {first} on")
        try:
            area = mmap.mmap(
                self.file.fileno(),
                count * mmap.PAGESIZE,
                mmap.MAP_SHARED,
                prot,
                offset=self.offset(kind, first),
            )
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                raise Unsupported(
                    f"this kernel has no mapping of kind {kind}: huge entries for bare frames came "
                    "with Linux 6.12"
                ) from None
            raise Unsupported(f"/{DEVICE}: mmap: {os.strerror(error.errno or 0)}") from None
        with ffi.from_buffer(area) as start:
            return KnownMapping(area, int(ffi.cast("uintptr_t", start)), frames)

    def close(self) -> None:
        """Give up the file; pages that are mapped stay until they are unmapped."""
        self.file.close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read_addresses(file: RawIOBase, pages: int) -> tuple[int, ...]:
    """Physical addresses of all pages. Raises BadStream, and OSError as read() gives it."""
    size, data = struct.calcsize("=Q"), b""
    while len(data) < pages * size:
        more = file.read(pages * size - len(data))
        if not more or len(more) % size:
            raise BadStream(f"the device has {len(data) // size} pages, not {pages}", ANEW)
        data += more
    addresses = struct.unpack(f"={pages}Q", data)
    if any(address % mmap.PAGESIZE for address in addresses):
        raise BadStream("the device reports an address that is not that of a page", ANEW)
    if len(set(addresses)) < pages:
        raise BadStream("the device reports one page twice", ANEW)
    return addresses
