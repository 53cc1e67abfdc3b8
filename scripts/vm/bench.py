# SPDX-License-Identifier: GPL-2.0-or-later
"""`make bench`: what ways of reading page tables cost, side by side in one guest.

Each kernel is booted twice: with a clock that counts instructions, for the costs (tests/guest/
speed.py has the scenarios and the bounds), and with two CPUs and an ordinary clock, for how long a
thread of a big process waits while it is dumped. Then come figures of the host.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import kernels, package, paths, prepare
from .errors import NoResult
from .guest import Guest
from .plan import BENCH_KERNELS
from .prepare import Options
from .proc import run
from .say import say
from .scratch import scratch_dir

SECONDS = 900.0
PROGRAM = "/tests/guest/speed.py"
FOLDER = paths.BUILD / "bench"

Document = Mapping[str, Any]


def run_bench(names: Sequence[str], stall_memory: int) -> int:
    """Measure, print and keep as JSON in build/bench; 1 when a bound does not hold, else 0."""
    rows = [kernels.kernel(name) for name in names or BENCH_KERNELS]
    package.build()
    good = True
    for kernel in rows:
        bootable = prepare.debian(kernel.name)
        contents = prepare.contents(bootable)
        with scratch_dir("bench") as scratch:

            def measured(
                options: Options,
                *words: str,
                bootable: prepare.Bootable = bootable,
                scratch: Path = scratch,
            ) -> Document:
                return _in_guest(prepare.machine(bootable, options, scratch), words)

            costs = measured(
                Options(
                    variant=kernel.default_variant,
                    memory=kernel.memory,
                    icount=True,
                    name=f"bench-{kernel.name}",
                    contents=contents,
                )
            )
            stall = measured(
                Options(
                    variant=kernel.default_variant,
                    smp=2,
                    memory=stall_memory,
                    gigantic=0,
                    name=f"bench-stall-{kernel.name}",
                    contents=contents,
                ),
                "stall",
            )
        _keep(kernel.name, {**costs, "stall": stall})
        print(_table(kernel.name, costs), end="\n\n")
        print(_stall_text(stall), end="\n\n", flush=True)
        good &= all(bound["holds"] is not False for bound in costs["bounds"])
    host = _on_host()
    _keep("host", host)
    print(_host_text(host), flush=True)
    good &= all(row["holds"] for row in host["rows"])
    return 0 if good else 1


def _in_guest(machine: Any, words: Sequence[str]) -> Document:
    """What the program of the guest printed."""
    say(f"booting {machine.kernel_release}, {machine.smp} CPU, on {machine.accel}")
    with Guest(machine) as guest:
        guest.expect_module("loaded")
        done = guest.run(["python3", PROGRAM, *words], timeout=SECONDS)
        guest.finish()
    if done.status:
        raise NoResult(f"{PROGRAM} failed:\n{done.err.decode(errors='replace')}")
    document: Document = json.loads(done.out)
    return document


def _on_host() -> Document:
    """Figures of this machine."""
    out = run(
        [package.build(), "-m", "ptscope.bench"],
        what="measuring on the host",
        env={"PYTHONPATH": os.fspath(package.SOURCE.parent)},
    )
    document: Document = json.loads(out)
    return document


def _keep(name: str, document: Document) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")


def columns(rows: Sequence[Sequence[str]], right: Callable[[int], bool]) -> str:
    """Rows of equal length as text; ``right`` says which columns are set to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right(i) else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _table(name: str, document: Document) -> str:
    """Costs, with how many times as much as a dump each method takes, and the bounds."""
    dumps = {cost["scenario"]: cost for cost in document["costs"] if cost["method"] == "dump"}
    rows = [("scenario", "method", "pages", "instructions", "a page", "dump = 1", "longest lock")]
    for cost in document["costs"]:
        ratio = cost["per_unit"] / dumps[cost["scenario"]]["per_unit"]
        rows.append(
            (
                cost["scenario"],
                cost["method"],
                f"{cost['units']:,}",
                f"{cost['instructions']:,}",
                f"{cost['per_unit']:,.2f}",
                f"{ratio:,.1f}",
                f"{cost['longest_lock']:,}" if cost["method"] == "dump" else "",
            )
        )
    bounds = [("bound", "measured", "must be", "")]
    for bound in document["bounds"]:
        value = bound["value"]
        times = " times" if bound["kind"] == "ratio" else ""
        bounds.append(
            (
                f"{'less ' if times else ''}{bound['name']}",
                "-" if value is None else f"{value:,.{2 if value < 100 else 0}f}{times}",
                bound["limit"],
                {True: "holds", False: "DOES NOT HOLD", None: "not judged"}[bound["holds"]],
            )
        )
    title = (
        f"{name}: {document['release']}, pages of {document['page_size']} bytes; instructions,"
        f" counted by QEMU ({document['ns_per_instruction']:g} ns each), the least of 5 times"
    )
    if not document["counts_instructions"]:
        title += "; NOT EXACT: something else ran, or the clock does not count"
    return "\n".join(
        [title, columns(rows, lambda i: i > 1), "", columns(bounds, lambda i: i == 1)]
    )


def _stall_text(stall: Document) -> str:
    """How long a thread waited."""
    memory = "real memory" if stall["resident"] else "the zero page: tables of 4 GiB"
    return (
        f"a thread that maps and unmaps a page, on {stall['release']} with 2 CPUs (times of an"
        f" emulated and busy machine):\n"
        f"  longest wait while its process of {stall['pages']:,} pages ({memory}) was dumped:"
        f" {stall['longest_ns'] / 1e6:.2f} ms of {stall['rounds']:,} rounds\n"
        f"  without a dump: {stall['longest_without_ns'] / 1e6:.2f} ms of"
        f" {stall['rounds_without']:,} rounds\n"
        f"  longest hold of the lock by one batch: {stall['longest_lock_ns'] / 1e6:.2f} ms;"
        f" a dump took {stall['dump_ns'] / 1e6:.0f} ms, the mean of {stall['dumps']}"
    )


def _host_text(host: Document) -> str:
    """Figures of the host."""
    rows = [("host", "measured", "must be", "")]
    rows += [
        (row["name"], row["text"], row["limit"], "holds" if row["holds"] else "DOES NOT HOLD")
        for row in host["rows"]
    ]
    return columns(rows, lambda i: i == 1)
