# SPDX-License-Identifier: GPL-2.0-or-later
"""What it costs to walk page tables: by the hardware, by the kernel for us; and what to compare.

SCENARIOS.md explains them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace

from ptscope._core import ffi, lib
from ptscope.bench import memory
from ptscope.bench.faults import (
    anchored,
    anonymous,
    every_page,
    huge_anonymous,
    written,
)
from ptscope.bench.looks import Expect
from ptscope.bench.scenario import Scenario
from ptscope.bench.stage import NotHere, Stage, Step
from ptscope.bench.timing import Action
from ptscope.raw.stream import MAX_READ, build_request
from ptscope.source.module import ModuleSource

PLACES = 8192
"""Cache lines of a chain: half a MiB, which second caches hold, and more pages than TLBs do."""
LINE = 64
ENTRIES = 512
CHASE = Action(lib.PTSCOPE_DO_CHASE)
SAME = Expect("leaf", frame="same")


def _chain(spread: bool) -> Step:
    """Loads that lead from one to the next, in an order that no prefetcher guesses.

    Spread out, each lies in a page of its own; otherwise they lie side by side.
    """

    def step(stage: Stage) -> None:
        count = PLACES
        order = list(range(count))
        random.Random(count).shuffle(order)
        lines = stage.page // LINE if spread else 1
        stride = stage.page if spread else LINE
        lib.ptscope_link(stage.base, order, count, stride, lines)
        first = stage.base + order[0] * stride + order[0] % lines * LINE
        stage.addresses = [first] * stage.wanted
        stage.action = replace(stage.action, inner=count)

    return step


def _room(huge: bool) -> Step:
    """Memory for the chain, in small or huge pages."""

    def step(stage: Stage) -> None:
        stage.size = PLACES * stage.page
        align = stage.geometry.pmd
        stage.size = -(-stage.size // align) * align
        stage.base = memory.reserve(stage.size, align)
        stage.closing.callback(memory.unmap, stage.base, stage.size)
        (huge_anonymous if huge else anonymous)(stage)
        memory.touch(stage.base, stage.size, stage.page, write=True)

    return step


def _buffers(stage: Stage, size: int) -> int:
    """Room for answers, mapped before; its address."""
    address = memory.map_memory(size)
    stage.closing.callback(memory.unmap, address, size)
    memory.touch(address, size, stage.page, write=True)
    return address


def pagemap(pages: int) -> Step:
    """pread() of /proc/self/pagemap."""

    def step(stage: Stage) -> None:
        fd = os.open("/proc/self/pagemap", os.O_RDONLY)
        stage.closing.callback(os.close, fd)
        buffer = _buffers(stage, max(stage.page, pages * 8))
        first = stage.addresses[0]
        stage.addresses = [first] * len(stage.addresses)
        stage.action = Action(
            lib.PTSCOPE_DO_CALL,
            memory.CALLS["pread"],
            (fd, buffer, pages * 8, first // stage.page * 8),
            inner=pages,
            spin=stage.action.spin,
        )

    return step


def _module(stage: Stage) -> ModuleSource:
    if not isinstance(stage.source, ModuleSource):
        raise NotHere("the module is not loaded", "`ptscope doctor` says how")
    return stage.source


def _keep(stage: Stage, data: bytes) -> int:
    """The address of bytes that stay until the stage is closed."""
    kept = ffi.new("char[]", data)
    stage.closing.callback(lambda: kept)
    return int(ffi.cast("unsigned long long", kept))


def module_walk(stage: Stage) -> None:
    """A request and an answer in text, one address."""
    source = _module(stage)
    fd = os.open(source.directory / "walk", os.O_RDWR)
    stage.closing.callback(os.close, fd)
    first = stage.addresses[0]
    stage.addresses = [first] * len(stage.addresses)
    text = f"self {first:#x}".encode()
    buffer = _buffers(stage, stage.page)
    stage.action = Action(
        lib.PTSCOPE_DO_ASK,
        arguments=(fd, _keep(stage, text), len(text), buffer, stage.page),
        spin=stage.action.spin,
    )


def module_dump(stage: Stage) -> None:
    """A dump of a range, from opening the file to its end."""
    source = _module(stage)
    count = len(stage.addresses)
    first, last = stage.addresses[0], stage.addresses[-1]
    request = build_request(os.getpid(), 0, [(first, last)])
    stage.action = Action(
        lib.PTSCOPE_DO_ASK_ALL,
        arguments=(
            _keep(stage, os.fsencode(source.directory / "dump")),
            _keep(stage, request),
            len(request),
            _buffers(stage, MAX_READ),
            MAX_READ,
        ),
        inner=count,
        spin=stage.action.spin,
    )


def repeated(stage: Stage) -> None:
    """The same again and again: the tables, and what reads them, are in the caches."""
    stage.addresses = [stage.addresses[0]] * len(stage.addresses)


def at_least(count: int) -> Callable[[Stage], int]:
    """Pages one after the other, so many of them that a round reads a whole table."""

    def stride(stage: Stage) -> int:
        stage.wanted = max(stage.wanted, count)
        return stage.page

    return stride


def fewer(stage: Stage) -> None:
    """Not more samples than asked for, after more pages were made."""
    stage.addresses = stage.addresses[: min(len(stage.addresses), 64)]


GETPPID = Action(lib.PTSCOPE_DO_CALL, memory.CALLS["getppid"])
READ_CALL = Action(lib.PTSCOPE_DO_CALL)

WALKS: tuple[Scenario, ...] = (
    Scenario("syscall", "a system call: getppid()", every_page, (anonymous, anchored, written),
             GETPPID, SAME, SAME, faults=0),
    Scenario("hit", "a load, TLB and cache hit", every_page, (_room(False), _chain(False)), CHASE,
             SAME, SAME, faults=0),
    Scenario("tlb-miss", "a load in a page of its own, TLB miss", every_page,
             (_room(False), _chain(True)), CHASE, SAME, SAME, faults=0),
    Scenario("tlb-huge", "the same places in huge pages", every_page,
             (_room(True), _chain(True)), CHASE, SAME, SAME, faults=0),
    Scenario("pagemap-page", "pagemap, one page", every_page,
             (anonymous, anchored, written, pagemap(1)), READ_CALL, SAME, SAME, faults=0,
             result=8),
    Scenario("pagemap-many", "pagemap, a page of 511", at_least(ENTRIES - 1),
             (anonymous, anchored, written, pagemap(ENTRIES - 1), fewer), READ_CALL, SAME, SAME,
             faults=0, result=8 * (ENTRIES - 1)),
    Scenario("module-walk", "the module's walk, one address", every_page,
             (anonymous, anchored, written, module_walk), READ_CALL, SAME, SAME, faults=0),
    Scenario("module-dump", "the module's dump, a page of 511", at_least(ENTRIES - 1),
             (anonymous, anchored, written, module_dump, fewer), READ_CALL, SAME, SAME, faults=0),
)  # fmt: skip
"""Before and after alike: nothing of this may change a table."""
