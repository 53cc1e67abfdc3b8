// SPDX-License-Identifier: GPL-2.0-only
/* The "stats" file: counters since the module was loaded. */

#include <linux/module.h>
#include <linux/seq_file.h>

#include "internal.h"

struct ptscope_stats ptscope_stats;

void ptscope_stats_lock_held(u64 ns)
{
	s64 longest = atomic64_read(&ptscope_stats.longest_lock_ns);

	while ((s64)ns > longest &&
	       !atomic64_try_cmpxchg(&ptscope_stats.longest_lock_ns, &longest, ns))
		;
}

static int stats_show(struct seq_file *m, void *unused)
{
	const struct {
		const char *name;
		atomic64_t *value;
	} rows[] = {
		{ "walks", &ptscope_stats.walks },
		{ "dumps", &ptscope_stats.dumps },
		{ "batches", &ptscope_stats.batches },
		{ "write_lock_batches", &ptscope_stats.write_lock_batches },
		{ "kernel_retries", &ptscope_stats.kernel_retries },
		{ "entries", &ptscope_stats.entries },
		{ "longest_lock_ns", &ptscope_stats.longest_lock_ns },
	};
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(rows); i++)
		seq_printf(m, "%s %lld\n", rows[i].name, atomic64_read(rows[i].value));
	seq_printf(m, "map_pages %llu\n", ptscope_map_pages());
	return 0;
}

static int stats_open(struct inode *inode, struct file *file)
{
	int ret = ptscope_permitted();

	return ret ? ret : single_open(file, stats_show, NULL);
}

const struct file_operations ptscope_stats_fops = {
	.owner = THIS_MODULE,
	.open = stats_open,
	.read = seq_read,
	.llseek = seq_lseek,
	.release = single_release,
};
