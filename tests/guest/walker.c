// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * walker: reads page tables through the module as fast as it can, and checks
 * that every answer is consistent in itself (chains.h).
 *
 *   walker walk PID SECONDS SEED     single addresses at the places of slots.h, as text
 *   walker points PID SECONDS SEED   many single addresses there in one binary request
 *   walker dump PID SECONDS SEED     the whole user half, or some of the places
 *   walker tables PID SECONDS SEED   the places whose tables come and go fastest
 *   walker mortal CHURN SECONDS SEED all of these, of processes that do not live long
 *   walker kernel 0 SECONDS SEED     addresses of vmalloc areas, as text
 *   walker check-walk LAYOUT ADDRESS FILE
 *   walker check-dump LAYOUT FILE [points]
 *
 * The first six end earlier at SIGTERM, and say what they have so far at
 * SIGUSR1.  PID is one process, or two with a comma
 * between them.  "mortal" runs the program CHURN again
 * and again, and is the only one whose target may go away.  The last two check
 * what is in a file: the text, or batches that each follow their length as a
 * 32-bit number.  The answer is one line of "name=value" words; exit status 1
 * and a line "inconsistent: ..." for each that is wrong.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../kmod/ptscope.h"
#include "chains.h"
#include "slots.h"

#define FILES "/sys/kernel/debug/ptscope/"
#define MOST_RANGES 64
#define MOST_COMPLAINTS 5

static struct facts facts;
static uint64_t answers, inconsistent;
static uint64_t batches, write_locked, parts, entries, vmas, outside;

/* Of targets that may go away: how they went, or were gone when asked for. */
static bool mortal;
static uint64_t deaths, exited, execed, gone;

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

static volatile sig_atomic_t stopping, asked;

static void on_stop(int sig)
{
	(void)sig;
	stopping = 1;
}

static void on_ask(int sig)
{
	(void)sig;
	asked = 1;
}

static void report(void)
{
	printf("answers=%lu inconsistent=%lu batches=%lu write_locked=%lu parts=%lu entries=%lu "
	       "vmas=%lu outside=%lu deaths=%lu exited=%lu execed=%lu gone=%lu\n", answers,
	       inconsistent, batches, write_locked, parts, entries, vmas, outside, deaths, exited,
	       execed, gone);
	fflush(stdout);
}

static bool in_time(time_t until)
{
	struct timespec now;

	if (asked) {
		asked = 0;
		report();
	}
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
	uint64_t random = next_random(state), length;
	const struct slot *slot;

	do
		slot = &slots[next_random(state) % SLOT_COUNT];
	while (slot->address + slot->length > facts.user_last);
	/* of long slots only the beginning is in use */
	length = slot->length > 8 * spans.huge ? 8 * spans.huge : slot->length;
	/* sometimes just before or behind the slot: tables may be there, or not */
	return slot->address + (random >> 16) % length + (random >> 8 & 15 ? 0 : length)
	       + (random >> 12 & 3 ? 0 : slot_away);
}

/* The target has gone, or become another program while it was read. */
static bool has_gone(void)
{
	if (!mortal || (errno != ESRCH && errno != ENXIO && errno != EAGAIN))
		return false;
	gone++;
	return true;
}

static void walk_text(int fd, const char *target, uint64_t address)
{
	static char text[8192];
	size_t used = 0;
	ssize_t n;
	int size = snprintf(text, sizeof(text), "%s %#" PRIx64 "\n", target, address);

	if (write(fd, text, size) != size) {
		if (has_gone())
			return;
		die(text);
	}
	while (used < sizeof(text) - 1 && (n = read(fd, text + used, sizeof(text) - 1 - used)) > 0)
		used += n;
	text[used] = 0;
	answers++;
	outside += strstr(text, "vma none") != NULL;
	complain(check_walk(&facts, address, text));
}

static int open_walk(void)
{
	int fd = open(FILES "walk", O_RDWR | O_CLOEXEC);

	if (fd < 0)
		die(FILES "walk");
	return fd;
}

static void kernel(time_t until, uint64_t state)
{
	static char areas[4 << 20];
	int fd = open_walk();

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

enum what { WALK, POINTS, DUMP, TABLES, WHATS };

static struct ptscope_range whole(enum slot_kind first, enum slot_kind last)
{
	return (struct ptscope_range){
		slots[first].address, slots[last].address + slots[last].length - 1 };
}

/* The places where tables are freed most, under the locks that exclude least. */
static unsigned int table_places(struct ptscope_range *ranges)
{
	static const enum slot_kind kinds[] = {
		SLOT_TABLES, SLOT_RECLAIM, SLOT_RETRACT, SLOT_SHARE, SLOT_TEXT };
	unsigned int count = 0;

	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
		ranges[count] = whole(kinds[i], kinds[i]);
		ranges[count + 1] = ranges[count];
		ranges[count + 1].first += slot_away;
		ranges[count + 1].last += slot_away;
		count += 2;
	}
	return count;
}

static void dump(pid_t pid, uint64_t *state, enum what what)
{
	static struct {
		struct ptscope_request request;
		struct ptscope_range ranges[MOST_RANGES];
	} ask;
	static uint64_t buffer[PTSCOPE_MAX_READ / 8];
	struct stream stream = { .facts = &facts, .points = what == POINTS };
	unsigned int count = 1;
	size_t size;
	ssize_t n;
	int fd = open(FILES "dump", O_RDWR | O_CLOEXEC);

	if (fd < 0)
		die(FILES "dump");
	if (what == POINTS) {
		for (count = 0; count < MOST_RANGES; count++)
			ask.ranges[count].first = ask.ranges[count].last = pick(state);
		qsort(ask.ranges, count, sizeof(*ask.ranges), by_first);
	} else if (what == TABLES) {
		count = table_places(ask.ranges);
	} else if (next_random(state) % 2) {
		ask.ranges[0] = whole(SLOT_ANON, SLOT_SHMEM);
	} else {
		ask.ranges[0] = (struct ptscope_range){ 0, facts.user_last };
	}
	ask.request = (struct ptscope_request){
		.magic = PTSCOPE_MAGIC, .version = PTSCOPE_VERSION,
		.header_size = sizeof(ask.request), .pid = pid,
		.flags = next_random(state) % 4, .range_count = count,
		.range_size = sizeof(*ask.ranges),
	};
	size = sizeof(ask.request) + count * sizeof(*ask.ranges);
	if (write(fd, &ask, size) != (ssize_t)size) {
		if (!has_gone())
			die("request");
		close(fd);
		return;
	}
	/* a small buffer now and then, so that batches end in odd places */
	size = next_random(state) % 2 ? sizeof(buffer) : PTSCOPE_MIN_READ;
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
	else if (!n && mortal && stream.end_status == PTSCOPE_END_EXITED)
		exited++;
	else if (!n && mortal && stream.end_status == PTSCOPE_END_EXECED)
		execed++;
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

static void one(int walk_fd, pid_t pid, uint64_t *state, enum what what)
{
	char target[16];

	if (what != WALK) {
		dump(pid, state, what);
		return;
	}
	snprintf(target, sizeof(target), "%d", pid);
	walk_text(walk_fd, target, pick(state));
}

static void walk_living(const char *pids, time_t until, uint64_t state, enum what what)
{
	const char *second = strchr(pids, ',');
	pid_t pid[2] = { atoi(pids), atoi(second ? second + 1 : pids) };
	int fd = open_walk();

	while (in_time(until))
		one(fd, pid[next_random(&state) % 2], &state, what);
}

static pid_t start_mortal(const char *program, uint64_t seed)
{
	char text[32];
	pid_t pid;

	snprintf(text, sizeof(text), "%" PRIu64, seed >> 8);
	pid = fork();
	if (pid < 0)
		die("fork");
	if (pid)
		return pid;
	execl(program, program, text, "brief", NULL);
	_exit(127);
}

/* From before the program is there until nothing is left of the process. */
static void walk_mortals(const char *program, time_t until, uint64_t state)
{
	int fd = open_walk(), status;

	mortal = true;
	while (in_time(until)) {
		pid_t pid = start_mortal(program, next_random(&state));

		do {
			if (!in_time(until))
				kill(pid, SIGKILL);
			one(fd, pid, &state, next_random(&state) % WHATS);
		} while (waitpid(pid, &status, WNOHANG) != pid);
		if (WIFEXITED(status) && WEXITSTATUS(status)) {
			errno = ECHILD;
			die(program);
		}
		deaths++;
		one(fd, pid, &state, next_random(&state) % WHATS);
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
	static const char *const names[WHATS] = {
		[WALK] = "walk", [POINTS] = "points", [DUMP] = "dump", [TABLES] = "tables" };
	bool known = false;
	struct timespec now;
	uint64_t seed;
	time_t until;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	signal(SIGTERM, on_stop);
	signal(SIGUSR1, on_ask);
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
		place_slots();
		for (int what = 0; what < WHATS; what++)
			if (!strcmp(argv[1], names[what])) {
				walk_living(argv[2], until, seed, what);
				known = true;
			}
		if (!strcmp(argv[1], "mortal"))
			walk_mortals(argv[2], until, seed);
		else if (!strcmp(argv[1], "kernel"))
			kernel(until, seed);
		else if (!known)
			return 2;
	} else {
		return 2;
	}
	report();
	return inconsistent != 0;
}
