# SPDX-License-Identifier: GPL-2.0-or-later
"""The VMAs of a process with what each uses, one at a time, beside what smaps says of it.

Both the stream of tables and smaps are in the order of addresses, so they are read side by side,
and memory does not grow with the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from ptscope.decode.compiled import compiled
from ptscope.decode.layout import Layout
from ptscope.raw.summary import Summary, VmaSums
from ptscope.source.assemble import permissions_of, vma_of
from ptscope.source.stream import Progress, Ranges, RawStream
from ptscope.space.huge import barrier
from ptscope.space.usage import Usage, total, usage_of
from ptscope.target.smaps import Beside, SmapsVma
from ptscope.target.vma import Vma

# Gives a stream of some ranges of the process, or of all of it.
Opener = Callable[[Ranges | None], AbstractContextManager[RawStream]]
# Whether a frame is the huge zero page.
IsZero = Callable[[int], bool]


@dataclass(frozen=True, slots=True)
class Row:
    """One VMA. `witness` is what smaps says of the very same VMA, None when it has no such.

    `barrier` is why it cannot have huge pages; `could_be` are bytes that huge pages could map but
    do not. `changed`: the VMA was altered while it was read. `layout` is None, and levels and
    properties are not known, when pages were read from pagemap.
    """

    vma: Vma
    usage: Usage
    witness: SmapsVma | None
    barrier: str | None
    changed: bool
    layout: Layout | None = field(repr=False)

    @property
    def could_be(self) -> int:
        """Bytes of ranges that could be mapped by huge pages but are not."""
        return 0 if self.barrier else self.usage.small_ranges

    @property
    def hugetlb(self) -> bool:
        """Whether it maps pages of hugetlbfs."""
        return self.barrier == "hugetlb"

    def has_flag(self, name: str) -> bool:
        """Whether the VMA has one of the flags that the layout names ``vm.NAME``."""
        facts = {} if self.layout is None else self.layout.facts
        return bool((self.vma.vm_flags or 0) & facts.get(f"vm.{name}", 0))


@dataclass
class Reader:
    """Reads one process once. `outside` and `progress` are known when all rows were taken."""

    open: Opener
    shmem: frozenset[str]
    is_huge_zero: IsZero | None = None
    on_batch: Callable[[Progress], None] | None = None
    outside: Usage = field(default_factory=Usage, init=False)
    progress: Progress = field(default_factory=Progress, init=False)
    _zero: int | None = field(default=None, init=False)

    def rows(self, smaps: Iterable[SmapsVma], ranges: Ranges | None = None) -> Iterator[Row]:
        """The VMAs in these ranges, or all; raises what the stream and smaps raise."""
        witnesses = Beside(smaps)
        with self.open(ranges) as stream:
            self.progress = stream.progress
            layout = stream.layout
            summary = Summary(compiled(layout))
            # What was the huge zero page in an earlier reading may be another page by now.
            if self._zero is not None and self.is_huge_zero and self.is_huge_zero(self._zero):
                summary.know_huge_zero(self._zero)
            else:
                self._zero = None
            for batch in stream:
                for sums in summary.add(batch):
                    yield self._row(layout, summary, sums, witnesses)
                if self.on_batch is not None:
                    self.on_batch(stream.progress)
            last = summary.finish()
            if last is not None:
                yield self._row(layout, summary, last, witnesses)
            self.outside = usage_of(layout, summary.outside().entries)

    def _row(self, layout: Layout, summary: Summary, sums: VmaSums, witnesses: Beside) -> Row:
        raw = sums.vma
        assert raw is not None
        zero = sums.huge_zero + self._huge_zero(summary, sums)
        witness = witnesses.find(raw.start, raw.end)
        permissions = permissions_of(layout, raw.vm_flags)
        if witness is not None and witness.vma.permissions != permissions:
            witness = None
        vma = vma_of(layout, raw, "" if witness is None else witness.vma.name)
        return Row(
            vma=vma,
            usage=usage_of(layout, sums.entries, zero),
            witness=witness,
            barrier=barrier(layout, vma, self.shmem),
            changed=sums.changed,
            layout=layout,
        )

    def _huge_zero(self, summary: Summary, sums: VmaSums) -> int:
        """Entries of the huge zero page among the candidates; there is one such page at a time."""
        if self.is_huge_zero is None or self._zero is not None:
            # Candidates of a VMA in which the page became known are looked through as well.
            return sums.huge_frames.get(self._zero, 0) if self._zero is not None else 0
        for pfn, count in sums.huge_frames.items():
            if self.is_huge_zero(pfn):
                self._zero = pfn
                summary.know_huge_zero(pfn)
                return count
        return 0


def sum_rows(rows: Iterable[Row]) -> Usage:
    """What these VMAs use together."""
    return total(row.usage for row in rows)
