/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Sums over the batches of one stream: what each VMA has, by level and state.
 *
 * One summary reads one stream.  For each batch: ptscope_summary_batch(), then
 * ptscope_summary_next() until it returns 0; each PTSCOPE_SUMMARY_VMA before
 * means that a VMA is complete and its sums are in "done".  After the last
 * batch ptscope_summary_finish() completes the last VMA.  What lies outside
 * of VMAs is in "outside".
 *
 * Entries of a table that have the same bits, apart from those of the frame,
 * are of the same class.  A class is decoded once, by the rules of decode.h,
 * and counted from then on; this, and comparing whole entries where frames
 * are consecutive, is what makes it fast.
 */
#ifndef PTSCOPE_SUMMARY_H
#define PTSCOPE_SUMMARY_H

#include <linux/types.h>
#include "core.h"
#include "decode.h"

#define PTSCOPE_SUMMARY_VMA 1

#define PTSCOPE_RUNS 40
#define PTSCOPE_CLASS_BITS 12
#define PTSCOPE_CLASSES 4096
#define PTSCOPE_KINDS 32
#define PTSCOPE_FRAMES 32

/* Entries of one level. */
struct ptscope_level_sums {
	__u64 states[11];		/* by state; empty ones between others are counted too */
	__u64 mapped[16];		/* those with a page, by attribute (bit number) */
	__u64 swapped[16];		/* those in the form of a swap entry, likewise */
	__u64 groups[4];		/* those with a page, by the group they are part of */
};

/* A frame that is mapped by huge entries, and by how many. */
struct ptscope_frame_count {
	__u64 pfn;
	__u64 count;
};

/* Bits of ptscope_sums.filled besides 1 << level: what is not filled is all zero. */
#define PTSCOPE_FILLED_KINDS 0x100
#define PTSCOPE_FILLED_RUNS 0x200
#define PTSCOPE_FILLED_TABLES 0x400

struct ptscope_sums {
	__u64 filled;
	struct ptscope_vma vma;		/* as it was first reported; all zero for "outside" */
	__u64 changed;			/* the VMA had other bounds or flags in a later batch */
	__u64 batches;			/* in how many it was read, so: under how many holds */
	struct ptscope_level_sums levels[6];
	/*
	 * Tables by their own level.  A table counts for the first VMA that has
	 * an address in what the table maps.
	 */
	__u64 tables[6];
	__u64 kinds[32];		/* entries by ptscope_decoded.swap_kind */
	/*
	 * Maximal runs of pages that follow each other in memory as they do in the
	 * address space, by the logarithm of their length: 2^i to 2^(i+1) - 1 pages.
	 * Special entries are left out: their frames (zero page, device) are no
	 * memory of the process.
	 */
	__u64 runs[40];
	__u64 run_pages[40];
	/*
	 * Ranges which one PMD entry maps and which lie wholly in the VMA, and have
	 * pages that are mapped by PTEs; and these pages.
	 */
	__u64 small_ranges;
	__u64 small_range_pages;
	/* Huge zero page: PMD entries that map zero_pfn, or read-only candidates while it is 0. */
	__u64 huge_zero;
	__u64 frame_count;
	__u64 frames_lost;
	struct ptscope_frame_count frames[32];
};

/* A class of entries of one level; the key is all bits that matter. */
struct ptscope_class {
	__u64 key;
	__u64 count;			/* not yet added to the sums */
	__u32 set;
	__u8 state;
	__u8 row;			/* of the states */
	__u8 group;
	__u8 kind;
	__u8 in_runs;
	__u8 together;			/* entries of the group all hold the address of the group */
	__u8 used;
	__u8 reserved[5];
};

/* How the entries of one level are put into classes; see summary.c. */
struct ptscope_classes {
	const struct ptscope_rules *rules;
	__u64 key_full;
	__u64 key_present;
	__u64 address;			/* raw bits that are address bits */
	__u64 step;			/* of a raw value to that of the next frame */
	struct ptscope_row present;
	struct ptscope_row gate;
	__u32 zero_is_none;
	__u32 touched_count;
	__u16 touched[4096];
	struct ptscope_class classes[4096];
};

struct ptscope_summary {
	struct ptscope_cursor cursor;
	struct ptscope_limits limits;
	__u64 sequence;
	__u64 zero_pfn;			/* of the huge zero page when known, else 0 */
	__u32 in_vma;
	__u32 again;			/* the current record is to be looked at once more */
	__u64 run_address;		/* where the current run would go on */
	__u64 run_pa;
	__u64 run_length;		/* pages */
	__u64 range;			/* last range counted in small_ranges, plus 1 */
	__u64 pending[6];		/* tables that await the VMA they belong to */
	__u64 pending_end[6];		/* last address that the latest of them maps */
	struct ptscope_sums current;
	struct ptscope_sums done;
	struct ptscope_sums outside;
	struct ptscope_classes levels[6];
};

int ptscope_summary_start(struct ptscope_summary *summary, const struct ptscope_limits *limits);
int ptscope_summary_level(struct ptscope_summary *summary, const struct ptscope_rules *rules);
int ptscope_summary_batch(struct ptscope_summary *summary, const void *buffer, __u64 length);
int ptscope_summary_next(struct ptscope_summary *summary);
int ptscope_summary_finish(struct ptscope_summary *summary);

#endif /* PTSCOPE_SUMMARY_H */
