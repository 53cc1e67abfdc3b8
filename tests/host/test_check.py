# SPDX-License-Identifier: GPL-2.0-or-later
"""`ptscope check` against sources that lie: each invariant is shown to fail, and to hold otherwise.

LIES is one lie for each invariant, on a world that tells the truth but for it. A new invariant
without a lie fails here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import streams as s
from ptscope.check.invariants import BY_NAME, INVARIANTS, NAMES, chosen
from ptscope.check.process import Checked
from ptscope.check.recorded import OF_ENTRIES, check_recorded, why_not
from ptscope.decode.layout import load
from ptscope.errors import UsageError
from ptscope.source.stream import open_stream
from ptscope.target.process import Pid
from world import DEVICE, HUGE, PAGE, PRESENT, RAM_LAST, SWAPPED, ZERO_PFN, World

CODE, RODATA, HEAP, NONE = 0x40_0000, 0x50_0000, 0x60_0000, 0x70_0000
THP, HUGETLB, DEVMEM, HOLE = 0x80_0000, 0xC0_0000, 0x100_0000, 0x200_0000
KERNEL_TEXT = 0xFFFF_FFFF_8100_0000
RW = ("read", "write", "mayread", "maywrite")
LAYOUTS = {
    "x86_64": s.FOUR,
    "pti": s.PTI,
    "5-level": s.FIVE,
    "arm64": load("debian-6.1-arm64"),
    "riscv64": load("debian-6.12-riscv64").with_context({"paging_levels": 4}),
}


def writable(world: World) -> tuple[str, ...]:
    """The bits of a page that may be written."""
    return {
        "x86_64": ("write", "dirty", "nx"),
        "arm64": ("write", "dirty"),
        "riscv64": ("write", "dirty"),
    }[world.layout.arch]


def not_executable(world: World) -> tuple[str, ...]:
    return ("nx",) if world.layout.arch == "x86_64" else ()


def honest(directory: Path, name: str = "x86_64") -> World:
    """A process with a bit of everything."""
    world = World(LAYOUTS[name], directory)
    code = world.vma(CODE, CODE + 4 * PAGE, "read", "exec", inode=7)
    for page in range(3):
        raw = world.page(code, CODE + page * PAGE)
        if world.layout.arch == "arm64":
            world.entry(CODE + page * PAGE, raw & ~world.encoder.bits("uxn"))
        if world.layout.arch == "riscv64":
            world.entry(CODE + page * PAGE, raw | world.encoder.bits("exec"))
    rodata = world.vma(RODATA, RODATA + 2 * PAGE, "read", inode=7)
    world.page(rodata, RODATA, *not_executable(world))
    heap = world.vma(HEAP, HEAP + 64 * PAGE, *RW)
    for page in range(16):
        world.page(heap, HEAP + page * PAGE, *writable(world))
    zero = ("special", *not_executable(world))
    world.page(heap, HEAP + 20 * PAGE, *zero, pa=ZERO_PFN * PAGE, counted=False)
    for page in (24, 25):
        world.entry(HEAP + page * PAGE, world.encoder.swap(1, 100 + page))
        world.show(HEAP + page * PAGE, SWAPPED | 1 | 100 + page << 5)
        heap.figures["Swap"] += PAGE
        world.status["VmSwap"] += PAGE
    none = world.vma(NONE, NONE + 2 * PAGE, "mayread")
    world.entry(NONE, world.encoder.protnone("pte", pa := world.frame(), 0))
    world.show(NONE, PRESENT | pa // PAGE)
    world.resident(none, PAGE)
    thp = world.vma(THP, THP + 2 * HUGE, *RW)
    huge_page(world, THP, *writable(world))
    world.resident(thp, HUGE)
    thp.figures["AnonHugePages"] += HUGE
    world.status["VmPTE"] += PAGE  # the table in reserve
    world.page(thp, THP + HUGE, *writable(world))
    hugetlb = world.vma(HUGETLB, HUGETLB + HUGE, *RW, "hugetlb", inode=9, hugetlb=True)
    huge_page(world, HUGETLB, *writable(world))
    hugetlb.figures["Private_Hugetlb"] += HUGE
    world.status["HugetlbPages"] += HUGE
    device = world.vma(DEVMEM, DEVMEM + PAGE, *RW, "pfnmap", "io", inode=11)
    world.page(device, DEVMEM, "special", *writable(world), pa=DEVICE, counted=False)
    world.show(DEVMEM, 0)
    world.write()
    return world


def huge_page(world: World, address: int, *bits: str) -> None:
    pa = world.frame(HUGE)
    raw = world.encoder.leaf("pmd", pa, world.encoder.bits("accessed", *bits))
    world.entry(address, raw, "pmd")
    for page in range(HUGE // PAGE):
        world.show(address + page * PAGE, PRESENT | pa // PAGE + page)


def kernel(directory: Path) -> World:
    """A kernel half: text, and a page of data."""
    world = World(s.FOUR, directory, kernel=True)
    text = world.encoder.leaf("pte", 0x100_0000, 0) & ~world.encoder.bits("user")
    data = text + PAGE | world.encoder.bits("write", "dirty", "nx")
    world.entry(KERNEL_TEXT, text)
    world.entry(KERNEL_TEXT + PAGE, data)
    return world


def change(world: World, address: int, flip: int, level: str = "pte") -> None:
    """Flip bits of an entry."""
    table, index = world.table_of(address, level), world.layout.index(level, address)
    world.tables[table][index] ^= flip


def figure(name: str, start: int = HEAP, by: int = PAGE) -> Callable[[World], None]:
    """smaps gives another figure for a VMA."""

    def lie(world: World) -> None:
        vma = next(vma for vma in world.vmas if vma.start == start)
        vma.figures[name] += by

    return lie


def status(name: str, by: int = PAGE) -> Callable[[World], None]:
    """status gives another figure."""

    def lie(world: World) -> None:
        world.status[name] += by

    return lie


def bits(*names: str, at: int = HEAP, level: str = "pte") -> Callable[[World], None]:
    """Some bits of an entry are the other way round."""
    return lambda world: change(world, at, world.encoder.bits(*names), level)


def map_in_a_hole(world: World) -> None:
    world.entry(HOLE, world.encoder.leaf("pte", world.frame(), 0))


def protnone_in_the_heap(world: World) -> None:
    table, index = world.table_of(HEAP, "pte"), world.layout.index("pte", HEAP)
    pa = world.tables[table][index] & world.layout.facts["mask.pfn"]
    world.entry(HEAP, world.encoder.protnone("pte", pa, 0))


def special_page(world: World) -> None:
    change(world, HEAP, world.encoder.bits("special"))
    figure("Rss", by=-PAGE)(world)
    world.status["VmRSS"] -= PAGE


def page_size_bit_in_the_root(world: World) -> None:
    world.tables[world.root][5] = 0x100_0000 | world.encoder.bits("present", "huge", "user")


def huge_page_askew(world: World) -> None:
    change(world, THP, 0x10_0000, "pmd")


def table_elsewhere(world: World) -> None:
    table = world.table_of(HEAP, "pte")
    world.shown_elsewhere[table] = table + 0x10_0000


def frame_nowhere(world: World) -> None:
    frame = RAM_LAST + 1
    raw = world.encoder.leaf("pte", frame, world.encoder.bits("nx"))
    world.entry(RODATA, raw)
    world.show(RODATA, PRESENT | frame // PAGE)


def table_in_a_device(world: World) -> None:
    old = world.table_of(HEAP, "pte")
    world.tables[DEVICE] = world.tables[old]
    change(world, HEAP, old ^ DEVICE, "pmd")


def one_table_twice(world: World) -> None:
    table = world.table_of(CODE, "pte")
    world.entry(HOLE, world.encoder.table(table), "pmd")
    world.status["VmPTE"] += PAGE


def other_user_root(world: World) -> None:
    world.user_root[0] += PAGE


def half_a_group(world: World) -> None:
    change(world, HEAP, world.encoder.bits("contiguous"))


# The world that is lied about, and the lie.
LIES: dict[str, tuple[str, Callable[[World], None]]] = {
    "pagemap": ("x86_64", lambda world: world.show(HEAP, PRESENT | 0x1234)),
    "permissions": ("x86_64", bits("write", at=RODATA)),
    "write-exec": ("x86_64", bits("nx")),
    "inside-vmas": ("x86_64", map_in_a_hole),
    "user-pages": ("x86_64", bits("user")),
    "protnone": ("x86_64", protnone_in_the_heap),
    "special": ("x86_64", special_page),
    "reserved-bits": ("x86_64", page_size_bit_in_the_root),
    "known-bits": ("x86_64", lambda world: change(world, HEAP, 1 << 54)),
    "alignment": ("x86_64", huge_page_askew),
    "groups": ("arm64", half_a_group),
    "levels": ("x86_64", table_elsewhere),
    "frames-known": ("x86_64", frame_nowhere),
    "tables-in-ram": ("x86_64", table_in_a_device),
    "tables-once": ("x86_64", one_table_twice),
    "pti-copies": ("pti", other_user_root),
    "vm-size": ("x86_64", status("VmSize")),
    "resident": ("x86_64", figure("Rss")),
    "huge": ("x86_64", figure("AnonHugePages", THP, HUGE)),
    "hugetlb": ("x86_64", figure("Private_Hugetlb", HUGETLB, -HUGE)),
    "swapped": ("x86_64", figure("Swap")),
    "rss-counters": ("x86_64", status("VmRSS", 2000 * PAGE)),
    "hugetlb-counter": ("x86_64", status("HugetlbPages", HUGE)),
    "table-count": ("x86_64", status("VmPTE")),
    "kernel-pages": ("kernel", bits("user", at=KERNEL_TEXT)),
    "kernel-write-exec": ("kernel", bits("write", at=KERNEL_TEXT)),
}


def make(directory: Path, name: str) -> World:
    return kernel(directory) if name == "kernel" else honest(directory, name)


def checked(world: World, *names: str) -> Checked:
    world.write()
    checker = world.checker(*names)
    return checker.check_kernel() if world.kernel else checker.check(world)


def found(result: Checked) -> set[str]:
    return {finding.invariant for finding in result.findings}


@pytest.mark.parametrize("name", [*LAYOUTS, "kernel"])
def test_the_truth_has_no_findings(tmp_path: Path, name: str) -> None:
    result = checked(make(tmp_path, name))
    assert result.findings == []
    assert result.changed == {}
    assert result.entries > (30 if name != "kernel" else 4)
    assert result.pages > 1000 or name == "kernel"


@pytest.mark.parametrize("name", NAMES)
def test_each_invariant_finds_its_lie(tmp_path: Path, name: str) -> None:
    of, lie = LIES[name]
    world = make(tmp_path, of)
    lie(world)
    result = checked(world)
    assert name in found(result), result
    assert not result.changed[name]
    finding = next(row for row in result.findings if row.invariant == name)
    assert finding.ours
    assert finding.theirs
    assert finding.ours != finding.theirs
    # Asked alone, it is found alone.
    assert found(checked(world, name)) == {name}
    others = [other for other in NAMES if other != name]
    assert name not in found(checked(world, *others))


def test_a_lie_is_told_of_each_invariant_and_of_nothing_else() -> None:
    assert set(LIES) == set(NAMES)


def test_reasons_are_given() -> None:
    for row in INVARIANTS:
        assert row.what
        assert row.why
        assert ".c" in row.where or ".h" in row.where
        assert row.arches
    assert len(BY_NAME) == len(INVARIANTS)


@pytest.mark.parametrize(
    "name", [name for name in NAMES if LIES[name][0] != "kernel" and name != "levels"]
)
def test_a_lie_that_passes_has_changed(tmp_path: Path, name: str) -> None:
    """The entries and files lie when they are first read, and never again."""
    of, lie = LIES[name]
    liar_at, true_at = tmp_path / "liar", tmp_path / "true"
    liar_at.mkdir()
    true_at.mkdir()
    world = make(liar_at, of)
    truth = make(true_at, of)
    lie(world)
    world.write()
    requests: list[None] = []

    def heal() -> None:
        requests.append(None)
        if len(requests) == 2:
            world.tables, world.user_root = truth.tables, truth.user_root
            world.shown_elsewhere = {}
            for file in ("smaps", "status", "statm"):
                (true_at / file).replace(liar_at / file)
            # This one is open already, and none of the addresses is above the hole.
            with (true_at / "pagemap").open("rb") as pages:
                words = pages.read(HOLE // PAGE * 8)
            with (liar_at / "pagemap").open("r+b") as pages:
                pages.write(words)

    world.before_dump.append(heal)
    result = world.checker().check(world)
    assert result.findings == []
    assert result.changed.total() > 0
    assert len(requests) >= 2


def test_a_page_that_moves_all_the_time_is_no_finding(tmp_path: Path) -> None:
    """pagemap is always one step behind."""
    world = honest(tmp_path)
    frames = iter(range(0x300_0000, 0x400_0000, PAGE))

    def move() -> None:
        raw = world.encoder.leaf("pte", next(frames), world.encoder.bits("write", "dirty", "nx"))
        world.entry(HEAP, raw)

    world.before_dump.append(move)
    result = checked(world)
    assert result.findings == []
    assert result.changed == {"pagemap": 1}


def test_accessed_and_dirty_bits_may_change_at_any_time(tmp_path: Path) -> None:
    """A lie is found although the CPU ages the entry between all readings."""
    world = honest(tmp_path)
    world.show(HEAP, PRESENT | 0x1234)
    world.before_dump.append(lambda: change(world, HEAP, world.encoder.bits("accessed")))
    result = checked(world)
    assert found(result) == {"pagemap"}


def test_sums_of_a_vma_that_changes_are_no_finding(tmp_path: Path) -> None:
    world = honest(tmp_path)
    figure("Rss", by=50 * PAGE)(world)
    pages = iter(range(30, 60))

    def fault() -> None:
        world.page(world.vmas[2], HEAP + next(pages) * PAGE, "write", "dirty", "nx", counted=False)

    world.before_dump.append(fault)
    result = checked(world, "resident")
    assert result.findings == []
    assert result.changed == {"resident": 1}


def test_pages_that_the_kernel_took_away_have_no_form(tmp_path: Path) -> None:
    """A guard page: the present bit is gone, and all else as it was."""
    world = kernel(tmp_path)
    change(world, KERNEL_TEXT + PAGE, world.encoder.bits("present"))
    world.entry(KERNEL_TEXT + 2 * PAGE, 0x8000_0000_0000_0162)
    assert checked(world).findings == []


@pytest.mark.parametrize("counted", [True, False])
def test_a_huge_page_under_prot_none(tmp_path: Path, counted: bool) -> None:
    """Its frame is stored inverted, and smaps of 6.1 leaves it out; VmRSS has it."""
    world = honest(tmp_path)
    address = HOLE + 4 * HUGE
    area = world.vma(address, address + HUGE, "mayread")
    pa = world.frame(HUGE)
    world.entry(address, world.encoder.protnone("pmd", pa, 0), "pmd")
    for page in range(HUGE // PAGE):
        world.show(address + page * PAGE, PRESENT | pa // PAGE + page)
    world.status["VmPTE"] += PAGE
    world.resident(area, HUGE)
    area.figures["AnonHugePages"] = HUGE
    if not counted:
        area.figures["Rss"] = area.figures["AnonHugePages"] = 0
    assert checked(world).findings == []


@pytest.mark.parametrize(("flag", "right"), [("mixedmap", True), ("shared", False)])
def test_what_a_driver_inserted_may_not_be_counted_yet(
    tmp_path: Path, flag: str, right: bool
) -> None:
    """Up to 6.1 only faults add to the counters what vm_insert_page counted."""
    world = honest(tmp_path)
    start = HOLE + 4 * HUGE
    area = world.vma(start, start + 3 * HUGE, *RW, flag, inode=11)
    for page in range(3 * HUGE // PAGE):
        world.page(area, start + page * PAGE, *writable(world))
    world.status["VmRSS"] -= 3 * HUGE
    assert found(checked(world)) == (set() if right else {"rss-counters"})


def test_evidence(tmp_path: Path) -> None:
    world = honest(tmp_path)
    bits("write", at=RODATA)(world)
    (finding,) = checked(world, "permissions").findings
    table = world.table_of(RODATA, "pte")
    index = world.layout.index("pte", RODATA)
    assert finding.to_json() == {
        "invariant": "permissions",
        "pid": 42,
        "comm": "nobody",
        "address": hex(RODATA),
        "level": "pte",
        "raw": f"{world.tables[table][index]:#018x}",
        "entry_pa": hex(table + 8 * index),
        "vma": None,
        "entries_say": "writable",
        "witness": "the VMA or the entry's own form",
        "witness_says": "VMA r--p",
    }


def test_more_suspects_than_are_looked_at_again(tmp_path: Path) -> None:
    world = honest(tmp_path)
    for page in range(HUGE // PAGE):
        world.show(THP + page * PAGE, PRESENT | 1)
    result = checked(world, "pagemap")
    assert len(result.findings) == 256
    assert result.more == 256


@pytest.mark.parametrize("name", ["arm64", "riscv64"])
def test_a_whole_group_is_none(tmp_path: Path, name: str) -> None:
    """Sixteen entries that are one mapping, and what pagemap shows of them."""
    world = honest(tmp_path, name)
    start = HEAP + 32 * PAGE
    pa = world.frame(16 * PAGE)
    heap = world.vmas[2]
    for page in range(16):
        world.page(heap, start + page * PAGE, *writable(world), pa=pa + page * PAGE)
        if name == "arm64":
            change(world, start + page * PAGE, world.encoder.bits("contiguous"))
        else:
            napot = 1 << 63 | 1 << 13 | (pa >> 12 << 10) | world.encoder.bits("accessed")
            raw = world.encoder.bits("present", "read", "user", *writable(world)) | napot
            world.entry(start + page * PAGE, raw)
    assert checked(world).findings == []
    change(world, start + 5 * PAGE, 1 << 16)
    world.show(start + 5 * PAGE, struct.unpack("=Q", struct.pack("=Q", PRESENT))[0])
    assert "groups" in found(checked(world))


def recorded(world: World, *names: str) -> Checked:
    """The same world, read once and then no more."""
    source = world.checker().source
    pid: Pid = "kernel" if world.kernel else world.pid
    pti = bool(world.layout.runtime.get("pti"))
    with open_stream(source, pid, user_pgd=pti) as stream:
        asked = frozenset(
            row.name
            for row in INVARIANTS
            if row.name in (names or NAMES) and why_not(stream, row) is None
        )
        return check_recorded(stream, source, asked, world.pid, world.comm)


@pytest.mark.parametrize("name", [*LAYOUTS, "kernel"])
def test_the_truth_that_was_recorded_has_no_findings(tmp_path: Path, name: str) -> None:
    assert recorded(make(tmp_path, name)).findings == []


@pytest.mark.parametrize("name", OF_ENTRIES)
def test_lies_that_were_recorded(tmp_path: Path, name: str) -> None:
    of, lie = LIES[name]
    world = make(tmp_path, of)
    lie(world)
    assert found(recorded(world, name)) == {name}


def test_names_are_checked() -> None:
    assert chosen((), ()) == set(NAMES)
    assert chosen(("pagemap",), ()) == {"pagemap"}
    assert chosen((), ("pagemap",)) == set(NAMES) - {"pagemap"}
    with pytest.raises(UsageError, match="no invariant is called 'x'"):
        chosen((), ("x",))
