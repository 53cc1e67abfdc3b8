# SPDX-License-Identifier: GPL-2.0-or-later
"""What each command of the harness does, out of the other modules."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import termios
from dataclasses import replace
from pathlib import Path

from . import fetch, kernels, module, overlay, package, paths, prepare, qemu, variants
from .errors import NeverUp, SetupError, TimedOut, UsageError
from .guest import Guest
from .inside import wire
from .overlay import Contents
from .packages import install as install_packages
from .prepare import Bootable, Options
from .prepare import tests as tests
from .say import say, warn
from .scratch import scratch_dir

LOGS_KEPT = 40


def packages(options: argparse.Namespace) -> int:
    """`packages`."""
    install_packages()
    return 0


def build(options: argparse.Namespace) -> int:
    """`build`."""
    package.build()
    fetched = fetch.fetch(kernels.kernel(kernels.DEFAULT))
    ko = module.build(fetched, fetched.release)
    say(f"ready: {paths.named(paths.VENV / 'bin' / 'ptscope')}, {paths.named(ko)}")
    return 0


def kdir(options: argparse.Namespace) -> int:
    """`kdir`."""
    fetched = fetch.fetch(kernels.kernel(kernels.DEFAULT))
    print(fetched.headers(fetched.release))
    return 0


def contents(bootable: Bootable, options: argparse.Namespace, init: list[str]) -> Contents:
    """What goes into the guest for the boot options; adds to ``init`` what init must be told."""
    ko: Path | None = options.module
    if options.no_module:
        init.append("vm.module=none")
    elif ko is not None:
        prepare.check_module(ko, bootable.image, bootable.release)
    demo = paths.DEMO if paths.DEMO.is_dir() else None
    if options.no_module or ko is not None or bootable.fetched is None:
        return Contents(
            module=None if options.no_module else ko,
            package=package.for_guest(),
            tests=tests(),
            demo=demo,
            files=options.files,
        )
    return replace(prepare.contents(bootable), demo=demo, files=options.files)


def _forget_logs() -> None:
    """Keep the newest `LOGS_KEPT` logs of single guests."""
    logs = sorted(paths.LOGS.glob("[sv][hm]*-*.log"), key=lambda path: path.stat().st_mtime)
    for old in logs[:-LOGS_KEPT]:
        old.unlink(missing_ok=True)


def check(options: argparse.Namespace) -> None:
    """Raise `UsageError` for boot options that cannot be meant, before anything is built."""
    kernel = kernels.kernel(options.debian)
    if options.icount and options.smp > 1:
        raise UsageError("--icount is for one CPU", "leave out --smp")
    if options.variant:
        variants.variant(options.variant, kernel.arch)
    if options.files:
        overlay.check_files(options.files)
    if options.module is not None and not options.module.is_file():
        raise UsageError(f"there is no module {options.module}")
    if options.modules and not options.kernel:
        raise UsageError(
            "--modules is for a kernel of your own",
            "give it with --kernel; for the ptscope.ko to load: --module KO",
        )
    if options.kernel:
        release = prepare.own_release(options.kernel)
        if options.modules:
            prepare.own_modules(options.modules, release)
        if not options.no_module:
            prepare.check_own_module(options.module, options.kernel, release)


def _bootable(options: argparse.Namespace) -> Bootable:
    if options.kernel:
        return prepare.own(options.kernel, options.modules, options.debian)
    return prepare.debian(options.debian)


def _machine(
    options: argparse.Namespace, scratch: Path, name: str, more: tuple[str, ...] = ()
) -> qemu.Machine:
    check(options)
    _forget_logs()
    bootable = _bootable(options)
    options.variant = options.variant or bootable.kernel.default_variant
    init = list(more)
    what = contents(bootable, options, init)
    machine = prepare.machine(
        bootable,
        Options(
            variant=options.variant,
            smp=options.smp,
            memory=options.memory,
            gigantic=1 if options.memory >= 3584 else 0,
            init=tuple(init),
            append=tuple(options.append.split()),
            icount=options.icount,
            name=name,
            contents=what,
        ),
        scratch,
    )
    say(f"booting {bootable.release}, {options.variant}, {options.smp} CPU, on {machine.accel}")
    return machine


def _pass_on(kind: bytes, data: bytes) -> None:
    stream = sys.stdout if kind == wire.OUT else sys.stderr
    try:
        stream.buffer.write(data)
        stream.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise SetupError(
            f"cannot write the command's output: {error.strerror}",
            "make room where it goes, or send it elsewhere: >FILE",
        ) from error


def run(options: argparse.Namespace) -> int:
    """`run`."""
    words: list[str] = options.words
    with scratch_dir("vm") as scratch:
        machine = _machine(options, scratch, f"vm-{os.getpid()}")
        try:
            with Guest(machine) as guest:
                say(f"up: {guest.hello.release}, ptscope.ko {guest.hello.module}")
                guest.expect_module("none" if options.no_module else "loaded")
                status = guest.stream(
                    words[0] if len(words) == 1 else words, _pass_on, timeout=options.timeout
                )
                guest.finish()
        except TimedOut as error:
            if options.command == "run":
                error.remedy = "give it more: --timeout SECONDS (make vm: TIMEOUT=SECONDS)"
            raise
        except NeverUp as error:
            if options.kernel and not options.modules:
                error.remedy = f"build in what a guest needs, or give modules: {prepare.DRIVERS}"
            raise
    say(f"the command's status is {status}; the guest's log: {paths.named(machine.log)}")
    return status


def demo(options: argparse.Namespace) -> int:
    """`demo`."""
    options.words = ["python3 /demo/demo.py"]
    options.timeout = 300.0
    return run(options)


def shell(options: argparse.Namespace) -> int:
    """`shell`."""
    if not sys.stdin.isatty():
        raise UsageError(
            "vm-shell needs a terminal", "for a command without one: make vm RUN='...'"
        )
    size = shutil.get_terminal_size()
    words = ("vm.mode=shell", f"vm.rows={size.lines}", f"vm.columns={size.columns}", "quiet")
    with scratch_dir("vm") as scratch:
        machine = _machine(options, scratch, f"shell-{os.getpid()}", words)
        machine.log.parent.mkdir(parents=True, exist_ok=True)
        warn('the guest\'s shell follows; leave with "exit", or at once with Ctrl-A X')
        saved = termios.tcgetattr(sys.stdin)
        try:
            return subprocess.run(qemu.console_command(machine), check=False).returncode
        finally:
            termios.tcsetattr(sys.stdin, termios.TCSANOW, saved)


def test(options: argparse.Namespace) -> int:
    """`test`."""
    from .testrun import run_all

    return run_all(options.only or [], options.jobs)


def matrix(options: argparse.Namespace) -> int:
    """`matrix`."""
    from .matrix import run_matrix

    return run_matrix(options.only or [], options.jobs)


def bench(options: argparse.Namespace) -> int:
    """`bench`."""
    from .bench import run_bench

    return run_bench(options.debian or [], options.stall_memory)


def model(options: argparse.Namespace) -> int:
    """`model`."""
    from .longmodel import run_model

    return run_model(options.debian or [], options.steps, options.seed, options.jobs)


def repeat(options: argparse.Namespace) -> int:
    """`repeat`."""
    from .repeat import run_repeat

    return run_repeat(options.debian or [], options.jobs)


def others(options: argparse.Namespace) -> int:
    """`others`."""
    del options
    from .others import run_others

    return run_others()


def quick(options: argparse.Namespace) -> int:
    """`quick`."""
    from .quick import run_quick

    try:
        words = [*shlex.split(options.tests), *options.words]
    except ValueError as error:
        raise UsageError(f"the tests {options.tests!r}: {error}", "close the quotes") from None
    return run_quick(options.variant, words)
