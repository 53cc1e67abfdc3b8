# SPDX-License-Identifier: GPL-2.0-or-later
"""What a snapshot says besides the tables: of whom, from where, when; and how much it holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ptscope.decode.layout import Layout
from ptscope.errors import BadLayout, BadSnapshot, Unsupported
from ptscope.raw.records import END_STATUSES, EndStatus
from ptscope.snapshot.container import damaged
from ptscope.source.assemble import PERMISSIONS

U64_MAX = (1 << 64) - 1

# Lines of /proc/PID/status about memory (man proc_pid_status), in KiB but for the last two.
STATUS_KEYS = (
    "VmPeak", "VmSize", "VmLck", "VmPin", "VmHWM", "VmRSS", "RssAnon", "RssFile", "RssShmem",
    "VmData", "VmStk", "VmExe", "VmLib", "VmPTE", "VmSwap", "HugetlbPages",
    "THP_enabled", "Threads",
)  # fmt: skip
# The fields of /proc/PID/statm, all in pages (man proc_pid_statm).
STATM_KEYS = ("size", "resident", "shared", "text", "lib", "data", "dt")


@dataclass(frozen=True)
class Memory:
    """What /proc says of the memory of a process: `status` mostly in KiB, `statm` in pages.

    Both are empty for the kernel half, and where the files could not be read.
    """

    status: Mapping[str, int]
    statm: Mapping[str, int]

    @classmethod
    def read(cls, proc: Path) -> Memory:
        """The memory of the process whose directory under /proc is `proc`, now."""
        status: dict[str, int] = {}
        statm: dict[str, int] = {}
        try:
            for line in (proc / "status").read_text(errors="replace").splitlines():
                key, _, value = line.partition(":")
                if key in STATUS_KEYS:
                    status[key] = int(value.split()[0])
            numbers = (proc / "statm").read_text().split()
            statm = dict(zip(STATM_KEYS, map(int, numbers), strict=False))
        except OSError:
            pass  # the process has gone: whoever walks it says so
        return cls(status, statm)

    def to_json(self) -> dict[str, object]:
        """An object of the two."""
        return {"status": dict(self.status), "statm": dict(self.statm)}


@dataclass(frozen=True)
class Target:
    """Whose tables they are; `pid` and all after it are None for the kernel half.

    `start_ticks` is when the process started, in clock ticks since boot (field 22 of
    /proc/PID/stat): with boot ID and PID it names one process.
    """

    pid: int | None
    comm: str | None
    exe: str | None
    start_ticks: int | None
    leader_exited: bool

    def to_json(self) -> dict[str, object]:
        """An object with all of them, and `kind`: `process` or `kernel`."""
        return {
            "kind": "kernel" if self.pid is None else "process",
            "pid": self.pid,
            "comm": self.comm,
            "exe": self.exe,
            "start_ticks": self.start_ticks,
            "leader_exited": self.leader_exited,
        }


@dataclass(frozen=True)
class Header:
    """The header of a snapshot.

    `ranges` are (first, last) addresses in order, both inside, not overlapping. `time` is UTC, in
    ISO 8601. `boot_id` is that of /proc/sys/kernel/random: frames and swap slots mean the same in
    two snapshots only if it is the same. `shmem` are the devices of shared memory, written as in
    /proc/PID/maps.
    """

    layout: Layout = field(repr=False)
    target: Target
    ranges: tuple[tuple[int, int], ...]
    with_vmas: bool
    with_user_pgd: bool
    source: str
    kernel: str
    machine: str
    boot_id: str
    time: str
    shmem: tuple[str, ...]
    memory: Memory
    writer: str

    def to_json(self) -> dict[str, object]:
        """The object in the file: addresses as `0x…` text."""
        return {
            "format": "ptscope snapshot",
            "byte_order": "little",
            "writer": self.writer,
            "time": self.time,
            "source": self.source,
            "kernel": self.kernel,
            "machine": self.machine,
            "boot_id": self.boot_id,
            "target": self.target.to_json(),
            "request": {
                "ranges": [[hex(first), hex(last)] for first, last in self.ranges],
                "vmas": self.with_vmas,
                "user_pgd": self.with_user_pgd,
            },
            "shmem": list(self.shmem),
            "memory": self.memory.to_json(),
            "layout": self.layout.to_json(),
        }

    @classmethod
    def parse(cls, text: bytes, name: str) -> Header:
        """The header in a file called `name`. Raises BadSnapshot for what cannot be one."""
        whole = _Object.of(text, name, "header")
        if whole.text("byte_order") != "little":
            raise BadSnapshot(f"{name} was written in another byte order than that of this machine")
        target, request = whole.object("target"), whole.object("request")
        memory = whole.object("memory")
        try:
            layout = Layout.from_json(whole.object("layout").values)
        except Unsupported as error:
            reason = error.reason if isinstance(error, BadLayout) else error.cause
            raise damaged(name, f"the layout in it is none: {reason}") from None
        missing = [key for key, *_ in PERMISSIONS if key not in layout.facts]
        if missing:
            raise damaged(name, f"the layout in it is none: it has no {missing[0]}")
        header = cls(
            layout=layout,
            target=Target(
                target.number_or_none("pid"),
                target.text_or_none("comm"),
                target.text_or_none("exe"),
                target.number_or_none("start_ticks"),
                target.flag("leader_exited"),
            ),
            ranges=request.ranges("ranges"),
            with_vmas=request.flag("vmas"),
            with_user_pgd=request.flag("user_pgd"),
            source=whole.text("source"),
            kernel=whole.text("kernel"),
            machine=whole.text("machine"),
            boot_id=whole.text("boot_id"),
            time=whole.text("time"),
            shmem=whole.texts("shmem"),
            memory=Memory(memory.object("status").numbers(), memory.object("statm").numbers()),
            writer=whole.text("writer"),
        )
        if target.text("kind") != header.target.to_json()["kind"]:
            raise damaged(name, "its target is neither a process nor the kernel half")
        return header


@dataclass(frozen=True)
class Totals:
    """How much a whole file holds.

    `bytes` are those of the batches before compression. `vmas` and `tables` count records,
    `entries` leaves out what the module reported again. `longest_lock_ns` is of one batch.
    """

    chunks: int
    maps_bytes: int
    bytes: int
    batches: int
    vmas: int
    tables: int
    entries: int
    longest_lock_ns: int

    def to_json(self) -> dict[str, object]:
        """An object of them."""
        return {key: getattr(self, key) for key in Totals.__dataclass_fields__}


@dataclass(frozen=True)
class Trailer:
    """What stands at the end of a whole file.

    `memory` is that of the process when all was read; the header has that of before.
    """

    totals: Totals
    end: EndStatus
    time: str
    memory: Memory

    def to_json(self) -> dict[str, object]:
        """The object in the file."""
        return {
            "totals": self.totals.to_json(),
            "end": self.end,
            "time": self.time,
            "memory": self.memory.to_json(),
        }

    @classmethod
    def parse(cls, text: bytes, name: str) -> Trailer:
        """The trailer in a file called `name`. Raises BadSnapshot for what cannot be one."""
        whole = _Object.of(text, name, "trailer")
        totals, memory = whole.object("totals"), whole.object("memory")
        end = whole.text("end")
        if end not in END_STATUSES:
            raise damaged(name, f"its trailer says that it ended {end!r}")
        return cls(
            Totals(**{key: totals.number(key) for key in Totals.__dataclass_fields__}),
            next(status for status in END_STATUSES if status == end),
            whole.text("time"),
            Memory(memory.object("status").numbers(), memory.object("statm").numbers()),
        )


@dataclass(frozen=True)
class _Object:
    """A JSON object of a file, of which each value is asked for with the type it must have."""

    values: Mapping[str, Any]
    file: str
    where: str

    @classmethod
    def of(cls, text: bytes, name: str, where: str) -> _Object:
        try:
            values = json.loads(text)
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, dict):
            raise damaged(name, f"its {where} is no JSON object")
        return cls(values, name, where)

    def _get(self, key: str, kind: type) -> Any:
        value = self.values.get(key)
        # bool is an int to Python, and a flag is no number to us.
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise damaged(self.file, f"its {self.where} has no proper {key!r}")
        return value

    def object(self, key: str) -> _Object:
        return _Object(self._get(key, dict), self.file, key)

    def text(self, key: str) -> str:
        return str(self._get(key, str))

    def flag(self, key: str) -> bool:
        return bool(self._get(key, bool))

    def number(self, key: str) -> int:
        value = int(self._get(key, int))
        if not 0 <= value <= U64_MAX:
            raise damaged(self.file, f"its {self.where} has no proper {key!r}")
        return value

    def text_or_none(self, key: str) -> str | None:
        return None if self.values.get(key, "") is None else self.text(key)

    def number_or_none(self, key: str) -> int | None:
        return None if self.values.get(key, "") is None else self.number(key)

    def numbers(self) -> dict[str, int]:
        return {key: self.number(key) for key in self.values}

    def texts(self, key: str) -> tuple[str, ...]:
        values = self._get(key, list)
        if not all(isinstance(value, str) for value in values):
            raise damaged(self.file, f"its {self.where} has no proper {key!r}")
        return tuple(values)

    def ranges(self, key: str) -> tuple[tuple[int, int], ...]:
        pairs: list[tuple[int, int]] = []
        for value in self._get(key, list):
            try:
                first, last = (int(text, 16) for text in value)
            except (TypeError, ValueError):
                raise damaged(self.file, f"its {self.where} has no proper {key!r}") from None
            if not (pairs[-1][1] if pairs else -1) < first <= last <= U64_MAX:
                raise damaged(self.file, f"its {self.where} has {key!r} that are none")
            pairs.append((first, last))
        if not pairs:
            raise damaged(self.file, f"its {self.where} has no proper {key!r}")
        return tuple(pairs)
