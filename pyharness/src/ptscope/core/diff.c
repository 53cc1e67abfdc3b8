// SPDX-License-Identifier: GPL-2.0-or-later
/* See diff.h. */
#include <string.h>

#include "diff.h"

/* Attributes that every page has; what it may be accessed for counts where it is usable. */
#define PTSCOPE_COMPARED_ALWAYS (PTSCOPE_IS_ACCESSED | PTSCOPE_IS_DIRTY | PTSCOPE_IS_SOFT_DIRTY | \
				 PTSCOPE_IS_UFFD_WP | PTSCOPE_IS_SPECIAL | PTSCOPE_IS_GLOBAL | \
				 PTSCOPE_IS_ENCRYPTED)
#define PTSCOPE_COMPARED_LEAVES (PTSCOPE_IS_SHADOW_STACK | PTSCOPE_MAY_READ | PTSCOPE_MAY_WRITE | \
				 PTSCOPE_MAY_EXEC | PTSCOPE_MAY_USER | PTSCOPE_IS_CONTIGUOUS)

static int maps_page(const struct ptscope_decoded *entry)
{
	return entry->state >= PTSCOPE_STATE_LEAF && entry->state <= PTSCOPE_STATE_SPLITTING;
}

/* A table that nothing was dumped of maps nothing. */
static __u8 state_of(const struct ptscope_decoded *entry)
{
	return entry->state == PTSCOPE_STATE_TABLE ? PTSCOPE_STATE_NONE : entry->state;
}

/*
 * Entries of a group may all hold the address of the group (riscv Svnapot), and
 * that of a huge page is where the page begins.
 */
static __u64 frame_at(const struct ptscope_decoded *entry, __u64 address)
{
	return entry->pa | (address & (entry->mapping_size - 1));
}

static struct ptscope_change change_of(const struct ptscope_side *old_side,
				       const struct ptscope_side *new_side,
				       const struct ptscope_decoded *old,
				       const struct ptscope_decoded *new, __u64 address,
				       __u32 flags)
{
	__u32 compared = PTSCOPE_COMPARED_ALWAYS, differ;
	struct ptscope_change change = {
		.old_state = state_of(old),
		.new_state = state_of(new),
	};
	__u64 old_base = 1ULL << old_side->rules->page_shift;
	__u64 new_base = 1ULL << new_side->rules->page_shift;

	if (old->state == PTSCOPE_STATE_LEAF && new->state == PTSCOPE_STATE_LEAF)
		compared |= PTSCOPE_COMPARED_LEAVES;
	compared &= old->known & new->known;
	differ = (old->set ^ new->set) & compared;
	change.gained = differ & new->set;
	change.lost = differ & old->set;
	if (maps_page(old) && maps_page(new)) {
		if (old->page_size < new->page_size)
			change.what |= PTSCOPE_CHANGE_LARGER;
		if (old->page_size > new->page_size)
			change.what |= PTSCOPE_CHANGE_SMALLER;
	} else if ((maps_page(old) && old->page_size > old_base) ||
		   (maps_page(new) && new->page_size > new_base)) {
		change.what |= PTSCOPE_CHANGE_HUGE;
	}
	if (flags & PTSCOPE_DIFF_FRAMES) {
		if (old->has & new->has & PTSCOPE_HAS_FRAME && old->mapping_size &&
		    new->mapping_size && frame_at(old, address) != frame_at(new, address))
			change.what |= PTSCOPE_CHANGE_FRAME;
		if (old->state == PTSCOPE_STATE_SWAP && new->state == PTSCOPE_STATE_SWAP &&
		    (old->swap_type != new->swap_type || old->swap_offset != new->swap_offset))
			change.what |= PTSCOPE_CHANGE_SLOT;
	}
	if (old->state == new->state && old->swap_kind != new->swap_kind)
		change.what |= PTSCOPE_CHANGE_KIND;
	if (old->has & new->has & PTSCOPE_HAS_PKEY && old->pkey != new->pkey)
		change.what |= PTSCOPE_CHANGE_PKEY;
	return change;
}

static int is_change(const struct ptscope_change *change)
{
	return change->what || change->gained || change->lost ||
	       change->old_state != change->new_state;
}

/* Raw values to read instead of a side that has nothing there. */
static const __u64 nothing;

/*
 * Compare "count" units of "unit" bytes from "address" on.  A side without raws
 * has nothing there.  Writes the runs of units that changed, with positions
 * from 0 on, until there is no room for more: "compared" says how many units
 * were looked at, and the caller goes on from there.
 */
__u64 ptscope_diff(const struct ptscope_side *old, const struct ptscope_side *fresh, __u64 address,
		   __u64 unit, __u64 count, __u32 flags, struct ptscope_change_run *runs,
		   __u64 room, __u64 *compared)
{
	__u64 old_step = old->raws ? old->step : 0, new_step = fresh->raws ? fresh->step : 0;
	const __u64 *olds = old->raws ? old->raws : &nothing;
	const __u64 *news = fresh->raws ? fresh->raws : &nothing;
	int alike = flags & PTSCOPE_DIFF_RAW && old_step && new_step;
	struct ptscope_decoded a, b;
	__u64 used = 0, i;
	int joins = 0;

	ptscope_decode(old->rules, olds, 1, &a);
	ptscope_decode(fresh->rules, news, 1, &b);
	for (i = 0; i < count; i++) {
		struct ptscope_change change;

		if (alike && olds[i] == news[i]) {
			joins = 0;
			continue;
		}
		if (old_step)
			ptscope_decode(old->rules, &olds[i], 1, &a);
		if (new_step)
			ptscope_decode(fresh->rules, &news[i], 1, &b);
		change = change_of(old, fresh, &a, &b, address + i * unit, flags);
		if (alike && flags & PTSCOPE_DIFF_FRAMES && !is_change(&change))
			change.what = PTSCOPE_CHANGE_BITS;
		if (!is_change(&change)) {
			joins = 0;
			continue;
		}
		if (joins && !memcmp(&runs[used - 1].change, &change, sizeof(change))) {
			runs[used - 1].count++;
			continue;
		}
		if (used == room)
			break;
		runs[used++] = (struct ptscope_change_run){ i, 1, change };
		joins = 1;
	}
	*compared = i;
	return used;
}
