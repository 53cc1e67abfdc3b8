// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * walker: reads page tables through the module as fast as it can, and checks
 * that every answer is consistent in itself (chains.h).
 *
 *   walker walk PID SECONDS SEED     single addresses at the places of slots.h, as text
 *   walker points PID SECONDS SEED   many single addresses there in one binary request
 *   walker dump PID SECONDS SEED     the whole user half, or some of the places
 *   walker tables PID SECONDS SEED   the place whose tables come and go fastest
 *   walker kernel 0 SECONDS SEED     addresses of vmalloc areas, as text
 *   walker check-walk LAYOUT ADDRESS FILE
 *   walker check-dump LAYOUT FILE [points]
 *
 * The first five end earlier at SIGTERM.  The last two check what is in a file: the text, or batches that each follow
 * their length as a 32-bit number.  The answer is one line of "name=value"
 * words; exit status 1 and a line "inconsistent: ..." for each that is wrong.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "../../kmod/ptscope.h"
#include "chains.h"
#include "slots.h"

#define FILES "/sys/kernel/debug/ptscope/"
#define POINTS 64
#define MOST_COMPLAINTS 5

static struct facts facts;
static uint64_t answers, inconsistent;
static uint64_t batches, write_locked, parts, entries, vmas, outside;

static int die(const char *what)
{
	printf("failed: %s: %s\n", what, strerror(errno));
	exit(2);
}

static void complain(const char *problem)
{
	if (problem && inconsistent++ < MOST_COMPLAINTS)
		printf("inconsistent: %s\n", problem);
}

static uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static volatile sig_atomic_t stopping;

static void on_stop(int sig)
{
	(void)sig;
	stopping = 1;
}

static bool in_time(time_t until)
{
	struct timespec now;

	if (stopping)
		return false;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec < until;
}

static size_t read_whole(const char *path, char *to, size_t room)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t used = 0;
	ssize_t n;

	if (fd < 0)
		die(path);
	while (used < room && (n = read(fd, to + used, room - used)) > 0)
		used += n;
	close(fd);
	if (used == room) {
		errno = EFBIG;
		die(path);
	}
	to[used] = 0;
	return used;
}

static void read_layout(const char *path)
{
	static char text[65536];
	const char *problem;

	read_whole(path, text, sizeof(text));
	problem = read_facts(text, &facts);
	if (problem) {
		errno = EINVAL;
		die(problem);
	}
}

static uint64_t pick(uint64_t *state)
{
	uint64_t random = next_random(state);
	const struct slot *slot = &slots[random % (facts.levels == 5 ? SLOT_COUNT : SLOT_HIGH)];
	/* of the long hugetlb slot only the beginning is in use */
	uint64_t length = slot->length > (16ul << 20) ? 16ul << 20 : slot->length;
	uint64_t address = slot->address + (random >> 16) % length;

	/* sometimes just before or behind the slot: tables may be there, or not */
	if (!(random >> 8 & 15))
		address += length;
	return address;
}

static void walk_text(int fd, const char *target, uint64_t address)
{
	static char text[8192];
	size_t used = 0;
	ssize_t n;
	int size = snprintf(text, sizeof(text), "%s %#" PRIx64 "\n", target, address);

	if (write(fd, text, size) != size)
		die(text);
	while (used < sizeof(text) - 1 && (n = read(fd, text + used, sizeof(text) - 1 - used)) > 0)
		used += n;
	text[used] = 0;
	answers++;
	outside += strstr(text, "vma none") != NULL;
	complain(check_walk(&facts, address, text));
}

static void walk(const char *pid, time_t until, uint64_t state)
{
	int fd = open(FILES "walk", O_RDWR | O_CLOEXEC);

	if (fd < 0)
		die(FILES "walk");
	while (in_time(until))
		walk_text(fd, pid, pick(&state));
}

static void kernel(time_t until, uint64_t state)
{
	static char areas[4 << 20];
	int fd = open(FILES "walk", O_RDWR | O_CLOEXEC);

	if (fd < 0)
		die(FILES "walk");
	while (in_time(until)) {
		uint64_t start, end;

		read_whole("/proc/vmallocinfo", areas, sizeof(areas));
		for (char *line = areas; line && *line; line = strchr(line, '\n')) {
			if (*line == '\n' && !*++line)
				break;
			if (sscanf(line, "%" SCNx64 "-%" SCNx64, &start, &end) != 2)
				continue;
			if (start < facts.kernel_first || end <= start) {
				/* kptr_restrict 0 shows hashes in this file, 1 shows root the addresses */
				errno = ENXIO;
				die("/proc/vmallocinfo");
			}
			if (!in_time(until))
				break;
			if (next_random(&state) % 4 == 0)
				walk_text(fd, "kernel", start + next_random(&state)
							% (end - start));
		}
	}
}

static int by_first(const void *a, const void *b)
{
	uint64_t x = ((const struct ptscope_range *)a)->first;
	uint64_t y = ((const struct ptscope_range *)b)->first;

	return x < y ? -1 : x > y;
}

enum dump_what { DUMP_POINTS, DUMP_ALL, DUMP_TABLES };

static void dump(const char *pid, time_t until, uint64_t state, enum dump_what what)
{
	const struct slot *tables = &slots[SLOT_TABLES];
	bool points = what == DUMP_POINTS;

	static struct {
		struct ptscope_request request;
		struct ptscope_range ranges[POINTS];
	} ask;
	static uint64_t buffer[PTSCOPE_MAX_READ / 8];

	while (in_time(until)) {
		struct stream stream = { .facts = &facts, .points = points };
		size_t size;
		ssize_t n;
		int fd = open(FILES "dump", O_RDWR | O_CLOEXEC);

		if (fd < 0)
			die(FILES "dump");
		ask.request = (struct ptscope_request){
			.magic = PTSCOPE_MAGIC, .version = PTSCOPE_VERSION,
			.header_size = sizeof(ask.request), .pid = atoi(pid),
			.flags = next_random(&state) % 4, .range_size = sizeof(*ask.ranges),
		};
		if (points) {
			ask.request.range_count = POINTS;
			for (int i = 0; i < POINTS; i++)
				ask.ranges[i].first = ask.ranges[i].last = pick(&state);
			qsort(ask.ranges, POINTS, sizeof(*ask.ranges), by_first);
		} else {
			ask.request.range_count = 1;
			ask.ranges[0] = (struct ptscope_range){ 0, facts.user_last };
			if (what == DUMP_TABLES)
				ask.ranges[0] = (struct ptscope_range){
					tables->address, tables->address + tables->length - 1 };
			else if (next_random(&state) % 2)
				ask.ranges[0] = (struct ptscope_range){
					slots[SLOT_ANON].address,
					slots[SLOT_SHMEM].address + slots[SLOT_SHMEM].length - 1 };
		}
		size = sizeof(ask.request) + ask.request.range_count * sizeof(*ask.ranges);
		if (write(fd, &ask, size) != (ssize_t)size)
			die("request");
		/* a small buffer now and then, so that batches end in odd places */
		size = next_random(&state) % 2 ? sizeof(buffer) : PTSCOPE_MIN_READ;
		while ((n = read(fd, buffer, size)) > 0) {
			const char *problem = check_batch(&stream, (unsigned char *)buffer, n);

			if (problem) {
				complain(problem);
				break;
			}
		}
		if (n < 0)
			die("read of a dump");
		if (!n && !stream.ended)
			complain("no end record");
		else if (!n && stream.end_status != PTSCOPE_END_DONE)
			complain("a live target, but the dump did not end with DONE");
		close(fd);
		answers++;
		batches += stream.batches;
		write_locked += stream.write_locked;
		parts += stream.parts;
		entries += stream.entries;
		vmas += stream.vmas;
	}
}

static void check_dump_file(const char *path, bool points)
{
	static unsigned char data[16 << 20];
	struct stream stream = { .facts = &facts, .points = points };
	size_t size = read_whole(path, (char *)data, sizeof(data)), at = 0;
	const char *problem = NULL;
	uint32_t length;

	while (!problem && at + sizeof(length) <= size) {
		memcpy(&length, data + at, sizeof(length));
		at += sizeof(length);
		if (length > size - at) {
			problem = "half a batch in the file";
			break;
		}
		/* records are 8-byte aligned in memory: move the batch to where it is */
		memmove(data, data + at, size - at);
		size -= at;
		problem = check_batch(&stream, data, length);
		at = length;
	}
	if (!problem && !stream.ended)
		problem = "no end record";
	answers++;
	batches = stream.batches;
	parts = stream.parts;
	entries = stream.entries;
	complain(problem);
}

int main(int argc, char **argv)
{
	struct timespec now;
	uint64_t seed;
	time_t until;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	signal(SIGTERM, on_stop);
	if (argc == 5 && !strcmp(argv[1], "check-walk")) {
		static char text[8192];

		read_layout(argv[2]);
		read_whole(argv[4], text, sizeof(text));
		answers++;
		complain(check_walk(&facts, strtoull(argv[3], NULL, 0), text));
	} else if (argc >= 4 && !strcmp(argv[1], "check-dump")) {
		read_layout(argv[2]);
		check_dump_file(argv[3], argc > 4 && !strcmp(argv[4], "points"));
	} else if (argc == 5) {
		read_layout(FILES "layout");
		clock_gettime(CLOCK_MONOTONIC, &now);
		until = now.tv_sec + atoi(argv[3]);
		seed = strtoull(argv[4], NULL, 0) * 0x9e3779b97f4a7c15 + 1;
		if (!strcmp(argv[1], "walk"))
			walk(argv[2], until, seed);
		else if (!strcmp(argv[1], "points"))
			dump(argv[2], until, seed, DUMP_POINTS);
		else if (!strcmp(argv[1], "dump"))
			dump(argv[2], until, seed, DUMP_ALL);
		else if (!strcmp(argv[1], "tables"))
			dump(argv[2], until, seed, DUMP_TABLES);
		else if (!strcmp(argv[1], "kernel"))
			kernel(until, seed);
		else
			return 2;
	} else {
		return 2;
	}
	printf("answers=%lu inconsistent=%lu batches=%lu write_locked=%lu parts=%lu entries=%lu "
	       "vmas=%lu outside=%lu\n", answers, inconsistent, batches, write_locked, parts,
	       entries, vmas, outside);
	return inconsistent != 0;
}
