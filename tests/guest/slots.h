/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Where churn maps and walker looks.  The places are fixed and far apart, so
 * that each has page tables of its own at every level below the root, which
 * are freed whenever the place is unmapped; walker hits mappings, holes and
 * half-finished changes without being told which.
 */
#ifndef SLOTS_H
#define SLOTS_H

#include <stdint.h>

enum slot_kind {
	SLOT_ANON, SLOT_SMALL, SLOT_SHMEM, SLOT_HUGETLB, SLOT_TABLES, SLOT_HIGH, SLOT_COUNT
};

struct slot {
	uint64_t address;
	uint64_t length;
};

static const struct slot slots[SLOT_COUNT] = {
	[SLOT_ANON] = { 0x100000000000, 8ul << 20 },
	[SLOT_SMALL] = { 0x110000000000, 64ul << 12 },
	[SLOT_SHMEM] = { 0x120000000000, 4ul << 20 },
	[SLOT_HUGETLB] = { 0x140000000000, 1ul << 30 },	/* long enough to share PMD tables */
	[SLOT_TABLES] = { 0x150000000000, 32ul << 20 },	/* a page in each of its PTE tables */
	[SLOT_HIGH] = { 1ul << 48, 64ul << 12 },		/* five levels only */
};

/* mremap takes SLOT_ANON this far away and back. */
#define SLOT_MOVED (1ul << 30)

#endif
