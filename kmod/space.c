// SPDX-License-Identifier: GPL-2.0-only
/* Which levels the hardware walks, and where the halves of the address space lie. */

#include <linux/cache.h>
#include <linux/init.h>
#include <linux/kernel.h>
#include <linux/mm.h>
#include <linux/pgtable.h>

#include "arch/arch.h"
#include "internal.h"

struct ptscope_space ptscope_space __ro_after_init;

const char * const ptscope_level_names[PTSCOPE_LEVELS + 1] = {
	[PTSCOPE_LEVEL_PTE] = "pte",
	[PTSCOPE_LEVEL_PMD] = "pmd",
	[PTSCOPE_LEVEL_PUD] = "pud",
	[PTSCOPE_LEVEL_P4D] = "p4d",
	[PTSCOPE_LEVEL_PGD] = "pgd",
};

/*
 * ptscope_space_init() - find the levels that are walked on this machine
 *
 * An entry of a folded level is an entry of the level above: one slot, which
 * keeps the name of the upper level, so that the root is always the PGD, and
 * maps what the lower level says.  The upper shift need not be true then: an
 * arm64 kernel for 52-bit addresses has a PGDIR_SHIFT of 48 on hardware with
 * 48 bits too, where its root is a whole page with a shift of 39.
 *
 * mm_pXd_folded() tell what is folded now, at compile time or at run time; they
 * look at the mm on s390 only.
 */
void __init ptscope_space_init(void)
{
	const struct {
		u8 number;
		u8 shift;
		bool folded;
	} compiled[] = {
		{ PTSCOPE_LEVEL_PGD, PGDIR_SHIFT, false },
		{ PTSCOPE_LEVEL_P4D, P4D_SHIFT, mm_p4d_folded(NULL) },
		{ PTSCOPE_LEVEL_PUD, PUD_SHIFT, mm_pud_folded(NULL) },
		{ PTSCOPE_LEVEL_PMD, PMD_SHIFT, mm_pmd_folded(NULL) },
		{ PTSCOPE_LEVEL_PTE, PAGE_SHIFT, false },
	};
	struct ptscope_space *space = &ptscope_space;
	unsigned int above = ptscope_arch_root_bits();
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(compiled); i++) {
		if (!compiled[i].folded)
			space->levels[space->count++].number = compiled[i].number;
		space->levels[space->count - 1].shift = compiled[i].shift;
	}
	for (i = 0; i < space->count; i++) {
		space->levels[i].entries = 1U << (above - space->levels[i].shift);
		above = space->levels[i].shift;
	}
	space->user_last = (1ULL << ptscope_arch_half_bits()) - 1;
	space->kernel_first = ~space->user_last;
}
