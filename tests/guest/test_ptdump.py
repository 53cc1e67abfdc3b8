# SPDX-License-Identifier: GPL-2.0-or-later
"""The kernel's own dump of its page tables agrees with ours, range by range.

The user half is compared whole. Of what the kernel prints of it nothing is left out; what it
compares but does not print (accessed, dirty, soft-dirty, the protection key, permissions combined
over the levels) is compared too, by where its ranges end. The kernel half changes all the time.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import ptdump
import pytest
import rawfiles
import witness
from ptdump import PGD, PMD, PTE, ROOF, Facts, Marker, Range, Tables
from puppet import Puppet

PAGE = witness.PAGE
HUGE = witness.HUGE
GIGANTIC = 1 << 30
DUMPS = Path("/sys/kernel/debug/page_tables")
ROOM = 4 << 20
"""Bytes for a dump of the kernel's: most of it is the kernel half."""
TRIES = 10


@pytest.fixture(scope="module")
def facts() -> Facts:
    return Facts.live()


@pytest.fixture
def furnished(puppet: Puppet, swap: None) -> Puppet:
    """A puppet with entries of every kind that the kernel's dump tells apart."""
    small = puppet.map(96 * PAGE)
    puppet.advise(small, 96 * PAGE, "nohugepage")
    puppet.touch("write", small, 64)
    puppet.protect(small + 8 * PAGE, 4 * PAGE, "none")
    puppet.protect(small + 16 * PAGE, 4 * PAGE, "r")
    puppet.unmap(small + 24 * PAGE, 2 * PAGE)
    puppet.advise(small + 40 * PAGE, 8 * PAGE, "pageout")
    puppet.touch("read", small + 70 * PAGE, 8)
    code = puppet.map(2 * PAGE)
    puppet.code(code)
    puppet.protect(code, 2 * PAGE, "rx")
    huge = puppet.map(6 * HUGE, align=HUGE)
    puppet.advise(huge, 6 * HUGE, "hugepage")
    puppet.touch("write", huge, 6, HUGE)
    puppet.protect(huge + HUGE, HUGE, "r")
    puppet.protect(huge + 2 * HUGE, HUGE, "none")
    puppet.protect(huge + 3 * HUGE + 8 * PAGE, 8 * PAGE, "rx")
    puppet.touch("write", puppet.map(2 * HUGE, huge=HUGE.bit_length() - 1), 2, HUGE)
    puppet.touch("write", puppet.map(GIGANTIC, huge=GIGANTIC.bit_length() - 1))
    shared = puppet.map(512 * PAGE, kind="shared")
    puppet.touch("write", shared, 100)
    puppet.touch("read", shared + 200 * PAGE, 10)
    puppet.touch("write", puppet.map(PAGE, at=1 << 50, hint=True))
    puppet.stack(100 << 10)
    return puppet


@dataclass(frozen=True)
class Buffer:
    """Memory of the puppet for dumps: all of it is there before the first one."""

    puppet: Puppet
    address: int

    @classmethod
    def of(cls, puppet: Puppet) -> Buffer:
        address = puppet.map(ROOM)
        puppet.touch("write", address, ROOM // PAGE)
        return cls(puppet, address)

    def dump(self, name: str) -> list[Range | Marker]:
        """What the kernel says when the puppet itself asks: the dump is of whoever reads it."""
        size = self.puppet.slurp(str(DUMPS / name), self.address, ROOM)
        with Path(f"/proc/{self.puppet.pid}/mem").open("rb", buffering=0) as memory:
            return ptdump.parse(os.pread(memory.fileno(), size, self.address).decode())


def user_part(lines: Iterable[Range | Marker]) -> list[Range | Marker]:
    """What begins in the user half, with the marker that ends it."""
    found: list[Range | Marker] = []
    for line in lines:
        found.append(line)
        if isinstance(line, Marker) and len(found) > 1:
            break
    return found


def guard_hole_end(tables: Tables) -> int:
    """Where the kernel's dump goes on after the user half.

    arch/x86/include/asm/pgtable_64_types.h: the first 16 root entries are a hypervisor's.
    """
    span = 1 << tables.span_shift(PGD)
    return ROOF - (256 - 16) * span


def user_ranges(tables: Tables) -> list[Range]:
    """Ours of the user half."""
    last = 256 * (1 << tables.span_shift(PGD)) - 1
    return list(tables.ranges(tables.notes(0, last), guard_hole_end(tables)))


@dataclass(frozen=True)
class Both:
    """The same moment twice."""

    theirs: list[Range | Marker]
    ours: Tables


def steady(theirs: Callable[[], list[Range | Marker]], ours: Callable[[], Tables]) -> Both:
    """Ours between two of theirs that are the same."""
    before = theirs()
    for _ in range(TRIES):
        tables = ours()
        after = theirs()
        if before == after:
            return Both(after, tables)
        before = after
        time.sleep(0.2)
    raise AssertionError(f"the tables changed {TRIES} times")


def both(puppet: Puppet, facts: Facts, name: str, user_copy: bool) -> Both:
    """The user half of a puppet that holds still."""
    buffer = Buffer.of(puppet)
    buffer.dump(name)  # its own use of memory

    def ours() -> Tables:
        tables = Tables(facts)
        last = int(rawfiles.layout()["runtime.user_last"], 16)
        flags = rawfiles.WITH_USER_PGD if user_copy else 0
        tables.add(rawfiles.dump(puppet.pid, [(0, last)], flags), user_copy)
        return tables

    return steady(lambda: user_part(buffer.dump(name)), ours)


@pytest.mark.parametrize("name", ["current_kernel", "current_user"])
def test_user_half(furnished: Puppet, facts: Facts, name: str) -> None:
    """current_user has the root that user mode runs on, which under PTI is another."""
    seen = both(furnished, facts, name, name == "current_user" and witness.pti())
    ours = user_ranges(seen.ours)
    theirs = [line for line in seen.theirs if isinstance(line, Range)]
    assert ptdump.differences(seen.theirs, ours) == []

    kinds = {(line.level, " ".join(line.flags.split())) for line in theirs}
    print(f"{len(theirs)} ranges of {len(kinds)} kinds:", sorted(kinds))
    assert {
        ("pte", "USR RW NX"), ("pte", "USR ro NX"), ("pte", "USR ro x"), ("pte", ""),
        ("pmd", "USR RW PSE NX"), ("pmd", "USR ro PSE NX"), ("pmd", ""),
        ("pud", "USR RW PSE NX"), ("pud", ""), ("pgd", ""),
    } <= kinds
    absent = [
        raw for raw in seen.ours.entries[PTE].values() if not raw & facts.bits["present"]]
    assert len(absent) >= 8 + 4, "swap entries and pages without access"


LIES: dict[str, Callable[[Tables, int], None]] = {}


def lie(function: Callable[[Tables, int], None]) -> Callable[[Tables, int], None]:
    """Takes the tables and the address of a page between others like it."""
    LIES[function.__name__] = function
    return function


@lie
def writable(tables: Tables, page: int) -> None:
    tables.entries[PTE][page] ^= tables.facts.bits["write"]


@lie
def executable(tables: Tables, page: int) -> None:
    tables.entries[PTE][page] ^= tables.facts.bits["nx"]


@lie
def not_accessed(tables: Tables, page: int) -> None:
    tables.entries[PTE][page] ^= tables.facts.bits["accessed"]


@lie
def left_out(tables: Tables, page: int) -> None:
    del tables.entries[PTE][page]


@lie
def made_up(tables: Tables, page: int) -> None:
    tables.entries[PTE][page & -HUGE | 511 * PAGE] = tables.entries[PTE][page]


@lie
def table_forgotten(tables: Tables, page: int) -> None:
    del tables.entries[PMD][page & -HUGE]


@lie
def table_called_huge(tables: Tables, page: int) -> None:
    tables.entries[PMD][page & -HUGE] |= tables.facts.bits["huge"]


@lie
def permission_above(tables: Tables, page: int) -> None:
    """Denied in the upper half of the table by nothing but the entry that leads to the next."""
    tables.entries[PMD][page & -HUGE] ^= tables.facts.bits["write"]


@dataclass(frozen=True)
class Honest:
    """A puppet seen from both sides, and a page of it between others like it."""

    seen: Both
    page: int


@pytest.fixture(scope="module")
def honest(facts: Facts) -> Honest:
    """Taken once: under KASAN a dump of the kernel's takes many seconds."""
    with Puppet() as puppet:
        # two tables full of pages, so that one range goes from the one into the other
        place = puppet.map(2 * HUGE, align=HUGE)
        puppet.advise(place, 2 * HUGE, "nohugepage")
        puppet.touch("write", place, 1000)
        seen = both(puppet, facts, "current_kernel", False)
    assert ptdump.differences(seen.theirs, user_ranges(seen.ours)) == []
    return Honest(seen, place + HUGE + 100 * PAGE)


@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_found(honest: Honest, name: str) -> None:
    ours = copy.deepcopy(honest.seen.ours)
    LIES[name](ours, honest.page)
    wrong = ptdump.differences(honest.seen.theirs, user_ranges(ours))
    print(*wrong, sep="\n")
    assert wrong
