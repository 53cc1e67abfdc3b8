# SPDX-License-Identifier: GPL-2.0-or-later
"""What a task waited for, as the kernel accounts it: taskstats over generic netlink (pyroute2).

The answer is `struct taskstats` (include/uapi/linux/taskstats.h), which has grown from version to
version. pyroute2 carries the bytes; which counters are where in them is the table here, because the
oldest pyroute2 that is used here knows none of the younger ones.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptscope.bench.stage import NotHere

SWITCH = Path("/proc/sys/kernel/task_delayacct")
"""Off by default, from 5.14 on."""
CMD_GET = 1


@dataclass(frozen=True)
class Counter:
    """Where a count of waits lies, in bytes; the time they took, in ns, is the word after it."""

    name: str
    title: str
    since: int
    offset: int


# Version 8 ends at 328 with freepages; from then on words were put at the end, see the header.
COUNTERS: tuple[Counter, ...] = (
    Counter("cpu", "waits for a CPU", 1, 16),
    Counter("blkio", "waits for a block device", 1, 32),
    Counter("swapin", "swap-ins", 1, 48),
    Counter("freepages", "reclaims of memory", 8, 312),
    Counter("thrashing", "waits for a page that was just evicted", 9, 328),
    Counter("compact", "compactions of memory", 11, 352),
    Counter("wpcopy", "copies on write", 13, 400),
)
MOVED = 15
"""This version, of 6.14 and 6.15 alone, had other words between these; 16 put them at the end."""
LONGEST = 328
"""Bytes that an answer has at least."""


@dataclass(frozen=True)
class Delay:
    """How often a task waited for something, and for how long altogether, in ns."""

    count: int
    ns: int

    def __sub__(self, other: Delay) -> Delay:
        return Delay(self.count - other.count, self.ns - other.ns)


Delays = Mapping[str, Delay]


def parse(data: bytes) -> dict[str, Delay]:
    """The delays of a `struct taskstats`. Raises NotHere when its words lie elsewhere."""
    if len(data) < LONGEST:
        raise NotHere(f"the kernel's struct taskstats has {len(data)} bytes")
    (version,) = struct.unpack_from("=H", data)
    if version == MOVED:
        raise NotHere(f"version {MOVED} of struct taskstats has its words in other places")
    return {
        each.name: Delay(*struct.unpack_from("=QQ", data, each.offset))
        for each in COUNTERS
        if each.since <= version and each.offset + 16 <= len(data)
    }


def since(after: Delays, before: Delays) -> dict[str, Delay]:
    """What came between two readings, without what did not happen."""
    grown = {name: after[name] - before[name] for name in after if name in before}
    return {name: delay for name, delay in grown.items() if delay.count or delay.ns}


class Accounting:
    """A netlink socket that asks for the delays of tasks."""

    def __init__(self, socket: Any, question: Any, flags: int) -> None:
        self._socket = socket
        self._question = question
        self._flags = flags

    def of(self, pid: int) -> dict[str, Delay]:
        """The delays of a thread so far. Raises NotHere when the kernel gives none."""
        message = self._question()
        message["cmd"], message["version"] = CMD_GET, 1
        message["attrs"].append(["TASKSTATS_CMD_ATTR_PID", pid])
        try:
            answers = tuple(
                self._socket.nlm_request(message, self._socket.prid, msg_flags=self._flags)
            )
        except Exception as error:  # of pyroute2: NetlinkError, which 0.7 and 0.9 keep elsewhere
            raise NotHere(f"taskstats does not answer: {error}") from None
        group = answers[0].get_attr("TASKSTATS_TYPE_AGGR_PID") if answers else None
        data = None if group is None else group.get_attr("TASKSTATS_TYPE_STATS")
        if not isinstance(data, bytes):
            raise NotHere("the answer of taskstats has no struct taskstats")
        return parse(data)


@contextlib.contextmanager
def accounting() -> Iterator[Accounting]:
    """Ask for delays. Raises NotHere when the kernel does not account for them, or not to us."""
    try:
        on = SWITCH.read_text().strip() != "0"
    except FileNotFoundError:
        on = True  # before 5.14 it was on, or not built in: then all is 0
    if not on:
        raise NotHere(
            "the kernel does not account for delays now",
            f"as root: `echo 1 > {SWITCH}`",
        )
    try:
        # Without type information.
        from pyroute2.netlink import (  # type: ignore[import-untyped]
            NLM_F_REQUEST,
            genlmsg,
            nla,
        )
        from pyroute2.netlink.generic import (  # type: ignore[import-untyped]
            GenericNetlinkSocket,
        )
    except ImportError as error:
        raise NotHere(f"pyroute2 cannot be used ({error})", "install pyroute2") from None

    class Question(genlmsg):  # type: ignore[misc]
        nla_map = (
            ("TASKSTATS_CMD_ATTR_UNSPEC", "none"),
            ("TASKSTATS_CMD_ATTR_PID", "uint32"),
        )

    class Answer(genlmsg):  # type: ignore[misc]
        nla_map = (
            ("TASKSTATS_TYPE_UNSPEC", "none"),
            ("TASKSTATS_TYPE_PID", "uint32"),
            ("TASKSTATS_TYPE_TGID", "uint32"),
            ("TASKSTATS_TYPE_STATS", "cdata"),
            ("TASKSTATS_TYPE_AGGR_PID", "aggregate"),
        )

        class aggregate(nla):  # type: ignore[misc]
            nla_map = (
                ("TASKSTATS_TYPE_UNSPEC", "none"),
                ("TASKSTATS_TYPE_PID", "uint32"),
                ("TASKSTATS_TYPE_TGID", "uint32"),
                ("TASKSTATS_TYPE_STATS", "cdata"),
            )

    socket = GenericNetlinkSocket()
    try:
        try:
            socket.bind("TASKSTATS", Answer)
        except Exception as error:  # NetlinkError: no such family; or no permission
            raise NotHere(f"this kernel has no taskstats ({error})") from None
        yield Accounting(socket, Question, NLM_F_REQUEST)
    finally:
        socket.close()
