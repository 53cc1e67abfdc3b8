// SPDX-License-Identifier: GPL-2.0-only
/* The "layout" file: which kernel this is and how its entries are to be read. */

#include <linux/mm.h>
#include <linux/module.h>
#include <linux/seq_file.h>
#include <linux/swap.h>
#include <linux/swapops.h>
#include <linux/utsname.h>

#include "arch/arch.h"
#include "compat.h"
#include "internal.h"

static const struct {
	const char *name;
	u64 mask;
} vm_flags[] = {
	{ "read", VM_READ },
	{ "write", VM_WRITE },
	{ "exec", VM_EXEC },
	{ "shared", VM_SHARED },
	{ "mayread", VM_MAYREAD },
	{ "maywrite", VM_MAYWRITE },
	{ "mayexec", VM_MAYEXEC },
	{ "mayshare", VM_MAYSHARE },
	{ "growsdown", VM_GROWSDOWN },
	{ "pfnmap", VM_PFNMAP },
	{ "io", VM_IO },
	{ "locked", VM_LOCKED },
	{ "hugetlb", VM_HUGETLB },
	{ "mixedmap", VM_MIXEDMAP },
	{ "softdirty", VM_SOFTDIRTY },
	{ "uffd_missing", VM_UFFD_MISSING },
	{ "uffd_wp", VM_UFFD_WP },
#ifdef VM_UFFD_MINOR		/* 5.13 */
	{ "uffd_minor", VM_UFFD_MINOR },
#endif
#ifdef VM_UFFD_RWP		/* 7.3 */
	{ "uffd_rwp", VM_UFFD_RWP },
#endif
	{ "hugepage", VM_HUGEPAGE },
	{ "nohugepage", VM_NOHUGEPAGE },
	{ "mergeable", VM_MERGEABLE },
	{ "wipeonfork", VM_WIPEONFORK },
	{ "dontcopy", VM_DONTCOPY },
	{ "dontexpand", VM_DONTEXPAND },
	{ "dontdump", VM_DONTDUMP },
	{ "account", VM_ACCOUNT },
	{ "noreserve", VM_NORESERVE },
};

/* Numbers that exist only with the config or version that has the type. */
static const struct {
	const char *name;
	unsigned int type;
} swap_kinds[] = {
#ifdef CONFIG_MEMORY_FAILURE
	{ "hwpoison", SWP_HWPOISON },
#endif
#ifdef CONFIG_MIGRATION
	{ "migration_read", SWP_MIGRATION_READ },
#ifdef SWP_MIGRATION_READ_EXCLUSIVE
	{ "migration_read_exclusive", SWP_MIGRATION_READ_EXCLUSIVE },
#endif
	{ "migration_write", SWP_MIGRATION_WRITE },
#endif
#ifdef CONFIG_DEVICE_PRIVATE
	{ "device_private_read", SWP_DEVICE_READ },
	{ "device_private_write", SWP_DEVICE_WRITE },
#ifdef SWP_DEVICE_EXCLUSIVE_READ
	{ "device_exclusive_read", SWP_DEVICE_EXCLUSIVE_READ },
	{ "device_exclusive_write", SWP_DEVICE_EXCLUSIVE_WRITE },
#endif
#ifdef SWP_DEVICE_EXCLUSIVE	/* one in place of those two from 6.15 on */
	{ "device_exclusive", SWP_DEVICE_EXCLUSIVE },
#endif
#endif
#ifdef SWP_PTE_MARKER
	{ "marker", SWP_PTE_MARKER },
#endif
#ifdef SWP_SWAPIN_ERROR		/* 5.19 to 6.2, then a marker */
	{ "swapin_error", SWP_SWAPIN_ERROR },
#endif
};

static u64 swap_raw(unsigned long type, unsigned long offset)
{
	return pte_val(__swp_entry_to_pte(__swp_entry(type, offset)));
}

static void show_swap_bit(struct seq_file *m, const char *name, u64 before, pte_t after)
{
	u64 mask = before ^ pte_val(after);

	if (mask)
		seq_printf(m, "swap.bit.%s %u\n", name, (unsigned int)__ffs64(mask));
}

/*
 * Where a swap entry keeps what is found by encoding with the kernel's own
 * helpers: the masks are the bits that differ between none and all.
 */
static void show_swap(struct seq_file *m)
{
	u64 zero = swap_raw(0, 0);
	/* Not every __swp_entry() cuts off what does not fit, but __swp_offset() does. */
	unsigned long offset_max = __swp_offset(__swp_entry(0, ~0UL));
	u64 offset_mask = zero ^ swap_raw(0, offset_max);
	pte_t pte = __swp_entry_to_pte(__swp_entry(0, 0));
	unsigned int i;

	seq_printf(m, "swap.type_mask %#llx\n",
		   zero ^ swap_raw((1UL << MAX_SWAPFILES_SHIFT) - 1, 0));
	seq_printf(m, "swap.offset_mask %#llx\n", offset_mask);
	seq_printf(m, "swap.offset_inverted %d\n", (zero & offset_mask) == offset_mask);
	show_swap_bit(m, "soft_dirty", zero, pte_swp_mksoft_dirty(pte));
	show_swap_bit(m, "uffd_wp", zero, ptscope_swp_mkuffd(pte));
	show_swap_bit(m, "exclusive", zero, ptscope_swp_mkexclusive(pte));
	for (i = 0; i < ARRAY_SIZE(swap_kinds); i++)
		seq_printf(m, "swap.kind.%s %u\n", swap_kinds[i].name, swap_kinds[i].type);
#ifdef SWP_PTE_MARKER		/* 6.1 has the bits without the type where it makes no markers */
#ifdef PTE_MARKER_UFFD_WP
	seq_printf(m, "swap.marker.uffd_wp %#llx\n", (u64)PTE_MARKER_UFFD_WP);
#endif
#ifdef PTE_MARKER_POISONED
	seq_printf(m, "swap.marker.poisoned %#llx\n", (u64)PTE_MARKER_POISONED);
#endif
#ifdef PTE_MARKER_GUARD
	seq_printf(m, "swap.marker.guard %#llx\n", (u64)PTE_MARKER_GUARD);
#endif
#endif
}

static void show_runtime(struct seq_file *m)
{
	const struct ptscope_level *level = ptscope_space.levels;
	unsigned int i;

	seq_printf(m, "runtime.levels %u\n", ptscope_space.count);
	for (i = 0; i < ptscope_space.count; i++, level++) {
		const char *name = ptscope_level_names[level->number];

		seq_printf(m, "runtime.level.%s.shift %u\n", name, level->shift);
		seq_printf(m, "runtime.level.%s.entries %u\n", name, level->entries);
	}
	seq_printf(m, "runtime.user_last %#llx\n", ptscope_space.user_last);
	seq_printf(m, "runtime.kernel_first %#llx\n", ptscope_space.kernel_first);
	ptscope_arch_runtime_facts(m);
#ifdef SWP_MIG_YOUNG_BIT
	seq_printf(m, "runtime.swap_pfn_bits %d\n", SWP_PFN_BITS);
#endif
}

static int layout_show(struct seq_file *m, void *unused)
{
	unsigned int i;

	seq_puts(m, "format 1\n");
	seq_printf(m, "arch %s\n", PTSCOPE_ARCH);
	seq_printf(m, "release %s\n", init_uts_ns.name.release);
	seq_printf(m, "page_shift %d\n", PAGE_SHIFT);
	seq_printf(m, "max_levels %d\n", CONFIG_PGTABLE_LEVELS);
	seq_printf(m, "mask.pfn %#llx\n", (u64)PTSCOPE_ARCH_PFN_MASK);
	for (i = 0; i < ARRAY_SIZE(ptscope_arch_bits); i++)
		seq_printf(m, "bit.%s %u\n", ptscope_arch_bits[i].name, ptscope_arch_bits[i].bit);
#ifdef PTSCOPE_HAS_PUD_MKINVALID	/* probed by Kbuild: x86 since 6.11, riscv since 7.x */
	seq_puts(m, "pud_mkinvalid 1\n");
#endif
	ptscope_arch_fixed_facts(m);
	show_swap(m);
	for (i = 0; i < ARRAY_SIZE(vm_flags); i++)
		if (vm_flags[i].mask)
			seq_printf(m, "vm.%s %#llx\n", vm_flags[i].name, vm_flags[i].mask);
	show_runtime(m);
	return 0;
}

static int layout_open(struct inode *inode, struct file *file)
{
	int ret = ptscope_permitted();

	return ret ? ret : single_open(file, layout_show, NULL);
}

const struct file_operations ptscope_layout_fops = {
	.owner = THIS_MODULE,
	.open = layout_open,
	.read = seq_read,
	.llseek = seq_lseek,
	.release = single_release,
};
