/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What changed between entries of two dumps for the same addresses, as runs of
 * pages with the same change.  Both sides are decoded, each by the rules of its
 * own kernel, so that two kernels can be compared.
 */
#ifndef PTSCOPE_DIFF_H
#define PTSCOPE_DIFF_H

#include "decode.h"

/* Bits of ptscope_change.what: what states and attributes do not tell. */
#define PTSCOPE_CHANGE_FRAME 0x1	/* another frame */
#define PTSCOPE_CHANGE_LARGER 0x2	/* mapped by a larger page */
#define PTSCOPE_CHANGE_SMALLER 0x4
#define PTSCOPE_CHANGE_SLOT 0x8		/* another swap type or offset */
#define PTSCOPE_CHANGE_KIND 0x10	/* another kind of special entry */
#define PTSCOPE_CHANGE_PKEY 0x20
#define PTSCOPE_CHANGE_HUGE 0x40	/* what came or went is a huge page */
#define PTSCOPE_CHANGE_BITS 0x80	/* other bits than all these are */

/* Frames and swap slots mean the same on both sides: they are of one boot. */
#define PTSCOPE_DIFF_FRAMES 1
/* Both sides have the same layout, so that equal raw values mean the same. */
#define PTSCOPE_DIFF_RAW 2

/* States are PTSCOPE_STATE_*, attributes PTSCOPE_IS_* and PTSCOPE_MAY_*. */
struct ptscope_change {
	__u32 what;
	__u32 gained;
	__u32 lost;
	__u8 old_state;
	__u8 new_state;
	__u8 reserved[2];
};

/* "count" units from "first" on have this change. */
struct ptscope_change_run {
	__u64 first;
	__u64 count;
	struct ptscope_change change;
};

/* Entries of one level: one for each unit, or (step 0) a single one that maps all of them. */
struct ptscope_side {
	const struct ptscope_rules *rules;
	const __u64 *raws;
	__u64 step;
};

__u64 ptscope_diff(const struct ptscope_side *old, const struct ptscope_side *fresh, __u64 address, __u64 unit, __u64 count, __u32 flags, struct ptscope_change_run *runs, __u64 room, __u64 *compared);

#endif /* PTSCOPE_DIFF_H */
