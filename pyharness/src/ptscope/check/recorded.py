# SPDX-License-Identifier: GPL-2.0-or-later
"""What can be checked of a recorded stream: nothing can be read anew, and nobody else can be asked.

Each batch of it was read in one hold of the lock, so what single entries break by themselves they
broke then. Batches are of different moments, which leaves out what compares several.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from ptscope.check.invariants import Invariant
from ptscope.check.judge import Chain, Judge, Violation, broken_group, group_of
from ptscope.check.process import Checked, finding_of
from ptscope.check.rules import Machine
from ptscope.check.scan import GROUP, Scanner
from ptscope.source.base import RawWalk
from ptscope.source.stream import RawStream
from ptscope.target.process import Pid

# Invariants that one entry, or a few of one table, can break without a witness but their VMA.
OF_ENTRIES = (
    "permissions", "write-exec", "inside-vmas", "user-pages", "reserved-bits", "known-bits",
    "alignment", "groups", "levels", "pti-copies", "kernel-pages", "kernel-write-exec",
)  # fmt: skip
_OF_VMAS = ("permissions", "write-exec", "inside-vmas")


class Walks(Protocol):
    """Where suspects are looked up again."""

    def walk(self, pid: Pid, addresses: Sequence[int]) -> Sequence[RawWalk]:
        """The entries of each address, as recorded."""


def why_not(stream: RawStream, row: Invariant) -> str | None:
    """Why an invariant cannot be checked of a recorded stream; None when it can."""
    layout = stream.layout
    if layout.arch not in row.arches:
        return f"not on {layout.arch}"
    if row.name not in OF_ENTRIES:
        return "what the kernel said elsewhere at that moment was not recorded"
    if row.name in _OF_VMAS and not stream.request.vmas:
        return "it was recorded without VMAs"
    if row.name == "pti-copies" and not layout.runtime.get("pti"):
        return "PTI was off"
    if row.name == "pti-copies" and not stream.request.user_pgd:
        return "it was recorded without the user copy of the root"
    return None


def check_recorded(
    stream: RawStream, walks: Walks, wanted: frozenset[str], pid: int | None, comm: str | None
) -> Checked:
    """Check a recorded stream, of which `walks` gives single addresses. Raises what they raise."""
    began = time.monotonic()
    layout = stream.layout
    machine = Machine(layout, None)
    scan = Scanner(machine, None, lambda pfn: False).scan(stream)
    judge = Judge(machine, None)
    out = Checked(
        pid, comm, entries=scan.entries, vmas=len(scan.areas), tables=len(scan.tables),
        more=scan.more,
    )  # fmt: skip
    names = {level.number: level.name for level in layout.levels}
    found: list[Violation] = []
    for suspect in scan.suspects:
        if suspect.why & GROUP:
            members = group_of(layout, names[suspect.level], suspect.address)
            chains = [Chain.of(layout, raw) for raw in walks.walk(stream.request.pid, members)]
            broken = broken_group(layout, names[suspect.level], chains)
            found += [] if broken is None else [broken]
        (raw,) = walks.walk(stream.request.pid, [suspect.address])
        found += judge.violations(Chain.of(layout, raw))
    told: set[tuple[str, int, str]] = set()
    for row in found:
        key = (row.invariant, row.address, row.level)
        if row.invariant in wanted and key not in told:
            told.add(key)
            out.findings.append(finding_of(out, row))
    out.seconds = time.monotonic() - began
    return out
