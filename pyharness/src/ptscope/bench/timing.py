# SPDX-License-Identifier: GPL-2.0-or-later
"""Timed actions on addresses, by the C core: see core/sample.h."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ptscope._core import ffi, lib
from ptscope.errors import Unsupported


@dataclass(frozen=True)
class Action:
    """What is timed. `place` is a bit mask of the arguments that the address is added to.

    `spin` empty loops are done inside what is timed: tests plant a slowdown by it. `rest` is slept
    before each sample, in ns.
    """

    kind: int
    call: int = 0
    arguments: tuple[int, ...] = ()
    place: int = 0
    inner: int = 0
    spin: int = 0
    rest: int = 0


@dataclass(frozen=True)
class Sample:
    """One sample as the core took it; counts are of the thread that acted, by getrusage()."""

    ticks: int
    result: int
    minor: int
    major: int
    voluntary: int
    involuntary: int
    cpu: int
    start: int = 0
    """The clock when it began, in ticks."""

    @property
    def faults(self) -> int:
        """Page faults that the kernel counted."""
        return self.minor + self.major


def _set_action(made: Any, action: Action) -> None:
    made.kind, made.call = action.kind, action.call
    for number, argument in enumerate(action.arguments):
        made.arguments[number] = argument & (1 << 64) - 1
    made.place, made.inner = action.place, action.inner
    made.spin, made.rest = action.spin, action.rest


def _c_action(action: Action) -> Any:
    made = ffi.new("struct ptscope_action *")
    _set_action(made, action)
    return made


class Arena:
    """Room for addresses and samples, in shared memory so that a child can do the work."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._memory = mmap.mmap(-1, max(1, count) * (8 + ffi.sizeof("struct ptscope_sample")))
        whole = ffi.cast("char *", ffi.from_buffer(self._memory))
        self.addresses = ffi.cast("unsigned long long *", whole)
        self.samples = ffi.cast("struct ptscope_sample *", whole + 8 * count)

    def fill(self, addresses: Sequence[int]) -> None:
        """Set the addresses, `count` of them."""
        for number, address in enumerate(addresses):
            self.addresses[number] = address

    def results(self) -> list[Sample]:
        """The samples that were taken."""
        return [
            Sample(
                ticks=each.ticks,
                result=each.result,
                minor=each.minor,
                major=each.major,
                voluntary=each.voluntary,
                involuntary=each.involuntary,
                cpu=each.cpu,
                start=each.start,
            )
            for each in (self.samples[number] for number in range(self.count))
        ]

    def take(
        self, clock: int, action: Action, rehearsals: Sequence[Action] = ()
    ) -> list[Sample]:
        """Do the action on each address in turn, in this process.

        The rehearsals are done just before each, on its address: so that the caches have what the
        kernel needs, or that there is something to do again.
        """
        before = ffi.new("struct ptscope_action[]", len(rehearsals))
        for made, rehearsal in zip(before, rehearsals, strict=True):
            _set_action(made, rehearsal)
        error = lib.ptscope_sample_run(
            clock, _c_action(action), before, len(rehearsals),
            self.addresses, self.count, self.samples,
        )  # fmt: skip
        if error:
            raise OSError(-error, os.strerror(-error))
        return self.results()


def take(
    clock: int, action: Action, addresses: Sequence[int], rehearsals: Sequence[Action] = ()
) -> list[Sample]:
    """Do the action on each address in turn, in this process; see `Arena.take`."""
    arena = Arena(len(addresses))
    arena.fill(addresses)
    return arena.take(clock, action, rehearsals)


class Child:
    """A fork of this process that stands still, and may do the timed work.

    It runs nothing of Python. As a context manager it is killed at the end.
    """

    def __init__(self, clock: int, action: Action, addresses: Sequence[int]) -> None:
        """Fork it; it is stopped before it has done anything."""
        self._arena = Arena(len(addresses))
        self._arena.fill(addresses)
        self.pid: int = lib.ptscope_child_run(
            clock, _c_action(action), self._arena.addresses, self._arena.count, self._arena.samples
        )
        if self.pid < 0:
            raise OSError(-self.pid, os.strerror(-self.pid))
        self._wait_stopped()

    def _wait_stopped(self) -> None:
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            raise Unsupported(f"the child that was to be measured ended (status {status:#x})")

    def run(self) -> list[Sample]:
        """Let it work; it stands still again when this returns."""
        os.kill(self.pid, signal.SIGCONT)
        self._wait_stopped()
        return self._arena.results()

    def end(self) -> None:
        """Kill it and wait until it is gone."""
        reap(self.pid)


def reap(pid: int) -> None:
    """Kill a child of ours, and wait for it."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


@contextlib.contextmanager
def pinned(cpu: int) -> Iterator[None]:
    """This process on one CPU, and so that a child of it does not take that away at once.

    A batch process (SCHED_BATCH) that becomes ready waits for the tick.
    """
    before = os.sched_getaffinity(0)
    policy = os.sched_getscheduler(0)
    os.sched_setaffinity(0, {cpu})
    if policy == os.SCHED_OTHER:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    try:
        yield
    finally:
        if policy == os.SCHED_OTHER:
            os.sched_setscheduler(0, policy, os.sched_param(0))
        os.sched_setaffinity(0, before)
