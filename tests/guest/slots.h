/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Where churn maps and walker looks.  The places are fixed and far apart, so
 * that each has page tables of its own (at every level below the root where
 * pages have 4K and there are no more than four levels, of the two lowest
 * everywhere), which are freed whenever the place is unmapped; walker hits
 * mappings, holes and half-finished changes without being told which.
 */
#ifndef SLOTS_H
#define SLOTS_H

#include <stdint.h>
#include <unistd.h>

/* What an entry of each level maps, in bytes. */
struct spans {
	uint64_t page, huge, pud;
};

enum slot_kind {
	/* changed at random */
	SLOT_ANON, SLOT_SHMEM, SLOT_SMALL, SLOT_HUGETLB, SLOT_HIGH, SLOT_TABLES,
	/* left alone by all but one thread, which looks at what became of them */
	SLOT_MOVE, SLOT_NEIGHBOUR, SLOT_SWAP, SLOT_MIGRATE, SLOT_KHUGEPAGED,
	SLOT_RECLAIM, SLOT_RETRACT, SLOT_SHARE, SLOT_TEXT,
	SLOT_COUNT
};

struct slot {
	uint64_t address;
	uint64_t length;
};

static struct spans spans;
static struct slot slots[SLOT_COUNT];

/* This far away are the other ends of moves, and other mappings of the same file. */
static uint64_t slot_away;

static inline void place_slots(void)
{
	static const struct {
		uint64_t address;	/* TiB */
		unsigned int pages, huge, puds;
	} plan[SLOT_COUNT] = {
		[SLOT_ANON] = { 16, .huge = 4 },
		[SLOT_SHMEM] = { 17, .huge = 2 },
		[SLOT_SMALL] = { 18, .pages = 64 },
		[SLOT_HUGETLB] = { 19, .puds = 1 },	/* long enough to share PMD tables */
		[SLOT_HIGH] = { 256, .pages = 64 },	/* beyond 47 and 48 bits */
		[SLOT_TABLES] = { 20, .huge = 16 },	/* a page in each of its PTE tables */
		[SLOT_MOVE] = { 21, .puds = 1 },
		[SLOT_NEIGHBOUR] = { 22, .huge = 2 },
		[SLOT_SWAP] = { 23, .huge = 1 },
		[SLOT_MIGRATE] = { 24, .huge = 2 },
		[SLOT_KHUGEPAGED] = { 25, .huge = 1 },
		[SLOT_RECLAIM] = { 26, .huge = 2 },
		[SLOT_RETRACT] = { 27, .huge = 1 },
		[SLOT_SHARE] = { 28, .puds = 1 },
		[SLOT_TEXT] = { 29, .huge = 1 },
	};

	spans.page = sysconf(_SC_PAGESIZE);
	spans.huge = spans.page / 8 * spans.page;
	spans.pud = spans.page / 8 * spans.huge;
	slot_away = 2 * spans.pud;
	for (int kind = 0; kind < SLOT_COUNT; kind++)
		slots[kind] = (struct slot){
			.address = plan[kind].address << 40,
			.length = plan[kind].pages * spans.page + plan[kind].huge * spans.huge
				  + plan[kind].puds * spans.pud,
		};
}

#endif
