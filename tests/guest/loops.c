// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Loops like those that people write to see what a fault or a remap costs:
 * bare system calls and a clock.  What `ptscope bench` says is compared with
 * it, so it shares nothing with it.
 *
 * Each time is taken by itself, with the kernel's counts looked at in between,
 * as one does who wants to know what each of them was.
 *
 *   loops NAME COUNT [VMAS]     prints one time a line, in ns, without the clock's own
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Asked for once: sysconf() inside of what is timed would be timed with it. */
static size_t page;

static long monotonic(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC_RAW, &t);
	return t.tv_sec * 1000000000L + t.tv_nsec;
}

#ifdef __x86_64__
/*
 * clock_gettime() reads two pages that nothing else needs, and after a call that
 * has flushed the TLB it finds neither: half a microsecond that is not the call's.
 */
static double ns_per_tick;

static unsigned long ticks(void)
{
	unsigned int low, high;

	__asm__ volatile("rdtscp" : "=a"(low), "=d"(high) : : "ecx", "memory");
	return (unsigned long)high << 32 | low;
}

static void calibrate(void)
{
	long start = monotonic();
	unsigned long first = ticks();

	while (monotonic() - start < 20000000)
		;
	ns_per_tick = (double)(monotonic() - start) / (ticks() - first);
}

static long now(void)
{
	return ticks() * ns_per_tick;
}
#else
static void calibrate(void)
{
}

static long now(void)
{
	return monotonic();
}
#endif

static int by_size(const void *a, const void *b)
{
	long x = *(const long *)a, y = *(const long *)b;

	return (x > y) - (x < y);
}

/* The middle of what two readings of the clock are apart with nothing between. */
static long empty(void)
{
	static long times[1001];

	for (int i = 0; i < 1001; i++) {
		long start = now();

		times[i] = now() - start;
	}
	qsort(times, 1001, sizeof(*times), by_size);
	return times[500];
}

/*
 * As many VMAs as the other program has: what a call on one of them costs depends
 * on how many others there are (the nodes of their tree, from Linux 6.1 on).
 */
static void crowd(long vmas)
{
	size_t size = vmas * page;
	char *place;

	if (vmas <= 0)
		return;
	place = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (size_t i = 0; place != MAP_FAILED && i < size; i += 2 * page)
		mprotect(place + i, page, PROT_READ);
}

static char *map(size_t size)
{
	/* A page table of its own, and no huge pages. */
	size_t huge = page * (page / 8);
	char *place = mmap(NULL, size + huge, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (place == MAP_FAILED) {
		perror("mmap");
		exit(1);
	}
	place = (char *)(((size_t)place + huge - 1) & ~(huge - 1));
	madvise(place, size, MADV_NOHUGEPAGE);
	return place;
}

static void fill(char *place, long pages)
{
	for (long i = 0; i < pages; i++)
		place[i * page] = 1;
}

/* Work on other memory, twice what a second-level cache holds, so that it holds nothing else. */
static void elsewhere(void)
{
	static volatile char room[4 << 20];

	for (size_t i = 0; i < sizeof(room); i += 64)
		room[i]++;
}

int main(int count_of_words, char **words)
{
	const char *name = count_of_words > 1 ? words[1] : "";
	long count = count_of_words > 2 ? atol(words[2]) : 64, own, start;
	long *times = calloc(count, sizeof(*times));
	struct rusage usage;
	char *place;

	page = sysconf(_SC_PAGESIZE);
	calibrate();
	own = empty();
	memset(times, 1, count * sizeof(*times));
	/* A small program has 20 of its own. */
	crowd(count_of_words > 3 ? atol(words[3]) - 20 : 0);
	elsewhere();	/* its own pages are there from now on */
	place = map((count + 1) * page);
	place[0] = 1;
	place += page;
	if (!strcmp(name, "read")) {
		elsewhere();
		for (long i = 0; i < count; i++) {
			getrusage(RUSAGE_SELF, &usage);
			start = now();
			(void)*(volatile char *)(place + i * page);
			times[i] = now() - start;
		}
	} else if (!strcmp(name, "write-again")) {
		elsewhere();
		for (long i = 0; i < count; i++) {
			madvise(place, page, MADV_DONTNEED);
			getrusage(RUSAGE_SELF, &usage);
			start = now();
			*(volatile char *)place = 1;
			times[i] = now() - start;
		}
	} else if (!strcmp(name, "write") || !strcmp(name, "dontneed-write")) {
		if (*name == 'd') {
			fill(place, count);
			madvise(place, count * page, MADV_DONTNEED);
		}
		elsewhere();
		for (long i = 0; i < count; i++) {
			getrusage(RUSAGE_SELF, &usage);
			start = now();
			*(volatile char *)(place + i * page) = 1;
			times[i] = now() - start;
		}
	} else if (!strcmp(name, "cow-parent")) {
		pid_t child;

		fill(place, count);
		child = fork();
		if (!child)
			for (;;)
				pause();
		/* Our own pages are shared too: have them copied before. */
		memset(times, 2, count * sizeof(*times));
		elsewhere();
		start = now();
		for (long i = 0; i < count; i++) {
			getrusage(RUSAGE_SELF, &usage);
			start = now();
			*(volatile char *)(place + i * page) = 2;
			times[i] = now() - start;
		}
		kill(child, 9);
		waitpid(child, NULL, 0);
	} else if (!strcmp(name, "syscall")) {
		elsewhere();
		for (long i = 0; i < count; i++) {
			getrusage(RUSAGE_SELF, &usage);
			start = now();
			getppid();
			times[i] = now() - start;
		}
	} else if (!strcmp(name, "clock")) {
		/* What others read: a reading that takes as long as clock_gettime(). */
		for (long i = 0; i < count; i++) {
			struct timespec t;

			start = now();
			clock_gettime(CLOCK_REALTIME, &t);
			times[i] = now() - start;
		}
	} else if (!strncmp(name, "near-", 5) || !strncmp(name, "away-", 5)) {
		/*
		 * near-PAGES, away-PAGES: to and fro between two places, in one table or
		 * not, far from everything else.  The way back is not timed: it takes
		 * more or less.
		 */
		size_t size = (size_t)atol(name + 5) * page, far = page * (page / 8) * (page / 8);
		char *from = (char *)(3 * far + (1UL << 37));
		char *to = from + (*name == 'n' ? 2 * size : 3 * far);
		int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE | MAP_NORESERVE;

		if (mmap(from, size, PROT_READ | PROT_WRITE, flags, -1, 0) != from ||
		    mmap(from - 3 * far, page, PROT_READ | PROT_WRITE, flags, -1, 0) == MAP_FAILED) {
			perror("mmap");
			return 1;
		}
		from[-3 * (long)far] = 1;
		madvise(from, size, MADV_NOHUGEPAGE);
		fill(from, atol(name + 5));
		for (long i = 0; i < count; i++) {
			int moves = MREMAP_MAYMOVE | MREMAP_FIXED;

			if (i && mremap(to, size, size, moves, from) != from) {
				perror("mremap");
				return 1;
			}
			/* The move has flushed the TLB: what every call needs is in it again. */
			getrusage(RUSAGE_SELF, &usage);
			start = now();
			if (mremap(from, size, size, moves, to) != to) {
				perror("mremap");
				return 1;
			}
			times[i] = now() - start;
		}
	} else {
		fprintf(stderr, "no loop is called %s\n", name);
		return 2;
	}
	for (long i = 0; i < count; i++)
		printf("%ld\n", times[i] - own);
	return 0;
}
