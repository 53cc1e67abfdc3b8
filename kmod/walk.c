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
 *     6.1.192 calls hugetlb_split() before it takes i_mmap_rwsem (lockdep
 *     reports it, without this module too), which does no harm here: that
 *     unshares within the one mm whose mmap_lock it holds for writing, and
 *     other processes keep their own reference to the table.
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

#include <linux/build_bug.h>
#include <linux/hugetlb.h>
#include <linux/io.h>
#include <linux/memory_hotplug.h>
#include <linux/mm.h>
#include <linux/rcupdate.h>
#include <linux/uaccess.h>

#include "arch/arch.h"
#include "internal.h"
#include "walk.h"

/* Less than this for the entries of a table is not worth the way down to it. */
#define USEFUL_ENTRIES	16

/*
 * Up to this many empty entries stay within a run, since a new record takes
 * as much room.  PTEs are copied in blocks of as many.
 */
#define BLOCK		4
/* So many blocks are copied before the loop is counted. */
#define GROUP		8U
static_assert(BLOCK * sizeof(u64) == sizeof(struct ptscope_table));

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
 * enter_next_vmas() - take note of the VMAs that begin at or below the position
 *
 * Contract: mmap_lock is held, for reading or writing, so neither the VMAs
 * nor their order change; the kernel half has no VMAs and no lock.
 *
 * Return: WALK_DONE, WALK_FULL or WALK_HUGETLB.
 */
static noinline int enter_next_vmas(struct walk *w)
{
	bool wanted = w->job->flags & PTSCOPE_WITH_VMAS;
	struct ptscope_position *at = w->at;
	struct vm_area_struct *vma;

	while ((vma = w->next) && vma->vm_start <= at->address) {
		bool locked = !is_vm_hugetlb_page(vma) || vma == w->hugetlb;

		if (!locked && vma->vm_end > at->address)
			return WALK_HUGETLB;
		w->work -= WORK_VMA;
		if (!wanted && vma->vm_end <= at->address) {
			/* Pass by all those behind us at once. */
			w->next = find_vma(w->mm, at->address);
			continue;
		}
		if (wanted) {
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
		w->next = vma->vm_end > w->end ? NULL : find_vma(w->mm, vma->vm_end);
	}
	return WALK_DONE;
}

static int enter_vmas(struct walk *w)
{
	if (w->next && w->next->vm_start <= w->at->address)
		return enter_next_vmas(w);
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
	if (w->next && w->next->vm_start <= last && !is_vm_hugetlb_page(w->next))
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
 * table_of() - the table that a value read above PTE level points to
 *
 * Contract: works on a value, touches no table.  A page that is not memory
 * is refused, which in the user half only a corrupt entry can bring about.
 *
 * Return: its linear address; NULL for everything that is not a table.
 */
static const u64 *table_of(const struct walk *w, u64 raw)
{
	phys_addr_t pa;

	if (!ptscope_arch_is_table(raw))
		return NULL;
	pa = ptscope_arch_table_pa(raw);
	if (!pfn_valid(PHYS_PFN(pa)) || (w->job->kernel && !pfn_to_online_page(PHYS_PFN(pa))))
		return NULL;
	return __va(pa);
}

/* Moves the position behind the entry that ends at @last. */
static void advance(struct walk *w, u64 last)
{
	if (last >= w->last)
		w->finished = true;
	else
		w->at->address = last + 1;
}

/* How many entries of a table begin before the next VMA, at least one. */
static unsigned int entries_ahead(const struct walk *w, const struct ptscope_level *level,
				  u64 table_last)
{
	u64 last = min(table_last, w->last);

	if (w->next && w->next->vm_start <= last)
		last = w->next->vm_start - 1;
	return (last >> level->shift) - (w->at->address >> level->shift) + 1;
}

/*
 * find_entry() - find the first non-empty one of @count entries, at least one
 * @looked: how many entries were looked at, that one included
 *
 * High up in the tree nearly all is empty, so this goes by eight.
 *
 * Contract: that of read_entries() for @from.  Each entry is read once, and
 * what was read is what is returned.  Entries of the same eight behind it are
 * read too, but nothing is made of that: @looked leaves them out, so they are
 * read when their turn comes.
 *
 * Return: its value, or 0 if all are empty.
 */
static u64 find_entry(const u64 *from, unsigned int count, unsigned int *looked)
{
	const u64 *next = from, *end = from + count;
	u64 raw = 0;

	for (; end - next >= 2 * BLOCK; next += 2 * BLOCK) {
		u64 a = READ_ONCE(next[0]);
		u64 b = READ_ONCE(next[1]);
		u64 c = READ_ONCE(next[2]);
		u64 d = READ_ONCE(next[3]);
		u64 e = READ_ONCE(next[4]);
		u64 f = READ_ONCE(next[5]);
		u64 g = READ_ONCE(next[6]);
		u64 h = READ_ONCE(next[7]);

		if (unlikely(a | b | c | d | e | f | g | h)) {
			const u64 eight[] = { a, b, c, d, e, f, g, h };
			unsigned int i = 0;

			while (!eight[i])
				i++;
			*looked = next - from + i + 1;
			return eight[i];
		}
	}
	while (!raw && next < end)
		raw = READ_ONCE(*next++);
	*looked = next - from;
	return raw;
}

/*
 * Copies a block of entries and returns 0 if all were empty.  That the last one
 * is not is the common case, and cheap to see.  Contract: that of copy_run().
 */
static __always_inline u64 copy_block(u64 *to, const u64 *from)
{
	u64 a = READ_ONCE(from[0]);
	u64 b = READ_ONCE(from[1]);
	u64 c = READ_ONCE(from[2]);
	u64 d = READ_ONCE(from[3]);

	to[0] = a;
	to[1] = b;
	to[2] = c;
	to[3] = d;
	if (likely(d))
		return d;
	barrier();	/* or the compiler makes one test of the two */
	return a | b | c;
}

/*
 * Copies up to GROUP blocks and returns how many come before an empty one.
 * Contract: that of copy_run().
 */
static __always_inline unsigned int copy_group(u64 *to, const u64 *from)
{
	if (!copy_block(to, from))
		return 0;
	if (!copy_block(to + BLOCK, from + BLOCK))
		return 1;
	if (!copy_block(to + 2 * BLOCK, from + 2 * BLOCK))
		return 2;
	if (!copy_block(to + 3 * BLOCK, from + 3 * BLOCK))
		return 3;
	if (!copy_block(to + 4 * BLOCK, from + 4 * BLOCK))
		return 4;
	if (!copy_block(to + 5 * BLOCK, from + 5 * BLOCK))
		return 5;
	if (!copy_block(to + 6 * BLOCK, from + 6 * BLOCK))
		return 6;
	if (!copy_block(to + 7 * BLOCK, from + 7 * BLOCK))
		return 7;
	return GROUP;
}

/*
 * copy_run() - copy the next run of PTEs
 * @to: room for @count entries
 * @skipped: empty entries before the run
 * @kept: entries of the run, which begins and ends with a non-empty one; or 0
 *
 * Goes by blocks of four, and an empty block ends the run, so that a full
 * table costs little more than its loads and stores.
 *
 * Contract: that of read_entries() for @from.  What is copied to @to, which
 * nobody else writes, comes from one read of each entry; find_entry() says
 * which it may have read before without making anything of it.
 *
 * Return: how many entries were looked at.
 */
static unsigned int copy_run(u64 *to, const u64 *from, unsigned int count,
			     unsigned int *skipped, unsigned int *kept)
{
	const u64 *next = from, *end = from + count;
	unsigned int looked, blocks = 0, lead = 0;
	u64 *out = to;

	*kept = 0;
	*skipped = count;
	if (count >= GROUP * BLOCK) {
		blocks = copy_group(to, from);
		next += min(blocks + 1, GROUP) * BLOCK;
	} else if (count >= BLOCK) {
		blocks = copy_block(to, from) ? 1 : 0;
		next += BLOCK;
	}
	if (blocks) {
		out += blocks * BLOCK;
		/* There is an entry in the first block, which may begin with empty ones. */
		while (!to[lead])
			lead++;
		*skipped = lead;
		if (lead) {
			memmove(to, to + lead, (out - to - lead) * sizeof(*to));
			out -= lead;
		}
		if (next - from > blocks * BLOCK)
			goto trim;
	} else {
		if (next == end)
			return count;
		*out = find_entry(next, end - next, &looked);
		if (!*out)
			return count;
		next += looked;
		*skipped = next - from - 1;
		out++;
	}

	while (end - next >= GROUP * BLOCK) {
		blocks = copy_group(out, next);
		out += blocks * BLOCK;
		next += blocks * BLOCK;
		if (blocks < GROUP) {
			next += BLOCK;
			goto trim;
		}
	}
	for (; end - next >= BLOCK; next += BLOCK, out += BLOCK) {
		if (!copy_block(out, next)) {
			next += BLOCK;
			goto trim;
		}
	}
	while (next < end)
		*out++ = READ_ONCE(*next++);
trim:
	while (!out[-1])
		out--;
	*kept = out - to;
	return next - from;
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
		u64 address, last;
		unsigned int index, count, looked, skipped, kept;
		const u64 *from;
		u64 *to;
		int ret;

		ret = enter_vmas(w);
		if (ret)
			return ret;
		if (w->work <= 0 || room(w) < sizeof(*w->run) + BLOCK * sizeof(u64))
			return WALK_FULL;
		address = w->at->address;
		index = (address >> level->shift) & (level->entries - 1);
		count = entries_ahead(w, level, table_last);
		count = min_t(size_t, count, (room(w) - sizeof(*w->run)) / sizeof(u64));
		count = min_t(unsigned int, count, w->work);

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
 * is_repeated() - does the entry at the position repeat the one before it?
 *
 * Asked of entries that point to a table.  The kernel half has trees in which
 * many entries point to the same table, level after level (KASAN's shadow of
 * what has no memory, mm/kasan/init.c; x86's espfix): to walk down from each of
 * them would take for ever.  The user half has none.
 *
 * Contract: touches no table.
 */
static bool is_repeated(const struct walk *w, const struct ptscope_level *level,
			unsigned int index, u64 raw)
{
	u64 first = w->at->address & ~((1ULL << level->shift) - 1);

	return w->job->kernel && index && raw == w->at->told[level->number].raw &&
	       first == w->at->told[level->number].last + 1;
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
		     unsigned int index, u64 raw, bool is_table, bool repeated)
{
	const struct ptscope_level *root = ptscope_space.levels;
	u64 last = w->at->address | ((1ULL << level->shift) - 1);
	bool again = last <= w->at->seen[level->number];
	u16 flags = (again ? PTSCOPE_AGAIN : 0) | (repeated ? PTSCOPE_REPEATED : 0);
	const u64 *user_root = NULL;
	size_t need = sizeof(u64);
	u64 *entries;

	if (w->run && w->run->record.flags != flags)
		close_run(w);
	if (!raw && !w->single) {
		if (w->run && ++w->gap > BLOCK)
			close_run(w);
		if (!w->run)
			return WALK_DONE;
	}

	if (level == root && (w->job->flags & PTSCOPE_WITH_USER_PGD) && !w->job->kernel)
		user_root = ptscope_arch_user_root(w->mm);
	if (again || user_root)
		close_run(w);
	if (user_root)
		need += sizeof(*w->run) + sizeof(u64);
	if (w->run)
		need += w->count * sizeof(u64);
	need += sizeof(*w->run);
	if (is_table)
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
	if (again || user_root || is_table)
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
		unsigned int index, count, looked;
		const u64 *from, *next;
		u64 first, last, raw;
		bool repeated;

		ret = enter_vmas(w);
		if (ret)
			break;
		if (w->work <= 0) {
			ret = WALK_FULL;
			break;
		}
		first = w->at->address & ~(span - 1);
		index = (first >> level->shift) & (level->entries - 1);

		/* Empty entries outside a run cost little: this loop. */
		count = 1;
		if (!w->run && !w->single && !w->job->kernel)
			count = min_t(unsigned int, entries_ahead(w, level, table_last), w->work);
		from = read_entries(w, table + index, count);
		if (!from) {
			ret = WALK_CHANGED;
			break;
		}
		raw = find_entry(from, count, &looked);
		w->work -= looked;
		if (looked > 1) {
			index += looked - 1;
			first += (u64)(looked - 1) << level->shift;
			w->at->address = first;
		}
		last = first | (span - 1);

		next = table_of(w, raw);
		repeated = next && is_repeated(w, level, index, raw);
		if (repeated)
			next = NULL;
		if (next && !is_safe(w, first, last)) {
			ret = WALK_LOCK;
			break;
		}
		ret = add_entry(w, level, table, index, raw, next, repeated);
		if (ret)
			break;
		if (next) {
			ret = walk_table(w, level + 1, next);
			if (ret)
				break;
		} else {
			advance(w, last);
		}
		/* A range that begins within the entry has told a part of its table only. */
		if ((next || repeated) && w->job->ranges[w->at->range].first <= first) {
			w->at->told[level->number].raw = raw;
			w->at->told[level->number].last = last;
		}
		if (w->finished || last == table_last)
			break;
	}
	close_run(w);
	return ret;
}

/*
 * ptscope_walk_segment() - walk from the position to w->last
 *
 * Contract: takes RCU; else that of walk_table(), the root being always safe.
 * Does not sleep.
 */
int ptscope_walk_segment(struct walk *w)
{
	const u64 *root;
	int ret;

	if (w->job->kernel)
		root = ptscope_arch_kernel_root(w->mm);
	else
		root = (const u64 *)w->mm->pgd;
	w->finished = false;
	rcu_read_lock();
	ret = walk_table(w, ptscope_space.levels, root);
	if (!ret) {
		/* VMAs in the last empty stretch have not been entered */
		w->at->address = w->last;
		ret = enter_vmas(w);
	}
	rcu_read_unlock();
	return ret;
}
