// SPDX-License-Identifier: GPL-2.0-only
/* From a PID to an address space, and back to it between batches. */

#include <linux/err.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>

#include "internal.h"

/*
 * The address space of a thread group, with mm_users raised, or NULL.
 *
 * All threads share one mm, but each drops it when it exits, and a leader
 * that has exited stays as a zombie while its threads run: so ask them all.
 * The caller's reference on @task keeps the list of threads.
 */
static struct mm_struct *live_mm(struct task_struct *task)
{
	struct mm_struct *mm = NULL;
	struct task_struct *thread;

	rcu_read_lock();
	for_each_thread(task, thread) {
		mm = get_task_mm(thread);
		if (mm)
			break;
	}
	rcu_read_unlock();
	return mm;
}

static struct task_struct *find_task(pid_t nr)
{
	struct task_struct *task;
	struct pid *pid;

	if (nr == PTSCOPE_PID_SELF)
		return get_task_struct(current);
	if (nr < 0)
		return NULL;
	pid = find_get_pid(nr);
	task = get_pid_task(pid, PIDTYPE_PID);
	put_pid(pid);
	return task;
}

/**
 * ptscope_target_get() - find the address space of a process
 * @target: filled on success
 * @nr: a process or thread in the PID namespace of the caller, or PTSCOPE_PID_SELF
 *
 * What is kept is the PID of the thread group, since a group outlives its threads.
 *
 * Return: 0, -ESRCH, -EOPNOTSUPP (kernel thread) or -ENXIO (has exited).
 */
int ptscope_target_get(struct ptscope_target *target, pid_t nr)
{
	struct task_struct *task;
	struct mm_struct *mm;
	int ret = 0;

	task = find_task(nr);
	if (!task)
		return -ESRCH;
	if (task->flags & PF_KTHREAD) {
		ret = -EOPNOTSUPP;
		goto out;
	}
	target->pid = get_task_pid(task, PIDTYPE_TGID);
	if (!target->pid) {
		ret = -ESRCH;
		goto out;
	}
	mm = live_mm(task);
	if (!mm) {
		put_pid(target->pid);
		target->pid = NULL;
		ret = -ENXIO;
		goto out;
	}
	mmgrab(mm);
	mmput(mm);
	target->mm = mm;
	get_task_comm(target->comm, task);
out:
	put_task_struct(task);
	return ret;
}

void ptscope_target_put(struct ptscope_target *target)
{
	if (target->mm)
		mmdrop(target->mm);
	put_pid(target->pid);
	target->mm = NULL;
	target->pid = NULL;
}

/**
 * ptscope_target_mm() - get hold of the address space for one batch
 * @target: from ptscope_target_get()
 * @status: set to PTSCOPE_END_EXITED or PTSCOPE_END_EXECED on failure
 *
 * Return: the mm with mm_users raised, to be given back with mmput(); or NULL
 * when the process has exited or runs in another address space.
 */
struct mm_struct *ptscope_target_mm(const struct ptscope_target *target, u32 *status)
{
	struct task_struct *task;
	struct mm_struct *mm;

	*status = PTSCOPE_END_EXITED;
	task = get_pid_task(target->pid, PIDTYPE_TGID);
	if (!task)
		return NULL;
	mm = live_mm(task);
	put_task_struct(task);
	if (mm && mm != target->mm) {
		*status = PTSCOPE_END_EXECED;
		mmput(mm);
		return NULL;
	}
	return mm;
}
