/* SPDX-License-Identifier: GPL-2.0-only */
/* x86-64: arch.h says what this gives. */
#ifndef PTSCOPE_ARCH_X86_H
#define PTSCOPE_ARCH_X86_H

#include <linux/mm.h>
#include <linux/pgtable.h>
#include <linux/seq_file.h>
#include <asm/cpufeature.h>

#include "../internal.h"

#define PTSCOPE_ARCH "x86_64"

static inline unsigned int ptscope_arch_half_bits(void)
{
	return __VIRTUAL_MASK_SHIFT;	/* 47, or 56 with five levels */
}

static inline unsigned int ptscope_arch_root_bits(void)
{
	return ptscope_arch_half_bits() + 1;
}

/* PRESENT is clear in a huge entry that is being split, or that is PROT_NONE. */
static inline bool ptscope_arch_is_table(u64 raw)
{
	return (raw & (_PAGE_PRESENT | _PAGE_PSE)) == _PAGE_PRESENT;
}

/*
 * native_make_pmd() since what was read is raw already, and pmd_val() since
 * under Xen PV a raw value holds a machine frame.  The mask leaves out the
 * memory-encryption bit.  All levels have the same address bits.
 */
static inline phys_addr_t ptscope_arch_table_pa(u64 raw)
{
	return pmd_val(native_make_pmd(raw)) & PTE_PFN_MASK;
}

/* The upper half of every root maps the kernel, so that of the caller does. */
static inline const u64 *ptscope_arch_kernel_root(const struct mm_struct *mm)
{
	return (const u64 *)mm->pgd;
}

/*
 * Under PTI the root is two pages, of which user mode runs on the second.
 * From 7.x on that page does not exist while PTI is off, so the feature bit
 * has to be asked, not only the config.
 */
#if defined(CONFIG_PAGE_TABLE_ISOLATION) || defined(CONFIG_MITIGATION_PAGE_TABLE_ISOLATION)
static inline const u64 *ptscope_arch_user_root(const struct mm_struct *mm)
{
	if (!boot_cpu_has(X86_FEATURE_PTI))
		return NULL;
	return (const u64 *)kernel_to_user_pgdp(mm->pgd);
}

static inline bool ptscope_arch_pti(void)
{
	return boot_cpu_has(X86_FEATURE_PTI);
}
#else
static inline const u64 *ptscope_arch_user_root(const struct mm_struct *mm)
{
	return NULL;
}

static inline bool ptscope_arch_pti(void)
{
	return false;
}
#endif

/* The name of the bit as 7.3 has it, and before. */
#ifdef _PAGE_BIT_UFFD
#define PTSCOPE_PAGE_BIT_UFFD _PAGE_BIT_UFFD
#else
#define PTSCOPE_PAGE_BIT_UFFD _PAGE_BIT_UFFD_WP
#endif

/* Bits 51:12, which is also what the kernel has as its own limit. */
#define PTSCOPE_ARCH_PFN_MASK GENMASK_ULL(__PHYSICAL_MASK_SHIFT - 1, PAGE_SHIFT)

static const struct ptscope_bit ptscope_arch_bits[] __maybe_unused = {
	{ "present", _PAGE_BIT_PRESENT },
	{ "write", _PAGE_BIT_RW },
	{ "user", _PAGE_BIT_USER },
	{ "pwt", _PAGE_BIT_PWT },
	{ "pcd", _PAGE_BIT_PCD },
	{ "accessed", _PAGE_BIT_ACCESSED },
	{ "dirty", _PAGE_BIT_DIRTY },
	{ "huge", _PAGE_BIT_PSE },
	{ "pat", _PAGE_BIT_PAT },
	{ "pat_large", _PAGE_BIT_PAT_LARGE },
	{ "global", _PAGE_BIT_GLOBAL },
	{ "protnone", _PAGE_BIT_PROTNONE },
	{ "special", _PAGE_BIT_SPECIAL },
#ifdef CONFIG_HAVE_ARCH_USERFAULTFD_WP
	{ "uffd_wp", PTSCOPE_PAGE_BIT_UFFD },
#endif
#ifdef CONFIG_MEM_SOFT_DIRTY
	{ "soft_dirty", _PAGE_BIT_SOFT_DIRTY },
#endif
#ifdef _PAGE_BIT_DEVMAP
	{ "devmap", _PAGE_BIT_DEVMAP },
#endif
#ifdef _PAGE_BIT_SAVED_DIRTY
	{ "saved_dirty", _PAGE_BIT_SAVED_DIRTY },
#endif
#ifdef CONFIG_X86_INTEL_MEMORY_PROTECTION_KEYS
	{ "pkey", _PAGE_BIT_PKEY_BIT0 },
#endif
	{ "nx", _PAGE_BIT_NX },
#ifdef _PAGE_BIT_NOPTISHADOW	/* of root entries; newer, but in 6.12 stable too */
	{ "noptishadow", _PAGE_BIT_NOPTISHADOW },
#endif
};

static inline void ptscope_arch_fixed_facts(struct seq_file *m)
{
#ifdef CONFIG_X86_INTEL_MEMORY_PROTECTION_KEYS
	seq_printf(m, "pkey_bits %d\n", _PAGE_BIT_PKEY_BIT3 - _PAGE_BIT_PKEY_BIT0 + 1);
#endif
}

static inline void ptscope_arch_runtime_facts(struct seq_file *m)
{
	bool shadow_stack = false;

#ifdef X86_FEATURE_USER_SHSTK
	shadow_stack = boot_cpu_has(X86_FEATURE_USER_SHSTK);
#endif
	seq_printf(m, "runtime.physical_mask %#llx\n", (u64)__PHYSICAL_MASK);
	seq_printf(m, "runtime.c_mask %#llx\n", (u64)sme_me_mask);
	seq_printf(m, "runtime.pti %d\n", ptscope_arch_pti());
	seq_printf(m, "runtime.nx %d\n", !!(__supported_pte_mask & _PAGE_NX));
	/* OSPKE, not PKU: the kernel has turned the feature on */
	seq_printf(m, "runtime.pkeys %d\n", boot_cpu_has(X86_FEATURE_OSPKE));
	seq_printf(m, "runtime.shadow_stack %d\n", shadow_stack);
}

#endif /* PTSCOPE_ARCH_X86_H */
