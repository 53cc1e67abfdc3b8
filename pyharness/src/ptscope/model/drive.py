# SPDX-License-Identifier: GPL-2.0-or-later
"""The puppet: starting it, commanding it, and being sure that nothing of it is left."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from ptscope.errors import PtscopeError, Unsupported

PROGRAM = Path(__file__).resolve().parent / "puppet"
SLOTS = 4
"""The stage, and the processes that may be there at a time."""
TIMEOUT_SECONDS = 60
LOOK_MS = 500
"""How long an answer is waited for before it is looked whether the process is there still."""
AGAIN = "run it again; the same --seed takes the same steps"
SIGNALS = {int(signal.SIGSEGV): "SIGSEGV", int(signal.SIGBUS): "SIGBUS"}


class PuppetGone(PtscopeError):
    """A process of the puppet does not answer."""

    exit_status = 3


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command gave: a result and an errno (0: none), or the signal it ended with."""

    result: int
    errno: int
    signal: str = ""

    @property
    def outcome(self) -> str | int:
        """`ok` or a signal for accesses, 0 or an errno for all else, as the model has it."""
        return self.signal or self.errno


class Puppet:
    """The stage and its processes; to be closed."""

    def __init__(self, program: Path = PROGRAM) -> None:
        """Start the stage. Raises Unsupported when the program was not compiled."""
        if not os.access(program, os.X_OK):
            raise Unsupported(
                f"there is no {program}, the process that the model predicts",
                "it is compiled when ptscope is installed: `pip install ./pyharness`",
            )
        pipes = [(os.pipe(), os.pipe()) for _ in range(SLOTS)]
        self._to = [into[1] for into, _ in pipes]
        self._from = [out[0] for _, out in pipes]
        theirs = [fd for into, out in pipes for fd in (into[0], out[1])]
        try:
            self._stage = subprocess.Popen(
                [str(program), *(f"{into[0]}:{out[1]}" for into, out in pipes)],
                pass_fds=theirs,
                stdin=subprocess.DEVNULL,
            )
        except OSError as error:
            self._close()
            raise Unsupported(f"{program} cannot be started: {error.strerror}") from None
        finally:
            for fd in theirs:
                os.close(fd)
        self._buffers = [b""] * SLOTS
        self._poll = []
        for fd in self._from:
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            self._poll.append(poll)
        self.pids: dict[int, int] = {}

    def close(self) -> None:
        """End every process; each ends by itself when the pipes are closed."""
        self._close()
        try:
            self._stage.wait(5)
        except subprocess.TimeoutExpired:
            for pid in (*self.pids.values(), self._stage.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._stage.wait()

    def _close(self) -> None:
        for fd in (*self._to, *self._from):
            os.close(fd)
        self._to, self._from = [], []

    # ---- commands

    def command(self, slot: int, line: str) -> Answer:
        """One command to the process of a slot, and its answer."""
        self._tell(slot, line.encode() + b"\n")
        return self._answer(slot, line)

    def _tell(self, slot: int, data: bytes) -> None:
        try:
            os.write(self._to[slot], data)
        except BrokenPipeError:
            raise PuppetGone("all processes of the puppet have ended", AGAIN) from None

    def _ended(self, slot: int) -> bool:
        """Whether the process of a slot has. Its pipes do not tell: the others hold them open."""
        try:
            status = psutil.Process(self.pids.get(slot, self._stage.pid)).status()
        except psutil.NoSuchProcess:
            return True
        return status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)

    def require_all(self) -> None:
        """Raise PuppetGone unless all its processes are there."""
        for slot in (0, *self.pids):
            if self._ended(slot):
                raise PuppetGone("a process of the puppet was killed", AGAIN)

    def _answer(self, slot: int, line: str) -> Answer:
        end = time.monotonic() + TIMEOUT_SECONDS
        ended = False
        while b"\n" not in self._buffers[slot]:
            if not self._poll[slot].poll(LOOK_MS):
                # Not when it was seen to have ended: what it said before is read first.
                if ended:
                    raise PuppetGone(f"a process of the puppet was killed at {line!r}", AGAIN)
                if time.monotonic() > end:
                    raise PuppetGone(
                        f"the puppet gave no answer to {line!r} within {TIMEOUT_SECONDS} s"
                    )
                ended = self._ended(slot)
                continue
            data = os.read(self._from[slot], 65536)
            if not data:
                raise PuppetGone(f"the puppet ended at {line!r}")
            self._buffers[slot] += data
        text, _, self._buffers[slot] = self._buffers[slot].partition(b"\n")
        first, second = text.split()
        if first == b"signal":
            return Answer(-1, 0, SIGNALS.get(int(second), f"signal {int(second)}"))
        return Answer(int(first), int(second))

    def start(self, slot: int) -> int:
        """A new process in a slot; its PID."""
        pid = self.command(0, f"fork {slot}").result
        self.pids[slot] = pid
        return pid

    def fork(self, parent: int, slot: int) -> int:
        """The process of `parent` forks; the child takes `slot`."""
        pid = self.command(parent, f"fork {slot}").result
        self.pids[slot] = pid
        return pid

    def exit(self, slot: int) -> int:
        """The process of a slot exits and is collected; its wait status."""
        pid = self.pids.pop(slot)
        self._tell(slot, b"exit\n")
        return self.command(0, f"reap {pid}").result

    def clear_refs(self, slot: int, what: str) -> None:
        """Write to /proc/PID/clear_refs of the process of a slot."""
        Path(f"/proc/{self.pids[slot]}/clear_refs").write_text(what)

    def end_all(self) -> None:
        """End all processes but the stage."""
        for slot in list(self.pids):
            self.exit(slot)
