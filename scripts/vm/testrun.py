# SPDX-License-Identifier: GPL-2.0-or-later
"""Run the host tests and the guest plan, some at a time, and judge them all together."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from . import accel, junit, kernels, package, paths, prepare, variants, workstation
from .arches import ARCHES
from .errors import UsageError, VmError
from .guest import Guest
from .plan import MAIN, PLAN, Row, matrix_rows
from .qemu import Machine
from .say import say
from .scratch import scratch_dir
from .suite import guest_tests

HOST = "host"
HOST_SECONDS = 900.0


@dataclass(frozen=True)
class Result:
    """What a row came to."""

    name: str
    counts: junit.Counts
    seconds: float
    failures: tuple[str, ...] = ()
    problem: str = ""
    """What went wrong outside the tests; it is counted as a failed test."""
    skips: tuple[tuple[str, str], ...] = ()
    """Names of the skipped tests, and why."""

    @property
    def good(self) -> bool:
        """Whether everything it should have shown was shown."""
        return not self.problem and not self.counts.failed and self.counts.passed > 0


class Printer:
    """Lines of several runs, each under its name; one line at a time whoever prints."""

    _lock = threading.Lock()

    def __init__(self, name: str, width: int) -> None:
        self._prefix = f"{name:<{width}} | ".encode()
        self._rest = b""

    def __call__(self, kind: bytes, data: bytes) -> None:
        """Print the whole lines of ``data``; the rest waits for its end."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        with self._lock:
            for line in lines:
                sys.stdout.buffer.write(self._prefix + line.rstrip(b"\r") + b"\n")
            sys.stdout.buffer.flush()

    def say(self, text: str) -> None:
        """A line of the harness's own."""
        self(b"", (b"\n" if self._rest else b"") + text.encode() + b"\n")


def judge(
    name: str,
    document: bytes | None,
    status: int,
    seconds: float,
    problem: str = "",
    folder: Path | None = None,
) -> Result:
    """Turn what a run left into a result, and into NAME.xml in ``folder`` (build/junit).

    ``document`` is its JUnit file (None when it left none), ``status`` pytest's exit status,
    ``problem`` what else went wrong. Missing results and runs without a test are problems too.
    """
    root = ET.Element("testsuites")
    if document is not None:
        try:
            root = junit.parse(document)
        except ValueError as error:
            problem = problem or str(error)
    elif not problem:
        problem = f"no JUnit file was left (pytest's exit status: {status})"
    counts = junit.count(root)
    if not problem and not counts.ran:
        problem = f"no test ran (pytest's exit status: {status})"
    if not problem and status != 0 and not counts.failed:
        problem = f"pytest's exit status is {status} although no test failed"
    failures = tuple(junit.failures(root))
    if problem:
        junit.add_problem(root, name, problem)
        counts += junit.Counts(failed=1)
    junit.write(root, name, (folder or paths.JUNIT) / f"{name}.xml")
    return Result(name, counts, seconds, failures, problem, tuple(junit.skips(root)))


class Cancelled(Exception):
    """Another thread was interrupted; guests still running are ended."""


class Runner:
    """Runs rows and knows what runs, so that an interrupt ends all of it."""

    def __init__(self, width: int, scratch: Path, folder: Path | None = None) -> None:
        self.width = width
        self.folder = folder
        self.scratch = scratch
        self._stop = threading.Event()
        self._guests: set[Guest] = set()
        self._processes: set[subprocess.Popen[bytes]] = set()

    def stop(self) -> None:
        """End everything now."""
        self._stop.set()
        for guest in list(self._guests):
            guest.end()
        for process in list(self._processes):
            _kill_group(process)

    def guest(self, row: Row, machine: Machine, kernel: kernels.Kernel) -> Result:
        """Boot one guest and run its tests."""
        printer = Printer(row.name, self.width)
        start = time.monotonic()
        document: bytes | None = None
        status = 0
        problem = ""
        if self._stop.is_set():
            raise Cancelled
        guest = Guest(machine, expected=row.expect_splat)
        self._guests.add(guest)
        try:
            with guest:
                guest.expect_module(row.module)
                printer.say(
                    f"up after {time.monotonic() - start:.1f} s: {guest.hello.release},"
                    f" {row.variant}, {row.smp} CPU, {machine.accel.name.upper()},"
                    f" ptscope.ko {guest.hello.module}"
                )
                outcome = guest_tests(
                    guest, row.pytest(), row.environment(kernel), printer, row.seconds
                )
                document, status = outcome.document, outcome.status
                guest.finish()
        except VmError as error:
            problem = error.cause
            printer.say(f"FAILED: {problem}")
        finally:
            self._guests.discard(guest)
        if self._stop.is_set():
            raise Cancelled
        seconds = time.monotonic() - start
        return judge(row.name, document, status, seconds, problem, self.folder)

    def host(self, python: Path) -> Result:
        """The host's tests in a process of their own."""
        printer = Printer(HOST, self.width)
        start = time.monotonic()
        left = self.scratch / "host.xml"
        command: list[str | Path] = [
            # A harness that is killed must not leave tests and guests behind.
            *("setpriv", "--pdeathsig", "KILL"),
            python,
            "-m",
            "pytest",
            "tests/host",
            f"--junitxml={left}",
            "-o",
            "junit_family=xunit2",
            "--color=no",
            "--tb=short",
            "--durations=3",
        ]
        process = subprocess.Popen(
            [str(part) for part in command],
            cwd=paths.REPO,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self._processes.add(process)
        timer = threading.Timer(HOST_SECONDS, _kill_group, (process,))
        timer.start()
        assert process.stdout is not None
        try:
            while data := os.read(process.stdout.fileno(), 1 << 16):
                printer(b"", data)
            status = process.wait()
        finally:
            timer.cancel()
            _kill_group(process)
            self._processes.discard(process)
        if self._stop.is_set():
            raise Cancelled
        problem = (
            f"the host tests took more than {HOST_SECONDS:.0f} s"
            if status == -signal.SIGKILL
            else ""
        )
        document = left.read_bytes() if left.exists() else None
        return judge(HOST, document, status, time.monotonic() - start, problem, self.folder)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def select(names: list[str]) -> tuple[bool, list[Row]]:
    """Whether the host tests are among ``names``, and which rows; no names mean all.

    A row is named by its name or by its scenario. Raises `UsageError` for a name that is nothing.
    """
    if not names:
        return True, list(PLAN)
    rows = [row for row in PLAN if {row.name, row.scenario} & set(names)]
    known = {HOST, *(row.name for row in PLAN), *(row.scenario for row in PLAN)}
    unknown = sorted(set(names) - known)
    if unknown:
        raise UsageError(
            f"no test row is called {', '.join(unknown)}",
            f"there are: {', '.join([HOST, *(row.name for row in PLAN)])}",
        )
    return HOST in names, rows


def summary(results: list[Result]) -> str:
    """The table, and the counts alone on the last line."""
    width = max(len(result.name) for result in results)
    lines = [f"{'run':<{width}}  passed  failed  skipped  seconds"]
    for result in results:
        counts = result.counts
        lines.append(
            f"{result.name:<{width}}  {counts.passed:6}  {counts.failed:6}  {counts.skipped:7}"
            f"  {result.seconds:7.1f}"
        )
    total = sum((result.counts for result in results), junit.Counts())
    return "\n".join([*lines, *failed_lines(results), str(total)])


def failed_lines(results: list[Result]) -> list[str]:
    """A line for everything that failed."""
    lines = []
    for result in results:
        lines += [f"FAILED {result.name}: {name}" for name in result.failures]
        if result.problem:
            lines.append(f"FAILED {result.name}: {result.problem}")
    return lines


def run_all(names: list[str], jobs: int) -> int:
    """`make test`: run, print the summary, and return 0 when everything was good, else 1."""
    host, rows = select(names)
    shutil.rmtree(paths.JUNIT, ignore_errors=True)
    python = package.build()
    with scratch_dir("test") as scratch:
        ready: dict[str, Machine] = {}
        kernel = kernels.kernel(kernels.DEFAULT)
        if rows:
            ready = machines(kernel, rows, scratch)
        width = max(len(each) for each in [HOST, *ready])
        runner = Runner(width, scratch)
        with ThreadPoolExecutor(max_workers=jobs) as pool:
            futures = [pool.submit(runner.host, python)] if host else []
            futures += [pool.submit(runner.guest, row, ready[row.name], kernel) for row in rows]
            try:
                results = [future.result() for future in futures]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                runner.stop()
                raise
    print()
    print(left_out())
    print(summary(results), flush=True)
    return 0 if all(result.good for result in results) else 1


def left_out() -> str:
    """What `make test` leaves to `make matrix`, for people."""
    others = [name for name in kernels.KERNELS if name != kernels.DEFAULT]
    default = kernels.kernel(kernels.DEFAULT)
    variant = {row.variant for row in PLAN if row.scenario == MAIN}
    rest = [f"{default.name} {name}" for name in default.levels if name not in variant]
    scenarios = [row.scenario for row in matrix_rows(default)]
    ours = {row.scenario for row in PLAN}
    rest += [f"{default.name} {name}" for name in dict.fromkeys(scenarios) if name not in ours]
    return f"only {default.name} was run; left to `make matrix`: {', '.join([*others, *rest])}"


def machines(kernel: kernels.Kernel, rows: list[Row], scratch: Path) -> dict[str, Machine]:
    """One machine for each row; those of one user space share an initrd."""
    bootable = prepare.debian(kernel.name)
    scratch.mkdir(exist_ok=True)
    options = prepare.Options(
        variant=kernel.default_variant,
        memory=kernel.memory,
        name="test",
        contents=prepare.contents(bootable),
    )
    shared = {}
    if not all(row.workstation for row in rows):
        shared[False] = prepare.machine(bootable, options, scratch)
    if any(row.workstation for row in rows):
        shared[True] = workstation.machine(bootable, options, scratch)
    say(f"{len(rows)} guests with {bootable.release}, on {next(iter(shared.values())).accel}")
    arch = ARCHES[kernel.arch]
    made = {}
    for row in rows:
        variant = variants.variant(row.variant, kernel.arch)
        made[row.name] = replace(
            shared[row.workstation],
            variant=variant,
            accel=accel.COUNTING
            if row.icount
            else accel.choose(arch, variant, bootable.image),
            smp=row.smp,
            icount=row.icount,
            memory=row.memory or kernel.memory,
            append=row.init,
            log=paths.LOGS / f"{row.name}.log",
        )
    return made
