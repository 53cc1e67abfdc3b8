/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Is what the module returned consistent in itself?
 *
 * A chain of entries read from live page tables is consistent when each entry
 * above the last is a table entry that holds the address of the table in which
 * the next one was found, and each index is the one that the address asks for.
 * Nothing here knows what the target did: whatever it does, this must hold.
 *
 * A table that was freed while it was read passes that, as the entry above did
 * hold its address.  What gives it away is what it holds: with page_poison=1 on
 * the kernel's command line a freed page is filled with 0xaa, and whoever got
 * it next fills it with anything, but hardly with entries that are present and
 * all open to user mode, as every present entry of the user half is.
 */
#ifndef CHAINS_H
#define CHAINS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MAX_LEVELS 5

struct level {
	const char *name;
	int number;			/* as in the wire format: PTE 1 ... PGD 5 */
	int shift;
	unsigned int entries;
};

/* What the checks need of the module's "layout". */
struct facts {
	int levels;
	struct level level[MAX_LEVELS];	/* root first, walked levels only */
	/* The address in a table entry comes in up to two pieces, each shifted left. */
	struct { uint64_t mask; int shift; } piece[2];
	uint64_t physical;		/* bits that an address of a table may have */
	uint64_t present;
	uint64_t table_mask, table_bits;	/* a present entry with these is a table */
	uint64_t user;
	bool user_in_tables;		/* table entries have that bit too */
	uint64_t user_last;
	uint64_t kernel_first;
	bool pti;
};

/* A text for what is wrong, or NULL.  The texts are in static storage. */
const char *read_facts(const char *layout_text, struct facts *facts);

/* One answer of "walk" to "PID ADDRESS"; changes the text. */
const char *check_walk(const struct facts *facts, uint64_t address, char *text);

/* The whole answer of "dump" to one request, batch by batch. */
struct stream {
	const struct facts *facts;
	bool points;			/* every range of the request is one address */
	bool ended;
	uint32_t end_status;
	uint64_t batches, write_locked, parts, entries, vmas;
	uint64_t root_pa;
};

const char *check_batch(struct stream *stream, const unsigned char *data, size_t size);

#endif
