# SPDX-License-Identifier: GPL-2.0-or-later
"""The fault scenarios: a row each. SCENARIOS.md explains them.

A row says how memory is made ready, what is timed, what each address has before and after, how
many tables the kernel has to make on the way, and how many faults it counts.
"""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import functools
import os
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ptscope._core import lib
from ptscope.bench import memory
from ptscope.bench.known import known_frames
from ptscope.bench.looks import Expect, Eyes
from ptscope.bench.memory import MAP_PRIVATE, MAP_SHARED, PROT_NONE, PROT_READ, RW
from ptscope.bench.scenario import Scenario
from ptscope.bench.stage import NotHere, Stage, Step
from ptscope.bench.timing import Action, take
from ptscope.source.known import KnownFrames, MapKind
from ptscope.source.module import ModuleSource

READ = Action(lib.PTSCOPE_DO_READ)
WRITE = Action(lib.PTSCOPE_DO_WRITE)
SIGNAL_READ = Action(lib.PTSCOPE_DO_SIGNAL_READ)
PAGE = os.sysconf("SC_PAGE_SIZE")
LET_GO = Action(
    lib.PTSCOPE_DO_CALL, memory.CALLS["madvise"], (0, PAGE, memory.MADV_DONTNEED), place=1
)
HUGE = PAGE * (PAGE // 8)
"""What a PMD entry maps: as many pages as a table has entries of 8 bytes."""
WINDOW = 64 << 10
"""Bytes that a fault on a file maps around it at most (fault_around_bytes, unless changed)."""
FAULT_AROUND = Path("/sys/kernel/debug/fault_around_bytes")
PAGEVEC = 64
"""More pages than the kernel keeps back before it puts them on an LRU list (PAGEVEC_SIZE is 15,
31 from 6.9 on): until then a page has one user more, and is copied where it could be used again."""


# ---- strides ----------------------------------------------------------------


def every_page(stage: Stage) -> int:
    """Pages one after the other."""
    return stage.page


def second_page(stage: Stage) -> int:
    """Every second page: neighbours can be other VMAs."""
    return 2 * stage.page


def each_window(stage: Stage) -> int:
    """One page in what a fault on a file maps around it."""
    return max(WINDOW, stage.page)


def each_entry(level: int) -> Callable[[Stage], int]:
    """One page in what an entry of a level maps: 1 PMD, 2 PUD, 3 P4D, 4 PGD."""

    def stride(stage: Stage) -> int:
        spans = stage.geometry.spans
        if level >= len(spans):
            raise NotHere(f"the kernel walks {len(spans)} levels here")
        return spans[level]

    return stride


# ---- steps ------------------------------------------------------------------


def anonymous(stage: Stage) -> None:
    """Private anonymous memory of small pages."""
    stage.map()
    with contextlib.suppress(OSError):  # a kernel without huge pages
        memory.advise(stage.base, stage.size, memory.MADV_NOHUGEPAGE)


def huge_anonymous(stage: Stage) -> None:
    """Private anonymous memory of transparent huge pages."""
    enabled = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not enabled.exists():
        raise NotHere("this kernel has no transparent huge pages")
    if "[never]" in enabled.read_text():
        raise NotHere(
            "transparent huge pages are off", f"as root: `echo madvise > {enabled}`"
        )
    stage.map()
    stage.advise(memory.MADV_HUGEPAGE, "transparent huge pages")


def _free_hugetlb(size: int) -> tuple[int, Path]:
    """Free pages of the pool of a size in bytes, and the pool's folder."""
    folder = Path(f"/sys/kernel/mm/hugepages/hugepages-{size >> 10}kB")
    try:
        return int((folder / "free_hugepages").read_text()), folder
    except OSError:
        raise NotHere(f"this kernel has no hugetlb pages of {size >> 20} MiB") from None


def _hugetlb_flags(size: int) -> int:
    shift = size.bit_length() - 1 << memory.MAP_HUGE_SHIFT
    return memory.MAP_ANONYMOUS | memory.MAP_HUGETLB | shift


def hugetlb(flags: int) -> Step:
    """Pages of hugetlbfs of the size of a PMD."""

    def step(stage: Stage) -> None:
        size = stage.geometry.pmd
        need = len(stage.addresses) + len(stage.anchors)
        free, folder = _free_hugetlb(size)
        if free < need:
            raise NotHere(
                f"there are {free} free hugetlb pages of {size >> 20} MiB and {need} are needed",
                f"as root: `echo {need} > {folder / 'nr_hugepages'}`",
            )
        stage.map(_hugetlb_flags(size) | flags)

    return step


def gigantic(stage: Stage) -> None:
    """Pages of hugetlbfs of the size of a PUD: as many samples as the pool has pages, for it is
    small. What keeps their table is a small page beside them."""
    size = stage.geometry.pud
    free, folder = _free_hugetlb(size)
    if not free:
        raise NotHere(
            f"there is no free hugetlb page of {size >> 20} MiB",
            f"as root, as long as memory is in one piece: `echo 1 > {folder / 'nr_hugepages'}`",
        )
    del stage.addresses[free:]
    flags = memory.MAP_PRIVATE | memory.MAP_FIXED | _hugetlb_flags(size)
    for address in stage.addresses:
        memory.map_memory(size, flags, at=address)
    for anchor in stage.anchors:
        memory.map_memory(stage.page, memory.ANON | memory.MAP_FIXED, at=anchor)


def file(flags: int, folder: bool, cached: str, prot: int = RW) -> Step:
    """A mapping of a file: shared memory, or a file in the folder for temporary ones.

    `cached` says which pages are in the page cache before: `all`, `samples` or `none`; `reserved`:
    all, but without content (fallocate).
    """

    def step(stage: Stage) -> None:
        stage.open_file(Path(tempfile.gettempdir()) if folder else None)
        if cached == "reserved":
            os.posix_fallocate(stage.fd, 0, stage.size)
        elif cached != "none":
            _fill(stage, whole=cached == "all")
        stage.map(flags, prot)
        with contextlib.suppress(OSError):
            memory.advise(stage.base, stage.size, memory.MADV_NOHUGEPAGE)

    return step


def device(kind: MapKind) -> Step:
    """A mapping of the module's device: each address has to get the frame that the device said."""

    def step(stage: Stage) -> None:
        known = known_frames(stage.size // stage.page)
        stage.closing.callback(known.close)
        stage.fd = known.file.fileno()
        stage.map(MAP_SHARED, offset=KnownFrames.offset(kind))
        stage.frames = {
            address: known.addresses[(address - stage.base) // stage.page] // stage.page
            for address in stage.addresses
        }

    return step


def _fill(stage: Stage, whole: bool) -> None:
    """Write pages of the file, so that the page cache has them.

    One at a time: a longer write may give folios of many pages, which one fault can map as a whole.
    """
    places = range(stage.base, stage.base + stage.size, stage.page)
    for address in places if whole else (*stage.anchors, *stage.addresses):
        os.pwrite(stage.fd, b"\1" * stage.page, address - stage.base)


def anchored(stage: Stage) -> None:
    """The tables of the samples' entries are there."""
    stage.anchor()


def anchored_by_reading(stage: Stage) -> None:
    """The same, where writing would change more."""
    stage.anchor(write=False)


def read_before(stage: Stage) -> None:
    """Each sample's page has been read."""
    stage.touch(write=False)


def written(stage: Stage) -> None:
    """Each sample's page has been written, and nothing of the kernel's still holds it."""
    stage.touch(write=True)
    size = PAGEVEC * stage.page
    spare = memory.map_memory(size)
    with contextlib.suppress(OSError):
        memory.advise(spare, size, memory.MADV_NOHUGEPAGE)
    memory.touch(spare, size, stage.page, write=True)
    memory.unmap(spare, size)


def advised(advice: int, what: str) -> Step:
    """madvise() of all of it."""

    def step(stage: Stage) -> None:
        stage.advise(advice, what)

    return step


def own_vmas(stage: Stage) -> None:
    """Each sample's page is a VMA of its own: what lies between them has another flag."""
    for address in stage.addresses:
        memory.advise(address + stage.page, stage.page, memory.MADV_DONTDUMP)


def protected(prot: int) -> Step:
    """mprotect() of each sample's page."""

    def step(stage: Stage) -> None:
        for address in stage.addresses:
            memory.call("mprotect", address, stage.page, prot)

    return step


def child_holds(stage: Stage) -> None:
    """A child shares the pages."""
    stage.fork(works=False)


def child_went(stage: Stage) -> None:
    """A child shared the pages, and is gone."""
    stage.fork(works=False).end()


def child_works(stage: Stage) -> None:
    """A child shares the pages, and will be the one that acts."""
    stage.fork(works=True)


def parent_lets_go(stage: Stage) -> None:
    """Nobody but the child has the pages."""
    memory.advise(stage.base, stage.size, memory.MADV_DONTNEED)


def clean_soft_dirty(stage: Stage) -> None:
    """Soft-dirty bits of this process are cleared."""
    if not has_soft_dirty():
        raise NotHere("this kernel does not track soft-dirty pages (CONFIG_MEM_SOFT_DIRTY)")
    Path("/proc/self/clear_refs").write_text("4")


@functools.cache
def has_soft_dirty() -> bool:
    """Whether a page that was just written is soft-dirty for pagemap."""
    size = os.sysconf("SC_PAGE_SIZE")
    address = memory.map_memory(size)
    memory.touch(address, 1, 1, write=True)
    with Path("/proc/self/pagemap").open("rb", buffering=0) as file_:
        file_.seek(address // size * 8)
        (raw,) = struct.unpack("=Q", file_.read(8))
    memory.unmap(address, size)
    return bool(raw >> 55 & 1)


def swapped_out(stage: Stage) -> None:
    """Each sample's page is in swap."""
    text = Path("/proc/swaps").read_text()
    if text.count("\n") < 2:
        raise NotHere(
            "there is no swap",
            "as root: `modprobe zram; echo 256M > /sys/block/zram0/disksize; "
            "mkswap /dev/zram0; swapon /dev/zram0`",
        )
    for address in stage.addresses:
        memory.advise(address, stage.page, memory.MADV_PAGEOUT)


NUMA_BALANCING = Path("/proc/sys/kernel/numa_balancing")
HINT_SECONDS = 20.0
"""Of its CPU time a process waits so long for the scanner, which begins after one second."""
HINT_TURNS = 2_000_000
"""Turns of an empty loop between two looks."""


def hinted(stage: Stage) -> None:
    """The scanner of NUMA balancing has made each sample's entry PROT_NONE.

    It works on the account of the process itself, on its way back to user mode, so that process has
    to use CPU time. Pages that lie on the node of a process with one thread are left alone: hence
    another thread (change_pte_range(), mm/mprotect.c).
    """
    try:
        on = NUMA_BALANCING.read_text().strip() != "0"
    except OSError:
        raise NotHere("this kernel has no NUMA balancing") from None
    if not on:
        raise NotHere("NUMA balancing is off", f"as root: `echo 1 > {NUMA_BALANCING}`")
    if not isinstance(stage.source, ModuleSource):
        raise NotHere("a hint is seen by walks of the module alone: for pagemap it is a page")
    eyes = Eyes(stage.source)
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        end = time.process_time() + HINT_SECONDS
        spin = Action(lib.PTSCOPE_DO_NOTHING, spin=HINT_TURNS)
        while any(look.state != "protnone" for look in eyes.look(stage.pid, stage.addresses)):
            if time.process_time() > end:
                raise NotHere(f"NUMA balancing gave no hints in {HINT_SECONDS:.0f} s of CPU time")
            take(stage.clock, spin, [0])
    finally:
        done.set()
        other.join()


LOW = 1 << 36
"""Far from where the kernel puts mappings by itself, so that a hole there stays one."""


def stack_like(stage: Stage) -> None:
    """One page of a mapping that grows down; what lies below it is free, and the samples' place."""
    wanted = min(stage.wanted, stage.geometry.pmd // stage.page // 2)
    top = LOW + (wanted + 1) * stage.page
    memory.map_memory(
        stage.page, memory.ANON | memory.MAP_FIXED_NOREPLACE | memory.MAP_GROWSDOWN, RW, at=top
    )
    stage.closing.callback(memory.unmap, LOW, top + stage.page - LOW)
    memory.touch(top, 1, 1, write=True)
    stage.addresses = [top - number * stage.page for number in range(1, wanted + 1)]


# include/uapi/linux/userfaultfd.h
UFFD_API = 0xAA
UFFD_USER_MODE_ONLY = 1
UFFDIO_API, UFFDIO_REGISTER, UFFDIO_WRITEPROTECT = 0xC018AA3F, 0xC020AA00, 0xC018AA06
MODE_MISSING, MODE_WP, MODE_MINOR = 1, 2, 4
FEATURE_PAGEFAULT_FLAG_WP, FEATURE_MINOR_SHMEM = 1 << 0, 1 << 10
UFFD_MODES = {
    "missing": (MODE_MISSING, 0, lib.PTSCOPE_SERVE_COPY),
    "write-protect": (MODE_WP, FEATURE_PAGEFAULT_FLAG_WP, lib.PTSCOPE_SERVE_UNPROTECT),
    "minor": (MODE_MINOR, FEATURE_MINOR_SHMEM, lib.PTSCOPE_SERVE_CONTINUE),
}


def userfault(name: str) -> Step:
    """A thread answers what happens in the mapping: on another CPU where there is one."""
    mode, feature, answer = UFFD_MODES[name]

    def step(stage: Stage) -> None:
        fd = _open_userfaultfd()
        stage.closing.callback(os.close, fd)
        try:
            _ioctl(fd, UFFDIO_API, "=QQQ", UFFD_API, feature, 0)
            _ioctl(fd, UFFDIO_REGISTER, "=QQQQ", stage.base, stage.size, mode, 0)
            if name == "write-protect":
                _ioctl(fd, UFFDIO_WRITEPROTECT, "=QQQ", stage.base, stage.size, 1)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTTY, errno.EPERM):
                raise
            raise NotHere(f"this kernel has no userfaultfd for {name} faults here") from None
        started = lib.ptscope_serve_start(fd, answer, stage.page, stage.serving_cpu)
        if started:
            raise OSError(-started, os.strerror(-started))
        stage.closing.callback(_stop_serving)

    return step


def _open_userfaultfd() -> int:
    """A new one; who has no privileges may have one for faults of user mode, and needs no other."""
    flags = os.O_CLOEXEC | os.O_NONBLOCK
    try:
        return memory.call("userfaultfd", flags)
    except PermissionError:
        flags |= UFFD_USER_MODE_ONLY
    except OSError as error:
        raise NotHere(f"this kernel has no userfaultfd ({error.strerror})") from None
    try:
        return memory.call("userfaultfd", flags)
    except OSError as error:
        raise NotHere(
            f"userfaultfd cannot be used here ({error.strerror})", "run ptscope as root (sudo)"
        ) from None


def _ioctl(fd: int, request: int, form: str, *values: int) -> None:
    fcntl.ioctl(fd, request, array.array("B", struct.pack(form, *values)), True)


def _stop_serving() -> None:
    from ptscope._core import ffi

    lib.ptscope_serve_stop(ffi.new("unsigned long long *"))


def denied_by_pkey(stage: Stage) -> None:
    """Each sample's page has a protection key that this thread may not use."""
    PKEY_DISABLE_ACCESS = 1
    try:
        key = memory.call("pkey_alloc", 0, PKEY_DISABLE_ACCESS)
    except OSError as error:
        raise NotHere(f"no protection keys here ({error.strerror})") from None
    stage.closing.callback(memory.call, "pkey_free", key)
    memory.call("pkey_mprotect", stage.base, stage.size, RW, key)


def narrow_fault_around(stage: Stage) -> None:
    """Faults on files map one page: a setting of the whole machine, put back afterwards."""
    try:
        before = FAULT_AROUND.read_text()
        FAULT_AROUND.write_text(str(stage.page))
    except OSError:
        raise NotHere(
            f"{FAULT_AROUND} cannot be written",
            "as root: `mount -t debugfs none /sys/kernel/debug`",
        ) from None
    stage.closing.callback(FAULT_AROUND.write_text, before)


# ---- the table --------------------------------------------------------------

NONE = Expect("none")
ZERO = Expect("leaf", writable=False, zero=True)
FRESH = Expect("leaf", writable=True, dirty=True, zero=False)
COPIED = Expect("leaf", writable=True, dirty=True, zero=False, frame="other")
REUSED = Expect("leaf", writable=True, dirty=True, frame="same")
SHARED = Expect("leaf", writable=False)
MAPPED = Expect("leaf")
MAPPED_RO = Expect("leaf", writable=False)
NEVER = Expect("none")
HUGE_FRESH = Expect("leaf", page_size=HUGE, writable=True, dirty=True)
HUGE_ZERO = replace(ZERO, page_size=HUGE)
GIGANTIC = HUGE * (PAGE // 8)


def _depth(name: str, title: str, level: int) -> Scenario:
    return Scenario(
        name, title, each_entry(level), (anonymous, anchored), WRITE, NONE, FRESH, tables=level
    )


FAULTS: tuple[Scenario, ...] = (
    Scenario("read", "anonymous read: the zero page", every_page, (anonymous, anchored), READ,
          NONE, ZERO),
    Scenario("write", "anonymous write", every_page, (anonymous, anchored), WRITE, NONE, FRESH),
    Scenario("write-after-read", "write to what was read", every_page,
          (anonymous, anchored, read_before), WRITE, ZERO, COPIED),
    Scenario("write-again", "write to one page again and again", every_page,
          (anonymous, anchored), WRITE, NONE, FRESH, again=(LET_GO,)),
    _depth("depth-pmd", "write, a PTE table to make", 1),
    _depth("depth-pud", "write, two tables to make", 2),
    _depth("depth-p4d", "write, three tables to make", 3),
    _depth("depth-pgd", "write, four tables to make", 4),
    Scenario("cow-parent", "copy on write, parent", every_page,
          (anonymous, anchored, written, child_holds), WRITE, SHARED, COPIED),
    Scenario("cow-child", "copy on write, child", every_page,
          (anonymous, anchored, written, child_works), WRITE, SHARED, COPIED, in_child=True),
    Scenario("cow-reuse-parent", "the same, the child is gone", every_page,
          (anonymous, anchored, written, child_went), WRITE, SHARED, REUSED),
    Scenario("cow-reuse-child", "the same, the parent let go", every_page,
          (anonymous, anchored, written, child_works, parent_lets_go), WRITE, SHARED, REUSED,
          in_child=True),
    Scenario("shm-new", "shared memory, new page", every_page,
          (file(MAP_SHARED, False, "none"), anchored), WRITE, NONE,
          Expect("leaf", writable=True, dirty=True)),
    Scenario("shm-reserved", "shared memory, page of fallocate()", every_page,
          (file(MAP_SHARED, False, "reserved"), anchored), WRITE, NONE,
          Expect("leaf", writable=True, dirty=True)),
    Scenario("shm-read", "shared memory read, maps around", each_window,
          (file(MAP_SHARED, False, "all"), anchored_by_reading), READ, NONE, MAPPED,
          neighbour=MAPPED),
    Scenario("shm-read-alone", "the same, neighbours not cached", each_window,
          (file(MAP_SHARED, False, "samples"), anchored_by_reading), READ, NONE, MAPPED,
          neighbour=NEVER),
    Scenario("shm-read-narrow", "the same, fault-around off", each_window,
          (narrow_fault_around, file(MAP_SHARED, False, "all"), anchored_by_reading), READ, NONE,
          MAPPED, neighbour=NEVER, alters=str(FAULT_AROUND)),
    Scenario("shm-write", "shared memory write, cached", every_page,
          (file(MAP_SHARED, False, "all"), anchored), WRITE, NONE,
          Expect("leaf", writable=True, dirty=True)),
    Scenario("shm-again", "shared memory, one page again", every_page,
          (file(MAP_SHARED, False, "all"), anchored), WRITE, NONE,
          Expect("leaf", writable=True, dirty=True), again=(LET_GO,)),
    Scenario("file-read", "private file read, maps around", each_window,
          (file(MAP_PRIVATE, True, "all"), anchored_by_reading), READ, NONE, MAPPED_RO,
          neighbour=MAPPED),
    Scenario("file-read-alone", "the same, neighbours not cached", each_window,
          (file(MAP_PRIVATE, True, "samples"), anchored_by_reading), READ, NONE, MAPPED_RO,
          neighbour=NEVER),
    Scenario("file-write", "private file write: a copy", every_page,
          (file(MAP_PRIVATE, True, "all"), anchored), WRITE, NONE, FRESH),
    Scenario("file-cow", "the same to what was read", each_window,
          (file(MAP_PRIVATE, True, "all"), anchored_by_reading, read_before), WRITE, MAPPED_RO,
          COPIED),
    Scenario("file-shared-write", "shared file write", every_page,
          (file(MAP_SHARED, True, "all"), anchored), WRITE, NONE,
          Expect("leaf", writable=True, dirty=True)),
    Scenario("thp", "huge page, first touch", each_entry(1), (huge_anonymous, anchored), WRITE,
          NONE, HUGE_FRESH, most=12, neighbour=HUGE_FRESH),
    Scenario("thp-read", "huge page, read: huge zero page", each_entry(1),
          (huge_anonymous, anchored_by_reading), READ, NONE, HUGE_ZERO, most=12,
          neighbour=HUGE_ZERO),
    Scenario("thp-cow", "huge page, copy on write: split", each_entry(1),
          (huge_anonymous, anchored, written, child_holds), WRITE,
          replace(SHARED, page_size=HUGE), replace(COPIED, page_size=PAGE), tables=1, most=12,
          neighbour=SHARED),
    Scenario("hugetlb", "hugetlb, first touch", each_entry(1), (hugetlb(MAP_PRIVATE), anchored),
          WRITE, NONE, HUGE_FRESH, most=12),
    Scenario("hugetlb-read", "hugetlb, read", each_entry(1), (hugetlb(MAP_SHARED), anchored), READ,
          NONE, Expect("leaf", page_size=HUGE), most=12),
    Scenario("hugetlb-1g", "hugetlb of a PUD entry, first touch", each_entry(2),
          (gigantic, anchored), WRITE, NONE,
          Expect("leaf", page_size=GIGANTIC, writable=True, dirty=True), most=12, firsts=0),
    Scenario("numa-hint", "NUMA hint: where is it used", every_page,
          (anonymous, anchored, written, hinted), READ, Expect("protnone", allowed="rw-"),
          Expect("leaf", writable=True, frame="same")),
    Scenario("soft-dirty", "write after clear_refs", every_page,
          (anonymous, anchored, written, clean_soft_dirty), WRITE,
          Expect("leaf", writable=False, soft_dirty=False),
          Expect("leaf", writable=True, soft_dirty=True, frame="same")),
    Scenario("free-write", "write after MADV_FREE", every_page,
          (anonymous, anchored, written, advised(memory.MADV_FREE, "MADV_FREE")), WRITE,
          Expect("leaf", dirty=False), Expect("leaf", dirty=True, frame="same"), faults=None),
    Scenario("dontneed-write", "write after MADV_DONTNEED", every_page,
          (anonymous, anchored, written, advised(memory.MADV_DONTNEED, "MADV_DONTNEED"), anchored),
          WRITE, NONE, FRESH),
    Scenario("swap-in", "swap in", each_window, (anonymous, anchored, written, swapped_out), READ,
          Expect("swap"), MAPPED, waits=True),
    Scenario("uffd-missing", "userfaultfd: copies a page in", every_page,
          (anonymous, anchored, userfault("missing")), WRITE, NONE, FRESH, waits=True),
    Scenario("uffd-wp", "userfaultfd: takes a write protection", every_page,
          (anonymous, anchored, written, userfault("write-protect")), WRITE,
          Expect("leaf", writable=False, uffd_wp=True),
          Expect("leaf", writable=True, uffd_wp=False, frame="same"), waits=True),
    Scenario("uffd-minor", "userfaultfd: maps what a file has", every_page,
          (file(MAP_SHARED, False, "all"), anchored, userfault("minor")), READ, NONE, MAPPED,
          waits=True),
    Scenario("device", "a device's page: vmf_insert_pfn()", every_page,
          (device("fault"), anchored), WRITE, NONE, Expect("leaf", writable=True)),
    Scenario("stack", "the stack grows by a page", every_page, (stack_like,),
          WRITE, NONE, FRESH, changes_vmas=True),
    Scenario("signal-none", "SIGSEGV: PROT_NONE", second_page,
          (anonymous, anchored, written, protected(PROT_NONE)), SIGNAL_READ,
          Expect("protnone"), Expect("protnone", frame="same"), faults=0, result=1),
    Scenario("signal-pkey", "SIGSEGV: protection key", every_page,
          (anonymous, anchored, written, denied_by_pkey), SIGNAL_READ, MAPPED,
          Expect("leaf", frame="same"), faults=0, result=1),
    Scenario("signal-guard", "SIGSEGV: guard region", every_page,
          (anonymous, anchored, advised(memory.MADV_GUARD_INSTALL, "guard regions (6.13)")),
          SIGNAL_READ, Expect("marker"), Expect("marker"), faults=0, result=1),
    Scenario("none-to-read", "mprotect: PROT_NONE to readable", second_page,
          (anonymous, anchored, written, own_vmas, protected(PROT_NONE)),
          Action(lib.PTSCOPE_DO_CALL, memory.CALLS["mprotect"], (0, PAGE, PROT_READ), place=1),
          Expect("protnone", allowed="---"),
          Expect("leaf", writable=False, frame="same", allowed="r--"), faults=0, result=0),
    Scenario("read-to-write", "mprotect: read-only to writable", second_page,
          (anonymous, anchored, written, own_vmas, protected(PROT_READ)),
          Action(lib.PTSCOPE_DO_CALL, memory.CALLS["mprotect"], (0, PAGE, RW), place=1),
          Expect("leaf", writable=False, allowed="r--"),
          Expect("leaf", frame="same", allowed="rw-"),
          faults=0, result=0),
)  # fmt: skip
