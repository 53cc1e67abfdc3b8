# SPDX-License-Identifier: GPL-2.0-or-later
"""The checker of the race test (tests/guest/chains.c) finds each kind of inconsistency.

The race test trusts it to notice a chain that mixes two generations of page tables, so
here consistent answers are made by hand, one thing is planted in each, and the checker
has to name it.
"""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

GUEST = Path(__file__).parents[1] / "guest"

LAYOUT = """format 1
arch x86_64
mask.pfn 0x000ffffffffff000
bit.present 0
bit.user 2
bit.huge 7
runtime.levels 4
runtime.level.pgd.shift 39
runtime.level.pgd.entries 512
runtime.level.pud.shift 30
runtime.level.pud.entries 512
runtime.level.pmd.shift 21
runtime.level.pmd.entries 512
runtime.level.pte.shift 12
runtime.level.pte.entries 512
runtime.user_last 0x00007fffffffffff
runtime.kernel_first 0xffff800000000000
runtime.physical_mask 0x000fffffffffffff
runtime.c_mask 0x0
runtime.pti 1
"""

ADDRESS = 0x1234_5678_9000
TABLES = {"pgd": 0x10000, "pud": 0x20000, "pmd": 0x30000, "pte": 0x40000}
SHIFTS = {"pgd": 39, "pud": 30, "pmd": 21, "pte": 12}
NUMBERS = {"pgd": 5, "pud": 3, "pmd": 2, "pte": 1}
NAMES = tuple(TABLES)
PAGE = 0x8000_0000_0005_0867
POISON = 0xAAAA_AAAA_AAAA_AAAA


def index(level: str, address: int = ADDRESS) -> int:
    return address >> SHIFTS[level] & 511


def raw(level: str) -> int:
    below = NAMES.index(level) + 1
    return TABLES[NAMES[below]] | 0x67 if below < len(NAMES) else PAGE


@pytest.fixture(scope="module")
def walker() -> Path:
    subprocess.run(["make", "-s", "-C", GUEST, "walker"], check=True)
    return GUEST / "walker"


# ---- the text of "walk" ---------------------------------------------------


def level_lines() -> list[str]:
    return [
        f"{name} {index(name)} raw {raw(name):#018x} at {TABLES[name] + 8 * index(name):#018x}"
        for name in NAMES
    ]


HEAD = [
    "pid 812 comm bash",
    f"address {ADDRESS:#x}",
    "lock read",
    "vma 0x123456789000 0x12345678b000 flags 0x100173",
]
USER_PGD = f"user_pgd {index('pgd')} raw {raw('pgd'):#018x} at {0x11000 + 8 * index('pgd'):#018x}"

TEXTS_GOOD = {
    "a page": [*HEAD, *level_lines()],
    "with the user PGD": [*HEAD, USER_PGD, *level_lines()],
    "a hole": [*HEAD[:2], "lock write", "vma none", *level_lines()[:2],
               level_lines()[2].replace(f"{raw('pmd'):016x}", "0" * 16)],
    "a huge page": [*HEAD, *level_lines()[:2],
                    level_lines()[2].replace(f"{raw('pmd'):016x}", "80000000404008e7")],
}

TEXTS_BAD = {
    "a table of another generation": (
        [*HEAD, *level_lines()[:3],
         level_lines()[3].replace("at 0x0000000000040", "at 0x0000000000041")],
        "not in the table that the entry above points to",
    ),
    "an index of another address": (
        [*HEAD, *level_lines()[:3], level_lines()[3].replace(f"pte {index('pte')}", "pte 3")],
        "index does not match the address",
    ),
    "an entry elsewhere in its table": (
        [*HEAD, *level_lines()[:3],
         level_lines()[3].replace(f"{0x40000 + 8 * index('pte'):016x}", f"{0x40ff8:016x}")],
        "entry address does not match the index",
    ),
    "an entry of a freed table": (
        [*HEAD, *level_lines()[:3], level_lines()[3].replace(f"{PAGE:016x}", "a" * 16)],
        "is of a freed page",
    ),
    "an entry of what the table became": (
        [*HEAD, *level_lines()[:3], level_lines()[3].replace(f"{PAGE:016x}", f"{0x41:016x}")],
        "is none of the user half",
    ),
    "no end": ([*HEAD, *level_lines()[:3]], "ends with a table entry at pmd"),
    "descends from a huge page": (
        [*HEAD, *level_lines()[:2],
         level_lines()[2].replace(f"{raw('pmd'):016x}", "80000000404008e7"), level_lines()[3]],
        "a level below one that is no table",
    ),
    "a level left out": ([*HEAD, level_lines()[0], *level_lines()[2:]], "not the next level"),
    "another address": (
        [HEAD[0], "address 0x123456788000", *HEAD[2:], *level_lines()], "another address"),
    "another VMA": (
        [*HEAD[:3], "vma 0x1000 0x2000 flags 0x0", *level_lines()],
        "the VMA does not hold the address",
    ),
    "a VMA in a snapshot": (
        [*HEAD[:2], "lock none", HEAD[3], *level_lines()], "do not go together"),
    "neither a VMA nor none": ([*HEAD[:3], *level_lines()], "do not go together"),
    "two PGDs that are no pair": (
        [*HEAD, USER_PGD.replace("at 0x0000000000011", "at 0x0000000000012"), *level_lines()],
        "not a pair",
    ),
    "nothing": ([], "no level at all"),
    "words": ([*HEAD, *level_lines(), "banana"], "not understood"),
}


def check(walker: Path, directory: Path, mode: str, data: bytes, *words: str) -> tuple[int, str]:
    (directory / "layout").write_text(LAYOUT)
    (directory / "answer").write_bytes(data)
    arguments = [str(directory / "layout"), *words, str(directory / "answer")]
    if mode == "check-dump":
        arguments = [str(directory / "layout"), str(directory / "answer"), *words]
    done = subprocess.run([walker, mode, *arguments], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


@pytest.mark.parametrize("name", TEXTS_GOOD)
def test_consistent_text_passes(walker: Path, tmp_path: Path, name: str) -> None:
    text = "\n".join(TEXTS_GOOD[name]) + "\n"
    status, output = check(walker, tmp_path, "check-walk", text.encode(), f"{ADDRESS:#x}")
    assert (status, "inconsistent=0" in output) == (0, True), output


@pytest.mark.parametrize("name", TEXTS_BAD)
def test_planted_inconsistency_in_text_is_named(walker: Path, tmp_path: Path, name: str) -> None:
    lines, complaint = TEXTS_BAD[name]
    text = "\n".join(lines) + "\n"
    status, output = check(walker, tmp_path, "check-walk", text.encode(), f"{ADDRESS:#x}")
    assert status == 1
    assert complaint in output


# ---- the records of "dump" ------------------------------------------------


@dataclass(frozen=True)
class Part:
    """One table record."""

    level: int
    address: int
    table_pa: int
    entries: tuple[int, ...]
    index: int
    flags: int = 0

    def pack(self) -> bytes:
        body = struct.pack("<QQHHI", self.address, self.table_pa, self.level, self.index,
                           len(self.entries))
        body += struct.pack(f"<{len(self.entries)}Q", *self.entries)
        return struct.pack("<HHI", 3, self.flags, 8 + len(body)) + body


def batch(sequence: int = 0, lock: int = 1, magic: int = 0x43535450, version: int = 1) -> bytes:
    return struct.pack("<HHIIHHQQII", 1, 0, 40, magic, version, 40, sequence, 1000, lock, 0)


def vma(start: int = ADDRESS, end: int = ADDRESS + 0x4000) -> bytes:
    return struct.pack("<HHIQQQQQQII", 2, 0, 64, start, end, 0x73, 0, 0, 0, 0, 0)


def end(status: int = 1, address: int = 0) -> bytes:
    return struct.pack("<HHIIIQ", 4, 0, 24, status, 0, address)


PARTS = {
    name: Part(NUMBERS[name], ADDRESS >> SHIFTS[name] << SHIFTS[name], TABLES[name],
               (raw(name),), index(name))
    for name in NAMES
}
PTES = replace(PARTS["pte"], entries=(PAGE, 0, PAGE + 0x2000))
WAY = (PARTS["pgd"], PARTS["pud"], PARTS["pmd"])


def framed(*batches: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(data)) + data for data in batches)


def packed(*parts: Part) -> bytes:
    return b"".join(part.pack() for part in parts)


DUMPS_GOOD = {
    "one batch": framed(batch() + vma() + packed(*WAY, PTES) + end()),
    "two batches": framed(batch() + vma() + packed(*WAY, PTES),
                          batch(1) + vma(ADDRESS + 0x5000, ADDRESS + 0x9000) + end()),
    "only the end": framed(batch() + end()),
    "user PGD": framed(
        batch() + packed(replace(PARTS["pgd"], table_pa=0x11000, flags=2), *WAY, PTES) + end()),
}

DUMPS_BAD = {
    "a table of another generation": (
        framed(batch() + packed(*WAY, replace(PTES, table_pa=0x41000)) + end()),
        "the entry above says",
    ),
    "a part below another address": (
        framed(batch() + packed(*WAY, replace(PTES, address=ADDRESS + (1 << 21))) + end()),
        "is not below the entry",
    ),
    "an index of another address": (
        framed(batch() + packed(*WAY, replace(PTES, index=3)) + end()), "has index 3"),
    "more entries than the table has": (
        framed(batch() + packed(*WAY, replace(PTES, entries=(PAGE,) * 512)) + end()),
        "leave the table",
    ),
    "an entry of a freed table": (
        framed(batch() + packed(*WAY, replace(PTES, entries=(PAGE, POISON, PAGE))) + end()),
        "is of a freed page",
    ),
    "an entry of what the table became": (
        framed(batch() + packed(*WAY, replace(PTES, entries=(PAGE, 0x41, PAGE))) + end()),
        "is none of the user half",
    ),
    "no way down": (framed(batch() + packed(PTES) + end()), "without the entry above it"),
    "the way down in another batch": (
        framed(batch() + packed(*WAY), batch(1) + packed(PTES) + end()),
        "without the entry above it",
    ),
    "below a huge page": (
        framed(batch() + packed(*WAY[:2], replace(WAY[2], entries=(0x400080E7,)), PTES) + end()),
        "below an entry that is no table",
    ),
    "an empty entry at the end": (
        framed(batch() + packed(*WAY, replace(PTES, entries=(PAGE, 0))) + end()),
        "begins or ends with an empty entry",
    ),
    "a table entry that is not descended from": (
        framed(batch() + packed(*WAY[:2], replace(WAY[2], entries=(0x60067, 0x30067))) + end()),
        "goes on past a table entry",
    ),
    "two roots": (
        framed(batch() + packed(*WAY, PTES),
               batch(1) + packed(replace(PARTS["pgd"], table_pa=0x90000)) + end()),
        "the root table changed",
    ),
    "VMAs out of order": (
        framed(batch() + vma() + vma(ADDRESS - 0x4000, ADDRESS) + packed(*WAY, PTES) + end()),
        "out of order",
    ),
    "done before the end": (framed(batch() + end(1, 0x1000)), "end status 1"),
    "a level that is folded": (
        framed(batch() + packed(replace(PARTS["pgd"], level=4)) + end()), "not walked here"),
    "a batch lost": (framed(batch(1) + end()), "was due"),
    "wrong magic": (framed(batch(magic=1) + end()), "not the head of a batch"),
    "wrong version": (framed(batch(version=2) + end()), "not the head of a batch"),
    "half a record": (framed(batch() + end()[:12]), "bytes with 12 left"),
    "no end": (framed(batch() + packed(*WAY, PTES)), "no end record"),
    "data after the end": (framed(batch() + end(), batch(1)), "data after the end"),
    "lock unknown": (framed(batch(lock=9) + end()), "lock 9"),
}


@pytest.mark.parametrize("name", DUMPS_GOOD)
def test_consistent_dump_passes(walker: Path, tmp_path: Path, name: str) -> None:
    status, output = check(walker, tmp_path, "check-dump", DUMPS_GOOD[name])
    assert (status, "inconsistent=0" in output) == (0, True), output


@pytest.mark.parametrize("name", DUMPS_BAD)
def test_planted_inconsistency_in_dump_is_named(walker: Path, tmp_path: Path, name: str) -> None:
    data, complaint = DUMPS_BAD[name]
    status, output = check(walker, tmp_path, "check-dump", data)
    assert status == 1
    assert complaint in output


def test_point_requests_allow_an_empty_last_entry(walker: Path, tmp_path: Path) -> None:
    data = framed(batch() + packed(*WAY, replace(PTES, entries=(0,))) + end())
    assert check(walker, tmp_path, "check-dump", data)[0] == 1
    assert check(walker, tmp_path, "check-dump", data, "points")[0] == 0




def test_no_flipped_address_bit_of_the_way_down_goes_unnoticed(
    walker: Path, tmp_path: Path
) -> None:
    for name in ("pgd", "pud", "pmd"):
        for bit in range(12, 52, 13):
            broken = replace(PARTS[name], entries=(raw(name) ^ 1 << bit,))
            parts = [broken if part is PARTS[name] else part for part in (*WAY, PTES)]
            status, output = check(
                walker, tmp_path, "check-dump", framed(batch() + packed(*parts) + end()))
            assert status == 1, (name, bit)
            assert "the entry above says" in output


# What differs between architectures: facts, the entry of a table, and of a page of user memory.
ARCHES: dict[str, tuple[str, Callable[[int], int], int]] = {
    "arm64": (
        ("mask.pfn 0x0003fffffffff000\nmask.pfn_high 0x300\nshift.pfn_high 42\nbit.valid 0\n"
        "bit.table 1\nbit.user 6\nruntime.lpa2 1\nruntime.physical_mask 0x000fffffffffffff\n"),
        lambda pa: pa & (1 << 50) - 1 | pa >> 42 & 0x300 | 3,
        0x0060_0000_8000_0F43,
    ),
    "riscv64": (
        ("mask.pfn 0x003ffffffffffc00\nshift.pfn 2\nbit.present 0\nbit.read 1\nbit.write 2\n"
        "bit.exec 3\nbit.user 4\n"),
        lambda pa: pa >> 2 | 1,
        0x2000_00D7,
    ),
}
FAR = {"pgd": 0x1_0000, "pud": 0x2_0000, "pmd": 0xC_0000_0000_3000, "pte": 0x4_0000}
"""A table with the two highest of 52 address bits, which LPA2 keeps elsewhere in an entry."""


@pytest.mark.parametrize("spoiled", ["", "pgd", "pud", "pmd"])
@pytest.mark.parametrize("arch", ARCHES)
def test_chains_of_other_architectures(
    walker: Path, tmp_path: Path, arch: str, spoiled: str
) -> None:
    """A chain is whole, and one that leads to another table is not."""
    facts, table, page = ARCHES[arch]
    layout = tmp_path / "layout"
    common = [
        line for line in LAYOUT.splitlines(keepends=True)
        if line.startswith("runtime.") and not any(
            word in line for word in ("physical_mask", "c_mask", "pti"))
    ]
    layout.write_text(f"format 1\narch {arch}\n{facts}{''.join(common)}")
    tables = {name: pa if arch == "arm64" else pa & (1 << 50) - 1 for name, pa in FAR.items()}
    lines = [f"pid 7 comm x\naddress {ADDRESS:#018x}\nlock read\nvma none\n"]
    for name, below in zip(NAMES, (*NAMES[1:], None), strict=True):
        entry = page if below is None else table(tables[below] ^ (name == spoiled) << 13)
        at = tables[name] + 8 * index(name)
        lines.append(f"{name} {index(name)} raw {entry:#018x} at {at:#018x}\n")
    answer = tmp_path / "answer"
    answer.write_text("".join(lines))
    done = subprocess.run(
        [walker, "check-walk", layout, hex(ADDRESS), answer], capture_output=True, text=True,
        check=False)
    assert done.returncode == bool(spoiled), done.stdout
    assert ("not in the table that the entry above points to" in done.stdout) is bool(spoiled)
