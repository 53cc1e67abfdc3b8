// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * churn SEED [brief]: a process that never stops changing its page tables.
 *
 * What it does is the table of activities below, where it does it slots.h.
 * Some slots belong to nobody: threads map, protect, discard, collapse, move
 * and unmap them at random.  Each of the others belongs to one thread, so that
 * this thread can tell whether what it wanted came about.  It asks the module
 * where a table lies ("walk" of itself): a table that is where it was, though
 * at another address, was moved; one that is no longer there was freed.
 *
 * When it begins, at each SIGUSR1, and at SIGTERM, which ends it, it prints on
 * one line how often each activity really happened and was tried, as
 * "name=count" and "name.tried=count".
 *
 * With "brief" it makes some changes and then exits, is killed, executes itself
 * anew or leaves a thread alone: a target that goes away while it is walked.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "slots.h"

/* Newer than the C library of some guests or compilers. */
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
#ifndef MPOL_MF_MOVE
#define MPOL_MF_MOVE 2
#endif
#define HUGETLB_SHIFT 26	/* MAP_HUGE_SHIFT, MFD_HUGE_SHIFT */

#define WALK "/sys/kernel/debug/ptscope/walk"
#define COMPACT "/proc/sys/vm/compact_memory"

#define BIT(n) (1u << (n))
#define RANDOM_SLOTS (BIT(SLOT_ANON) | BIT(SLOT_SHMEM) | BIT(SLOT_SMALL) | BIT(SLOT_HUGETLB))
#define SMALL_SLOTS (BIT(SLOT_ANON) | BIT(SLOT_SHMEM) | BIT(SLOT_SMALL) | BIT(SLOT_HIGH))
#define CHANGED_SLOTS (RANDOM_SLOTS | BIT(SLOT_HIGH))

static atomic_bool stopping;
static atomic_ulong faults;
static int shmem_fd, hugetlb_fd, retract_fd, share_fd, text_fd;
static bool have_high;

static void change(unsigned int where, uint64_t *state);

static uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void *at(uint64_t address)
{
	return (void *)address;
}

/* ---- touching ------------------------------------------------------------ */

static __thread sigjmp_buf guard;

static void on_fault(int sig)
{
	siglongjmp(guard, sig);
}

/* Writes may meet a hole or a protection on the way: that is part of the game. */
static bool touch(uint64_t address, uint64_t length, uint64_t stride)
{
	if (sigsetjmp(guard, 1)) {
		atomic_fetch_add(&faults, 1);
		return false;
	}
	for (uint64_t offset = 0; offset < length; offset += stride)
		*(volatile char *)(address + offset) = 1;
	return true;
}

/* ---- changes at random ---------------------------------------------------- */

static bool is_kind(const struct slot *slot, enum slot_kind kind)
{
	return slot == &slots[kind];
}

static uint64_t unit(const struct slot *slot)
{
	return is_kind(slot, SLOT_HUGETLB) ? spans.huge : spans.page;
}

/* How much of a slot is changed: of hugetlb only the first pages, since the pool is small. */
static uint64_t used(const struct slot *slot)
{
	return is_kind(slot, SLOT_HUGETLB) ? 8 * spans.huge : slot->length;
}

static uint64_t part(const struct slot *slot, uint64_t random)
{
	return slot->address + (random >> 8) % (used(slot) / unit(slot)) * unit(slot);
}

/* One of the huge pages of a slot, or all of it when it is smaller. */
static struct slot chunk(const struct slot *slot, uint64_t random)
{
	if (slot->length < spans.huge)
		return *slot;
	return (struct slot){
		slot->address + (random >> 8) % (used(slot) / spans.huge) * spans.huge, spans.huge };
}

static int protection(uint64_t random)
{
	static const int protections[] = {
		PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE,
	};

	return protections[(random >> 32) % 4];
}

static bool map_file(uint64_t address, uint64_t length, int fd)
{
	int kind = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;

	return mmap(at(address), length, PROT_READ | PROT_WRITE, kind | MAP_FIXED | MAP_NORESERVE,
		    fd, 0) != MAP_FAILED;
}

static bool map(const struct slot *slot, uint64_t random)
{
	int fd = is_kind(slot, SLOT_SHMEM) ? shmem_fd : is_kind(slot, SLOT_HUGETLB) ? hugetlb_fd : -1;
	bool mapped = map_file(slot->address, slot->length, fd);

	if (random >> 40 & 1)
		madvise(at(slot->address), slot->length, MADV_HUGEPAGE);
	return mapped;
}

static bool unmap(const struct slot *slot, uint64_t random)
{
	(void)random;
	return !munmap(at(slot->address), slot->length);
}

static bool unmap_part(const struct slot *slot, uint64_t random)
{
	return !munmap(at(part(slot, random)), unit(slot));
}

static bool touch_some(const struct slot *slot, uint64_t random)
{
	struct slot all = chunk(slot, random);

	if (random & 1)
		return touch(part(slot, random), unit(slot), spans.page);
	if (is_kind(slot, SLOT_HUGETLB))
		return touch(slot->address, used(slot), spans.huge);
	return touch(all.address, all.length, spans.page);
}

static bool protect(const struct slot *slot, uint64_t random)
{
	return !mprotect(at(slot->address), slot->length, protection(random));
}

static bool protect_part(const struct slot *slot, uint64_t random)
{
	return !mprotect(at(part(slot, random)), unit(slot), protection(random));
}

static bool discard(const struct slot *slot, uint64_t random)
{
	return !madvise(at(part(slot, random)), unit(slot), MADV_DONTNEED);
}

static bool pageout(const struct slot *slot, uint64_t random)
{
	struct slot all = chunk(slot, random);

	return !madvise(at(all.address), all.length, MADV_PAGEOUT);
}

static bool collapse(const struct slot *slot, uint64_t random)
{
	struct slot all = chunk(slot, random);

	/* one VMA again, in small pages where it was huge, then huge again */
	mprotect(at(slot->address), slot->length, PROT_READ | PROT_WRITE);
	madvise(at(part(slot, random)), spans.page, MADV_DONTNEED);
	touch(all.address, all.length, spans.page);
	return !madvise(at(all.address), all.length, MADV_COLLAPSE);
}

static void *move(uint64_t from, uint64_t to, uint64_t length, int flags)
{
	return mremap(at(from), length, length, MREMAP_MAYMOVE | MREMAP_FIXED | flags, at(to));
}

static bool move_away_and_back(const struct slot *slot, uint64_t random)
{
	uint64_t away = slot->address + slot_away;

	(void)random;
	return move(slot->address, away, slot->length, 0) != MAP_FAILED
	       && move(away, slot->address, slot->length, 0) != MAP_FAILED;
}

static bool fork_child(const struct slot *slot, uint64_t random)
{
	pid_t child = fork();

	(void)slot;
	if (!child) {
		uint64_t state = random | 1;

		for (int i = 0; i < 8; i++)
			change(RANDOM_SLOTS, &state);
		_exit(0);
	}
	return child > 0 && waitpid(child, NULL, 0) == child;
}

/*
 * Tables of every level, freed by munmap() as fast as can be.  How many pages
 * there are varies, and with it how long munmap() takes before it comes to the
 * tables: a walker that waits for the lock is let in when that begins.
 */
static bool make_and_free_tables(const struct slot *slot, uint64_t random)
{
	if (!map_file(slot->address, slot->length, -1))
		return false;
	madvise(at(slot->address), slot->length, MADV_NOHUGEPAGE);
	touch(slot->address, slot->length, spans.huge >> random % 8);
	return !munmap(at(slot->address), slot->length);
}

/* ---- changes that are looked at -------------------------------------------- */

/*
 * The physical address of the table of this level ("pmd", "pte") through which
 * an address is reached; 0 when there is none.  Process 0 is this one.
 */
static uint64_t table_at(pid_t pid, uint64_t address, const char *level)
{
	static __thread int fd = -1;
	char text[4096];
	size_t got = 0;
	ssize_t n;

	if (fd < 0 && (fd = open(WALK, O_RDWR | O_CLOEXEC)) < 0)
		die(WALK);
	n = pid ? snprintf(text, sizeof(text), "%d %#" PRIx64 "\n", pid, address)
		: snprintf(text, sizeof(text), "self %#" PRIx64 "\n", address);
	if (write(fd, text, n) != n)
		die(text);
	while (got < sizeof(text) - 1 && (n = read(fd, text + got, sizeof(text) - 1 - got)) > 0)
		got += n;
	text[got] = 0;
	for (char *line = text; line; line = strchr(line, '\n')) {
		uint64_t entry;

		line += *line == '\n';
		if (!strncmp(line, level, strlen(level))
		    && sscanf(line + strlen(level), " %*u raw %*x at %" SCNx64, &entry) == 1)
			return entry & ~(spans.page - 1);
	}
	return 0;
}

static bool map_small_pages(uint64_t address, uint64_t length, uint64_t stride)
{
	return map_file(address, length, -1) && !madvise(at(address), length, MADV_NOHUGEPAGE)
	       && touch(address, length, stride);
}

static void clear(uint64_t address, uint64_t length)
{
	munmap(at(address), length);
}

#define FEW_PAGES 16

/* To another place in its table: entry by entry, into a table of its own. */
static bool move_pte(const struct slot *slot, uint64_t random)
{
	uint64_t length = FEW_PAGES * spans.page;
	uint64_t to = slot->address + slot_away + (1 + random % 32) * spans.page;
	uint64_t before, after = 0;

	if (!map_small_pages(slot->address, length, spans.page))
		return false;
	before = table_at(0, slot->address, "pte");
	if (move(slot->address, to, length, 0) != MAP_FAILED)
		after = table_at(0, to, "pte");
	clear(slot->address, length);
	clear(to, length);
	return before && after && before != after;
}

/* As much as a whole table maps, which then is the same table at another address. */
static bool move_table(const struct slot *slot, uint64_t length, const char *level)
{
	uint64_t to = slot->address + slot_away;
	uint64_t before, after = 0;

	/* a few pages of it are there, however long it is */
	if (!map_file(slot->address, length, -1)
	    || madvise(at(slot->address), length, MADV_NOHUGEPAGE)
	    || !touch(slot->address, FEW_PAGES * spans.page, spans.page))
		return false;
	before = table_at(0, slot->address, level);
	if (move(slot->address, to, length, 0) != MAP_FAILED)
		after = table_at(0, to, level);
	clear(slot->address, length);
	clear(to, length);
	return before && before == after;
}

static bool move_pmd(const struct slot *slot, uint64_t random)
{
	(void)random;
	return move_table(slot, spans.huge, "pte");
}

static bool move_pud(const struct slot *slot, uint64_t random)
{
	(void)random;
	return move_table(slot, spans.pud, "pmd");
}

/* The old mapping stays, empty. */
static bool move_dontunmap(const struct slot *slot, uint64_t random)
{
	uint64_t length = random % 2 ? spans.huge : FEW_PAGES * spans.page;
	uint64_t to = slot->address + slot_away;
	bool moved;

	if (!map_small_pages(slot->address, length, length / FEW_PAGES))
		return false;
	moved = move(slot->address, to, length, MREMAP_DONTUNMAP) != MAP_FAILED
		&& table_at(0, to, "pte") && touch(slot->address, spans.page, spans.page);
	clear(slot->address, length);
	clear(to, length);
	return moved;
}

/* Of two VMAs side by side, in one PTE table or one PMD table, one goes and one stays. */
static bool unmap_neighbour(const struct slot *slot, uint64_t random)
{
	uint64_t pages = slot->length / spans.page;
	uint64_t border = slot->address + (1 + random % (pages - 1)) * spans.page;
	uint64_t end = slot->address + slot->length;
	bool left_goes = random >> 32 & 1;
	uint64_t stays = left_goes ? border : slot->address;
	uint64_t before, after;

	if (!map_small_pages(slot->address, slot->length, 8 * spans.page)
	    || mprotect(at(border), end - border, PROT_READ | PROT_WRITE | PROT_EXEC)
	    || !touch(stays, spans.page, spans.page))
		return false;
	before = table_at(0, stays, "pte");
	if (left_goes)
		clear(slot->address, border - slot->address);
	else
		clear(border, end - border);
	after = table_at(0, stays, "pte");
	clear(slot->address, slot->length);
	return before && before == after;
}

/* Small pages or a huge one go to swap space and come back. */
static bool swap(const struct slot *slot, uint64_t random)
{
	int advice = random & 1 ? MADV_HUGEPAGE : MADV_NOHUGEPAGE;
	uint64_t length = random & 1 ? slot->length : 4 * FEW_PAGES * spans.page;

	return map_file(slot->address, slot->length, -1)
	       && !madvise(at(slot->address), slot->length, advice)
	       && touch(slot->address, length, spans.page)
	       && !madvise(at(slot->address), length, MADV_PAGEOUT)
	       && touch(slot->address, length, spans.page);
}

/* Small pages and a huge one change NUMA nodes. */
static bool move_pages(const struct slot *slot, uint64_t random)
{
	void *pages[FEW_PAGES + 1];
	int from[FEW_PAGES + 1], to[FEW_PAGES + 1], status[FEW_PAGES + 1];
	const int count = FEW_PAGES + 1;
	uint64_t huge = slot->address + spans.huge;

	(void)random;
	map_small_pages(slot->address, FEW_PAGES * spans.page, spans.page);
	map_file(huge, spans.huge, -1);
	madvise(at(huge), spans.huge, MADV_HUGEPAGE);
	touch(huge, spans.page, spans.page);
	for (int i = 0; i < count; i++)
		pages[i] = at(i < FEW_PAGES ? slot->address + i * spans.page : huge);
	if (syscall(SYS_move_pages, 0, (long)count, pages, NULL, from, 0))
		return false;
	for (int i = 0; i < count; i++)
		to[i] = !from[i];
	if (syscall(SYS_move_pages, 0, (long)count, pages, to, status, MPOL_MF_MOVE) < 0)
		return false;
	for (int i = 0; i < count; i++)
		if (from[i] >= 0 && status[i] == to[i])
			return true;
	return false;
}

/* All the machine's memory, and of this process what the other slots hold. */
static bool compact(const struct slot *slot, uint64_t random)
{
	int fd = open(COMPACT, O_WRONLY | O_CLOEXEC);
	bool written = fd >= 0 && write(fd, "1", 1) == 1;

	(void)slot;
	(void)random;
	if (fd >= 0)
		close(fd);
	return written;
}

/* DONTNEED of all that a PTE table maps: from 6.14 on the table goes too (PT_RECLAIM). */
static bool reclaim(const struct slot *slot, uint64_t random)
{
	uint64_t before;

	if (!map_small_pages(slot->address, slot->length, spans.huge >> random % 8))
		return false;
	before = table_at(0, slot->address, "pte");
	return !madvise(at(slot->address), slot->length, MADV_DONTNEED) && before
	       && !table_at(0, slot->address, "pte");
}

/*
 * Pages of a file that is not shmem, collapsed where READ_ONLY_THP_FOR_FS is:
 * clean ones that may be executed.  Whoever opens the file to write to it has
 * the kernel throw the huge page away.
 */
static bool retract_text(const struct slot *slot, uint64_t random)
{
	const uint64_t places[] = { slot->address, slot->address + slot_away };
	uint64_t before;
	char path[32];
	int fd;

	(void)random;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", text_fd);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		die(path);
	close(fd);
	for (int i = 0; i < 2; i++) {
		if (mmap(at(places[i]), slot->length, PROT_READ | PROT_EXEC,
			 MAP_PRIVATE | MAP_FIXED, text_fd, 0) == MAP_FAILED)
			return false;
		for (uint64_t offset = 0; offset < slot->length; offset += spans.page)
			(void)*(volatile char *)(places[i] + offset);
	}
	before = table_at(0, places[0], "pte");
	return before && !madvise(at(places[1]), slot->length, MADV_COLLAPSE)
	       && table_at(0, places[0], "pte") != before;
}

/*
 * A file in a file system of memory other than shmem, whose pages are clean as
 * long as they are only read.
 */
static void make_text(void)
{
	char folder[] = "/run/churn-XXXXXX", path[sizeof(folder) + 8];

	if (!mkdtemp(folder) || mount("ramfs", folder, "ramfs", 0, NULL))
		die("ramfs");
	snprintf(path, sizeof(path), "%s/text", folder);
	text_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0700);
	if (text_fd < 0 || ftruncate(text_fd, slots[SLOT_TEXT].length) || close(text_fd))
		die(path);
	text_fd = open(path, O_RDONLY | O_CLOEXEC);
	if (text_fd < 0 || umount2(folder, MNT_DETACH) || rmdir(folder))
		die(path);
}

/* ---- with another process --------------------------------------------------- */

/*
 * It has the same mappings of the two files at the same addresses and does as
 * it is told.  Nobody but walkers waits for its mmap_lock, for which khugepaged
 * never waits, nor did the retraction of page tables before 6.5.
 */
static struct {
	pid_t pid;
	int socket;
} partner;

enum order { ORDER_COLLAPSE, ORDER_MAP, ORDER_SHARE, ORDER_UNSHARE, ORDER_KHUGEPAGED };

/* Small pages are left for khugepaged to find; that it did shows when their table is gone. */
static bool await_khugepaged(const struct slot *slot)
{
	static bool settled;
	bool found = settled && !table_at(0, slot->address, "pte");

	if (!settled || found)
		settled = map_small_pages(slot->address, slot->length, spans.page)
			  && !madvise(at(slot->address), slot->length, MADV_HUGEPAGE);
	return found;
}

/* Only for this one moment may these pages be a huge one, or khugepaged would be the first. */
static bool collapse_file(uint64_t address, uint64_t length)
{
	int tries = 4;

	madvise(at(address), length, MADV_HUGEPAGE);
	while (madvise(at(address), length, MADV_COLLAPSE) && errno == EAGAIN && --tries)
		;
	return !madvise(at(address), length, MADV_NOHUGEPAGE);
}

static bool map_file_in_small_pages(uint64_t address, uint64_t length)
{
	return map_file(address, length, retract_fd)
	       && !madvise(at(address), length, MADV_NOHUGEPAGE)
	       && touch(address, length, spans.page);
}

static bool obey(char order)
{
	const struct slot *file = &slots[SLOT_RETRACT], *share = &slots[SLOT_SHARE];

	switch (order) {
	case ORDER_COLLAPSE:
		return collapse_file(file->address, file->length);
	case ORDER_MAP:
		return map_file_in_small_pages(file->address, file->length);
	case ORDER_SHARE:
		return map_file(share->address, share->length, share_fd)
		       && touch(share->address, spans.huge, spans.huge);
	case ORDER_UNSHARE:
		return !munmap(at(share->address), share->length);
	case ORDER_KHUGEPAGED:
		return await_khugepaged(&slots[SLOT_KHUGEPAGED]);
	}
	return false;
}

static bool tell_partner(enum order order)
{
	char text = order;

	return write(partner.socket, &text, 1) == 1 && read(partner.socket, &text, 1) == 1 && text;
}

static bool start_partner(void)
{
	int pair[2];
	char text;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
		return false;
	partner.socket = pair[0];
	partner.pid = fork();
	if (partner.pid)
		return partner.pid > 0 && !close(pair[1]);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	close(pair[0]);
	while (read(pair[1], &text, 1) == 1) {
		text = obey(text);
		if (write(pair[1], &text, 1) != 1)
			break;
	}
	_exit(0);
}

static bool khugepaged(const struct slot *slot, uint64_t random)
{
	(void)slot;
	(void)random;
	return tell_partner(ORDER_KHUGEPAGED);
}

/*
 * A file in small pages is mapped here and by the partner.  Either of the two
 * makes them a huge page, and the kernel frees the other's table without asking it.
 */
static bool retract(const struct slot *slot, uint64_t random)
{
	pid_t loser = random & 1 ? partner.pid : 0;
	uint64_t before;

	if (fallocate(retract_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, slot->length)
	    || !map_file_in_small_pages(slot->address, slot->length) || !tell_partner(ORDER_MAP))
		return false;
	before = table_at(loser, slot->address, "pte");
	if (!before
	    || !(loser ? collapse_file(slot->address, slot->length) : tell_partner(ORDER_COLLAPSE)))
		return false;
	return table_at(loser, slot->address, "pte") != before;
}

static bool is_shared(const struct slot *slot)
{
	uint64_t table = table_at(0, slot->address, "pmd");

	return table && table == table_at(partner.pid, slot->address, "pmd");
}

static bool share(const struct slot *slot, uint64_t random)
{
	(void)random;
	return tell_partner(ORDER_SHARE) && map_file(slot->address, slot->length, share_fd)
	       && touch(slot->address, spans.huge, spans.huge) && is_shared(slot);
}

static bool unshare_table(const struct slot *slot, uint64_t random)
{
	if (!is_shared(slot))
		return false;
	switch (random % 3) {
	case 0:
		return !munmap(at(slot->address), slot->length) && !is_shared(slot);
	case 1:
		return !mprotect(at(slot->address), slot->length / 2, PROT_READ) && !is_shared(slot);
	default:
		return tell_partner(ORDER_UNSHARE) && !is_shared(slot);
	}
}

/* ---- the table --------------------------------------------------------------- */

static const struct activity {
	const char *name;
	bool (*run)(const struct slot *slot, uint64_t random);	/* whether it really happened */
	unsigned int where;		/* slots, as bits */
	unsigned int weight;
} activities[] = {
	{ "map", map, CHANGED_SLOTS, 2 },
	{ "unmap", unmap, CHANGED_SLOTS, 1 },
	{ "unmap_part", unmap_part, CHANGED_SLOTS, 1 },
	{ "touch", touch_some, CHANGED_SLOTS, 4 },
	{ "protect", protect, CHANGED_SLOTS, 1 },
	{ "protect_part", protect_part, CHANGED_SLOTS, 1 },
	{ "discard", discard, CHANGED_SLOTS, 1 },
	{ "collapse", collapse, BIT(SLOT_ANON) | BIT(SLOT_SHMEM), 1 },
	{ "pageout", pageout, SMALL_SLOTS, 1 },
	{ "move", move_away_and_back, BIT(SLOT_ANON), 1 },
	{ "fork", fork_child, BIT(SLOT_SMALL), 1 },
	{ "tables", make_and_free_tables, BIT(SLOT_TABLES), 1 },
	{ "move_pte", move_pte, BIT(SLOT_MOVE), 1 },
	{ "move_pmd", move_pmd, BIT(SLOT_MOVE), 1 },
	{ "move_pud", move_pud, BIT(SLOT_MOVE), 1 },
	{ "move_dontunmap", move_dontunmap, BIT(SLOT_MOVE), 1 },
	{ "unmap_neighbour", unmap_neighbour, BIT(SLOT_NEIGHBOUR), 1 },
	{ "swap", swap, BIT(SLOT_SWAP), 1 },
	{ "move_pages", move_pages, BIT(SLOT_MIGRATE), 3 },
	{ "compact", compact, BIT(SLOT_MIGRATE), 1 },
	{ "khugepaged", khugepaged, BIT(SLOT_KHUGEPAGED), 1 },
	{ "reclaim", reclaim, BIT(SLOT_RECLAIM), 1 },
	{ "retract", retract, BIT(SLOT_RETRACT), 1 },
	{ "retract_text", retract_text, BIT(SLOT_TEXT), 1 },
	{ "share", share, BIT(SLOT_SHARE), 1 },
	{ "unshare", unshare_table, BIT(SLOT_SHARE), 1 },
};

#define ACTIVITIES (sizeof(activities) / sizeof(*activities))

static atomic_ulong tried[ACTIVITIES], happened[ACTIVITIES];

/* Do one of the things that can be done at one of these slots. */
static void change(unsigned int where, uint64_t *state)
{
	unsigned int kind, weights = 0, chosen;

	do
		kind = next_random(state) % SLOT_COUNT;
	while (!(where & BIT(kind)) || (kind == SLOT_HIGH && !have_high));
	for (size_t i = 0; i < ACTIVITIES; i++)
		if (activities[i].where & BIT(kind))
			weights += activities[i].weight;
	chosen = next_random(state) % weights;
	for (int i = 0;; i++) {
		if (!(activities[i].where & BIT(kind)))
			continue;
		if (chosen < activities[i].weight) {
			atomic_fetch_add(&tried[i], 1);
			if (activities[i].run(&slots[kind], next_random(state)))
				atomic_fetch_add(&happened[i], 1);
			return;
		}
		chosen -= activities[i].weight;
	}
}

static void print_counts(void)
{
	for (size_t i = 0; i < ACTIVITIES; i++)
		printf("%s=%lu %s.tried=%lu ", activities[i].name, (unsigned long)happened[i],
		       activities[i].name, (unsigned long)tried[i]);
	printf("fault=%lu high=%d partner=%d\n", (unsigned long)faults, have_high, partner.pid);
	fflush(stdout);
}

/* ---- threads ------------------------------------------------------------------ */

struct worker {
	unsigned int where;
	uint64_t state;
};

static void *work(void *data)
{
	struct worker *worker = data;

	while (!stopping)
		change(worker->where, &worker->state);
	return NULL;
}

static int memory_file(const char *name, unsigned int flags, uint64_t length)
{
	int fd = memfd_create(name, flags);

	if (fd < 0 || ftruncate(fd, length))
		die(name);
	return fd;
}

static void make_files(void)
{
	unsigned int hugetlb = MFD_HUGETLB | __builtin_ctzll(spans.huge) << HUGETLB_SHIFT;

	shmem_fd = memory_file("shmem", 0, slots[SLOT_SHMEM].length);
	hugetlb_fd = memory_file("hugetlb", hugetlb, slots[SLOT_HUGETLB].length);
	retract_fd = memory_file("retract", 0, slots[SLOT_RETRACT].length);
	share_fd = memory_file("share", hugetlb, slots[SLOT_SHARE].length);
	for (int kind = 0; kind < SLOT_TABLES; kind++) {
		bool mapped = map(&slots[kind], 0);

		if (kind == SLOT_HIGH)
			have_high = mapped;
		else if (!mapped)
			die("mmap");
	}
}

static int churn(uint64_t seed)
{
	struct worker workers[] = {
		{ .where = BIT(SLOT_ANON) | BIT(SLOT_SHMEM) },
		{ .where = BIT(SLOT_SMALL) | BIT(SLOT_HUGETLB) | BIT(SLOT_HIGH) },
		{ .where = BIT(SLOT_TABLES) },
		{ .where = BIT(SLOT_MOVE) | BIT(SLOT_NEIGHBOUR) },
		{ .where = BIT(SLOT_SWAP) | BIT(SLOT_MIGRATE) },
		{ .where = BIT(SLOT_RECLAIM) | BIT(SLOT_TEXT) },
		/* one thread for all that takes the partner */
		{ .where = BIT(SLOT_RETRACT) | BIT(SLOT_SHARE) | BIT(SLOT_KHUGEPAGED) },
	};
	enum { WORKERS = sizeof(workers) / sizeof(*workers) };
	pthread_t threads[WORKERS];
	sigset_t asked;
	int sig;

	/* the main thread takes these two, the others never see them */
	sigemptyset(&asked);
	sigaddset(&asked, SIGUSR1);
	sigaddset(&asked, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &asked, NULL);
	make_text();
	if (!start_partner())
		die("partner");
	for (int i = 0; i < WORKERS; i++) {
		workers[i].state = seed * WORKERS + i + 1;
		if (pthread_create(&threads[i], NULL, work, &workers[i]))
			return 1;
	}
	do
		print_counts();
	while (sigwait(&asked, &sig) == 0 && sig == SIGUSR1);
	stopping = true;
	for (int i = 0; i < WORKERS; i++)
		pthread_join(threads[i], NULL);
	print_counts();
	return 0;
}

static void *outlive_the_leader(void *data)
{
	struct worker *worker = data;

	while (!stopping)
		change(worker->where, &worker->state);
	for (int i = 0; i < 16; i++)
		change(worker->where, &worker->state);
	_exit(0);
}

static int brief(uint64_t seed)
{
	static struct worker other = { .where = CHANGED_SLOTS };	/* outlives this thread */
	uint64_t state = seed * 2 + 2;
	pthread_t thread;
	char text[32];

	other.state = seed * 2 + 1;
	for (int i = 0; i < 4; i++)
		next_random(&state);
	if (pthread_create(&thread, NULL, outlive_the_leader, &other))
		return 1;
	for (int i = next_random(&state) % 64; i >= 0; i--)
		change(CHANGED_SLOTS, &state);
	switch (next_random(&state) % 4) {
	case 0:
		_exit(0);
	case 1:
		raise(SIGKILL);
		break;
	case 2:
		snprintf(text, sizeof(text), "%" PRIu64, next_random(&state) >> 8);
		execl("/proc/self/exe", "churn", text, "brief", NULL);
		return 1;
	}
	stopping = true;
	pthread_exit(NULL);
}

int main(int argc, char **argv)
{
	uint64_t seed;

	if (argc < 2 || argc > 3 || (argc == 3 && strcmp(argv[2], "brief"))) {
		fprintf(stderr, "usage: churn SEED [brief]\n");
		return 2;
	}
	seed = strtoull(argv[1], NULL, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	signal(SIGSEGV, on_fault);
	signal(SIGBUS, on_fault);
	place_slots();
	make_files();
	return argc == 3 ? brief(seed) : churn(seed);
}
