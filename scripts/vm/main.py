#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The harness's command line; `make help` lists what most people need of it."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn

# Run as a script: the folder of this file would come first, and this package is in the one above.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from vm import commands, kernels, oserrors, plan, variants  # noqa: E402
from vm.errors import UsageError, VmError  # noqa: E402
from vm.say import be_quiet, warn  # noqa: E402


class Parser(argparse.ArgumentParser):
    """Wrong usage has the harness's status: 2 could be the guest command's."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, f"see: {self.prog} --help")


def _count(text: str) -> int:
    """A whole number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"not a whole number from 1 on: {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    """A time to wait; python can wait no longer than `threading.TIMEOUT_MAX`."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= threading.TIMEOUT_MAX:
        raise argparse.ArgumentTypeError(f"not a number of seconds above 0: {text!r}")
    return seconds


def _boot_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--variant",
        help=f"one of: {', '.join(variants.VARIANTS)}; by default the kernel's first",
    )
    parser.add_argument(
        "--debian",
        default=kernels.DEFAULT,
        metavar="NAME",
        help=f"which of Debian's kernels: {', '.join(kernels.KERNELS)}",
    )
    parser.add_argument(
        "--kernel",
        type=Path,
        metavar="PATH",
        help="boot this bzImage instead; virtio-pci and virtio-console built in, or --modules",
    )
    parser.add_argument(
        "--modules",
        type=Path,
        metavar="DIR",
        help="modules of --kernel: where `make modules_install INSTALL_MOD_PATH=DIR` put them",
    )
    parser.add_argument(
        "--module",
        type=Path,
        metavar="KO",
        help="the ptscope.ko to load (by default the one built for Debian's kernel)",
    )
    parser.add_argument("--no-module", action="store_true", help="do not load ptscope.ko")
    parser.add_argument(
        "--files", type=Path, metavar="DIR", help="a directory that appears at /files"
    )
    parser.add_argument("--smp", type=_count, default=1, metavar="N", help="CPUs of the guest")
    parser.add_argument(
        "--memory", type=_count, default=3584, metavar="MIB", help="RAM of the guest"
    )
    parser.add_argument(
        "--icount",
        action="store_true",
        help="the guest's clock counts instructions, 2 ns each; one CPU, emulated",
    )
    parser.add_argument(
        "--append", default="", metavar="WORDS", help="more words for the kernel's command line"
    )


def _kernels(command: argparse.ArgumentParser, usual: Iterable[str]) -> None:
    command.add_argument(
        "--debian",
        action="append",
        metavar="NAME",
        help="a kernel, more than one if given again; by default"
        f" {', '.join(dict.fromkeys(usual))}",
    )


def _jobs(command: argparse.ArgumentParser) -> None:
    command.add_argument("--jobs", type=_count, default=2, metavar="N", help="guests at a time")


def parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    top = Parser(prog="scripts/vm/main.py", description=__doc__)
    top.add_argument("--quiet", action="store_true", help="no progress, only results and problems")
    commands_of = top.add_subparsers(dest="command", required=True)

    def command(
        name: str, function: Callable[[argparse.Namespace], int], text: str
    ) -> argparse.ArgumentParser:
        sub = commands_of.add_parser(name, help=text, description=text)
        sub.set_defaults(function=function)
        return sub

    command("packages", commands.packages, "install the Debian packages that are missing")
    command("build", commands.build, "make .venv and build ptscope.ko for the newest kernel")
    command("kdir", commands.kdir, "print where the newest kernel's headers are (for make KDIR=)")
    run = command(
        "run",
        commands.run,
        "run a command in a guest; its output and exit status become this command's",
    )
    _boot_options(run)
    run.add_argument(
        "--timeout",
        type=_seconds,
        default=600.0,
        metavar="SECONDS",
        help="for the command (default: 600)",
    )
    run.add_argument(
        "words", nargs="+", metavar="COMMAND", help="one word is given to the guest's shell"
    )
    _boot_options(command("shell", commands.shell, "an interactive shell in a guest"))
    test = command("test", commands.test, "all tests, on the host and in guests")
    test.add_argument(
        "--only",
        action="append",
        metavar="ROW",
        help=f"only these: host, {', '.join(row.name for row in plan.PLAN)}",
    )
    _jobs(test)
    matrix = command("matrix", commands.matrix, "the guest tests on every kernel, in every variant")
    matrix.add_argument(
        "--only",
        action="append",
        metavar="NAME",
        help="only these: a kernel, an architecture, a variant, race, or one row",
    )
    _jobs(matrix)
    quick = command(
        "quick", commands.quick, "guest tests on a saved guest: seconds from edit to result"
    )
    quick.add_argument("--variant", default=variants.DEFAULT)
    quick.add_argument(
        "--tests", default="", metavar="TEXT", help="the same in one text, quoted as for a shell"
    )
    quick.add_argument(
        "words", nargs="*", metavar="PYTEST-ARG", help="for pytest (default: all main guest tests)"
    )
    bench = command(
        "bench",
        commands.bench,
        "what ways of reading page tables cost, in instructions, side by side",
    )
    _kernels(bench, plan.BENCH_KERNELS)
    bench.add_argument(
        "--stall-memory",
        type=_count,
        default=3584,
        metavar="MIB",
        help="RAM of the guest with the 4 GiB process; from 5632 on its pages are real memory",
    )
    model = command("model", commands.model, "the model of memory management, for many steps")
    _kernels(model, [name for name, _, _ in plan.MODEL_RUNS])
    model.add_argument("--steps", type=_count, metavar="N", help="as many in each guest")
    model.add_argument("--seed", type=_count, default=1, metavar="N")
    _jobs(model)
    repeat = command(
        "repeat",
        commands.repeat,
        "all that `ptscope bench` measures, twice from the same state of a guest, compared",
    )
    _kernels(repeat, plan.MATRIX_BENCH)
    _jobs(repeat)
    command(
        "others", commands.others, "`ptscope bench` beside independent programs, on this machine"
    )
    demo = command("demo", commands.demo, "walk a live process in a guest and compare with pagemap")
    _boot_options(demo)
    return top


def _standard_streams() -> None:
    """Have all three; raises `UsageError` when standard output, which carries results, is closed.

    Were one left closed, the next file opened would take its place and receive what is printed.
    """
    output = sys.stdout
    while os.open(os.devnull, os.O_RDWR) <= 2:
        pass
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    if output is None:
        raise UsageError("standard output is closed", "to drop what it gets: >/dev/null")


def _drop_output() -> None:
    """What could not be written must not be tried again when python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _fail(error: VmError) -> int:
    if sys.stdout is not None:
        try:
            sys.stdout.flush()
        except OSError:
            _drop_output()
    warn(f"vm: {error.cause}")
    if error.remedy:
        warn(f"  remedy: {error.remedy}")
    return error.exit_status


def main() -> int:
    """Run one command; returns the exit status."""
    # A terminated harness must end its guests as an interrupted one does; nohup's must go on.
    for each in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(each) != signal.SIG_IGN:
            signal.signal(each, lambda number, frame: sys.exit(128 + number))
    try:
        _standard_streams()
        options = parser().parse_args()
        if options.quiet:
            be_quiet()
        status: int = options.function(options)
        sys.stdout.flush()
    except VmError as error:
        return _fail(error)
    except KeyboardInterrupt:
        warn("vm: interrupted")
        return 130
    except BrokenPipeError:
        _drop_output()
        return 141
    except OSError as error:
        known = oserrors.explain(error)
        if known is None:
            raise
        return _fail(known)
    return status


if __name__ == "__main__":
    sys.exit(main())
