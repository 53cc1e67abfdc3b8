# SPDX-License-Identifier: GPL-2.0-or-later
"""/dev/ptscope-map: every walk of a mapping gives the frames that the device says it has.

The frames are the module's own: what is expected comes from no page table.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import re
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import command
import pytest
import rawfiles
import witness
from command import Result
from known import DEVICE, HAS_HUGE, KIND_SHIFT, KINDS, MAX_BYTES
from ptscope.decode.entry import Entry, decode
from ptscope.raw.records import RawTable, RawVma
from ptscope.source.module import ModuleSource
from puppet import Child, Commands, Puppet, PuppetError, PuppetSilent

PAGE = witness.PAGE
HUGE = witness.HUGE
BLOCK = witness.ENTRIES
"""Pages of a huge one."""
FIRST, COUNT, OWNED = 3, 12, 20
"""Mapped are ``COUNT`` of ``OWNED`` pages, from number ``FIRST`` on."""
KB = 1024
MIB = 1 << 20

# Entries like these are looked at in every variant by test_walk.py.
pytestmark = pytest.mark.any_variant

Eventually = Callable[[Callable[[], bool], str], None]


@dataclass(frozen=True)
class Page:
    """A page that an entry maps."""

    physical: int
    level: str
    entry: Entry


def pages(pid: int, start: int, length: int) -> dict[int, Page]:
    """What the module's binary file says of a range, by address; holes are left out."""
    source = ModuleSource.open()
    levels = {level.number: level for level in source.layout.levels}
    found = {}
    for batch in source.dump(pid, [(start, start + length - 1)]):
        for table in batch.records:
            if not isinstance(table, RawTable) or table.user_pgd:
                continue
            level = levels[table.level]
            for position, raw in enumerate(table.raws):
                entry = decode(source.layout, level.name, raw)
                if entry.state not in ("leaf", "protnone"):
                    continue
                assert entry.pa is not None
                base = table.entry(position, level.span).address
                for offset in range(0, level.span, PAGE):
                    if start <= base + offset < start + length:
                        found[base + offset] = Page(entry.pa + offset, level.name, entry)
    return found


def physical(pid: int, start: int, length: int) -> dict[int, int]:
    """The same, addresses alone."""
    return {address: page.physical for address, page in pages(pid, start, length).items()}


def expected(address: int, frames: Sequence[int]) -> dict[int, int]:
    """Frames in a row from an address on."""
    return {address + i * PAGE: frame for i, frame in enumerate(frames)}


def letters(read: object, write: object, execute: object) -> str:
    """A permission as the puppet takes it."""
    allowed = ((read, "r"), (write, "w"), (execute, "x"))
    return "".join(letter for granted, letter in allowed if granted) or "none"


def map_pages() -> int:
    """Pages that the device has given out."""
    return rawfiles.stats()["map_pages"]


@dataclass
class Mapped:
    """A mapping of the device in a puppet."""

    fd: int
    address: int
    frames: list[int]
    """Of the pages that are mapped."""


def mapped(puppet: Commands, name: str, prot: str = "rw", touch: bool = True) -> Mapped:
    """``COUNT`` pages, all of them there unless not to be touched."""
    fd = puppet.known(OWNED)
    frames = puppet.frames(fd, FIRST, COUNT)
    address = puppet.map(COUNT * PAGE, kind=name, fd=fd, prot=prot, offset=FIRST * PAGE)
    if touch and not KINDS[name].at_once:
        puppet.touch("read", address, COUNT)
    return Mapped(fd, address, frames)


def test_the_device_reports_different_frames_of_ram(puppet: Puppet) -> None:
    fd = puppet.known(OWNED)
    frames = puppet.frames(fd, 0, OWNED + 5)
    assert len(set(frames)) == OWNED
    ram = [
        tuple(int(word, 16) for word in line.split(" : ")[0].split("-"))
        for line in Path("/proc/iomem").read_text().splitlines() if line.endswith(": System RAM")
    ]
    for frame in frames:
        assert frame % PAGE == 0
        assert any(first <= frame <= last for first, last in ram), hex(frame)
    assert puppet.frames(fd, OWNED - 1, 10) == frames[-1:]
    assert puppet.frames(fd, OWNED, 1) == []
    assert set(puppet.frames(puppet.known(OWNED), 0, OWNED)).isdisjoint(frames)


# Which bits say what is the architecture's.
@pytest.mark.parametrize("prot", [
    *("none", "rw"),
    *(pytest.param(prot, marks=pytest.mark.any_kernel) for prot in ("r", "rx", "rwx")),
])
@pytest.mark.parametrize("name", KINDS)
def test_every_walk_gives_the_frames_reported(name: str, prot: str, puppet: Puppet) -> None:
    kind, permitted = KINDS[name], prot != "none"
    area = mapped(puppet, name, prot, touch=False)
    length = COUNT * PAGE
    if not kind.at_once:
        assert pages(puppet.pid, area.address, length) == {}
        if permitted:
            puppet.touch("read", area.address, COUNT)
    there = kind.at_once or permitted
    frames = expected(area.address, area.frames) if there else {}

    found = pages(puppet.pid, area.address, length)
    assert {address: page.physical for address, page in found.items()} == frames
    for page in found.values():
        assert (page.level, page.entry.special) == ("pte", kind.special)
        assert page.entry.page_size == page.entry.mapping_size == PAGE
        access = page.entry.access
        assert (page.entry.state == "leaf") is permitted
        if permitted:
            assert access is not None
            assert access.user
            assert letters(access.read, access.write, access.exec) == prot

    for address in (area.address, area.address + (COUNT - 1) * PAGE):
        if there:
            text = rawfiles.walk(puppet.pid, address).entries[-1]
            assert (text.level, text.raw) == ("pte", found[address].entry.raw)
        walk = command.walk(puppet.pid, address + 8)
        mapping, effective = walk["mapping"], walk["effective"]
        assert mapping["state"] == (found[address].entry.state if there else "none")
        assert mapping["pa"] == (hex(frames[address] + 8) if there else None)
        assert letters(*(effective[key] for key in ("read", "write", "exec"))) == prot
        assert int(walk["vma"]["vm_flags"], 16) & int(rawfiles.layout()[f"vm.{kind.flag}"], 16)
        for flag in ("dontexpand", "dontdump", "shared"):
            assert int(walk["vma"]["vm_flags"], 16) & int(rawfiles.layout()[f"vm.{flag}"], 16)

    answer = command.ptscope("map", puppet.pid, "--json").json
    (vma,) = [vma for vma in answer["vmas"] if int(vma["start"], 16) == area.address]
    assert vma["name"] == str(DEVICE)
    assert vma["mapped"] == len(frames) * PAGE
    assert vma["special"] == (len(frames) * PAGE if kind.special else 0)

    # fs/proc/task_mmu.c leaves VM_PFNMAP out
    shown = witness.pagemap(puppet.pid, area.address, COUNT)
    assert [page.present for page in shown] == [not kind.special] * COUNT
    if not kind.special:
        assert [page.pfn * PAGE for page in shown] == area.frames
        assert witness.smaps(puppet.pid, area.address)["Rss"] == length // KB


def test_the_same_memory_by_every_kind(puppet: Puppet) -> None:
    """Zeros at first; what is written through one mapping is read through the others."""
    fd = puppet.known(OWNED)
    areas = [puppet.map(OWNED * PAGE, kind=name, fd=fd) for name in KINDS]
    for area in areas:
        for page in range(OWNED):
            assert puppet.load(area + page * PAGE, 4096) == bytes(4096)
    for number, area in enumerate(areas):
        puppet.store(area + number * PAGE + 7, b"known")
    for area in areas:
        for number in range(len(areas)):
            assert puppet.load(area + number * PAGE + 7, 5) == b"known"
    child = puppet.fork()
    child.store(areas[0], b"child")
    assert puppet.load(areas[-1], 5) == b"child"


@pytest.mark.parametrize("name", KINDS)
def test_a_child_has_the_same_frames(name: str, puppet: Puppet) -> None:
    area = mapped(puppet, name, touch=False)
    frames = expected(area.address, area.frames)
    if not KINDS[name].at_once:
        puppet.touch("write", area.address, COUNT // 2)
    child = puppet.fork()
    half = dict(list(frames.items())[: COUNT // 2])
    got = physical(child.pid, area.address, COUNT * PAGE)
    assert got == (frames if KINDS[name].at_once else half)
    child.touch("write", area.address, COUNT)
    assert physical(child.pid, area.address, COUNT * PAGE) == frames
    puppet.touch("write", area.address, COUNT)
    assert physical(puppet.pid, area.address, COUNT * PAGE) == frames
    puppet.unmap(area.address, COUNT * PAGE)
    assert physical(child.pid, area.address, COUNT * PAGE) == frames


@pytest.mark.parametrize("name", KINDS)
def test_what_is_left_of_a_mapping_keeps_its_frames(name: str, puppet: Puppet) -> None:
    """mprotect, munmap and mremap of parts: pgoff says which pages a part has."""
    area = mapped(puppet, name)
    want = expected(area.address, area.frames)
    puppet.protect(area.address + 2 * PAGE, 2 * PAGE, "r")
    puppet.protect(area.address + 4 * PAGE, PAGE, "none")
    assert physical(puppet.pid, area.address, COUNT * PAGE) == want
    access = pages(puppet.pid, area.address + 2 * PAGE, PAGE)[area.address + 2 * PAGE].entry.access
    assert access is not None
    assert not access.write
    puppet.protect(area.address + 2 * PAGE, 3 * PAGE, "rw")
    puppet.unmap(area.address + 5 * PAGE, PAGE)
    del want[area.address + 5 * PAGE]
    assert physical(puppet.pid, area.address, COUNT * PAGE) == want

    with pytest.raises(PuppetError) as error:
        puppet.remap(area.address + 8 * PAGE, 4 * PAGE, 5 * PAGE)
    assert error.value.errno == errno.EFAULT
    place = puppet.map(8 * PAGE, prot="none")
    moved = puppet.remap(area.address + 8 * PAGE, 4 * PAGE, 3 * PAGE, f"maymove to={place:#x}")
    puppet.touch("write", moved, 3)
    assert physical(puppet.pid, moved, 3 * PAGE) == expected(moved, area.frames[8:11])
    for page in range(8, COUNT):
        del want[area.address + page * PAGE]
    puppet.touch("write", area.address, 5)
    assert physical(puppet.pid, area.address, COUNT * PAGE) == want


def test_huge_entries_where_frames_lie_for_them(puppet: Puppet) -> None:
    fd = puppet.known(2 * BLOCK)
    frames = puppet.frames(fd, 0, 2 * BLOCK)
    if not HAS_HUGE:
        with pytest.raises(PuppetError) as error:
            puppet.map(HUGE, kind="huge", fd=fd)
        assert error.value.errno == errno.EOPNOTSUPP
        return
    in_a_piece = [
        block[0] % HUGE == 0 and block == list(range(block[0], block[0] + HUGE, PAGE))
        for block in (frames[:BLOCK], frames[BLOCK:])
    ]
    # 32 MiB, of 16K pages, may not be had in one piece in a small guest
    assert any(in_a_piece) or PAGE > 4096

    address = puppet.map(2 * HUGE, kind="huge", fd=fd, align=HUGE)
    assert pages(puppet.pid, address, 2 * HUGE) == {}
    for how, place, whole in zip(("write", "read"), (address, address + HUGE), in_a_piece,
                                 strict=True):
        puppet.touch(how, place + 5 * PAGE)
        found = pages(puppet.pid, place, HUGE)
        if not whole:
            assert list(found) == [place + 5 * PAGE]
            puppet.touch("read", place, BLOCK)
            found = pages(puppet.pid, place, HUGE)
        first = (place - address) // PAGE
        assert {a: page.physical for a, page in found.items()} == (
            expected(place, frames[first : first + BLOCK]))
        for page in found.values():
            assert page.level == ("pmd" if whole else "pte")
            assert page.entry.special
            assert page.entry.access is not None
            assert page.entry.access.write

    # not where address and frames are aligned differently
    apart = puppet.map(HUGE + PAGE, kind="huge", fd=fd, align=HUGE, offset=PAGE)
    puppet.touch("read", apart, BLOCK)
    found = pages(puppet.pid, apart, HUGE)
    assert {page.level for page in found.values()} == {"pte"}
    assert {a: page.physical for a, page in found.items()} == expected(apart, frames[1 : BLOCK + 1])

    # a part taken out: what is left is mapped anew, the same frames page by page
    puppet.unmap(address + 7 * PAGE, PAGE)
    puppet.touch("write", address, 7)
    found = pages(puppet.pid, address, 7 * PAGE)
    assert {page.level for page in found.values()} == {"pte"}
    assert {a: page.physical for a, page in found.items()} == expected(address, frames[:7])
    child = puppet.fork()
    child.touch("read", address + HUGE)
    assert physical(child.pid, address + HUGE, PAGE) == {address + HUGE: frames[BLOCK]}


def offset_of(kind: int, page: int = 0) -> int:
    return (kind << KIND_SHIFT) + page * PAGE


@dataclass(frozen=True)
class Refused:
    """A call that fails, on a descriptor that has ``OWNED`` pages."""

    error: int
    call: Callable[[Puppet, int], object]


def call_map(
    length: int, offset: int, private: bool = False
) -> Callable[[Puppet, int], object]:
    return lambda puppet, fd: puppet.map(length * PAGE, fd=fd, offset=offset, private=private)


REFUSED = {
    "page after the last": Refused(errno.ENXIO, call_map(1, offset_of(0, OWNED))),
    "longer than the pages": Refused(errno.ENXIO, call_map(OWNED + 1, 0)),
    "end beyond the pages": Refused(errno.ENXIO, call_map(2, offset_of(1, OWNED - 1))),
    "far beyond": Refused(errno.ENXIO, call_map(1, offset_of(1) - PAGE)),
    "no such kind": Refused(errno.EINVAL, call_map(1, offset_of(4))),
    "largest kind": Refused(errno.EINVAL, call_map(1, offset_of(0x7FFFFF))),
    "private": Refused(errno.EINVAL, call_map(1, 0, private=True)),
    "offset within a page": Refused(errno.EINVAL, call_map(1, 8)),
    "nothing": Refused(errno.EINVAL, call_map(0, 0)),
}


@pytest.mark.any_kernel
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_mapped(name: str, puppet: Puppet) -> None:
    fd = puppet.known(OWNED)
    with pytest.raises(PuppetError) as error:
        REFUSED[name].call(puppet, fd)
    assert error.value.errno == REFUSED[name].error
    assert not [vma for vma in witness.vmas(puppet.pid) if vma.name == str(DEVICE)]
    puppet.map(OWNED * PAGE, fd=fd)


@pytest.mark.any_kernel
@pytest.mark.parametrize(("text", "error"), [
    (b"", errno.EINVAL),
    (b"many", errno.EINVAL),
    (b"-1", errno.EINVAL),
    (b"1 2", errno.EINVAL),
    (b"0", errno.ERANGE),
    (b"%d" % (MAX_BYTES // PAGE + 1), errno.ERANGE),
    (b"%d" % (1 << 64), errno.ERANGE),
    (b"9" * 100, errno.ERANGE),
    (b"\0" * 5000, errno.EINVAL),
])
def test_numbers_of_pages_that_are_refused(text: bytes, error: int) -> None:
    before = map_pages()
    fd, other = (os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC) for _ in range(2))
    try:
        with pytest.raises(OSError) as raised:
            os.write(fd, text)
        assert raised.value.errno == error
        with pytest.raises(OSError) as raised:
            os.read(fd, 8)
        assert raised.value.errno == errno.ENODATA
        assert map_pages() == before
        assert os.write(fd, b"0x2\n") == 4
        assert map_pages() == before + 2
        with pytest.raises(OSError) as raised:
            os.write(fd, b"1")
        assert raised.value.errno == errno.EBUSY
        with pytest.raises(OSError) as raised:
            os.read(fd, 12)
        assert raised.value.errno == errno.EINVAL
        with pytest.raises(OSError) as raised:
            os.pread(fd, 8, 4)
        assert raised.value.errno == errno.EINVAL
        first, second = struct.unpack("<QQ", os.read(fd, 4096))
        assert first != second
        assert os.read(fd, 8) == b""
        with pytest.raises(OSError) as raised:
            os.write(other, b"%d" % (MAX_BYTES // PAGE - 1))
        assert raised.value.errno == errno.ENOSPC
    finally:
        os.close(fd)
        os.close(other)
    assert map_pages() == before


@pytest.mark.any_kernel
def test_without_pages_nothing_is_mapped(puppet: Puppet) -> None:
    with pytest.raises(PuppetError) as error:
        puppet.map(PAGE, fd=puppet.open(str(DEVICE), "w"))
    assert error.value.errno == errno.ENODATA


@pytest.mark.any_kernel
def test_a_descriptor_handed_on_is_no_privilege() -> None:
    import mmap

    fd = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    os.write(fd, b"2")

    def tried() -> Result:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        calls: dict[str, Callable[[], object]] = {
            "open": lambda: os.open(DEVICE, os.O_RDWR),
            "write": lambda: os.write(fd, b"1"),
            "read": lambda: os.read(fd, 8),
            "mmap": lambda: mmap.mmap(fd, PAGE),
        }
        found = []
        for name, call in calls.items():
            try:
                call()
                found.append(f"{name} 0")
            except OSError as error:
                found.append(f"{name} {errno.errorcode[error.errno or 0]}")
        return Result(0, ", ".join(found), "")

    result = command.forked(tried)
    os.close(fd)
    assert result.out == "open EACCES, write EPERM, read EPERM, mmap EPERM", result.err


@pytest.mark.parametrize("name", KINDS)
def test_freed_when_the_last_user_goes(name: str, puppet: Puppet, eventually: Eventually) -> None:
    """Descriptor closed, owner unmapped, child killed: the pages stay until all of it is done."""
    size = 48 * MIB
    before, free = map_pages(), witness.free_kb()
    fd = puppet.known(size // PAGE)
    frames = puppet.frames(fd, 0, 2)
    address = puppet.map(size, kind=name, fd=fd)
    puppet.touch("write", address, size // PAGE)
    child = puppet.fork()
    child.command(f"close {fd}")
    puppet.command(f"close {fd}")
    puppet.unmap(address, size)
    assert map_pages() == before + size // PAGE
    assert physical(child.pid, address, 2 * PAGE) == expected(address, frames)
    assert witness.free_kb() < free - size // 2 // KB
    os.kill(child.pid, signal.SIGKILL)
    assert child.reap() == ("killed", signal.SIGKILL)
    eventually(lambda: map_pages() == before, "the device's pages are freed")
    eventually(lambda: witness.free_kb() > free - size // 2 // KB,
               "their memory is free")


@pytest.mark.any_kernel
def test_killed_in_the_middle(eventually: Eventually) -> None:
    """While pages are allocated, mapped and touched."""
    before, free = map_pages(), witness.free_kb()
    size = min(96 * MIB, free * KB // 3)
    lines = [f"known {size // PAGE}", *(
        f"map length={size:#x} fd={{fd}} kind={name} {how}"
        for name in KINDS for how in ("", "populate"))]
    for line in lines:
        for delay in (0, 0.002, 0.02):
            with Puppet() as puppet:
                if "map" in line:
                    line = line.format(fd=puppet.known(size // PAGE))
                with contextlib.suppress(PuppetSilent):
                    puppet.command(line, timeout=delay)
                os.kill(puppet.pid, signal.SIGKILL)
                puppet.wait()
            eventually(lambda: map_pages() == before, f"freed after a kill in {line}")
    eventually(lambda: witness.free_kb() > free - size // 2 // KB,
               "their memory is free")


@pytest.mark.any_kernel
@pytest.mark.parametrize("held", ["descriptor", "mapping"])
def test_module_stays_while_the_device_is_used(held: str, puppet: Puppet) -> None:
    fd = puppet.known(4)
    address = puppet.map(4 * PAGE, kind="remap", fd=fd)
    if held == "mapping":
        puppet.command(f"close {fd}")
    else:
        puppet.unmap(address, 4 * PAGE)
    refused = subprocess.run(["rmmod", "ptscope"], capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert re.search("in use|busy|unavailable", refused.stderr), refused.stderr
    assert Path("/sys/module/ptscope").exists()


# ---- any arguments ----

ADVICE = (
    "normal", "random", "sequential", "willneed", "dontneed", "dontneed_locked", "free", "remove",
    "dontfork", "dofork", "wipeonfork", "keeponfork", "mergeable", "unmergeable", "hugepage",
    "nohugepage", "collapse", "dontdump", "dodump", "cold", "pageout", "populate_read",
    "populate_write", "guard_install", "guard_remove",
)
PROTECTIONS = ("none", "r", "rw", "rx", "rwx", "w", "x")
WILD = (0, 1, PAGE - 1, PAGE, HUGE, MAX_BYTES, 1 << 40, 5 << 40, 1 << 47, (1 << 63) - PAGE, 1 << 63,
        (1 << 64) - PAGE, (1 << 64) - 1)
ARENA = 256
"""Pages of the place where everything is mapped, moved and unmapped."""
LONGEST = 16 * PAGE
STEPS = 350
CHECK_EVERY = 25


@dataclass
class Fuzz:
    """Random calls about the device, sensible ones and wild ones, in a puppet and its children."""

    puppet: Puppet
    random: random.Random
    arena: int
    fds: list[int] = field(default_factory=list)
    owners: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Which file and page a frame belongs to, of all that were ever reported and are not freed."""
    children: list[Child] = field(default_factory=list)
    done: int = 0
    refused: int = 0

    def someone(self) -> Commands:
        return self.random.choice([self.puppet, *self.children])

    def number(self, sensible: int) -> int:
        return self.random.choice(WILD) if self.random.random() < 0.1 else sensible

    def place(self) -> int:
        return self.arena + self.random.randrange(ARENA) * PAGE

    def length(self) -> int:
        return self.number(self.random.randint(1, LONGEST // PAGE) * PAGE)

    def step(self) -> None:
        what = self.random.choices(*zip(*self.table().items(), strict=True))[0]
        try:
            what()
            self.done += 1
        except PuppetError:
            self.refused += 1

    def table(self) -> dict[Callable[[], object], int]:
        return {self.open: 3, self.close: 2, self.map: 12, self.unmap: 4, self.protect: 6,
                self.remap: 6, self.advise: 6, self.touch: 14, self.lock: 2, self.fork: 2,
                self.kill: 2}

    def open(self) -> None:
        if len(self.fds) > 5:
            self.close()
        count = self.number(self.random.choice((1, 7, 40)))
        if count > 1000:
            count = max(count, MAX_BYTES // PAGE + 1)  # not all memory
        fd = self.puppet.known(count)
        self.fds.append(fd)
        file = self.random.getrandbits(64)
        for page, frame in enumerate(self.puppet.frames(fd, 0, count)):
            self.owners[frame] = (file, page)

    def close(self) -> None:
        if self.fds:
            fd = self.fds.pop(self.random.randrange(len(self.fds)))
            self.puppet.command(f"close {fd}")

    def map(self) -> None:
        if not self.fds:
            self.open()
        length = self.length()
        fixed = length <= LONGEST  # before 6.12 what is there goes, even if mmap() fails then
        kind = self.random.choice((*KINDS, *KINDS, "huge", "anon"))
        flags = self.random.choice(("", "", "populate", "locked", "noreserve", "growsdown"))
        self.someone().map(
            length, kind=kind, fd=self.random.choice(self.fds), fixed=fixed,
            at=self.place() if fixed else None,
            prot=self.random.choice(PROTECTIONS), private=self.random.random() < 0.05,
            offset=self.number(self.random.randrange(8) * PAGE), flags=flags)

    def unmap(self) -> None:
        self.someone().unmap(self.place(), min(self.length(), LONGEST))

    def protect(self) -> None:
        self.someone().protect(
            self.place(), min(self.length(), LONGEST), self.random.choice(PROTECTIONS))

    def remap(self) -> None:
        flags = self.random.choice((
            "", "maymove", f"maymove to={self.place():#x}", "maymove dontunmap",
            f"maymove dontunmap to={self.place():#x}"))
        new = min(self.length(), LONGEST) if "to=" in flags else self.length()
        self.someone().remap(
            self.place(), self.random.choice((0, 1, 1, 1)) * min(self.length(), LONGEST), new,
            flags)

    def advise(self) -> None:
        self.someone().advise(
            self.place(), min(self.length(), LONGEST), self.random.choice(ADVICE))

    def touch(self) -> None:
        self.someone().touch(
            self.random.choice(("read", "write")), self.place(), self.random.randint(1, 8))

    def lock(self) -> None:
        self.someone().command(
            f"{self.random.choice(('mlock', 'munlock'))} {self.place():#x} {4 * PAGE}")

    def fork(self) -> None:
        if len(self.children) < 3:
            self.children.append(self.puppet.fork())

    def kill(self) -> None:
        if self.children:
            child = self.children.pop(self.random.randrange(len(self.children)))
            os.kill(child.pid, signal.SIGKILL)
            child.reap()

    def check(self) -> int:
        """Every page of every mapping of the device is the one that pgoff names; how many."""
        source = ModuleSource.open()
        seen = 0
        for process in (self.puppet, *self.children):
            for vma in witness.vmas(process.pid):
                if vma.name != str(DEVICE):
                    continue
                length = vma.end - vma.start
                (record,) = (
                    record for batch in source.dump(process.pid, [(vma.start, vma.start)])
                    for record in batch.records if isinstance(record, RawVma) and not record.again)
                first = record.pgoff & (1 << KIND_SHIFT) // PAGE - 1
                kind = record.pgoff * PAGE >> KIND_SHIFT
                files = set()
                for address, page in pages(process.pid, vma.start, length).items():
                    file, number = self.owners[page.physical]
                    files.add(file)
                    assert number == first + (address - vma.start) // PAGE
                    assert page.entry.special is (kind != KINDS["insert"].number)
                    seen += 1
                assert len(files) <= 1
        return seen


@pytest.mark.any_kernel
@pytest.mark.parametrize("seed", [
    0, *(pytest.param(seed, marks=pytest.mark.any_machine) for seed in (1, 2, 3))
])
def test_any_arguments_do_no_harm(seed: int, eventually: Eventually) -> None:
    before, started = map_pages(), time.monotonic()
    with Puppet() as puppet:
        arena = puppet.map(ARENA * PAGE + 2 * LONGEST, prot="none", flags="noreserve")
        fuzz = Fuzz(puppet, random.Random(seed), arena)
        seen = 0
        for step in range(STEPS):
            fuzz.step()
            if step % CHECK_EVERY == CHECK_EVERY - 1:
                seen += fuzz.check()
    print(f"{fuzz.done} calls done, {fuzz.refused} refused, {seen} pages compared, "
          f"{time.monotonic() - started:.1f} s")
    assert min(fuzz.done, fuzz.refused) > STEPS // 10
    assert seen > 50
    eventually(lambda: map_pages() == before, "the device's pages are freed")
