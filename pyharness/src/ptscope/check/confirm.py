# SPDX-License-Identifier: GPL-2.0-or-later
"""From suspects to findings: read again until it is sure that both witnesses saw the same moment.

No lock spans a walk and a read of pagemap, smaps or status, so a disagreement of two readings
proves nothing. It counts when the entries were read before and after the other witness and
were the same both times (but for accessed and dirty bits): then they were the same in between, and
the witness saw them. Even so a value may change and change back, so a finding has to come out
of AGREEING such windows in a row, each with the same values, with pauses between them that grow.
Whatever does not get there in TRIES windows, or agrees in one of them, has changed.

An invariant without a second witness is judged on the entries of one address, which
the module reads with their VMA in one hold of the lock. Entries can still change under the lock
while they are read (faults, reclaim), so for these too several readings have to agree.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from ptscope.check.counts import Counting, Disagreement, of_process, of_vma
from ptscope.check.judge import (
    Chain,
    Judge,
    Violation,
    against_pagemap,
    broken_group,
    group_of,
)
from ptscope.check.scan import Area, Placed, Scan
from ptscope.check.witness import Status
from ptscope.raw.pagemap import Page
from ptscope.source.base import RawWalk
from ptscope.target.smaps import SmapsVma

TRIES = 10
AGREEING = 3
PAUSE = 0.005  # seconds, before the second window; doubled for each further one
LONGEST_PAUSE = 0.1
# A request of the module takes 1024 ranges; groups of entries are looked at together.
MOST_AT_ONCE = 256
# Seconds for all of one target. When they are over, what has not held still for AGREEING windows
# has changed: a process that never does must not hold up all others.
PATIENCE = 5.0
# The name of what was suspect for a reason that is gone when it is looked at again.
ANY = "any"

T = TypeVar("T")


class Readings(Protocol):
    """Everything that can be read anew about one target."""

    def walk(self, addresses: Sequence[int]) -> Sequence[RawWalk]:
        """The entries of each address."""

    def page(self, address: int) -> Page:
        """What pagemap says."""

    def scan(self, ranges: Sequence[tuple[int, int]] | None) -> Scan:
        """What there is in these ranges (first, last), or everywhere."""

    def smaps(self) -> Mapping[int, SmapsVma]:
        """smaps, by start."""

    def status(self) -> Status:
        """status and statm."""


@dataclass(frozen=True)
class Outcome:
    """What became of suspects: `findings` lasted; of each that did not, `changed` has the name."""

    findings: tuple[Violation | Disagreement | TwiceReached, ...]
    changed: tuple[str, ...]


@dataclass(frozen=True)
class TwiceReached:
    """A table that two entries lead to."""

    first: Placed
    second: Placed


class _Streak:
    """Counts windows in a row that gave the same."""

    def __init__(self) -> None:
        self.key: object = None
        self.length = 0

    def add(self, key: object) -> bool:
        """Take one more; whether it is enough."""
        self.length = self.length + 1 if key == self.key and self.length else 1
        self.key = key
        return self.length >= AGREEING


@dataclass(frozen=True)
class Seen:
    """What one window showed: `key` is equal when the same was seen; no `found`: all is well."""

    key: object
    found: Violation | Disagreement | TwiceReached | None


def settle(
    pending: dict[object, str],
    look: Callable[[Iterable[object]], Mapping[object, Seen | None]],
    sleep: Callable[[float], None] = time.sleep,
    until: float = float("inf"),
) -> Outcome:
    """Look at all that is pending again and again until each is a finding or has changed.

    `pending` maps what to look at to the name of its invariant. `look` gives for each what a
    window showed, None where the entries changed during it. From `until` on (of time.monotonic())
    there are no more windows than it takes.
    """
    findings: list[Violation | Disagreement | TwiceReached] = []
    changed: list[str] = []
    left = dict(pending)
    streaks = {name: _Streak() for name in left}
    pause = PAUSE
    for attempt in range(TRIES):
        if not left or (attempt >= AGREEING and time.monotonic() > until):
            break
        if attempt:
            sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        for name, seen in look(tuple(left)).items():
            if seen is None:
                streaks[name] = _Streak()
            elif seen.found is None:
                changed.append(left.pop(name))
            elif streaks[name].add(seen.key):
                findings.append(seen.found)
                del left[name]
    changed += left.values()
    return Outcome(tuple(findings), tuple(changed))


@dataclass(frozen=True)
class Confirmer:
    """Confirms the suspects of one target, of which `wanted` are the invariants asked for."""

    readings: Readings
    judge: Judge
    wanted: frozenset[str]
    sleep: Callable[[float], None] = time.sleep
    until: float = field(default_factory=lambda: time.monotonic() + PATIENCE)

    def entries(self, addresses: Sequence[int]) -> Outcome:
        """Suspects by their own entries. What the reference decoder sees no fault in is dropped."""
        outcomes = []
        for chunk in _chunks(addresses):
            first = self._violations(chunk)
            pending: dict[object, str] = {
                (address, *name): name[0]
                for address, names in first.items()
                for name in names
                if name[0] in self.wanted
            }
            outcomes.append(settle(pending, self._look_at_entries, self.sleep, self.until))
            # Suspect when it was scanned, and all is well now.
            healed = sum(1 for address in chunk if not first.get(address))
            outcomes.append(Outcome((), (ANY,) * healed))
        return _joined(outcomes)

    def _look_at_entries(self, names: Iterable[object]) -> Mapping[object, Seen | None]:
        wanted = [name for name in names if isinstance(name, tuple)]
        now = self._violations(sorted({name[0] for name in wanted}))
        return {name: now.get(name[0], {}).get(name[1:], Seen(None, None)) for name in wanted}

    def _violations(self, addresses: Sequence[int]) -> dict[int, dict[tuple[str, str], Seen]]:
        """What each address breaks now, by invariant and level."""
        out: dict[int, dict[tuple[str, str], Seen]] = {}
        for chain in self._chains(addresses):
            out[chain.raw.address] = {
                (row.invariant, row.level): Seen(chain.key, row)
                for row in self.judge.violations(chain)
            }
        return out

    def groups(self, suspects: Sequence[tuple[int, str]]) -> Outcome:
        """Suspect members of groups, by address and level."""
        if "groups" not in self.wanted:
            return Outcome((), ())
        layout = self.judge.machine.layout

        def look(names: Iterable[object]) -> Mapping[object, Seen | None]:
            out: dict[object, Seen | None] = {}
            for name in names:
                assert isinstance(name, tuple)
                base, level = name
                chains = list(self._chains(group_of(layout, level, base)))
                key = tuple(chain.key for chain in chains)
                out[name] = Seen(key, broken_group(layout, level, chains))
            return out

        pending: dict[object, str] = {
            (group_of(layout, level, address)[0], level): "groups" for address, level in suspects
        }
        return settle(pending, look, self.sleep, self.until)

    def pages(self, addresses: Sequence[int]) -> Outcome:
        """Pages of which pagemap said something else than it must."""
        outcomes = []
        for chunk in _chunks(addresses):
            pending: dict[object, str] = dict.fromkeys(chunk, "pagemap")
            outcomes.append(settle(pending, self._look_at_pages, self.sleep, self.until))
        return _joined(outcomes)

    def _look_at_pages(self, names: Iterable[object]) -> Mapping[object, Seen | None]:
        addresses = [name for name in names if isinstance(name, int)]
        before = list(self._chains(addresses))
        pages = [self.readings.page(address) for address in addresses]
        after = self._chains(addresses)
        out: dict[object, Seen | None] = {}
        for address, one, page, two in zip(addresses, before, pages, after, strict=True):
            same = one.key == two.key
            out[address] = Seen((one.key, page), against_pagemap(one, page)) if same else None
        return out

    def tables(self, suspects: Sequence[tuple[Placed, Placed]]) -> Outcome:
        """Tables that were reached twice: both ways must lead there, the first before and after."""

        def look(names: Iterable[object]) -> Mapping[object, Seen | None]:
            out: dict[object, Seen | None] = {}
            for name in names:
                assert isinstance(name, tuple)
                first, second = name
                chains = list(self._chains([first.address, second.address, first.address]))
                points = [
                    _points_to(chain, place.level)
                    for chain, place in zip(chains, (first, second, first), strict=True)
                ]
                if points[0] != points[2]:
                    out[name] = None
                else:
                    same = points[0] is not None and points[0] == points[1]
                    out[name] = Seen(points[0], TwiceReached(first, second) if same else None)
            return out

        pending: dict[object, str] = dict.fromkeys(suspects, "tables-once")
        return settle(pending, look, self.sleep, self.until)

    def vmas(self, counting: Counting, suspects: Sequence[tuple[Area, str]]) -> Outcome:
        """VMAs of which smaps said something else; all that are left share one reading of smaps."""

        def look(names: Iterable[object]) -> Mapping[object, Seen | None]:
            wanted = [name for name in names if isinstance(name, tuple)]
            ranges = sorted({(start, end - 1) for start, end, _ in wanted})
            before = self._areas(ranges)
            smaps = self.readings.smaps()
            after = self._areas(ranges)
            out: dict[object, Seen | None] = {}
            for name in wanted:
                start, end, invariant = name
                one, two, theirs = before.get(start), after.get(start), smaps.get(start)
                if one is None or two is None or theirs is None:
                    out[name] = None
                    continue
                if one.key != two.key or (one.end, theirs.vma.end) != (end, end):
                    out[name] = None
                else:
                    found = [
                        row for row in of_vma(counting, one, theirs) if row.invariant == invariant
                    ]
                    key = (one.key, tuple(row.witness for row in found))
                    out[name] = Seen(key, found[0] if found else None)
            return out

        pending: dict[object, str] = {
            (area.start, area.end, invariant): invariant for area, invariant in suspects
        }
        return settle(pending, look, self.sleep, self.until)

    def _areas(self, ranges: Sequence[tuple[int, int]]) -> dict[int, Area]:
        found: dict[int, Area] = {}
        for chunk in _chunks(ranges):
            found |= {area.start: area for area in self.readings.scan(chunk).areas}
        return found

    def process(self, counting: Counting, suspects: Sequence[tuple[str, str]]) -> Outcome:
        """Figures of the whole process, by invariant and name of the figure."""

        def look(names: Iterable[object]) -> Mapping[object, Seen | None]:
            before = self.readings.scan(None)
            status = self.readings.status()
            after = self.readings.scan(None)
            if before.digest != after.digest:
                return dict.fromkeys(names)
            now = {
                (row.invariant, row.witness_name): row
                for row in of_process(counting, before, status)
            }
            return {
                name: Seen((before.digest, status), now.get(name))  # type: ignore[call-overload]
                for name in names
            }

        pending: dict[object, str] = {name: name[0] for name in suspects}
        return settle(pending, look, self.sleep, self.until)

    def _chains(self, addresses: Sequence[int]) -> Iterator[Chain]:
        layout = self.judge.machine.layout
        for raw in self.readings.walk(addresses) if addresses else ():
            yield Chain.of(layout, raw)


def _points_to(chain: Chain, level: int) -> int | None:
    """Where the entry of a level points to, when it points to a table."""
    for entry, decoded in chain.pairs:
        if entry.level == level:
            return decoded.pa if decoded.state == "table" else None
    return None


def _chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for first in range(0, len(items), MOST_AT_ONCE):
        yield items[first : first + MOST_AT_ONCE]


def _joined(outcomes: Iterable[Outcome]) -> Outcome:
    listed = list(outcomes)
    return Outcome(
        tuple(row for outcome in listed for row in outcome.findings),
        tuple(name for outcome in listed for name in outcome.changed),
    )
