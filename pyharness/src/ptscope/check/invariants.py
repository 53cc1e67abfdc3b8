# SPDX-License-Identifier: GPL-2.0-or-later
"""The invariants: what must be true, why the kernel guarantees it, and since when.

One row each; the tests want a lie for every row, so a new one comes with a source that breaks it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ptscope.errors import UsageError

Half = Literal["user", "kernel", "both"]
ANY_VERSION = "5.10"
ALL = ("x86_64", "arm64", "riscv64")


@dataclass(frozen=True)
class Invariant:
    """One row of the table.

    `why` is the kernel's guarantee and `where` the source that gives it, with the first of the
    versions looked at (5.10 to 7.3) from which it holds, `since`. `witness` is what the tables are
    compared with; empty when they are judged by themselves. `bound` says where the kernel's own
    figure is not exact.
    """

    name: str
    half: Half
    what: str
    why: str
    where: str
    witness: str = ""
    since: str = ANY_VERSION
    arches: tuple[str, ...] = ALL
    bound: str = ""

    def to_json(self) -> dict[str, object]:
        """All of it."""
        return {
            "name": self.name,
            "half": self.half,
            "what": self.what,
            "why": self.why,
            "where": self.where,
            "witness": self.witness or None,
            "since": self.since,
            "arches": list(self.arches),
            "bound": self.bound or None,
        }


INVARIANTS = (
    Invariant(
        "pagemap",
        "user",
        "pagemap shows the frame, swap slot, soft-dirty and uffd-wp bits of every entry",
        "pagemap reads the same entries under the same lock; it hides what is not its own: nothing "
        "is shown of VM_PFNMAP, and of hugetlb only what is present",
        "fs/proc/task_mmu.c: pte_to_pagemap_entry(), pagemap_hugetlb_range()",
        witness="/proc/PID/pagemap",
    ),
    Invariant(
        "permissions",
        "user",
        "no entry allows reading, writing or executing that its VMA forbids",
        "entries are made from vm_page_prot, which follows from vm_flags; both change under "
        "mmap_lock held for writing. An entry may allow less: copy on write, dirty tracking, "
        "protection keys",
        "mm/mmap.c: vm_get_page_prot(), mm/mprotect.c: mprotect_fixup()",
    ),
    Invariant(
        "write-exec",
        "user",
        "no page is writable and executable at once unless its VMA is both",
        "as `permissions`: the two bits of one entry come from the flags of one VMA",
        "mm/mmap.c: vm_get_page_prot()",
    ),
    Invariant(
        "inside-vmas",
        "user",
        "nothing is mapped outside VMAs, and no huge page reaches over the end of its VMA",
        "munmap takes the VMA away and empties its entries before others can look (they are read "
        "under mmap_lock held for writing here); huge pages are split where a VMA is cut",
        "mm/mmap.c: unmap_region(), mm/huge_memory.c: vma_adjust_trans_huge()",
    ),
    Invariant(
        "user-pages",
        "user",
        "every page and every table of the user half lets user mode in",
        "vm_get_page_prot() has the user bit in all protections but PROT_NONE, and tables of the "
        "user half are made by pXd_populate() with it",
        "arch/*/include/asm/pgtable.h: PAGE_*, pgalloc.h: pmd_populate()",
    ),
    Invariant(
        "protnone",
        "user",
        "an entry that is mapped but not hardware-present stands in a VMA without access",
        "pte_protnone() in a VMA that may be accessed is a NUMA hint, and with one node of memory "
        "there are none; not asked with more nodes, nor where userfaultfd tracks reads (7.3)",
        "mm/mprotect.c: change_pte_range(), kernel/sched/fair.c: task_numa_work()",
    ),
    Invariant(
        "special",
        "user",
        "a special entry stands for the zero page, or in a VMA for raw or mixed frames",
        "only insert_pfn(), remap_pfn_range() and the zero page's fault set the bit, the first "
        "two in VM_PFNMAP or VM_MIXEDMAP",
        "mm/memory.c: vm_normal_page(), do_anonymous_page()",
    ),
    Invariant(
        "reserved-bits",
        "both",
        "no entry is in a form that the hardware or the kernel cannot mean",
        "reserved bits that are set fault (x86), so no pXd_mk*() sets them; neither does any make "
        "a non-present entry that is not PROT_NONE, mid-split or a swap entry. In the kernel "
        "half only present entries are asked: it takes the present bit away in place",
        "Intel SDM 3, 4.7; Arm ARM D8.3; RISC-V privileged, Sv39; arch/*/include/asm/pgtable*.h",
    ),
    Invariant(
        "known-bits",
        "both",
        "every bit that is set has a meaning on this kernel",
        "the kernel makes entries from protection bits and flags that are all in its layout",
        "arch/*/include/asm/pgtable*.h",
    ),
    Invariant(
        "alignment",
        "both",
        "a page is aligned to its size",
        "the address bits below are reserved or ignored; huge pages come from the buddy allocator, "
        "hugetlb pools or resources of that alignment",
        "mm/page_alloc.c; arch/*/mm/pgtable.c: pmd_set_huge()",
    ),
    Invariant(
        "groups",
        "both",
        "entries marked as one mapping (contiguous, Svnapot) are whole, aligned and in sequence",
        "Arm makes anything else unpredictable, RISC-V a fault: contpte_set_ptes() and "
        "set_huge_pte_at() write whole groups, and take them apart before one entry changes",
        "arch/arm64/mm/contpte.c, arch/*/mm/hugetlbpage.c",
        arches=("arm64", "riscv64"),
    ),
    Invariant(
        "levels",
        "both",
        "each table lies where the entry of the next walked level above points to, no folded "
        "level has one of its own",
        "a walk goes through pXd_offset() of the value read before; a folded pXd_offset() gives "
        "the entry above",
        "include/asm-generic/pgtable-nop4d.h, arch/x86/include/asm/pgtable.h: p4d_offset()",
    ),
    Invariant(
        "frames-known",
        "both",
        "every frame lies in RAM or in a device's range",
        "a page has a struct page of RAM that was added, or is mapped by a driver from its "
        "resource, or by ioremap(); the first MiB of x86 is mapped whatever is there",
        "kernel/resource.c: iomem_resource, mm/vmalloc.c: s_show()",
        witness="/proc/iomem, /proc/vmallocinfo",
    ),
    Invariant(
        "tables-in-ram",
        "both",
        "every table lies in RAM",
        "tables are pages of the buddy allocator, or of the kernel's image",
        "include/asm-generic/pgalloc.h: __pte_alloc_one()",
        witness="/proc/iomem",
    ),
    Invariant(
        "tables-once",
        "user",
        "no table is reached twice in a process, but shared PMD tables of hugetlb",
        "each table has one entry that points to it from pXd_populate() on; huge_pmd_share() alone "
        "lets several point to one",
        "mm/memory.c: __pte_alloc(), mm/hugetlb.c: huge_pmd_share()",
    ),
    Invariant(
        "pti-copies",
        "user",
        "under PTI the kernel's root entry equals the user's, with no-execute added",
        "a root entry of the user half is written through __pti_set_user_pgtbl(), which writes the "
        "user copy and gives the kernel's no-execute",
        "arch/x86/mm/pti.c",
        arches=("x86_64",),
    ),
    Invariant(
        "vm-size",
        "user",
        "the sizes of the VMAs add up to VmSize",
        "total_vm changes with each VMA that is added, cut or removed, under mmap_lock",
        "mm/mmap.c: vm_stat_account()",
        witness="/proc/PID/status",
    ),
    Invariant(
        "resident",
        "user",
        "the pages of a VMA, PROT_NONE and migrating ones among them, are its Rss",
        "smaps counts the same entries; not the zero pages nor other special ones "
        "(vm_normal_page()), nothing of VM_PFNMAP, and hugetlb apart; from 6.1 to 6.5 not huge "
        "pages under PROT_NONE, which was a mistake",
        "fs/proc/task_mmu.c: smaps_pte_entry(), smaps_pmd_entry()",
        witness="/proc/PID/smaps",
    ),
    Invariant(
        "huge",
        "user",
        "the huge pages of a VMA are its AnonHugePages, ShmemPmdMapped and FilePmdMapped",
        "smaps counts each PMD that maps a page, under migration too; the huge zero page not",
        "fs/proc/task_mmu.c: smaps_pmd_entry()",
        witness="/proc/PID/smaps",
    ),
    Invariant(
        "hugetlb",
        "user",
        "the hugetlb pages of a VMA are its Shared_Hugetlb and Private_Hugetlb",
        "smaps counts each entry that is present or under migration",
        "fs/proc/task_mmu.c: smaps_hugetlb_range()",
        witness="/proc/PID/smaps",
    ),
    Invariant(
        "swapped",
        "user",
        "the swap entries of a VMA are its Swap; at most that for files",
        "smaps counts each swap entry, and of shared memory also pages that have no entry",
        "fs/proc/task_mmu.c: smaps_pte_entry(), smaps_shmem_walk_ops",
        witness="/proc/PID/smaps",
    ),
    Invariant(
        "rss-counters",
        "user",
        "all pages together are VmRSS and statm's resident, all swap entries VmSwap",
        "each entry that is set or cleared counts up or down; the same pages as Rss",
        "include/linux/mm.h: get_mm_counter(), fs/proc/task_mmu.c: task_mem(), task_statm()",
        witness="/proc/PID/status, /proc/PID/statm",
        bound="the kernel counts in batches: up to 6.1 each thread keeps back what up to 65 faults "
        "mapped, of files 64 KiB each, from 6.2 each CPU up to max(32, 2 * CPUs) of each of the "
        "counters; smaps is exact",
    ),
    Invariant(
        "hugetlb-counter",
        "user",
        "all hugetlb pages together are HugetlbPages of status",
        "hugetlb_count_add() is called with each entry that is made; not asked where a PMD table "
        "may be shared, for whose entries only the process counts that made them",
        "mm/hugetlb.c: hugetlb_report_usage(), huge_pmd_share()",
        witness="/proc/PID/status",
    ),
    Invariant(
        "table-count",
        "user",
        "tables of PTEs, PMDs and PUDs, and one in reserve for each anonymous huge page, are VmPTE",
        "mm_inc_nr_ptes() and its like count each table that is linked; root and P4D tables are "
        "not counted; pgtable_trans_huge_deposit() keeps a PTE table for the day of the split",
        "include/linux/mm.h: mm_pgtables_bytes(), mm/huge_memory.c: set_huge_zero_page()",
        witness="/proc/PID/status",
    ),
    Invariant(
        "kernel-pages",
        "kernel",
        "no page of the kernel half lets user mode in, but the vsyscall page of x86",
        "kernel protections have no user bit; set_vsyscall_pgtable_user_bits() alone adds it",
        "arch/*/include/asm/pgtable*.h: PAGE_KERNEL, arch/x86/entry/vsyscall/vsyscall_64.c",
    ),
    Invariant(
        "kernel-write-exec",
        "kernel",
        "no page of the kernel half is writable and executable at once",
        "STRICT_KERNEL_RWX and STRICT_MODULE_RWX: text is read-only from mark_rodata_ro() on, and "
        "modules' text before it runs; what DEBUG_WX looks for at boot",
        "arch/*/mm/init*.c: mark_rodata_ro(), kernel/module/strict_rwx.c",
    ),
)

NAMES = tuple(row.name for row in INVARIANTS)
BY_NAME = {row.name: row for row in INVARIANTS}


def chosen(only: tuple[str, ...], skip: tuple[str, ...]) -> frozenset[str]:
    """The names to check: those of `only`, or all, without those of `skip`.

    Raises UsageError for a name that is none.
    """
    for name in (*only, *skip):
        if name not in BY_NAME:
            raise UsageError(
                f"no invariant is called {name!r}", "`ptscope check --list` lists them"
            )
    return frozenset(only or NAMES) - frozenset(skip)


def of_half(half: Literal["user", "kernel"], arch: str) -> tuple[Invariant, ...]:
    """The invariants that mean something for one half on one architecture."""
    return tuple(row for row in INVARIANTS if row.half in (half, "both") and arch in row.arches)
