// SPDX-License-Identifier: GPL-2.0-or-later
/* See find.h. */
#include <string.h>

#include "find.h"

/* The size of what an entry stands for: a page, or a group that all its entries have the address of. */
static __u64 largest_size(const struct ptscope_rules *rules)
{
	__u64 most = 1;

	for (__u32 i = 0; i < rules->group_count; i++)
		if (rules->groups[i].in_address && rules->groups[i].entries > most)
			most = rules->groups[i].entries;
	return rules->span * most;
}

static int has_overlap(const struct ptscope_find *find, __u64 start, __u64 size)
{
	return start <= find->last && start + (size - 1) >= find->first;
}

/* May this entry have the frame?  Says yes too often, never no where it has. */
static int is_candidate(const struct ptscope_find *find, const struct ptscope_find_level *level,
			__u64 raw)
{
	const struct ptscope_rules *rules = level->rules;

	for (__u32 i = 0; i < level->flip_count; i++)
		if (has_overlap(find, address_of(rules, raw ^ level->flips[i]) & ~(level->size - 1),
				level->size))
			return 1;
	if (rules->has_swap) {
		__u64 pfn = field_read(&rules->swap_offset, raw) & rules->frame_mask;

		return has_overlap(find, pfn << rules->page_shift, rules->span);
	}
	return 0;
}

/* The first physical address of what an entry maps, at the address that is its own. */
static __u64 page_of(const struct ptscope_rules *rules, const struct ptscope_decoded *decoded,
		     __u64 address)
{
	__u64 size = decoded->mapping_size;

	if (decoded->group && rules->groups[decoded->group - 1].in_address)
		return decoded->pa | (address & (size - 1) & ~(rules->span - 1));
	return decoded->pa;
}

/* Whether an entry that maps @address has the frame; says where the frame appears. */
static int has_frame(const struct ptscope_find *find, const struct ptscope_find_level *level,
		     __u64 raw, __u64 address, __u64 *where)
{
	const struct ptscope_rules *rules = level->rules;
	struct ptscope_decoded decoded;
	__u64 page;

	if (!is_candidate(find, level, raw))
		return 0;
	decode_one(rules, raw, &decoded);
	if (!(decoded.has & PTSCOPE_HAS_FRAME) || decoded.state == PTSCOPE_STATE_TABLE)
		return 0;
	page = page_of(rules, &decoded, address);
	if (!has_overlap(find, page, rules->span))
		return 0;
	*where = address + (find->first > page ? find->first - page : 0);
	return 1;
}

static void fill_found(struct ptscope_find *find, const struct ptscope_table *table, __u64 i,
		       __u64 where)
{
	const __u64 *raws = (const void *)(table + 1);
	__u64 span = find->levels[table->level].rules->span;

	find->found = (struct ptscope_find_found){
		.address = table->address + i * span,
		.frame_address = where,
		.raw = raws[i],
		.entry_pa = table->table_pa + 8 * (table->index + i),
		.count = 1,
		.level = table->level,
		.lock = find->lock,
		.has_user_root = find->has_user_root,
		.user_root = find->user_root,
	};
	for (__u32 level = table->level + 1; level <= PTSCOPE_LEVEL_PGD; level++)
		find->found.chain[level] = find->chain[level];
	if (find->in_vma && where >= find->vma.start && where < find->vma.end) {
		find->found.in_vma = 1;
		find->found.vma = find->vma;
	}
}

/* Goes on in the current table: whether something was found. */
static int search_table(struct ptscope_find *find, const struct ptscope_table *table)
{
	const struct ptscope_find_level *level = &find->levels[table->level];
	const __u64 *raws = (const void *)(table + 1);
	__u64 span = level->rules->span, count = table->count, where;

	for (__u64 i = find->next; i < count; i++) {
		__u64 address = table->address + i * span;

		if (!raws[i] || !has_frame(find, level, raws[i], address, &where))
			continue;
		fill_found(find, table, i, where);
		/* Equal entries, such as those of the zero page, in the same VMA. */
		for (i++; i < count && raws[i] == find->found.raw; i++) {
			__u64 again;

			address = table->address + i * span;
			if (!has_frame(find, level, raws[i], address, &again) ||
			    again != where + find->found.count * span ||
			    (find->found.in_vma && again >= find->vma.end))
				break;
			find->found.count++;
		}
		find->next = i;
		return 1;
	}
	return 0;
}

/* Takes note of the way down; whether the entries of the table are to be searched. */
static int enter_table(struct ptscope_find *find, const struct ptscope_table *table)
{
	const __u64 *raws = (const void *)(table + 1);
	__u32 level = table->level;

	if (table->record.flags & PTSCOPE_USER_PGD) {
		find->has_user_root = 1;
		find->user_root = raws[table->count - 1];
		return 0;
	}
	if (!find->root_pa)
		find->root_pa = table->table_pa;
	/* A part above PTE level ends with the entry that was descended from. */
	find->chain[level] = raws[table->count - 1];
	if (table->record.flags & PTSCOPE_AGAIN)
		return 0;
	find->looked += table->count;
	return 1;
}

/* Look for physical addresses; both ends are inside.  ptscope_find_level() must follow. */
int ptscope_find_start(struct ptscope_find *find, const struct ptscope_limits *limits, __u64 first,
		       __u64 last)
{
	if (last < first)
		return PTSCOPE_BAD_RANGE;
	memset(find, 0, sizeof(*find));
	find->limits = *limits;
	find->first = first;
	find->last = last;
	return 0;
}

/* The rules of a walked level; they must outlive the search. */
int ptscope_find_level(struct ptscope_find *find, const struct ptscope_rules *rules)
{
	struct ptscope_find_level *level;

	if (rules->level < PTSCOPE_LEVEL_PTE || rules->level > PTSCOPE_LEVEL_PGD)
		return PTSCOPE_BAD_LEVEL;
	level = &find->levels[rules->level];
	level->rules = rules;
	level->size = largest_size(rules);
	level->flip_count = 0;
	for (__u32 i = 0; i < rules->state_count; i++) {
		__u64 flip = rules->states[i].flip;
		__u32 k = 0;

		while (k < level->flip_count && level->flips[k] != flip)
			k++;
		if (k < level->flip_count)
			continue;
		if (k == PTSCOPE_FIND_FLIPS)
			return PTSCOPE_BAD_ROOM;
		level->flips[level->flip_count++] = flip;
	}
	return 0;
}

int ptscope_find_batch(struct ptscope_find *find, const void *buffer, __u64 length)
{
	find->in_table = 0;
	find->has_user_root = 0;
	return ptscope_cursor_start(&find->cursor, buffer, length, find->sequence++, &find->limits);
}

/* PTSCOPE_FIND_FOUND, 0 at the end of the batch, or a PTSCOPE_BAD_ code. */
int ptscope_find_next(struct ptscope_find *find)
{
	int kind;

	for (;;) {
		const void *record;

		if (find->in_table) {
			if (search_table(find, (const void *)find->cursor.record))
				return PTSCOPE_FIND_FOUND;
			find->in_table = 0;
		}
		kind = ptscope_cursor_next(&find->cursor);
		if (kind <= 0)
			return kind;
		record = find->cursor.record;
		if (kind == PTSCOPE_RECORD_BATCH) {
			find->lock = ((const struct ptscope_batch *)record)->lock;
		} else if (kind == PTSCOPE_RECORD_VMA) {
			find->vma = *(const struct ptscope_vma *)record;
			find->in_vma = 1;
		} else if (kind == PTSCOPE_RECORD_TABLE) {
			const struct ptscope_table *table = record;

			if (!find->levels[table->level].rules)
				return PTSCOPE_BAD_LEVEL;
			find->in_table = enter_table(find, table);
			find->next = 0;
		}
	}
}

/* The first of the entries of pagemap, from one on, that has the frame; count when none has. */
__u64 ptscope_find_page(const __u64 *entries, __u64 count, __u64 from, __u64 pfn)
{
	const __u64 present = 1ULL << 63, payload = (1ULL << 55) - 1;

	while (from < count && !((entries[from] & present) && (entries[from] & payload) == pfn))
		from++;
	return from;
}
