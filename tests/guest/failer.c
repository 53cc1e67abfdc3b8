// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * failer: makes one system call again and again, the first time with the first
 * allocation in it failing, then the second, until no allocation is left to
 * fail (/proc/PID/fail-nth, Documentation/fault-injection/fault-injection.rst).
 *
 *	failer ROUNDS open FILE
 *	failer ROUNDS write FILE REQUEST
 *	failer ROUNDS read FILE REQUEST|-
 *	failer ROUNDS mmap FILE REQUEST OFFSET LENGTH
 *	failer ROUNDS insmod MODULE
 *	failer ROUNDS rmmod NAME
 *
 * REQUEST is a file with what is written first; "-" is for files that are only
 * read.  A round is all of the above once; each step is one line of standard
 * output: which allocation failed, the errno of the call (0 when it succeeded),
 * whether an allocation was failed at all, the errno of the same call made
 * right after one that failed, and how many bytes the last one moved.
 *
 * Static, with all its memory touched beforehand: a page fault in between
 * would use up the failure.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MOST_ALLOCATIONS 10000		/* of one call; more means that it never ends */

static char request[1 << 16];
static size_t request_size;
static char answer[1 << 18];
static int fail_nth;

static void die(const char *what)
{
	fprintf(stderr, "failer: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void load_request(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		die(path);
	n = read(fd, request, sizeof(request));
	if (n < 0 || n == sizeof(request))
		die("the request");
	request_size = n;
	close(fd);
}

static void set_nth(unsigned int nth)
{
	char text[16];
	int length = snprintf(text, sizeof(text), "%u", nth);

	if (pwrite(fail_nth, text, length, 0) != length)
		die("fail-nth");
}

static unsigned int get_nth(void)
{
	char text[16] = "";

	if (pread(fail_nth, text, sizeof(text) - 1, 0) <= 0)
		die("fail-nth");
	return strtoul(text, NULL, 10);
}

/* What is called: how to get there, the call itself, and how to get back when it succeeded. */
struct operation {
	const char *name;
	void (*prepare)(void);
	int (*call)(void);		/* an errno, or 0 */
	void (*undo)(bool succeeded);
};

static const char *path;
static ssize_t moved;
static bool writes;
static int file = -1;

static void open_file(void)
{
	file = open(path, (writes ? O_RDWR : O_RDONLY) | O_CLOEXEC);
	if (file < 0)
		die(path);
}

static void nothing(void)
{
}

static int call_open(void)
{
	file = open(path, (writes ? O_RDWR : O_RDONLY) | O_CLOEXEC);
	return file < 0 ? errno : 0;
}

static void close_file(bool succeeded)
{
	if (succeeded)
		close(file);
	file = -1;
}

static int call_write(void)
{
	moved = write(file, request, request_size);
	return moved < 0 ? errno : 0;
}

static void open_and_write(void)
{
	open_file();
	if (request_size && write(file, request, request_size) < 0)
		die("write");
}

static int call_read(void)
{
	moved = read(file, answer, sizeof(answer));
	return moved < 0 ? errno : 0;
}

static unsigned long long map_offset;
static size_t map_length;
static void *map_place = MAP_FAILED;

/* Not touched: a fault without memory has somebody killed. */
static int call_mmap(void)
{
	map_place = mmap(NULL, map_length, PROT_READ | PROT_WRITE, MAP_SHARED, file, map_offset);
	return map_place == MAP_FAILED ? errno : 0;
}

static void close_mapped(bool succeeded)
{
	if (succeeded && munmap(map_place, map_length))
		die("munmap");
	close(file);
	file = -1;
}

static void close_always(bool succeeded)
{
	(void)succeeded;
	close(file);
	file = -1;
}

static int insert(void)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC), error = 0;

	if (fd < 0)
		die(path);
	if (syscall(SYS_finit_module, fd, "", 0))
		error = errno;
	close(fd);
	return error;
}

static int module_file = -1;

static void open_module(void)
{
	module_file = open(path, O_RDONLY | O_CLOEXEC);
	if (module_file < 0)
		die(path);
}

static int call_insmod(void)
{
	return syscall(SYS_finit_module, module_file, "", 0) ? errno : 0;
}

static int call_rmmod(void)
{
	return syscall(SYS_delete_module, "ptscope", O_NONBLOCK) ? errno : 0;
}

static void remove_module(bool succeeded)
{
	if (succeeded && call_rmmod())
		die("delete_module");
	close(module_file);
}

static void insert_first(void)
{
	errno = insert();
	if (errno)
		die("finit_module");
}

static void remove_left(bool succeeded)
{
	if (!succeeded && call_rmmod())
		die("delete_module");
}

static const struct operation operations[] = {
	{ "open", nothing, call_open, close_file },
	{ "write", open_file, call_write, close_always },
	{ "read", open_and_write, call_read, close_always },
	{ "mmap", open_and_write, call_mmap, close_mapped },
	{ "insmod", open_module, call_insmod, remove_module },
	{ "rmmod", insert_first, call_rmmod, remove_left },
};

/* Returns whether an allocation failed. */
static bool step(const struct operation *operation, unsigned int nth)
{
	unsigned int left;
	int error, after = 0;

	operation->prepare();
	set_nth(nth);
	error = operation->call();
	left = get_nth();
	set_nth(0);
	if (error)
		after = operation->call();
	operation->undo(!error || !after);
	printf("%u %d %d %d %zd\n", nth, error, left == 0, after, moved);
	return left == 0;
}

int main(int argc, char **argv)
{
	const struct operation *operation = NULL;
	unsigned long rounds;
	char self[64];

	if (argc < 4) {
		fprintf(stderr, "failer ROUNDS OPERATION FILE [REQUEST]\n");
		return 2;
	}
	rounds = strtoul(argv[1], NULL, 10);
	for (size_t i = 0; i < sizeof(operations) / sizeof(*operations); i++)
		if (!strcmp(argv[2], operations[i].name))
			operation = &operations[i];
	if (!operation || !rounds) {
		fprintf(stderr, "failer: no such operation, or no round\n");
		return 2;
	}
	path = argv[3];
	writes = argc > 4 && strcmp(argv[4], "-");
	if (writes)
		load_request(argv[4]);
	if (argc > 6) {
		map_offset = strtoull(argv[5], NULL, 0);
		map_length = strtoul(argv[6], NULL, 0);
	}
	snprintf(self, sizeof(self), "/proc/self/task/%ld/fail-nth", syscall(SYS_gettid));
	fail_nth = open(self, O_RDWR | O_CLOEXEC);
	if (fail_nth < 0)
		die(self);
	if (mlockall(MCL_CURRENT | MCL_FUTURE))
		die("mlockall");
	memset(answer, 1, sizeof(answer));

	for (unsigned long round = 0; round < rounds; round++) {
		unsigned int nth = 1;

		while (step(operation, nth)) {
			if (++nth > MOST_ALLOCATIONS) {
				fprintf(stderr, "failer: no end of allocations\n");
				return 1;
			}
		}
	}
	return fflush(stdout) ? 1 : 0;
}
