// SPDX-License-Identifier: GPL-2.0-or-later
#include "chains.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../kmod/ptscope.h"

static char message[512];

__attribute__((format(printf, 1, 2)))
static const char *wrong(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(message, sizeof(message), format, args);
	va_end(args);
	return message;
}

/* ---- facts ------------------------------------------------------------- */

static bool fact(const char *text, const char *key, uint64_t *value)
{
	size_t length = strlen(key);

	for (const char *line = text; line && *line; line = strchr(line, '\n')) {
		if (*line == '\n' && !*++line)
			return false;
		if (!strncmp(line, key, length) && line[length] == ' ') {
			*value = strtoull(line + length + 1, NULL, 0);
			return true;
		}
	}
	return false;
}

/* The mask of a bit whose position is a fact, 0 when there is no such fact. */
static uint64_t bit(const char *text, const char *key)
{
	uint64_t position;

	return fact(text, key, &position) ? 1ull << position : 0;
}

/* The address of the table that a table entry leads to. */
static uint64_t address_in(const struct facts *facts, uint64_t raw)
{
	uint64_t address = 0;

	for (size_t i = 0; i < sizeof(facts->piece) / sizeof(*facts->piece); i++)
		address |= (raw & facts->piece[i].mask) << facts->piece[i].shift;
	return address;
}

/* A table is as large as its entries, and lies at a multiple of that. */
static uint64_t table_bytes(const struct level *level)
{
	return 8ull * level->entries;
}

const char *read_facts(const char *text, struct facts *facts)
{
	static const struct { const char *name; int number; } names[] = {
		{ "pgd", PTSCOPE_LEVEL_PGD }, { "p4d", PTSCOPE_LEVEL_P4D },
		{ "pud", PTSCOPE_LEVEL_PUD }, { "pmd", PTSCOPE_LEVEL_PMD },
		{ "pte", PTSCOPE_LEVEL_PTE },
	};
	uint64_t pfn, physical = ~0ull, c_mask = 0, levels, pti = 0, shift, entries, lpa2;
	const char *arch = strstr(text, "arch ");
	char key[64];

	memset(facts, 0, sizeof(*facts));
	if (!arch || !fact(text, "mask.pfn", &pfn) || !fact(text, "runtime.levels", &levels)
	    || !fact(text, "runtime.user_last", &facts->user_last)
	    || !fact(text, "runtime.kernel_first", &facts->kernel_first))
		return "the layout lacks a fact";
	facts->piece[0].mask = pfn;
	arch += strlen("arch ");
	if (!strncmp(arch, "x86_64", 6)) {
		uint64_t huge = bit(text, "bit.huge");

		if (!fact(text, "runtime.physical_mask", &physical)
		    || !fact(text, "runtime.c_mask", &c_mask)
		    || !fact(text, "runtime.pti", &pti))
			return "the layout lacks a fact of x86";
		facts->piece[0].mask = pfn & physical & ~c_mask;
		facts->present = bit(text, "bit.present");
		facts->table_mask = huge;
		facts->user_in_tables = true;
		if (!huge)
			return "the layout lacks a fact of x86";
	} else if (!strncmp(arch, "arm64", 5)) {
		facts->present = bit(text, "bit.valid");
		facts->table_mask = facts->table_bits = bit(text, "bit.table");
		if (fact(text, "runtime.lpa2", &lpa2) && lpa2) {
			if (!fact(text, "mask.pfn_high", &facts->piece[1].mask)
			    || !fact(text, "shift.pfn_high", &shift))
				return "the layout lacks a fact of LPA2";
			facts->piece[1].shift = shift;
		}
		if (!facts->table_mask)
			return "the layout lacks a fact of arm64";
	} else if (!strncmp(arch, "riscv64", 7)) {
		facts->present = bit(text, "bit.present");
		facts->table_mask = bit(text, "bit.read") | bit(text, "bit.write")
				    | bit(text, "bit.exec");
		if (!fact(text, "shift.pfn", &shift))
			return "the layout lacks a fact of riscv64";
		facts->piece[0].shift = shift;
	} else {
		return "the layout is of an architecture that is not known here";
	}
	facts->user = bit(text, "bit.user");
	if (!facts->present || !facts->user)
		return "the layout lacks a fact";
	facts->physical = address_in(facts, ~0ull);
	facts->pti = pti;
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		snprintf(key, sizeof(key), "runtime.level.%s.shift", names[i].name);
		if (!fact(text, key, &shift))
			continue;
		snprintf(key, sizeof(key), "runtime.level.%s.entries", names[i].name);
		if (!fact(text, key, &entries))
			return "a level without its number of entries";
		facts->level[facts->levels++] = (struct level){
			.name = names[i].name, .number = names[i].number, .shift = shift,
			.entries = entries,
		};
	}
	if (facts->levels != (int)levels || facts->levels < 3)
		return "the levels do not match their number";
	return NULL;
}

static bool is_table(const struct facts *facts, uint64_t raw, const struct level *level)
{
	return level->number != PTSCOPE_LEVEL_PTE && (raw & facts->present)
	       && (raw & facts->table_mask) == facts->table_bits;
}

/* mm/page_poison.c, include/linux/poison.h: PAGE_POISON */
#define POISON 0xaaaaaaaaaaaaaaaaull

static const char *check_entry(const struct facts *facts, const struct level *level,
			       uint64_t address, uint64_t raw)
{
	if (raw == POISON)
		return wrong("%s entry for %#" PRIx64 " is of a freed page", level->name, address);
	if (address <= facts->user_last && (raw & facts->present) && !(raw & facts->user)
	    && (facts->user_in_tables || !is_table(facts, raw, level)))
		return wrong("%s entry for %#" PRIx64 " is none of the user half: %#" PRIx64,
			     level->name, address, raw);
	return NULL;
}

static unsigned int index_of(const struct level *level, uint64_t address)
{
	return address >> level->shift & (level->entries - 1);
}

/* ---- the text of "walk" ------------------------------------------------ */

const char *check_walk(const struct facts *facts, uint64_t address, char *text)
{
	enum { LOCK_UNKNOWN, LOCK_IS_HELD, LOCK_IS_NONE } lock = LOCK_UNKNOWN;
	bool have_vma = false, outside = false, snapshot = false;
	uint64_t shown = 0, start, end, raw = 0, at, root_at = 0;
	uint64_t next_table = 0;	/* where the entry above says that the next one lies */
	const struct level *previous = NULL;
	const char *problem;
	int depth = 0;
	char name[16];
	unsigned int index;

	for (char *line = strsep(&text, "\n"); line; line = strsep(&text, "\n")) {
		if (!*line || !strncmp(line, "pid ", 4) || !strcmp(line, "kernel"))
			continue;
		if (sscanf(line, "address %" SCNx64, &shown) == 1) {
			if (shown != address)
				return wrong("another address: %s", line);
		} else if (!strcmp(line, "lock read") || !strcmp(line, "lock write")) {
			lock = LOCK_IS_HELD;
		} else if (!strcmp(line, "lock none")) {
			lock = LOCK_IS_NONE;
		} else if (!strcmp(line, "vma none")) {
			outside = true;
		} else if (sscanf(line, "vma %" SCNx64 " %" SCNx64, &start, &end) == 2) {
			have_vma = true;
			if (address < start || address >= end)
				return wrong("the VMA does not hold the address: %s", line);
		} else if (!strncmp(line, "snapshot", 8)) {
			snapshot = true;
		} else if (sscanf(line, "user_pgd %u raw %" SCNx64 " at %" SCNx64, &index, &raw, &at)
			   == 3) {
			if (!facts->pti || depth)
				return wrong("a user PGD out of place: %s", line);
			root_at = at;
		} else if (sscanf(line, "%15s %u raw %" SCNx64 " at %" SCNx64, name, &index, &raw,
				  &at) == 4) {
			const struct level *level = &facts->level[depth];

			if (depth == facts->levels || strcmp(name, level->name))
				return wrong("not the next level: %s", line);
			if (index != index_of(level, address))
				return wrong("index does not match the address: %s", line);
			if (at % table_bytes(level) != index * 8ul)
				return wrong("entry address does not match the index: %s", line);
			if (!depth && root_at && (at ^ root_at) != 0x1000)
				return wrong("the two PGD pages are not a pair: %s", line);
			if (previous && at - index * 8ul != next_table)
				return wrong("not in the table that the entry above points to: %s",
					     line);
			problem = check_entry(facts, level, address, raw);
			if (problem)
				return problem;
			next_table = address_in(facts, raw);
			previous = level;
			depth++;
			if (depth < facts->levels && !is_table(facts, raw, level)) {
				/* the last level: any further line is an error */
				while ((line = strsep(&text, "\n")))
					if (*line)
						return wrong("a level below one that is no table: %s",
							     line);
				break;
			}
		} else {
			return wrong("a line that is not understood: %s", line);
		}
	}
	if (!previous)
		return "no level at all";
	if (shown != address)
		return "no address line";
	if (is_table(facts, raw, previous))
		return wrong("ends with a table entry at %s", previous->name);
	if (lock == LOCK_UNKNOWN)
		return "no lock line";
	if (lock == LOCK_IS_NONE ? !snapshot || have_vma || outside
				 : snapshot || have_vma == outside)
		return "lock, VMA and snapshot lines do not go together";
	return NULL;
}

/* ---- the records of "dump" --------------------------------------------- */

struct part {
	const struct level *level;
	struct ptscope_table table;
	const uint64_t *entries;
};

static const char *check_part(struct stream *stream, const struct part *part,
			      struct part *above)
{
	const struct facts *facts = stream->facts;
	const struct level *level = part->level;
	const struct ptscope_table *table = &part->table;
	uint64_t first = part->entries[0], last = part->entries[table->count - 1];
	int depth = level - facts->level;

	if (table->index + table->count > level->entries)
		return wrong("%s part at %#llx: %u entries from %u on leave the table",
			     level->name, table->address, table->count, table->index);
	if (table->address & ((1ull << level->shift) - 1))
		return wrong("%s part at %#llx does not begin where an entry does", level->name,
			     table->address);
	if (index_of(level, table->address) != table->index)
		return wrong("%s part at %#llx has index %u", level->name, table->address,
			     table->index);
	/* the root may be smaller than a page, and then lie anywhere in one */
	if (table->table_pa % table_bytes(level)
	    || table->table_pa & ~(facts->physical | ((facts->physical & -facts->physical) - 1)))
		return wrong("%s table at %#llx is no physical address of a table", level->name,
			     table->table_pa);
	if (!stream->points && (!first || !last))
		return wrong("%s part at %#llx begins or ends with an empty entry", level->name,
			     table->address);
	if (stream->points && table->count != 1)
		return wrong("%s part at %#llx: more than one entry for one address", level->name,
			     table->address);
	for (unsigned int i = 0; i < table->count; i++) {
		const char *problem = check_entry(facts, level, table->address
						  + ((uint64_t)i << level->shift),
						  part->entries[i]);

		if (problem)
			return problem;
		if (table->record.flags & PTSCOPE_REPEATED) {
			if (part->entries[i] != first || !is_table(facts, first, level))
				return wrong("%s part at %#llx repeats what is not the same table",
					     level->name, table->address);
			continue;
		}
		if (i + 1 < table->count && is_table(facts, part->entries[i], level))
			return wrong("%s part at %#llx goes on past a table entry", level->name,
				     table->address);
	}
	if (table->record.flags & PTSCOPE_USER_PGD) {
		if (depth || !facts->pti)
			return "a user PGD that cannot be";
		if (stream->root_pa && (stream->root_pa ^ table->table_pa) != 0x1000)
			return "the two PGD pages are not a pair";
		return NULL;
	}
	if (!depth) {
		if (stream->root_pa && stream->root_pa != table->table_pa)
			return "the root table changed within one stream";
		stream->root_pa = table->table_pa;
	} else {
		const struct part *parent = &above[depth - 1];
		uint64_t raw, from;

		if (!parent->level)
			return wrong("%s part at %#llx without the entry above it in the batch",
				     level->name, table->address);
		raw = parent->entries[parent->table.count - 1];
		from = parent->table.address
		       + ((uint64_t)(parent->table.count - 1) << parent->level->shift);
		if (!is_table(facts, raw, parent->level))
			return wrong("%s part at %#llx below an entry that is no table: %#" PRIx64,
				     level->name, table->address, raw);
		if (address_in(facts, raw) != table->table_pa)
			return wrong("%s part at %#llx lies at %#llx, the entry above says %#" PRIx64,
				     level->name, table->address, table->table_pa, raw);
		if ((table->address ^ from) >> parent->level->shift)
			return wrong("%s part at %#llx is not below the entry for %#" PRIx64,
				     level->name, table->address, from);
	}
	above[depth] = *part;
	for (int i = depth + 1; i < facts->levels; i++)
		above[i].level = NULL;
	return NULL;
}

const char *check_batch(struct stream *stream, const unsigned char *data, size_t size)
{
	const struct facts *facts = stream->facts;
	struct part above[MAX_LEVELS] = { 0 };
	struct ptscope_batch batch;
	uint64_t vma_end = 0;
	size_t offset = 0;

	if (stream->ended)
		return "data after the end record";
	if (size < sizeof(batch))
		return "a batch shorter than its header";
	memcpy(&batch, data, sizeof(batch));
	if (batch.record.type != PTSCOPE_RECORD_BATCH || batch.magic != PTSCOPE_MAGIC
	    || batch.version != PTSCOPE_VERSION || batch.header_size != sizeof(batch)
	    || batch.record.size != sizeof(batch))
		return "not the head of a batch";
	if (batch.sequence != stream->batches)
		return wrong("batch %llu where %" PRIu64 " was due", batch.sequence,
			     stream->batches);
	if (batch.lock < PTSCOPE_LOCK_READ || batch.lock > PTSCOPE_LOCK_NONE)
		return wrong("lock %u", batch.lock);
	stream->batches++;
	stream->write_locked += batch.lock == PTSCOPE_LOCK_WRITE;

	for (offset = sizeof(batch); offset < size;) {
		struct ptscope_record record;
		const char *problem;

		if (stream->ended)
			return "a record after the end record";
		if (size - offset < sizeof(record))
			return "half a record";
		memcpy(&record, data + offset, sizeof(record));
		if (record.size < sizeof(record) || record.size > size - offset
		    || record.size % 8)
			return wrong("a record of %u bytes with %zu left", record.size,
				     size - offset);
		if (record.type == PTSCOPE_RECORD_VMA) {
			struct ptscope_vma vma;

			if (record.size != sizeof(vma))
				return "a VMA of another size";
			memcpy(&vma, data + offset, sizeof(vma));
			if (vma.start >= vma.end || (vma.start < vma_end && !stream->points))
				return wrong("VMA %#llx-%#llx out of order", vma.start, vma.end);
			vma_end = vma.end;
			stream->vmas += !(record.flags & PTSCOPE_AGAIN);
		} else if (record.type == PTSCOPE_RECORD_TABLE) {
			struct part part = { 0 };

			if (record.size < sizeof(part.table))
				return "a table part of another size";
			memcpy(&part.table, data + offset, sizeof(part.table));
			if (!part.table.count || record.size != sizeof(part.table)
						  + 8ull * part.table.count)
				return wrong("%u entries in %u bytes", part.table.count,
					     record.size);
			part.entries = (const uint64_t *)(data + offset + sizeof(part.table));
			for (int i = 0; i < facts->levels; i++)
				if (facts->level[i].number == part.table.level)
					part.level = &facts->level[i];
			if (!part.level)
				return wrong("level %u is not walked here", part.table.level);
			problem = check_part(stream, &part, above);
			if (problem)
				return problem;
			stream->parts++;
			stream->entries += part.table.count;
		} else if (record.type == PTSCOPE_RECORD_END) {
			struct ptscope_end end;

			if (record.size != sizeof(end))
				return "an end of another size";
			memcpy(&end, data + offset, sizeof(end));
			if (end.status < PTSCOPE_END_DONE || end.status > PTSCOPE_END_UNSTABLE
			    || end.reserved || (end.status == PTSCOPE_END_DONE && end.address))
				return wrong("end status %u, address %#llx", end.status,
					     end.address);
			stream->ended = true;
			stream->end_status = end.status;
		} else {
			return wrong("a record of type %u", record.type);
		}
		offset += record.size;
	}
	return NULL;
}
