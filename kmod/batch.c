// SPDX-License-Identifier: GPL-2.0-only
/*
 * Batches: takes the locks, walks as much as one hold allows, and notes where
 * to go on.  Why which lock keeps which table alive is said in walk.c.
 */

#include <linux/hugetlb.h>
#include <linux/ktime.h>
#include <linux/limits.h>
#include <linux/mm.h>
#include <linux/rwsem.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/string.h>

#include "internal.h"
#include "walk.h"

#define KERNEL_TRIES	8

/* Enough work to get ahead by some entries from wherever a batch begins. */
#define WORK_LEAST	1024

/*
 * walk_range() - walk the range of the position to its end, in segments
 *
 * A segment is what can be walked with the same locks: one hugetlb VMA, or
 * all up to the next one.  Under the write lock, which is for a hole, it ends
 * with the hole, and the batch with it.
 *
 * Contract: mmap_lock is held (user half); takes i_mmap_rwsem after it, which
 * is the order of the fault path.
 */
static int walk_range(struct walk *w)
{
	struct ptscope_position *at = w->at;
	struct rw_semaphore *sem;
	int ret;

	w->first = at->address;
	w->next = w->job->kernel ? NULL : find_vma(w->mm, at->address);
	w->work -= WORK_RANGE;
	do {
		struct vm_area_struct *vma = w->next;
		bool inside = vma && vma->vm_start <= at->address;

		sem = NULL;
		w->hugetlb = NULL;
		w->vma_first = U64_MAX;
		w->vma_last = 0;
		w->last = w->end;
		if (inside && is_vm_hugetlb_page(vma)) {
			sem = &vma->vm_file->f_mapping->i_mmap_rwsem;
			if (down_read_killable(sem))
				return -EINTR;
			w->hugetlb = vma;
		}
		if (inside && (w->hugetlb || w->write_locked))
			w->last = min_t(u64, w->end, vma->vm_end - 1);
		else if (vma && !inside && w->write_locked)
			w->last = min_t(u64, w->end, vma->vm_start - 1);

		ret = ptscope_walk_segment(w);
		if (sem)
			up_read(sem);
		if (ret == WALK_HUGETLB)
			continue;
		if (ret)
			return ret;
		if (w->last == w->end)
			return WALK_DONE;
		at->address = w->last + 1;
		if (w->write_locked)
			return WALK_FULL;
	} while (true);
}

/*
 * walk_ranges() - walk from the position on until a batch is full
 *
 * Contract: that of walk_range().
 *
 * Return: WALK_DONE when all ranges are done, other WALK_*, or an error.
 */
static int walk_ranges(struct walk *w)
{
	struct ptscope_position *at = w->at;
	int ret = WALK_DONE;

	while (at->range < w->job->range_count) {
		const struct ptscope_range *range = &w->job->ranges[at->range];

		if (w->work <= 0)
			return WALK_FULL;
		w->single = range->first == range->last;
		w->end = range->last;
		ret = walk_range(w);
		if (ret)
			break;
		at->range++;
		memset(at->seen, 0, sizeof(at->seen));
		memset(at->told, 0, sizeof(at->told));
		at->seen_vma = 0;
		at->address = at->range < w->job->range_count ? range[1].first : 0;
		if (w->write_locked && at->range < w->job->range_count)
			return WALK_FULL;
	}
	return ret;
}

static void start_walk(struct walk *w, const struct ptscope_job *job, struct ptscope_position *at,
		       void *buffer, size_t limit)
{
	*w = (struct walk) {
		.job = job,
		.at = at,
		.buffer = buffer,
		.used = sizeof(struct ptscope_batch),
		.limit = limit - sizeof(struct ptscope_end),
		.work = WORK_BATCH,
	};
}

static void emit_end(struct walk *w, u32 status)
{
	struct ptscope_end *end = w->buffer + w->used;

	*end = (struct ptscope_end) {
		.record.type = PTSCOPE_RECORD_END,
		.record.size = sizeof(*end),
		.status = status,
		.address = w->at->address,
	};
	w->used += sizeof(*end);
	w->at->done = true;
}

static size_t finish_batch(struct walk *w, u32 lock, u64 lock_ns, u32 retries)
{
	struct ptscope_batch *batch = w->buffer;

	*batch = (struct ptscope_batch) {
		.record.type = PTSCOPE_RECORD_BATCH,
		.record.size = sizeof(*batch),
		.magic = PTSCOPE_MAGIC,
		.version = PTSCOPE_VERSION,
		.header_size = sizeof(*batch),
		.sequence = w->at->sequence++,
		.lock_ns = lock_ns,
		.lock = lock,
		.retries = retries,
	};
	atomic64_inc(&ptscope_stats.batches);
	atomic64_add(w->entries, &ptscope_stats.entries);
	return w->used;
}

/*
 * user_batch() - one batch of the user half of a process
 *
 * Contract: sleeps, called without locks.  Takes mm_users and mmap_lock, and
 * drops both, in the other order, before anything is copied to user space:
 * the target may be the caller, and a fault with its lock held would deadlock
 * as soon as a writer waits.
 */
static ssize_t user_batch(struct ptscope_job *job, struct ptscope_position *at, size_t limit)
{
	struct ptscope_position start = *at;
	struct mm_struct *mm;
	struct walk w;
	u32 status;
	u64 ns;
	int ret;

	mm = ptscope_target_mm(&job->target, &status);
	if (!mm) {
		start_walk(&w, job, at, job->buffer, limit);
		emit_end(&w, status);
		return finish_batch(&w, PTSCOPE_LOCK_NONE, 0, 0);
	}
again:
	start_walk(&w, job, at, job->buffer, limit);
	w.mm = mm;
	w.write_locked = at->need_write;
	if (w.write_locked)
		ret = mmap_write_lock_killable(mm);
	else
		ret = mmap_read_lock_killable(mm);
	if (ret) {
		mmput(mm);
		return -EINTR;
	}
	at->need_write = false;
	ns = ktime_get_ns();
	ret = walk_ranges(&w);
	ns = ktime_get_ns() - ns;
	if (w.write_locked)
		mmap_write_unlock(mm);
	else
		mmap_read_unlock(mm);
	ptscope_stats_lock_held(ns);

	if (ret == WALK_LOCK) {
		/* Not a step ahead: do not deliver the way down for nothing. */
		if (at->range == start.range && at->address == start.address) {
			*at = start;
			at->need_write = true;
			goto again;
		}
		at->need_write = true;
	}
	mmput(mm);
	if (ret < 0)
		return ret;
	if (w.write_locked)
		atomic64_inc(&ptscope_stats.write_lock_batches);
	if (ret == WALK_DONE)
		emit_end(&w, PTSCOPE_END_DONE);
	return finish_batch(&w, w.write_locked ? PTSCOPE_LOCK_WRITE : PTSCOPE_LOCK_READ, ns, 0);
}

/*
 * kernel_batch() - one batch of the kernel half: a snapshot
 *
 * Contract: sleeps, called without locks.  The root is a static table of the
 * kernel or, where one root serves both halves, that of the caller's own mm;
 * for what is below it see read_entries().  Walks twice and delivers only what came out the same;
 * each further try takes a smaller piece.
 */
static ssize_t kernel_batch(struct ptscope_job *job, struct ptscope_position *at, size_t limit)
{
	struct ptscope_position start = *at, second;
	struct walk a, b;
	unsigned int try;
	int ret;

	if (!current->mm)
		return -EOPNOTSUPP;
	for (try = 0; try < KERNEL_TRIES; try++) {
		size_t size = max_t(size_t, limit >> try, PTSCOPE_MIN_READ);

		if (fatal_signal_pending(current))
			return -EINTR;
		*at = start;
		start_walk(&a, job, at, job->buffer, size);
		a.mm = current->mm;
		a.work = max(WORK_BATCH >> try, WORK_LEAST);
		ret = walk_ranges(&a);

		second = start;
		start_walk(&b, job, &second, job->second, size);
		b.mm = current->mm;
		b.work = max(WORK_BATCH >> try, WORK_LEAST);
		if (walk_ranges(&b) == ret && ret != WALK_CHANGED && a.used == b.used &&
		    !memcmp(a.buffer + sizeof(struct ptscope_batch),
			    b.buffer + sizeof(struct ptscope_batch),
			    a.used - sizeof(struct ptscope_batch))) {
			if (ret == WALK_DONE)
				emit_end(&a, PTSCOPE_END_DONE);
			return finish_batch(&a, PTSCOPE_LOCK_NONE, 0, try);
		}
		atomic64_inc(&ptscope_stats.kernel_retries);
		cond_resched();
	}
	*at = start;
	start_walk(&a, job, at, job->buffer, limit);
	emit_end(&a, PTSCOPE_END_UNSTABLE);
	return finish_batch(&a, PTSCOPE_LOCK_NONE, 0, try);
}

/**
 * ptscope_batch() - fill job->buffer with the next batch of whole records
 * @job: what to walk
 * @at: where to begin; afterwards where to go on
 * @limit: bytes, from PTSCOPE_MIN_READ to job->size
 *
 * Context: sleeps; no locks held.
 * Return: bytes in the buffer, or -EINTR when the caller was killed.
 */
ssize_t ptscope_batch(struct ptscope_job *job, struct ptscope_position *at, size_t limit)
{
	return job->kernel ? kernel_batch(job, at, limit) : user_batch(job, at, limit);
}
