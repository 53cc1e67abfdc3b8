// SPDX-License-Identifier: GPL-2.0-or-later
/* See decode.h. Each function here has its namesake in decode/entry.py. */
#include "decode.h"

#define PTSCOPE_SWAPPED_ATTRIBUTES (PTSCOPE_IS_SOFT_DIRTY | PTSCOPE_IS_UFFD_WP)

static int fits_any(const struct ptscope_rules *rules, const struct ptscope_rows *rows, __u64 raw)
{
	const struct ptscope_row *row = rules->rows + rows->first;

	for (__u32 i = 0; i < rows->count; i++)
		if ((raw & row[i].mask) == row[i].value)
			return 1;
	return 0;
}

static __u64 field_read(const struct ptscope_field *field, __u64 raw)
{
	return ((raw ^ field->flip) & field->mask) >> field->shift;
}

static __u64 address_of(const struct ptscope_rules *rules, __u64 flipped)
{
	__u64 pa = 0;

	for (__u32 i = 0; i < rules->piece_count; i++) {
		const struct ptscope_piece *piece = &rules->pieces[i];

		pa |= (flipped & piece->mask) << piece->left >> piece->right;
	}
	return pa;
}

static int is_mapped(__u32 state)
{
	return state >= PTSCOPE_STATE_LEAF && state <= PTSCOPE_STATE_SPLITTING;
}

static void take_attributes(const struct ptscope_rules *rules, __u64 raw, __u32 among,
			    struct ptscope_decoded *out)
{
	const struct ptscope_rows *rows = rules->per_state[out->state].attributes;

	for (__u32 i = 0; i < PTSCOPE_ATTRIBUTES; i++) {
		if (!rows[i].known || !(among & 1U << i))
			continue;
		out->known |= 1U << i;
		if (fits_any(rules, &rows[i], raw))
			out->set |= 1U << i;
	}
}

static void decode_framed(const struct ptscope_rules *rules, __u64 raw, __u64 flip,
			  struct ptscope_decoded *out)
{
	if (out->state == PTSCOPE_STATE_TABLE || is_mapped(out->state)) {
		out->pa = address_of(rules, raw ^ flip);
		out->has |= PTSCOPE_HAS_FRAME;
	}
	if (is_mapped(out->state)) {
		out->page_size = out->mapping_size = rules->span;
		out->pa &= ~(rules->span - 1);
		for (__u32 i = 0; i < rules->group_count; i++) {
			const struct ptscope_group *group = &rules->groups[i];

			if ((raw & group->row.mask) != group->row.value)
				continue;
			out->group = (__u8)(i + 1);
			out->set |= PTSCOPE_IS_CONTIGUOUS;
			out->mapping_size = rules->span * group->entries;
			if (group->in_address)
				out->pa &= ~(out->mapping_size - 1);
			break;
		}
	}
	out->pfn = out->pa >> rules->page_shift;
	take_attributes(rules, raw, ~0U, out);
	if (rules->has_pkey && fits_any(rules, &rules->per_state[out->state].pkey, raw)) {
		out->pkey = (__u8)field_read(&rules->pkey, raw);
		out->has |= PTSCOPE_HAS_PKEY;
	}
}

static __u8 marker_kind(const struct ptscope_rules *rules, __u64 offset)
{
	for (__u32 i = 0; i < rules->marker_count; i++)
		if (offset & rules->markers[i].bit)
			return (__u8)rules->markers[i].kind;
	return rules->unknown_marker;
}

static void decode_swapped(const struct ptscope_rules *rules, __u64 raw,
			   struct ptscope_decoded *out)
{
	__u64 number = field_read(&rules->swap_type, raw);
	__u64 offset = field_read(&rules->swap_offset, raw);
	struct ptscope_kind kind = { 0 };

	if (number < PTSCOPE_SWAP_TYPES)
		kind = rules->kinds[number];
	if (!kind.kind) {
		out->state = PTSCOPE_STATE_INVALID;
		return;
	}
	out->state = kind.state;
	out->has |= PTSCOPE_HAS_SWAP;
	out->swap_type = (__u8)number;
	out->swap_offset = offset;
	out->swap_kind = kind.kind;
	if (kind.frame) {
		out->has |= PTSCOPE_HAS_FRAME;
		out->pfn = offset & rules->frame_mask;
		out->pa = out->pfn << rules->page_shift;
	}
	if (kind.state != PTSCOPE_STATE_MARKER)
		out->page_size = out->mapping_size = rules->span;
	if (kind.ages) {
		out->known |= PTSCOPE_IS_ACCESSED | PTSCOPE_IS_DIRTY;
		if (offset & rules->young)
			out->set |= PTSCOPE_IS_ACCESSED;
		if (offset & rules->dirty)
			out->set |= PTSCOPE_IS_DIRTY;
	}
	take_attributes(rules, raw, PTSCOPE_SWAPPED_ATTRIBUTES, out);
	if (kind.marker) {
		out->swap_kind = marker_kind(rules, offset);
		out->known |= PTSCOPE_IS_UFFD_WP;
		if (offset & rules->uffd_wp_marker)
			out->set |= PTSCOPE_IS_UFFD_WP;
	}
}

static void decode_one(const struct ptscope_rules *rules, __u64 raw, struct ptscope_decoded *out)
{
	__u64 flip = 0;

	*out = (struct ptscope_decoded){
		.state = PTSCOPE_STATE_INVALID,
		.known = PTSCOPE_IS_PRESENT | PTSCOPE_IS_CONTIGUOUS,
	};
	if (fits_any(rules, &rules->present, raw))
		out->set |= PTSCOPE_IS_PRESENT;
	for (__u32 i = 0; i < rules->state_count; i++) {
		const struct ptscope_state_row *row = &rules->states[i];

		if ((raw & row->mask) != row->value || (row->some && !(raw & row->some)))
			continue;
		out->state = (__u8)row->state;
		out->row = (__u8)(i + 1);
		flip = row->flip;
		break;
	}
	if (out->state == PTSCOPE_STATE_SWAP && rules->has_swap)
		decode_swapped(rules, raw, out);
	else
		decode_framed(rules, raw, flip, out);
}

void ptscope_decode(const struct ptscope_rules *rules, const __u64 *raws, __u64 count,
		    struct ptscope_decoded *out)
{
	for (__u64 i = 0; i < count; i++)
		decode_one(rules, raws[i], &out[i]);
}
