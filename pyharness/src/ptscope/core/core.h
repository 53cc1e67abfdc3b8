/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The C core: everything that reads the wire format byte by byte, or many
 * pagemap entries at once.  It allocates nothing, keeps no state of its own
 * and trusts no byte of a buffer it is given.
 *
 * cffi makes its definitions from this text as it does from ptscope.h: see
 * build.py for the constructs that may stand here.
 */
#ifndef PTSCOPE_CORE_H
#define PTSCOPE_CORE_H

#include "ptscope.h"

/* What is wrong with a buffer; the words are in ptscope_bad_text(). */
#define PTSCOPE_BAD_ALIGNMENT -1
#define PTSCOPE_BAD_TRUNCATED -2
#define PTSCOPE_BAD_SIZE -3
#define PTSCOPE_BAD_TYPE -4
#define PTSCOPE_BAD_FLAGS -5
#define PTSCOPE_BAD_FIRST -6
#define PTSCOPE_BAD_ORDER -7
#define PTSCOPE_BAD_MAGIC -8
#define PTSCOPE_BAD_VERSION -9
#define PTSCOPE_BAD_HEADER -10
#define PTSCOPE_BAD_SEQUENCE -11
#define PTSCOPE_BAD_LOCK -12
#define PTSCOPE_BAD_VMA -13
#define PTSCOPE_BAD_LEVEL -14
#define PTSCOPE_BAD_COUNT -15
#define PTSCOPE_BAD_ADDRESS -16
#define PTSCOPE_BAD_STATUS -17
#define PTSCOPE_BAD_PADDING -18
#define PTSCOPE_BAD_ROOM -19
#define PTSCOPE_BAD_RANGE -20
#define PTSCOPE_BAD_LAST -20		/* the lowest of them */

/* Entries of a table by wire level (index 0 unused); 0: the level is folded. */
struct ptscope_limits {
	__u32 entries[6];
};

/* An iterator over the records of one batch. */
struct ptscope_cursor {
	const __u8 *buffer;
	__u64 length;			/* bytes */
	__u64 offset;			/* of the next record */
	__u64 sequence;			/* that the batch must have */
	struct ptscope_limits limits;
	__u32 last_level;		/* of the table before; 0: none yet */
	__u32 ended;			/* the end record was seen */
	const struct ptscope_record *record;	/* the current, checked record */
};

/* What one batch holds. */
struct ptscope_batch_facts {
	__u64 lock_ns;
	__u64 vmas;			/* records, as the next one: those marked AGAIN too */
	__u64 tables;
	__u64 entries;			/* those of tables marked AGAIN left out */
	__u64 address;			/* of the last table or VMA; 0 without one */
	__u64 end_address;		/* as in ptscope_end */
	__u64 offset;			/* of the record that is wrong */
	__u32 lock;
	__u32 retries;
	__u32 end_status;		/* 0: the stream goes on */
	__u32 reserved;
};

/* One entry of /proc/PID/pagemap, split. */
struct ptscope_page {
	__u64 frame;			/* when present; 0 when hidden */
	__u64 swap_offset;		/* when swapped */
	__u32 swap_type;		/* when swapped */
	__u8 present;
	__u8 swapped;
	__u8 file;			/* file page or shared anonymous memory */
	__u8 soft_dirty;
	__u8 exclusive;			/* mapped by this process alone */
	__u8 uffd_wp;
	__u8 guard;
	__u8 reserved;
};

/* Sums over entries of pagemap. */
struct ptscope_page_sums {
	__u64 present;
	__u64 swapped;
	__u64 file;			/* of present pages, as the next three */
	__u64 exclusive;
	__u64 soft_dirty;
	__u64 uffd_wp;
	__u64 guard;
	__u64 run_frame;		/* with which the current run would go on */
	__u64 run_length;
	__u64 runs[40];			/* as in ptscope_sums (summary.h) */
	__u64 run_pages[40];
};

const char *ptscope_bad_text(int code);

int ptscope_cursor_start(struct ptscope_cursor *cursor, const void *buffer, __u64 length, __u64 sequence, const struct ptscope_limits *limits);
int ptscope_cursor_next(struct ptscope_cursor *cursor);

int ptscope_batch_check(const void *buffer, __u64 length, __u64 sequence, const struct ptscope_limits *limits, struct ptscope_batch_facts *facts);

__s64 ptscope_request_build(void *buffer, __u64 room, __s32 pid, __u32 flags, const struct ptscope_range *ranges, __u32 count);

void ptscope_pagemap_split(const __u64 *entries, __u64 count, struct ptscope_page *pages);

void ptscope_pagemap_sum(const __u64 *entries, __u64 count, struct ptscope_page_sums *sums);
void ptscope_pagemap_sum_end(struct ptscope_page_sums *sums);

int ptscope_hypervisor(char *signature);

#endif /* PTSCOPE_CORE_H */
