/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The decoder for many entries: rows of mask and value, tried in order, as
 * decode/rules.py makes them from an architecture's table and a layout.
 * Nothing here knows an architecture, and what comes out is what the
 * reference decoder (decode/entry.py) gives, without the words.
 */
#ifndef PTSCOPE_DECODE_H
#define PTSCOPE_DECODE_H

#include <linux/types.h>

/*
 * States of an entry, in the order of STATES in decode/table.py.  From LEAF to
 * SPLITTING it has a page that counts as mapped; from SWAP to MARKER it has
 * the form of a swap entry.
 */
#define PTSCOPE_STATE_NONE 0
#define PTSCOPE_STATE_TABLE 1
#define PTSCOPE_STATE_LEAF 2
#define PTSCOPE_STATE_PROTNONE 3
#define PTSCOPE_STATE_SPLITTING 4
#define PTSCOPE_STATE_SWAP 5
#define PTSCOPE_STATE_MIGRATION 6
#define PTSCOPE_STATE_DEVICE 7
#define PTSCOPE_STATE_HWPOISON 8
#define PTSCOPE_STATE_MARKER 9
#define PTSCOPE_STATE_INVALID 10
#define PTSCOPE_STATES 11

/* Bits of ptscope_decoded.known and .set */
#define PTSCOPE_IS_ACCESSED 0x1
#define PTSCOPE_IS_DIRTY 0x2
#define PTSCOPE_IS_SOFT_DIRTY 0x4
#define PTSCOPE_IS_UFFD_WP 0x8
#define PTSCOPE_IS_SPECIAL 0x10
#define PTSCOPE_IS_GLOBAL 0x20
#define PTSCOPE_IS_ENCRYPTED 0x40
#define PTSCOPE_IS_SHADOW_STACK 0x80
#define PTSCOPE_MAY_READ 0x100
#define PTSCOPE_MAY_WRITE 0x200
#define PTSCOPE_MAY_EXEC 0x400
#define PTSCOPE_MAY_USER 0x800
#define PTSCOPE_USER_EXEC 0x1000	/* what the fold of execution asks a user page's entries */
#define PTSCOPE_KERNEL_EXEC 0x2000	/* and those of other pages; only some architectures do */
#define PTSCOPE_ATTRIBUTES 14		/* those above have rows; the others are computed */
#define PTSCOPE_IS_PRESENT 0x4000	/* for the hardware */
#define PTSCOPE_IS_CONTIGUOUS 0x8000
#define PTSCOPE_FLAGS 16

/* Bits of ptscope_decoded.has */
#define PTSCOPE_HAS_FRAME 1
#define PTSCOPE_HAS_PKEY 2
#define PTSCOPE_HAS_SWAP 4

#define PTSCOPE_MAX_STATE_ROWS 24
#define PTSCOPE_MAX_ROWS 255
#define PTSCOPE_MAX_PIECES 4
#define PTSCOPE_MAX_GROUPS 4
#define PTSCOPE_MAX_MARKERS 8
#define PTSCOPE_SWAP_TYPES 64

/* Fits when (raw & mask) == value. */
struct ptscope_row {
	__u64 mask;
	__u64 value;
};

/* Rows of the pool, of which any may fit.  Known: this kernel has bits for it. */
struct ptscope_rows {
	__u8 first;
	__u8 count;
	__u8 known;
	__u8 reserved;
};

/* The state of the first row that fits; some: at least one of these bits too, 0 for none. */
struct ptscope_state_row {
	__u64 mask;
	__u64 value;
	__u64 some;
	__u64 flip;			/* raw is xor'ed with it before its address is read */
	__u64 state;
};

/* Raw bits under the mask, shifted, are address bits. */
struct ptscope_piece {
	__u64 mask;
	__u32 left;
	__u32 right;
};

struct ptscope_group {
	struct ptscope_row row;
	__u64 entries;
	__u64 in_address;
};

/* A number in contiguous bits: ((raw ^ flip) & mask) >> shift. */
struct ptscope_field {
	__u64 mask;
	__u64 flip;
	__u64 shift;
};

/* What a swap type means at this level; kind 0: this kernel does not use it. */
struct ptscope_kind {
	__u8 kind;
	__u8 state;
	__u8 frame;
	__u8 ages;			/* accessed and dirty stand above the frame number */
	__u8 marker;			/* the offset is bits, each with a kind of its own */
	__u8 reserved[3];
};

struct ptscope_marker {
	__u64 bit;
	__u64 kind;
};

struct ptscope_per_state {
	struct ptscope_rows attributes[14];
	struct ptscope_rows pkey;
};

/* All rows for one level of one layout. */
struct ptscope_rules {
	__u64 span;			/* bytes one entry covers */
	__u32 page_shift;
	__u32 level;			/* as in ptscope_table.level */
	__u32 state_count;
	__u32 piece_count;
	__u32 group_count;
	__u32 marker_count;
	__u32 has_swap;
	__u32 has_pkey;
	struct ptscope_rows present;
	__u8 unknown_marker;		/* kind of a marker without a known bit */
	__u8 reserved[3];
	struct ptscope_state_row states[24];
	struct ptscope_piece pieces[4];
	struct ptscope_group groups[4];
	struct ptscope_field pkey;
	struct ptscope_field swap_type;
	struct ptscope_field swap_offset;
	__u64 frame_mask;
	__u64 young;			/* bits of the offset */
	__u64 dirty;
	__u64 uffd_wp_marker;
	struct ptscope_kind kinds[64];
	struct ptscope_marker markers[8];
	struct ptscope_per_state per_state[11];
	struct ptscope_row rows[255];
};

/* One entry, decoded.  A number is 0 where the entry has none: see "has". */
struct ptscope_decoded {
	__u64 pa;			/* bytes */
	__u64 pfn;
	__u64 page_size;		/* bytes; 0: none */
	__u64 mapping_size;
	__u64 swap_offset;
	__u32 known;			/* attributes that such an entry can have on this kernel */
	__u32 set;			/* those it has */
	__u8 state;
	__u8 has;
	__u8 swap_type;
	__u8 swap_kind;			/* as ptscope_kind.kind */
	__u8 pkey;
	__u8 row;			/* of the states, plus 1; 0: none fitted */
	__u8 group;			/* of the groups, plus 1; 0: not grouped */
	__u8 reserved;
};

void ptscope_decode(const struct ptscope_rules *rules, const __u64 *raws, __u64 count, struct ptscope_decoded *out);

#endif /* PTSCOPE_DECODE_H */
