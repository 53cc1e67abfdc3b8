// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The process that `ptscope model` predicts. It does what it is told and nothing else: linked
 * statically, without heap or stdio, so that its address space holds still between commands.
 *
 *	puppet IN:OUT IN:OUT ...
 *
 * Each pair of descriptors is a slot. The process of slot 0 is the stage: it starts the processes
 * that play, each in a slot of its own, and collects them. A process reads commands from IN, one a
 * line: a name of the table below and numbers. It answers each with a line "RESULT ERRNO", or
 * "signal NUMBER" where the access that was asked for ended with one.
 *
 * Only whoever commands has the writing ends of IN: when it is gone, whatever way, every read
 * gives end of file and every process ends.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_SLOTS 8
#define MAX_NUMBERS 6
#define LINE_BYTES 4096

#ifndef UFFDIO_CONTINUE
#define UFFDIO_CONTINUE _IOWR(UFFDIO, 0x07, struct { __u64 v[4]; })
#endif

static int slot_in[MAX_SLOTS], slot_out[MAX_SLOTS], slots, slot;
static long page_bytes;
static char input[LINE_BYTES];
static size_t input_used;
static sigjmp_buf guard;
static volatile int guarded;
/* What userfaultfd copies from. */
static char source_page[65536] __attribute__((aligned(65536)));

/* ---- text ---------------------------------------------------------------- */

static char *put_number(char *to, long value)
{
	unsigned long rest = value < 0 ? -(unsigned long)value : (unsigned long)value;
	char digits[24];
	int n = 0;

	if (value < 0)
		*to++ = '-';
	do {
		digits[n++] = '0' + rest % 10;
		rest /= 10;
	} while (rest);
	while (n)
		*to++ = digits[--n];
	return to;
}

static void send_line(const char *line, size_t size)
{
	while (size) {
		ssize_t n = write(slot_out[slot], line, size);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			_exit(1);
		line += n;
		size -= n;
	}
}

static void answer(long result, int error)
{
	char line[64], *end = put_number(line, result);

	*end++ = ' ';
	end = put_number(end, error);
	*end++ = '\n';
	send_line(line, end - line);
}

static void answer_signal(int number)
{
	char line[64], *end;

	memcpy(line, "signal ", 7);
	end = put_number(line + 7, number);
	*end++ = '\n';
	send_line(line, end - line);
}

/* ---- protection keys ------------------------------------------------------ */

/*
 * A signal handler starts with the rights that a new thread has, and only its return would bring
 * those of pkey_alloc back; ours jumps instead.
 */
static int has_keys;

static unsigned int key_rights(void)
{
	unsigned int low = 0;
#ifdef __x86_64__
	unsigned int high;

	if (has_keys) /* rdpkru */
		__asm__ volatile(".byte 0x0f, 0x01, 0xee" : "=a"(low), "=d"(high) : "c"(0));
#endif
	return low;
}

static void set_key_rights(unsigned int rights)
{
#ifdef __x86_64__
	if (has_keys) /* wrpkru */
		__asm__ volatile(".byte 0x0f, 0x01, 0xef" : : "a"(rights), "c"(0), "d"(0));
#else
	(void)rights;
#endif
}

static void do_pkey_alloc(const unsigned long *v)
{
	long key = syscall(SYS_pkey_alloc, v[0], v[1]);

	has_keys |= key > 0;
	answer(key, key < 0 ? errno : 0);
}

/* ---- commands ------------------------------------------------------------ */

static void on_signal(int number)
{
	if (!guarded)
		_exit(128 + number);
	siglongjmp(guard, number);
}

/* Touch "count" pages from an address on, a byte each. */
static void touch(const unsigned long *v, int writes)
{
	volatile unsigned int rights = key_rights();
	int number = sigsetjmp(guard, 1);

	if (number) {
		set_key_rights(rights);
		guarded = 0;
		answer_signal(number);
		return;
	}
	guarded = 1;
	for (unsigned long i = 0; i < v[1]; i++) {
		volatile unsigned char *byte = (volatile unsigned char *)(v[0] + i * page_bytes);

		if (writes)
			*byte = 1;
		else
			(void)*byte;
	}
	guarded = 0;
	answer(0, 0);
}

static void do_read(const unsigned long *v)
{
	touch(v, 0);
}

static void do_write(const unsigned long *v)
{
	touch(v, 1);
}

static void move_in(int to)
{
	slot = to;
	input_used = 0;
}

/* fork SLOT: the child is one of the stage, which collects it. */
static void do_fork(const unsigned long *v)
{
	unsigned long flags = SIGCHLD | (slot ? CLONE_PARENT : 0);
	long pid = syscall(SYS_clone, flags, 0, 0, 0, 0);

	if (pid)
		answer(pid, pid < 0 ? errno : 0);
	else
		move_in(v[0]);
}

static void do_exit(const unsigned long *v)
{
	_exit(v[0]);
}

static void do_reap(const unsigned long *v)
{
	int status = 0;
	long pid = waitpid(v[0], &status, __WALL);

	answer(pid < 0 ? -1 : status, pid < 0 ? errno : 0);
}

static void do_memfd(const unsigned long *v)
{
	long fd = syscall(SYS_memfd_create, "model", v[1]);

	if (fd >= 0 && ftruncate(fd, v[0])) {
		int error = errno;

		close(fd);
		errno = error;
		fd = -1;
	}
	answer(fd, fd < 0 ? errno : 0);
}

/* move ADDRESS NODE: the node the page is on afterwards, or a negative error of its own. */
static void do_move(const unsigned long *v)
{
	void *pages[1] = { (void *)v[0] };
	int nodes[1] = { (int)v[1] }, status[1] = { -EAGAIN };
	long result = syscall(SYS_move_pages, 0, 1, pages, nodes, status, 2 /* MPOL_MF_MOVE */);

	answer(result < 0 ? -1 : status[0], result < 0 ? errno : 0);
}

/* known PAGES: that many of /dev/ptscope-map, as a descriptor. */
static void do_known(const unsigned long *v)
{
	char text[24];
	int fd = open("/dev/ptscope-map", O_RDWR);
	ssize_t size = put_number(text, v[0]) - text;

	if (fd >= 0 && write(fd, text, size) != size) {
		int error = errno;

		close(fd);
		errno = error;
		fd = -1;
	}
	answer(fd, fd < 0 ? errno : 0);
}

/* known-frame FD PAGE: the physical address. */
static void do_known_frame(const unsigned long *v)
{
	uint64_t address = 0;
	int error = pread(v[0], &address, sizeof(address), v[1] * sizeof(address)) ==
			sizeof(address) ? 0 : errno ? errno : EIO;

	answer(address, error);
}

static void do_uffd(const unsigned long *v)
{
	struct uffdio_api api = { .api = UFFD_API, .features = v[0] };
	long fd = syscall(SYS_userfaultfd, 1 /* UFFD_USER_MODE_ONLY */);

	if (fd >= 0 && ioctl(fd, UFFDIO_API, &api)) {
		int error = errno;

		close(fd);
		errno = error;
		fd = -1;
	}
	answer(fd, fd < 0 ? errno : 0);
}

static void answer_ioctl(unsigned long fd, unsigned long request, void *argument)
{
	int result = ioctl(fd, request, argument);

	answer(result, result < 0 ? errno : 0);
}

/* uffd-register FD START LENGTH MODE */
static void do_uffd_register(const unsigned long *v)
{
	struct uffdio_register arg = { .range = { v[1], v[2] }, .mode = v[3] };

	answer_ioctl(v[0], UFFDIO_REGISTER, &arg);
}

/* uffd-unregister FD START LENGTH */
static void do_uffd_unregister(const unsigned long *v)
{
	struct uffdio_range arg = { v[1], v[2] };

	answer_ioctl(v[0], UFFDIO_UNREGISTER, &arg);
}

/* uffd-wp FD START LENGTH ON */
static void do_uffd_wp(const unsigned long *v)
{
	struct uffdio_writeprotect arg = { .range = { v[1], v[2] }, .mode = v[3] };

	answer_ioctl(v[0], UFFDIO_WRITEPROTECT, &arg);
}

/* uffd-copy FD START LENGTH MODE, up to 64 KiB */
static void do_uffd_copy(const unsigned long *v)
{
	struct uffdio_copy arg = { .dst = v[1], .src = (unsigned long)source_page, .len = v[2],
				   .mode = v[3] };

	answer_ioctl(v[0], UFFDIO_COPY, &arg);
}

/* uffd-zero FD START LENGTH */
static void do_uffd_zero(const unsigned long *v)
{
	struct uffdio_zeropage arg = { .range = { v[1], v[2] } };

	answer_ioctl(v[0], UFFDIO_ZEROPAGE, &arg);
}

/* uffd-continue FD START LENGTH */
static void do_uffd_continue(const unsigned long *v)
{
	struct uffdio_continue arg = { .range = { v[1], v[2] } };

	answer_ioctl(v[0], UFFDIO_CONTINUE, &arg);
}

static const struct {
	const char *name;
	void (*run)(const unsigned long *v);
} commands[] = {
	{ "read", do_read },
	{ "write", do_write },
	{ "fork", do_fork },
	{ "exit", do_exit },
	{ "reap", do_reap },
	{ "memfd", do_memfd },
	{ "move", do_move },
	{ "known", do_known },
	{ "known-frame", do_known_frame },
	{ "pkey_alloc", do_pkey_alloc },
	{ "uffd", do_uffd },
	{ "uffd-register", do_uffd_register },
	{ "uffd-unregister", do_uffd_unregister },
	{ "uffd-wp", do_uffd_wp },
	{ "uffd-copy", do_uffd_copy },
	{ "uffd-zero", do_uffd_zero },
	{ "uffd-continue", do_uffd_continue },
};

/* System calls whose arguments are numbers. */
static const struct {
	const char *name;
	long number;
} calls[] = {
	{ "mmap", SYS_mmap },
	{ "munmap", SYS_munmap },
	{ "mprotect", SYS_mprotect },
	{ "mremap", SYS_mremap },
	{ "madvise", SYS_madvise },
	{ "mlock2", SYS_mlock2 },
	{ "munlock", SYS_munlock },
	{ "ftruncate", SYS_ftruncate },
	{ "fallocate", SYS_fallocate },
	{ "close", SYS_close },
	{ "dup3", SYS_dup3 },
	{ "pkey_mprotect", SYS_pkey_mprotect },
	{ "prctl", SYS_prctl },
	{ "getpid", SYS_getpid },
};

static void obey(char *line)
{
	unsigned long v[MAX_NUMBERS] = { 0 };
	char *rest = strchr(line, ' ');
	long result;

	if (rest)
		*rest++ = 0;
	for (int i = 0; i < MAX_NUMBERS && rest && *rest; i++)
		v[i] = strtoul(rest, &rest, 0);
	for (size_t i = 0; i < sizeof(commands) / sizeof(*commands); i++) {
		if (!strcmp(line, commands[i].name)) {
			commands[i].run(v);
			return;
		}
	}
	for (size_t i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
		if (!strcmp(line, calls[i].name)) {
			result = syscall(calls[i].number, v[0], v[1], v[2], v[3], v[4], v[5]);
			answer(result, result == -1 ? errno : 0);
			return;
		}
	}
	answer(-1, ENOSYS);
}

int main(int argc, char **argv)
{
	const int signals[] = { SIGSEGV, SIGBUS };
	struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_NODEFER };

	page_bytes = sysconf(_SC_PAGESIZE);
	slots = argc - 1;
	if (slots < 1 || slots > MAX_SLOTS)
		return 2;
	for (int i = 0; i < slots; i++) {
		char *colon;

		slot_in[i] = strtol(argv[i + 1], &colon, 10);
		if (*colon != ':')
			return 2;
		slot_out[i] = strtol(colon + 1, NULL, 10);
	}
	for (size_t i = 0; i < sizeof(signals) / sizeof(*signals); i++)
		sigaction(signals[i], &action, NULL);
	/* Ctrl-C is for who commands; it ends us by closing the pipes. */
	signal(SIGINT, SIG_IGN);
	source_page[0] = 1;

	for (;;) {
		char *newline = memchr(input, '\n', input_used);
		ssize_t n;

		if (newline) {
			static char line[LINE_BYTES];
			size_t length = newline - input;

			memcpy(line, input, length);
			line[length] = 0;
			input_used -= length + 1;
			memmove(input, newline + 1, input_used);
			obey(line);
			continue;
		}
		if (input_used == sizeof(input))
			return 1;
		n = read(slot_in[slot], input + input_used, sizeof(input) - input_used);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return 0;
		input_used += n;
	}
}
