/* SPDX-License-Identifier: GPL-2.0-only */
/* What the files of the module share. */
#ifndef PTSCOPE_INTERNAL_H
#define PTSCOPE_INTERNAL_H

#include <linux/atomic.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/mm_types.h>
#include <linux/pid.h>
#include <linux/sched.h>
#include <linux/types.h>

#include "ptscope.h"

/* space.c: the levels and halves of the address space, as the hardware walks them */

#define PTSCOPE_LEVELS 5

struct ptscope_level {
	u8 number;	/* PTSCOPE_LEVEL_* */
	u8 shift;
	u16 entries;
};

/* Filled once at load, before any file exists. */
struct ptscope_space {
	unsigned int count;
	struct ptscope_level levels[PTSCOPE_LEVELS];	/* root first, PTE last */
	u64 user_last;
	u64 kernel_first;
};

extern struct ptscope_space ptscope_space;
extern const char * const ptscope_level_names[PTSCOPE_LEVELS + 1];

void ptscope_space_init(void);

struct ptscope_bit {
	const char *name;
	unsigned int bit;
};

/* target.c: which address space */

/*
 * A target keeps the identity of an address space but not its memory:
 * mm_count is held, mm_users is not.  The kernel half has neither.
 */
struct ptscope_target {
	struct pid *pid;
	struct mm_struct *mm;
	char comm[TASK_COMM_LEN];
};

int ptscope_target_get(struct ptscope_target *target, pid_t nr);
void ptscope_target_put(struct ptscope_target *target);
struct mm_struct *ptscope_target_mm(const struct ptscope_target *target, u32 *status);

/* dump.c: jobs; batch.c: batches */

/*
 * Where a stream stands.  A batch works on a copy that replaces the original
 * once the batch was delivered, so a batch that is thrown away leaves no trace.
 */
struct ptscope_position {
	u64 address;		/* next to look at, within range number "range" */
	u64 sequence;
	u64 seen[PTSCOPE_LEVEL_PGD + 1];	/* last address reported, per level */
	/* Per level: the last entry whose table was reported whole, and the end of what it maps. */
	struct {
		u64 raw;
		u64 last;
	} told[PTSCOPE_LEVEL_PGD + 1];
	u64 seen_vma;		/* VMAs that start below were reported */
	u32 range;
	bool need_write;	/* an address outside VMAs waits for the write lock */
	bool done;		/* the end record was delivered */
};

struct ptscope_job {
	struct ptscope_target target;
	struct ptscope_position at;
	struct ptscope_range *ranges;
	u32 range_count;
	u32 flags;
	bool kernel;
	size_t size;		/* bytes of "buffer" */
	void *buffer;
	void *second;		/* kernel half: the same again, to compare */
	u64 *bounce;		/* kernel half: one table */
};

int ptscope_job_start(struct ptscope_job *job, pid_t pid, size_t size);
void ptscope_job_end(struct ptscope_job *job);
ssize_t ptscope_batch(struct ptscope_job *job, struct ptscope_position *at, size_t limit);

/* main.c */

int ptscope_permitted(void);

/* stats.c */

struct ptscope_stats {
	atomic64_t walks;
	atomic64_t dumps;
	atomic64_t batches;
	atomic64_t write_lock_batches;
	atomic64_t kernel_retries;
	atomic64_t entries;
	atomic64_t longest_lock_ns;
};

extern struct ptscope_stats ptscope_stats;

void ptscope_stats_lock_held(u64 ns);

/* map.c */

u64 ptscope_map_pages(void);

/* The files */

extern const struct file_operations ptscope_layout_fops;
extern const struct file_operations ptscope_walk_fops;
extern const struct file_operations ptscope_dump_fops;
extern const struct file_operations ptscope_stats_fops;
extern struct miscdevice ptscope_map_device;

#endif /* PTSCOPE_INTERNAL_H */
