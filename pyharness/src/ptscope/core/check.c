// SPDX-License-Identifier: GPL-2.0-or-later
/* See check.h. */
#include "check.h"

#include <string.h>

/* Documentation/admin-guide/mm/pagemap.rst */
#define PAGEMAP_PRESENT (1ULL << 63)
#define PAGEMAP_SWAPPED (1ULL << 62)
#define PAGEMAP_UFFD_WP (1ULL << 57)
#define PAGEMAP_SOFT_DIRTY (1ULL << 55)
#define PAGEMAP_FRAME ((1ULL << 55) - 1)
#define PAGEMAP_SWAP_TYPE_BITS 5

static int within(const struct ptscope_range *ranges, __u64 count, __u64 first, __u64 last)
{
	__u64 low = 0, high = count;

	while (low < high) {
		__u64 middle = (low + high) / 2;

		if (ranges[middle].last < first)
			low = middle + 1;
		else
			high = middle;
	}
	return low < count && ranges[low].first <= first && last <= ranges[low].last;
}

static void suspect(struct ptscope_check *check, __u64 address, __u64 raw, __u32 level, __u32 why)
{
	if (check->suspect_count < PTSCOPE_CHECK_ROOM)
		check->suspects[check->suspect_count++] = (struct ptscope_suspect){
			.address = address, .raw = raw, .level = level, .why = why,
		};
}

static int is_page(__u32 state)
{
	return state >= PTSCOPE_STATE_LEAF && state <= PTSCOPE_STATE_SPLITTING;
}

/* The first area of a batch, without a VMA, is all that is outside of them. */
static void new_area(struct ptscope_check *check, const struct ptscope_vma *vma)
{
	struct ptscope_area *area;

	if (check->area_count == PTSCOPE_AREA_ROOM)
		return;
	area = &check->areas[check->area_count++];
	memset(area, 0, sizeof(*area));
	if (vma) {
		area->start = vma->start;
		area->end = vma->end;
		area->vm_flags = vma->vm_flags;
		area->inode = vma->inode;
		area->hugetlb = !!(vma->record.flags & PTSCOPE_HUGETLB);
	}
}

static int fits_row(const struct ptscope_check *check, const struct ptscope_decoded *entry,
		    __u32 level, __u32 where, __u64 vm_flags)
{
	for (__u64 i = 0; i < check->row_count; i++) {
		const struct ptscope_check_row *row = &check->rows[i];

		if (row->where & where && row->states >> entry->state & 1 &&
		    row->levels >> level & 1 && (entry->set & row->set) == row->set &&
		    !(entry->set & row->clear) && (vm_flags & row->vma_mask) == row->vma_value &&
		    !(row->unless_zero && entry->pfn == check->zero_pfn))
			return 1;
	}
	return 0;
}

/*
 * Entries of one mapping stand side by side: with the frames in their addresses the one
 * before maps what comes before, otherwise they all name the same mapping.
 */
static int breaks_group(const struct ptscope_rules *rules, const struct ptscope_decoded *entries,
			__u64 i, __u64 index)
{
	const struct ptscope_decoded *entry = &entries[i];
	const struct ptscope_group *group;
	__u64 of;

	if (!entry->group && (!i || !entries[i - 1].group))
		return 0;
	group = &rules->groups[(entry->group ? entry->group : entries[i - 1].group) - 1];
	of = index % group->entries;
	if (!of)
		return entry->group && entry->pa % (group->entries * rules->span);
	if (!i)
		return 0;	/* the batch began within the group */
	if (entry->group != entries[i - 1].group || entry->state != entries[i - 1].state)
		return 1;
	return entry->pa != entries[i - 1].pa + (group->in_address ? 0 : rules->span);
}

static __u32 why_suspect(const struct ptscope_check *check, const struct ptscope_rules *rules,
			 const struct ptscope_decoded *entry, __u64 raw, __u64 address,
			 const struct ptscope_area *area)
{
	__u32 level = rules->level, where, why = 0;

	where = check->kernel ? PTSCOPE_WHERE_KERNEL :
		area->end ? PTSCOPE_WHERE_INSIDE : PTSCOPE_WHERE_OUTSIDE;
	if (fits_row(check, entry, level, where, area->vm_flags))
		why |= PTSCOPE_WHY_ROW;
	if (raw & ~check->explained[PTSCOPE_STATES * level + entry->state])
		why |= PTSCOPE_WHY_BITS;
	if (is_page(entry->state)) {
		/* Frames that are stored inverted have these bits clear like others. */
		if (raw & check->unaligned[level] && !entry->group)
			why |= PTSCOPE_WHY_ALIGNMENT;
		if (where == PTSCOPE_WHERE_INSIDE && rules->span > area->end - address)
			why |= PTSCOPE_WHY_ACROSS;
	}
	if (entry->has & PTSCOPE_HAS_FRAME) {
		if (entry->state == PTSCOPE_STATE_TABLE) {
			if (check->ram_count &&
			    !within(check->ram, check->ram_count, entry->pa, entry->pa))
				why |= PTSCOPE_WHY_TABLE_FRAME;
		} else if (check->range_count &&
			   !within(check->ranges, check->range_count, entry->pa,
				   entry->pa + rules->span - 1)) {
			why |= PTSCOPE_WHY_FRAME;
		}
	}
	return why;
}

/* What pagemap says of the first page of an entry, and by how much more of each further one. */
static __u64 pagemap_word(const struct ptscope_check *check, const struct ptscope_decoded *entry,
			  const struct ptscope_area *area, __u64 *step)
{
	__u64 word = area->vm_flags & check->vm_softdirty ? PAGEMAP_SOFT_DIRTY : 0;

	*step = 0;
	if (area->vm_flags & check->vm_pfnmap)
		return word;
	if (check->uffd_wp_shown && entry->set & PTSCOPE_IS_UFFD_WP)
		word |= PAGEMAP_UFFD_WP;
	if (entry->set & PTSCOPE_IS_SOFT_DIRTY && !area->hugetlb)
		word |= PAGEMAP_SOFT_DIRTY;
	if (is_page(entry->state)) {
		*step = 1;
		return word | PAGEMAP_PRESENT | (entry->pfn & PAGEMAP_FRAME);
	}
	if (area->hugetlb || !(entry->has & PTSCOPE_HAS_SWAP))
		return word;
	*step = 1ULL << PAGEMAP_SWAP_TYPE_BITS;
	return word | PAGEMAP_SWAPPED |
	       ((entry->swap_type | (entry->has & PTSCOPE_HAS_FRAME ? entry->pfn :
				     entry->swap_offset) << PAGEMAP_SWAP_TYPE_BITS) &
		PAGEMAP_FRAME);
}

static void add_span(struct ptscope_check *check, __u64 address, __u64 count, __u64 word,
		     __u64 step)
{
	if (check->span_count < PTSCOPE_CHECK_ROOM)
		check->spans[check->span_count++] = (struct ptscope_check_span){
			.address = address, .count = count, .word = word, .step = step,
		};
}

static void add_word(struct ptscope_check *check, __u64 address, __u64 page_size, __u64 word)
{
	struct ptscope_check_span *last = &check->spans[check->span_count];

	if (check->word_count == PTSCOPE_CHECK_ROOM || check->span_count == PTSCOPE_CHECK_ROOM)
		return;
	last -= check->span_count > 0;
	if (check->span_count && last->in_words &&
	    last->address + last->count * page_size == address &&
	    last->word + last->count == check->word_count) {
		last->count++;
	} else {
		add_span(check, address, 1, check->word_count, 0);
		check->spans[check->span_count - 1].in_words = 1;
	}
	check->words[check->word_count++] = word;
}

static void place(struct ptscope_placed *list, __u64 *count, const struct ptscope_decoded *entry,
		  __u64 address, __u32 level, __u64 area)
{
	if (*count < PTSCOPE_CHECK_ROOM)
		list[(*count)++] = (struct ptscope_placed){
			.pa = entry->pa, .address = address, .level = level, .set = entry->set,
			.area = area,
		};
}

/* Sums of it are the same however a stream is cut into batches. */
static __u64 mixed(__u64 address, __u64 raw, __u32 level)
{
	__u64 word = (address ^ (__u64)level << 60) * 0x9e3779b97f4a7c15ULL ^ raw;

	word = (word ^ word >> 32) * 0xd6e8feb86659fd93ULL;
	word = (word ^ word >> 32) * 0xd6e8feb86659fd93ULL;
	return word ^ word >> 32;
}

/* One entry that this batch reports for the first time. */
static void take_entry(struct ptscope_check *check, const struct ptscope_rules *rules,
		       const struct ptscope_decoded *entries, __u64 i, __u64 index, __u64 raw,
		       __u64 address, struct ptscope_area *area)
{
	const struct ptscope_decoded *entry = &entries[i];
	__u32 level = rules->level, why;

	area->counts[PTSCOPE_STATES * level + entry->state]++;
	if (is_page(entry->state) && entry->set & PTSCOPE_IS_SPECIAL)
		area->special[level]++;
	if (raw) {
		check->entries++;
		if (check->kernel && !(entry->set & PTSCOPE_IS_PRESENT))
			return;	/* the kernel takes pages away in whatever form is easiest */
		area->digest += mixed(address, entry->set & PTSCOPE_IS_PRESENT ?
				      raw & ~check->aging : raw, level);
		why = why_suspect(check, rules, entry, raw, address, area);
		if (breaks_group(rules, entries, i, index))
			why |= PTSCOPE_WHY_GROUP;
		if (why)
			suspect(check, address, raw, level, why);
	}
	if (entry->state == PTSCOPE_STATE_TABLE)
		place(check->tables, &check->table_count, entry, address, level,
		      (__u64)(area - check->areas));
	else if (level > PTSCOPE_LEVEL_PTE && is_page(entry->state))
		place(check->leaves, &check->leaf_count, entry, address, level,
		      (__u64)(area - check->areas));
	if (!area->end || entry->state == PTSCOPE_STATE_TABLE)
		return;
	if (level == PTSCOPE_LEVEL_PTE) {
		__u64 step, word = pagemap_word(check, entry, area, &step);

		/* Entries of one mapping all name its beginning where that is in their address. */
		if (entry->group && rules->groups[entry->group - 1].in_address && step == 1)
			word += index % rules->groups[entry->group - 1].entries;
		add_word(check, address, rules->span, word);
	} else if (entry->state != PTSCOPE_STATE_NONE && entry->state != PTSCOPE_STATE_INVALID) {
		__u64 step, word = pagemap_word(check, entry, area, &step);

		add_span(check, address, rules->span >> rules->page_shift, word, step);
	}
}

/* Under PTI the kernel's copy of a root entry is the user's, with no-execute added. */
static void compare_roots(struct ptscope_check *check, const struct ptscope_table *table,
			  const __u64 *raws, __u64 span)
{
	const struct ptscope_table *user = check->user_pgd;
	const __u64 *user_raws = (const __u64 *)(user + 1);

	for (__u64 i = 0; i < table->count; i++) {
		__u64 at = table->index + i - user->index;
		__u64 want;

		if (at >= user->count)
			continue;
		want = user_raws[at] ? user_raws[at] | check->pti_nx : 0;
		if ((raws[i] ^ want) & ~check->aging)
			suspect(check, table->address + i * span, raws[i], table->level,
				PTSCOPE_WHY_USER_PGD);
	}
}

/* The next walked level above, or 0 for the root. */
static __u32 level_above(const struct ptscope_check *check, __u32 level)
{
	while (++level <= PTSCOPE_LEVEL_PGD)
		if (check->rules[level])
			return level;
	return 0;
}

static void check_link(struct ptscope_check *check, const struct ptscope_table *table,
		       const struct ptscope_rules *rules, __u64 raw)
{
	__u32 above = level_above(check, table->level);
	const struct ptscope_decoded *parent = &check->parent[above];
	__u64 entries_span;

	if (!above) {
		if (check->ram_count &&
		    !within(check->ram, check->ram_count, table->table_pa, table->table_pa))
			suspect(check, table->address, raw, table->level, PTSCOPE_WHY_TABLE_FRAME);
		return;
	}
	entries_span = check->rules[above]->span;
	if (parent->state != PTSCOPE_STATE_TABLE || parent->pa != table->table_pa ||
	    check->parent_address[above] != (table->address & ~(entries_span - 1)) ||
	    (table->address & (entries_span - 1)) != table->index * rules->span)
		suspect(check, table->address, raw, table->level, PTSCOPE_WHY_LINK);
}

/* No part goes on into the next VMA, but one may begin before its VMA, or go on behind it. */
static struct ptscope_area *area_of(struct ptscope_check *check, __u64 address)
{
	struct ptscope_area *area = &check->areas[check->area_count - 1];

	return address >= area->start && address < area->end ? area : check->areas;
}

static void check_part(struct ptscope_check *check, const struct ptscope_table *table)
{
	const struct ptscope_rules *rules = check->rules[table->level];
	const __u64 *raws = (const __u64 *)(table + 1);
	struct ptscope_decoded *decoded = check->scratch;
	__u64 count = table->count;

	if (table->record.flags & PTSCOPE_USER_PGD) {
		check->user_pgd = table;
		return;
	}
	if (!rules || !count || count > PTSCOPE_TABLE_ROOM)
		return;
	check_link(check, table, rules, raws[0]);
	if (check->user_pgd && check->pti_nx && !level_above(check, table->level))
		compare_roots(check, table, raws, rules->span);
	ptscope_decode(rules, raws, count, decoded);
	for (__u64 i = 0; i < count && !(table->record.flags & PTSCOPE_AGAIN); i++) {
		__u64 address = table->address + i * rules->span;

		take_entry(check, rules, decoded, i, table->index + i, raws[i], address,
			   area_of(check, address));
	}
	check->parent[table->level] = decoded[count - 1];
	check->parent_address[table->level] = table->address + (count - 1) * rules->span;
}

/*
 * ptscope_check_batch() - check one batch
 *
 * Return: 0, or what is wrong with the buffer (PTSCOPE_BAD_...).
 */
int ptscope_check_batch(struct ptscope_check *check, const void *buffer, __u64 length,
			__u64 sequence, const struct ptscope_limits *limits)
{
	struct ptscope_cursor cursor;
	int kind;

	check->suspect_count = check->area_count = check->table_count = 0;
	check->leaf_count = check->word_count = check->span_count = 0;
	check->user_pgd = NULL;
	memset(check->parent, 0, sizeof(check->parent));
	new_area(check, NULL);
	kind = ptscope_cursor_start(&cursor, buffer, length, sequence, limits);
	if (kind)
		return kind;
	while ((kind = ptscope_cursor_next(&cursor)) > 0) {
		if (kind == PTSCOPE_RECORD_VMA) {
			new_area(check, (const struct ptscope_vma *)cursor.record);
		} else if (kind == PTSCOPE_RECORD_TABLE) {
			check_part(check, (const struct ptscope_table *)cursor.record);
		} else if (kind == PTSCOPE_RECORD_END) {
			const struct ptscope_end *end = (const struct ptscope_end *)cursor.record;

			check->end_status = end->status;
			check->end_address = end->address;
		}
	}
	return kind;
}

/*
 * ptscope_check_pagemap() - compare what pagemap says of a span
 * @words: ptscope_check.words
 * @care: bits that count
 * @bad: addresses in pages from the beginning of the span that differ, up to @room
 *
 * Return: how many differ.
 */
__u64 ptscope_check_pagemap(const struct ptscope_check_span *span, const __u64 *words, __u64 care,
			    const __u64 *pagemap, __u64 *bad, __u64 room)
{
	__u64 found = 0;

	for (__u64 i = 0; i < span->count; i++) {
		__u64 word = span->in_words ? words[span->word + i] : span->word + i * span->step;

		if (!((word ^ pagemap[i]) & care))
			continue;
		if (found < room)
			bad[found] = i;
		found++;
	}
	return found;
}

/*
 * ptscope_check_leaves() - add what pagemap shows of @count pages to @sums
 * @ranges: of physical addresses; none: frames are not looked at
 * @first: the number of the first of these pages, for the digest
 */
void ptscope_check_leaves(const __u64 *pagemap, __u64 count, const struct ptscope_range *ranges,
			  __u64 range_count, __u64 zero_pfn, __u64 page_size, __u64 first,
			  struct ptscope_leaves *sums)
{
	for (__u64 i = 0; i < count; i++) {
		__u64 word = pagemap[i], frame = word & PAGEMAP_FRAME, pa = frame * page_size;

		if (!word)
			continue;
		/* Whether a page is mapped by others too may change without its entry. */
		sums->digest += mixed(first + i, word & ~(1ULL << 56), 0);
		if (word & PAGEMAP_PRESENT) {
			sums->present++;
			sums->zero += frame == zero_pfn;
			if (range_count && !within(ranges, range_count, pa, pa + page_size - 1) &&
			    !sums->outside++)
				sums->outside_at = first + i;
		} else if (word & PAGEMAP_SWAPPED) {
			sums->swapped++;
		}
	}
}
