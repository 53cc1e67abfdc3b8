// SPDX-License-Identifier: GPL-2.0-only
/*
 * The one walker: copies raw entries into a buffer, a bounded batch at a time.
 *
 * What keeps the tables of the user half alive
 *
 * An mm whose mm_users is held (so no exit_mmap()) frees page tables in these
 * places only; the walker always holds mmap_lock, so of what follows only
 * that matters which runs beside a reader.
 *
 *  1. munmap(), brk() and mremap() take their VMAs out of the tree under the
 *     write lock, may then downgrade to the read lock, and free the tables
 *     of what they took out beside us (6.1 mm/mmap.c do_mas_align_munmap(),
 *     7.2 mm/vma.c vms_complete_munmap_vmas()).  free_pgd_range() in
 *     mm/memory.c frees a table that maps [S, E) only when S >= floor and
 *     E <= ceiling, and floor is the end of the VMA before, ceiling the
 *     start of the VMA after what was taken out.  Those two are still in
 *     the tree and stay there, since removing them takes the write lock, and
 *     they do not shrink for the same reason.  (They may grow: a stack
 *     before 6.5 grows under the read lock.  That makes fewer tables free.)
 *     Thus, under the read lock,
 *
 *         a table is safe if what it maps includes an address of a VMA
 *         that is in the tree,
 *
 *     because that VMA ends at or below floor, which gives S < floor, or
 *     begins at or above ceiling, which gives E > ceiling.  This holds in
 *     holes between VMAs as well as inside VMAs.  A table that includes
 *     no address of any VMA is touched under the write lock only, which
 *     excludes the downgraded munmap() too.
 *
 *  2. From 6.5 on retract_page_tables() and collapse_pte_mapped_thp(), and on
 *     7.x also MADV_DONTNEED (PT_RECLAIM), free PTE tables without the write
 *     lock, but through RCU.  So the pmd entry is read, and what it points to
 *     is used, within one RCU read-side section.
 *
 *  3. hugetlb shares PMD tables between processes and takes such a table away
 *     from under anyone's mmap_lock, but with i_mmap_rwsem of the file held
 *     for writing (huge_pmd_unshare()).  So that is held for reading while
 *     walking what a hugetlb VMA maps.  Only a table all of which lies in
 *     one hugetlb VMA is ever shared (want_pmd_share(); a split that would
 *     change this unshares first, hugetlb_split()), so tables reached from
 *     outside hugetlb VMAs are not concerned.  A hugetlb VMA is still not
 *     taken as a reason to call a table safe under point 1.
 *
 *  4. The root lives as long as mm_count is held.
 *
 * Entries change under the walker at any time (faults, reclaim, migration,
 * and the hardware's own accessed and dirty bits).  Each entry is read once;
 * the value read is what is classified, descended from and reported.
 *
 * What keeps the tables of the kernel half alive: nothing that a module could
 * hold.  See read_entries().
 */

#include <linux/hugetlb.h>
#include <linux/io.h>
#include <linux/ktime.h>
#include <linux/memory_hotplug.h>
#include <linux/mm.h>
#include <linux/rcupdate.h>
#include <linux/rwsem.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/uaccess.h>

#include "arch/arch.h"
#include "internal.h"

/*
 * One batch does this much work at most, to bound how long a lock is held:
 * looking at an entry costs 1, everything else is weighed against that.
 */
#define WORK_BATCH	32768
#define WORK_RUN	8
#define WORK_TABLE	16
#define WORK_VMA	32
#define WORK_RANGE	32

/* Less than this for the entries of a table is not worth the way down to it. */
#define USEFUL_ENTRIES	16

/* Empty entries within a run up to this many take less room than a new record. */
#define GAP		(sizeof(struct ptscope_table) / sizeof(u64))

#define KERNEL_TRIES	8

/* How a walk comes to its end, apart from errors. */
enum {
	WALK_DONE = 0,
	WALK_FULL,	/* room or work is used up */
	WALK_LOCK,	/* the next table needs the write lock */
	WALK_HUGETLB,	/* the next address is in a hugetlb VMA */
	WALK_CHANGED,	/* kernel half: a table vanished */
};

enum kind {
	KIND_EMPTY,
	KIND_LEAF,
	KIND_TABLE,
	KIND_OTHER,	/* neither empty nor present, or not to be trusted */
};

struct walk {
	const struct ptscope_job *job;
	struct ptscope_position *at;
	struct mm_struct *mm;

	void *buffer;
	size_t used;
	size_t limit;			/* leaves room for the end record */
	int work;
	u64 entries;

	struct ptscope_table *run;	/* the record being filled, at the end of the buffer */
	u32 count;			/* entries in it, empty ones at its end included */
	u32 gap;			/* how many those are */

	u64 first;			/* of the range, or where this batch took it up */
	u64 last;			/* of the segment walked with the same locks */
	bool single;			/* the range is a single address */
	bool finished;			/* "last" has been looked at */
	bool write_locked;

	struct vm_area_struct *hugetlb;	/* whose i_mmap_rwsem is held */
	struct vm_area_struct *next;	/* first VMA not entered yet */
	u64 vma_first;			/* the VMA entered last, both inclusive */
	u64 vma_last;
};

/* Output. */

static size_t room(const struct walk *w)
{
	return w->limit - w->used;
}

static void close_run(struct walk *w)
{
	struct ptscope_table *run = w->run;
	const u64 *entries;

	if (!run)
		return;
	w->run = NULL;
	entries = (const u64 *)(run + 1);
	if (!w->single)
		while (w->count && !entries[w->count - 1])
			w->count--;
	if (!w->count)
		return;
	run->count = w->count;
	run->record.size = sizeof(*run) + w->count * sizeof(u64);
	w->used += run->record.size;
	w->entries += w->count;
}

/* Whoever opens a run has made sure of room for the record and an entry. */
static u64 *open_run(struct walk *w, const struct ptscope_level *level, const u64 *table,
		     unsigned int index, u16 flags)
{
	struct ptscope_table *run = w->buffer + w->used;

	*run = (struct ptscope_table) {
		.record.type = PTSCOPE_RECORD_TABLE,
		.record.flags = flags,
		.address = w->at->address & ~((1ULL << level->shift) - 1),
		.table_pa = virt_to_phys((void *)table),
		.level = level->number,
		.index = index,
	};
	w->run = run;
	w->count = 0;
	w->gap = 0;
	w->work -= WORK_RUN;
	return (u64 *)(run + 1);
}

static void emit_vma(struct walk *w, const struct vm_area_struct *vma)
{
	struct ptscope_vma *record = w->buffer + w->used;
	u16 flags = 0;

	if (vma->vm_start < w->at->seen_vma)
		flags |= PTSCOPE_AGAIN;
	if (vma->vm_flags & VM_HUGETLB)
		flags |= PTSCOPE_HUGETLB;
	*record = (struct ptscope_vma) {
		.record.type = PTSCOPE_RECORD_VMA,
		.record.flags = flags,
		.record.size = sizeof(*record),
		.start = vma->vm_start,
		.end = vma->vm_end,
		.vm_flags = vma->vm_flags,
		.page_prot = pgprot_val(READ_ONCE(vma->vm_page_prot)),
		.pgoff = vma->vm_pgoff,
	};
	if (vma->vm_file) {
		const struct inode *inode = file_inode(vma->vm_file);

		record->inode = inode->i_ino;
		record->dev_major = MAJOR(inode->i_sb->s_dev);
		record->dev_minor = MINOR(inode->i_sb->s_dev);
	}
	w->used += sizeof(*record);
}

/*
 * enter_vmas() - take note of the VMAs that begin at or below the position
 *
 * Contract: mmap_lock is held, for reading or writing, so neither the VMAs
 * nor their order change; the kernel half has no VMAs and no lock.
 *
 * Return: WALK_DONE, WALK_FULL or WALK_HUGETLB.
 */
static int enter_vmas(struct walk *w)
{
	struct ptscope_position *at = w->at;
	struct vm_area_struct *vma;

	while ((vma = w->next) && vma->vm_start <= at->address) {
		bool locked = !is_vm_hugetlb_page(vma) || vma == w->hugetlb;

		if (!locked && vma->vm_end > at->address)
			return WALK_HUGETLB;
		if (w->job->flags & PTSCOPE_WITH_VMAS) {
			close_run(w);
			if (room(w) < sizeof(struct ptscope_vma) || w->work <= 0) {
				at->address = max_t(u64, vma->vm_start, w->first);
				return WALK_FULL;
			}
			emit_vma(w, vma);
			at->seen_vma = vma->vm_end;
		}
		if (locked) {
			w->vma_first = vma->vm_start;
			w->vma_last = vma->vm_end - 1;
		}
		w->work -= WORK_VMA;
		w->next = find_vma(w->mm, vma->vm_end);
	}
	return WALK_DONE;
}

/*
 * is_safe() - may the table that maps first..last be touched?
 *
 * Contract: mmap_lock is held; the reasons are points 1 and 3 at the top.
 * The position is within first..last.
 */
static bool is_safe(const struct walk *w, u64 first, u64 last)
{
	struct vm_area_struct *vma;

	if (w->job->kernel || w->write_locked)
		return true;
	if (w->vma_first <= last && w->vma_last >= first)
		return true;
	vma = find_vma(w->mm, first);
	return vma && vma->vm_start <= last && !is_vm_hugetlb_page(vma);
}

/*
 * read_entries() - read @count entries of a table, each once
 *
 * Contract: in the user half the table is safe (see the top) and RCU is held.
 * In the kernel half nothing protects the table: vmap and ioremap of huge
 * pages, memory hot-remove and, on 7.x, CPA may free it at any time.  Its
 * page was online memory when it was found (table_of()), a read that faults
 * after all is caught, and what was read is thrown away unless a second
 * walk reads the same.
 *
 * Return: where the values are, or NULL when the table has vanished.
 */
static const u64 *read_entries(const struct walk *w, const u64 *table, unsigned int count)
{
	if (!w->job->kernel)
		return table;
	if (copy_from_kernel_nofault(w->job->bounce, table, count * sizeof(u64)))
		return NULL;
	return w->job->bounce;
}

/*
 * table_of() - the table that a value read from a table points to
 *
 * Contract: works on a value, touches no table.  A page that is not memory
 * is refused, which in the user half only a corrupt entry can bring about.
 */
static enum kind table_of(const struct walk *w, const void *table, const u64 **next)
{
	unsigned long pfn = PHYS_PFN(virt_to_phys((void *)table));

	if (!pfn_valid(pfn) || (w->job->kernel && !pfn_to_online_page(pfn)))
		return KIND_OTHER;
	*next = table;
	return KIND_TABLE;
}

/*
 * Asks in this order: empty, present, leaf, bad.  A leaf is asked for only
 * when present, since on x86 pmd_leaf() is a bit that means something else
 * otherwise; and at every level, whatever the config says of huge pages.
 */
#define CLASSIFY(w, name, raw, next, table) ({				\
	name##_t entry = ptscope_make_##name(raw);			\
	enum kind kind;							\
									\
	if (name##_none(entry))						\
		kind = KIND_EMPTY;					\
	else if (!name##_present(entry))				\
		kind = KIND_OTHER;					\
	else if (name##_leaf(entry))					\
		kind = KIND_LEAF;					\
	else if (name##_bad(entry))					\
		kind = KIND_OTHER;					\
	else								\
		kind = table_of(w, table, next);			\
	kind;								\
})

/*
 * classify() - what a value read from a table above PTE level is
 *
 * Contract: works on a value, touches no table.
 */
static enum kind classify(const struct walk *w, const struct ptscope_level *level, u64 raw,
			  const u64 **next)
{
	switch (level->helpers) {
	case PTSCOPE_LEVEL_PMD:
		return CLASSIFY(w, pmd, raw, next, (const void *)pmd_page_vaddr(entry));
	case PTSCOPE_LEVEL_PUD:
		return CLASSIFY(w, pud, raw, next, pud_pgtable(entry));
	case PTSCOPE_LEVEL_P4D:
		return CLASSIFY(w, p4d, raw, next, p4d_pgtable(entry));
	case PTSCOPE_LEVEL_PGD:
		return CLASSIFY(w, pgd, raw, next, p4d_offset(&entry, 0));
	}
	return KIND_OTHER;
}

/* Moves the position behind the entry that ends at @last. */
static void advance(struct walk *w, u64 last)
{
	if (last >= w->last)
		w->finished = true;
	else
		w->at->address = last + 1;
}

static u64 or4(u64 *to, const u64 *from)
{
	u64 a = READ_ONCE(from[0]);
	u64 b = READ_ONCE(from[1]);
	u64 c = READ_ONCE(from[2]);
	u64 d = READ_ONCE(from[3]);

	to[0] = a;
	to[1] = b;
	to[2] = c;
	to[3] = d;
	return a | b | c | d;
}

/* Copies up to four entries and returns how many; their OR is in @any. */
static unsigned int copy_block(u64 *to, const u64 *from, unsigned int count, u64 *any)
{
	unsigned int i;

	if (likely(count >= 4)) {
		*any = or4(to, from);
		return 4;
	}
	*any = 0;
	for (i = 0; i < count; i++) {
		to[i] = READ_ONCE(from[i]);
		*any |= to[i];
	}
	return count;
}

/*
 * copy_run() - copy the next run of PTEs
 * @to: room for @count entries
 * @skipped: empty entries before the run
 * @kept: entries of the run, which begins and ends with a non-empty one
 *
 * Goes by blocks of four, and the first empty block ends the run, so that a
 * full table costs little more than its loads and stores.
 *
 * Contract: that of read_entries() for @from.  Each entry is read once, into
 * @to, which nobody else writes.
 *
 * Return: how many entries were looked at.
 */
static unsigned int copy_run(u64 *to, const u64 *from, unsigned int count,
			     unsigned int *skipped, unsigned int *kept)
{
	unsigned int i = 0, block, lead = 0, n;
	u64 any = 0;

	*kept = 0;
	do {
		*skipped = i;
		block = copy_block(to, from + i, count - i, &any);
		i += block;
	} while (!any && i < count);
	if (!any)
		return i;

	while (!to[lead])
		lead++;
	*skipped += lead;
	n = block - lead;
	memmove(to, to + lead, n * sizeof(*to));

	while (count - i >= 8) {
		if (!or4(to + n, from + i)) {
			i += 4;
			goto trim;
		}
		if (!or4(to + n + 4, from + i + 4)) {
			i += 8;
			n += 4;
			goto trim;
		}
		i += 8;
		n += 8;
	}
	while (any && i < count) {
		block = copy_block(to + n, from + i, count - i, &any);
		i += block;
		n += block;
	}
trim:
	while (!to[n - 1])
		n--;
	*kept = n;
	return i;
}

/*
 * walk_ptes() - report what a PTE table holds from the position on
 *
 * Contract: that of walk_table().
 */
static int walk_ptes(struct walk *w, const struct ptscope_level *level, const u64 *table)
{
	u64 table_size = (u64)level->entries << level->shift;
	u64 table_last = w->at->address | (table_size - 1);

	for (;;) {
		u64 address = w->at->address;
		u64 last = min(table_last, w->last);
		unsigned int index, count, looked, skipped, kept;
		const u64 *from;
		u64 *to;
		int ret;

		ret = enter_vmas(w);
		if (ret)
			return ret;
		if (w->next && w->next->vm_start <= last)
			last = w->next->vm_start - 1;
		index = (address >> level->shift) & (level->entries - 1);
		count = (last >> level->shift) - (address >> level->shift) + 1;

		if (w->work <= 0 || room(w) < sizeof(*w->run) + GAP * sizeof(u64))
			return WALK_FULL;
		count = min_t(u64, count, (room(w) - sizeof(*w->run)) / sizeof(u64));
		count = min_t(u64, count, w->work);

		from = read_entries(w, table + index, count);
		if (!from)
			return WALK_CHANGED;
		to = open_run(w, level, table, index, 0);
		if (w->single) {
			to[0] = READ_ONCE(from[0]);
			looked = 1;
			skipped = 0;
			kept = 1;
		} else {
			looked = copy_run(to, from, count, &skipped, &kept);
		}
		w->work -= looked;
		w->run->index += skipped;
		w->run->address += (u64)skipped << level->shift;
		w->count = kept;
		close_run(w);

		last = address | ((1ULL << level->shift) - 1);
		last += (u64)(looked - 1) << level->shift;
		advance(w, last);
		if (w->finished || last == table_last)
			return WALK_DONE;
	}
}

/* What the way down from an entry of @level takes at least, records and all. */
static size_t way_down(const struct ptscope_level *level)
{
	size_t levels = level->number - PTSCOPE_LEVEL_PTE;

	return levels * (sizeof(struct ptscope_table) + sizeof(u64)) +
	       USEFUL_ENTRIES * sizeof(u64);
}

/*
 * add_entry() - report an entry of a level above PTE
 *
 * An entry whose table an earlier batch has begun to report is reported
 * again, alone in its record and marked.
 *
 * Contract: touches no table but the user copy of the root, which lives and
 * dies with the root.
 *
 * Return: WALK_DONE or WALK_FULL.
 */
static int add_entry(struct walk *w, const struct ptscope_level *level, const u64 *table,
		     unsigned int index, u64 raw, enum kind kind)
{
	const struct ptscope_level *root = ptscope_space.levels;
	u64 last = w->at->address | ((1ULL << level->shift) - 1);
	bool again = last <= w->at->seen[level->number];
	u16 flags = again ? PTSCOPE_AGAIN : 0;
	const u64 *user_root = NULL;
	size_t need = sizeof(u64);
	u64 *entries;

	if (!raw && !w->single) {
		if (w->run && ++w->gap > GAP)
			close_run(w);
		if (!w->run)
			return WALK_DONE;
	}

	if (level == root && (w->job->flags & PTSCOPE_WITH_USER_PGD) && !w->job->kernel)
		user_root = ptscope_arch_user_root(w->mm->pgd);
	if (again || user_root)
		close_run(w);
	if (user_root)
		need += sizeof(*w->run) + sizeof(u64);
	if (w->run)
		need += w->count * sizeof(u64);
	need += sizeof(*w->run);
	if (kind == KIND_TABLE)
		need += way_down(level);
	if (room(w) < need)
		return WALK_FULL;

	if (user_root) {
		entries = open_run(w, level, user_root, index, flags | PTSCOPE_USER_PGD);
		entries[0] = READ_ONCE(user_root[index]);
		w->count = 1;
		close_run(w);
	}
	if (!w->run)
		open_run(w, level, table, index, flags);
	entries = (u64 *)(w->run + 1);
	entries[w->count++] = raw;
	if (raw) {
		w->gap = 0;
		w->at->seen[level->number] = last;
	}
	if (again || user_root || kind == KIND_TABLE)
		close_run(w);
	return WALK_DONE;
}

/*
 * walk_table() - report what a table holds from the position on, and all below
 * @table: covers the position
 *
 * Recurses once per level, so five deep at most.
 *
 * Contract: user half: mmap_lock is held and @table is safe under it (see the
 * top), i_mmap_rwsem is held for reading if the position is in a hugetlb VMA,
 * and one RCU read-side section spans the walk from the root.  Kernel half: see
 * read_entries().  Entries may change at any time, tables that entries point
 * to may not go away: a value is read once and everything follows from it.
 *
 * Return: WALK_*; with WALK_DONE the position is behind the table, or
 * "finished" is set.
 */
static int walk_table(struct walk *w, const struct ptscope_level *level, const u64 *table)
{
	u64 table_size = (u64)level->entries << level->shift;
	u64 table_last = w->at->address | (table_size - 1);
	u64 span = 1ULL << level->shift;
	int ret;

	if (level->number == PTSCOPE_LEVEL_PTE)
		return walk_ptes(w, level, table);

	w->work -= WORK_TABLE;
	for (;;) {
		unsigned int index;
		const u64 *from, *next = NULL;
		enum kind kind;
		u64 first, last, raw;

		ret = enter_vmas(w);
		if (ret)
			break;
		if (w->work <= 0) {
			ret = WALK_FULL;
			break;
		}
		first = w->at->address & ~(span - 1);
		last = first | (span - 1);
		index = (first >> level->shift) & (level->entries - 1);

		from = read_entries(w, table + index, 1);
		if (!from) {
			ret = WALK_CHANGED;
			break;
		}
		raw = READ_ONCE(*from);
		w->work--;
		kind = classify(w, level, raw, &next);
		if (kind == KIND_TABLE && !is_safe(w, first, last)) {
			ret = WALK_LOCK;
			break;
		}
		ret = add_entry(w, level, table, index, raw, kind);
		if (ret)
			break;
		if (kind == KIND_TABLE) {
			ret = walk_table(w, level + 1, next);
			if (ret)
				break;
		} else {
			advance(w, last);
		}
		if (w->finished || last == table_last)
			break;
	}
	close_run(w);
	return ret;
}

/*
 * walk_segment() - walk from the position to w->last
 *
 * Contract: takes RCU; else that of walk_table(), the root being always safe.
 * Does not sleep.
 */
static int walk_segment(struct walk *w)
{
	int ret;

	w->finished = false;
	rcu_read_lock();
	ret = walk_table(w, ptscope_space.levels, (const u64 *)w->mm->pgd);
	if (!ret) {
		/* VMAs in the last empty stretch have not been entered */
		w->at->address = w->last;
		ret = enter_vmas(w);
	}
	rcu_read_unlock();
	return ret;
}

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
static int walk_range(struct walk *w, u64 end)
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
		w->vma_first = 1;
		w->vma_last = 0;
		w->last = end;
		if (inside && is_vm_hugetlb_page(vma)) {
			sem = &vma->vm_file->f_mapping->i_mmap_rwsem;
			if (down_read_killable(sem))
				return -EINTR;
			w->hugetlb = vma;
		}
		if (inside && (w->hugetlb || w->write_locked))
			w->last = min_t(u64, end, vma->vm_end - 1);
		else if (vma && !inside && w->write_locked)
			w->last = min_t(u64, end, vma->vm_start - 1);

		ret = walk_segment(w);
		if (sem)
			up_read(sem);
		if (ret == WALK_HUGETLB)
			continue;
		if (ret)
			return ret;
		if (w->last == end)
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
		ret = walk_range(w, range->last);
		if (ret)
			break;
		at->range++;
		memset(at->seen, 0, sizeof(at->seen));
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
 * Contract: sleeps, called without locks.  The root is that of the caller's
 * own mm, whose upper half is the kernel's; for what is below it see
 * read_entries().  Walks twice and delivers only what came out the same;
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
		a.work >>= try;
		ret = walk_ranges(&a);

		second = start;
		start_walk(&b, job, &second, job->second, size);
		b.mm = current->mm;
		b.work >>= try;
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
