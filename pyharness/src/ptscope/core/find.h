/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Where a frame is mapped: the entries of a stream whose page includes it.
 *
 * One search reads one stream.  For each batch: ptscope_find_batch(), then
 * ptscope_find_next() until it returns 0; each PTSCOPE_FIND_FOUND before means
 * that "found" holds the next entry, or run of equal entries, that has the frame:
 * as a page of any size, or as the frame of a migration or device entry.
 *
 * Most entries are dismissed by their address alone, which needs no decoding;
 * those that are left are decoded by the rules of decode.h.
 */
#ifndef PTSCOPE_FIND_H
#define PTSCOPE_FIND_H

#include <linux/types.h>
#include "core.h"
#include "decode.h"

#define PTSCOPE_FIND_FOUND 1

#define PTSCOPE_FIND_FLIPS 4

/* How an address can stand in the entries of one level. */
struct ptscope_find_level {
	const struct ptscope_rules *rules;
	__u64 size;			/* the largest that an entry of this level may stand for */
	__u64 flips[4];
	__u32 flip_count;
	__u32 reserved;
};

/* Entries of one table that follow each other, are equal and have the frame. */
struct ptscope_find_found {
	__u64 address;			/* that the first of them maps */
	__u64 frame_address;		/* at which the frame itself appears */
	__u64 raw;
	__u64 entry_pa;
	__u64 count;
	__u32 level;
	__u32 lock;			/* as in ptscope_batch */
	__u32 in_vma;
	__u32 has_user_root;
	__u64 user_root;		/* under PTI, the user copy's entry of the root */
	__u64 chain[6];			/* entries above it, by wire level; 0 where none was walked */
	struct ptscope_vma vma;		/* the VMA that the address is in */
};

struct ptscope_find {
	struct ptscope_cursor cursor;
	struct ptscope_limits limits;
	__u64 sequence;
	__u64 first;			/* physical addresses that are looked for, both inside */
	__u64 last;
	__u64 looked;			/* entries, as far as they were not reported before */
	__u64 root_pa;			/* physical address of the root; 0 before the first table */
	__u64 next;			/* entry to go on with in the table, 0 with none */
	__u32 in_vma;
	__u32 in_table;
	__u32 lock;
	__u32 has_user_root;
	__u64 user_root;
	__u64 chain[6];
	struct ptscope_vma vma;
	struct ptscope_find_level levels[6];
	struct ptscope_find_found found;
};

int ptscope_find_start(struct ptscope_find *find, const struct ptscope_limits *limits, __u64 first, __u64 last);
int ptscope_find_level(struct ptscope_find *find, const struct ptscope_rules *rules);
int ptscope_find_batch(struct ptscope_find *find, const void *buffer, __u64 length);
int ptscope_find_next(struct ptscope_find *find);

__u64 ptscope_find_page(const __u64 *entries, __u64 count, __u64 from, __u64 pfn);

#endif /* PTSCOPE_FIND_H */
