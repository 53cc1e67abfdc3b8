# SPDX-License-Identifier: GPL-2.0-or-later
"""Moments inside the kernel, by its own tracing: where a fault is at each of them.

A tracing instance of its own is used and removed afterwards, so that other users of tracing are not
disturbed. It records tracepoints, and probes on `handle_mm_fault()` where kprobes can be set, of
one thread. The ring buffer is read as it is (trace_pipe_raw): the text of `trace` has microseconds
only.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from ptscope.bench.stage import NotHere

PLACES = (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing"))
CLOCK = "mono_raw"
"""The trace clock that is CLOCK_MONOTONIC_RAW."""
BUFFER_KB = 1024
ENTER, LEAVE = "enter", "leave"
PROBED = "handle_mm_fault"
# What it is called here, and where the kernel has the tracepoint. Not all kernels have all.
TRACEPOINTS: dict[str, str] = {
    "exception": "exceptions/page_fault_user",
    "lock": "mmap_lock/mmap_lock_start_locking",
    "locked": "mmap_lock/mmap_lock_acquire_returned",
}


@dataclass(frozen=True)
class Moment:
    """One event: its name (a key of TRACEPOINTS, ENTER or LEAVE) and CLOCK_MONOTONIC_RAW in ns."""

    ns: int
    name: str


# ---- the ring buffer --------------------------------------------------------

HEADER = struct.Struct("=QQ")
COMMITTED = (1 << 30) - 1
"""Bits of the second word that count bytes; those above say that events were lost."""
LOST = 1 << 31
PADDING, EXTEND, STAMP = 29, 30, 31
DELTA_BITS = 27


def parse_page(page: bytes) -> Iterator[tuple[int, int]]:
    """Time in ns and type of each event of a page (Documentation/trace/ring-buffer-design.rst).

    Raises NotHere when events were lost.
    """
    now, committed = HEADER.unpack_from(page)
    if committed & LOST:
        raise NotHere("the kernel had more events than its buffer holds")
    place, end = HEADER.size, HEADER.size + (committed & COMMITTED)
    while place + 4 <= end:
        (word,) = struct.unpack_from("=I", page, place)
        kind, delta = word & 31, word >> 5
        (length,) = struct.unpack_from("=I", page, place + 4) if place + 8 <= end else (0,)
        data = place + 4
        if kind == PADDING:
            if not delta:
                return
            place += 4 + length
            continue
        if kind == EXTEND:
            now += (length << DELTA_BITS) + delta
            place += 8
            continue
        if kind == STAMP:
            # The highest bits of an absolute time are those of the page's own.
            now = (now >> 59 << 59) | (length << DELTA_BITS) + delta
            place += 8
            continue
        now += delta
        if kind == 0:
            data, size = place + 8, length
            place += 4 + size
        else:
            place += 4 + 4 * kind
        (event,) = struct.unpack_from("=H", page, data)
        yield now, event


# ---- the instance -----------------------------------------------------------


def _write(path: Path, text: str) -> None:
    """Without truncating: these files are commands, and `>` clears some of them."""
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _append(path: Path, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


@dataclass
class Tracing:
    """A tracing instance with its probes."""

    folder: Path
    names: Mapping[int, str] = field(default_factory=dict)
    """Which number of an event is which."""
    missing: tuple[str, ...] = ()
    """What this kernel cannot tell."""

    @contextlib.contextmanager
    def recorded(self, pid: int) -> Iterator[None]:
        """Record what a thread does."""
        # O_TRUNC forgets the thread before, and empties the buffer.
        (self.folder / "set_event_pid").write_text(str(pid))
        (self.folder / "trace").write_text("")
        _write(self.folder / "tracing_on", "1")
        try:
            yield
        finally:
            _write(self.folder / "tracing_on", "0")

    def moments(self) -> list[Moment]:
        """What was recorded, by time. Raises NotHere when some of it was lost."""
        found = []
        for pipe in sorted((self.folder / "per_cpu").glob("cpu*/trace_pipe_raw")):
            for page in _pages(pipe):
                found += [
                    Moment(ns, self.names[number])
                    for ns, number in parse_page(page)
                    if number in self.names
                ]
        return sorted(found, key=lambda moment: moment.ns)


def _pages(pipe: Path) -> Iterator[bytes]:
    size = os.sysconf("SC_PAGE_SIZE")
    fd = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        while True:
            try:
                page = os.read(fd, size)
            except BlockingIOError:
                return
            if len(page) < HEADER.size:
                return
            yield page
    finally:
        os.close(fd)


@contextlib.contextmanager
def tracing(places: tuple[Path, ...] = PLACES) -> Iterator[Tracing]:
    """A tracing instance. Raises NotHere where there is no tracing, or none for us."""
    place = next((each for each in places if (each / "instances").is_dir()), None)
    if place is None:
        raise NotHere(
            f"{places[0]} is not there, or not for us",
            f"as root: `mount -t tracefs none {places[0]}`",
        )
    with ExitStack() as closing:
        try:
            yield _set_up(place, closing)
        except OSError as error:
            raise NotHere(f"tracing cannot be used: {error}") from None


def _set_up(place: Path, closing: ExitStack) -> Tracing:
    group = f"ptscope_{os.getpid()}"
    probed = _probe(place, group, closing)
    folder = place / "instances" / f"ptscope-{os.getpid()}"
    folder.mkdir()
    closing.callback(folder.rmdir)
    _write(folder / "tracing_on", "0")
    _write(folder / "trace_clock", CLOCK)
    _write(folder / "buffer_size_kb", str(BUFFER_KB))
    wanted = {name: folder / "events" / where for name, where in TRACEPOINTS.items()}
    if probed:
        wanted |= {name: folder / "events" / group / name for name in (ENTER, LEAVE)}
    names: dict[int, str] = {}
    for name, event in wanted.items():
        if not event.is_dir():
            continue
        names[int((event / "id").read_text())] = name
        _write(event / "enable", "1")
        closing.callback(_write, event / "enable", "0")
    missing = tuple(
        name for name in (*TRACEPOINTS, ENTER, LEAVE) if name not in names.values()
    )
    return Tracing(folder, names, missing)


def _probe(place: Path, group: str, closing: ExitStack) -> bool:
    """Probes where handle_mm_fault() begins and returns; whether they could be set."""
    path = place / "kprobe_events"
    try:
        for letter, name in (("p", ENTER), ("r", LEAVE)):
            _append(path, f"{letter}:{group}/{name} {PROBED}\n")
            closing.callback(_append, path, f"-:{group}/{name}\n")
    except OSError:
        return False
    return True
