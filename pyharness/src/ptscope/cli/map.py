# SPDX-License-Identifier: GPL-2.0-or-later
"""`ptscope map`: a whole process, VMA by VMA and in total."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable

import click

from ptscope.cli.map_forms import FORMS, Form, Subject
from ptscope.cli.numbers import parse_target, refuse_options
from ptscope.cli.progress import Ticker
from ptscope.cli.walk import explain_fallback
from ptscope.decode.layout import Layout
from ptscope.errors import EXIT_DONE, EXIT_FOUND, UsageError
from ptscope.host import Host
from ptscope.source.choose import NAMES, choose
from ptscope.source.module import ModuleSource
from ptscope.source.pagemap import PagemapSource
from ptscope.source.stream import ModuleStream, Progress, Ranges, open_stream
from ptscope.space.agreement import Comparer, Sums
from ptscope.space.huge import shmem_devices
from ptscope.space.leaves import leaf_rows
from ptscope.space.rows import Reader
from ptscope.space.usage import Usage
from ptscope.target.counters import read_counters
from ptscope.target.frame import BITS, Frame
from ptscope.target.process import Process
from ptscope.target.smaps import read_smaps
from ptscope.views.map import Totals
from ptscope.walk import target_of


@click.command("map", context_settings={"ignore_unknown_options": True})
@click.argument("target", metavar="PID|self")
@click.option("--json", "form", flag_value="json", help="For programs: one object.")
@click.option("--csv", "form", flag_value="csv", help="For spreadsheets: a line a VMA.")
@click.option(
    "--source",
    "source_name",
    type=click.Choice(NAMES),
    default="auto",
    show_default=True,
    help="Read the tables through the module, or leaves alone from /proc/PID/pagemap.",
)
def map_(target: str, form: str | None, source_name: str) -> int:
    """Show what a process maps: each VMA, and in total.

    `mapped` is what the entries map, `huge` the part of it by more than the smallest pages,
    `could` what huge pages could map but do not, `tables` the page tables that a VMA is the first
    to use. The sums are compared with smaps, statm and VmPTE; exit status 1 means a difference
    that was there at each of several readings.
    """
    refuse_options([target])
    pid = parse_target(target)
    if pid == "kernel":
        raise UsageError(
            "the kernel half has no VMAs to map", "`ptscope walk kernel ADDR` walks an address"
        )
    process = target_of(pid)
    assert process is not None
    choice = choose(source_name, pid)
    if choice.instead_of_module is not None:
        explain_fallback(choice.instead_of_module)
    make = FORMS[form or "text"]
    with Ticker() as ticker:
        if isinstance(choice.source, ModuleSource):
            return _map_tables(process, choice.source, make, ticker)
        assert isinstance(choice.source, PagemapSource)
        return _map_leaves(process, choice.source, make, ticker)


def _map_tables(
    process: Process, source: ModuleSource, make: Callable[[Subject], Form], ticker: Ticker
) -> int:
    """Map a process through the module; the exit status."""

    def opener(ranges: Ranges | None) -> ModuleStream:
        return open_stream(source, process.pid, ranges)

    about = read_counters(process.proc).resident // source.layout.page_size

    def tell(progress: Progress) -> None:
        ticker.tell(
            f"{progress.vmas} VMAs, {progress.entries} entries of about {about}, "
            f"at {progress.address:#x}"
        )

    reader = Reader(opener, shmem_devices(), is_huge_zero=is_huge_zero_page, on_batch=tell)
    comparer = Comparer(
        reader,
        source.layout,
        lambda: read_smaps(process.proc),
        lambda: read_counters(process.proc),
    )
    form = make(_subject(process, source.name, source.layout))
    totals = map_rows(comparer, form, source.name, Host().release, ticker)
    process.check_unchanged()
    ticker.clear()
    form.totals(totals)
    agreement = totals.agreement
    return EXIT_FOUND if agreement is not None and agreement.findings else EXIT_DONE


def map_rows(comparer: Comparer, form: Form, source: str, kernel: str, ticker: Ticker) -> Totals:
    """Give each VMA to the form and compare what can be compared; what is to stand below them."""
    reader = comparer.reader
    for row in reader.rows(() if comparer.smaps is None else comparer.smaps()):
        comparer.take(row)
        ticker.clear()
        form.row(row)
    outside, lock_ns = reader.outside, reader.progress.longest_lock_ns
    ticker.tell("comparing with smaps, statm and VmPTE")
    agreement = comparer.agreement()
    return Totals(
        sums=comparer.sums,
        outside=outside,
        page_size=comparer.layout.page_size,
        source=source,
        kernel=kernel,
        layout=comparer.layout,
        agreement=agreement,
        counters=agreement.counters,
        longest_lock_ns=lock_ns,
        frames_hidden=False,
    )


def _map_leaves(
    process: Process, source: PagemapSource, make: Callable[[Subject], Form], ticker: Ticker
) -> int:
    """Map what pagemap and smaps show; there is nothing to compare it with."""
    rows = leaf_rows(process, source.frames_hidden, lambda address: ticker.tell(f"at {address:#x}"))
    # Whether pagemap may be read comes out here, before a form prints its heading.
    first = list(itertools.islice(rows, 1))
    form = make(_subject(process, source.name, None))
    sums = Sums()
    for row in itertools.chain(first, rows):
        sums.add(row)
        ticker.clear()
        form.row(row)
    ticker.clear()
    form.totals(
        Totals(
            sums=sums,
            outside=Usage(),
            page_size=os.sysconf("SC_PAGE_SIZE"),
            source=source.name,
            kernel=Host().release,
            layout=None,
            agreement=None,
            counters=read_counters(process.proc),
            longest_lock_ns=0,
            frames_hidden=source.frames_hidden,
        )
    )
    return EXIT_DONE


def _subject(process: Process, source: str, layout: Layout | None) -> Subject:
    return Subject(
        pid=process.pid,
        comm=process.comm,
        source=source,
        kernel=Host().release,
        layout=layout,
        page_size=os.sysconf("SC_PAGE_SIZE") if layout is None else layout.page_size,
    )


def is_huge_zero_page(pfn: int) -> bool:
    """Whether /proc/kpageflags calls a frame the zero page; only huge ones are asked about."""
    frame = Frame.read(pfn)
    return frame is not None and bool(frame.flags >> BITS["zero-page"] & 1)
