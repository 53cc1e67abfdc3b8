// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * speed: what ways of reading page tables cost, side by side.
 *
 *   speed scenarios [NAME...]   each scenario of the table below, with each of its methods
 *   speed process PID           the whole dump of another process, and its pagemap
 *   speed stall SECONDS         how long a thread's mmap and munmap wait while its process is
 *                               dumped; needs two CPUs
 *
 * Prints one JSON object a line: the clock, then what was measured.  Times are in
 * ns of CLOCK_MONOTONIC, the clock's own cost is subtracted.  Under QEMU's -icount
 * that clock counts instructions; the clock line says how many ns an instruction
 * takes, found with a loop of known length.
 *
 * A method also counts what it found, outside the measured time, and a method
 * that found anything but what the scenario holds is an error, not a figure.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/types.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "../../kmod/ptscope.h"

#define FILES "/sys/kernel/debug/ptscope/"
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define REPEATS 5
#define RANGE 131072		/* pages of a populated range */
#define ROOM (48ul << 20)	/* bytes for whatever a method reads */
#define SAMPLES 512		/* addresses that are enough for methods that take one at a time */
#define MAX_VMAS 65536

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

/* PAGEMAP_SCAN, from 6.7 on (Documentation/admin-guide/mm/pagemap.rst) */
struct region {
	__u64 start, end, categories;
};

struct scan_argument {
	__u64 size, flags, start, end, walk_end, vec, vec_len, max_pages;
	__u64 category_inverted, category_mask, category_anyof_mask, return_mask;
};

#define SCAN _IOWR('f', 16, struct scan_argument)
#define SCAN_PRESENT (1ull << 3)
#define SCAN_ALL ((1ull << 8) - 1)	/* all categories there are */

static long page_size;
static unsigned char *buffer;
static uint64_t clock_cost;

static void die(const char *format, ...)
{
	int error = errno;
	va_list list;

	va_start(list, format);
	fprintf(stderr, "speed: ");
	vfprintf(stderr, format, list);
	fprintf(stderr, ": %s\n", strerror(error));
	va_end(list);
	exit(1);
}

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

/* 2 * @rounds instructions. */
static void loop(uint64_t rounds)
{
#if defined(__x86_64__)
	__asm__ volatile("1: sub $1, %0\n\tjnz 1b" : "+r"(rounds) : : "cc");
#elif defined(__aarch64__)
	__asm__ volatile("1: subs %0, %0, #1\n\tb.ne 1b" : "+r"(rounds) : : "cc");
#elif defined(__riscv)
	__asm__ volatile("1: addi %0, %0, -1\n\tbnez %0, 1b" : "+r"(rounds));
#else
#error "no loop of known length for this architecture"
#endif
}

static uint64_t time_loop(uint64_t rounds)
{
	uint64_t start = now();

	loop(rounds);
	return now() - start - clock_cost;
}

/*
 * For some seconds after its boot a kernel is busy with itself, which doubles
 * what everything takes.  So this waits until the loop takes the same
 * time again and again; on a machine whose clock does not count instructions
 * that does not happen, and "quiet" is false.
 */
static bool wait_until_quiet(uint64_t rounds)
{
	unsigned int tries, same = 0;
	uint64_t last = 0;

	for (tries = 0; tries < 300 && same < 10; tries++) {
		uint64_t ns = time_loop(rounds);

		/* the timer's interrupt takes 1 % */
		same = ns < last + last / 50 && last < ns + ns / 50 ? same + 1 : 0;
		last = ns;
		usleep(100000);
	}
	return same >= 10;
}

static void measure_clock(void)
{
	uint64_t least = UINT64_MAX, shortest = UINT64_MAX, rounds = 500000;
	bool quiet;
	int i;

	for (i = 0; i < 100; i++) {
		uint64_t a = now(), b = now();

		if (b - a < least)
			least = b - a;
	}
	clock_cost = least;
	quiet = wait_until_quiet(rounds);
	for (i = 0; i < 5; i++) {
		uint64_t ns = time_loop(rounds);

		if (ns < shortest)
			shortest = ns;
	}
	printf("{\"clock_cost_ns\": %" PRIu64 ", \"ns_per_instruction\": %.4f, \"quiet\": %s,"
	       " \"page_size\": %ld}\n",
	       clock_cost, (double)shortest / (2 * rounds), quiet ? "true" : "false", page_size);
}

/* What there is to read. */

struct vma_range {
	uint64_t start, end;
};

struct work {
	pid_t pid;
	uint64_t first, last;		/* the range to dump */
	uint64_t stride;		/* between pages, bytes */
	uint64_t base;			/* the first of the pages */
	uint64_t pages;			/* how many; 0: whatever the process has */
	struct vma_range *vmas;		/* pages are not at a stride but in these */
	unsigned int vma_count;
};

/* What a method did. */
struct done {
	uint64_t units;			/* pages it was asked for */
	uint64_t found;			/* pages it saw */
	uint64_t bytes;
	uint64_t longest_lock;		/* ns, from the module's batches */
	uint64_t entries;		/* non-empty, at all levels */
};

static int open_file(const char *format, ...)
{
	char path[64];
	va_list list;
	int fd;

	va_start(list, format);
	vsnprintf(path, sizeof(path), format, list);
	va_end(list);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0 && (errno == EACCES || errno == EISDIR))
		fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		die("%s", path);
	return fd;
}

/* Methods.  "run" is what is measured, "count" looks at what it left in the buffer. */

static void run_dump(const struct work *work, struct done *done)
{
	struct {
		struct ptscope_request request;
		struct ptscope_range range;
	} ask = {
		.request = {
			.magic = PTSCOPE_MAGIC,
			.version = PTSCOPE_VERSION,
			.header_size = sizeof(struct ptscope_request),
			.pid = work->pid,
			.flags = work->pages ? 0 : PTSCOPE_WITH_VMAS,
			.range_count = 1,
			.range_size = sizeof(struct ptscope_range),
		},
		.range = { work->first, work->last },
	};
	int fd = open_file(FILES "dump");
	ssize_t n;

	if (write(fd, &ask, sizeof(ask)) != sizeof(ask))
		die("dump");
	while ((n = read(fd, buffer + done->bytes, PTSCOPE_MAX_READ)) > 0) {
		done->bytes += n;
		if (done->bytes > ROOM - PTSCOPE_MAX_READ)
			die("a dump of more than %lu bytes", ROOM);
	}
	if (n)
		die("dump");
	close(fd);
}

static void count_dump(const struct work *work, struct done *done)
{
	uint32_t status = 0;
	size_t at = 0;

	while (at < done->bytes) {
		const struct ptscope_record *record = (const void *)(buffer + at);

		if (record->type == PTSCOPE_RECORD_BATCH) {
			const struct ptscope_batch *batch = (const void *)record;

			if (batch->lock_ns > done->longest_lock)
				done->longest_lock = batch->lock_ns;
		} else if (record->type == PTSCOPE_RECORD_END) {
			status = ((const struct ptscope_end *)record)->status;
		} else if (record->type == PTSCOPE_RECORD_TABLE) {
			const struct ptscope_table *table = (const void *)record;
			const uint64_t *entries = (const void *)(table + 1);
			uint64_t address = table->address;
			uint32_t i;

			for (i = 0; i < table->count; i++, address += page_size) {
				if (!entries[i] || record->flags & PTSCOPE_AGAIN)
					continue;
				done->entries++;
				if (table->level != PTSCOPE_LEVEL_PTE)
					continue;
				/* of the whole user half, only the pages that were put there */
				if (work->stride && (address < work->base ||
				    (address - work->base) % work->stride))
					continue;
				done->found++;
			}
		}
		at += record->size;
	}
	if (status != PTSCOPE_END_DONE) {
		errno = EPROTO;
		die("the dump ended with status %u", status);
	}
	done->units = work->pages ? work->pages : done->found;
}

static uint64_t count_present(size_t bytes)
{
	const uint64_t *pages = (const uint64_t *)buffer;
	uint64_t present = 0;
	size_t i;

	for (i = 0; i < bytes / sizeof(*pages); i++)
		present += pages[i] >> 63;
	return present;
}

static void read_pagemap(int fd, uint64_t start, uint64_t end, struct done *done)
{
	size_t left = (end - start) / page_size * 8;
	off_t at = start / page_size * 8;
	ssize_t n;

	while (left) {
		size_t piece = left < (1 << 20) ? left : (1 << 20);

		n = pread(fd, buffer + done->bytes, piece, at);
		if (n <= 0)
			die("pagemap at %#" PRIx64, (uint64_t)at);
		at += n;
		left -= n;
		done->bytes += n;
		if (done->bytes > ROOM - (1 << 20))
			die("a pagemap of more than %lu bytes", ROOM);
	}
}

static void run_pagemap(const struct work *work, struct done *done)
{
	int fd = open_file("/proc/%d/pagemap", work->pid);
	unsigned int i;

	if (!work->vma_count)
		read_pagemap(fd, work->first, work->last + 1, done);
	for (i = 0; i < work->vma_count; i++)
		read_pagemap(fd, work->vmas[i].start, work->vmas[i].end, done);
	close(fd);
}

static void count_pagemap(const struct work *work, struct done *done)
{
	done->found = count_present(done->bytes);
	done->units = work->pages ? work->pages : done->found;
}

/* By somebody who knows which pages there are. */
static void run_pagemap_each(const struct work *work, struct done *done)
{
	int fd = open_file("/proc/%d/pagemap", work->pid);
	uint64_t i;

	for (i = 0; i < work->pages; i++) {
		uint64_t address = work->base + i * work->stride;

		if (pread(fd, buffer + done->bytes, 8, address / page_size * 8) != 8)
			die("pagemap at %#" PRIx64, address);
		done->bytes += 8;
	}
	close(fd);
}

static void scan(const struct work *work, struct done *done, uint64_t return_mask)
{
	struct scan_argument argument = {
		.size = sizeof(argument),
		.start = work->first,
		.end = work->last + 1,
		.vec = (uintptr_t)buffer,
		.vec_len = ROOM / sizeof(struct region),
		.category_mask = SCAN_PRESENT,
		.return_mask = return_mask,
	};
	int fd = open_file("/proc/%d/pagemap", work->pid);
	int n = ioctl(fd, SCAN, &argument);

	if (n >= 0)
		done->bytes = n * sizeof(struct region);
	else if (errno == ENOTTY)	/* before 6.7 */
		done->bytes = UINT64_MAX;
	else
		die("PAGEMAP_SCAN");
	close(fd);
}

static void run_scan_present(const struct work *work, struct done *done)
{
	scan(work, done, SCAN_PRESENT);
}

static void run_scan_all(const struct work *work, struct done *done)
{
	scan(work, done, SCAN_ALL);
}

static void count_scan(const struct work *work, struct done *done)
{
	const struct region *regions = (const struct region *)buffer;
	size_t i;

	for (i = 0; i < done->bytes / sizeof(*regions); i++)
		done->found += (regions[i].end - regions[i].start) / page_size;
	done->units = work->pages;
}

/* An address at a time through the module's file for people, kept open. */
static void run_walk(const struct work *work, struct done *done)
{
	int fd = open_file(FILES "walk");
	char line[64], *answer;
	uint64_t i;

	for (i = 0; i < work->pages && i < SAMPLES; i++) {
		ssize_t n = sprintf(line, "%d 0x%" PRIx64 "\n", work->pid, work->base + i * work->stride);

		if (write(fd, line, n) != n)
			die("walk %s", line);
		answer = (char *)buffer + done->bytes;
		n = pread(fd, answer, 4096, 0);
		if (n <= 0)
			die("walk %s", line);
		answer[n] = 0;
		done->bytes += n + 1;
		done->units++;
	}
	close(fd);
}

static void count_walk(const struct work *work, struct done *done)
{
	size_t at = 0;

	(void)work;
	while (at < done->bytes) {
		char *answer = (char *)buffer + at;

		done->found += !!strstr(answer, "\npte ");
		at += strlen(answer) + 1;
	}
}

struct method {
	const char *name;
	void (*run)(const struct work *work, struct done *done);
	void (*count)(const struct work *work, struct done *done);
};

static const struct method dump = { "dump", run_dump, count_dump };
static const struct method pagemap = { "pagemap", run_pagemap, count_pagemap };
static const struct method pagemap_each = { "pagemap-each", run_pagemap_each, count_pagemap };
static const struct method scan_present = { "scan-present", run_scan_present, count_scan };
static const struct method scan_all = { "scan-all", run_scan_all, count_scan };
static const struct method walk = { "walk", run_walk, count_walk };

static void measure(const char *scenario, const struct method *method, const struct work *work)
{
	uint64_t ns[REPEATS], longest_lock = 0;
	struct done done;
	int i;

	for (i = -1; i < REPEATS; i++) {	/* the first one warms up */
		uint64_t start;

		done = (struct done){ 0 };
		start = now();
		method->run(work, &done);
		start = now() - start;
		if (done.bytes == UINT64_MAX) {
			printf("{\"scenario\": \"%s\", \"method\": \"%s\", \"missing\": true}\n",
			       scenario, method->name);
			return;
		}
		if (i >= 0)
			ns[i] = start - clock_cost;
		method->count(work, &done);
		if (done.found != done.units || !done.units) {
			fprintf(stderr, "speed: %s found %" PRIu64 " of the %" PRIu64 " pages of %s\n",
				method->name, done.found, done.units, scenario);
			exit(1);
		}
		if (done.longest_lock > longest_lock)
			longest_lock = done.longest_lock;
	}
	printf("{\"scenario\": \"%s\", \"method\": \"%s\", \"units\": %" PRIu64 ", \"bytes\": %" PRIu64
	       ", \"entries\": %" PRIu64 ", \"longest_lock_ns\": %" PRIu64 ", \"ns\": [",
	       scenario, method->name, done.units, done.bytes, done.entries, longest_lock);
	for (i = 0; i < REPEATS; i++)
		printf("%s%" PRIu64, i ? ", " : "", ns[i]);
	printf("]}\n");
}

/* Scenarios. */

static void *reserve(uint64_t at, size_t length, int protection)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
	char *address;

	if (at)
		flags |= MAP_FIXED_NOREPLACE;
	address = mmap((void *)at, length, protection, flags, -1, 0);
	if (address == MAP_FAILED)
		die("mmap of %zu bytes at %#" PRIx64, length, at);
	return address;
}

/* At the border of a PTE table, so that the number of tables does not vary. */
static char *reserve_aligned(size_t length, int protection)
{
	uint64_t table = page_size * (page_size / 8);
	char *address = reserve(0, length + table, protection);
	char *aligned = (char *)(((uintptr_t)address + table - 1) & -table);

	if (aligned > address)
		munmap(address, aligned - address);
	munmap(aligned + length, address + table - aligned);
	return aligned;
}

static void at_stride(struct work *work, char *base, size_t length, uint64_t stride)
{
	work->base = (uintptr_t)base;
	work->first = (uintptr_t)base;
	work->last = work->first + length - 1;
	work->stride = stride;
	work->pages = length / stride;
}

static void fill(struct work *work, size_t length, uint64_t stride)
{
	volatile char *base = reserve_aligned(length, PROT_READ | PROT_WRITE);
	size_t at;

	for (at = 0; at < length; at += stride)
		base[at] = 1;
	at_stride(work, (char *)base, length, stride);
}

/* Every page of a range. */
static void build_dense(struct work *work)
{
	fill(work, RANGE * page_size, page_size);
}

/* Every second page of a range. */
static void build_alternate(struct work *work)
{
	fill(work, RANGE * page_size, 2 * page_size);
}

/* A page in each PTE table of a range, all of them the zero page. */
static void build_tables(struct work *work)
{
	uint64_t stride = page_size * (page_size / 8);
	size_t length = 4096 * stride, at;
	volatile char *base = reserve_aligned(length, PROT_READ);

	for (at = 0; at < length; at += stride)
		(void)base[at];
	at_stride(work, (char *)base, length, stride);
}

/* The last address of the user half, as the module says. */
static uint64_t user_last(void)
{
	FILE *file = fopen(FILES "layout", "re");
	char line[256];
	uint64_t last = 0;

	if (!file)
		die(FILES "layout");
	while (fgets(line, sizeof(line), file))
		if (sscanf(line, "runtime.user_last %" SCNx64, &last) == 1)
			break;
	fclose(file);
	if (!last) {
		errno = ENODATA;
		die("runtime.user_last");
	}
	return last;
}

/* A thousand single pages, spread over the whole user half. */
static void build_spread(struct work *work)
{
	uint64_t last = user_last(), i;
	uint64_t stride = (last / 1024 | (page_size - 1)) + 1;
	/* not where the program itself is, at the bottom and the top, in any paging mode */
	uint64_t base = stride / 2;

	for (i = 0; i < 1000; i++) {
		volatile char *page = reserve(base + i * stride, page_size, PROT_READ | PROT_WRITE);

		*page = 1;
	}
	work->base = base;
	work->stride = stride;
	work->pages = 1000;
	work->first = 0;
	work->last = last;
}

/* VMAs of one page each, which take a record of their own. */
static void build_vmas(struct work *work)
{
	size_t count = 20000, length = count * page_size, i;
	char *base = reserve_aligned(length, PROT_READ | PROT_WRITE);

	for (i = 0; i < count; i += 2)
		if (mprotect(base + i * page_size, page_size, PROT_READ))
			die("mprotect");
	for (i = 0; i < count; i++)
		(void)*(volatile char *)(base + i * page_size);
	work->first = (uintptr_t)base;
	work->last = work->first + length - 1;
}

struct scenario {
	const char *name;
	void (*build)(struct work *work);
	const struct method *methods[6];
};

static const struct scenario scenarios[] = {
	{ "dense", build_dense, { &dump, &pagemap, &scan_present, &scan_all, &walk } },
	{ "alternate", build_alternate, { &dump, &pagemap, &scan_present, &scan_all } },
	{ "tables", build_tables, { &dump, &pagemap_each, &walk } },
	{ "spread", build_spread, { &dump, &pagemap_each, &walk } },
	{ "vmas", build_vmas, { &dump, &pagemap } },
};

static void run_scenario(const struct scenario *scenario)
{
	struct work work = { .pid = getpid() };
	const struct method *const *method;

	scenario->build(&work);
	for (method = scenario->methods; *method; method++)
		measure(scenario->name, *method, &work);
	if (work.stride && work.last - work.first < (1ul << 40))
		munmap((void *)work.first, work.last - work.first + 1);
}

static int run_scenarios(char **names)
{
	unsigned int i, ran = 0;
	char **name;

	for (i = 0; i < COUNT(scenarios); i++) {
		bool wanted = !*names;

		for (name = names; *name; name++)
			wanted |= !strcmp(*name, scenarios[i].name);
		if (!wanted)
			continue;
		run_scenario(&scenarios[i]);
		ran++;
	}
	return ran ? 0 : 2;
}

/* Another process. */

static int run_process(pid_t pid)
{
	static struct vma_range vmas[MAX_VMAS];
	struct work work = { .pid = pid, .last = user_last(), .vmas = vmas };
	char path[64], line[8192];
	FILE *maps;

	snprintf(path, sizeof(path), "/proc/%d/maps", pid);
	maps = fopen(path, "re");
	if (!maps)
		die("%s", path);
	while (fgets(line, sizeof(line), maps)) {
		struct vma_range *vma = &vmas[work.vma_count];

		if (work.vma_count == MAX_VMAS)
			break;
		if (sscanf(line, "%" SCNx64 "-%" SCNx64, &vma->start, &vma->end) == 2 &&
		    vma->start <= work.last)
			work.vma_count++;
	}
	fclose(maps);
	measure("process", &dump, &work);
	measure("process", &pagemap, &work);
	return 0;
}

/* Stalls. */

static volatile bool stopping;
static volatile bool dumping;

struct stalls {
	uint64_t longest[2];	/* ns, without and with a dump going on */
	uint64_t rounds[2];
};

static void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		die("CPU %d", cpu);
}

static void *map_in_a_loop(void *argument)
{
	struct stalls *stalls = argument;

	pin(1);
	while (!stopping) {
		bool during = dumping;
		uint64_t start = now(), took;
		char *page = mmap(NULL, page_size, PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (page == MAP_FAILED)
			die("mmap");
		*(volatile char *)page = 1;
		if (munmap(page, page_size))
			die("munmap");
		took = now() - start - clock_cost;
		/* what began before the dump or ended after it belongs to neither */
		if (during != dumping)
			continue;
		stalls->rounds[during]++;
		if (took > stalls->longest[during])
			stalls->longest[during] = took;
	}
	return NULL;
}

static uint64_t available_memory(void)
{
	uint64_t kib = 0;
	char line[256];
	FILE *file = fopen("/proc/meminfo", "re");

	if (!file)
		die("/proc/meminfo");
	while (fgets(line, sizeof(line), file))
		if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1)
			break;
	fclose(file);
	return kib << 10;
}

static int run_stall(unsigned int seconds)
{
	uint64_t length = 4ul << 30, until, longest_lock = 0, dumps = 0, pages = 0, took = 0;
	bool resident = available_memory() > length + (512ul << 20);
	char *base = reserve_aligned(length, resident ? PROT_READ | PROT_WRITE : PROT_READ);
	struct stalls stalls = { 0 };
	struct work work = { .pid = getpid() };
	pthread_t thread;

	pin(0);
	if (madvise(base, length, resident ? MADV_POPULATE_WRITE : MADV_POPULATE_READ))
		die("populating %" PRIu64 " bytes", length);
	at_stride(&work, base, length, page_size);
	if (pthread_create(&thread, NULL, map_in_a_loop, &stalls))
		die("a thread");
	until = now() + seconds * 1000000000ull;
	while (now() < until) {
		struct done done = { 0 };
		uint64_t start;

		usleep(500000);
		start = now();
		dumping = true;
		run_dump(&work, &done);
		dumping = false;
		took += now() - start;
		count_dump(&work, &done);
		if (done.found != work.pages) {
			errno = EPROTO;
			die("a dump of %" PRIu64 " pages found %" PRIu64, work.pages, done.found);
		}
		pages += done.found;
		dumps++;
		if (done.longest_lock > longest_lock)
			longest_lock = done.longest_lock;
	}
	stopping = true;
	pthread_join(thread, NULL);
	if (!stalls.rounds[0] || !stalls.rounds[1]) {
		errno = EAGAIN;
		die("the thread never ran without, or never during, a dump");
	}
	printf("{\"scenario\": \"stall\", \"resident\": %s, \"pages\": %" PRIu64 ", \"dumps\": %" PRIu64
	       ", \"dump_ns\": %" PRIu64 ", \"longest_lock_ns\": %" PRIu64
	       ", \"rounds\": %" PRIu64 ", \"longest_ns\": %" PRIu64
	       ", \"rounds_without\": %" PRIu64 ", \"longest_without_ns\": %" PRIu64 "}\n",
	       resident ? "true" : "false", pages / dumps, dumps, took / dumps, longest_lock,
	       stalls.rounds[1], stalls.longest[1], stalls.rounds[0], stalls.longest[0]);
	return 0;
}

int main(int argc, char **argv)
{
	page_size = sysconf(_SC_PAGESIZE);
	/* pages of the smallest size, whatever the guest's default is */
	if (prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0))
		die("PR_SET_THP_DISABLE");
	buffer = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE,
		      -1, 0);
	if (buffer == MAP_FAILED)
		die("a buffer");
	setvbuf(stdout, NULL, _IOLBF, 0);
	measure_clock();
	if (argc >= 2 && !strcmp(argv[1], "scenarios"))
		return run_scenarios(argv + 2);
	if (argc == 3 && !strcmp(argv[1], "process"))
		return run_process(atoi(argv[2]));
	if (argc == 3 && !strcmp(argv[1], "stall"))
		return run_stall(atoi(argv[2]));
	fprintf(stderr, "usage: speed scenarios [NAME...] | process PID | stall SECONDS\n");
	return 2;
}
