# SPDX-License-Identifier: GPL-2.0-or-later
"""A running guest: run commands in it, move files, stop and look at it through QEMU's monitor.

    with Guest(machine) as guest:
        job = guest.start(["python3", "/files/spin.py"])
        for line in job.lines(): ...
        guest.monitor.execute("stop")
        print(guest.monitor.human("gva2gpa 0x7f..."))
        guest.monitor.execute("cont")

Leaving the block ends the guest. `Guest.finish` powers it off properly and judges its log.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import mmap
import os
import queue
import signal
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from . import splat
from .errors import ModuleRefused, NeverUp, NoResult, Splat, TimedOut
from .inside import wire
from .paths import named
from .qemu import Machine, Qemu
from .qmp import Qmp
from .say import say

BOOT_SECONDS = 180.0
"""A guest that has not answered by then never will: emulated boots take 5 to 15 s when idle."""
BOOTS = 3
"""How often a guest is booted when its kernel makes a report that is known to be none."""
LOG_LINES = 25


@dataclass(frozen=True)
class Hello:
    """What booted, as its agent says."""

    release: str
    machine: str
    module: str
    """loaded, none, `absent PATH`, or `refused REASON`."""

    @property
    def module_state(self) -> str:
        """The first word of ``module``."""
        return self.module.split(" ", 1)[0]


@dataclass(frozen=True)
class Completed:
    """A command that ran to its end in the guest."""

    status: int
    """As a shell reports it: 128 + the signal's number when a signal ended it."""
    out: bytes
    err: bytes


class Job:
    """A command running in the guest."""

    def __init__(self, guest: Guest, number: int) -> None:
        self._guest = guest
        self.number = number
        self._frames: queue.SimpleQueue[wire.Frame | None] = queue.SimpleQueue()
        self.status: int | None = None
        self.error = ""
        """Why it could not be run at all."""

    def deliver(self, frame: wire.Frame | None) -> None:
        """For the reader thread: a frame about this job, None when the guest has gone."""
        self._frames.put(frame)

    def output(self, timeout: float | None = None) -> Iterator[tuple[bytes, bytes]]:
        """(`wire.OUT` or `wire.ERR`, bytes) as they come, until the job ends.

        ``timeout`` in seconds bounds the whole; then the job is killed and `TimedOut` is raised.
        `NoResult` is raised when the guest dies.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while self.status is None:
            left = None if until is None else max(0.0, until - time.monotonic())
            try:
                frame = self._frames.get(timeout=left)
            except queue.Empty:
                self.kill()
                raise TimedOut(f"the guest's command was not done after {timeout:g} s") from None
            if frame is None:
                raise NoResult("the guest ended before its command did")
            if frame.kind == wire.EXIT:
                answer = json.loads(frame.data)
                self.error = answer["error"]
                self.status = answer["status"]
            else:
                yield frame.kind, frame.data

    def lines(self, timeout: float | None = None) -> Iterator[str]:
        """Lines of standard output, without line ends, as they come. Standard error is dropped."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = ""
        for kind, data in self.output(timeout):
            if kind == wire.OUT:
                *whole, text = (text + decoder.decode(data)).split("\n")
                yield from whole
        if text:
            yield text

    def wait(self, timeout: float | None = None) -> Completed:
        """What it printed and its status once it has ended; see `output` for ``timeout``."""
        parts: dict[bytes, list[bytes]] = {wire.OUT: [], wire.ERR: []}
        for kind, data in self.output(timeout):
            parts[kind].append(data)
        return Completed(self.status or 0, b"".join(parts[wire.OUT]), b"".join(parts[wire.ERR]))

    def write(self, data: bytes) -> None:
        """Send bytes to its standard input (if it was started with one); none means end of file."""
        self._guest.send(wire.STDIN, self.number, data)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to it and everything it started."""
        with contextlib.suppress(NoResult):
            self._guest.send(wire.KILL, self.number, json.dumps({"signal": int(number)}).encode())


class Guest:
    """A guest from boot to end. ``boot_seconds`` bounds the boot.

    ``expected`` are patterns of reports its kernel has to make (`splat.judge`): any other is a
    failure as ever, and so is the lack of one of these.
    """

    hello: Hello

    def __init__(
        self,
        machine: Machine,
        boot_seconds: float = BOOT_SECONDS,
        expected: Sequence[str] = (),
    ) -> None:
        self.machine = machine
        self._expected = tuple(expected)
        self._boot_seconds = boot_seconds
        self._sending = threading.Lock()
        self._monitor: Qmp | None = None
        self._started: Qemu | None = None
        self._reset()

    def _reset(self) -> None:
        """Forget the guest of an earlier boot."""
        self.own_job = Job(self, wire.OWN_JOB)
        self._jobs = {wire.OWN_JOB: self.own_job}
        # A restored guest goes on with the jobs it had; new ones must not be confused with them.
        self._next = 1000 if self.machine.incoming else 1
        self._hello: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._gone = False

    def __enter__(self) -> Guest:
        for left in reversed(range(BOOTS)):
            self._boot()
            known = splat.known_at_boot(self.log()) if left else None
            if known is None:
                break
            say(f"{named(self.machine.log)}: {known.reason}; booting again")
            self.end()
            self._reset()
        return self

    def _boot(self) -> None:
        self._started = Qemu(self.machine)
        try:
            threading.Thread(target=self._read, args=(self._started,), daemon=True).start()
            if self.machine.incoming:
                self._resume()
            else:
                self.hello = self._greeting()
        except BaseException:
            self.end()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    @property
    def _qemu(self) -> Qemu:
        assert self._started is not None, "the guest was not entered"
        return self._started

    def _greeting(self) -> Hello:
        try:
            data = self._hello.get(timeout=self._boot_seconds)
        except queue.Empty:
            data = None
        if data is None:
            self._qemu.wait(2.0)
            raise self._no_result("the guest gave no sign of life", NeverUp)
        return Hello(**json.loads(data))

    def _resume(self) -> None:
        """Set a restored guest going: it was stopped when it was saved."""
        until = time.monotonic() + self._boot_seconds
        while self.monitor.execute("query-status")["status"] == "inmigrate":
            if time.monotonic() > until:
                raise self._no_result("QEMU did not restore the saved guest")
            time.sleep(0.02)
        self.monitor.execute("cont")

    def _no_result(self, cause: str, kind: type[NoResult] = NoResult) -> Exception:
        """The error for a guest without a result: its kernel's report, else the end of its log."""
        log = self.log()
        reports = splat.judge(log, self._expected).unexpected
        if reports:
            return self._splat(reports)
        tail = "\n".join(f"    {line}" for line in log.splitlines()[-LOG_LINES:])
        complaint = self._qemu.complaint()
        said = f"\n    QEMU: {complaint}" if complaint else ""
        return kind(f"{cause}; the end of its log ({named(self.machine.log)}):\n{tail}{said}")

    def _splat(self, reports: Sequence[splat.Report]) -> Splat:
        text = "\n".join(f"  {r.kind}, line {r.line}:\n{r}" for r in reports)
        return Splat(
            f"the guest's kernel reported {len(reports)} problem(s)"
            f" ({named(self.machine.log)}):\n{text}"
        )

    def _read(self, qemu: Qemu) -> None:
        def read(size: int) -> bytes:
            try:
                return qemu.agent.recv(size)
            except OSError:
                return b""

        while (frame := wire.read_frame(read)) is not None:
            if frame.kind == wire.HELLO:
                self._hello.put(frame.data)
            elif frame.job in self._jobs:
                self._jobs[frame.job].deliver(frame)
        if qemu is not self._started:
            return
        self._gone = True
        self._hello.put(None)
        for job in list(self._jobs.values()):
            job.deliver(None)

    def send(self, kind: bytes, job: int, data: bytes = b"") -> None:
        """Send one frame; raises `NoResult` when the guest has gone."""
        with self._sending:
            try:
                self._qemu.agent.sendall(wire.Frame(kind, job, data).encode())
            except OSError as error:
                raise NoResult("the guest has ended") from error

    def adopt(self, job: Job) -> None:
        """Follow a job that a restored guest was already running when it was saved."""
        self._jobs[job.number] = job

    def _order(self, kind: bytes, data: bytes) -> Job:
        job = Job(self, self._next)
        self._next += 1
        self._jobs[job.number] = job
        self.send(kind, job.number, data)
        if self._gone:
            job.deliver(None)
        return job

    def start(
        self,
        command: str | Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str = "/",
        stdin: bool = False,
    ) -> Job:
        """Start a command (a string is for the shell) without waiting for it."""
        argv = ["sh", "-c", command] if isinstance(command, str) else list(command)
        order = {"argv": argv, "env": dict(env or {}), "cwd": cwd, "stdin": stdin}
        return self._order(wire.RUN, json.dumps(order).encode())

    def run(
        self,
        command: str | Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        timeout: float = 60.0,
    ) -> Completed:
        """Run a command to its end; raises `NoResult` after ``timeout`` seconds."""
        return self.start(command, env=env).wait(timeout)

    def stream(
        self,
        command: str | Sequence[str],
        show: Callable[[bytes, bytes], None],
        *,
        env: Mapping[str, str] | None = None,
        timeout: float,
    ) -> int:
        """Run a command, giving ``show`` (kind, bytes) as they come, and return its status.

        Raises `NoResult`, or `Splat` when the kernel's log tells why there is none.
        """
        return self.follow(self.start(command, env=env), show, timeout)

    def follow(self, job: Job, show: Callable[[bytes, bytes], None], timeout: float) -> int:
        """The same for a command that is running."""
        try:
            for kind, data in job.output(timeout):
                show(kind, data)
        except TimedOut:
            # Its kernel may have hung the command; else the log of a healthy boot tells nothing.
            self.check()
            raise
        except NoResult as error:
            self._qemu.wait(2.0)
            raise self._no_result(error.cause) from None
        if job.error:
            show(wire.ERR, f"{job.error}\n".encode())
        return job.status or 0

    def push(self, archive: bytes) -> None:
        """Unpack a tar at / in the guest."""
        job = self._order(wire.FILES, archive)
        job.wait(60.0)
        if job.error:
            raise NoResult(f"the guest could not unpack files: {job.error}")

    def fetch(self, path: str) -> dict[str, bytes]:
        """The files at and below a path in the guest, by name from the last part of the path on.

        Raises `FileNotFoundError` when there is none.
        """
        job = self._order(wire.FETCH, json.dumps({"path": path}).encode())
        done = job.wait(60.0)
        if job.error:
            raise FileNotFoundError(f"{path} in the guest: {job.error}")
        with tarfile.open(fileobj=io.BytesIO(done.out)) as archive:
            return {
                member.name: stream.read()
                for member in archive
                if (stream := archive.extractfile(member)) is not None
            }

    @property
    def monitor(self) -> Qmp:
        """QEMU's machine protocol."""
        if self._monitor is None:
            self._monitor = Qmp(self._qemu.monitor)
        return self._monitor

    @contextlib.contextmanager
    def ram(self) -> Iterator[mmap.mmap]:
        """The guest's RAM, read-only; index 0 is guest-physical `Arch.ram_base`.

        Only with `Machine.ram_file`. On q35, RAM above 2 GiB (the default ``-m 3584``: above
        0x8000_0000) appears to the guest from 4 GiB on: give the guest less memory, or subtract.
        """
        assert self.machine.ram_file is not None, "the machine has no ram_file"
        fd = os.open(self.machine.ram_file, os.O_RDONLY)
        try:
            with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as memory:
                yield memory
        finally:
            os.close(fd)

    def log(self) -> str:
        """The console's log so far."""
        try:
            return self.machine.log.read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def expect_module(self, wanted: str) -> None:
        """Raise `ModuleRefused` unless ptscope.ko is what is ``wanted`` (loaded, none, refused)."""
        if self.hello.module_state != wanted:
            text = "\n".join(f"    {line}" for line in splat.about_module(self.log())[-LOG_LINES:])
            raise ModuleRefused(
                f"ptscope.ko should be {wanted} but is: {self.hello.module}\n{text}",
                f"the whole log: {named(self.machine.log)}",
            )

    def check(self) -> None:
        """Raise `Splat` when the kernel has reported a problem so far that is not expected."""
        reports = splat.judge(self.log(), self._expected).unexpected
        if reports:
            raise self._splat(reports)

    def check_all_said(self) -> None:
        """Raise `Splat` when a report that is expected is not in the log."""
        missing = splat.judge(self.log(), self._expected).missing
        if missing:
            raise Splat(
                f"the guest's kernel did not report: {', '.join(missing)}"
                f" ({named(self.machine.log)})"
            )

    def finish(self, seconds: float = 30.0) -> None:
        """Power off and judge the log: raises `Splat` when the kernel reported a problem.

        So it does when a report that is expected was not made.
        """
        with contextlib.suppress(NoResult):
            self.send(wire.BYE, 0)
        ended = self._qemu.wait(seconds)
        self.check()
        if not ended:
            raise self._no_result(f"the guest did not power off within {seconds:.0f} s")
        self.check_all_said()

    def end(self) -> None:
        """End the guest at once, whatever it does. Harmless when it has ended or never started."""
        if self._started is not None:
            self._started.end()
        if self._monitor is not None:
            self._monitor.close()
            self._monitor = None
