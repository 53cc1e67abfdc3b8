# SPDX-License-Identifier: GPL-2.0-or-later
"""What one round of a scenario is played on: memory, places in it, a child, files.

A scenario is a row that names steps; each step takes the stage and makes it ready. What a step
brings in is taken away when the stage is closed, in the reverse order.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from ptscope._core import lib
from ptscope.bench import memory
from ptscope.bench.memory import Geometry
from ptscope.bench.timing import Action, Child
from ptscope.source.base import Source

FIRST_HIGH = 1 << 48
"""Beyond 47 bits x86-64 and arm64 give addresses only to those who ask for them."""


PLACE = 1 << 37
"""Where room is looked for first. The kernel finds the VMA of a fault in a tree, and how many of
its entries it reads depends on what lies below: here that is the program and its heap, and not what
the interpreter maps and unmaps meanwhile, which would make a fault some instructions dearer today
than tomorrow."""


class NotHere(Exception):
    """A scenario that cannot be played on this machine; `remedy` when it could be."""

    def __init__(self, cause: str, remedy: str | None = None) -> None:
        super().__init__(cause)
        self.cause = cause
        self.remedy = remedy


@contextlib.contextmanager
def within_limits() -> Iterator[None]:
    """What cannot be had for want of memory or processes makes a scenario one that is not here.

    Raises NotHere then, and lets all other errors pass.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOMEM, errno.EAGAIN):
            raise
        raise NotHere(
            error.strerror or str(error), "see `ulimit -v` and `ulimit -u`, or take less of it"
        ) from error


@dataclass
class Stage:
    """One round. `addresses` are those of the samples, all between `base` and `base + size`."""

    geometry: Geometry
    source: Source
    clock: int
    wanted: int
    serving_cpu: int = -1
    base: int = 0
    size: int = 0
    stride: int = 0
    addresses: list[int] = field(default_factory=list)
    fd: int = -1
    pkey: int = -1
    action: Action = field(default_factory=lambda: Action(lib.PTSCOPE_DO_NOTHING))
    child: Child | None = None
    pid: int = field(default_factory=os.getpid)
    """Whose tables are looked at."""
    frames: dict[int, int] = field(default_factory=dict)
    """The page frame number that an address has to have afterwards, where it is known."""
    closing: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.close()

    @property
    def page(self) -> int:
        """Bytes of the smallest page."""
        return self.geometry.page

    def lay_out(self, stride: int) -> None:
        """Choose the places of the samples, `stride` bytes apart, and find room for them.

        The first place in what each table maps is none: a byte there is touched by `anchor`, so
        that the table that a sample's entry stands in is there before.
        """
        above = self.geometry.above(stride)
        room = self.geometry.user_end // 2
        wanted = self.wanted
        if above is None:
            wanted = min(wanted, room // stride - 2)
        slots = wanted if above is None else wanted + 1 + wanted // (above // stride - 1)
        if wanted < 1:
            raise NotHere("the address space is too small")
        self.stride = stride
        self.size = slots * stride
        align = above or stride
        self.base = self._room(align)
        self.closing.callback(memory.unmap, self.base, self.size)
        places = range(self.base, self.base + self.size, stride)
        self.addresses = [each for each in places if above is None or each % above][:wanted]

    def _room(self, align: int) -> int:
        flags = memory.ANON | memory.MAP_FIXED_NOREPLACE
        place = max(PLACE, align)
        if place + self.size <= min(self.geometry.user_end, FIRST_HIGH // 2):
            with contextlib.suppress(OSError):
                return memory.map_memory(self.size, flags, memory.PROT_NONE, at=place)
        if self.size + align <= FIRST_HIGH // 4:
            with contextlib.suppress(OSError):
                return memory.reserve(self.size, align)
        if self.geometry.user_end <= FIRST_HIGH:
            raise NotHere("the address space is too small")
        # Not the first of them: for arm64 it is still an ordinary one.
        place = max(2 * FIRST_HIGH, align)
        try:
            return memory.map_memory(self.size, flags, memory.PROT_NONE, at=place)
        except OSError as error:
            raise NotHere(f"no room for {self.size:#x} bytes ({error.strerror})") from None

    @property
    def anchors(self) -> list[int]:
        """The first place of each table that samples' entries stand in."""
        above = self.geometry.above(self.stride)
        return [] if above is None else sorted({each & -above for each in self.addresses})

    def anchor(self, write: bool = True) -> None:
        """Have the tables made that the samples' entries stand in."""
        for place in self.anchors:
            memory.touch(place, 1, 1, write)

    def map(self, flags: int = memory.ANON, prot: int = memory.RW, offset: int = 0) -> None:
        """Map the room that was found."""
        try:
            memory.map_memory(self.size, flags | memory.MAP_FIXED, prot, self.fd, self.base, offset)
        except OSError as error:
            if error.errno == errno.ENOMEM:
                raise NotHere(f"{self.size >> 20} MiB cannot be mapped here") from None
            raise

    def advise(self, advice: int, what: str = "", remedy: str | None = None) -> None:
        """madvise() of all of it; NotHere, naming `what`, when the kernel does not know that."""
        try:
            memory.advise(self.base, self.size, advice)
        except OSError as error:
            if error.errno == errno.EINVAL and what:
                raise NotHere(f"this kernel has no {what}", remedy) from None
            raise

    def touch(self, write: bool) -> None:
        """Touch the places of the samples."""
        for address in self.addresses:
            memory.touch(address, 1, 1, write)

    def fork(self, works: bool) -> Child:
        """A child that stands still; when it `works`, its tables are the ones to look at."""
        try:
            self.child = Child(self.clock, self.action, self.addresses if works else ())
        except OSError as error:
            cause = f"no child can be made ({error.strerror})"
            raise NotHere(cause, "raise the limit of processes (`ulimit -u`)") from None
        self.closing.callback(self.child.end)
        if works:
            self.pid = self.child.pid
        return self.child

    def open_file(self, folder: Path | None) -> None:
        """A file for the mapping: in shared memory, or one without a name in `folder`."""
        if folder is None:
            self.fd = os.memfd_create("ptscope-bench")
        else:
            handle, name = tempfile.mkstemp(prefix="ptscope-bench-", dir=folder)
            Path(name).unlink()
            self.fd = handle
        self.closing.callback(os.close, self.fd)
        os.ftruncate(self.fd, self.size)


Step = Callable[[Stage], None]


def play(steps: Sequence[Step], stage: Stage) -> None:
    """Take the steps in turn. Raises NotHere when one cannot be taken on this machine."""
    for step in steps:
        step(stage)
