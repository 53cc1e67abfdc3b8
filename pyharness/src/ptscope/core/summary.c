// SPDX-License-Identifier: GPL-2.0-or-later
/* See summary.h. */
#include <string.h>

#include "summary.h"

/* ---- classes ------------------------------------------------------------ */

/*
 * What makes two entries of one class
 *
 * decode_one() looks at an entry through the masks of its rules.  Almost all
 * of these are without bits of the address, and the bits they have together
 * are the key, with few exceptions:
 *
 *  1. "none" rows ask whether all bits are zero.  They have the whole address
 *     in their mask: the key has one bit for "some other bit is set".
 *  2. Rows with some bits of the address: misaligned huge pages, Svnapot,
 *     markers in a swap entry's offset.  The full key has all these bits.
 *  3. Most entries are present, and no row of a swap entry is asked for them,
 *     nor a "none" row.  And most do not pass the "gate": the bits outside of
 *     the address that all rows of the second kind want alike.  The key of
 *     such an entry has no bits of the address at all.
 */

static __u64 address_mask(const struct ptscope_rules *rules)
{
	__u64 mask = 0;

	for (__u32 i = 0; i < rules->piece_count; i++)
		mask |= rules->pieces[i].mask;
	return mask;
}

/* The raw bits in which these bits of a swap offset stand. */
static __u64 offset_bits(const struct ptscope_rules *rules, __u64 bits)
{
	return bits << rules->swap_offset.shift & rules->swap_offset.mask;
}

static __u64 swap_bits(const struct ptscope_rules *rules)
{
	__u64 bits = offset_bits(rules, rules->young | rules->dirty | rules->uffd_wp_marker);

	if (!rules->has_swap)
		return 0;
	for (__u32 i = 0; i < rules->marker_count; i++)
		bits |= offset_bits(rules, rules->markers[i].bit);
	return bits | rules->swap_type.mask;
}

/* What make_keys() has found out so far. */
struct keys {
	__u64 address;
	__u64 bits;			/* outside of the address */
	__u64 address_bits;		/* within it */
	struct ptscope_row gate;
	int gates;
};

static void add_row(struct keys *keys, __u64 mask, __u64 value, __u64 some)
{
	__u64 within = (mask | some) & keys->address;

	/* A "none" row wants all zero but these bits. */
	if ((mask & keys->address) == keys->address) {
		keys->bits |= ~mask;
		return;
	}
	keys->bits |= (mask | some) & ~keys->address;
	keys->address_bits |= within;
	if (!within)
		return;
	if (!keys->gates++)
		keys->gate = (struct ptscope_row){ mask & ~keys->address, value & ~keys->address };
	else
		keys->gate.mask &= mask & ~(value ^ keys->gate.value);
	keys->gate.value &= keys->gate.mask;
}

static void make_keys(struct ptscope_classes *level)
{
	const struct ptscope_rules *rules = level->rules;
	const struct ptscope_row never = { 0, 1 };
	struct keys keys = { .address = level->address, .gate = never };

	for (__u32 i = 0; i < rules->state_count; i++) {
		const struct ptscope_state_row *row = &rules->states[i];

		add_row(&keys, row->mask, row->value, row->some);
	}
	/* Attributes, presence and protection keys: all rows of the pool. */
	for (__u32 i = 0; i < PTSCOPE_MAX_ROWS; i++)
		if (rules->rows[i].mask)
			add_row(&keys, rules->rows[i].mask, rules->rows[i].value, 0);
	for (__u32 i = 0; i < rules->group_count; i++)
		add_row(&keys, rules->groups[i].row.mask, rules->groups[i].row.value, 0);
	level->gate = keys.gate;
	level->key_present = keys.bits;
	level->key_full = keys.bits | keys.address_bits | swap_bits(rules);
	/* No architecture has several rows here; one that has gets the full key. */
	level->present = rules->present.count == 1 ? rules->rows[rules->present.first] : never;
	/* The key's bit for "some other bit is set" has to be one that the key does not use. */
	if (!~level->key_full)
		level->key_full &= ~(1ULL << 63);
}

static int fits(const struct ptscope_row *row, __u64 raw)
{
	return (raw & row->mask) == row->value;
}

static __u64 class_key(const struct ptscope_classes *level, __u64 raw)
{
	__u64 rest;

	if (fits(&level->present, raw) && !fits(&level->gate, raw))
		return raw & level->key_present;
	rest = raw & ~level->key_full;
	return (raw & level->key_full) | (rest ? ~level->key_full & (level->key_full + 1) : 0);
}

/* The raw value's distance to that of the frame behind; 0 when no addition gives it. */
static __u64 step_of(const struct ptscope_rules *rules)
{
	for (__u32 i = 0; i < rules->piece_count; i++) {
		const struct ptscope_piece *piece = &rules->pieces[i];
		__u64 step = rules->span << piece->right >> piece->left;

		if (step & piece->mask)
			return step;
	}
	return 0;
}

static void fill_class(const struct ptscope_classes *level, struct ptscope_class *class,
		       __u64 key, __u64 raw)
{
	const struct ptscope_rules *rules = level->rules;
	struct ptscope_decoded decoded;

	decode_one(rules, raw, &decoded);
	*class = (struct ptscope_class){
		.key = key,
		.set = decoded.set,
		.state = decoded.state,
		.group = decoded.group,
		.kind = decoded.swap_kind,
		.used = 1,
	};
	if (!is_mapped(decoded.state))
		return;
	class->row = decoded.row - 1;
	class->in_runs = !(decoded.set & PTSCOPE_IS_SPECIAL);
	class->together = decoded.group && rules->groups[decoded.group - 1].in_address;
}

static void flush_class(struct ptscope_sums *all, __u32 level, struct ptscope_class *class)
{
	struct ptscope_level_sums *sums = &all->levels[level];
	__u64 count = class->count;
	__u64 *by_bit = sums->mapped;

	class->count = 0;
	all->filled |= 1ULL << level;
	sums->states[class->state] += count;
	if (class->kind) {
		all->filled |= PTSCOPE_FILLED_KINDS;
		all->kinds[class->kind] += count;
	}
	if (is_mapped(class->state)) {
		if (class->group)
			sums->groups[class->group - 1] += count;
	} else if (class->kind) {
		by_bit = sums->swapped;
	} else {
		return;
	}
	for (__u32 set = class->set; set; set &= set - 1)
		by_bit[__builtin_ctz(set)] += count;
}

/* Adds what the classes of all levels have counted to the sums of a VMA. */
static void flush_classes(struct ptscope_summary *s, struct ptscope_sums *sums)
{
	for (__u32 number = PTSCOPE_LEVEL_PTE; number <= PTSCOPE_LEVEL_PGD; number++) {
		struct ptscope_classes *level = &s->levels[number];

		for (__u64 i = 0; i < level->touched_count; i++)
			flush_class(sums, number, &level->classes[level->touched[i]]);
		level->touched_count = 0;
	}
}

/* The class of an entry.  A slot has one class at a time; the older is counted and forgotten. */
static struct ptscope_class *find_class(struct ptscope_classes *level, struct ptscope_sums *sums,
					__u64 key, __u64 raw)
{
	/* Fibonacci hashing: the upper bits of the product depend on all bits of the key. */
	__u32 slot = (__u32)(key * 0x9e3779b97f4a7c15ULL >> (64 - PTSCOPE_CLASS_BITS));
	struct ptscope_class *class = &level->classes[slot];

	if (class->key == key && class->used) {
		if (!class->count)
			level->touched[level->touched_count++] = (__u16)slot;
		return class;
	}
	if (class->count)
		flush_class(sums, level->rules->level, class);
	else
		level->touched[level->touched_count++] = (__u16)slot;
	fill_class(level, class, key, raw);
	return class;
}

/* ---- runs of frames ------------------------------------------------------- */

static void end_run(struct ptscope_summary *s, struct ptscope_sums *sums)
{
	if (s->run_length) {
		int log = 63 - __builtin_clzll(s->run_length);

		sums->filled |= PTSCOPE_FILLED_RUNS;
		sums->runs[log]++;
		sums->run_pages[log] += s->run_length;
	}
	s->run_length = 0;
}

static void add_to_run(struct ptscope_summary *s, struct ptscope_sums *sums,
		       const struct ptscope_rules *rules, __u64 address, __u64 pa, __u64 count)
{
	if (address != s->run_address || pa != s->run_pa)
		end_run(s, sums);
	s->run_length += count * (rules->span >> rules->page_shift);
	s->run_address = address + count * rules->span;
	s->run_pa = pa + count * rules->span;
}

/* ---- entries -------------------------------------------------------------- */

static void add_frame(struct ptscope_summary *s, struct ptscope_sums *sums, __u64 pfn)
{
	if (s->zero_pfn) {
		sums->huge_zero += pfn == s->zero_pfn;
		return;
	}
	for (__u64 i = 0; i < sums->frame_count; i++) {
		if (sums->frames[i].pfn == pfn) {
			sums->frames[i].count++;
			return;
		}
	}
	if (sums->frame_count == PTSCOPE_FRAMES) {
		sums->frames_lost++;
		return;
	}
	sums->frames[sums->frame_count++] = (struct ptscope_frame_count){ pfn, 1 };
}

static int is_anonymous(const struct ptscope_vma *vma)
{
	return !vma->inode && !vma->dev_major && !vma->dev_minor;
}

/*
 * Entries of one level that belong to the same sums, tables excepted: these
 * are counted, too, but not as tables.
 */
static void take_entries(struct ptscope_summary *s, struct ptscope_classes *level,
			 struct ptscope_sums *sums, const __u64 *raws, __u64 count, __u64 address)
{
	const struct ptscope_rules *rules = level->rules;
	struct ptscope_class *class = NULL;
	__u64 key, last_key = 0, i = 0, none = 0, pages = 0;

	while (i < count) {
		__u64 raw = raws[i], first = i, flip, pa;

		if (!raw && level->zero_is_none) {
			none++;
			i++;
			continue;
		}
		key = class_key(level, raw);
		if (!class || key != last_key) {
			class = find_class(level, sums, key, raw);
			last_key = key;
		}
		i++;
		if (!class->in_runs) {
			pages += is_mapped(class->state);
			class->count++;
			/* From 6.17 on it is special, and nothing else of such a VMA is. */
			if (rules->level == PTSCOPE_LEVEL_PMD && is_mapped(class->state) &&
			    class->set & PTSCOPE_IS_SPECIAL && is_anonymous(&sums->vma))
				sums->huge_zero++;
			continue;
		}
		flip = rules->states[class->row].flip;
		pa = address_of(rules, raw ^ flip) & ~(rules->span - 1);
		if (class->together) {
			__u64 size = rules->span * rules->groups[class->group - 1].entries;

			pa = (pa & ~(size - 1)) | ((address + first * rules->span) & (size - 1));
		} else if (level->step) {
			__u64 step = flip & level->step ? -level->step : level->step, next = raw + step;

			while (i < count && raws[i] == next) {
				next += step;
				i++;
			}
			/* Not when an addition has left the address. */
			if ((raws[i - 1] ^ raw) & ~level->address || class_key(level, raws[i - 1]) != key)
				i = first + 1;
		}
		pages += i - first;
		class->count += i - first;
		add_to_run(s, sums, rules, address + first * rules->span, pa, i - first);
		if (rules->level == PTSCOPE_LEVEL_PMD && is_anonymous(&sums->vma) &&
		    !(class->set & (PTSCOPE_MAY_WRITE | PTSCOPE_IS_DIRTY)))
			for (__u64 j = first; j < i; j++)
				add_frame(s, sums, (pa >> rules->page_shift) +
					  (j - first) * (rules->span >> rules->page_shift));
	}
	if (none) {
		sums->levels[rules->level].states[PTSCOPE_STATE_NONE] += none;
		sums->filled |= 1ULL << rules->level;
	}
	if (rules->level == PTSCOPE_LEVEL_PTE && pages && s->levels[PTSCOPE_LEVEL_PMD].rules) {
		__u64 size = s->levels[PTSCOPE_LEVEL_PMD].rules->span;
		__u64 start = address & ~(size - 1);

		if (start < sums->vma.start || sums->vma.end - start < size)
			return;
		sums->small_ranges += s->range != start + 1;
		sums->small_range_pages += pages;
		s->range = start + 1;
	}
}

/* ---- tables --------------------------------------------------------------- */

static __u32 level_under(const struct ptscope_summary *s, __u32 level)
{
	while (level > PTSCOPE_LEVEL_PTE && !s->levels[--level].rules)
		;
	return level;
}

static void add_tables(struct ptscope_sums *sums, __u32 level, __u64 count)
{
	if (!count)
		return;
	sums->tables[level] += count;
	sums->filled |= PTSCOPE_FILLED_TABLES;
}

/* Tables that still await their VMA when what comes next begins at "address". */
static void settle_tables(struct ptscope_summary *s, __u64 address, struct ptscope_sums *next)
{
	for (__u32 level = PTSCOPE_LEVEL_PTE; level <= PTSCOPE_LEVEL_PGD; level++) {
		struct ptscope_sums *to = address > s->pending_end[level] ? &s->outside : next;

		add_tables(to, level, s->pending[level]);
		s->pending[level] = 0;
	}
}

/* A table that maps first..last was pointed to. */
static void take_table(struct ptscope_summary *s, __u32 level, __u64 first, __u64 last)
{
	if (s->in_vma && first < s->current.vma.end && last >= s->current.vma.start) {
		add_tables(&s->current, level, 1);
		return;
	}
	if (s->pending[level] && first > s->pending_end[level]) {
		add_tables(&s->outside, level, s->pending[level]);
		s->pending[level] = 0;
	}
	s->pending[level]++;
	s->pending_end[level] = last;
}

/* ---- records -------------------------------------------------------------- */

static void take_part(struct ptscope_summary *s, const struct ptscope_table *table)
{
	struct ptscope_classes *level = &s->levels[table->level];
	const __u64 *raws = (const void *)(table + 1);
	__u64 span = level->rules->span, count = table->count, inside = 0;
	__u64 address = table->address;

	if (table->record.flags & (PTSCOPE_AGAIN | PTSCOPE_USER_PGD | PTSCOPE_REPEATED))
		return;
	/* Entries that reach into the VMA; those behind its end are outside of it. */
	if (s->in_vma && address < s->current.vma.end &&
	    address + (count * span - 1) >= s->current.vma.start) {
		inside = (s->current.vma.end - address + span - 1) / span;
		if (inside > count)
			inside = count;
	}
	if (inside)
		take_entries(s, level, &s->current, raws, inside, address);
	if (inside < count) {
		end_run(s, inside || s->in_vma ? &s->current : &s->outside);
		flush_classes(s, &s->current);
		take_entries(s, level, &s->outside, raws + inside, count - inside,
			     address + inside * span);
		end_run(s, &s->outside);
		flush_classes(s, &s->outside);
	}
	if (table->level == PTSCOPE_LEVEL_PTE)
		return;
	for (__u64 i = 0; i < count; i++) {
		struct ptscope_decoded decoded;

		if (!raws[i])
			continue;
		decode_one(level->rules, raws[i], &decoded);
		if (decoded.state == PTSCOPE_STATE_TABLE)
			take_table(s, level_under(s, table->level), address + i * span,
				   address + i * span + (span - 1));
	}
}

static int complete_vma(struct ptscope_summary *s)
{
	if (!s->in_vma)
		return 0;
	end_run(s, &s->current);
	flush_classes(s, &s->current);
	s->done = s->current;
	s->in_vma = 0;
	return PTSCOPE_SUMMARY_VMA;
}

static int is_same_vma(const struct ptscope_vma *a, const struct ptscope_vma *b)
{
	return a->start == b->start && a->end == b->end && a->vm_flags == b->vm_flags &&
	       a->inode == b->inode;
}

static int take_vma(struct ptscope_summary *s, const struct ptscope_vma *vma)
{
	struct ptscope_vma *current = &s->current.vma;

	if (s->in_vma && vma->record.flags & PTSCOPE_AGAIN && vma->start < current->end) {
		s->current.changed |= !is_same_vma(vma, current);
		s->current.batches++;
		current->end = vma->end;
		return 0;
	}
	if (complete_vma(s)) {
		s->again = 1;
		return PTSCOPE_SUMMARY_VMA;
	}
	memset(&s->current, 0, sizeof(s->current));
	s->current.vma = *vma;
	s->current.batches = 1;
	s->in_vma = 1;
	s->range = 0;
	settle_tables(s, vma->start, &s->current);
	return 0;
}

int ptscope_summary_start(struct ptscope_summary *s, const struct ptscope_limits *limits)
{
	memset(s, 0, sizeof(*s));
	s->limits = *limits;
	return 0;
}

/* The rules of a walked level; they must outlive the summary. */
int ptscope_summary_level(struct ptscope_summary *s, const struct ptscope_rules *rules)
{
	struct ptscope_classes *level;
	struct ptscope_decoded decoded;

	if (rules->level < PTSCOPE_LEVEL_PTE || rules->level > PTSCOPE_LEVEL_PGD)
		return PTSCOPE_BAD_LEVEL;
	level = &s->levels[rules->level];
	level->rules = rules;
	level->address = address_mask(rules);
	level->step = step_of(rules);
	make_keys(level);
	decode_one(rules, 0, &decoded);
	level->zero_is_none = decoded.state == PTSCOPE_STATE_NONE;
	return 0;
}

int ptscope_summary_batch(struct ptscope_summary *s, const void *buffer, __u64 length)
{
	s->again = 0;
	return ptscope_cursor_start(&s->cursor, buffer, length, s->sequence++, &s->limits);
}

/* PTSCOPE_SUMMARY_VMA, 0 at the end of the batch, or a PTSCOPE_BAD_ code. */
int ptscope_summary_next(struct ptscope_summary *s)
{
	int kind;

	for (;;) {
		kind = s->again ? PTSCOPE_RECORD_VMA : ptscope_cursor_next(&s->cursor);
		s->again = 0;
		if (kind <= 0)
			return kind;
		if (kind == PTSCOPE_RECORD_TABLE) {
			const struct ptscope_table *table = (const void *)s->cursor.record;

			if (!s->levels[table->level].rules)
				return PTSCOPE_BAD_LEVEL;
			take_part(s, table);
		} else if (kind == PTSCOPE_RECORD_VMA &&
			   take_vma(s, (const void *)s->cursor.record)) {
			return PTSCOPE_SUMMARY_VMA;
		}
	}
}

/* After the last batch: PTSCOPE_SUMMARY_VMA when there was a VMA, else 0. */
int ptscope_summary_finish(struct ptscope_summary *s)
{
	settle_tables(s, ~0ULL, &s->outside);
	return complete_vma(s);
}
