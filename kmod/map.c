// SPDX-License-Identifier: GPL-2.0-only
/*
 * /dev/ptscope-map: mappings whose frames are known, because they were
 * allocated here.  Ground truth for whoever decodes page tables, and the thing
 * whose cost is measured where the ways of mapping frames are compared.
 *
 * A program opens the device and writes a number of pages, once; the open
 * file then owns that many zeroed pages.  Reading gives their physical
 * addresses, 8 bytes each in the order of the pages.  mmap() maps them, in a
 * way chosen by the high bits of the offset (PTSCOPE_MAP_* in ptscope.h).
 *
 * Lifetime: a mapping holds its file and the file owns the pages, so they go
 * when the last descriptor and the last mapping have gone, however their
 * owners end.  Whoever pinned a page meanwhile (those inserted with
 * vm_insert_page() can be) keeps that page alone.
 *
 * Locking: there is none.  mmap() runs under the caller's mmap_lock, and a
 * lock taken there must not be held around a fault; so the pages of a file are
 * published once, complete, and never change until the file is released.
 */

#include <linux/kernel.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/pfn.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "compat.h"
#include "internal.h"

#define MAX_PAGES	(PTSCOPE_MAP_MAX_BYTES / PAGE_SIZE)
#define KIND_PGSHIFT	(PTSCOPE_MAP_SHIFT - PAGE_SHIFT)
/* Where pages of one PMD leaf can be had in one piece, they are. */
#define BLOCK_ORDER	(PMD_SHIFT - PAGE_SHIFT)

struct map_pages {
	unsigned long count;
	struct page *pages[];
};

static atomic64_t pages_now;

u64 ptscope_map_pages(void)
{
	return atomic64_read(&pages_now);
}

static void free_pages_of(struct map_pages *map)
{
	unsigned long i;

	if (!map)
		return;
	for (i = 0; i < map->count; i++) {
		put_page(map->pages[i]);
		if (!(i % 1024))
			cond_resched();
	}
	atomic64_sub(map->count, &pages_now);
	kvfree(map);
}

/* One block of pages, each with a life of its own; its order, or -1. */
static int add_block(struct map_pages *map, unsigned long wanted)
{
	const gfp_t gfp = GFP_KERNEL_ACCOUNT | __GFP_ZERO | __GFP_NOWARN;
	struct page *page = NULL;
	int order = 0;
	unsigned long i;

	if (wanted - map->count >= 1UL << BLOCK_ORDER && BLOCK_ORDER < PTSCOPE_MAX_ORDERS) {
		order = BLOCK_ORDER;
		page = alloc_pages(gfp | __GFP_NORETRY, order);
	}
	if (!page) {
		order = 0;
		/* Fails rather than having somebody killed for it. */
		page = alloc_pages(gfp | __GFP_RETRY_MAYFAIL, order);
	}
	if (!page)
		return -1;
	if (order)
		split_page(page, order);
	for (i = 0; i < 1UL << order; i++)
		map->pages[map->count++] = page + i;
	atomic64_add(1L << order, &pages_now);
	return order;
}

static struct map_pages *allocate(unsigned long wanted)
{
	struct map_pages *map;
	int ret = 0;

	map = kvzalloc(struct_size(map, pages, wanted), GFP_KERNEL_ACCOUNT);
	if (!map)
		return ERR_PTR(-ENOMEM);
	while (!ret && map->count < wanted) {
		if (fatal_signal_pending(current))
			ret = -EINTR;
		else if (add_block(map, wanted) < 0)
			ret = -ENOMEM;
		cond_resched();
	}
	if (!ret)
		return map;
	free_pages_of(map);
	return ERR_PTR(ret);
}

static ssize_t map_write(struct file *file, const char __user *buf, size_t count, loff_t *ppos)
{
	struct map_pages **owned = (struct map_pages **)&file->private_data;
	struct map_pages *map;
	unsigned long wanted;
	int ret;

	ret = ptscope_permitted();
	if (ret)
		return ret;
	ret = kstrtoul_from_user(buf, count, 0, &wanted);
	if (ret)
		return ret;
	if (!wanted || wanted > MAX_PAGES)
		return -ERANGE;
	if (READ_ONCE(*owned))
		return -EBUSY;
	map = allocate(wanted);
	if (IS_ERR(map))
		return PTR_ERR(map);
	/* Complete before it can be seen; of two writers one wins. */
	if (cmpxchg_release(owned, NULL, map)) {
		free_pages_of(map);
		return -EBUSY;
	}
	return count;
}

static const struct map_pages *pages_of(const struct file *file)
{
	return smp_load_acquire(&file->private_data);
}

static ssize_t map_read(struct file *file, char __user *buf, size_t count, loff_t *ppos)
{
	const struct map_pages *map = pages_of(file);
	size_t done = 0;
	u64 index;
	int ret;

	ret = ptscope_permitted();
	if (ret)
		return ret;
	if (!map)
		return -ENODATA;
	if (*ppos < 0 || *ppos % sizeof(u64) || count % sizeof(u64))
		return -EINVAL;
	for (index = *ppos / sizeof(u64); done < count && index < map->count; index++) {
		u64 pa = PFN_PHYS(page_to_pfn(map->pages[index]));

		if (copy_to_user(buf + done, &pa, sizeof(pa)))
			return done ? done : -EFAULT;
		done += sizeof(pa);
		*ppos += sizeof(pa);
		if (!(index % 1024)) {
			if (fatal_signal_pending(current))
				break;
			cond_resched();
		}
	}
	return done;
}

/* The first of a VMA's pages, as an index of the file's. */
static unsigned long first_index(const struct vm_area_struct *vma)
{
	return vma->vm_pgoff & ((1UL << KIND_PGSHIFT) - 1);
}

/* Caller holds the mmap_lock for writing, as mmap() does. */
static int map_remap(struct vm_area_struct *vma, const struct map_pages *map)
{
	unsigned long address = vma->vm_start;
	unsigned long index = first_index(vma);

	while (address < vma->vm_end) {
		unsigned long pfn = page_to_pfn(map->pages[index]);
		unsigned long left = (vma->vm_end - address) >> PAGE_SHIFT;
		unsigned long run = 1;
		int ret;

		if (fatal_signal_pending(current))
			return -EINTR;
		while (run < left && page_to_pfn(map->pages[index + run]) == pfn + run)
			run++;
		ret = remap_pfn_range(vma, address, pfn, run << PAGE_SHIFT, vma->vm_page_prot);
		if (ret)
			return ret;
		index += run;
		address += run << PAGE_SHIFT;
		cond_resched();
	}
	return 0;
}

/* Caller holds the mmap_lock for writing, as mmap() does. */
static int map_insert(struct vm_area_struct *vma, const struct map_pages *map)
{
	unsigned long index = first_index(vma);
	unsigned long address;

	for (address = vma->vm_start; address < vma->vm_end; address += PAGE_SIZE, index++) {
		int ret;

		if (fatal_signal_pending(current))
			return -EINTR;
		ret = vm_insert_page(vma, address, map->pages[index]);
		if (ret)
			return ret;
		if (!(index % 1024))
			cond_resched();
	}
	return 0;
}

/*
 * Caller holds the mmap_lock or the VMA's own lock for reading: a fault.  A
 * VMA that was split or moved still says with vm_pgoff which pages it has.
 */
static vm_fault_t map_fault(struct vm_fault *vmf)
{
	const struct map_pages *map = pages_of(vmf->vma->vm_file);
	unsigned long index = vmf->pgoff & ((1UL << KIND_PGSHIFT) - 1);

	if (index >= map->count)
		return VM_FAULT_SIGBUS;
	return vmf_insert_pfn(vmf->vma, vmf->address, page_to_pfn(map->pages[index]));
}

static const struct vm_operations_struct fault_ops = {
	.fault = map_fault,
};

#ifdef PTSCOPE_HAS_PMD_PFNMAP
/* As map_fault(); a whole PMD when VMA, pages and frames are there for it. */
static vm_fault_t map_huge_fault(struct vm_fault *vmf, unsigned int order)
{
	const struct map_pages *map = pages_of(vmf->vma->vm_file);
	unsigned long start = vmf->address & PMD_MASK;
	unsigned long index, pfn, i;

	if (order != BLOCK_ORDER || start < vmf->vma->vm_start ||
	    start + PMD_SIZE > vmf->vma->vm_end)
		return VM_FAULT_FALLBACK;
	index = first_index(vmf->vma) + ((start - vmf->vma->vm_start) >> PAGE_SHIFT);
	if (index + (1UL << BLOCK_ORDER) > map->count)
		return VM_FAULT_FALLBACK;
	pfn = page_to_pfn(map->pages[index]);
	if (!IS_ALIGNED(pfn, 1UL << BLOCK_ORDER))
		return VM_FAULT_FALLBACK;
	for (i = 1; i < 1UL << BLOCK_ORDER; i++)
		if (page_to_pfn(map->pages[index + i]) != pfn + i)
			return VM_FAULT_FALLBACK;
	return ptscope_insert_pfn_pmd(vmf, pfn, vmf->flags & FAULT_FLAG_WRITE);
}

static const struct vm_operations_struct huge_ops = {
	.fault = map_fault,
	.huge_fault = map_huge_fault,
};
#endif

/* The caller, mmap(), holds the mmap_lock for writing. */
static int map_mmap(struct file *file, struct vm_area_struct *vma)
{
	const struct map_pages *map = pages_of(file);
	unsigned long count = (vma->vm_end - vma->vm_start) >> PAGE_SHIFT;
	unsigned long index = first_index(vma);

	if (!map)
		return -ENODATA;
	/* A private mapping that is written gets frames that nobody knows. */
	if ((vma->vm_flags & (VM_SHARED | VM_MAYWRITE)) == VM_MAYWRITE)
		return -EINVAL;
	if (index >= map->count || count > map->count - index)
		return -ENXIO;

	ptscope_vm_flags_set(vma, VM_DONTEXPAND | VM_DONTDUMP);
	switch (vma->vm_pgoff >> KIND_PGSHIFT) {
	case PTSCOPE_MAP_REMAP:
		return map_remap(vma, map);
	case PTSCOPE_MAP_INSERT:
		return map_insert(vma, map);
	case PTSCOPE_MAP_FAULT:
		ptscope_vm_flags_set(vma, VM_IO | VM_PFNMAP);
		vma->vm_ops = &fault_ops;
		return 0;
	case PTSCOPE_MAP_HUGE:
#ifdef PTSCOPE_HAS_PMD_PFNMAP
		ptscope_vm_flags_set(vma, VM_IO | VM_PFNMAP);
		vma->vm_ops = &huge_ops;
		return 0;
#else
		return -EOPNOTSUPP;
#endif
	default:
		return -EINVAL;
	}
}

static int map_open(struct inode *inode, struct file *file)
{
	/* The misc core left a pointer to its device here. */
	file->private_data = NULL;
	return ptscope_permitted();
}

static int map_release(struct inode *inode, struct file *file)
{
	free_pages_of(file->private_data);
	return 0;
}

static const struct file_operations map_fops = {
	.owner = THIS_MODULE,
	.open = map_open,
	.read = map_read,
	.write = map_write,
	.llseek = default_llseek,
	.mmap = map_mmap,
	.release = map_release,
};

struct miscdevice ptscope_map_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "ptscope-map",
	.mode = 0600,
	.fops = &map_fops,
};
