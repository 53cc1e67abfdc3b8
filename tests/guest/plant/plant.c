// SPDX-License-Identifier: GPL-2.0-only
/*
 * Faults for the tests, and for nothing else: a kernel that checks has to
 * report each of them, or its silence about the module means nothing.
 *
 * Writing the name of one to /sys/module/ptscope/parameters/plant has the next
 * batch make that mistake, once.
 */

#include <linux/file.h>
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/rcupdate.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "internal.h"

ssize_t __real_ptscope_batch(struct ptscope_job *job, struct ptscope_position *at, size_t limit);
ssize_t __wrap_ptscope_batch(struct ptscope_job *job, struct ptscope_position *at, size_t limit);

static char plant[32];
module_param_string(plant, plant, sizeof(plant), 0600);

static int __rcu *plant_pointer;

/* A file that the target maps, with a reference. */
static struct file *some_file(struct mm_struct *mm)
{
	struct vm_area_struct *vma;
	struct file *file = NULL;

	mmap_read_lock(mm);
	for (vma = find_vma(mm, 0); vma && !file; vma = find_vma(mm, vma->vm_end))
		if (vma->vm_file)
			file = get_file(vma->vm_file);
	mmap_read_unlock(mm);
	return file;
}

/* The kernel's order is mmap_lock first, as where a file is mapped. */
static void lock_inversion(struct mm_struct *mm)
{
	struct file *file = some_file(mm);

	if (!file)
		return;
	i_mmap_lock_read(file->f_mapping);
	mmap_read_lock(mm);
	mmap_read_unlock(mm);
	i_mmap_unlock_read(file->f_mapping);
	fput(file);
}

static void sleep_in_rcu(void)
{
	rcu_read_lock();
	might_sleep();
	rcu_read_unlock();
}

static void rcu_unprotected(void)
{
	(void)rcu_dereference(plant_pointer);
}

/* What a walker would do that moved on to another buffer and kept a pointer into the old one. */
static noinline void use_after_free(const void *batch, size_t size)
{
	const u64 *copy = kmemdup(batch, size, GFP_KERNEL);

	if (!copy)
		return;
	kfree(copy);
	READ_ONCE(copy[size / sizeof(*copy) - 1]);
}

ssize_t __wrap_ptscope_batch(struct ptscope_job *job, struct ptscope_position *at, size_t limit)
{
	struct mm_struct *mm = job->target.mm;
	char name[sizeof(plant)];
	ssize_t ret;

	kernel_param_lock(THIS_MODULE);
	strscpy(name, strim(plant), sizeof(name));
	plant[0] = '\0';
	kernel_param_unlock(THIS_MODULE);

	if (mm && !strcmp(name, "lock_inversion") && mmget_not_zero(mm)) {
		lock_inversion(mm);
		mmput(mm);
	}
	ret = __real_ptscope_batch(job, at, limit);
	if (!strcmp(name, "use_after_free") && ret > 0)
		use_after_free(job->buffer, ret);
	if (!strcmp(name, "sleep_in_rcu"))
		sleep_in_rcu();
	if (!strcmp(name, "rcu_unprotected"))
		rcu_unprotected();
	return ret;
}
