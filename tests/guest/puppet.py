# SPDX-License-Identifier: GPL-2.0-or-later
"""Drives the program ``puppet``: a process that does to its memory what it is told.

Every command waits a bounded time for its answer. Leaving the context kills the
process; its forked children die with it (``PR_SET_PDEATHSIG``).
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType

PAGE = os.sysconf("SC_PAGE_SIZE")
PROGRAM = Path(__file__).with_name("puppet")
FRAMES_AT_ONCE = 512
TIMEOUT = 30.0
"""Seconds to wait for an answer: an emulated CPU under load can take a second for a fork."""


class PuppetError(Exception):
    """The puppet answered ``error ERRNO text``."""

    def __init__(self, command: str, errno: int, text: str) -> None:
        super().__init__(f"{command}: {text} (errno {errno})")
        self.errno = errno
        self.text = text


class PuppetSilent(Exception):
    """No answer in time, or the process ended without one."""


class Commands:
    """The commands, for the puppet itself and for its forked children alike.

    Addresses and lengths are in bytes. Each method raises :class:`PuppetError` when the
    kernel refuses, :class:`PuppetSilent` when no answer comes.
    """

    pid: int

    def command(self, line: str, timeout: float = TIMEOUT) -> list[str]:
        """Send one line, return the words of the answer after ``ok``."""
        raise NotImplementedError

    def _number(self, line: str) -> int:
        return int(self.command(line)[0], 0)

    def where(self, place: str) -> int:
        """Address of its own ``text``, ``rodata``, ``data``, ``bss`` or ``stack``."""
        return self._number(f"where {place}")

    def map(
        self,
        length: int,
        *,
        kind: str | None = None,
        prot: str | None = None,
        fd: int | None = None,
        private: bool = False,
        offset: int = 0,
        at: int | None = None,
        hint: bool = False,
        fixed: bool = False,
        align: int | None = None,
        huge: int | None = None,
        flags: str = "",
    ) -> int:
        """``mmap``; returns the address. ``huge`` is the log2 of the hugetlb page size.

        ``kind`` is ``anon``, ``shared``, or with the descriptor of :meth:`known` how its pages
        are mapped: ``remap insert fault huge``. ``flags`` are words of ``populate noreserve
        growsdown locked``.
        """
        words = [f"map length={length:#x}"]
        for name, value in (("kind", kind), ("prot", prot)):
            if value is not None:
                words.append(f"{name}={value}")
        for name, number in (("fd", fd), ("at", at), ("align", align), ("huge", huge)):
            if number is not None:
                words.append(f"{name}={number:#x}")
        if offset:
            words.append(f"offset={offset:#x}")
        for name, wanted in (("private", private), ("hint", hint), ("fixed", fixed)):
            if wanted:
                words.append(name)
        return self._number(" ".join([*words, flags]))

    def unmap(self, address: int, length: int) -> None:
        """``munmap``."""
        self.command(f"unmap {address:#x} {length:#x}")

    def protect(self, address: int, length: int, prot: str) -> None:
        """``mprotect``; ``prot`` is ``none`` or letters of ``rwx``."""
        self.command(f"protect {address:#x} {length:#x} {prot}")

    def advise(self, address: int, length: int, advice: str) -> None:
        """``madvise`` by the name of the advice in lower case, without ``MADV_``."""
        self.command(f"advise {address:#x} {length:#x} {advice}")

    def touch(self, how: str, address: int, count: int = 1, stride: int = PAGE) -> None:
        """Read, write (a 1) or exec one byte at ``count`` places ``stride`` bytes apart."""
        self.command(f"touch {how} {address:#x} {count} {stride:#x}")

    def store(self, address: int, data: bytes) -> None:
        """Write ``data`` there."""
        self.command(f"store {address:#x} {data.hex()}")

    def load(self, address: int, length: int) -> bytes:
        """Read up to 4096 bytes."""
        return bytes.fromhex(self.command(f"load {address:#x} {length}")[0])

    def code(self, address: int) -> None:
        """Write a function that returns at once; ``touch("exec", address)`` calls it."""
        self.command(f"code {address:#x}")

    def remap(self, address: int, old: int, new: int, flags: str = "maymove") -> int:
        """``mremap``; ``flags`` are words of ``maymove dontunmap to=ADDR``."""
        return self._number(f"remap {address:#x} {old:#x} {new:#x} {flags}")

    def stack(self, length: int = 0) -> int:
        """Grow the stack by writing ``length`` bytes of it; the lowest address written."""
        return self._number(f"stack {length}")

    def brk(self, grow: int = 0) -> tuple[int, int]:
        """Move the program break; the old and the new one."""
        old, new = self.command(f"brk {grow}")
        return int(old, 0), int(new, 0)

    def memfd(self, length: int, huge: int = 0) -> int:
        """``memfd_create`` of that length; the descriptor in the puppet."""
        return self._number(f"memfd {length} {huge}")

    def open(self, path: str, mode: str = "r") -> int:
        """Open a file; ``mode`` has ``w`` to write and ``c`` to create."""
        return self._number(f"open {path} {mode}")

    def known(self, pages: int | str) -> int:
        """A descriptor of /dev/ptscope-map that has so many pages."""
        return self._number(f"known {pages}")

    def frames(self, fd: int, first: int, count: int) -> list[int]:
        """Physical addresses of pages of :meth:`known`; fewer where these end."""
        found: list[int] = []
        while count:
            some = min(count, FRAMES_AT_ONCE)
            words = self.command(f"frames {fd} {first + len(found)} {some}")
            found += [int(word, 0) for word in words]
            count -= some
            if len(words) < some:
                break
        return found

    def slurp(self, path: str, address: int, length: int) -> int:
        """Read a file to its end into memory that is there; how many bytes that were."""
        return self._number(f"slurp {path} {address:#x} {length:#x}")

    def fork(self) -> Child:
        """Fork; the child takes the same commands."""
        return Child(self, self._number("fork"))

    def leader_exit(self) -> int:
        """The thread-group leader exits and another thread goes on: its TID."""
        return self._number("leader-exit")

    def exec(self) -> None:
        """Execute the program anew in the same process."""
        self.command("exec")


class Child(Commands):
    """A forked child of a puppet, commanded through its parent."""

    def __init__(self, parent: Commands, pid: int) -> None:
        self._parent = parent
        self.pid = pid

    def command(self, line: str, timeout: float = TIMEOUT) -> list[str]:
        return self._parent.command(f"child {self.pid} {line}", timeout)

    def exit_to_zombie(self, status: int = 0) -> None:
        """Let it exit, and return when it is a zombie."""
        self.command(f"exit {status}")
        self._parent.command(f"zombie {self.pid}")

    def reap(self) -> tuple[str, int]:
        """Wait for it: ``("exited", status)`` or ``("killed", signal)``."""
        how, status = self._parent.command(f"wait {self.pid}")
        return how, int(status)


class Puppet(Commands):
    """One puppet process, ended when the context is left."""

    def __init__(self, program: Path = PROGRAM) -> None:
        self._process = subprocess.Popen(
            [str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to = self._process.stdin.fileno()
        self._from = self._process.stdout.fileno()
        self._buffer = b""
        self.pid = self._process.pid
        try:
            self.command("pid")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Puppet:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill it and collect its status; harmless when it has ended already."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(TIMEOUT)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def command(self, line: str, timeout: float = TIMEOUT) -> list[str]:
        if "\n" in line:
            raise ValueError("one command is one line")
        os.write(self._to, line.encode() + b"\n")
        answer = self._answer(line, time.monotonic() + timeout)
        kind, *words = answer.split()
        if kind == "error":
            number, _, text = answer.partition(" ")[2].partition(" ")
            raise PuppetError(line, int(number), text)
        if kind != "ok":
            raise PuppetSilent(f"{line}: not an answer: {answer!r}")
        return words

    def _answer(self, line: str, deadline: float) -> str:
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._from], [], [], left)[0]:
                raise PuppetSilent(f"{line}: no answer in time")
            data = os.read(self._from, 65536)
            if not data:
                raise PuppetSilent(f"{line}: the puppet ended, status {self._process.poll()}")
            self._buffer += data
        answer, _, self._buffer = self._buffer.partition(b"\n")
        return answer.decode(errors="replace")

    def spin(self, address: int, cpu: int) -> None:
        """Pin it to ``cpu`` and let it read ``address`` in user mode until :meth:`stop`."""
        self.command(f"spin {address:#x} {cpu}")

    def stop(self) -> None:
        """End :meth:`spin`."""
        os.kill(self.pid, signal.SIGUSR1)

    def wait(self, timeout: float = TIMEOUT) -> int:
        """Wait until it has ended; the exit status, negative for a signal."""
        return self._process.wait(timeout)
