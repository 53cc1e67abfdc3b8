/* SPDX-License-Identifier: GPL-2.0-only */
/* arm64: arch.h says what this gives. */
#ifndef PTSCOPE_ARCH_ARM64_H
#define PTSCOPE_ARCH_ARM64_H

#include <linux/bits.h>
#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/pgtable.h>
#include <linux/seq_file.h>
#include <asm/cpufeature.h>
#include <asm/memory.h>
#include <asm/sysreg.h>

#include "../internal.h"

#define PTSCOPE_ARCH "arm64"

/* Each half has its own root, and all its bits are translated from there. */
static inline unsigned int ptscope_arch_half_bits(void)
{
	return vabits_actual;
}

static inline unsigned int ptscope_arch_root_bits(void)
{
	return ptscope_arch_half_bits();
}

/* Bit 1 tells a table from a block, bit 0 says that the entry is valid. */
static inline bool ptscope_arch_is_table(u64 raw)
{
	return (raw & PMD_TYPE_MASK) == PMD_TYPE_TABLE;
}

/* All levels have the same address bits; from 6.9 on this knows of LPA2. */
static inline phys_addr_t ptscope_arch_table_pa(u64 raw)
{
	return __pte_to_phys(__pte(raw));
}

/*
 * TTBR1_EL1 holds the root of the kernel half, while the kernel runs always
 * that of swapper_pg_dir.  Bits 63:48 are the ASID, bit 0 is CnP, and bits 5:2
 * are bits 51:48 of the address where those exist and 0 elsewhere, since no
 * root of the kernel has fewer than 8 entries.  A kernel for 52-bit addresses
 * with 64K pages on hardware with 48 bits points TTBR1 at the last entries of
 * its root, those that 48 bits can reach: the table as the hardware has it.
 */
static inline const u64 *ptscope_arch_kernel_root(const struct mm_struct *mm)
{
	u64 ttbr = read_sysreg(ttbr1_el1);

	return __va((ttbr & GENMASK_ULL(47, 6)) | (ttbr & GENMASK_ULL(5, 2)) << 46);
}

static inline const u64 *ptscope_arch_user_root(const struct mm_struct *mm)
{
	return NULL;
}

#define PTSCOPE_ARCH_PFN_MASK PTE_ADDR_LOW

/* How far left mask.pfn_high goes: a macro since 6.9, when LPA2 came as a second form. */
#if defined(CONFIG_ARM64_PA_BITS_52) && !defined(PTE_ADDR_HIGH_SHIFT)
#define PTE_ADDR_HIGH_SHIFT 36
#endif

static const struct ptscope_bit ptscope_arch_bits[] __maybe_unused = {
	{ "valid", ilog2(PTE_VALID) },
	{ "table", ilog2(PMD_TYPE_TABLE) },
	{ "user", ilog2(PTE_USER) },
	{ "rdonly", ilog2(PTE_RDONLY) },
	{ "accessed", ilog2(PTE_AF) },
	{ "ng", ilog2(PTE_NG) },
	{ "gp", ilog2(PTE_GP) },
	{ "write", ilog2(PTE_WRITE) },
	{ "contiguous", ilog2(PTE_CONT) },
	{ "pxn", ilog2(PTE_PXN) },
	{ "uxn", ilog2(PTE_UXN) },
	{ "dirty", ilog2(PTE_DIRTY) },
	{ "special", ilog2(PTE_SPECIAL) },
#ifdef PTE_DEVMAP
	{ "devmap", ilog2(PTE_DEVMAP) },
#endif
#ifdef PTE_PROT_NONE			/* up to 6.9 */
	{ "protnone", ilog2(PTE_PROT_NONE) },
#else
	{ "protnone", ilog2(PTE_PRESENT_INVALID) },
#endif
#ifdef PMD_PRESENT_INVALID		/* up to 6.9 a bit of its own */
	{ "pmd_present_invalid", ilog2(PMD_PRESENT_INVALID) },
#endif
#ifdef CONFIG_HAVE_ARCH_USERFAULTFD_WP
#ifdef PTE_UFFD				/* 7.3 */
	{ "uffd_wp", ilog2(PTE_UFFD) },
#else
	{ "uffd_wp", ilog2(PTE_UFFD_WP) },
#endif
#endif
#ifdef CONFIG_ARM64_POE
	{ "pkey", ilog2(PTE_PO_IDX_0) },
#endif
};

static inline void ptscope_arch_fixed_facts(struct seq_file *m)
{
#ifdef CONFIG_ARM64_PA_BITS_52
	seq_printf(m, "mask.pfn_high %#llx\n", (u64)PTE_ADDR_HIGH);
	seq_printf(m, "shift.pfn_high %d\n", PTE_ADDR_HIGH_SHIFT);
#endif
#ifdef CONFIG_ARM64_POE
	seq_printf(m, "pkey_bits %d\n", ilog2(PTE_PO_IDX_2) - ilog2(PTE_PO_IDX_0) + 1);
#endif
	seq_printf(m, "cont_ptes %d\n", CONT_PTES);
	seq_printf(m, "cont_pmds %d\n", CONT_PMDS);
}

static inline void ptscope_arch_runtime_facts(struct seq_file *m)
{
	bool lpa2 = false, pkeys = false, gcs = false;

#ifdef CONFIG_ARM64_LPA2
	lpa2 = lpa2_is_enabled();
#endif
#ifdef CONFIG_ARM64_POE
	pkeys = system_supports_poe();
#endif
#ifdef CONFIG_ARM64_GCS
	gcs = system_supports_gcs();
#endif
	seq_printf(m, "runtime.physical_mask %#llx\n", (u64)PHYS_MASK);
	seq_printf(m, "runtime.lpa2 %d\n", lpa2);
	seq_printf(m, "runtime.pkeys %d\n", pkeys);
	seq_printf(m, "runtime.shadow_stack %d\n", gcs);
}

#endif /* PTSCOPE_ARCH_ARM64_H */
