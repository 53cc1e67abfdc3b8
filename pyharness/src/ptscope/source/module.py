# SPDX-License-Identifier: GPL-2.0-or-later
"""The module as a source: whole walks, from debugfs."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import RawIOBase
from pathlib import Path

from ptscope.decode.layout import Layout, available, load
from ptscope.errors import (
    BadStream,
    ChangedIdentity,
    Exited,
    KernelThread,
    NoSuchProcess,
    PtscopeError,
    TargetError,
    Unstable,
    Unsupported,
    UsageError,
)
from ptscope.host import Host
from ptscope.raw.records import Batch, End, EndStatus
from ptscope.raw.stream import (
    MAX_RANGES,
    MAX_READ,
    PID_KERNEL,
    PID_SELF,
    WITH_USER_PGD,
    WITH_VMAS,
    build_request,
    parse_batch,
)
from ptscope.source.assemble import assemble
from ptscope.source.availability import cannot_open, refused
from ptscope.source.base import RawWalk
from ptscope.target.process import Pid

NUMBERS: dict[str, int] = {"self": PID_SELF, "kernel": PID_KERNEL}
SAME_VERSION = "load the module that was built from this version of ptscope"

# What write() and read() of the dump file say (ptscope.h), where it is not a matter of privilege.
# `{who}` is the target.
ERRNOS: dict[int, tuple[type[PtscopeError], str, str | None]] = {
    errno.ESRCH: (NoSuchProcess, "no process has PID {who}", "`ps -e` lists the processes"),
    errno.EOPNOTSUPP: (
        KernelThread,
        "{who} is a kernel thread: it has no user address space",
        "`ptscope walk kernel ADDR` walks the kernel half",
    ),
    errno.ENXIO: (Exited, "process {who} has exited: a zombie has no page tables", None),
    errno.ERANGE: (UsageError, "an address is not canonical in the running paging mode", None),
    errno.EADDRNOTAVAIL: (
        UsageError,
        "an address lies in the other half of the address space",
        "user addresses go with a PID, kernel addresses with `kernel`",
    ),
    errno.EPROTO: (Unsupported, "the module does not know our requests (magic)", SAME_VERSION),
    errno.EPROTONOSUPPORT: (
        Unsupported,
        "the module speaks another version of the wire format",
        SAME_VERSION,
    ),
    errno.EBADMSG: (BadStream, "the module found our request damaged", SAME_VERSION),
    errno.E2BIG: (BadStream, "the module takes fewer ranges than we asked for", SAME_VERSION),
    errno.EINVAL: (BadStream, "the module does not know a flag of our request", SAME_VERSION),
    errno.EMSGSIZE: (BadStream, "the module wants a larger read buffer", SAME_VERSION),
    errno.ENODATA: (BadStream, "the module has no request to answer", SAME_VERSION),
    errno.ENOMEM: (Unsupported, "the kernel has no memory for the module's buffer", None),
}

ENDS: dict[EndStatus, tuple[type[TargetError], str, str | None]] = {
    "exited": (Exited, "process {who} exited while it was walked", None),
    "execed": (
        ChangedIdentity,
        "process {who} executed another program while it was walked: its old address space is gone",
        "walk it again to see the new one",
    ),
    "unstable": (
        Unstable,
        "the kernel's tables at {address:#x} changed at each of many reads",
        "try again",
    ),
}


def open_unbuffered(path: Path) -> RawIOBase:
    """A file to write one request to and read batches from, each by one system call."""
    return path.open("r+b", buffering=0)


@dataclass(frozen=True)
class ModuleSource:
    """Walks by the kernel module. Making one checks nothing; `open` does.

    `opener` opens the dump file; tests put another kernel there.
    """

    host: Host
    directory: Path
    layout: Layout
    name: str = "module"
    opener: Callable[[Path], RawIOBase] = open_unbuffered

    @classmethod
    def open(cls, host: Host | None = None) -> ModuleSource:
        """The source, when the module answers and lets us ask.

        Raises Unsupported or NotPermitted, naming what is missing and the remedy.
        """
        host = host or Host()
        directory = (host.debugfs or host.root / "sys/kernel/debug") / "ptscope"
        path = directory / "layout"
        try:
            text = path.read_text()
            # Lockdown lets files that nobody can write be read; the others it refuses.
            os.close(os.open(directory / "dump", os.O_RDWR))
        except OSError as error:
            raise cannot_open(host, path, error) from None
        return cls(host, directory, named_layout(Layout.from_text(text, name="live")))

    def walk(self, pid: Pid, addresses: Sequence[int]) -> list[RawWalk]:
        """Walk every address; each walk is taken under one hold of the target's lock.

        Raises UsageError for an address that is not canonical or in the wrong half, the
        TargetErrors, NotPermitted, and BadStream when the module contradicts itself.
        """
        for address in addresses:
            check_address(self.layout, address, kernel=pid == "kernel")
        walks: list[RawWalk] = []
        for first in range(0, len(addresses), MAX_RANGES):
            some = addresses[first : first + MAX_RANGES]
            batches = self.dump(pid, [(address, address) for address in some])
            walks += assemble(self.layout, some, batches)
        return walks

    def dump(self, pid: Pid, ranges: Sequence[tuple[int, int]]) -> list[Batch]:
        """All batches of one request, with VMAs and, under PTI, user root entries.

        `ranges` are (first, last) addresses, at most MAX_RANGES. Raises as `walk`.
        """
        number = NUMBERS[pid] if isinstance(pid, str) else pid
        request = build_request(number, WITH_VMAS | WITH_USER_PGD, ranges)
        path = self.directory / "dump"
        entries = {level.number: level.entries for level in self.layout.levels}
        try:
            with self.opener(path) as file:
                file.write(request)
                batches = list(read_batches(file, entries))
        except OSError as error:
            raise self.explained(path, pid, error) from None
        check_end(pid, batches[-1].end if batches else None)
        return batches

    def explained(self, path: Path, pid: Pid, error: OSError) -> PtscopeError:
        """What an error of a file of the module means for a request about `pid`."""
        if isinstance(error, PermissionError):
            return refused(self.host)
        row = ERRNOS.get(error.errno or 0)
        if row is None:
            return cannot_open(self.host, path, error)
        kind, cause, remedy = row
        return kind(cause.format(who=pid), remedy)


def check_end(pid: Pid, end: End | None) -> None:
    """Raise what the end of a stream says, unless all that was asked for was walked.

    The TargetErrors; BadStream for a stream without its end record.
    """
    if end is None:
        raise BadStream(
            "the module's stream stopped without its end record",
            "look for messages of the kernel (`dmesg`) and report it",
        )
    if end.status != "done":
        kind, cause, remedy = ENDS[end.status]
        raise kind(cause.format(who=pid, address=end.address), remedy)


def read_batches(file: RawIOBase, entries: Mapping[int, int]) -> Iterator[Batch]:
    """The batches of a stream until its end of file; one read() is one batch.

    `entries` as in parse_batch. Raises BadStream, and OSError as read() gives it.
    """
    sequence = 0
    ended = False
    while data := file.read(MAX_READ):
        if ended:
            raise BadStream("the module's stream goes on after its end record", SAME_VERSION)
        batch = parse_batch(data, sequence, entries)
        yield batch
        ended = batch.end is not None
        sequence += 1


def check_address(layout: Layout, address: int, kernel: bool) -> None:
    """Raise UsageError for an address that is not canonical, or not in the half that is walked."""
    user = f"user half 0x0 to {layout.user_last:#x}"
    kern = f"kernel half {layout.kernel_first:#x} to 0xffffffffffffffff"
    if not layout.is_canonical(address):
        raise UsageError(
            f"address {address:#x} is not canonical with {len(layout.levels)}-level paging "
            f"({layout.user_last.bit_length() + 1}-bit addresses)",
            f"addresses are in the {user}, or in the {kern}",
        )
    if kernel and address < layout.kernel_first:
        raise UsageError(
            f"address {address:#x} is a user address, and `kernel` walks the {kern}",
            "give the PID of the process it belongs to",
        )
    if not kernel and address > layout.user_last:
        raise UsageError(
            f"address {address:#x} is a kernel address, and a process has the {user}",
            f"`ptscope walk kernel {address:#x}` walks the kernel half",
        )


def named_layout(live: Layout) -> Layout:
    """The live layout under the name of the shipped one that it equals, else `live`.

    Equal means: all that is fixed when a kernel is compiled. What differs from boot to boot, and
    the exact release, are those of the running kernel.
    """
    for name in available():
        shipped = load(name)
        if (shipped.arch, shipped.facts) == (live.arch, live.facts):
            return replace(live, name=name)
    return live
