/* SPDX-License-Identifier: GPL-2.0-only */
/* riscv64: arch.h says what this gives. */
#ifndef PTSCOPE_ARCH_RISCV_H
#define PTSCOPE_ARCH_RISCV_H

#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/pgtable.h>
#include <linux/seq_file.h>
#include <asm/cpufeature.h>
#include <asm/hwcap.h>

#include "../internal.h"

#define PTSCOPE_ARCH "riscv64"

/* One root serves both halves: 39, 48 or 57 bits, the upper one of which is the half. */
static inline unsigned int ptscope_arch_root_bits(void)
{
	return VA_BITS;
}

static inline unsigned int ptscope_arch_half_bits(void)
{
	return ptscope_arch_root_bits() - 1;
}

/* Any of R, W, X makes a leaf. */
static inline bool ptscope_arch_is_table(u64 raw)
{
	return (raw & (_PAGE_PRESENT | _PAGE_LEAF)) == _PAGE_PRESENT;
}

static inline phys_addr_t ptscope_arch_table_pa(u64 raw)
{
	return PFN_PHYS(__page_val_to_pfn(raw));
}

/* The upper half of every root maps the kernel, so that of the caller does. */
static inline const u64 *ptscope_arch_kernel_root(const struct mm_struct *mm)
{
	return (const u64 *)mm->pgd;
}

static inline const u64 *ptscope_arch_user_root(const struct mm_struct *mm)
{
	return NULL;
}

#define PTSCOPE_ARCH_PFN_MASK _PAGE_PFN_MASK

/*
 * soft_dirty and uffd_wp are where Svrsw60t59b puts bits for software.  The
 * kernel's macros for them are 0 on hardware without it; where they would be
 * is a fact of the kernel all the same, and whether they are used is
 * runtime.svrsw60t59b.
 */
static const struct ptscope_bit ptscope_arch_bits[] __maybe_unused = {
	{ "present", ilog2(_PAGE_PRESENT) },
	{ "read", ilog2(_PAGE_READ) },
	{ "write", ilog2(_PAGE_WRITE) },
	{ "exec", ilog2(_PAGE_EXEC) },
	{ "user", ilog2(_PAGE_USER) },
	{ "global", ilog2(_PAGE_GLOBAL) },
	{ "accessed", ilog2(_PAGE_ACCESSED) },
	{ "dirty", ilog2(_PAGE_DIRTY) },
	{ "special", ilog2(_PAGE_SPECIAL) },
#ifdef _PAGE_DEVMAP
	{ "devmap", ilog2(_PAGE_DEVMAP) },
#endif
	{ "protnone", ilog2(_PAGE_PROT_NONE) },
#ifdef CONFIG_MEM_SOFT_DIRTY
	{ "soft_dirty", 59 },
#endif
#ifdef CONFIG_HAVE_ARCH_USERFAULTFD_WP
	{ "uffd_wp", 60 },
#endif
	{ "napot", _PAGE_NAPOT_SHIFT },
};

static inline bool ptscope_arch_svrsw60t59b(void)
{
#ifdef RISCV_ISA_EXT_SVRSW60T59B
	return riscv_has_extension_unlikely(RISCV_ISA_EXT_SVRSW60T59B);
#else
	return false;
#endif
}

static inline void ptscope_arch_fixed_facts(struct seq_file *m)
{
	seq_printf(m, "mask.pbmt %#llx\n", (u64)_PAGE_MTMASK_SVPBMT);
	seq_printf(m, "shift.pfn %d\n", PAGE_SHIFT - _PAGE_PFN_SHIFT);
	if (ptscope_arch_svrsw60t59b())
		return;		/* layout.c finds these two by encoding */
#ifdef CONFIG_MEM_SOFT_DIRTY
	seq_printf(m, "swap.bit.soft_dirty %d\n", ilog2(_PAGE_EXEC));
#endif
#ifdef CONFIG_HAVE_ARCH_USERFAULTFD_WP
	seq_printf(m, "swap.bit.uffd_wp %d\n", ilog2(_PAGE_USER));
#endif
}

static inline void ptscope_arch_runtime_facts(struct seq_file *m)
{
	bool shadow_stack = false;

#ifdef RISCV_ISA_EXT_ZICFISS
	shadow_stack = riscv_has_extension_unlikely(RISCV_ISA_EXT_ZICFISS);
#endif
	seq_printf(m, "runtime.svnapot %d\n", has_svnapot());
	seq_printf(m, "runtime.svrsw60t59b %d\n", ptscope_arch_svrsw60t59b());
	seq_printf(m, "runtime.shadow_stack %d\n", shadow_stack);
	/* mask.pbmt, or bits 63:59 on T-Head cores; 0 where entries have no memory type */
	seq_printf(m, "runtime.memory_type_mask %#llx\n", (u64)_PAGE_MTMASK);
}

#endif /* PTSCOPE_ARCH_RISCV_H */
