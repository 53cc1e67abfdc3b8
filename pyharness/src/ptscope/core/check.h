/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What `ptscope check` asks of every entry of a stream, a batch at a time: which
 * entries are suspect, what each VMA holds, which tables there are, and what
 * /proc/PID/pagemap must say of each page.
 *
 * Nothing here knows an architecture or an invariant: rows of bits come from
 * check/rules.py.  A suspect is no finding.  It is read anew and judged by the
 * reference decoder (check/confirm.py), so this may suspect too much, but
 * must not miss anything.
 */
#ifndef PTSCOPE_CHECK_H
#define PTSCOPE_CHECK_H

#include <linux/types.h>

#include "core.h"
#include "decode.h"

/* Bits of ptscope_check_row.where */
#define PTSCOPE_WHERE_INSIDE 1		/* a VMA */
#define PTSCOPE_WHERE_OUTSIDE 2		/* of all VMAs, in the user half */
#define PTSCOPE_WHERE_KERNEL 4		/* the kernel half */

/* Bits of ptscope_suspect.why */
#define PTSCOPE_WHY_ROW 1		/* a row fits */
#define PTSCOPE_WHY_BITS 2		/* a bit without a meaning is set */
#define PTSCOPE_WHY_ALIGNMENT 4		/* a page that is not aligned to its size */
#define PTSCOPE_WHY_FRAME 8		/* a frame outside of all known ranges */
#define PTSCOPE_WHY_TABLE_FRAME 16	/* a table outside of RAM */
#define PTSCOPE_WHY_LINK 32		/* a table where no entry points to */
#define PTSCOPE_WHY_GROUP 64		/* part of a group of entries that is none */
#define PTSCOPE_WHY_USER_PGD 128	/* the two copies of the root differ */
#define PTSCOPE_WHY_ACROSS 256		/* a page that leaves its VMA */

/*
 * An entry is suspect when it is in one of the states, at one of the levels, has
 * all attributes of "set" and none of "clear", and the flags of its VMA (0 without
 * one) are vma_value under vma_mask.
 */
struct ptscope_check_row {
	__u64 vma_mask;
	__u64 vma_value;
	__u32 where;
	__u32 states;			/* 1 << state */
	__u32 levels;			/* 1 << level */
	__u32 set;
	__u32 clear;
	__u32 unless_zero;		/* not for the zero page */
};

struct ptscope_suspect {
	__u64 address;
	__u64 raw;
	__u32 level;
	__u32 why;
};

/*
 * What this batch has of a VMA; the first area of each batch (end 0) is what is outside
 * of all of them.  Entries that the stream reports again are left out.
 */
struct ptscope_area {
	__u64 start;
	__u64 end;
	__u64 vm_flags;
	__u64 inode;
	__u64 hugetlb;
	__u64 counts[66];		/* entries by 11 * level + state */
	__u64 special[6];		/* of these the mapped ones with the special bit, by level */
	__u64 digest;			/* of all entries but their aging bits, in whatever order */
};

/* A table, from the entry that points to it, or a huge page. */
struct ptscope_placed {
	__u64 pa;
	__u64 address;
	__u32 level;			/* of the entry */
	__u32 set;			/* attributes of the entry */
	__u64 area;			/* in ptscope_check.areas */
};

/*
 * Consecutive pages and what pagemap must say of them: the words from
 * ptscope_check.words[word] on, or, with a step or for more than one page
 * without words, "word" itself, raised by step with each page.
 */
struct ptscope_check_span {
	__u64 address;
	__u64 count;
	__u64 word;
	__u64 step;
	__u64 in_words;
};

/* The most of each kind that a batch can give: more than entries fit into one. */
#define PTSCOPE_CHECK_ROOM 32768
#define PTSCOPE_AREA_ROOM 4224
/* Entries of the largest table there is, with pages of 64 KiB. */
#define PTSCOPE_TABLE_ROOM 8192

struct ptscope_check {
	/* What to check, the same for a whole stream */
	const struct ptscope_rules *rules[6];	/* by level, NULL for a folded one */
	const struct ptscope_check_row *rows;
	const struct ptscope_range *ranges;	/* of physical addresses, sorted: RAM and devices */
	const struct ptscope_range *ram;	/* those of RAM */
	__u64 row_count;
	__u64 range_count;		/* 0: not known, so not checked */
	__u64 ram_count;
	__u64 explained[66];		/* bits that mean something, by 11 * level + state */
	__u64 unaligned[6];		/* raw address bits below the size of a page of the level */
	__u64 aging;			/* bits that the hardware changes: accessed, dirty */
	__u64 pti_nx;			/* under PTI the bit that the user half's root entries have */
	__u64 vm_pfnmap;
	__u64 vm_softdirty;
	__u64 zero_pfn;			/* of the zero page */
	__u32 kernel;			/* the kernel half: there are no VMAs */
	__u32 uffd_wp_shown;		/* pagemap shows it */

	/* Where the stream is */
	struct ptscope_decoded parent[6];	/* the last entry of each level in this batch */
	__u64 parent_address[6];
	const struct ptscope_table *user_pgd;
	__u64 entries;			/* that were checked so far */

	/* What this batch gave */
	struct ptscope_suspect *suspects;
	struct ptscope_area *areas;
	struct ptscope_placed *tables;
	struct ptscope_placed *leaves;	/* huge pages */
	__u64 *words;
	struct ptscope_check_span *spans;
	__u64 suspect_count;
	__u64 area_count;
	__u64 table_count;
	__u64 leaf_count;
	__u64 word_count;
	__u64 span_count;
	__u64 end_status;		/* 0: the stream goes on */
	__u64 end_address;
	struct ptscope_decoded *scratch;	/* room for PTSCOPE_TABLE_ROOM */
};

int ptscope_check_batch(struct ptscope_check *check, const void *buffer, __u64 length, __u64 sequence, const struct ptscope_limits *limits);

__u64 ptscope_check_pagemap(const struct ptscope_check_span *span, const __u64 *words, __u64 care, const __u64 *pagemap, __u64 *bad, __u64 room);

/* What pagemap shows of some pages, summed up. */
struct ptscope_leaves {
	__u64 present;
	__u64 swapped;
	__u64 zero;			/* present ones that are the zero page */
	__u64 digest;			/* equal for equal pages at equal places */
	__u64 outside;			/* frames in none of the ranges */
	__u64 outside_at;		/* the first of them, by its place among the pages */
};

void ptscope_check_leaves(const __u64 *pagemap, __u64 count, const struct ptscope_range *ranges, __u64 range_count, __u64 zero_pfn, __u64 page_size, __u64 first, struct ptscope_leaves *sums);

#endif /* PTSCOPE_CHECK_H */
