// SPDX-License-Identifier: GPL-2.0-or-later
/* See sample.h. */
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "sample.h"

/* ---- the process's own system calls ------------------------------------- */

static const long call_numbers[] = {
	[PTSCOPE_CALL_GETPPID] = SYS_getppid,
	[PTSCOPE_CALL_MMAP] = SYS_mmap,
	[PTSCOPE_CALL_MUNMAP] = SYS_munmap,
	[PTSCOPE_CALL_MREMAP] = SYS_mremap,
	[PTSCOPE_CALL_MPROTECT] = SYS_mprotect,
	[PTSCOPE_CALL_MADVISE] = SYS_madvise,
	[PTSCOPE_CALL_MLOCK] = SYS_mlock,
	[PTSCOPE_CALL_MUNLOCK] = SYS_munlock,
	[PTSCOPE_CALL_PKEY_ALLOC] = SYS_pkey_alloc,
	[PTSCOPE_CALL_PKEY_FREE] = SYS_pkey_free,
	[PTSCOPE_CALL_PKEY_MPROTECT] = SYS_pkey_mprotect,
	[PTSCOPE_CALL_USERFAULTFD] = SYS_userfaultfd,
	[PTSCOPE_CALL_IOCTL] = SYS_ioctl,
	[PTSCOPE_CALL_PRCTL] = SYS_prctl,
	[PTSCOPE_CALL_PREAD] = SYS_pread64,
};
#define CALLS (sizeof(call_numbers) / sizeof(*call_numbers))

/* The result, or the negative error as the kernel gives it. */
__s64 ptscope_call(__u32 call, const __u64 *a)
{
	long result;

	if (call >= CALLS)
		return -ENOSYS;
	result = syscall(call_numbers[call], a[0], a[1], a[2], a[3], a[4], a[5]);
	return result == -1 ? -errno : result;
}

/* ---- actions ------------------------------------------------------------ */

/* An action on one address, with all that can be known before the clock is read. */
struct prepared {
	__u64 address;
	long number;
	long arguments[6];
	__u64 inner;
};

/* A system call without what the C library adds; the negative error as the kernel gives it. */
static inline long raw_call(long number, const long *a)
{
#if defined(__x86_64__)
	register long r10 __asm__("r10") = a[3];
	register long r8 __asm__("r8") = a[4];
	register long r9 __asm__("r9") = a[5];
	long result;

	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
#elif defined(__aarch64__)
	register long x8 __asm__("x8") = number;
	register long x0 __asm__("x0") = a[0];
	register long x1 __asm__("x1") = a[1];
	register long x2 __asm__("x2") = a[2];
	register long x3 __asm__("x3") = a[3];
	register long x4 __asm__("x4") = a[4];
	register long x5 __asm__("x5") = a[5];

	__asm__ volatile("svc 0"
			 : "+r"(x0)
			 : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
			 : "memory");
	return x0;
#elif defined(__riscv)
	register long a7 __asm__("a7") = number;
	register long a0 __asm__("a0") = a[0];
	register long a1 __asm__("a1") = a[1];
	register long a2 __asm__("a2") = a[2];
	register long a3 __asm__("a3") = a[3];
	register long a4 __asm__("a4") = a[4];
	register long a5 __asm__("a5") = a[5];

	__asm__ volatile("ecall"
			 : "+r"(a0)
			 : "r"(a7), "r"(a1), "r"(a2), "r"(a3), "r"(a4), "r"(a5)
			 : "memory");
	return a0;
#else
	long result = syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);

	return result == -1 ? -errno : result;
#endif
}

static sigjmp_buf segv_back;
static volatile __u64 segv_ticks;
static int segv_clock;

static void on_segv(int number)
{
	(void)number;
	segv_ticks = clock_ticks(segv_clock);
	siglongjmp(segv_back, 1);
}

static __s64 do_nothing(const struct prepared *what)
{
	(void)what;
	return 0;
}

static __s64 do_read(const struct prepared *what)
{
	return *(volatile __u8 *)(uintptr_t)what->address;
}

static __s64 do_write(const struct prepared *what)
{
	*(volatile __u8 *)(uintptr_t)what->address = 1;
	return 0;
}

static __s64 do_call(const struct prepared *what)
{
	return raw_call(what->number, what->arguments);
}

static __s64 do_chase(const struct prepared *what)
{
	void *volatile *place = (void *volatile *)(uintptr_t)what->address;

	for (__u64 i = what->inner; i; i--)
		place = *place;
	return (__s64)(uintptr_t)place;
}

/* sigsetjmp() without the mask makes no system call. */
static __s64 do_signal_read(const struct prepared *what)
{
	if (!sigsetjmp(segv_back, 0))
		do_read(what);
	return segv_ticks != 0;
}

static __s64 do_signal_write(const struct prepared *what)
{
	if (!sigsetjmp(segv_back, 0))
		do_write(what);
	return segv_ticks != 0;
}

static void wait_for_the_end(void)
{
	for (;;)
		pause();
}

/*
 * Not fork(): what the C library has to do before and after is not what is
 * measured.  The child runs nothing but this.
 */
static __s64 do_fork(const struct prepared *what)
{
	static const long arguments[6] = { SIGCHLD };
	long pid = raw_call(SYS_clone, arguments);

	(void)what;
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		wait_for_the_end();
	}
	return pid;
}

/* Arguments: file, request, its length, room for the answer, its length. */
static __s64 do_ask(const struct prepared *what)
{
	const long *a = what->arguments;
	const long question[6] = { a[0], a[1], a[2] }, answer[6] = { a[0], a[3], a[4] };
	long result = raw_call(SYS_write, question);

	return result < 0 ? result : raw_call(SYS_read, answer);
}

/* The same with the file's path in place of the file; the result is the length of all answers. */
static __s64 do_ask_all(const struct prepared *what)
{
	const long *a = what->arguments;
	const long name[6] = { AT_FDCWD, a[0], O_RDWR | O_CLOEXEC };
	long fd = raw_call(SYS_openat, name);
	const long question[6] = { fd, a[1], a[2] }, answer[6] = { fd, a[3], a[4] };
	__s64 length = 0;
	long result;

	if (fd < 0)
		return fd;
	result = raw_call(SYS_write, question);
	while (result >= 0 && (result = raw_call(SYS_read, answer)) > 0)
		length += result;
	raw_call(SYS_close, question);
	return result < 0 ? result : length;
}

static __s64 do_touch(const struct prepared *what)
{
	__u64 place = what->address;

	for (__u64 i = what->inner; i; i--, place += (__u64)what->arguments[0])
		(void)*(volatile __u8 *)(uintptr_t)place;
	return 0;
}

static __s64 do_fill(const struct prepared *what)
{
	__u64 place = what->address;

	for (__u64 i = what->inner; i; i--, place += (__u64)what->arguments[0])
		*(volatile __u8 *)(uintptr_t)place = 1;
	return 0;
}

typedef __s64 act(const struct prepared *what);

static act *const acts[] = {
	[PTSCOPE_DO_NOTHING] = do_nothing,
	[PTSCOPE_DO_READ] = do_read,
	[PTSCOPE_DO_WRITE] = do_write,
	[PTSCOPE_DO_CALL] = do_call,
	[PTSCOPE_DO_CHASE] = do_chase,
	[PTSCOPE_DO_SIGNAL_READ] = do_signal_read,
	[PTSCOPE_DO_SIGNAL_WRITE] = do_signal_write,
	[PTSCOPE_DO_FORK] = do_fork,
	[PTSCOPE_DO_ASK] = do_ask,
	[PTSCOPE_DO_ASK_ALL] = do_ask_all,
	[PTSCOPE_DO_TOUCH] = do_touch,
	[PTSCOPE_DO_FILL] = do_fill,
};
#define ACTS (sizeof(acts) / sizeof(*acts))

static void prepare(struct prepared *what, const struct ptscope_action *action, __u64 address)
{
	what->address = address;
	what->number = call_numbers[action->call];
	what->inner = action->inner;
	for (int i = 0; i < 6; i++)
		what->arguments[i] =
			(long)(action->arguments[i] + (action->place >> i & 1 ? address : 0));
}

/* ---- samples ------------------------------------------------------------ */

static void take_rusage(struct rusage *usage)
{
	syscall(SYS_getrusage, RUSAGE_THREAD, usage);
}

/*
 * The kernel's own counts around each sample say whether there was the fault
 * that should be, and only that one, and whether the thread lost the CPU.  They
 * are read outside of what is timed.
 */
static void __attribute__((noinline))
run_samples(int clock, act *what, const struct ptscope_action *action,
	    const struct ptscope_action *rehearsals, __u32 rehearsed, const __u64 *addresses,
	    __u64 count, struct ptscope_sample *samples)
{
	struct rusage before, after;

	take_rusage(&before);
	for (__u64 i = 0; i < count; i++) {
		struct ptscope_sample *sample = &samples[i];
		struct prepared prepared;
		__s64 result, ready = 0;
		__u64 start, end;

		for (__u32 step = 0; step < rehearsed && ready >= 0; step++) {
			prepare(&prepared, &rehearsals[step], addresses[i]);
			ready = acts[rehearsals[step].kind](&prepared);
		}
		if (rehearsed)
			take_rusage(&before);
		if (action->rest) {
			const struct timespec rest = { action->rest / 1000000000,
						       action->rest % 1000000000 };

			nanosleep(&rest, NULL);
			take_rusage(&before);
		}
		prepare(&prepared, action, addresses[i]);
		segv_ticks = 0;
		start = clock_ticks(clock);
		for (__u32 turn = action->spin; turn; turn--)
			__asm__ volatile("");
		result = what(&prepared);
		end = clock_ticks(clock);
		if (segv_ticks)
			end = segv_ticks;
		take_rusage(&after);
		sample->start = start;
		sample->ticks = end - start;
		/* What was not made ready is no sample, whatever came of it. */
		sample->result = ready < 0 ? ready : result;
		sample->minor = (__u32)(after.ru_minflt - before.ru_minflt);
		sample->major = (__u32)(after.ru_majflt - before.ru_majflt);
		sample->voluntary = (__u32)(after.ru_nvcsw - before.ru_nvcsw);
		sample->involuntary = (__u32)(after.ru_nivcsw - before.ru_nivcsw);
		sample->cpu = sched_getcpu();
		before = after;
	}
}

/*
 * Everything that the loop itself touches is mapped and writable before it
 * begins: after a fork, or after soft-dirty bits were cleared, its own writes
 * would fault, and a child has yet to map the code that it runs.
 */
static void warm_up(int clock, const __u64 *addresses, __u64 count, struct ptscope_sample *samples)
{
	static const __u32 harmless[] = { PTSCOPE_DO_NOTHING, PTSCOPE_DO_READ, PTSCOPE_DO_WRITE,
					  PTSCOPE_DO_CALL };
	static const struct ptscope_action getppid_call;
	struct ptscope_sample few[4];
	volatile __u64 sum = 0;
	__u64 ours[4];

	memset(samples, 0, count * sizeof(*samples));
	for (__u64 i = 0; i < count; i++)
		sum += addresses[i];
	for (__u64 i = 0; i < 4; i++)
		ours[i] = (uintptr_t)&sum;
	for (unsigned int i = 0; i < sizeof(harmless) / sizeof(*harmless); i++)
		run_samples(clock, acts[harmless[i]], &getppid_call, NULL, 0, ours, 4, few);
}

/*
 * The same for the handler's code and the stack that a signal needs: nine KiB
 * with vector registers of 2048 bits (arm64), which are saved when a fault comes
 * in between, and not in a system call.
 */
static void __attribute__((noinline)) warm_up_signal(void)
{
	volatile char room[32 << 10];

	for (unsigned int i = 0; i < sizeof(room); i += 1 << 10)
		room[i] = 0;
	if (!sigsetjmp(segv_back, 0))
		syscall(SYS_tgkill, syscall(SYS_getpid), syscall(SYS_gettid), SIGSEGV);
}

/*
 * 0, or the negative error: an action that is none, or a handler that cannot be
 * set.  The rehearsals, if there are some, are done just before each sample.
 */
int ptscope_sample_run(int clock, const struct ptscope_action *action,
		       const struct ptscope_action *rehearsals, __u32 rehearsed,
		       const __u64 *addresses, __u64 count, struct ptscope_sample *samples)
{
	struct sigaction ours = { .sa_handler = on_segv, .sa_flags = SA_NODEFER }, theirs;
	int signals = action->kind == PTSCOPE_DO_SIGNAL_READ ||
		      action->kind == PTSCOPE_DO_SIGNAL_WRITE;

	if (action->kind >= ACTS || action->call >= CALLS)
		return -EINVAL;
	for (__u32 i = 0; i < rehearsed; i++)
		if (rehearsals[i].kind >= ACTS || rehearsals[i].call >= CALLS)
			return -EINVAL;
	segv_clock = clock;
	if (signals && sigaction(SIGSEGV, &ours, &theirs))
		return -errno;
	warm_up(clock, addresses, count, samples);
	if (signals)
		warm_up_signal();
	run_samples(clock, acts[action->kind], action, rehearsals, rehearsed, addresses, count,
		    samples);
	if (signals)
		sigaction(SIGSEGV, &theirs, NULL);
	return 0;
}

/*
 * The same in a child, which stops itself (SIGSTOP) before it begins and after
 * it has ended, so that the parent can look at it, and then waits to be killed.
 * Addresses and samples have to be in shared memory.  The child's PID, or the
 * negative error.
 */
int ptscope_child_run(int clock, const struct ptscope_action *action, const __u64 *addresses,
		      __u64 count, struct ptscope_sample *samples)
{
	long pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);

	if (pid)
		return pid == -1 ? -errno : (int)pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	/* Its own stack and data are shared with the parent until it has written to them. */
	if (count)
		ptscope_sample_run(clock, action, NULL, 0, addresses, 0, samples);
	syscall(SYS_kill, syscall(SYS_getpid), SIGSTOP);
	if (count && ptscope_sample_run(clock, action, NULL, 0, addresses, count, samples))
		_exit(1);
	syscall(SYS_kill, syscall(SYS_getpid), SIGSTOP);
	wait_for_the_end();
	return 0;
}

/* ---- making ready ------------------------------------------------------- */

/* Read or write one byte at each of "count" places. */
void ptscope_touch(__u64 address, __u64 stride, __u64 count, int write)
{
	for (; count; count--, address += stride)
		if (write)
			*(volatile __u8 *)(uintptr_t)address = 1;
		else
			(void)*(volatile __u8 *)(uintptr_t)address;
}

/*
 * Pointers that lead once through "count" places in the order given, and back to
 * the first.  Place i is in page i, each "stride" bytes apart; within the page
 * it moves on by a cache line for "lines" lines, so that the places do not all
 * fall into the same cache set.
 */
void ptscope_link(__u64 address, const __u32 *order, __u64 count, __u64 stride, __u64 lines)
{
#define PLACE(i) ((void **)(uintptr_t)(address + (i) * stride + (i) % lines * 64))
	for (__u64 i = 0; i < count; i++)
		*PLACE(order[i]) = PLACE(order[(i + 1) % count]);
#undef PLACE
}

/* ---- the other side of a userfaultfd ------------------------------------ */

static struct {
	pthread_t thread;
	int fd;
	int mode;
	int stop[2];
	int running;
	__u64 page_size;
	__u64 served;
	void *page;
} server;

static int answer(const struct uffd_msg *message)
{
	__u64 place = message->arg.pagefault.address & ~(server.page_size - 1);

	switch (server.mode) {
	case PTSCOPE_SERVE_COPY: {
		struct uffdio_copy copy = {
			.dst = place,
			.src = (uintptr_t)server.page,
			.len = server.page_size,
		};

		return ioctl(server.fd, UFFDIO_COPY, &copy);
	}
	case PTSCOPE_SERVE_UNPROTECT: {
		struct uffdio_writeprotect protect = {
			.range = { .start = place, .len = server.page_size },
		};

		return ioctl(server.fd, UFFDIO_WRITEPROTECT, &protect);
	}
	default: {
		struct uffdio_continue go_on = {
			.range = { .start = place, .len = server.page_size },
		};

		return ioctl(server.fd, UFFDIO_CONTINUE, &go_on);
	}
	}
}

/*
 * It asks poll() first, as programs do that also have something else to wait
 * for.  When an answer fails the faulting thread would wait for ever: the range
 * is woken, so that it faults again, and the count of answers tells.
 */
static void *serve(void *unused)
{
	struct pollfd wait[2] = {
		{ .fd = server.fd, .events = POLLIN },
		{ .fd = server.stop[0], .events = POLLIN },
	};

	(void)unused;
	for (;;) {
		struct uffd_msg message;

		if (poll(wait, 2, -1) < 0 && errno != EINTR)
			return NULL;
		if (wait[1].revents)
			return NULL;
		if (!(wait[0].revents & POLLIN) ||
		    read(server.fd, &message, sizeof(message)) != sizeof(message) ||
		    message.event != UFFD_EVENT_PAGEFAULT)
			continue;
		if (!answer(&message)) {
			server.served++;
		} else {
			struct uffdio_range range = {
				.start = message.arg.pagefault.address & ~(server.page_size - 1),
				.len = server.page_size,
			};

			ioctl(server.fd, UFFDIO_UNREGISTER, &range);
		}
	}
}

/* Start answering faults of "fd" on a CPU (-1: anywhere); 0 or the negative error. */
int ptscope_serve_start(int fd, int mode, __u64 page_size, int cpu)
{
	static __u8 page[65536] __attribute__((aligned(65536)));
	int error;

	if (server.running || page_size > sizeof(page))
		return -EBUSY;
	server.fd = fd;
	server.mode = mode;
	server.page_size = page_size;
	server.page = page;
	server.served = 0;
	memset(page, 1, sizeof(page));
	if (pipe(server.stop))
		return -errno;
	error = pthread_create(&server.thread, NULL, serve, NULL);
	if (error) {
		close(server.stop[0]);
		close(server.stop[1]);
		return -error;
	}
	if (cpu >= 0) {
		cpu_set_t set;

		CPU_ZERO(&set);
		CPU_SET(cpu, &set);
		pthread_setaffinity_np(server.thread, sizeof(set), &set);
	}
	server.running = 1;
	return 0;
}

/* Stop it, and say how many faults it has answered. */
int ptscope_serve_stop(__u64 *served)
{
	if (!server.running)
		return -ESRCH;
	close(server.stop[1]);
	pthread_join(server.thread, NULL);
	close(server.stop[0]);
	server.running = 0;
	*served = server.served;
	return 0;
}
