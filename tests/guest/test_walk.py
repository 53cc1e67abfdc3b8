# SPDX-License-Identifier: GPL-2.0-or-later
"""Every kind of page, in another process and in this one, against the kernel's own word."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import command
import compare
import pytest
import rawfiles
import witness
from ptscope.raw.records import RawEntry
from ptscope.source.base import RawWalk
from ptscope.source.module import ModuleSource
from puppet import Child, Commands, Puppet, PuppetError

PAGE = witness.PAGE
HUGE = witness.HUGE
HUGE_LOG2 = HUGE.bit_length() - 1
GIGANTIC = 1 << 30
SPANS = {witness.span(level): level for level in witness.level_names()}
KB = 1 << 10
ABOVE_47_BITS = 1 << 50

Eventually = Callable[[Callable[[], bool], str], None]


def anonymous(target: Commands) -> int:
    return target.map(4 * PAGE) + PAGE


def read_only_touched(target: Commands) -> int:
    address = anonymous(target)
    target.touch("read", address)
    return address


def written(target: Commands) -> int:
    address = anonymous(target)
    target.touch("write", address)
    return address


def untouched(target: Commands) -> int:
    return anonymous(target)


def text(target: Commands) -> int:
    return target.where("text")


def stack(target: Commands) -> int:
    return target.stack(64 << 10)


def transparent_huge(target: Commands) -> int:
    address = target.map(HUGE, align=HUGE)
    target.advise(address, HUGE, "hugepage")
    target.touch("write", address)
    return address + 5 * PAGE + 8


def hugetlb(log2: int) -> Callable[[Commands], int]:
    def make(target: Commands) -> int:
        address = target.map(1 << log2, huge=log2)
        target.touch("write", address)
        return address + 7 * PAGE

    return make


def no_permission(target: Commands) -> int:
    address = written(target)
    target.protect(address, PAGE, "none")
    return address


def no_permission_huge(target: Commands) -> int:
    address = transparent_huge(target) & -HUGE
    target.protect(address, HUGE, "none")
    return address + PAGE


def swapped(target: Commands) -> int:
    address = written(target)
    for _ in range(200):
        target.advise(address, PAGE, "pageout")
        if witness.page(target.pid, address).swapped:
            return address
    raise AssertionError("the page is not swapped out")


def just_unmapped(target: Commands) -> int:
    address = written(target)
    target.touch("write", address + PAGE)  # the neighbour keeps the PTE table alive
    target.unmap(address, PAGE)
    return address


def never_mapped(target: Commands) -> int:
    return witness.nowhere()


def high(target: Commands) -> int:
    address = target.map(PAGE, at=ABOVE_47_BITS, hint=True)
    target.touch("write", address)
    return address


@dataclass(frozen=True)
class Case:
    """A kind of page: how to make one, and what must be said of it."""

    make: Callable[[Commands], int]
    state: str
    level: str | None = "pte"
    """Where the walk ends; None when that depends on the neighbours."""
    page_size: int | None = PAGE
    effective: str = ""
    in_vma: bool = True
    smaps: tuple[tuple[str, int], ...] = ()
    """Figures in kB that the VMA must have."""
    hugetlb: bool = False
    needs_swap: bool = False


CASES = {
    "anonymous read": Case(read_only_touched, "leaf", effective="r"),
    "anonymous written": Case(written, "leaf", effective="rw", smaps=(("Anonymous", PAGE // KB),)),
    "anonymous untouched": Case(untouched, "none", level=None, page_size=None),
    "text": Case(text, "leaf", effective="rx"),
    "stack": Case(stack, "leaf", effective="rw"),
    "transparent huge": Case(
        transparent_huge, "leaf", "pmd", HUGE, "rw", smaps=(("AnonHugePages", HUGE // KB),)),
    "hugetlb": Case(
        hugetlb(HUGE_LOG2), "leaf", "pmd", HUGE, "rw", hugetlb=True,
        smaps=(("Private_Hugetlb", HUGE // KB), ("KernelPageSize", HUGE // KB))),
    # with 16K pages as many entries of a PMD table, marked as contiguous
    "hugetlb 1 GiB": Case(
        hugetlb(30), "leaf", SPANS.get(GIGANTIC, "pmd"),
        GIGANTIC if GIGANTIC in SPANS else HUGE, "rw", hugetlb=True,
        smaps=(("Hugetlb", 1 << 20), ("KernelPageSize", 1 << 20))),
    "PROT_NONE": Case(no_permission, "protnone", smaps=(("Rss", PAGE // KB),)),
    # smaps does not follow a huge entry without permission (mm/huge_memory.c, pmd_protnone)
    "PROT_NONE huge": Case(no_permission_huge, "protnone", "pmd", HUGE),
    "swapped": Case(
        swapped, "swap", page_size=None, needs_swap=True, smaps=(("Swap", PAGE // KB),)),
    "just unmapped": Case(just_unmapped, "none", page_size=None, in_vma=False),
    "never mapped": Case(never_mapped, "none", level=None, page_size=None, in_vma=False),
}


def target_word(target: Commands) -> object:
    return target.pid if isinstance(target, Puppet | Child) else "self"


def soft_dirty_mask() -> int:
    return int(rawfiles.layout().get("vm.softdirty", "0"), 16)


# An emulated CPU clears 1 GiB in seconds, and a PUD entry is the same in all variants of x86.
GIGANTIC_MARKS = [pytest.mark.any_variant] if witness.MACHINE == "x86_64" else []


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=GIGANTIC_MARKS if name == "hugetlb 1 GiB" else []) for name in CASES
])
def test_agrees_with_pagemap(name: str, target: Commands, swap: None) -> None:
    case = CASES[name]
    address = case.make(target)
    walk = command.walk(target_word(target), address)
    page = witness.page(target.pid, address)

    assert walk["pid"] == target.pid
    assert int(walk["address"], 16) == address
    assert walk["source"] == "module"
    assert compare.differences(walk, page, soft_dirty_mask(), case.hugetlb) == []

    entry, mapping = compare.last_entry(walk), walk["mapping"]
    assert (entry["state"], mapping["state"]) == (case.state, case.state)
    assert entry["page_size"] == case.page_size if case.page_size else entry["pfn"] is None
    if case.level is not None:
        assert mapping["level"] == case.level
    assert entry["hw_present"] is (case.state == "leaf")
    allowed = "".join(
        letter for letter, key in (("r", "read"), ("w", "write"), ("x", "exec"))
        if walk["effective"][key])
    assert allowed == case.effective
    if case.state == "leaf":
        assert walk["effective"]["user"] is True

    vma = next((vma for vma in witness.vmas(target.pid) if vma.start <= address < vma.end), None)
    assert (vma is not None) is case.in_vma
    if vma is None:
        assert walk["vma"] is None
    else:
        assert [int(walk["vma"][key], 16) for key in ("start", "end")] == [vma.start, vma.end]
        assert walk["vma"]["permissions"] == vma.permissions
    figures = witness.smaps(target.pid, address)
    # Which of the two a page of 1 GiB is in is chance: the kernel takes it for shared where the
    # table above has a share count, which only PMD tables have (6.12, pt_share_count in struct
    # ptdesc; elsewhere what the page's last user left there).
    figures["Hugetlb"] = figures.get("Private_Hugetlb", 0) + figures.get("Shared_Hugetlb", 0)
    assert {key: figures[key] for key, _ in case.smaps} == dict(case.smaps)


@pytest.mark.any_variant
# clearing 1 GiB takes an emulated CPU seconds
@pytest.mark.parametrize("name", [name for name in CASES if name != "hugetlb 1 GiB"])
def test_text_and_binary_and_json_are_the_same_entries(
    name: str, puppet: Puppet, swap: None
) -> None:
    address = CASES[name].make(puppet)
    printed = rawfiles.walk(puppet.pid, address)
    flags = rawfiles.WITH_VMAS | rawfiles.WITH_USER_PGD
    (batch,) = rawfiles.dump(puppet.pid, [(address, address)], flags)
    tables = [record for record in batch.records if isinstance(record, rawfiles.Table)]
    vmas = [record for record in batch.records if isinstance(record, rawfiles.Vma)]
    dumped = [
        rawfiles.Entry(table.level, table.index, table.entries[0], table.table_pa + 8 * table.index)
        for table in tables
    ]
    assert all(len(table.entries) == 1 for table in tables)
    ordinary = [e for e, t in zip(dumped, tables, strict=True) if not t.flags & rawfiles.USER_PGD]
    user = [e for e, t in zip(dumped, tables, strict=True) if t.flags & rawfiles.USER_PGD]

    assert (printed.pid, printed.comm, printed.address) == (puppet.pid, "puppet", address)
    # the kernel looks for old pages all the time: the accessed bit may go between two readings
    accessed = 1 << int(rawfiles.layout()["bit.accessed"])

    def steady(entries: Iterable[rawfiles.Entry]) -> list[rawfiles.Entry]:
        return [replace(e, raw=e.raw & ~accessed) for e in entries]

    assert steady(printed.entries) == steady(ordinary)
    assert [(e.index, e.pa) for e in user] == (
        [] if printed.user_pgd is None else [(printed.user_pgd.index, printed.user_pgd.pa)])
    assert printed.user_pgd is None or user[0].raw | accessed == printed.user_pgd.raw | accessed
    assert (printed.user_pgd is not None) is witness.pti()
    # no table stands where nothing is mapped, so none had to be looked at under the write lock
    assert printed.lock == batch.lock == "read"
    assert [(vma.start, vma.end) for vma in vmas] == ([printed.vma] if printed.vma else [])

    json = command.walk(puppet.pid, address)
    listed = [
        rawfiles.Entry(
            level["level"], level["index"], int(level["raw"], 16), int(level["entry_pa"], 16))
        for level in json["levels"] if level["raw"] is not None
    ]
    assert steady(listed) == steady(printed.entries)


def test_levels_are_those_that_the_hardware_walks(puppet: Puppet) -> None:
    walk = command.walk(puppet.pid, written(puppet))
    folded = {level["level"]: level["folded"] for level in walk["levels"]}
    assert list(folded) == ["pgd", "p4d", "pud", "pmd", "pte"]
    assert folded == {name: name not in witness.level_names() for name in folded}
    for level in walk["levels"][:-1]:
        if level["folded"]:
            assert (level["index"], level["raw"], level["decoded"]) == (None, None, None)
        else:
            assert level["decoded"]["state"] == "table"


def test_hint_above_47_bits(target: Commands) -> None:
    """Who has more bits gives what the hint asks for; others ignore it."""
    address = high(target)
    wide = witness.user_bits() > 50
    assert (address == ABOVE_47_BITS) is wide
    walk = command.walk(target_word(target), address)
    page = witness.page(target.pid, address)
    assert compare.differences(walk, page, soft_dirty_mask()) == []
    pgd = walk["levels"][0]
    assert pgd["index"] == address // witness.span("pgd")
    if wide:
        assert pgd["index"] > 0
        assert walk["mapping"]["state"] == "leaf"
        assert command.walk(target_word(target), ABOVE_47_BITS << 1)["mapping"]["state"] == "none"


def test_zero_page_is_one_frame(puppet: Puppet) -> None:
    first = puppet.map(4 * PAGE)
    puppet.touch("read", first, 2)
    walks = [command.walk(puppet.pid, first + i * PAGE) for i in range(2)]
    frames = {compare.frame(walk) for walk in walks}
    assert len(frames) == 1
    assert witness.kpageflags(frames.pop()) >> witness.KPF_ZERO_PAGE & 1
    puppet.touch("write", first)
    walk = command.walk(puppet.pid, first)
    assert not witness.kpageflags(compare.frame(walk)) >> witness.KPF_ZERO_PAGE & 1
    assert compare.last_entry(walk)["dirty"]
    assert walk["effective"]["write"]


@pytest.mark.any_variant
def test_shared_memory_is_one_frame_in_two_processes(puppet: Puppet) -> None:
    address = puppet.map(2 * PAGE, kind="shared")
    puppet.store(address, b"shared")
    child = puppet.fork()
    assert child.load(address, 6) == b"shared"
    ours, theirs = (command.walk(pid, address) for pid in (puppet.pid, child.pid))
    assert compare.frame(ours) == compare.frame(theirs) == witness.page(child.pid, address).pfn
    for walk, pid in ((ours, puppet.pid), (theirs, child.pid)):
        assert compare.differences(walk, witness.page(pid, address), soft_dirty_mask()) == []
    assert [level["entry_pa"] for level in ours["levels"]][-1] != [
        level["entry_pa"] for level in theirs["levels"]][-1]


def test_copy_on_write_parts_the_frames(puppet: Puppet) -> None:
    address = written(puppet)
    child = puppet.fork()
    before = [command.walk(pid, address) for pid in (puppet.pid, child.pid)]
    assert compare.frame(before[0]) == compare.frame(before[1])
    assert not any(walk["effective"]["write"] for walk in before)
    child.touch("write", address)
    after = command.walk(child.pid, address)
    assert compare.frame(after) != compare.frame(before[0])
    assert after["effective"]["write"]


def test_protection_to_none_keeps_the_frame(puppet: Puppet) -> None:
    address = written(puppet)
    before = command.walk(puppet.pid, address)
    puppet.protect(address, PAGE, "none")
    after = command.walk(puppet.pid, address)
    assert compare.frame(before) == compare.frame(after)
    assert [compare.last_entry(walk)["hw_present"] for walk in (before, after)] == [True, False]
    assert after["effective"]["read"] is False
    puppet.protect(address, PAGE, "rw")
    assert compare.frame(command.walk(puppet.pid, address)) == compare.frame(before)


@pytest.mark.parametrize("prot", ["none", "r", "rw", "rx", "rwx"])
def test_effective_permission_is_what_the_cpu_enforces(puppet: Puppet, prot: str) -> None:
    address = puppet.map(PAGE, prot="rw")
    puppet.code(address)
    puppet.protect(address, PAGE, prot)
    if "w" in prot:
        # mprotect leaves the entry read-only until the next write; the code stays as it is
        puppet.touch("write", address + 64)
    walk = command.walk(puppet.pid, address)
    allowed = {}
    for how in ("read", "write", "exec"):
        try:
            puppet.touch(how, address + (64 if how == "write" else 0))
        except PuppetError as error:
            allowed[how] = "SIGSEGV" not in error.text
        else:
            allowed[how] = True
    assert {how: walk["effective"][how] for how in allowed} == allowed


@pytest.mark.skipif(witness.MACHINE != "x86_64", reason="PTI is x86's: one root for both halves")
def test_user_copy_of_the_pgd_decides_under_pti(puppet: Puppet) -> None:
    """The kernel's own copy forbids execution of all user memory, and does not count."""
    address = puppet.where("text")
    puppet.touch("exec", address)
    walk = command.walk(puppet.pid, address)
    kernel_copy = walk["levels"][0]["decoded"]
    assert kernel_copy["access"]["exec"] is not witness.pti()
    assert walk["effective"]["exec"] is True
    printed = rawfiles.walk(puppet.pid, address)
    nx = 1 << int(rawfiles.layout()["bit.nx"])
    assert bool(printed.entries[0].raw & nx) is witness.pti()
    if witness.pti():
        assert printed.user_pgd is not None
        assert not printed.user_pgd.raw & nx
        assert printed.user_pgd.pa == printed.entries[0].pa + PAGE


@pytest.mark.any_variant
def test_swap_entry_survives_a_round_trip(puppet: Puppet, swap: None) -> None:
    address = puppet.map(PAGE)
    puppet.store(address, b"swapped out and in")
    puppet.advise(address, PAGE, "pageout")
    page = witness.page(puppet.pid, address)
    assert page.swapped, "MADV_PAGEOUT did not swap the page out"
    entry = compare.last_entry(command.walk(puppet.pid, address))
    assert (entry["swap"]["type"], int(entry["swap"]["offset"], 16)) == (
        page.swap_type, page.swap_offset)
    assert entry["swap"]["kind"] == "swap"
    assert puppet.load(address, 18) == b"swapped out and in"
    assert command.walk(puppet.pid, address)["mapping"]["state"] == "leaf"


def need(fact: str, why: str) -> None:
    """Skip the test where the kernel lacks what the module's layout would state."""
    if not rawfiles.has(fact):
        pytest.skip(why)


@pytest.mark.any_variant
def test_write_protection_by_userfaultfd(puppet: Puppet) -> None:
    need("bit.uffd_wp", "this kernel has no write protection by userfaultfd on this machine")
    address = puppet.map(2 * PAGE)
    puppet.touch("write", address, 2)
    puppet.command(f"uffd {address:#x} {2 * PAGE} register")
    puppet.command(f"uffd {address:#x} {PAGE} wp")
    for place, protected in ((address, True), (address + PAGE, False)):
        walk = command.walk(puppet.pid, place)
        page = witness.page(puppet.pid, place)
        assert compare.differences(walk, page, soft_dirty_mask()) == []
        assert bool(compare.last_entry(walk)["uffd_wp"]) is protected
        if compare.PAGEMAP_HAS_UFFD_WP:
            assert page.uffd_wp is protected
        assert walk["effective"]["write"] is not protected


@pytest.mark.any_variant
def test_marker_of_a_protected_page_that_is_not_there(puppet: Puppet) -> None:
    """userfaultfd keeps the protection of a page of shared memory in a special swap entry."""
    need("bit.uffd_wp", "this kernel has no write protection by userfaultfd on this machine")
    need("swap.marker.uffd_wp", "this kernel keeps no markers in page tables (since 5.19)")
    address = puppet.map(PAGE, kind="shared")
    puppet.command(f"uffd {address:#x} {PAGE} register")
    puppet.command(f"uffd {address:#x} {PAGE} wp")
    status, walk = command.walk_status(puppet.pid, address, "--compare")
    assert (status, walk["compare"]["differences"]) == (0, [])
    entry = compare.last_entry(walk)
    assert (entry["state"], entry["swap"]["kind"]) == ("marker", "uffd_wp_marker")
    assert (entry["hw_present"], walk["mapping"]["pfn"]) == (False, None)
    assert witness.page(puppet.pid, address).uffd_wp


@pytest.mark.any_variant
def test_poisoned_page(puppet: Puppet) -> None:
    need("swap.kind.hwpoison", "this kernel is built without CONFIG_MEMORY_FAILURE")
    address = written(puppet)
    frame = compare.frame(command.walk(puppet.pid, address))
    puppet.advise(address, PAGE, "hwpoison")
    status, walk = command.walk_status(puppet.pid, address, "--compare")
    assert (status, walk["compare"]["differences"]) == (0, [])
    entry = compare.last_entry(walk)
    assert (entry["state"], compare.number(entry["pfn"])) == ("hwpoison", frame)
    assert walk["effective"]["read"] is False
    with pytest.raises(PuppetError, match="SIGBUS"):
        puppet.touch("read", address)


def test_processes_share_a_table_of_hugetlb_pages(puppet: Puppet) -> None:
    """A shared hugetlb mapping of a whole PUD has one PMD table for all (mm/hugetlb.c)."""
    above = witness.level_names()[-3]
    span = witness.span(above)
    fd = puppet.memfd(span, HUGE_LOG2)
    address = puppet.map(span, fd=fd, align=span, flags="noreserve")
    puppet.touch("write", address)
    child = puppet.fork()
    child.touch("read", address)
    walks = [command.walk(pid, address) for pid in (puppet.pid, child.pid)]
    places = [{level["level"]: level["entry_pa"] for level in walk["levels"]} for walk in walks]
    assert places[0]["pmd"] == places[1]["pmd"]
    assert places[0][above] != places[1][above]
    for walk, pid in zip(walks, (puppet.pid, child.pid), strict=True):
        page = witness.page(pid, address)
        assert compare.differences(walk, page, soft_dirty_mask(), hugetlb=True) == []
    # unmapping in one leaves the other its own way
    child.unmap(address, span)
    assert command.walk(child.pid, address)["mapping"]["state"] == "none"
    assert command.walk(puppet.pid, address)["mapping"] == walks[0]["mapping"]


@pytest.mark.any_variant
def test_soft_dirty_follows_clear_refs(puppet: Puppet) -> None:
    need("bit.soft_dirty", "this kernel has no soft-dirty bit on this machine")
    address = puppet.map(2 * PAGE)
    puppet.touch("write", address, 2)
    Path(f"/proc/{puppet.pid}/clear_refs").write_text("4")
    puppet.touch("write", address)
    for place, dirty in ((address, True), (address + PAGE, False)):
        walk = command.walk(puppet.pid, place)
        page = witness.page(puppet.pid, place)
        assert compare.differences(walk, page, soft_dirty_mask()) == []
        assert (page.soft_dirty, bool(compare.last_entry(walk)["soft_dirty"])) == (dirty, dirty)


def test_protection_key(puppet: Puppet) -> None:
    if rawfiles.layout().get("runtime.pkeys") != "1":
        assert "ospke" not in Path("/proc/cpuinfo").read_text().split()
        pytest.skip("kernel and CPU have no protection keys for memory")
    address = written(puppet)
    key = int(puppet.command(f"pkey {address:#x} {PAGE} rw")[0])
    assert key > 0
    assert compare.last_entry(command.walk(puppet.pid, address))["pkey"] == key


@pytest.mark.any_machine
def test_compare_counts_every_entry(puppet: Puppet, swap: None) -> None:
    kinds = (written, read_only_touched, text, swapped, just_unmapped)
    addresses = [make(puppet) for make in kinds]
    result = command.run("walk", puppet.pid, *map(hex, addresses), "--compare")
    assert result.status == 0, result.out + result.err
    assert f"{len(addresses)} of {len(addresses)} entries agree" in result.out


def test_pagemap_source_gives_the_same_leaves(puppet: Puppet, swap: None) -> None:
    for name in ("anonymous written", "text", "swapped", "just unmapped"):
        address = CASES[name].make(puppet)
        module = command.walk(puppet.pid, address)
        leaf = command.walk(puppet.pid, address, "--source", "pagemap")
        assert leaf["source"] == "pagemap"
        present = module["mapping"]["state"] == "leaf"
        if present:
            assert int(leaf["mapping"]["pfn"], 16) == compare.frame(module)
        else:
            assert leaf["mapping"]["pfn"] is None


# Bits of a present PTE that pagemap shows too, as facts of the layout.
LIES = {"present": ("bit.present", "bit.valid"), "uffd-wp": ("bit.uffd_wp",),
        "soft-dirty": ("bit.soft_dirty",), "frame": ("mask.pfn",)}


def lying_mask(what: str) -> int:
    """One bit of a PTE; skips where the kernel has none of this meaning."""
    if what == "uffd-wp" and not compare.PAGEMAP_HAS_UFFD_WP:
        pytest.skip("pagemap shows no write protection by userfaultfd on this kernel (since 5.14)")
    name = next((name for name in LIES[what] if rawfiles.has(name)), None)
    if name is None:
        pytest.skip(f"this kernel has no {what} bit on this machine")
    value = int(rawfiles.layout()[name], 0)
    return value & -value if name.startswith("mask.") else 1 << value


@pytest.mark.any_kernel
@pytest.mark.parametrize("what", LIES)
def test_a_source_that_lies_is_caught(
    puppet: Puppet, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """--compare finds one wrong bit of a leaf, says what it is about, and exits with 1."""
    mask = lying_mask(what)
    address = written(puppet)
    if rawfiles.has("bit.soft_dirty"):
        Path(f"/proc/{puppet.pid}/clear_refs").write_text("4")  # else the VMA marks every page
    assert command.ptscope("walk", puppet.pid, hex(address), "--compare").status == 0
    honest = ModuleSource.walk

    def lie(entry: RawEntry) -> RawEntry:
        return replace(entry, raw=entry.raw ^ mask)

    def walk(source: ModuleSource, pid: int, addresses: list[int]) -> list[RawWalk]:
        return [
            replace(raw, entries=(*raw.entries[:-1], lie(raw.entries[-1])))
            for raw in honest(source, pid, addresses)
        ]

    monkeypatch.setattr(ModuleSource, "walk", walk)
    caught = command.ptscope("walk", puppet.pid, hex(address), "--compare")
    assert caught.status == 1, caught.out
    assert f"{what}: " in caught.out
    assert "0 of 1 entries agree" in caught.out
    differing = command.walk_status(puppet.pid, address, "--compare")
    assert differing[0] == 1
    assert what in {each["what"] for each in differing[1]["compare"]["differences"]}
    # the tests' own comparison sees it as well
    page = witness.page(puppet.pid, address)
    assert compare.differences(differing[1], page, soft_dirty_mask()) != []


@pytest.mark.any_kernel
def test_a_chain_that_is_none_is_refused(puppet: Puppet, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry of another table is not shown as if it belonged to the walk."""
    address = written(puppet)
    honest = ModuleSource.walk

    def walk(source: ModuleSource, pid: int, addresses: list[int]) -> list[RawWalk]:
        walks = honest(source, pid, addresses)
        last = walks[0].entries[-1]
        moved = replace(last, entry_pa=last.entry_pa + PAGE)
        return [replace(walks[0], entries=(*walks[0].entries[:-1], moved))]

    monkeypatch.setattr(ModuleSource, "walk", walk)
    result = command.ptscope("walk", puppet.pid, hex(address))
    assert result.status == 5
    assert "no chain" in result.err
