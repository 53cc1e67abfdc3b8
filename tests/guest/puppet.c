// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * puppet: a process that does to its address space exactly what it is told.
 *
 * It reads commands from standard input, one a line, and answers each with one
 * line on standard output: "ok ..." or "error ERRNO text".  End of input ends
 * it.  `puppet --help` lists the commands.
 *
 * It is linked statically and uses no heap and no stdio of its own, so that
 * between two commands its address space holds still: whatever a page-table
 * walk shows is what the commands made.
 *
 * Numbers are decimal or 0x hex, lengths are bytes.  A permission is "none" or
 * letters of "rwx".
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../kmod/ptscope.h"

#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25		/* Linux 6.1 */
#endif
#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102		/* Linux 6.13 */
#define MADV_GUARD_REMOVE 103
#endif
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
#ifndef MAP_HUGE_SHIFT
#define MAP_HUGE_SHIFT 26
#endif
#ifndef MFD_HUGE_SHIFT
#define MFD_HUGE_SHIFT 26
#endif

#define LINE_BYTES 16384
#define MAX_WORDS 32
#define MAX_CHILDREN 16
#define MAX_LOAD 4096
#define MAX_FRAMES 512

/* ---- answers ---------------------------------------------------------- */

static bool write_all(int fd, const char *data, size_t size)
{
	while (size) {
		ssize_t n = write(fd, data, size);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		data += n;
		size -= n;
	}
	return true;
}

static char answer_line[LINE_BYTES];

__attribute__((format(printf, 1, 2)))
static void ok(const char *format, ...)
{
	int used = snprintf(answer_line, sizeof(answer_line), "ok ");
	va_list args;

	va_start(args, format);
	used += vsnprintf(answer_line + used, sizeof(answer_line) - used - 1, format, args);
	va_end(args);
	while (used && answer_line[used - 1] == ' ')
		used--;
	answer_line[used++] = '\n';
	if (!write_all(STDOUT_FILENO, answer_line, used))
		_exit(1);
}

static void fail(int error, const char *text)
{
	int used = snprintf(answer_line, sizeof(answer_line) - 1, "error %d %s", error, text);

	if (used > (int)sizeof(answer_line) - 2)
		used = sizeof(answer_line) - 2;
	answer_line[used++] = '\n';
	if (!write_all(STDOUT_FILENO, answer_line, used))
		_exit(1);
}

static void fail_errno(const char *what)
{
	int error = errno;
	char text[256];

	snprintf(text, sizeof(text), "%s: %s", what, strerror(error));
	fail(error, text);
}

/* ---- words of a command ------------------------------------------------ */

static bool number(const char *word, uint64_t *value)
{
	char *end;

	errno = 0;
	*value = strtoull(word, &end, 0);
	return !errno && end != word && !*end;
}

static bool permission(const char *word, int *prot)
{
	*prot = PROT_NONE;
	if (!strcmp(word, "none"))
		return true;
	for (; *word; word++) {
		if (*word == 'r')
			*prot |= PROT_READ;
		else if (*word == 'w')
			*prot |= PROT_WRITE;
		else if (*word == 'x')
			*prot |= PROT_EXEC;
		else
			return false;
	}
	return true;
}

/* Numbers argv[first..first+count) into values; answers the error itself. */
static bool numbers(char **argv, int first, int count, uint64_t *values)
{
	for (int i = 0; i < count; i++) {
		if (!number(argv[first + i], &values[i])) {
			fail(EINVAL, "not a number");
			return false;
		}
	}
	return true;
}

static sigjmp_buf guard;
static volatile sig_atomic_t guarded;
static volatile uint64_t fault_address;

/* ---- memory ------------------------------------------------------------ */

/*
 * map length=N [kind=anon|shared] [fd=N offset=N [private]] [prot=rwx] [at=ADDR]
 *     [fixed|hint] [align=N] [huge=21|30] [populate] [noreserve] [growsdown] [locked]
 * map length=N kind=remap|insert|fault|huge fd=N [offset=N] ...
 *
 * The second form maps pages of /dev/ptscope-map that "known" made; the offset
 * is bytes into them.
 *
 * at= alone means MAP_FIXED_NOREPLACE; with "fixed" MAP_FIXED, with "hint" a
 * hint.  align= finds an aligned place by reserving more and giving back the
 * ends.
 */
static void do_map(int argc, char **argv)
{
	uint64_t length = 0, at = 0, align = 0, offset = 0, fd = 0, huge = 0, value;
	bool have_fd = false, fixed = false, hint = false, have_at = false, private = false;
	int prot = PROT_READ | PROT_WRITE, flags = 0;
	bool shared = false;
	char *place;
	static const struct { const char *name; uint64_t kind; } known_kinds[] = {
		{ "remap", PTSCOPE_MAP_REMAP }, { "insert", PTSCOPE_MAP_INSERT },
		{ "fault", PTSCOPE_MAP_FAULT }, { "huge", PTSCOPE_MAP_HUGE },
	};
	uint64_t known_kind = 0;
	const struct { const char *name; uint64_t *to; bool *seen; } values[] = {
		{ "length", &length, NULL }, { "at", &at, &have_at }, { "align", &align, NULL },
		{ "offset", &offset, NULL }, { "fd", &fd, &have_fd }, { "huge", &huge, NULL },
	};
	const struct { const char *name; bool *to; int flag; } words[] = {
		{ "fixed", &fixed, 0 }, { "hint", &hint, 0 }, { "private", &private, 0 },
		{ "populate", NULL, MAP_POPULATE }, { "noreserve", NULL, MAP_NORESERVE },
		{ "growsdown", NULL, MAP_GROWSDOWN }, { "locked", NULL, MAP_LOCKED },
	};

	for (int i = 1; i < argc; i++) {
		char *equals = strchr(argv[i], '=');
		bool known = false;

		if (equals) {
			*equals++ = 0;
			if (!strcmp(argv[i], "kind")) {
				known = !strcmp(equals, "anon") || !strcmp(equals, "shared");
				shared = !strcmp(equals, "shared");
				for (size_t j = 0; j < sizeof(known_kinds) / sizeof(*known_kinds); j++) {
					if (strcmp(equals, known_kinds[j].name))
						continue;
					known_kind = known_kinds[j].kind << PTSCOPE_MAP_SHIFT;
					known = true;
				}
			} else if (!strcmp(argv[i], "prot")) {
				known = permission(equals, &prot);
			}
			for (size_t j = 0; j < sizeof(values) / sizeof(*values); j++) {
				if (strcmp(argv[i], values[j].name) || !number(equals, &value))
					continue;
				*values[j].to = value;
				if (values[j].seen)
					*values[j].seen = true;
				known = true;
			}
		} else {
			for (size_t j = 0; j < sizeof(words) / sizeof(*words); j++) {
				if (strcmp(argv[i], words[j].name))
					continue;
				if (words[j].to)
					*words[j].to = true;
				flags |= words[j].flag;
				known = true;
			}
		}
		if (!known) {
			fail(EINVAL, "map: a word that is not understood");
			return;
		}
	}
	if (have_fd)
		flags |= private ? MAP_PRIVATE : MAP_SHARED;
	else
		flags |= MAP_ANONYMOUS | (shared ? MAP_SHARED : MAP_PRIVATE);
	if (huge)
		flags |= MAP_HUGETLB | (int)(huge << MAP_HUGE_SHIFT);
	if (fixed)
		flags |= MAP_FIXED;
	else if (have_at && !hint)
		flags |= MAP_FIXED_NOREPLACE;

	if (align && !have_at) {
		char *whole = mmap(NULL, length + align, PROT_NONE,
				   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		uint64_t start, head;

		if (whole == MAP_FAILED) {
			fail_errno("mmap of the reservation");
			return;
		}
		start = ((uint64_t)whole + align - 1) & ~(align - 1);
		head = start - (uint64_t)whole;
		if (head)
			munmap(whole, head);
		if (align - head)
			munmap((char *)start + length, align - head);
		at = start;
		flags |= MAP_FIXED;
	}
	place = mmap((void *)at, length, prot, flags, have_fd ? (int)fd : -1,
		     offset + known_kind);
	if (place == MAP_FAILED) {
		fail_errno("mmap");
		return;
	}
	ok("0x%lx", (unsigned long)place);
}

static void do_unmap(int argc, char **argv)
{
	uint64_t v[2];

	(void)argc;
	if (!numbers(argv, 1, 2, v))
		return;
	if (munmap((void *)v[0], v[1]))
		fail_errno("munmap");
	else
		ok(" ");
}

static void do_protect(int argc, char **argv)
{
	uint64_t v[2];
	int prot;

	(void)argc;
	if (!numbers(argv, 1, 2, v))
		return;
	if (!permission(argv[3], &prot))
		fail(EINVAL, "not a permission");
	else if (mprotect((void *)v[0], v[1], prot))
		fail_errno("mprotect");
	else
		ok(" ");
}

static void do_advise(int argc, char **argv)
{
	static const struct { const char *name; int advice; } table[] = {
		{ "normal", MADV_NORMAL }, { "random", MADV_RANDOM },
		{ "sequential", MADV_SEQUENTIAL }, { "willneed", MADV_WILLNEED },
		{ "dontneed", MADV_DONTNEED }, { "dontneed_locked", MADV_DONTNEED_LOCKED },
		{ "free", MADV_FREE }, { "remove", MADV_REMOVE },
		{ "dontfork", MADV_DONTFORK }, { "dofork", MADV_DOFORK },
		{ "wipeonfork", MADV_WIPEONFORK }, { "keeponfork", MADV_KEEPONFORK },
		{ "mergeable", MADV_MERGEABLE }, { "unmergeable", MADV_UNMERGEABLE },
		{ "hugepage", MADV_HUGEPAGE }, { "nohugepage", MADV_NOHUGEPAGE },
		{ "collapse", MADV_COLLAPSE }, { "dontdump", MADV_DONTDUMP },
		{ "dodump", MADV_DODUMP }, { "cold", MADV_COLD }, { "pageout", MADV_PAGEOUT },
		{ "populate_read", MADV_POPULATE_READ }, { "populate_write", MADV_POPULATE_WRITE },
		{ "guard_install", MADV_GUARD_INSTALL }, { "guard_remove", MADV_GUARD_REMOVE },
		{ "hwpoison", MADV_HWPOISON },
	};
	uint64_t v[2];

	(void)argc;
	if (!numbers(argv, 1, 2, v))
		return;
	for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++) {
		if (strcmp(argv[3], table[i].name))
			continue;
		if (table[i].advice == MADV_HWPOISON) {
			/* The kernel may send SIGBUS to whom it takes the page from. */
			guarded = 1;
			if (sigsetjmp(guard, 1)) {
				guarded = 0;
				ok(" ");
				return;
			}
		}
		if (madvise((void *)v[0], v[1], table[i].advice))
			fail_errno("madvise");
		else
			ok(" ");
		guarded = 0;
		return;
	}
	fail(EINVAL, "no such advice");
}

/* remap ADDR OLD NEW [maymove] [dontunmap] [to=ADDR] */
static void do_remap(int argc, char **argv)
{
	uint64_t v[3], to = 0;
	int flags = 0;
	void *place;

	if (!numbers(argv, 1, 3, v))
		return;
	for (int i = 4; i < argc; i++) {
		if (!strcmp(argv[i], "maymove")) {
			flags |= MREMAP_MAYMOVE;
		} else if (!strcmp(argv[i], "dontunmap")) {
			flags |= MREMAP_DONTUNMAP | MREMAP_MAYMOVE;
		} else if (!strncmp(argv[i], "to=", 3) && number(argv[i] + 3, &to)) {
			flags |= MREMAP_FIXED | MREMAP_MAYMOVE;
		} else {
			fail(EINVAL, "remap: a word that is not understood");
			return;
		}
	}
	place = mremap((void *)v[0], v[1], v[2], flags, (void *)to);
	if (place == MAP_FAILED)
		fail_errno("mremap");
	else
		ok("0x%lx", (unsigned long)place);
}

static void do_lock(int argc, char **argv)
{
	bool unlock = !strcmp(argv[0], "munlock");
	uint64_t v[2];
	int result;

	if (!numbers(argv, 1, 2, v))
		return;
	if (unlock)
		result = munlock((void *)v[0], v[1]);
	else
		result = mlock2((void *)v[0], v[1],
				argc > 3 && !strcmp(argv[3], "onfault") ? MLOCK_ONFAULT : 0);
	if (result)
		fail_errno(argv[0]);
	else
		ok(" ");
}

static void do_brk(int argc, char **argv)
{
	uint64_t old = syscall(SYS_brk, 0), grow = 0, now;

	if (argc > 1 && !numbers(argv, 1, 1, &grow))
		return;
	now = grow ? (uint64_t)syscall(SYS_brk, old + grow) : old;
	if (now < old + grow)
		fail(ENOMEM, "brk: not granted");
	else
		ok("0x%lx 0x%lx", (unsigned long)old, (unsigned long)now);
}

/* ---- accesses ---------------------------------------------------------- */

static void on_fault(int sig, siginfo_t *info, void *context)
{
	(void)context;
	if (!guarded)
		_exit(128 + sig);
	fault_address = (uint64_t)info->si_addr;
	siglongjmp(guard, sig);
}

static void fault_answer(int sig)
{
	char text[96];

	snprintf(text, sizeof(text), "%s at 0x%lx", sig == SIGSEGV ? "SIGSEGV" : "SIGBUS",
		 (unsigned long)fault_address);
	fail(EFAULT, text);
}

/*
 * touch read|write|exec ADDR [COUNT [STRIDE]]: one byte each; write writes 1.
 * It does not read first: a read would fault in the zero page, and a write to
 * the huge zero page gives small pages.
 */
static void do_touch(int argc, char **argv)
{
	uint64_t v[3] = { 0, 1, (uint64_t)sysconf(_SC_PAGESIZE) };
	volatile uint64_t sum = 0;
	int sig;

	if (!numbers(argv, 2, argc - 2, v))
		return;
	if (strcmp(argv[1], "read") && strcmp(argv[1], "write") && strcmp(argv[1], "exec")) {
		fail(EINVAL, "touch: read, write or exec");
		return;
	}
	guarded = 1;
	sig = sigsetjmp(guard, 1);
	if (sig) {
		guarded = 0;
		fault_answer(sig);
		return;
	}
	for (uint64_t i = 0; i < v[1]; i++) {
		volatile unsigned char *byte = (volatile unsigned char *)(v[0] + i * v[2]);

		if (*argv[1] == 'r')
			sum += *byte;
		else if (*argv[1] == 'w')
			*byte = 1;
		else
			((void (*)(void))byte)();
	}
	guarded = 0;
	ok("%lu %lu", (unsigned long)v[1], (unsigned long)sum);
}

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return -1;
}

static void do_store(int argc, char **argv)
{
	const char *hex = argv[2];
	size_t digits = strlen(hex);
	uint64_t address;
	int sig;

	(void)argc;
	if (!numbers(argv, 1, 1, &address))
		return;
	if (digits % 2 || strspn(hex, "0123456789abcdef") != digits) {
		fail(EINVAL, "not bytes in hex");
		return;
	}
	guarded = 1;
	sig = sigsetjmp(guard, 1);
	if (sig) {
		guarded = 0;
		fault_answer(sig);
		return;
	}
	for (size_t i = 0; i < digits / 2; i++)
		((volatile unsigned char *)address)[i] =
			hex_digit(hex[2 * i]) << 4 | hex_digit(hex[2 * i + 1]);
	guarded = 0;
	ok("%zu", digits / 2);
}

static void do_load(int argc, char **argv)
{
	static char text[2 * MAX_LOAD + 1];
	uint64_t v[2];
	int sig;

	(void)argc;
	if (!numbers(argv, 1, 2, v))
		return;
	if (v[1] > MAX_LOAD) {
		fail(E2BIG, "at most 4096 bytes at a time");
		return;
	}
	guarded = 1;
	sig = sigsetjmp(guard, 1);
	if (sig) {
		guarded = 0;
		fault_answer(sig);
		return;
	}
	for (uint64_t i = 0; i < v[1]; i++) {
		unsigned char byte = ((volatile unsigned char *)v[0])[i];

		text[2 * i] = "0123456789abcdef"[byte >> 4];
		text[2 * i + 1] = "0123456789abcdef"[byte & 15];
	}
	text[2 * v[1]] = 0;
	guarded = 0;
	ok("%s", text);
}

/* A function that only returns, for "touch exec". */
static const unsigned char return_code[] = {
#if defined(__x86_64__)
	0xc3,
#elif defined(__aarch64__)
	0xc0, 0x03, 0x5f, 0xd6,
#elif defined(__riscv)
	0x67, 0x80, 0x00, 0x00,
#else
#error "which instruction returns here?"
#endif
};

static void do_code(int argc, char **argv)
{
	uint64_t address;
	int sig;

	(void)argc;
	if (!numbers(argv, 1, 1, &address))
		return;
	guarded = 1;
	sig = sigsetjmp(guard, 1);
	if (sig) {
		guarded = 0;
		fault_answer(sig);
		return;
	}
	for (size_t i = 0; i < sizeof(return_code); i++)
		((volatile unsigned char *)address)[i] = return_code[i];
	__builtin___clear_cache((char *)address, (char *)address + sizeof(return_code));
	guarded = 0;
	ok("%zu", sizeof(return_code));
}

/* The lowest address of "bytes" of stack, each page of it written. */
__attribute__((noinline))
static uint64_t grow_stack(uint64_t bytes)
{
	volatile char frame[1024];

	frame[0] = 1;
	if (bytes <= sizeof(frame))
		return (uint64_t)&frame[0];
	uint64_t lowest = grow_stack(bytes - sizeof(frame));

	frame[1] = frame[0];		/* keeps the frame: no tail call */
	return lowest;
}

static void do_stack(int argc, char **argv)
{
	uint64_t bytes[1] = { 0 };
	uint64_t lowest;
	int sig;

	if (argc > 1 && !numbers(argv, 1, 1, bytes))
		return;
	guarded = 1;
	sig = sigsetjmp(guard, 1);
	if (sig) {
		guarded = 0;
		fault_answer(sig);
		return;
	}
	lowest = grow_stack(bytes[0]);
	guarded = 0;
	ok("0x%lx", (unsigned long)lowest);
}

/* ---- what the program itself has --------------------------------------- */

static const char read_only_word[] = "a word in read-only data";
static char written_word[] = "a word in data";

__attribute__((noinline)) static void text_function(void)
{
	__asm__ volatile("");
}

static void do_where(int argc, char **argv)
{
	const struct { const char *name; uint64_t address; } places[] = {
		{ "text", (uint64_t)text_function },
		{ "rodata", (uint64_t)read_only_word },
		{ "data", (uint64_t)written_word },
		{ "bss", (uint64_t)answer_line },
		{ "stack", (uint64_t)&argc },
	};

	for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++) {
		if (!strcmp(argv[1], places[i].name)) {
			ok("0x%lx", (unsigned long)places[i].address);
			return;
		}
	}
	fail(EINVAL, "text, rodata, data, bss or stack");
}

static void do_pid(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	ok("%d %ld", getpid(), syscall(SYS_gettid));
}

/* ---- files ------------------------------------------------------------- */

static void do_open(int argc, char **argv)
{
	bool writes = argc > 2 && strchr(argv[2], 'w');
	bool creates = argc > 2 && strchr(argv[2], 'c');
	int fd = open(argv[1], (writes ? O_RDWR : O_RDONLY) | (creates ? O_CREAT : 0), 0600);

	if (fd < 0)
		fail_errno("open");
	else
		ok("%d", fd);
}

/* Reads a file to its end into memory that must be there; nothing else is touched. */
static void do_slurp(int argc, char **argv)
{
	uint64_t v[2], used = 0;
	ssize_t n = 0;
	int fd;

	(void)argc;
	if (!numbers(argv, 2, 2, v))
		return;
	fd = open(argv[1], O_RDONLY | O_CLOEXEC);
	if (fd < 0) {
		fail_errno("open");
		return;
	}
	while (used < v[1]) {
		n = read(fd, (char *)v[0] + used, v[1] - used);
		if (n <= 0)
			break;
		used += n;
	}
	if (n < 0)
		fail_errno("read");
	else if (used == v[1])
		fail(E2BIG, "slurp: the file is longer");
	else
		ok("%lu", (unsigned long)used);
	close(fd);
}

static void do_memfd(int argc, char **argv)
{
	uint64_t v[2] = { 0, 0 };
	int fd;

	if (!numbers(argv, 1, argc - 1, v))
		return;
	fd = memfd_create("puppet", v[1] ? MFD_HUGETLB | (unsigned int)(v[1] << MFD_HUGE_SHIFT) : 0);
	if (fd < 0)
		fail_errno("memfd_create");
	else if (ftruncate(fd, v[0]))
		fail_errno("ftruncate");
	else
		ok("%d", fd);
}

static void do_truncate(int argc, char **argv)
{
	uint64_t v[2];

	(void)argc;
	if (!numbers(argv, 1, 2, v))
		return;
	if (ftruncate(v[0], v[1]))
		fail_errno("ftruncate");
	else
		ok(" ");
}

static void do_close(int argc, char **argv)
{
	uint64_t fd;

	(void)argc;
	if (!numbers(argv, 1, 1, &fd))
		return;
	if (close(fd))
		fail_errno("close");
	else
		ok(" ");
}

/* ---- frames that are known: /dev/ptscope-map ---------------------------- */

static void do_known(int argc, char **argv)
{
	int fd = open("/dev/ptscope-map", O_RDWR | O_CLOEXEC);

	(void)argc;
	if (fd < 0) {
		fail_errno("open");
	} else if (write(fd, argv[1], strlen(argv[1])) < 0) {
		fail_errno("write");
		close(fd);
	} else {
		ok("%d", fd);
	}
}

static void do_frames(int argc, char **argv)
{
	static uint64_t addresses[MAX_FRAMES];
	static char text[LINE_BYTES - 16];
	uint64_t v[3];
	size_t used = 0;
	ssize_t n;

	(void)argc;
	if (!numbers(argv, 1, 3, v))
		return;
	if (v[2] > MAX_FRAMES) {
		fail(E2BIG, "frames: too many at a time");
		return;
	}
	n = pread(v[0], addresses, v[2] * sizeof(*addresses), v[1] * sizeof(*addresses));
	if (n < 0) {
		fail_errno("pread");
		return;
	}
	text[0] = 0;
	for (size_t i = 0; i < n / sizeof(*addresses); i++)
		used += snprintf(text + used, sizeof(text) - used, "%s0x%llx", i ? " " : "",
				 (unsigned long long)addresses[i]);
	ok("%s", text);
}

/* ---- userfaultfd, protection keys, CPU --------------------------------- */

/*
 * uffd ADDR LENGTH register|wp|unwp.  Registered for write protection only, and
 * nobody serves the faults: do not write to what is protected.
 */
static void do_uffd(int argc, char **argv)
{
	static int fd = -1;
	uint64_t v[2];
	int result;

	(void)argc;
	if (!numbers(argv, 1, 2, v))
		return;
	if (fd < 0) {
		static const uint64_t features[] = {
			UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_WP_HUGETLBFS_SHMEM,
			UFFD_FEATURE_PAGEFAULT_FLAG_WP,	/* before Linux 5.19 */
		};

		for (size_t i = 0; fd < 0 && i < sizeof(features) / sizeof(*features); i++) {
			struct uffdio_api api = { .api = UFFD_API, .features = features[i] };

			fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
			if (fd < 0 || !ioctl(fd, UFFDIO_API, &api))
				break;
			close(fd);
			fd = -1;
		}
		if (fd < 0) {
			fail_errno("userfaultfd");
			return;
		}
	}
	if (!strcmp(argv[3], "register")) {
		struct uffdio_register request = {
			.range = { .start = v[0], .len = v[1] },
			.mode = UFFDIO_REGISTER_MODE_WP,
		};

		result = ioctl(fd, UFFDIO_REGISTER, &request);
	} else {
		struct uffdio_writeprotect request = {
			.range = { .start = v[0], .len = v[1] },
			.mode = strcmp(argv[3], "unwp") ? UFFDIO_WRITEPROTECT_MODE_WP : 0,
		};

		result = ioctl(fd, UFFDIO_WRITEPROTECT, &request);
	}
	if (result)
		fail_errno("userfaultfd");
	else
		ok(" ");
}

static void do_pkey(int argc, char **argv)
{
	uint64_t v[2];
	int prot, key;

	(void)argc;
	if (!numbers(argv, 1, 2, v))
		return;
	if (!permission(argv[3], &prot)) {
		fail(EINVAL, "not a permission");
		return;
	}
	key = syscall(SYS_pkey_alloc, 0, 0);
	if (key < 0)
		fail_errno("pkey_alloc");
	else if (syscall(SYS_pkey_mprotect, v[0], v[1], prot, key))
		fail_errno("pkey_mprotect");
	else
		ok("%d", key);
}

static bool pin(uint64_t cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	return !sched_setaffinity(0, sizeof(set), &set);
}

static void do_pin(int argc, char **argv)
{
	uint64_t cpu;

	(void)argc;
	if (!numbers(argv, 1, 1, &cpu))
		return;
	if (!pin(cpu))
		fail_errno("sched_setaffinity");
	else
		ok(" ");
}

static volatile sig_atomic_t stop_spinning;

static void on_stop(int sig)
{
	(void)sig;
	stop_spinning = 1;
}

/*
 * spin ADDR [CPU]: pins, touches, answers, then reads the byte in a loop
 * without any system call until SIGUSR1.
 */
static void do_spin(int argc, char **argv)
{
	uint64_t v[2] = { 0, 0 };
	volatile unsigned char *byte;
	int sig;

	if (!numbers(argv, 1, argc - 1, v))
		return;
	if (argc > 2 && !pin(v[1])) {
		fail_errno("sched_setaffinity");
		return;
	}
	byte = (volatile unsigned char *)v[0];
	guarded = 1;
	sig = sigsetjmp(guard, 1);
	if (sig) {
		guarded = 0;
		fault_answer(sig);
		return;
	}
	(void)*byte;
	guarded = 0;
	stop_spinning = 0;
	ok("%d", getpid());
	while (!stop_spinning)
		(void)*byte;
}

static void do_prctl(int argc, char **argv)
{
	uint64_t v[2] = { 0, 0 };

	if (!numbers(argv, 1, argc - 1, v))
		return;
	if (prctl(v[0], v[1], 0, 0, 0) < 0)
		fail_errno("prctl");
	else
		ok(" ");
}

/* ---- processes and threads --------------------------------------------- */

struct child {
	pid_t pid;
	int to, from;
};

static struct child children[MAX_CHILDREN];

static struct child *find_child(const char *word)
{
	uint64_t pid;

	if (number(word, &pid))
		for (int i = 0; i < MAX_CHILDREN; i++)
			if (pid && children[i].pid == (pid_t)pid)
				return &children[i];
	fail(ECHILD, "no such child");
	return NULL;
}

static void forget_input(void);

static void do_fork(int argc, char **argv)
{
	struct child *slot = NULL;
	int to[2], from[2];
	pid_t pid;

	(void)argc;
	(void)argv;
	for (int i = 0; i < MAX_CHILDREN && !slot; i++)
		if (!children[i].pid)
			slot = &children[i];
	if (!slot) {
		fail(EAGAIN, "too many children");
		return;
	}
	if (pipe2(to, O_CLOEXEC) || pipe2(from, O_CLOEXEC)) {
		fail_errno("pipe");
		return;
	}
	pid = fork();
	if (pid < 0) {
		fail_errno("fork");
		return;
	}
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(to[0], STDIN_FILENO);
		dup2(from[1], STDOUT_FILENO);
		for (int i = 0; i < MAX_CHILDREN; i++) {
			if (children[i].pid) {
				close(children[i].to);
				close(children[i].from);
				children[i].pid = 0;
			}
		}
		close(to[0]);
		close(to[1]);
		close(from[0]);
		close(from[1]);
		forget_input();
		return;			/* to the command loop, with its own pipes */
	}
	close(to[0]);
	close(from[1]);
	*slot = (struct child){ .pid = pid, .to = to[1], .from = from[0] };
	ok("%d", pid);
}

/* child PID COMMAND...: the line goes to the child and its answer comes back. */
static void do_child(int argc, char **argv)
{
	static char line[LINE_BYTES];
	struct child *child = find_child(argv[1]);
	size_t used = 0;

	if (!child)
		return;
	for (int i = 2; i < argc; i++)
		used += snprintf(line + used, sizeof(line) - used, "%s%s", i > 2 ? " " : "",
				 argv[i]);
	line[used++] = '\n';
	if (!write_all(child->to, line, used)) {
		fail(EPIPE, "the child is gone");
		return;
	}
	for (used = 0; used < sizeof(line); used++) {
		ssize_t n = read(child->from, line + used, 1);

		if (n < 0 && errno == EINTR) {
			used--;
			continue;
		}
		if (n <= 0) {
			fail(EPIPE, "the child is gone");
			return;
		}
		if (line[used] == '\n') {
			if (!write_all(STDOUT_FILENO, line, used + 1))
				_exit(1);
			return;
		}
	}
	fail(EMSGSIZE, "answer of the child too long");
}

/* wait PID: reaps.  zombie PID: waits until it has exited, and leaves it a zombie. */
static void do_wait(int argc, char **argv)
{
	bool reap = !strcmp(argv[0], "wait");
	struct child *child = find_child(argv[1]);
	siginfo_t info = { 0 };

	(void)argc;
	if (!child)
		return;
	while (waitid(P_PID, child->pid, &info, WEXITED | (reap ? 0 : WNOWAIT))) {
		if (errno == EINTR)
			continue;
		fail_errno("waitid");
		return;
	}
	if (reap) {
		close(child->to);
		close(child->from);
		child->pid = 0;
	}
	ok("%s %d", info.si_code == CLD_EXITED ? "exited" : "killed", info.si_status);
}

static void do_exit(int argc, char **argv)
{
	uint64_t code = 0;

	if (argc > 1 && !numbers(argv, 1, 1, &code))
		return;
	ok(" ");
	_exit(code);
}

/* exec: this program anew in the same process; the new one answers. */
static void do_exec(int argc, char **argv)
{
	char *arguments[] = { "puppet", "--execed", NULL };

	(void)argc;
	(void)argv;
	execv("/proc/self/exe", arguments);
	fail_errno("execv");
}

static void *idle(void *unused)
{
	(void)unused;
	for (;;)
		pause();
	return NULL;
}

static void do_thread(int argc, char **argv)
{
	pthread_t thread;
	int error = pthread_create(&thread, NULL, idle, NULL);

	(void)argc;
	(void)argv;
	if (error)
		fail(error, "pthread_create");
	else
		ok(" ");
}

static void serve(void);
static pid_t departing;

/* Waits for the leader to be a zombie, answers in its place and serves on. */
static void *succeed_leader(void *unused)
{
	char path[64], stat[256];

	(void)unused;
	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", departing);
	for (;;) {
		int fd = open(path, O_RDONLY | O_CLOEXEC);
		ssize_t n = fd < 0 ? -1 : read(fd, stat, sizeof(stat) - 1);
		char *after;

		if (fd >= 0)
			close(fd);
		if (n <= 0)
			break;
		stat[n] = 0;
		after = strrchr(stat, ')');
		if (after && after[1] == ' ' && after[2] == 'Z')
			break;
		usleep(1000);
	}
	ok("%ld", syscall(SYS_gettid));
	serve();
	_exit(0);
}

static void do_leader_exit(int argc, char **argv)
{
	pthread_t thread;
	int error;

	(void)argc;
	(void)argv;
	departing = getpid();
	if (syscall(SYS_gettid) != departing) {
		fail(ESRCH, "the leader has exited already");
		return;
	}
	error = pthread_create(&thread, NULL, succeed_leader, NULL);
	if (error) {
		fail(error, "pthread_create");
		return;
	}
	syscall(SYS_exit, 0);		/* this thread only */
}

/* ---- the loop ---------------------------------------------------------- */

struct command {
	const char *name;
	int least, most;		/* words, the name included */
	void (*run)(int argc, char **argv);
	const char *usage;
};

static const struct command commands[] = {
	{ "pid", 1, 1, do_pid, "-> PID TID" },
	{ "where", 2, 2, do_where, "text|rodata|data|bss|stack -> ADDR" },
	{ "map", 2, MAX_WORDS, do_map,
	  "length=N [kind=anon|shared|remap|insert|fault|huge] [fd=N] [private] [offset=N] [prot=P] [at=ADDR] [fixed|hint] "
	  "[align=N] [huge=21|30] [populate] [noreserve] [growsdown] [locked] -> ADDR" },
	{ "known", 2, 2, do_known, "PAGES -> FD" },
	{ "frames", 4, 4, do_frames, "FD FIRST COUNT -> physical address of each page" },
	{ "unmap", 3, 3, do_unmap, "ADDR LENGTH" },
	{ "protect", 4, 4, do_protect, "ADDR LENGTH PERMISSION" },
	{ "advise", 4, 4, do_advise, "ADDR LENGTH NAME" },
	{ "remap", 4, 7, do_remap, "ADDR OLD NEW [maymove] [dontunmap] [to=ADDR] -> ADDR" },
	{ "mlock", 3, 4, do_lock, "ADDR LENGTH [onfault]" },
	{ "munlock", 3, 3, do_lock, "ADDR LENGTH" },
	{ "brk", 1, 2, do_brk, "[GROW] -> OLD NEW" },
	{ "touch", 3, 5, do_touch, "read|write|exec ADDR [COUNT [STRIDE]] -> COUNT SUM" },
	{ "store", 3, 3, do_store, "ADDR HEX" },
	{ "load", 3, 3, do_load, "ADDR LENGTH -> HEX" },
	{ "code", 2, 2, do_code, "ADDR: writes a function that returns" },
	{ "stack", 1, 2, do_stack, "[BYTES] -> lowest address written" },
	{ "open", 2, 3, do_open, "PATH [wc] -> FD" },
	{ "slurp", 4, 4, do_slurp, "PATH ADDR LENGTH -> bytes read" },
	{ "memfd", 2, 3, do_memfd, "LENGTH [HUGE] -> FD" },
	{ "truncate", 3, 3, do_truncate, "FD LENGTH" },
	{ "close", 2, 2, do_close, "FD" },
	{ "uffd", 4, 4, do_uffd, "ADDR LENGTH register|wp|unwp" },
	{ "pkey", 4, 4, do_pkey, "ADDR LENGTH PERMISSION -> KEY" },
	{ "prctl", 2, 3, do_prctl, "OPTION [VALUE]" },
	{ "pin", 2, 2, do_pin, "CPU" },
	{ "spin", 2, 3, do_spin, "ADDR [CPU]: until SIGUSR1" },
	{ "fork", 1, 1, do_fork, "-> PID" },
	{ "child", 3, MAX_WORDS, do_child, "PID COMMAND... -> what the child answers" },
	{ "wait", 2, 2, do_wait, "PID -> exited|killed STATUS" },
	{ "zombie", 2, 2, do_wait, "PID -> the same, not reaped" },
	{ "thread", 1, 1, do_thread, "one more thread, idle" },
	{ "leader-exit", 1, 1, do_leader_exit, "a thread goes on alone -> TID" },
	{ "exec", 1, 1, do_exec, "this program anew -> PID" },
	{ "exit", 1, 2, do_exit, "[CODE]" },
};

static char input[LINE_BYTES];
static size_t input_used;

static void forget_input(void)
{
	input_used = 0;
}

static void run_line(char *line)
{
	char *words[MAX_WORDS + 1], *rest = line, *word;
	int count = 0;

	while ((word = strsep(&rest, " \t")) != NULL) {
		if (!*word)
			continue;
		if (count == MAX_WORDS) {
			fail(E2BIG, "too many words");
			return;
		}
		words[count++] = word;
	}
	words[count] = NULL;
	if (!count) {
		fail(EINVAL, "an empty command");
		return;
	}
	for (size_t i = 0; i < sizeof(commands) / sizeof(*commands); i++) {
		if (strcmp(words[0], commands[i].name))
			continue;
		if (count < commands[i].least || count > commands[i].most)
			fail(EINVAL, commands[i].usage);
		else
			commands[i].run(count, words);
		return;
	}
	fail(ENOSYS, "no such command");
}

static void serve(void)
{
	static char line[LINE_BYTES];

	for (;;) {
		char *end = memchr(input, '\n', input_used);
		ssize_t n;

		if (end) {
			size_t size = end - input;

			memcpy(line, input, size);
			line[size] = 0;
			input_used -= size + 1;
			memmove(input, end + 1, input_used);
			run_line(line);
			continue;
		}
		if (input_used == sizeof(input))
			return;
		n = read(STDIN_FILENO, input + input_used, sizeof(input) - input_used);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return;
		input_used += n;
	}
}

int main(int argc, char **argv)
{
	static char alternate[65536];
	stack_t stack = { .ss_sp = alternate, .ss_size = sizeof(alternate) };
	struct sigaction fault = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK };
	struct sigaction stop = { .sa_handler = on_stop };

	if (argc > 1 && !strcmp(argv[1], "--help")) {
		for (size_t i = 0; i < sizeof(commands) / sizeof(*commands); i++)
			dprintf(STDOUT_FILENO, "%-12s %s\n", commands[i].name, commands[i].usage);
		return 0;
	}
	signal(SIGPIPE, SIG_IGN);
	sigaltstack(&stack, NULL);
	sigaction(SIGSEGV, &fault, NULL);
	sigaction(SIGBUS, &fault, NULL);
	sigaction(SIGUSR1, &stop, NULL);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (argc > 1 && !strcmp(argv[1], "--execed"))
		ok("%d", getpid());
	serve();
	return 0;
}
