// SPDX-License-Identifier: GPL-2.0-only
/* The "dump" file: one binary request in, a stream of batches out. */

#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>

#include "internal.h"

#define MAX_REQUEST (sizeof(struct ptscope_request) + \
		     PTSCOPE_MAX_RANGES * sizeof(struct ptscope_range))

struct dump_file {
	struct mutex lock;	/* protects all below */
	bool started;
	struct ptscope_job job;
};

/* Are all addresses canonical, and in the half that is asked for? */
static int check_ranges(const struct ptscope_job *job)
{
	u64 user_last = ptscope_space.user_last;
	u64 kernel_first = ptscope_space.kernel_first;
	u32 i;

	for (i = 0; i < job->range_count; i++) {
		const struct ptscope_range *range = &job->ranges[i];

		if (range->last < range->first)
			return -EINVAL;
		if ((range->first > user_last && range->first < kernel_first) ||
		    (range->last > user_last && range->last < kernel_first))
			return -ERANGE;
		if (job->kernel ? range->first < kernel_first : range->last > user_last)
			return -EADDRNOTAVAIL;
	}
	return 0;
}

/**
 * ptscope_job_start() - make ready for ptscope_batch()
 * @job: zeroed but for ranges, range_count (not 0) and flags; owns its ranges from now on
 * @pid: target: a PID in the namespace of the caller, or PTSCOPE_PID_*
 * @size: bytes of the largest batch
 *
 * Return: 0 or an error of ptscope.h; either way ptscope_job_end() must follow.
 */
int ptscope_job_start(struct ptscope_job *job, pid_t pid, size_t size)
{
	int ret;

	job->kernel = pid == PTSCOPE_PID_KERNEL;
	ret = check_ranges(job);
	if (ret)
		return ret;
	if (!job->kernel) {
		ret = ptscope_target_get(&job->target, pid);
		if (ret)
			return ret;
	}
	job->at.address = job->ranges[0].first;
	job->size = size;
	job->buffer = kvmalloc(size, GFP_KERNEL_ACCOUNT);
	if (!job->buffer)
		return -ENOMEM;
	if (job->kernel) {
		job->second = kvmalloc(size, GFP_KERNEL_ACCOUNT);
		job->bounce = kmalloc(PAGE_SIZE, GFP_KERNEL_ACCOUNT);
		if (!job->second || !job->bounce)
			return -ENOMEM;
	}
	return 0;
}

void ptscope_job_end(struct ptscope_job *job)
{
	ptscope_target_put(&job->target);
	kvfree(job->ranges);
	kvfree(job->buffer);
	kvfree(job->second);
	kfree(job->bounce);
	memset(job, 0, sizeof(*job));
}

static int check_request(const struct ptscope_request *request, size_t count)
{
	if (request->magic != PTSCOPE_MAGIC)
		return -EPROTO;
	if (request->version != PTSCOPE_VERSION ||
	    request->header_size != sizeof(struct ptscope_request) ||
	    request->range_size != sizeof(struct ptscope_range))
		return -EPROTONOSUPPORT;
	if (request->flags & ~(PTSCOPE_WITH_VMAS | PTSCOPE_WITH_USER_PGD))
		return -EINVAL;
	if (request->range_count > PTSCOPE_MAX_RANGES)
		return -E2BIG;
	if (count != sizeof(*request) + request->range_count * sizeof(struct ptscope_range))
		return -EBADMSG;
	return request->range_count ? 0 : -ENODATA;
}

static int start_dump(struct ptscope_job *job, const char __user *buf, size_t count)
{
	struct ptscope_request request;
	void *ranges;
	int ret;

	if (!count)
		return -ENODATA;
	if (count > MAX_REQUEST)
		return -E2BIG;
	if (count < sizeof(request))
		return -EBADMSG;
	if (copy_from_user(&request, buf, sizeof(request)))
		return -EFAULT;
	ret = check_request(&request, count);
	if (ret)
		return ret;
	ranges = vmemdup_user(buf + sizeof(request), count - sizeof(request));
	if (IS_ERR(ranges))
		return PTR_ERR(ranges);
	job->ranges = ranges;
	job->range_count = request.range_count;
	job->flags = request.flags;
	return ptscope_job_start(job, request.pid, PTSCOPE_MAX_READ);
}

static ssize_t dump_write(struct file *file, const char __user *buf, size_t count, loff_t *ppos)
{
	struct dump_file *dump = file->private_data;
	int ret;

	ret = ptscope_permitted();
	if (ret)
		return ret;
	if (mutex_lock_killable(&dump->lock))
		return -EINTR;
	if (dump->started) {
		ret = -EBUSY;
	} else {
		ret = start_dump(&dump->job, buf, count);
		if (ret) {
			ptscope_job_end(&dump->job);
		} else {
			dump->started = true;
			atomic64_inc(&ptscope_stats.dumps);
		}
	}
	mutex_unlock(&dump->lock);
	return ret ? ret : count;
}

/*
 * The position moves on only after the batch has arrived, so that a read into
 * a bad buffer loses nothing: the next one walks the same piece again.
 */
static ssize_t read_batch(struct dump_file *dump, char __user *buf, size_t count)
{
	struct ptscope_job *job = &dump->job;
	struct ptscope_position at = job->at;
	ssize_t ret;

	if (!dump->started)
		return -ENODATA;
	if (count < PTSCOPE_MIN_READ)
		return -EMSGSIZE;
	if (at.done)
		return 0;
	ret = ptscope_batch(job, &at, min(count, job->size));
	if (ret < 0)
		return ret;
	if (copy_to_user(buf, job->buffer, ret))
		return -EFAULT;
	job->at = at;
	return ret;
}

static ssize_t dump_read(struct file *file, char __user *buf, size_t count, loff_t *ppos)
{
	struct dump_file *dump = file->private_data;
	ssize_t ret;

	ret = ptscope_permitted();
	if (ret)
		return ret;
	if (mutex_lock_killable(&dump->lock))
		return -EINTR;
	ret = read_batch(dump, buf, count);
	mutex_unlock(&dump->lock);
	return ret;
}

static int dump_open(struct inode *inode, struct file *file)
{
	struct dump_file *dump;
	int ret;

	ret = ptscope_permitted();
	if (ret)
		return ret;
	dump = kzalloc(sizeof(*dump), GFP_KERNEL_ACCOUNT);
	if (!dump)
		return -ENOMEM;
	mutex_init(&dump->lock);
	file->private_data = dump;
	return stream_open(inode, file);
}

static int dump_release(struct inode *inode, struct file *file)
{
	struct dump_file *dump = file->private_data;

	ptscope_job_end(&dump->job);
	kfree(dump);
	return 0;
}

const struct file_operations ptscope_dump_fops = {
	.owner = THIS_MODULE,
	.open = dump_open,
	.read = dump_read,
	.write = dump_write,
	.release = dump_release,
};
