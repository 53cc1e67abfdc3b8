# SPDX-License-Identifier: GPL-2.0-or-later
"""A small process that does not exist: page tables, files of /proc, and a module to read it by.

All of it tells the truth until a test makes some of it lie. What the files say is tallied when
pages are mapped, by the rules of the kernel, and not by the code that is tested.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import streams as s
from encoders import encoder
from ptscope.check.counts import Counting
from ptscope.check.invariants import NAMES
from ptscope.check.process import Checker, HugeZeroPage
from ptscope.check.rules import Machine
from ptscope.check.witness import parse_iomem
from ptscope.decode.layout import Layout, Level
from ptscope.host import Host
from ptscope.source.module import ModuleSource

PAGE = 4096
HUGE = 2 << 20
PRESENT, SWAPPED = 1 << 63, 1 << 62
RAM_LAST = 0x3FFF_FFFF
DEVICE = 0xFE00_0000
IOMEM = f"""\
00001000-0009fbff : System RAM
00100000-{RAM_LAST:08x} : System RAM
  01000000-01ffffff : Kernel code
{DEVICE:08x}-{DEVICE + 0xFFFFFF:08x} : 0000:00:02.0
"""
ZERO_PFN = 0x2000
FIGURES = (
    "Rss", "AnonHugePages", "ShmemPmdMapped", "FilePmdMapped", "Shared_Hugetlb", "Private_Hugetlb",
    "Swap",
)  # fmt: skip
# The pagemap file has an entry for every page below this.
ADDRESSES = 1 << 36


@dataclass
class Vma:
    """A VMA, and what smaps says of it, in bytes."""

    start: int
    end: int
    flags: int
    inode: int = 0
    hugetlb: bool = False
    figures: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FIGURES, 0))


@dataclass
class World:
    """A process, or with `kernel` the kernel half."""

    layout: Layout
    directory: Path
    kernel: bool = False
    vmas: list[Vma] = field(default_factory=list)
    tables: dict[int, dict[int, int]] = field(default_factory=dict)
    user_root: dict[int, int] = field(default_factory=dict)
    status: dict[str, int] = field(default_factory=dict)
    statm: list[int] = field(default_factory=lambda: [0, 0])
    pid: int = 42
    comm: str = "nobody"
    shown_elsewhere: dict[int, int] = field(default_factory=dict)
    """Tables that the module says are elsewhere: from where they are to where it says."""
    before_dump: list[Callable[[], None]] = field(default_factory=list)
    """Done before each request is answered: a process that changes."""
    before_walk: list[Callable[[], None]] = field(default_factory=list)
    """Done before a request of single addresses."""
    next_table: int = 0x100_0000
    next_frame: int = 0x300_0000

    def __post_init__(self) -> None:
        self.encoder = encoder(self.layout)
        self.root = self.new_table()
        with (self.directory / "pagemap").open("wb") as file:
            file.truncate(ADDRESSES // PAGE * 8)
        self.status.update(VmSize=0, VmRSS=0, VmSwap=0, VmPTE=0, HugetlbPages=0)
        self.write()

    @property
    def proc(self) -> Path:
        """Stands for /proc/PID."""
        return self.directory

    def check_unchanged(self) -> None:
        """It never exits."""

    # Making it

    def flag(self, *names: str) -> int:
        """Bits of vm_flags."""
        return sum(self.layout.facts[f"vm.{name}"] for name in names)

    def new_table(self) -> int:
        """An empty table somewhere in RAM."""
        self.next_table += PAGE
        self.tables[self.next_table] = {}
        return self.next_table

    def frame(self, size: int = PAGE) -> int:
        """The physical address of a page of RAM that nothing else maps."""
        self.next_frame = -(-self.next_frame // size) * size + size
        return self.next_frame

    def vma(self, start: int, end: int, *flags: str, inode: int = 0, hugetlb: bool = False) -> Vma:
        """Add a VMA; in order of address."""
        made = Vma(start, end, self.flag(*flags), inode, hugetlb)
        self.vmas.append(made)
        self.status["VmSize"] += end - start
        self.statm[0] += (end - start) // PAGE
        return made

    def entry(self, address: int, raw: int, level: str = "pte") -> None:
        """Put an entry there, with the tables above it."""
        table = self.table_of(address, level)
        self.tables[table][self.layout.index(level, address)] = raw

    def table_of(self, address: int, level: str) -> int:
        """The table of a level on the way to an address, made when there is none."""
        table = self.root
        for above, below in zip(self.layout.levels, self.layout.levels[1:], strict=False):
            if above.name == level:
                break
            index = self.layout.index(above, address)
            here = self.tables[table]
            if index not in here:
                fresh = self.new_table()
                here[index] = self.encoder.table(fresh)
                if table == self.root:
                    self.user_root[index] = here[index]
                    if self.layout.runtime.get("pti"):
                        here[index] |= 1 << 63
                if below.name in ("pte", "pmd", "pud"):
                    self.status["VmPTE"] += PAGE
            table = self.points_to(here[index])
        return table

    def points_to(self, raw: int) -> int:
        """The table that an entry leads to; 0 for a page."""
        loose = 1 << 63 if self.layout.arch == "x86_64" else 0  # PTI's no-execute
        return next((pa for pa in self.tables if (raw ^ self.encoder.table(pa)) & ~loose == 0), 0)

    def resident(self, vma: Vma, size: int) -> None:
        """So much more is resident in a VMA."""
        vma.figures["Rss"] += size
        self.status["VmRSS"] += size
        self.statm[1] += size // PAGE

    def page(
        self, vma: Vma, address: int, *bits: str, pa: int | None = None, counted: bool = True
    ) -> int:
        """Map a page of 4 KiB; the raw entry."""
        place = self.frame() if pa is None else pa
        raw = self.encoder.leaf("pte", place, self.encoder.bits("accessed", *bits))
        self.entry(address, raw)
        self.show(address, PRESENT | place // PAGE)
        if counted:
            self.resident(vma, PAGE)
        return raw

    def show(self, address: int, word: int) -> None:
        """What pagemap says of a page."""
        with (self.directory / "pagemap").open("r+b") as file:
            file.seek(address // PAGE * 8)
            file.write(struct.pack("=Q", word))

    def write(self) -> None:
        """Write the files."""
        lines = []
        for vma in self.vmas:
            letters = "".join(
                letter if vma.flags & self.flag(name) else "-"
                for letter, name in (("r", "read"), ("w", "write"), ("x", "exec"))
            )
            lines.append(f"{vma.start:08x}-{vma.end:08x} {letters}p 00000000 00:00 {vma.inode}")
            lines += [f"{name}: {size >> 10:8} kB" for name, size in vma.figures.items()]
            words = "ht " * vma.hugetlb + "pf " * bool(vma.flags & self.flag("pfnmap"))
            lines.append(f"VmFlags: {words}")
        (self.directory / "smaps").write_text("".join(f"{line}\n" for line in lines))
        text = "".join(f"{name}:\t{size >> 10:8} kB\n" for name, size in self.status.items())
        (self.directory / "status").write_text(f"Name:\t{self.comm}\n{text}Threads:\t1\n")
        (self.directory / "statm").write_text(" ".join(str(pages) for pages in self.statm) + "\n")

    # Reading it

    def checker(self, *names: str) -> Checker:
        """A checker that reads this world."""
        source = ModuleSource(
            Host(Path("/")), Path("/nowhere"), self.layout, opener=lambda path: Dump(self)
        )
        return Checker(
            source,
            frozenset(names or NAMES),
            Machine(self.layout, ZERO_PFN),
            parse_iomem(IOMEM),
            Counting(self.layout),
            huge_zero=HugeZeroPage(self.directory),
            sleep=lambda seconds: None,
        )

    def stream(self, ranges: Sequence[tuple[int, int]]) -> bytes:
        """One batch: all that the module has of these ranges."""
        out = b""
        seen = 0
        for first, last in ranges:
            if first == last:
                out += self._single(first)
                continue
            for address, record in self._walk(self.layout.levels, self.root, first, last, 0):
                while seen < len(self.vmas) and self.vmas[seen].start <= address:
                    if self.vmas[seen].end > first:
                        out += self._vma(self.vmas[seen])
                    seen += 1
                out += record
            while seen < len(self.vmas) and self.vmas[seen].start <= last:
                if self.vmas[seen].end > first:
                    out += self._vma(self.vmas[seen])
                seen += 1
            seen = 0
        lock = s.NONE if self.kernel else s.READ
        return s.batch(lock=lock) + out + s.end()

    def _vma(self, vma: Vma) -> bytes:
        body = struct.pack("=QQQQQQII", vma.start, vma.end, vma.flags, 0x25, 0, vma.inode, 0, 0)
        return s.record(s.VMA, s.HUGETLB if vma.hugetlb else 0, body)

    def _part(self, level: Level, table: int, index: int, raws: list[int], address: int) -> bytes:
        shown = self.shown_elsewhere.get(table, table)
        out = b""
        if level == self.layout.levels[0] and self.layout.runtime.get("pti") and not self.kernel:
            user = [self.user_root.get(index + i, 0) for i in range(len(raws))]
            out = s.table(level.number, index, user, 0x9000, address, s.USER_PGD)
        return out + s.table(level.number, index, raws, shown, address)

    def _walk(
        self, levels: Sequence[Level], table: int, first: int, last: int, base: int
    ) -> Iterator[tuple[int, bytes]]:
        level, *below = levels
        if not below:
            yield from self._ptes(level, table, first, last, base)
            return
        for index, raw in sorted(self.tables[table].items()):
            address = base + index * level.span
            if self.kernel and level == levels[0] and level == self.layout.levels[0]:
                address |= self.layout.kernel_first
            if address + level.span - 1 < first or address > last or not raw:
                continue
            yield max(address, first), self._part(level, table, index, [raw], address)
            child = self.points_to(raw)
            if child:
                yield from self._walk(below, child, first, last, address)

    def _ptes(
        self, level: Level, table: int, first: int, last: int, base: int
    ) -> Iterator[tuple[int, bytes]]:
        starts = {vma.start for vma in self.vmas}
        run: list[int] = []
        at = 0
        for index, raw in sorted(self.tables[table].items()):
            address = base + index * level.span
            if not first <= address <= last or not raw:
                continue
            if run and (index != at + len(run) or address in starts):
                yield (
                    base + at * level.span,
                    self._part(level, table, at, run, base + at * level.span),
                )
                run = []
            if not run:
                at = index
            run.append(raw)
        if run:
            yield base + at * level.span, self._part(level, table, at, run, base + at * level.span)

    def _single(self, address: int) -> bytes:
        out = b"".join(self._vma(vma) for vma in self.vmas if vma.start <= address < vma.end)
        table = self.root
        for level in self.layout.levels:
            index = self.layout.index(level, address)
            raw = self.tables[table].get(index, 0)
            out += self._part(level, table, index, [raw], address & -level.span)
            child = self.points_to(raw) if level != self.layout.levels[-1] else 0
            if not child:
                break
            table = child
        return out


class Dump(io.RawIOBase):
    """The module's `dump` file of a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._batches: list[bytes] = []

    def write(self, data: object) -> int:
        """Take a request."""
        assert isinstance(data, bytes)
        count = struct.unpack_from("=I", data, 16)[0]
        ranges = [struct.unpack_from("=QQ", data, 24 + 16 * i) for i in range(count)]
        for action in self._world.before_dump:
            action()
        if all(first == last for first, last in ranges):
            for action in self._world.before_walk:
                action()
        self._batches = [self._world.stream([(first, last) for first, last in ranges])]
        return len(data)

    def readinto(self, buffer: object) -> int:
        """Give a batch."""
        if not self._batches:
            return 0
        data = self._batches.pop(0)
        memoryview(buffer).cast("B")[: len(data)] = data  # type: ignore[arg-type]
        return len(data)

    def read(self, size: int | None = -1) -> bytes:
        """The same."""
        return self._batches.pop(0) if self._batches else b""
