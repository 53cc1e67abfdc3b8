/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the walker and the layout have to know about x86-64.
 *
 * An architecture header gives
 *   PTSCOPE_ARCH                its name in the layout
 *   ptscope_arch_space()        the levels walked at run time and the two halves
 *   ptscope_make_{pgd,p4d,pud,pmd}()  a raw value as the kernel's type
 *   ptscope_arch_user_root()    the copy of the root that user mode runs on, or NULL
 *   ptscope_arch_bits[]         positions of the bits of an entry
 *   PTSCOPE_ARCH_PFN_MASK       address bits of an entry, as compiled
 *   ptscope_arch_{fixed,runtime}_facts()  what else the layout says
 */
#ifndef PTSCOPE_ARCH_X86_H
#define PTSCOPE_ARCH_X86_H

#include <linux/mm.h>
#include <linux/pgtable.h>
#include <linux/seq_file.h>
#include <asm/cpufeature.h>

#include "../internal.h"

#define PTSCOPE_ARCH "x86_64"

/*
 * With four levels the P4D slot is the PGD slot, which helpers of the PGD
 * deny knowing: pgd_present() is always 1 then.  So the root is read with
 * the helpers of the P4D.
 */
static inline void ptscope_arch_space(struct ptscope_space *space)
{
	struct ptscope_level *level = space->levels;
	bool five = pgtable_l5_enabled();

	*level++ = (struct ptscope_level) {
		.number = PTSCOPE_LEVEL_PGD,
		.helpers = five ? PTSCOPE_LEVEL_PGD : PTSCOPE_LEVEL_P4D,
		.shift = PGDIR_SHIFT,
		.entries = PTRS_PER_PGD,
	};
	if (five)
		*level++ = (struct ptscope_level) {
			.number = PTSCOPE_LEVEL_P4D,
			.helpers = PTSCOPE_LEVEL_P4D,
			.shift = P4D_SHIFT,
			.entries = PTRS_PER_P4D,
		};
	*level++ = (struct ptscope_level) {
		.number = PTSCOPE_LEVEL_PUD,
		.helpers = PTSCOPE_LEVEL_PUD,
		.shift = PUD_SHIFT,
		.entries = PTRS_PER_PUD,
	};
	*level++ = (struct ptscope_level) {
		.number = PTSCOPE_LEVEL_PMD,
		.helpers = PTSCOPE_LEVEL_PMD,
		.shift = PMD_SHIFT,
		.entries = PTRS_PER_PMD,
	};
	*level++ = (struct ptscope_level) {
		.number = PTSCOPE_LEVEL_PTE,
		.helpers = PTSCOPE_LEVEL_PTE,
		.shift = PAGE_SHIFT,
		.entries = PTRS_PER_PTE,
	};
	space->count = level - space->levels;
	space->user_last = (1UL << __VIRTUAL_MASK_SHIFT) - 1;
	space->kernel_first = ~space->user_last;
}

/*
 * native_make_*() because __pgd() and its kin turn a frame number into a
 * machine frame number under Xen PV, and a raw entry already holds the latter.
 */
static inline pgd_t ptscope_make_pgd(u64 raw)
{
	return native_make_pgd(raw);
}

static inline p4d_t ptscope_make_p4d(u64 raw)
{
	return native_make_p4d(raw);
}

static inline pud_t ptscope_make_pud(u64 raw)
{
	return native_make_pud(raw);
}

static inline pmd_t ptscope_make_pmd(u64 raw)
{
	return native_make_pmd(raw);
}

/*
 * Under PTI the root is two pages, of which user mode runs on the second.
 * From 7.x on that page does not exist while PTI is off, so the feature bit
 * has to be asked, not only the config.
 */
#if defined(CONFIG_PAGE_TABLE_ISOLATION) || defined(CONFIG_MITIGATION_PAGE_TABLE_ISOLATION)
static inline const u64 *ptscope_arch_user_root(pgd_t *root)
{
	if (!boot_cpu_has(X86_FEATURE_PTI))
		return NULL;
	return (const u64 *)kernel_to_user_pgdp(root);
}

static inline bool ptscope_arch_pti(void)
{
	return boot_cpu_has(X86_FEATURE_PTI);
}
#else
static inline const u64 *ptscope_arch_user_root(pgd_t *root)
{
	return NULL;
}

static inline bool ptscope_arch_pti(void)
{
	return false;
}
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
#if defined(CONFIG_HAVE_ARCH_USERFAULTFD_WP) && defined(_PAGE_BIT_UFFD_WP)
	{ "uffd_wp", _PAGE_BIT_UFFD_WP },
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
