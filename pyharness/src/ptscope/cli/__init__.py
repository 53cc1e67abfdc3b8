# SPDX-License-Identifier: GPL-2.0-or-later
"""The `ptscope` command: a table of subcommands, each imported when it is used.

`ptscope --help` imports none of them, so it is fast and works where cffi or psutil are broken.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import json
import os
from collections.abc import Sequence
from typing import NamedTuple

import click

from ptscope import __version__
from ptscope.errors import PtscopeError, Unsupported, UsageError
from ptscope.views.text import printable

# What writing can fail with; a status of its own (EX_IOERR) so that nobody takes it for a finding.
OUTPUT_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


class Row(NamedTuple):
    """One subcommand: where its click command is, its line in `ptscope --help`, and examples.

    The examples are arguments as a user types them, shown at the end of its own `--help`.
    """

    where: str
    help: str
    examples: tuple[str, ...]


COMMANDS: dict[str, Row] = {
    "doctor": Row(
        "ptscope.cli.doctor:doctor",
        "What works here, what does not, and the remedy.",
        ("", "--json"),
    ),
    "layout": Row(
        "ptscope.cli.layout:layout",
        "The page-table layout of the running kernel.",
        ("", "--name debian-6.12-arm64"),
    ),
    "decode": Row(
        "ptscope.cli.decode:decode",
        "Explain one raw entry, offline.",
        ("0x800000014951f867 --level pte", "0x8000000146114867 --level pmd --set c_bit=47 --json"),
    ),
    "walk": Row(
        "ptscope.cli.walk:walk",
        "Walk addresses of a process, from the PGD to the leaf.",
        ("1 0x7ffd3a1c2ff8", "self 0x400000 --compare", "kernel 0xffffffff81000000"),
    ),
    "map": Row(
        "ptscope.cli.map:map_",
        "What a process maps, by VMA, page size and level.",
        ("1", "$(pidof -s postgres) --csv > postgres.csv"),
    ),
    "dump": Row(
        "ptscope.cli.dump:dump",
        "Keep all page tables of a process in a file.",
        ("1 -o init.pts", "1 -o heap.pts --range 0x55d0c8000000+0x1000000"),
    ),
    "show": Row(
        "ptscope.cli.show:show",
        "What such a file holds, or a walk in it. Offline.",
        ("init.pts", "init.pts 0x7ffd3a1c2ff8 --json"),
    ),
    "diff": Row(
        "ptscope.cli.diff:diff",
        "What changed between two such files.",
        ("before.pts after.pts", "before.pts after.pts --pages"),
    ),
    "check": Row(
        "ptscope.cli.check:check",
        "Check what must be true of page tables.",
        ("1 $(pidof postgres)", "--all", "--list", "--from init.pts"),
    ),
    "who": Row(
        "ptscope.cli.who:who",
        "Which processes map a frame, where and how.",
        ("0x149513", "1 0x7ffd3a1c2ff8", "0x149513 --kernel --json"),
    ),
    "bench": Row(
        "ptscope.cli.bench:bench",
        "What faults, remaps and walks cost, proven by walks.",
        ("fault", "fault write cow-parent -o a.json", "walk", "compare a.json b.json"),
    ),
    "model": Row(
        "ptscope.cli.model:model",
        "Predict every entry of a process that does random things.",
        ("--steps 1000", "--seconds 60 --seed 7", "--source pagemap --only fork --only write"),
    ),
}


class LazyGroup(click.Group):
    """A group that knows names and help lines from COMMANDS and imports a command on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command; None for a name that is not in the table."""
        row = COMMANDS.get(cmd_name)
        if row is None:
            return None
        module, attribute = row.where.split(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        command.epilog = examples(cmd_name, row.examples)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The command list of `--help`, from the table alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, row.help) for name, row in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ptscope", message="%(prog)s %(version)s")
def cli() -> None:
    """A microscope for Linux page tables.

    Exit status: 0 done (also for an address that is not mapped), 1 a comparison found
    something, 2 wrong usage, 3 the target cannot be walked, 4 not permitted, 5 module or kernel
    support missing, 74 the output cannot be written.
    """


def run(arguments: Sequence[str]) -> int:
    """Run one command line and give its exit status; no exception leaves for a user's mistake.

    An error goes to stderr as two lines. With `--json` among the arguments it goes to stdout as
    `{"error": {…}}`, so that a program reads one stream in all cases.
    """
    try:
        return _run(arguments)
    except OSError as error:
        if error.errno not in OUTPUT_ERRNOS:
            raise
        return _output_failed(error)


def _run(arguments: Sequence[str]) -> int:
    words = list(arguments) or ["--help"]
    try:
        status = cli.main(
            args=words, prog_name="ptscope", standalone_mode=False, color=colour_setting()
        )
    except PtscopeError as error:
        return report(error, as_json="--json" in arguments)
    except click.ClickException as error:
        return report(_usage_error(error), as_json="--json" in arguments)
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except click.Abort:
        return 130
    except ImportError as error:
        return report(_missing_part(error), as_json="--json" in arguments)
    return status if isinstance(status, int) else 0


def colour_setting() -> bool | None:
    """False where colours are not wanted or not understood; None: they are for terminals.

    https://no-color.org: NO_COLOR counts when it is not empty.
    """
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return False if plain else None


def report(error: PtscopeError, as_json: bool) -> int:
    """Print an error for people or for programs; give its exit status."""
    if as_json:
        click.echo(json.dumps({"error": error.to_json()}))
    else:
        say(error.cause, error.remedy)
    return error.exit_status


def say(cause: str, remedy: str | None) -> None:
    """Write a cause, and the remedy below it, to stderr. They may quote names of processes."""
    lines = [f"ptscope: {printable(cause)}"]
    if remedy:
        lines.append(f"  remedy: {printable(remedy)}")
    # What cannot be said changes no exit status.
    with contextlib.suppress(OSError):
        click.echo("\n".join(lines), err=True)


def examples(name: str, examples: Sequence[str]) -> str:
    """The end of a command's help; a paragraph that begins with \\b is not wrapped by click."""
    lines = (f"  ptscope {name} {words}".rstrip() for words in examples)
    return "\n".join(("\b", "Examples:", *lines))


def _missing_part(error: ImportError) -> PtscopeError:
    return Unsupported(
        f"a part of ptscope cannot be loaded: {error}",
        "install the package anew: `pip install ./pyharness`",
    )


def _output_failed(error: OSError) -> int:
    """Say that stdout could not be written; what is left for it goes nowhere."""
    say(f"cannot write the output: {error.strerror}", None)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return os.EX_IOERR


def _usage_error(error: click.ClickException) -> UsageError:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "ptscope"
    return UsageError(error.format_message().rstrip("."), f"see `{path} --help`")
