# SPDX-License-Identifier: GPL-2.0-or-later
"""`python3 -m ptscope.bench.worker`: the process that measures one round, see process.py."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
from contextlib import closing
from types import FrameType

from ptscope.bench import memory
from ptscope.bench.conditions import gather
from ptscope.bench.known import Frames
from ptscope.bench.process import Failure, Message, Order, Results
from ptscope.bench.result import Measured
from ptscope.bench.run import Setting, Tell, measure
from ptscope.bench.scenario import Scenario
from ptscope.bench.timing import pinned
from ptscope.errors import PtscopeError
from ptscope.source.choose import choose

PR_SET_PDEATHSIG = 1
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def carry_out(order: Order, tell: Tell) -> Results:
    """One round of all that is ordered, in this process."""
    source = choose(order.source, "self").source
    with pinned(order.cpu), closing(Frames()) as frames:
        setting = order.setting(source, frames)
        measured = {name: _play(order, name, setting, tell) for name in order.names}
        conditions = gather(order.clock, setting.geometry, source.name, order.cpu)
    return Results(measured, conditions)


def _play(order: Order, name: str, setting: Setting, tell: Tell) -> list[Measured]:
    if order.group == "remap":
        from ptscope.bench.remap_run import measure_remap
        from ptscope.bench.remaps import REMAPS

        remap = next(row for row in REMAPS if row.name == name)
        return measure_remap(remap, order.sizes, setting, tell, order.asked)
    return [measure(_row(order.group, name), setting, tell)]


def _row(group: str, name: str) -> Scenario:
    if group == "walk":
        from ptscope.bench.walks import WALKS as rows
    else:
        from ptscope.bench.faults import FAULTS as rows
    return next(row for row in rows if row.name == name)


def _end(number: int, frame: FrameType | None) -> None:
    """Whatever is open is closed, and what was changed is put back."""
    for each in ENDING_SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)


def main() -> None:
    """Take an order from standard input, and answer with messages on standard output."""
    for number in ENDING_SIGNALS:
        signal.signal(number, _end)
    # Who ordered it may be killed.
    memory.call("prctl", PR_SET_PDEATHSIG, signal.SIGTERM)
    order: Order = pickle.load(sys.stdin.buffer)
    with os.fdopen(os.dup(1), "wb") as answers:
        # What anything else prints is no message.
        os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), 1)

        def send(message: Message) -> None:
            pickle.dump(message, answers)
            answers.flush()

        with contextlib.suppress(BrokenPipeError):
            try:
                send(carry_out(order, send))
            except PtscopeError as error:
                send(Failure(type(error), error.cause, error.remedy))


if __name__ == "__main__":
    main()
