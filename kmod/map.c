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
 * Lifetime: entries made by remap_pfn_range() and vmf_insert_pfn() hold no
 * reference to their pages, so these must outlive every entry.  A VMA holds its
 * file from mmap() on, through being split, moved and copied by fork(), and
 * gives it up only after its entries are gone and the TLBs flushed, also when
 * mmap() fails half way and when its owner is killed.  The file owns the pages
 * and gives them back when it is released; nothing takes a page from it
 * before.  So neither open() nor close() of a VMA has anything to do here.
 * Whoever pinned a page meanwhile, which is possible with those inserted by
 * vm_insert_page() alone, keeps that one page.  The file holds the module.
 *
 * Locking: there is none.  mmap() runs under the caller's mmap_lock, a fault
 * under that or the VMA's own, and neither may wait for somebody who allocates;
 * so the pages of a file are published once, complete, and never change until
 * the file is released.
 *
 * Memory: the pages are charged to the cgroup of who asked for them, all open
 * files together have PTSCOPE_MAP_MAX_BYTES at most, and asking for them never
 * has somebody killed.
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
#define BLOCK_PAGES	((unsigned long)PTRS_PER_PTE)

struct map_pages {
	unsigned long wanted;		/* of them "count" are there: all, once published */
	unsigned long count;
	struct page *pages[];
};

/* What all open files have, and what is being allocated for them. */
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
	atomic64_sub(map->wanted, &pages_now);
	kvfree(map);
}

/*
 * One page more, or a block of them that lie together, each with a life of its
 * own.  Blocks begin at multiples of their size, so that also where some could
 * not be had, an aligned mapping of an aligned part has the others in one piece.
 */
static int add_block(struct map_pages *map)
{
	const gfp_t gfp = GFP_KERNEL_ACCOUNT | __GFP_ZERO | __GFP_NOWARN;
	unsigned int order = BLOCK_ORDER;
	struct page *page = NULL;
	unsigned long i;

	if (order < PTSCOPE_MAX_ORDERS && IS_ALIGNED(map->count, BLOCK_PAGES) &&
	    map->wanted - map->count >= BLOCK_PAGES)
		page = alloc_pages(gfp | __GFP_NORETRY, order);
	if (page) {
		split_page(page, order);
	} else {
		order = 0;
		/* Fails rather than having somebody killed for it. */
		page = alloc_page(gfp | __GFP_RETRY_MAYFAIL);
	}
	if (!page)
		return -ENOMEM;
	for (i = 0; i < 1UL << order; i++)
		map->pages[map->count++] = page + i;
	return 0;
}

/* Sleeps, long for many pages; a fatal signal ends it. */
static struct map_pages *allocate(unsigned long wanted)
{
	struct map_pages *map;
	int ret;

	if (atomic64_add_return(wanted, &pages_now) > MAX_PAGES) {
		ret = -ENOSPC;
		goto give_up;
	}
	map = kvzalloc(struct_size(map, pages, wanted), GFP_KERNEL_ACCOUNT);
	if (!map) {
		ret = -ENOMEM;
		goto give_up;
	}
	map->wanted = wanted;
	while (map->count < wanted) {
		ret = fatal_signal_pending(current) ? -EINTR : add_block(map);
		if (ret) {
			free_pages_of(map);
			return ERR_PTR(ret);
		}
		cond_resched();
	}
	return map;

give_up:
	atomic64_sub(wanted, &pages_now);
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

/* NULL until a write() succeeded; then all of them, until the file is released. */
static const struct map_pages *pages_of(const struct file *file)
{
	/* Pairs with cmpxchg_release() in map_write(). */
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

/*
 * Caller holds the mmap_lock for writing, as mmap() does, and the VMA is new
 * and empty.  Entries made before an error are removed by mmap().
 */
static int map_remap(struct vm_area_struct *vma, const struct map_pages *map)
{
	unsigned long address = vma->vm_start;
	unsigned long index = first_index(vma);

	while (address < vma->vm_end) {
		unsigned long pfn = page_to_pfn(map->pages[index]);
		unsigned long most = min((vma->vm_end - address) >> PAGE_SHIFT, BLOCK_PAGES);
		unsigned long run = 1;
		int ret;

		if (fatal_signal_pending(current))
			return -EINTR;
		while (run < most && page_to_pfn(map->pages[index + run]) == pfn + run)
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

/* As map_remap(). */
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
 * Caller holds the mmap_lock or the VMA's own lock for reading: a fault.  Two
 * threads may fault on one page: vmf_insert_pfn() takes the lock of the table
 * and leaves an entry that is there alone.  A VMA that was split or moved still
 * says with vm_pgoff which pages it has.
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
/*
 * Locks as map_fault(), and the PMD has no table.  Maps a whole PMD when VMA,
 * pages and frames are there for it; otherwise map_fault() is called next.
 */
static vm_fault_t map_huge_fault(struct vm_fault *vmf, unsigned int order)
{
	const struct map_pages *map = pages_of(vmf->vma->vm_file);
	unsigned long start = vmf->address & PMD_MASK;
	unsigned long index, pfn, i;

	if (order != BLOCK_ORDER || start < vmf->vma->vm_start ||
	    start + PMD_SIZE > vmf->vma->vm_end)
		return VM_FAULT_FALLBACK;
	index = first_index(vmf->vma) + ((start - vmf->vma->vm_start) >> PAGE_SHIFT);
	if (index + BLOCK_PAGES > map->count)
		return VM_FAULT_FALLBACK;
	pfn = page_to_pfn(map->pages[index]);
	if (!IS_ALIGNED(pfn, BLOCK_PAGES))
		return VM_FAULT_FALLBACK;
	for (i = 1; i < BLOCK_PAGES; i++)
		if (page_to_pfn(map->pages[index + i]) != pfn + i)
			return VM_FAULT_FALLBACK;
	return ptscope_insert_pfn_pmd(vmf, pfn, vmf->flags & FAULT_FLAG_WRITE);
}

static const struct vm_operations_struct huge_ops = {
	.fault = map_fault,
	.huge_fault = map_huge_fault,
};
#endif

/*
 * The caller, mmap(), holds the mmap_lock for writing, and the file through the
 * VMA.  VM_DONTEXPAND keeps what was checked here true: a VMA can be split,
 * shrunk and moved, but never has pages that it did not have at first.
 */
static int map_mmap(struct file *file, struct vm_area_struct *vma)
{
	const struct map_pages *map = pages_of(file);
	unsigned long count = (vma->vm_end - vma->vm_start) >> PAGE_SHIFT;
	unsigned long index = first_index(vma);
	int ret;

	ret = ptscope_permitted();
	if (ret)
		return ret;
	if (!map)
		return -ENODATA;
	/*
	 * A private mapping that is written gets frames that nobody knows, and
	 * vmf_insert_pfn() has a BUG_ON() for it.  is_cow_mapping(), before 5.12
	 * not for modules.
	 */
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
