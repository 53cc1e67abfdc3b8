# SPDX-License-Identifier: GPL-2.0-or-later
"""/proc/PID/pagemap as a source: leaves only, but without the module.

The levels above the leaf, and the leaf's own bits, are not visible here. Without CAP_SYS_ADMIN in
the initial user namespace the kernel shows frame 0 for every page: that is "hidden", never "frame
0".
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import TracebackType

from ptscope.errors import Unsupported, UsageError
from ptscope.raw.pagemap import PAGEMAP_ENTRY, Page, split
from ptscope.source.base import RawLeaf, RawWalk
from ptscope.target.access import cannot_read, mm_gone
from ptscope.target.frame import KPF_THP, Frame
from ptscope.target.process import Pid, Process, find, find_self
from ptscope.target.procfs import check_procfs
from ptscope.target.smaps import read_sizes
from ptscope.target.vma import Vma, find_vma, read_maps

# A read of a page whose PMD is just changing may give nothing (pmd_trans_unstable in
# fs/proc/task_mmu.c up to 6.4): that is no end of file yet.
EMPTY_READS = 3


def frames_visible(proc: Path = Path("/proc")) -> bool:
    """Whether this process may see frame numbers in pagemap.

    The question is put to the kernel: the top page of our own stack is always present, so a frame
    of 0 there means that frames are hidden. CAP_SYS_ADMIN in CapEff does not tell, as the kernel
    wants it in the initial user namespace (fs/proc/task_mmu.c, pagemap_read).
    """
    check_procfs(proc)
    own = proc / "self"
    stack = next((vma for vma in read_maps(own) if vma.name == "[stack]"), None)
    if stack is None:
        return False
    page_size = os.sysconf("SC_PAGE_SIZE")
    with PagemapFile(own, hidden=False) as pagemap:
        for address in range(stack.end - page_size, stack.start - 1, -page_size):
            page = pagemap.read(address)
            if page.present:
                return bool(page.frame)
    return False


class PagemapFile:
    """An open /proc/PID/pagemap. Every read is a fresh look, by pread of one entry.

    It is bound to the address space that the process has when it is opened, and stays so.
    """

    def __init__(self, proc: Path, hidden: bool) -> None:
        """Open it; raises NotPermitted, Exited, or Unsupported without CONFIG_PROC_PAGE_MONITOR."""
        self._hidden = hidden
        self._page_size = os.sysconf("SC_PAGE_SIZE")
        self._path = proc / "pagemap"
        try:
            self._fd = os.open(self._path, os.O_RDONLY)
        except OSError as error:
            raise cannot_read(self._path, error) from None

    def __enter__(self) -> PagemapFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._fd)

    def read(self, address: int) -> Page:
        """What pagemap says of the page at `address`.

        Raises UsageError when the address lies beyond the user half, and as `check_alive`.
        """
        data = self._entry(address // self._page_size)
        if data:
            return split(data, self._hidden)[0]
        self.check_alive()
        raise UsageError(
            f"address {address:#x} is beyond the user half of the address space, where "
            "/proc/PID/pagemap ends",
            "kernel addresses need the module: `ptscope walk kernel ADDR`",
        )

    def read_many(self, page: int, count: int) -> bytes:
        """The entries of `count` pages from number `page` on, 8 bytes each, as far as there are.

        Raises as `check_alive`.
        """
        data = b""
        while len(data) < count * PAGEMAP_ENTRY:
            offset = page * PAGEMAP_ENTRY + len(data)
            more = os.pread(self._fd, count * PAGEMAP_ENTRY - len(data), offset)
            if not more:
                self.check_alive()
                break
            data += more
        return data

    def check_alive(self) -> None:
        """Raise Exited or ChangedIdentity when the address space that was opened is gone.

        The file is empty then (fs/proc/task_mmu.c, pagemap_read), else it has an entry for page 0.
        """
        if not self._entry(0):
            raise mm_gone(self._path.parent)

    def _entry(self, page: int) -> bytes:
        """The 8 bytes of a page; none where the file ends."""
        for _ in range(EMPTY_READS):
            try:
                data = os.pread(self._fd, PAGEMAP_ENTRY, page * PAGEMAP_ENTRY)
            except OSError:
                break  # an offset beyond what any file can have
            if data:
                return data
        return b""


@dataclass(frozen=True)
class PagemapSource:
    """Leaves from pagemap, VMAs from maps. `layout` is None: pagemap shows no entries to decode."""

    proc: Path = Path("/proc")
    name: str = field(default="pagemap", init=False)
    layout: None = field(default=None, init=False)

    @cached_property
    def frames_hidden(self) -> bool:
        """Whether the kernel hides frame numbers from us."""
        return not frames_visible(self.proc)

    def walk(self, pid: Pid, addresses: Sequence[int]) -> list[RawWalk]:
        """The leaf of each address. No lock spans what is read here: a live process may change.

        Raises UsageError for an address beyond the user half, and the TargetErrors.
        """
        if pid == "kernel":
            raise Unsupported(
                "/proc/PID/pagemap does not show the kernel half", "it needs the module"
            )
        process = find_self() if pid == "self" else find(pid, self.proc)
        # maps is read, and the process checked, while the address space that pagemap was opened on
        # is alive: after an exec between the two they would be about different programs.
        with PagemapFile(process.proc, self.frames_hidden) as pagemap:
            vmas = read_maps(process.proc)
            walks = [
                RawWalk(
                    address=address,
                    entries=(),
                    user_pgd=None,
                    vma=(vma := find_vma(vmas, address)),
                    lock="none",
                    leaf=_leaf(process, pagemap.read(address), vma),
                )
                for address in addresses
            ]
            process.check_unchanged()
            pagemap.check_alive()
        return walks


def _leaf(process: Process, page: Page, vma: Vma | None) -> RawLeaf:
    base = os.sysconf("SC_PAGE_SIZE")
    if not page.present or vma is None:
        return RawLeaf(page, base, None)
    frame = None if page.frame is None else Frame.read(page.frame)
    return RawLeaf(page, base, _page_size(process, vma, base, frame))


def _page_size(process: Process, vma: Vma, base: int, frame: Frame | None) -> int | None:
    """The size of the mapping in bytes, where it follows from what the kernel says elsewhere.

    smaps names the page size of hugetlb VMAs, and how much of a VMA PMDs map. Where some of it is
    and the page belongs to a large folio, the folio may still be mapped page by page: unknown.
    """
    sizes = read_sizes(process.proc, vma)
    if sizes is None:
        return None
    if sizes.kernel_page > base:
        return sizes.kernel_page
    if not sizes.pmd_mapped or (frame is not None and not frame.flags >> KPF_THP & 1):
        return base
    if sizes.pmd_mapped == sizes.resident:
        return sizes.pmd_size
    return None
