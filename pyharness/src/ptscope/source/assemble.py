# SPDX-License-Identifier: GPL-2.0-or-later
"""From the batches of a stream to one walk for each address asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from ptscope.decode.layout import Layout
from ptscope.errors import BadStream
from ptscope.raw.records import Batch, RawEntry, RawTable, RawVma
from ptscope.source.base import RawWalk
from ptscope.target.vma import Vma

# Bits of vm_flags by their names in the layout, in the order of /proc/PID/maps: the letter when
# the bit is set and when it is not (fs/proc/task_mmu.c, show_vma_header_prefix).
PERMISSIONS = (
    ("vm.read", "r", "-"),
    ("vm.write", "w", "-"),
    ("vm.exec", "x", "-"),
    ("vm.mayshare", "s", "p"),
)


@dataclass
class _Chain:
    """The tables that were read for one address, in the order in which they came."""

    batch: Batch
    roots: dict[bool, RawTable] = field(default_factory=dict)  # by user_pgd
    below: list[RawTable] = field(default_factory=list)

    def takes_root(self, table: RawTable, batch: Batch) -> bool:
        return batch is self.batch and not self.below and table.user_pgd not in self.roots


def assemble(layout: Layout, addresses: Sequence[int], batches: Iterable[Batch]) -> list[RawWalk]:
    """The walks of a request whose ranges were these single addresses.

    Raises BadStream when the tables are not exactly those on the way to the addresses.
    """
    chains = _chains(layout, batches)
    if len(chains) != len(addresses):
        raise BadStream(
            f"the module gave {len(chains)} walks for {len(addresses)} addresses asked for"
        )
    return [_walk(layout, *pair) for pair in zip(addresses, chains, strict=True)]


def _chains(layout: Layout, batches: Iterable[Batch]) -> list[_Chain]:
    root = layout.levels[0].number
    chains: list[_Chain] = []
    for batch in batches:
        tables = [record for record in batch.records if isinstance(record, RawTable)]
        # A batch that resumes within an address reads the whole way anew, and that is consistent
        # in itself, so it stands in for what the batch before had of it.
        if chains and tables and tables[0].again:
            chains.pop()
        for table in tables:
            if table.level != root:
                chains[-1].below.append(table)
                continue
            if not chains or not chains[-1].takes_root(table, batch):
                chains.append(_Chain(batch))
            chains[-1].roots[table.user_pgd] = table
    return chains


def _walk(layout: Layout, address: int, chain: _Chain) -> RawWalk:
    if False not in chain.roots:
        raise BadStream(f"the module gave no root entry for {address:#x}")
    tables = [chain.roots[False], *chain.below]
    spans = {level.number: level.span for level in layout.levels}
    walked = [level.number for level in layout.levels]
    if [table.level for table in tables] != walked[: len(tables)]:
        raise BadStream(f"the module gave tables out of order for {address:#x}")
    entries = [_entry(layout, address, table, spans[table.level]) for table in tables]
    user = chain.roots.get(True)
    raw_vma = next(
        (
            record
            for record in chain.batch.records
            if isinstance(record, RawVma) and record.start <= address < record.end
        ),
        None,
    )
    return RawWalk(
        address=address,
        entries=tuple(entries),
        user_pgd=None if user is None else _entry(layout, address, user, spans[user.level]),
        vma=None if raw_vma is None else vma_of(layout, raw_vma),
        lock=chain.batch.lock,
    )


def _entry(layout: Layout, address: int, table: RawTable, span: int) -> RawEntry:
    level = next(level for level in layout.levels if level.number == table.level)
    entry = table.entry(0, span)
    if len(table.raws) != 1 or entry.index != layout.index(level, address):
        raise BadStream(
            f"the module gave another {level.name} entry than that of {address:#x}: "
            f"{len(table.raws)} from index {entry.index}, not index {layout.index(level, address)}"
        )
    if entry.address != address & -span:
        raise BadStream(
            f"the module says that the {level.name} entry of {address:#x} maps {entry.address:#x}"
        )
    return entry


@lru_cache(maxsize=256)
def permissions_of(layout: Layout, vm_flags: int) -> str:
    """The four characters of /proc/PID/maps for these flags."""
    return "".join(yes if vm_flags & layout.facts[key] else no for key, yes, no in PERMISSIONS)


def vma_of(layout: Layout, raw: RawVma, name: str = "") -> Vma:
    """A VMA in the terms of /proc/PID/maps; the module does not know its name."""
    # maps shows no offset for anonymous memory, although its pgoff is not zero.
    is_file = raw.inode or raw.dev_major or raw.dev_minor
    return Vma(
        start=raw.start,
        end=raw.end,
        permissions=permissions_of(layout, raw.vm_flags),
        offset=raw.pgoff << layout.facts["page_shift"] if is_file else 0,
        device=f"{raw.dev_major:02x}:{raw.dev_minor:02x}",
        inode=raw.inode,
        name=name,
        vm_flags=raw.vm_flags,
    )
