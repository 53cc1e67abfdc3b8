/* SPDX-License-Identifier: GPL-2.0-only */
/* A walk in progress: what batch.c sets up and walk.c works on. */
#ifndef PTSCOPE_WALK_H
#define PTSCOPE_WALK_H

#include "internal.h"

/*
 * One batch does this much work at most, to bound how long a lock is held.
 * Looking at an entry costs 1, which is four to eight instructions on x86-64;
 * the others are weighed against that by counting instructions with QEMU's
 * -icount, so that no batch takes much more than 300,000.
 */
#define WORK_BATCH	32768
#define WORK_RUN	28
#define WORK_TABLE	16
#define WORK_VMA	80
#define WORK_RANGE	96

/* How a walk comes to its end, apart from errors. */
enum {
	WALK_DONE = 0,
	WALK_FULL,	/* room or work is used up */
	WALK_LOCK,	/* the next table needs the write lock */
	WALK_HUGETLB,	/* the next address is in a hugetlb VMA */
	WALK_CHANGED,	/* kernel half: a table vanished */
};

struct walk {
	const struct ptscope_job *job;
	struct ptscope_position *at;
	struct mm_struct *mm;

	void *buffer;
	size_t used;
	size_t limit;			/* leaves room for the end record */
	int work;
	u64 entries;

	struct ptscope_table *run;	/* the record being filled, at the end of the buffer */
	u32 count;			/* entries in it, empty ones at its end included */
	u32 gap;			/* how many those are */

	u64 first;			/* of the range, or where this batch took it up */
	u64 last;			/* of the segment walked with the same locks */
	u64 end;			/* last of the range */
	bool single;			/* the range is a single address */
	bool finished;			/* "last" has been looked at */
	bool write_locked;

	struct vm_area_struct *hugetlb;	/* whose i_mmap_rwsem is held */
	struct vm_area_struct *next;	/* first VMA not entered yet, if in the range */
	u64 vma_first;			/* the VMA entered last; above vma_last if none */
	u64 vma_last;
};

int ptscope_walk_segment(struct walk *w);

#endif /* PTSCOPE_WALK_H */
