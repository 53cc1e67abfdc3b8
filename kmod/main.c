// SPDX-License-Identifier: GPL-2.0-only
/*
 * ptscope: raw page-table entries of a running process, through debugfs.
 */

#include <linux/capability.h>
#include <linux/debugfs.h>
#include <linux/module.h>
#include <linux/security.h>

#include "internal.h"

static struct dentry *ptscope_dir;

/*
 * The owner of a file alone does not decide: a file descriptor can be handed
 * on.  So this is asked when a file is opened and again at each request.
 * Page tables tell where the kernel and its secrets lie, which is what the
 * kernel-core level of lockdown (the confidentiality mode) is about.
 */
int ptscope_permitted(void)
{
	if (!capable(CAP_SYS_ADMIN))
		return -EPERM;
	return security_locked_down(LOCKDOWN_KCORE);
}

static int __init ptscope_init(void)
{
	static const struct {
		const char *name;
		umode_t mode;
		const struct file_operations *fops;
	} files[] = {
		{ "layout", 0400, &ptscope_layout_fops },
		{ "walk", 0600, &ptscope_walk_fops },
		{ "dump", 0600, &ptscope_dump_fops },
		{ "stats", 0400, &ptscope_stats_fops },
	};
	struct dentry *dir, *file;
	unsigned int i;
	int ret;

	ptscope_space_init();

	/* Without debugfs the module would be of no use, so its errors are ours. */
	dir = debugfs_create_dir("ptscope", NULL);
	if (IS_ERR(dir))
		return PTR_ERR(dir);
	d_inode(dir)->i_mode = S_IFDIR | 0700;

	for (i = 0; i < ARRAY_SIZE(files); i++) {
		file = debugfs_create_file(files[i].name, files[i].mode, dir, NULL, files[i].fops);
		if (IS_ERR(file)) {
			ret = PTR_ERR(file);
			goto remove;
		}
	}
	ret = misc_register(&ptscope_map_device);
	if (ret)
		goto remove;
	ptscope_dir = dir;
	return 0;

remove:
	debugfs_remove(dir);
	return ret;
}

static void __exit ptscope_exit(void)
{
	misc_deregister(&ptscope_map_device);
	debugfs_remove(ptscope_dir);
}

module_init(ptscope_init);
module_exit(ptscope_exit);

MODULE_DESCRIPTION("Raw page-table entries of a running process");
MODULE_LICENSE("GPL");
