# SPDX-License-Identifier: GPL-2.0-or-later
"""What the puppet may be told: a table of operations, each made from a number.

A step of a sequence is a number. Its low bits choose the operation, the rest is used up by
`Draws` for everything else that has to be chosen; smaller numbers make simpler steps, which is
what shrinking goes for. The same number in the same state is always the same step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ptscope.model.calls import access, advice, mapping, numa, process, soft_dirty, uffd
from ptscope.model.kernel import PMD, PTE, PUD
from ptscope.model.state import Leaf, Object, Page, Space, Vma, World
from ptscope.source.known import KIND_SHIFT, KINDS, MapKind

PROTS = ("rw", "r", "", "rwx", "rx")
PROT_BITS = {"r": 1, "w": 2, "x": 4}
MAP_SHARED, MAP_PRIVATE, MAP_ANONYMOUS = 0x1, 0x2, 0x20
MAP_GROWSDOWN, MAP_NORESERVE, MAP_FIXED_NOREPLACE = 0x100, 0x4000, 0x100000
MAP_HUGETLB, MAP_HUGE_SHIFT = 0x40000, 26
# include/uapi/linux/userfaultfd.h: PAGEFAULT_FLAG_WP and SIGBUS. The descriptor is always this one.
UFFD_FEATURES = 1 << 0 | 1 << 7
UFFD_MODES = {"uffd_missing": 1, "uffd_wp": 2, "uffd_minor": 4}
UFFD_FD = 100
MREMAP_MAYMOVE, MREMAP_FIXED, MREMAP_DONTUNMAP = 1, 2, 4
MADV = {
    "dontneed": 4,
    "free": 8,
    "mergeable": 12,
    "unmergeable": 13,
    "hugepage": 14,
    "nohugepage": 15,
    "cold": 20,
    "pageout": 21,
    "populate_read": 22,
    "populate_write": 23,
    "collapse": 25,
    "guard_install": 102,
    "guard_remove": 103,
}
GUARD = (6, 13)
KNOWN_KINDS: tuple[MapKind, ...] = ("remap", "insert", "fault")
MOST_VMAS = 10
MOST_OBJECTS = 4
MOST_PAGES = 24


def prot_number(prot: str) -> int:
    """PROT_ bits of letters."""
    return sum(PROT_BITS[letter] for letter in prot)


@dataclass(frozen=True)
class Arena:
    """Where everything takes place: start and end, in bytes; the same on each machine."""

    start: int
    end: int
    gigantic: int = 0
    """Where a gigantic page may be mapped; 0: nowhere."""


class Draws:
    """Choices that are used up from one number. `made` has them: limit and value of each."""

    def __init__(self, number: int) -> None:
        self.left = number
        self.made: list[tuple[int, int]] = []

    def below(self, limit: int) -> int:
        """A number from 0 to limit - 1."""
        self.left, value = divmod(self.left, limit)
        self.made.append((limit, value))
        return value

    def pick(self, *of: str) -> str:
        """One of these, the first for the smallest number."""
        return of[self.below(len(of))]


@dataclass(frozen=True)
class Call:
    """One step, ready to be taken.

    `command` is for the puppet's process in `slot`. `apply` does it to the model, given the result
    and the errno that the puppet answered, and gives the outcome that it must have had: 0 or an
    errno, `ok` or a signal. `before` and `after` are commands that must succeed and change no
    memory; `$` in one is the result of the command before, or of `command`. What those after it
    give is in `answers`.
    """

    slot: int
    text: str
    command: str
    apply: Callable[[int, int], str | int]
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    answers: list[int] = field(default_factory=list)
    special: str = ""
    """`fork`, `exit` and `clear_refs`, which take more than a command."""
    target: int = 0


def number_of(draws: Sequence[tuple[int, int]]) -> int:
    """The number that gives these choices."""
    number = 0
    for limit, value in reversed(draws):
        number = number * limit + value
    return number


Maker = Callable[[World, Space, Draws, Arena], Call | None]


# ---- places


def some_vma(space: Space, draws: Draws) -> Vma | None:
    """One of the VMAs."""
    return space.vmas[draws.below(len(space.vmas))] if space.vmas else None


def hugetlb(vma: Vma) -> bool:
    """Whether its pages are those of hugetlbfs."""
    return vma.object is not None and vma.object.level > PTE


def some_range(space: Space, draws: Draws, vma: Vma) -> tuple[int, int]:
    """A range of pages in a VMA: mostly few of the first eight, so that steps meet what others
    have done; sometimes all, or a huge page."""
    page, huge = space.geometry.page, space.geometry.huge
    if hugetlb(vma):
        assert vma.object is not None
        page = 1 << space.shifts[vma.object.level]
        if page > huge:
            return vma.start, vma.end
    pages = (vma.end - vma.start) // page
    how = draws.below(8)
    if how == 7:
        first = (vma.start + huge - 1) & -huge
        if first + huge <= vma.end:
            return first, first + huge
    if how == 6:
        return vma.start, vma.end
    start = draws.below(min(pages, 8 if how < 4 else 64))
    if pages > 64 and draws.below(2):
        start = pages - 1 - start
    count = 1 + draws.below(min(pages - start, 4 if how < 4 else 20))
    return vma.start + start * page, vma.start + (start + count) * page


def free_place(space: Space, draws: Draws, arena: Arena, length: int, align: int) -> int | None:
    """Where `length` bytes are free."""
    page = space.geometry.page
    where = arena.start + draws.below(64) * (arena.end - arena.start >> 6)
    where += draws.below(4) * page
    for start in (where & -align, arena.start):
        at = start
        while at + length <= arena.end:
            taken = space.overlapping(at, at + length)
            if not taken:
                return at
            at = taken[-1].end + align - 1 & -align
    return None


# ---- operations


def _mmap(
    space: Space,
    draws: Draws,
    arena: Arena,
    file: Object | None,
    shared: bool,
    made: bool = False,
) -> Call | None:
    if len(space.vmas) >= MOST_VMAS:
        return None
    page, huge = space.geometry.page, space.geometry.huge
    align = page
    length = page * (1 + draws.below(MOST_PAGES))
    if file is None and not shared and draws.below(4) == 3:
        align, length = (page, huge)[draws.below(2)], huge * (1 + draws.below(2)) + page
    prot = draws.pick(*PROTS)
    pgoff = 0
    if file is not None and not made:
        pgoff = draws.below(file.pages)
    place = free_place(space, draws, arena, length, align)
    if place is None:
        return None
    flags = MAP_FIXED_NOREPLACE | (MAP_SHARED if shared else MAP_PRIVATE)
    fd = -1
    if file is None or file.fd < 0:
        flags |= MAP_ANONYMOUS
    else:
        fd = file.fd
    if shared and file is None:
        file = Object("shared", length // page)
    kind = "anonymous" if fd < 0 else file.name if file is not None else ""

    def apply(result: int, errno: int) -> int:
        if file is not None and file.fd < 0:
            space.world.objects.append(file)
        mapping.mmap(space, place, length, prot, file, pgoff, shared)
        return 0

    offset = pgoff * page
    return Call(
        space.slot,
        f"mmap({place:#x}, {length // page} pages, {prot or 'none'},"
        f" {'shared' if shared else 'private'} {kind}{f' from page {pgoff}' if pgoff else ''})",
        f"mmap {place} {length} {prot_number(prot)} {flags} {fd} {offset}",
        apply,
    )


def mmap_private(world: World, space: Space, draws: Draws, arena: Arena) -> Call | None:
    """Private anonymous memory, sometimes large enough for huge pages."""
    return _mmap(space, draws, arena, None, shared=False)


def mmap_shared(world: World, space: Space, draws: Draws, arena: Arena) -> Call | None:
    """Shared anonymous memory."""
    return _mmap(space, draws, arena, None, shared=True)


def mmap_file(world: World, space: Space, draws: Draws, arena: Arena) -> Call | None:
    """A memfd that is there, private or shared."""
    files = [file for file in world.objects if file.fd >= 0 and not file.known]
    if not files:
        return None
    shared = draws.below(2) == 1
    return _mmap(space, draws, arena, files[draws.below(len(files))], shared)


def memfd(world: World, space: Space, draws: Draws, arena: Arena) -> Call | None:
    """A new memfd; only before there are several processes, as all of them have to have it."""
    if len(world.spaces) > 1 or sum(file.fd >= 0 for file in world.objects) >= MOST_OBJECTS:
        return None
    pages = 1 + draws.below(40)

    def apply(result: int, errno: int) -> int:
        name = f"memfd{len(world.objects)}"
        world.objects.append(Object(name, pages, fd=result))
        return 0

    return Call(
        space.slot,
        f"memfd({pages} pages)",
        f"memfd {pages * space.geometry.page} 0",
        apply,
    )


def _any(vma: Vma) -> bool:
    return True


def _advisable(vma: Vma) -> bool:
    return not vma.known


def _small(vma: Vma) -> bool:
    return not hugetlb(vma) and not vma.known


def _private(vma: Vma) -> bool:
    return vma.object is None


def _cuts_folio(space: Space, start: int, end: int) -> bool:
    """Whether a range has a part of a large folio: the kernel may then split the folio, or not."""
    huge = space.geometry.huge
    for border in (start, end):
        index = border >> space.shifts[PMD]
        if border % huge and isinstance(space.entries[PMD].get(index), Leaf):
            return True
    return any(
        isinstance(entry, Leaf) and entry.page.whole is not None
        for _, _, entry in space.leaves(start, end)
    )


def _has_huge(space: Space, start: int, end: int) -> bool:
    return any(
        isinstance(space.entries[PMD][index], Leaf) for index in space.within(PMD, start, end)
    )


def _ranged(
    name: str,
    command: str,
    apply: Callable[[Space, int, int], int],
    wanted: Callable[[Vma], bool] = _any,
    since: tuple[int, int] = (0, 0),
    advice: int = 0,
    wholes: bool = False,
) -> Maker:
    """An operation on a range in one VMA; with `wholes`, one that has no part of a large folio."""

    def make(world: World, space: Space, draws: Draws, arena: Arena) -> Call | None:
        vma = some_vma(space, draws)
        if vma is None or not wanted(vma) or not world.kernel.since(*since):
            return None
        start, end = some_range(space, draws, vma)
        if wholes and _cuts_folio(space, start, end):
            return None
        pages = end - start >> space.geometry.shift
        return Call(
            space.slot,
            f"{name}({start:#x}, {pages} pages)",
            f"{command} {start} {end - start} {advice}",
            lambda result, errno: apply(space, start, end),
        )

    make.__doc__ = apply.__doc__
    return make


def _advice(
    name: str,
    apply: Callable[[Space, int, int], int],
    wanted: Callable[[Vma], bool] = _advisable,
    since: tuple[int, int] = (0, 0),
    wholes: bool = False,
) -> Maker:
    return _ranged(f"madvise {name}", "madvise", apply, wanted, since, MADV[name], wholes)


def _while_ksm_rests(name: str, apply: Callable[[Space, int, int], int]) -> Maker:
    advise = _advice(name, apply, _private)

    def make(world: World, space: Space, draws: Draws, arena: Arena) -> Call | None:
        return advise(world, space, draws, arena) if world.kernel.ksm else None

    make.__doc__ = apply.__doc__
    return make


def _touch(name: str, apply: Callable[[Space, int, int], str]) -> Maker:
    def make(world: World, space: Space, draws: Draws, arena: Arena) -> Call | None:
        vma = some_vma(space, draws)
        if vma is None:
            return None
        start, end = some_range(space, draws, vma)
        count = min(end - start >> space.geometry.shift, 1 if hugetlb(vma) else 40)
        return Call(
            space.slot,
            f"{name}({start:#x}, {count} pages)",
            f"{name} {start} {count}",
            lambda result, errno: apply(space, start, count),
        )

    make.__doc__ = apply.__doc__
    return make


def munmap(world: World, space: Space, draws: Draws, arena: Arena) -> Call | None:
    """A range in one VMA, or everything in a part of the arena."""
    vma = some_vma(space, draws)
    if vma is None:
        return None
    start, end = some_range(space, draws, vma)
    if draws.below(4) == 3:
        start = arena.start + draws.below(8) * (arena.end - arena.start >> 3)
        end = start + (arena.end - arena.start >> 3) * (1 + draws.below(3))
        end = min(end, arena.end)
        if any(hugetlb(vma) for vma in space.overlapping(start, end)):
            # Only whole huge pages (hugetlb_vm_op_split, EINVAL).
            start, end = start & -space.geometry.huge, end + space.geometry.huge - 1
            end &= -space.geometry.huge

    def apply(result: int, errno: int) -> int:
        mapping.munmap(space, start, end)
        return 0

    pages = end - start >> space.geometry.shift
    return Call(
        space.slot, f"munmap({start:#x}, {pages} pages)", f"munmap {start} {end - start}", apply
    )


def mprotect(world: World, space: Space, draws: Draws, arena: Arena) -> Call | None:
    """Another permission for a range in one VMA."""
    vma = some_vma(space, draws)
    if vma is None:
        return None
    prot = _prot(draws, vma)
    start, end = some_range(space, draws, vma)

    def apply(result: int, errno: int) -> int:
        mapping.mprotect(space, start, end, prot)
        return 0

    pages = end - start >> space.geometry.shift
    return Call(
        space.slot,
        f"mprotect({start:#x}, {pages} pages, {prot or 'none'})",
        f"mprotect {start} {end - start} {prot_number(prot)}",
        apply,
    )


def _prot(draws: Draws, vma: Vma) -> str:
    """One that may be asked for: nothing in /dev can be executed where it is mounted so."""
    prot = draws.pick(*PROTS)
    return prot.replace("x", "") if vma.known else prot


def pkey_mprotect(world: World, space: Space, draws: Draws, arena: Arena) -> Call | None:
    """Another permission and one of three protection keys for a range in one VMA."""
    vma = some_vma(space, draws)
    if vma is None or not world.kernel.pkeys:
        return None
    prot, key = _prot(draws, vma), draws.below(3)
    start, end = some_range(space, draws, vma)

    def apply(result: int, errno: int) -> int:
        mapping.pkey_mprotect(space, start, end, prot, key)
        return 0

    pages = end - start >> space.geometry.shift
    return Call(
        space.slot,
        f"pkey_mprotect({start:#x}, {pages} pages, {prot or 'none'}, key {key})",
        f"pkey_mprotect {start} {end - start} {prot_number(prot)} {key}",
        apply,
    )


def fork(world: World, space: Space, draws: Draws, arena: Arena) -> Call | None:
    """A child, when there is a slot for it."""
    slot = next((slot for slot in (1, 2, 3) if slot not in world.spaces), None)
    if slot is None:
        return None

    def apply(result: int, errno: int) -> int:
        process.fork(space, slot)
        return 0

    return Call(space.slot, f"fork() as {slot}", f"fork {slot}", apply, special="fork", target=slot)


def exit_(world: World, space: Space, draws: Draws, arena: Arena) -> Call | None:
    """A process ends, unless it is the last."""
    if len(world.spaces) < 2:
        return None

    def apply(result: int, errno: int) -> int:
        process.exit_process(space)
        return 0

    return Call(space.slot, "exit()", "exit", apply, special="exit")


def _populate(write: bool) -> Callable[[Space, int, int], int]:
    def apply(space: Space, start: int, end: int) -> int:
        return advice.populate(space, start, end, write)

    apply.__doc__ = advice.populate.__doc__
    return apply


def mmap_stack(world: World, space: Space, draws: Draws, arena: Arena) -> Call | None:
    """Private memory that grows down when it is touched below its start."""
    page = space.geometry.page
    gap = 300 * page
    if len(space.vmas) >= MOST_VMAS or any("growsdown" in vma.flags for vma in space.vmas):
        return None
    place = free_place(space, draws, arena, gap + 2 * page, page)
    if place is None:
        return None
    start = place + gap
    flags = MAP_FIXED_NOREPLACE | MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN

    def apply(result: int, errno: int) -> int:
        mapping.mmap(space, start, 2 * page, "rw", flags=frozenset({"growsdown"}))
        return 0

    return Call(
        space.slot,
        f"mmap({start:#x}, 2 pages, rw, growing down)",
        f"mmap {start} {2 * page} 3 {flags} -1 0",
        apply,
    )


def grow(world: World, space: Space, draws: Draws, arena: Arena) -> Call | None:
    """A touch below such memory, within 8 pages."""
    vma = next((vma for vma in space.vmas if "growsdown" in vma.flags), None)
    if vma is None:
        return None
    address = vma.start - space.geometry.page * (1 + draws.below(8))
    writes = draws.below(2) == 0
    if space.find(address) is not None:
        return None
    return Call(
        space.slot,
        f"{'write' if writes else 'read'}({address:#x}, 1 pages)",
        f"{'write' if writes else 'read'} {address} 1",
        lambda result, errno: (access.write if writes else access.read)(space, address, 1),
    )


def mmap_hugetlb(world: World, space: Space, draws: Draws, arena: Arena) -> Call | None:
    """hugetlb memory of the size of a PMD, private or shared, one or two pages."""
    if not world.kernel.hugetlb or len(space.vmas) >= MOST_VMAS:
        return None
    if sum(hugetlb(vma) for each in world.spaces.values() for vma in each.vmas) >= 3:
        return None
    huge = space.geometry.huge
    length = huge * (1 + draws.below(2))
    shared = draws.below(2) == 1
    prot = draws.pick("rw", "r")
    place = free_place(space, draws, arena, length, huge)
    if place is None:
        return None
    flags = MAP_FIXED_NOREPLACE | MAP_ANONYMOUS | MAP_HUGETLB
    flags |= space.shifts[PMD] << MAP_HUGE_SHIFT | (MAP_SHARED if shared else MAP_PRIVATE)
    file = Object("hugetlb", length >> space.geometry.shift, PMD)

    def apply(result: int, errno: int) -> int:
        world.objects.append(file)
        mapping.mmap(space, place, length, prot, file, 0, shared)
        return 0

    return Call(
        space.slot,
        f"mmap({place:#x}, {length // huge} huge pages, {prot},"
        f" {'shared' if shared else 'private'} hugetlb)",
        f"mmap {place} {length} {prot_number(prot)} {flags} -1 0",
        apply,
    )


def mmap_gigantic(world: World, space: Space, draws: Draws, arena: Arena) -> Call | None:
    """A shared hugetlb page of the size of a PUD: there is one, and one place for it."""
    if not arena.gigantic or space.find(arena.gigantic) is not None:
        return None
    if any(file.level == PUD for file in world.objects):
        return None
    size = 1 << space.shifts[PUD]
    prot = draws.pick("rw", "r")
    flags = MAP_FIXED_NOREPLACE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_SHARED
    flags |= space.shifts[PUD] << MAP_HUGE_SHIFT
    file = Object("gigantic", size >> space.geometry.shift, PUD)

    def apply(result: int, errno: int) -> int:
        world.objects.append(file)
        mapping.mmap(space, arena.gigantic, size, prot, file, 0, shared=True)
        return 0

    return Call(
        space.slot,
        f"mmap({arena.gigantic:#x}, a gigantic page, {prot}, shared hugetlb)",
        f"mmap {arena.gigantic} {size} {prot_number(prot)} {flags} -1 0",
        apply,
    )


def known_frames(world: World, space: Space, draws: Draws, arena: Arena) -> Call | None:
    """Pages of /dev/ptscope-map, whose frames it says; only before there are several processes."""
    if not world.kernel.known or len(world.spaces) > 1:
        return None
    if any(file.known for file in world.objects):
        return None
    pages = 1 + draws.below(32)

    def apply(result: int, errno: int) -> int:
        shift = space.geometry.shift
        cache = {i: Page("known", frame=pa >> shift) for i, pa in enumerate(call.answers)}
        for page in cache.values():
            assert page.frame is not None
            world.frames[page.frame] = page
        for kind in KNOWN_KINDS:
            world.objects.append(
                Object(f"known frames by {kind}", pages, cache=cache, fd=result, known=kind)
            )
        return 0

    call = Call(
        space.slot,
        f"known({pages} pages)",
        f"known {pages}",
        apply,
        after=tuple(f"known-frame $ {page}" for page in range(pages)),
    )
    return call


def mmap_known(world: World, space: Space, draws: Draws, arena: Arena) -> Call | None:
    """Pages with known frames: all entries at once (remap_pfn_range, vm_insert_page), or each at
    its fault (vmf_insert_pfn)."""
    files = [file for file in world.objects if file.known]
    if not files or len(space.vmas) >= MOST_VMAS:
        return None
    file = files[draws.below(len(files))]
    assert file.known
    first = draws.below(file.pages)
    count = 1 + draws.below(file.pages - first)
    prot = draws.pick("rw", "r", "")
    page = space.geometry.page
    place = free_place(space, draws, arena, count * page, page)
    if place is None:
        return None
    offset = (KINDS[file.known] << KIND_SHIFT) + first * page
    flags = MAP_FIXED_NOREPLACE | MAP_SHARED

    def apply(result: int, errno: int) -> int:
        mapping.mmap(space, place, count * page, prot, file, first, shared=True)
        return 0

    return Call(
        space.slot,
        f"mmap({place:#x}, {count} pages, {prot or 'none'}, {file.name} from page {first})",
        f"mmap {place} {count * page} {prot_number(prot)} {flags} {file.fd} {offset}",
        apply,
    )


def pageout(world: World, space: Space, draws: Draws, arena: Arena) -> Call | None:
    """A range is reclaimed at once."""
    vma = some_vma(space, draws)
    if vma is None or not _small(vma):
        return None
    start, end = some_range(space, draws, vma)
    if _cuts_folio(space, start, end) or _has_huge(space, start, end):
        return None
    return Call(
        space.slot,
        f"madvise pageout({start:#x}, {end - start >> space.geometry.shift} pages)",
        f"madvise {start} {end - start} {MADV['pageout']}",
        lambda result, errno: advice.pageout(space, start, end),
    )


def move_pages(world: World, space: Space, draws: Draws, arena: Arena) -> Call | None:
    """A page is moved to one of two nodes."""
    vma = some_vma(space, draws)
    if vma is None or not _small(vma) or world.kernel.nodes < 2:
        return None
    address, _ = some_range(space, draws, vma)
    if _cuts_folio(space, address, address + space.geometry.page):
        return None
    node = draws.below(2)
    return Call(
        space.slot,
        f"move_pages({address:#x}, node {node})",
        f"move {address} {node}",
        lambda result, errno: numa.move_pages(space, address),
    )


def mremap(world: World, space: Space, draws: Draws, arena: Arena) -> Call | None:
    """Grow, shrink or move a range of one VMA, or move it with DONTUNMAP."""
    vma = some_vma(space, draws)
    if vma is None or not _small(vma) or vma.flags & {"locked", "growsdown", *process.UFFD}:
        return None
    page = space.geometry.page
    start, end = some_range(space, draws, vma)
    how = draws.pick("move", "keep", "shrink", "grow")
    length, to = end - start, None
    new, flags = length, 0
    if how == "shrink":
        if length == page:
            return None
        new = page * (1 + draws.below(length // page - 1))
    elif how == "grow":
        start, end = vma.start, vma.end
        length = end - start
        new = length + page * (1 + draws.below(8))
        if start + new > arena.end or space.overlapping(end, start + new):
            return None
    else:
        flags = MREMAP_MAYMOVE | MREMAP_FIXED
        if how == "keep":
            if len(space.vmas) >= MOST_VMAS:
                return None
            flags |= MREMAP_DONTUNMAP
        # At the same place in its huge page, or not.
        align = space.geometry.huge if draws.below(2) else page
        to = free_place(space, draws, arena, length + align, align)
        if to is None:
            return None
        to += start % align

    def apply(result: int, errno: int) -> int:
        mapping.mremap(space, start, length, new, to, how == "keep")
        return 0

    where = "" if to is None else f" to {to:#x}"
    return Call(
        space.slot,
        f"mremap({start:#x}, {length // page} pages, {how} {new // page}{where})",
        f"mremap {start} {length} {new} {flags} {to or 0}",
        apply,
    )


def clear_refs(world: World, space: Space, draws: Draws, arena: Arena) -> Call | None:
    """Soft-dirty tracking begins anew."""
    if not world.kernel.soft_dirty or not world.kernel.exact:
        return None

    def apply(result: int, errno: int) -> int:
        soft_dirty.clear_refs(space)
        return 0

    return Call(space.slot, "clear_refs 4", "4", apply, special="clear_refs")


def uffd_register(world: World, space: Space, draws: Draws, arena: Arena) -> Call | None:
    """Write protection or missing pages of private anonymous memory are userfaultfd's, or minor
    faults of shared memory: those of pages that it has."""
    vma = some_vma(space, draws)
    if vma is None or vma.flags & process.UFFD or not vma.prot:
        return None
    if not world.kernel.uffd_wp or "growsdown" in vma.flags or "locked" in vma.flags:
        return None
    mode = draws.pick("uffd_wp", "uffd_missing")
    if vma.object is not None:
        if not _small(vma) or not vma.shared or not world.kernel.uffd_minor:
            return None
        mode = "uffd_minor"
    start, end = vma.start, vma.end
    return Call(
        space.slot,
        f"uffd register {mode.removeprefix('uffd_')}({start:#x},"
        f" {end - start >> space.geometry.shift} pages)",
        f"uffd-register {UFFD_FD} {start} {end - start} {UFFD_MODES[mode]}",
        lambda result, errno: uffd.register(space, start, end, mode),
        before=() if space.uffd else (f"uffd {UFFD_FEATURES}", f"dup3 $ {UFFD_FD} 0"),
    )


def uffd_wp(world: World, space: Space, draws: Draws, arena: Arena) -> Call | None:
    """A range is write-protected, or not any more."""
    vma = next((vma for vma in space.vmas if "uffd_wp" in vma.flags), None)
    if vma is None:
        return None
    start, end = some_range(space, draws, vma)
    on = draws.below(3) < 2
    return Call(
        space.slot,
        f"uffd {'protect' if on else 'unprotect'}({start:#x},"
        f" {end - start >> space.geometry.shift} pages)",
        f"uffd-wp {UFFD_FD} {start} {end - start} {int(on)}",
        lambda result, errno: uffd.writeprotect(space, start, end, on),
    )


def _filled_in(
    name: str, mode: str, more: str, apply: Callable[[Space, int, int], int]
) -> Maker:
    """Userfaultfd gives a page to a VMA that is registered so; ``more`` ends the command."""

    def make(world: World, space: Space, draws: Draws, arena: Arena) -> Call | None:
        vma = next((vma for vma in space.vmas if mode in vma.flags), None)
        if vma is None:
            return None
        start, _ = some_range(space, draws, vma)
        return Call(
            space.slot,
            f"uffd {name}({start:#x}, 1 page)",
            f"uffd-{name} {UFFD_FD} {start} {space.geometry.page}{more}",
            lambda result, errno: apply(space, start, errno),
        )

    make.__doc__ = apply.__doc__
    return make


def collapse(world: World, space: Space, draws: Draws, arena: Arena) -> Call | None:
    """An aligned range of a VMA becomes a huge page, if the kernel can."""
    huge = space.geometry.huge
    ranges = [
        start
        for vma in space.vmas
        if vma.object is None
        for start in range((vma.start + huge - 1) & -huge, vma.end - huge + 1, huge)
    ]
    if not ranges or world.kernel.thp == "never" or not world.kernel.since(6, 1):
        return None
    start = ranges[draws.below(len(ranges))]
    return Call(
        space.slot,
        f"madvise collapse({start:#x}, {space.geometry.per_huge} pages)",
        f"madvise {start} {huge} {MADV['collapse']}",
        lambda result, errno: advice.collapse(space, start, start + huge, errno),
    )


@dataclass(frozen=True)
class Operation:
    """A row of the table: how often (a weight), and what makes a step of it."""

    name: str
    weight: int
    make: Maker


OPERATIONS: tuple[Operation, ...] = (
    Operation("mmap_private", 3, mmap_private),
    Operation("write", 10, _touch("write", access.write)),
    Operation("read", 6, _touch("read", access.read)),
    Operation("munmap", 3, munmap),
    Operation("mprotect", 5, mprotect),
    Operation("dontneed", 3, _advice("dontneed", advice.dontneed)),
    Operation("fork", 3, fork),
    Operation("exit", 3, exit_),
    Operation("mmap_shared", 2, mmap_shared),
    Operation("memfd", 1, memfd),
    Operation("mmap_file", 3, mmap_file),
    Operation("populate_read", 1, _advice("populate_read", _populate(False))),
    Operation("populate_write", 1, _advice("populate_write", _populate(True))),
    Operation("hugepage", 1, _advice("hugepage", advice.hugepage, _small)),
    Operation("nohugepage", 1, _advice("nohugepage", advice.nohugepage, _small)),
    Operation("mremap", 4, mremap),
    Operation("mlock", 1, _ranged("mlock", "mlock2", access.mlock)),
    Operation("munlock", 1, _ranged("munlock", "munlock", access.munlock)),
    Operation("clear_refs", 2, clear_refs),
    Operation("cold", 1, _advice("cold", advice.cold, _small, wholes=True)),
    Operation("pageout", 2, pageout),
    Operation("free", 2, _advice("free", advice.free, _private, wholes=True)),
    Operation("mmap_stack", 1, mmap_stack),
    Operation("grow", 2, grow),
    Operation("mmap_hugetlb", 1, mmap_hugetlb),
    Operation("mmap_gigantic", 1, mmap_gigantic),
    Operation("known_frames", 1, known_frames),
    Operation("mmap_known", 2, mmap_known),
    Operation("move_pages", 2, move_pages),
    Operation("pkey_mprotect", 2, pkey_mprotect),
    Operation("mergeable", 1, _while_ksm_rests("mergeable", advice.mergeable)),
    Operation("unmergeable", 1, _while_ksm_rests("unmergeable", advice.unmergeable)),
    Operation("collapse", 2, collapse),
    Operation("uffd_register", 1, uffd_register),
    Operation("uffd_wp", 2, uffd_wp),
    Operation("uffd_copy", 1, _filled_in("copy", "uffd_missing", " 0", uffd.copy)),
    Operation("uffd_continue", 1, _filled_in("continue", "uffd_minor", "", uffd.continue_)),
    Operation("guard_install", 2, _advice("guard_install", advice.guard_install, _private, GUARD)),
    Operation("guard_remove", 1, _advice("guard_remove", advice.guard_remove, _private, GUARD)),
)


class Table:
    """Operations with their weights, as a number chooses them."""

    def __init__(self, only: frozenset[str] | None = None) -> None:
        """`only`: the names of those that may be used; None: all."""
        self._of = [
            row
            for row in OPERATIONS
            if only is None or row.name in only
            for _ in range(row.weight)
        ]

    def make(self, world: World, arena: Arena, draws: Draws) -> Call | None:
        """The step that a number stands for in this state; None: none is possible."""
        row = self._of[draws.below(len(self._of))]
        slots = sorted(world.spaces)
        space = world.spaces[slots[draws.below(len(slots))]]
        return row.make(world, space, draws, arena)
