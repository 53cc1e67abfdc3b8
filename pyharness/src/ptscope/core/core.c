// SPDX-License-Identifier: GPL-2.0-or-later
/* See core.h for what this is, and ptscope.h for the format it checks. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "core.h"

static const char *const bad_texts[-PTSCOPE_BAD_LAST] = {
	[-PTSCOPE_BAD_ALIGNMENT - 1] = "the buffer or a record is not aligned to 8 bytes",
	[-PTSCOPE_BAD_TRUNCATED - 1] = "a record is longer than what was read",
	[-PTSCOPE_BAD_SIZE - 1] = "a record has a size its type cannot have",
	[-PTSCOPE_BAD_TYPE - 1] = "a record has an unknown type",
	[-PTSCOPE_BAD_FLAGS - 1] = "a record has a flag its type cannot have",
	[-PTSCOPE_BAD_FIRST - 1] = "a batch does not begin with a batch record",
	[-PTSCOPE_BAD_ORDER - 1] = "a record stands where its type cannot stand",
	[-PTSCOPE_BAD_MAGIC - 1] = "wrong magic",
	[-PTSCOPE_BAD_VERSION - 1] = "another version of the format",
	[-PTSCOPE_BAD_HEADER - 1] = "another size of the batch record",
	[-PTSCOPE_BAD_SEQUENCE - 1] = "a batch is missing or repeated",
	[-PTSCOPE_BAD_LOCK - 1] = "an unknown lock",
	[-PTSCOPE_BAD_VMA - 1] = "a VMA that ends before it starts",
	[-PTSCOPE_BAD_LEVEL - 1] = "a table of a level that this kernel does not walk here",
	[-PTSCOPE_BAD_COUNT - 1] = "more entries than a table has, or none",
	[-PTSCOPE_BAD_ADDRESS - 1] = "a table at an impossible physical address",
	[-PTSCOPE_BAD_STATUS - 1] = "an unknown end status",
	[-PTSCOPE_BAD_PADDING - 1] = "padding that is not zero",
	[-PTSCOPE_BAD_ROOM - 1] = "no room for the request",
	[-PTSCOPE_BAD_RANGE - 1] = "too many ranges, none, or one that ends before it starts",
};

const char *ptscope_bad_text(int code)
{
	if (code >= 0 || code < PTSCOPE_BAD_LAST)
		return "unknown error";
	return bad_texts[-code - 1];
}

int ptscope_cursor_start(struct ptscope_cursor *cursor, const void *buffer, __u64 length,
			 __u64 sequence, const struct ptscope_limits *limits)
{
	memset(cursor, 0, sizeof(*cursor));
	if ((uintptr_t)buffer % sizeof(__u64) || length % sizeof(__u64))
		return PTSCOPE_BAD_ALIGNMENT;
	cursor->buffer = buffer;
	cursor->length = length;
	cursor->sequence = sequence;
	cursor->limits = *limits;
	return 0;
}

static int check_batch(const struct ptscope_cursor *cursor, const struct ptscope_record *record)
{
	const struct ptscope_batch *batch = (const void *)record;

	if (record->size < offsetof(struct ptscope_batch, sequence))
		return PTSCOPE_BAD_SIZE;
	/* Magic and version come first: they explain why a size is another. */
	if (batch->magic != PTSCOPE_MAGIC)
		return PTSCOPE_BAD_MAGIC;
	if (batch->version != PTSCOPE_VERSION)
		return PTSCOPE_BAD_VERSION;
	if (batch->header_size != sizeof(*batch))
		return PTSCOPE_BAD_HEADER;
	if (record->size != sizeof(*batch))
		return PTSCOPE_BAD_SIZE;
	if (record->flags)
		return PTSCOPE_BAD_FLAGS;
	if (batch->sequence != cursor->sequence)
		return PTSCOPE_BAD_SEQUENCE;
	if (batch->lock < PTSCOPE_LOCK_READ || batch->lock > PTSCOPE_LOCK_NONE)
		return PTSCOPE_BAD_LOCK;
	return 0;
}

static int check_vma(const struct ptscope_record *record)
{
	const struct ptscope_vma *vma = (const void *)record;

	if (record->size != sizeof(*vma))
		return PTSCOPE_BAD_SIZE;
	if (record->flags & ~(PTSCOPE_AGAIN | PTSCOPE_HUGETLB))
		return PTSCOPE_BAD_FLAGS;
	if (vma->start >= vma->end)
		return PTSCOPE_BAD_VMA;
	return 0;
}

/* The walked level below this one, 0 when it is the last. */
static __u32 level_below(const struct ptscope_limits *limits, __u32 level)
{
	while (level > PTSCOPE_LEVEL_PTE && !limits->entries[--level])
		;
	return limits->entries[level] ? level : 0;
}

static int check_table(struct ptscope_cursor *cursor, const struct ptscope_record *record)
{
	const struct ptscope_table *table = (const void *)record;
	__u32 last = cursor->last_level, entries;

	if (record->size < sizeof(*table))
		return PTSCOPE_BAD_SIZE;
	if (record->flags & ~(PTSCOPE_AGAIN | PTSCOPE_USER_PGD | PTSCOPE_REPEATED))
		return PTSCOPE_BAD_FLAGS;
	if (table->level < PTSCOPE_LEVEL_PTE || table->level > PTSCOPE_LEVEL_PGD)
		return PTSCOPE_BAD_LEVEL;
	entries = cursor->limits.entries[table->level];
	if (!entries)
		return PTSCOPE_BAD_LEVEL;
	if (record->flags & PTSCOPE_USER_PGD && table->level != PTSCOPE_LEVEL_PGD)
		return PTSCOPE_BAD_FLAGS;
	if (record->flags & PTSCOPE_REPEATED && (table->level == PTSCOPE_LEVEL_PTE || !table->index))
		return PTSCOPE_BAD_FLAGS;
	if (!table->count || table->count > entries || table->index > entries - table->count)
		return PTSCOPE_BAD_COUNT;
	if (record->size != sizeof(*table) + sizeof(__u64) * table->count)
		return PTSCOPE_BAD_SIZE;
	if (table->table_pa % sizeof(__u64))
		return PTSCOPE_BAD_ADDRESS;
	/*
	 * Each batch reads its way down from the root, and a table follows the
	 * entry that points to it: going down, no walked level is skipped.
	 */
	if (!last && table->level != PTSCOPE_LEVEL_PGD)
		return PTSCOPE_BAD_ORDER;
	if (last && table->level < last && table->level != level_below(&cursor->limits, last))
		return PTSCOPE_BAD_ORDER;
	cursor->last_level = table->level;
	return 0;
}

static int check_end(const struct ptscope_record *record)
{
	const struct ptscope_end *end = (const void *)record;

	if (record->size != sizeof(*end))
		return PTSCOPE_BAD_SIZE;
	if (record->flags)
		return PTSCOPE_BAD_FLAGS;
	if (end->status < PTSCOPE_END_DONE || end->status > PTSCOPE_END_UNSTABLE)
		return PTSCOPE_BAD_STATUS;
	if (end->reserved)
		return PTSCOPE_BAD_PADDING;
	return 0;
}

/*
 * Step to the next record: its type, 0 when the buffer is used up, or a
 * PTSCOPE_BAD_ code.  After an error the cursor must not be used again.
 */
int ptscope_cursor_next(struct ptscope_cursor *cursor)
{
	const struct ptscope_record *record;
	__u64 left = cursor->length - cursor->offset;
	int first = !cursor->offset, bad;

	cursor->record = NULL;
	if (!left)
		return first ? PTSCOPE_BAD_FIRST : 0;
	if (cursor->ended)
		return PTSCOPE_BAD_ORDER;
	/* Length and sizes are multiples of 8, so a whole header is left. */
	record = (const void *)(cursor->buffer + cursor->offset);
	if (record->size > left)
		return PTSCOPE_BAD_TRUNCATED;
	if (record->size < sizeof(*record))
		return PTSCOPE_BAD_SIZE;
	if (record->size % sizeof(__u64))
		return PTSCOPE_BAD_ALIGNMENT;
	if (first && record->type != PTSCOPE_RECORD_BATCH)
		return PTSCOPE_BAD_FIRST;

	switch (record->type) {
	case PTSCOPE_RECORD_BATCH:
		bad = first ? check_batch(cursor, record) : PTSCOPE_BAD_ORDER;
		break;
	case PTSCOPE_RECORD_VMA:
		bad = check_vma(record);
		break;
	case PTSCOPE_RECORD_TABLE:
		bad = check_table(cursor, record);
		break;
	case PTSCOPE_RECORD_END:
		bad = check_end(record);
		cursor->ended = 1;
		break;
	default:
		bad = PTSCOPE_BAD_TYPE;
	}
	if (bad)
		return bad;
	cursor->offset += record->size;
	cursor->record = record;
	return record->type;
}

/* Check every record of a batch and say what it holds: 0, or a PTSCOPE_BAD_ code. */
int ptscope_batch_check(const void *buffer, __u64 length, __u64 sequence,
			const struct ptscope_limits *limits, struct ptscope_batch_facts *facts)
{
	struct ptscope_cursor cursor;
	int kind = ptscope_cursor_start(&cursor, buffer, length, sequence, limits);

	memset(facts, 0, sizeof(*facts));
	if (kind)
		return kind;
	while ((kind = ptscope_cursor_next(&cursor)) > 0) {
		const struct ptscope_batch *batch = (const void *)cursor.record;
		const struct ptscope_vma *vma = (const void *)cursor.record;
		const struct ptscope_table *table = (const void *)cursor.record;
		const struct ptscope_end *end = (const void *)cursor.record;

		switch (kind) {
		case PTSCOPE_RECORD_BATCH:
			facts->lock = batch->lock;
			facts->lock_ns = batch->lock_ns;
			facts->retries = batch->retries;
			break;
		case PTSCOPE_RECORD_VMA:
			facts->vmas++;
			facts->address = vma->start;
			break;
		case PTSCOPE_RECORD_TABLE:
			facts->tables++;
			facts->address = table->address;
			if (!(table->record.flags & PTSCOPE_AGAIN))
				facts->entries += table->count;
			break;
		default:
			facts->end_status = end->status;
			facts->end_address = end->address;
		}
	}
	facts->offset = cursor.offset;
	return kind;
}

/* Write a request into a buffer; the bytes used, or a PTSCOPE_BAD_ code. */
__s64 ptscope_request_build(void *buffer, __u64 room, __s32 pid, __u32 flags,
			    const struct ptscope_range *ranges, __u32 count)
{
	struct ptscope_request request = {
		.magic = PTSCOPE_MAGIC,
		.version = PTSCOPE_VERSION,
		.header_size = sizeof(request),
		.pid = pid,
		.flags = flags,
		.range_count = count,
		.range_size = sizeof(*ranges),
	};
	__u64 size;

	if (!count || count > PTSCOPE_MAX_RANGES)
		return PTSCOPE_BAD_RANGE;
	for (__u32 i = 0; i < count; i++)
		if (ranges[i].last < ranges[i].first)
			return PTSCOPE_BAD_RANGE;
	size = sizeof(request) + count * sizeof(*ranges);
	if (room < size)
		return PTSCOPE_BAD_ROOM;
	memcpy(buffer, &request, sizeof(request));
	memcpy((__u8 *)buffer + sizeof(request), ranges, count * sizeof(*ranges));
	return (__s64)size;
}

/* Bits: Documentation/admin-guide/mm/pagemap.rst; guard from Linux 6.15. */
void ptscope_pagemap_split(const __u64 *entries, __u64 count, struct ptscope_page *pages)
{
	const __u64 payload = (1ULL << 55) - 1;

	for (__u64 i = 0; i < count; i++) {
		__u64 raw = entries[i];
		struct ptscope_page page = {
			.present = raw >> 63 & 1,
			.swapped = raw >> 62 & 1,
			.file = raw >> 61 & 1,
			.guard = raw >> 58 & 1,
			.uffd_wp = raw >> 57 & 1,
			.exclusive = raw >> 56 & 1,
			.soft_dirty = raw >> 55 & 1,
		};

		if (page.present) {
			page.frame = raw & payload;
		} else if (page.swapped) {
			page.swap_type = raw & 31;
			page.swap_offset = (raw & payload) >> 5;
		}
		pages[i] = page;
	}
}

/* Ends the run of frames that goes on; before a gap, and after the last entry. */
void ptscope_pagemap_sum_end(struct ptscope_page_sums *sums)
{
	if (sums->run_length) {
		int log = 63 - __builtin_clzll(sums->run_length);

		sums->runs[log]++;
		sums->run_pages[log] += sums->run_length;
	}
	sums->run_length = 0;
}

/* Add consecutive entries; where frames are hidden all are 0, and no run is longer than a page. */
void ptscope_pagemap_sum(const __u64 *entries, __u64 count, struct ptscope_page_sums *sums)
{
	const __u64 payload = (1ULL << 55) - 1;

	for (__u64 i = 0; i < count; i++) {
		__u64 raw = entries[i], present = raw >> 63;

		sums->present += present;
		sums->swapped += raw >> 62 & 1;
		sums->guard += raw >> 58 & 1;
		if (!present) {
			ptscope_pagemap_sum_end(sums);
			continue;
		}
		sums->file += raw >> 61 & 1;
		sums->uffd_wp += raw >> 57 & 1;
		sums->exclusive += raw >> 56 & 1;
		sums->soft_dirty += raw >> 55 & 1;
		if (!sums->run_length || (raw & payload) != sums->run_frame)
			ptscope_pagemap_sum_end(sums);
		sums->run_length++;
		sums->run_frame = (raw & payload) + 1;
	}
}

/*
 * The signature of the hypervisor this runs under, 12 characters and a zero
 * byte, from CPUID leaf 0x40000000: "KVMKVMKVM", "TCGTCGTCGTCG", ... Returns 0
 * on the bare machine and on CPUs that have no such leaf.
 */
int ptscope_hypervisor(char *signature)
{
	memset(signature, 0, 13);
#if defined(__x86_64__)
	unsigned int a, b, c, d;

	if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 31))
		return 0;
	__cpuid(0x40000000, a, b, c, d);
	memcpy(signature, &b, 4);
	memcpy(signature + 4, &c, 4);
	memcpy(signature + 8, &d, 4);
	return 1;
#else
	return 0;
#endif
}
