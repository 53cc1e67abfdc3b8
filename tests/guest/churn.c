// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * churn SEED: a process that never stops changing its page tables.
 *
 * Two threads map, unmap, move, collapse, split, protect, discard and fork at
 * the places of slots.h; a third does nothing but make page tables and have
 * them freed.  At each SIGUSR1, and at SIGTERM, which ends it, it prints how
 * often each of these really happened, as "name=count" words on one line.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "slots.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MAP_HUGE_2MB
#define MAP_HUGE_2MB (21 << 26)
#endif
#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21u << 26)
#endif

#define PAGE 4096ul
#define HUGE_PAGE (2ul << 20)

enum op {
	OP_MAP, OP_UNMAP, OP_UNMAP_PART, OP_TOUCH, OP_PROTECT, OP_PROTECT_PART, OP_DISCARD,
	OP_COLLAPSE, OP_MOVE, OP_FORK, OP_PAGEOUT, OP_FAULT, OP_TABLES, OP_COUNT
};

static const char *const op_names[OP_COUNT] = {
	"map", "unmap", "unmap_part", "touch", "protect", "protect_part", "discard",
	"collapse", "move", "fork", "pageout", "fault", "tables",
};

static atomic_ulong done[OP_COUNT];
static atomic_bool stopping;
static int shmem_fd, hugetlb_fd;
static bool have_high;

static __thread sigjmp_buf guard;

static void on_fault(int sig)
{
	siglongjmp(guard, sig);
}

static uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static void count(enum op op, bool happened)
{
	if (happened)
		atomic_fetch_add(&done[op], 1);
}

/* Writes may meet a hole or a protection on the way: that is part of the game. */
static void touch(uint64_t address, uint64_t length, uint64_t stride)
{
	if (sigsetjmp(guard, 1)) {
		count(OP_FAULT, true);
		return;
	}
	for (uint64_t offset = 0; offset < length; offset += stride)
		*(volatile char *)(address + offset) = 1;
	count(OP_TOUCH, true);
}

static bool map_slot(enum slot_kind kind)
{
	const struct slot *slot = &slots[kind];
	int flags = MAP_FIXED | MAP_NORESERVE;
	int fd = -1;

	if (kind == SLOT_SHMEM || kind == SLOT_HUGETLB) {
		flags |= MAP_SHARED;
		fd = kind == SLOT_SHMEM ? shmem_fd : hugetlb_fd;
	} else {
		flags |= MAP_PRIVATE | MAP_ANONYMOUS;
	}
	return mmap((void *)slot->address, slot->length, PROT_READ | PROT_WRITE, flags, fd, 0)
	       != MAP_FAILED;
}

static void change(enum slot_kind kind, uint64_t *state)
{
	static const int protections[] = {
		PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE,
	};
	const struct slot *slot = &slots[kind];
	uint64_t unit = kind == SLOT_HUGETLB ? HUGE_PAGE : PAGE;
	/* of hugetlb only the first eight pages: the pool is small */
	uint64_t units = kind == SLOT_HUGETLB ? 8 : slot->length / unit;
	uint64_t random = next_random(state);
	uint64_t part = slot->address + (random >> 8) % units * unit;
	uint64_t chunks = slot->length < HUGE_PAGE ? 1 : slot->length / HUGE_PAGE;
	uint64_t chunk = slot->address + (random >> 8) % chunks * HUGE_PAGE;
	int prot = protections[(random >> 32) % 4];

	switch (random % 13) {
	case 0:
	case 1:
		count(OP_MAP, map_slot(kind));
		if (random & (1ul << 40))
			madvise((void *)slot->address, slot->length, MADV_HUGEPAGE);
		break;
	case 2:
		count(OP_UNMAP, !munmap((void *)slot->address, slot->length));
		break;
	case 3:
		count(OP_UNMAP_PART, !munmap((void *)part, unit));
		break;
	case 4:
	case 5:
		touch(part, unit, PAGE);
		break;
	case 6:
	case 7:
		if (kind == SLOT_HUGETLB)
			touch(slot->address, units * unit, HUGE_PAGE);
		else
			touch(chunk, slot->length < HUGE_PAGE ? slot->length : HUGE_PAGE, PAGE);
		break;
	case 8:
		count(OP_PROTECT, !mprotect((void *)slot->address, slot->length, prot));
		break;
	case 9:
		count(OP_PROTECT_PART, !mprotect((void *)part, unit, prot));
		break;
	case 10:
		count(OP_DISCARD, !madvise((void *)part, unit, MADV_DONTNEED));
		break;
	case 11:
		if (kind == SLOT_ANON || kind == SLOT_SHMEM) {
			/* one VMA again, in small pages where it was huge, then huge again */
			mprotect((void *)slot->address, slot->length, PROT_READ | PROT_WRITE);
			madvise((void *)part, PAGE, MADV_DONTNEED);
			touch(chunk, HUGE_PAGE, PAGE);
			count(OP_COLLAPSE, !madvise((void *)chunk, HUGE_PAGE, MADV_COLLAPSE));
		} else
			count(OP_PAGEOUT, !madvise((void *)slot->address, slot->length,
						   MADV_PAGEOUT));
		break;
	case 12:
		if (kind == SLOT_ANON) {
			void *away = mremap((void *)slot->address, slot->length, slot->length,
					    MREMAP_MAYMOVE | MREMAP_FIXED,
					    (void *)(slot->address + SLOT_MOVED));

			if (away != MAP_FAILED)
				count(OP_MOVE, mremap(away, slot->length, slot->length,
						      MREMAP_MAYMOVE | MREMAP_FIXED,
						      (void *)slot->address) != MAP_FAILED);
		} else if (kind == SLOT_SMALL) {
			pid_t child = fork();

			if (!child) {
				uint64_t child_state = random;

				for (int i = 0; i < 8; i++)
					change(i % SLOT_HIGH, &child_state);
				_exit(0);
			}
			count(OP_FORK, child > 0 && waitpid(child, NULL, 0) == child);
		}
		break;
	}
}

struct worker {
	enum slot_kind kinds[3];
	int kind_count;
	uint64_t state;
};

static void *work(void *data)
{
	struct worker *worker = data;

	while (!stopping) {
		enum slot_kind kind = worker->kinds[next_random(&worker->state)
						    % worker->kind_count];

		if (kind != SLOT_HIGH || have_high)
			change(kind, &worker->state);
	}
	return NULL;
}

/*
 * Tables of every level, freed by munmap() as fast as can be.  How many pages
 * there are varies, and with it how long munmap() takes before it comes to the
 * tables: a walker that waits for the lock is let in when that begins.
 */
static void *make_and_free_tables(void *unused)
{
	const struct slot *slot = &slots[SLOT_TABLES];

	uint64_t state = 1;

	(void)unused;
	while (!stopping) {
		if (!map_slot(SLOT_TABLES))
			continue;
		madvise((void *)slot->address, slot->length, MADV_NOHUGEPAGE);
		touch(slot->address, slot->length, HUGE_PAGE >> next_random(&state) % 8);
		count(OP_TABLES, !munmap((void *)slot->address, slot->length));
	}
	return NULL;
}

static void print_counts(void)
{
	for (int op = 0; op < OP_COUNT; op++)
		printf("%s=%lu ", op_names[op], (unsigned long)done[op]);
	printf("high=%d\n", have_high);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	struct worker workers[] = {
		{ .kinds = { SLOT_ANON, SLOT_SHMEM }, .kind_count = 2 },
		{ .kinds = { SLOT_SMALL, SLOT_HUGETLB, SLOT_HIGH }, .kind_count = 3 },
	};
	pthread_t threads[3];
	sigset_t asked;
	int sig;

	if (argc != 2) {
		fprintf(stderr, "usage: churn SEED\n");
		return 2;
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	signal(SIGSEGV, on_fault);
	signal(SIGBUS, on_fault);
	/* the main thread takes these two, the others never see them */
	sigemptyset(&asked);
	sigaddset(&asked, SIGUSR1);
	sigaddset(&asked, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &asked, NULL);
	shmem_fd = memfd_create("churn", 0);
	hugetlb_fd = memfd_create("churn", MFD_HUGETLB | MFD_HUGE_2MB);
	if (shmem_fd < 0 || ftruncate(shmem_fd, slots[SLOT_SHMEM].length) || hugetlb_fd < 0
	    || ftruncate(hugetlb_fd, slots[SLOT_HUGETLB].length)) {
		perror("churn: memfd");
		return 1;
	}
	for (int kind = 0; kind < SLOT_COUNT; kind++) {
		bool mapped = map_slot(kind);

		if (kind == SLOT_HIGH)
			have_high = mapped;
		else if (!mapped) {
			perror("churn: mmap");
			return 1;
		}
	}
	for (int i = 0; i < 2; i++) {
		workers[i].state = strtoull(argv[1], NULL, 0) * 2 + i + 1;
		if (pthread_create(&threads[i], NULL, work, &workers[i]))
			return 1;
	}
	if (pthread_create(&threads[2], NULL, make_and_free_tables, NULL))
		return 1;
	while (sigwait(&asked, &sig) == 0 && sig == SIGUSR1)
		print_counts();
	stopping = true;
	for (int i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	print_counts();
	return 0;
}
