// SPDX-License-Identifier: GPL-2.0-only
/* The "walk" file: "PID ADDR" in, one walk as text out. */

#include <linux/ctype.h>
#include <linux/kernel.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pid.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>

#include "internal.h"

#define MAX_QUESTION 128

/* Eleven lines at most, none longer than about a hundred characters. */
#define MAX_ANSWER 1024

struct walk_file {
	struct mutex lock;		/* protects all below */
	size_t length;			/* 0: nothing asked yet */
	char answer[MAX_ANSWER];
};

/* "123" or "0x7b".  No octal: 010 is ten.  Neither sign nor anything after it. */
static int parse_number(const char *word, u64 *value)
{
	bool hex = word[0] == '0' && tolower(word[1]) == 'x';

	if (!isxdigit(word[hex ? 2 : 0]))
		return -EINVAL;
	return kstrtoull(word, hex ? 16 : 10, value) ? -EINVAL : 0;
}

/* Splits the next word off a text, as strsep() does, but by any white space. */
static char *next_word(char **text)
{
	char *word = skip_spaces(*text);
	char *end = word;

	while (*end && !isspace(*end))
		end++;
	*text = *end ? end + 1 : end;
	*end = '\0';
	return word;
}

static int parse_question(char *text, pid_t *pid, u64 *address)
{
	char *who, *where, *rest;
	u64 nr;

	who = next_word(&text);
	if (!*who)
		return -ENODATA;
	where = next_word(&text);
	rest = next_word(&text);
	if (*rest || parse_number(where, address))
		return -EINVAL;
	if (!strcmp(who, "self")) {
		*pid = PTSCOPE_PID_SELF;
	} else if (!strcmp(who, "kernel")) {
		*pid = PTSCOPE_PID_KERNEL;
	} else {
		if (parse_number(who, &nr))
			return -EINVAL;
		if (!nr || nr > INT_MAX)
			return -ESRCH;
		*pid = nr;
	}
	return 0;
}

struct answer {
	char *text;
	size_t length;
};

static __printf(2, 3) void say(struct answer *answer, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	answer->length += vscnprintf(answer->text + answer->length, MAX_ANSWER - answer->length,
				     format, args);
	va_end(args);
}

static const char *level_name(const struct ptscope_table *table)
{
	if (table->record.flags & PTSCOPE_USER_PGD)
		return "user_pgd";
	return ptscope_level_names[table->level];
}

static const char *lock_name(const struct ptscope_batch *batch)
{
	switch (batch->lock) {
	case PTSCOPE_LOCK_READ:
		return "read";
	case PTSCOPE_LOCK_WRITE:
		return "write";
	}
	return "none";
}

static void say_target(struct answer *answer, const struct ptscope_job *job, pid_t pid)
{
	const char *comm = job->target.comm;

	if (job->kernel) {
		say(answer, "kernel\n");
		return;
	}
	if (pid == PTSCOPE_PID_SELF)
		pid = task_tgid_vnr(current);
	/* A process chooses its comm: escape what could pass for another line. */
	say(answer, "pid %d comm %*pE\n", pid, (int)strnlen(comm, TASK_COMM_LEN), comm);
}

/* Puts the single batch that a walk of one address gives into words. */
static int say_walk(struct answer *answer, const struct ptscope_job *job, size_t size)
{
	const void *next = job->buffer, *end = job->buffer + size;
	bool in_vma = false, in_tables = false;

	while (next < end) {
		const struct ptscope_record *record = next;
		const struct ptscope_table *table = next;
		const struct ptscope_vma *vma = next;
		const struct ptscope_end *last = next;

		switch (record->type) {
		case PTSCOPE_RECORD_BATCH:
			say(answer, "lock %s\n", lock_name(next));
			break;
		case PTSCOPE_RECORD_VMA:
			say(answer, "vma %#llx %#llx flags %#llx\n",
			    vma->start, vma->end, vma->vm_flags);
			in_vma = true;
			break;
		case PTSCOPE_RECORD_TABLE:
			if (!in_tables && !in_vma)
				say(answer, job->kernel ? "snapshot\n" : "vma none\n");
			in_tables = true;
			say(answer, "%s %u raw %#018llx at %#018llx\n", level_name(table),
			    table->index, *(const u64 *)(table + 1),
			    table->table_pa + table->index * sizeof(u64));
			break;
		case PTSCOPE_RECORD_END:
			if (last->status == PTSCOPE_END_EXITED)
				return -ENXIO;
			return last->status == PTSCOPE_END_DONE ? 0 : -EAGAIN;
		}
		next += record->size;
	}
	return -EAGAIN;
}

static int answer_question(struct walk_file *walk, char *question)
{
	struct answer answer = { .text = walk->answer };
	struct ptscope_job job = { .range_count = 1 };
	u64 address;
	ssize_t ret;
	pid_t pid;

	ret = parse_question(question, &pid, &address);
	if (ret)
		return ret;
	job.flags = PTSCOPE_WITH_VMAS | PTSCOPE_WITH_USER_PGD;
	job.ranges = kvmalloc(sizeof(*job.ranges), GFP_KERNEL_ACCOUNT);
	if (!job.ranges)
		return -ENOMEM;
	job.ranges->first = address;
	job.ranges->last = address;

	ret = ptscope_job_start(&job, pid, PTSCOPE_MIN_READ);
	if (ret)
		goto out;
	/* One address always fits into one batch. */
	ret = ptscope_batch(&job, &job.at, job.size);
	if (ret < 0)
		goto out;
	say_target(&answer, &job, pid);
	say(&answer, "address %#llx\n", address);
	ret = say_walk(&answer, &job, ret);
	if (ret)
		goto out;
	walk->length = answer.length;
	atomic64_inc(&ptscope_stats.walks);
out:
	ptscope_job_end(&job);
	return ret;
}

static ssize_t walk_write(struct file *file, const char __user *buf, size_t count, loff_t *ppos)
{
	struct walk_file *walk = file->private_data;
	char question[MAX_QUESTION + 1];
	int ret;

	ret = ptscope_permitted();
	if (ret)
		return ret;
	if (count > MAX_QUESTION)
		return -E2BIG;
	if (copy_from_user(question, buf, count))
		return -EFAULT;
	question[count] = '\0';
	if (strlen(question) != count)
		return -EINVAL;

	if (mutex_lock_killable(&walk->lock))
		return -EINTR;
	walk->length = 0;
	ret = answer_question(walk, question);
	mutex_unlock(&walk->lock);
	if (ret)
		return ret;
	/* "echo … >&3; cat <&3" shares one position: read from the beginning */
	*ppos = 0;
	return count;
}

static ssize_t walk_read(struct file *file, char __user *buf, size_t count, loff_t *ppos)
{
	struct walk_file *walk = file->private_data;
	ssize_t ret;

	ret = ptscope_permitted();
	if (ret)
		return ret;
	if (mutex_lock_killable(&walk->lock))
		return -EINTR;
	if (walk->length)
		ret = simple_read_from_buffer(buf, count, ppos, walk->answer, walk->length);
	else
		ret = -ENODATA;
	mutex_unlock(&walk->lock);
	return ret;
}

static int walk_open(struct inode *inode, struct file *file)
{
	struct walk_file *walk;
	int ret;

	ret = ptscope_permitted();
	if (ret)
		return ret;
	walk = kzalloc(sizeof(*walk), GFP_KERNEL_ACCOUNT);
	if (!walk)
		return -ENOMEM;
	mutex_init(&walk->lock);
	file->private_data = walk;
	return 0;
}

static int walk_release(struct inode *inode, struct file *file)
{
	kfree(file->private_data);
	return 0;
}

const struct file_operations ptscope_walk_fops = {
	.owner = THIS_MODULE,
	.open = walk_open,
	.read = walk_read,
	.write = walk_write,
	.llseek = default_llseek,
	.release = walk_release,
};
