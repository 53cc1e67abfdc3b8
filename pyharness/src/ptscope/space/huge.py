# SPDX-License-Identifier: GPL-2.0-or-later
"""Which VMAs could be mapped by huge pages (THP)."""

from __future__ import annotations

import os
from collections.abc import Container
from pathlib import Path

from ptscope.decode.layout import Layout
from ptscope.target.vma import Vma

RULE = (
    "aligned ranges of {size} that lie wholly in an anonymous or shared-memory VMA without "
    "nohugepage and have pages, none of them mapped by a huge page"
)
# Bits of vm_flags that rule it out, and the word for it; the first that is set counts.
BARRIERS = (
    ("vm.hugetlb", "hugetlb"),
    ("vm.pfnmap", "device"),
    ("vm.io", "device"),
    ("vm.mixedmap", "device"),
    ("vm.nohugepage", "nohugepage"),
)
# File systems whose files are shared memory (mm/shmem.c).
SHMEM_TYPES = frozenset({"tmpfs", "devtmpfs"})


def barrier(layout: Layout, vma: Vma, shmem: Container[str]) -> str | None:
    """Why this VMA cannot have huge pages: hugetlb, device, nohugepage or file; None: it can.

    That is what the VMA is and what was asked for by madvise(); whether the settings of the machine
    allow it now is another question, which smaps answers (THPeligible). `shmem` are the devices of
    shared memory. Files of other file systems can have huge pages with some configurations only.
    """
    for key, word in BARRIERS:
        if (vma.vm_flags or 0) & layout.facts.get(key, 0):
            return word
    return None if is_anonymous(vma) or vma.device in shmem else "file"


def is_anonymous(vma: Vma) -> bool:
    """Whether pages of this VMA are anonymous from the beginning: no file is mapped.

    A private mapping of /dev/zero has a file and is anonymous all the same (drivers/char/mem.c,
    mmap_zero).
    """
    if vma.name == "/dev/zero" and vma.permissions.endswith("p"):
        return True
    return not vma.inode and vma.device in ("00:00", "")


def shmem_devices(proc: Path = Path("/proc/self")) -> frozenset[str]:
    """The device numbers of shared memory, as /proc/PID/maps writes them.

    Those of the mounts that this process sees; and that of the mount inside of the kernel that
    System V shared memory, memfds and shared anonymous memory are on: a memfd of ours tells it.
    """
    found = set()
    try:
        for line in (proc / "mountinfo").read_text(errors="replace").splitlines():
            mount, _, kind = line.partition(" - ")
            if kind.split(" ", 1)[0] in SHMEM_TYPES:
                major, _, minor = mount.split()[2].partition(":")
                found.add(f"{int(major):02x}:{int(minor):02x}")
    except OSError:
        pass
    try:
        fd = os.memfd_create("ptscope", os.MFD_CLOEXEC)
    except OSError:
        return frozenset(found)
    try:
        device = os.fstat(fd).st_dev
    finally:
        os.close(fd)
    found.add(f"{os.major(device):02x}:{os.minor(device):02x}")
    return frozenset(found)
