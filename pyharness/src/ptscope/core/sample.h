/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * One timed action on one address after another: a memory access, a system
 * call, a fork.  What has to be true before and after is somebody else's to
 * prove; here nothing happens between two readings of the clock but the action.
 *
 * Unlike the rest of the core this acts, on the process that calls it: it maps
 * what it is told to map, forks, and takes SIGSEGV while an action needs that.
 * One thread at a time.
 */
#ifndef PTSCOPE_SAMPLE_H
#define PTSCOPE_SAMPLE_H

#include "clock.h"

/* ptscope_action.kind */
#define PTSCOPE_DO_NOTHING 0		/* what timing alone costs */
#define PTSCOPE_DO_READ 1		/* load one byte */
#define PTSCOPE_DO_WRITE 2		/* store one byte */
#define PTSCOPE_DO_CALL 3		/* a system call */
#define PTSCOPE_DO_CHASE 4		/* "inner" dependent loads, from pointer to pointer */
#define PTSCOPE_DO_SIGNAL_READ 5	/* load; ends when the SIGSEGV handler is entered */
#define PTSCOPE_DO_SIGNAL_WRITE 6
#define PTSCOPE_DO_FORK 7		/* the result is a child that waits to be killed */
#define PTSCOPE_DO_ASK 8		/* write() a request to a file and read() one answer */
#define PTSCOPE_DO_ASK_ALL 9		/* open(), write() the request, read() to the end, close() */
#define PTSCOPE_DO_TOUCH 10		/* "inner" loads of a byte, arguments[0] bytes apart */
#define PTSCOPE_DO_FILL 11		/* "inner" stores of a byte, arguments[0] bytes apart */

/* ptscope_action.call and ptscope_call(): system calls by names of our own, alike everywhere */
#define PTSCOPE_CALL_GETPPID 0
#define PTSCOPE_CALL_MMAP 1
#define PTSCOPE_CALL_MUNMAP 2
#define PTSCOPE_CALL_MREMAP 3
#define PTSCOPE_CALL_MPROTECT 4
#define PTSCOPE_CALL_MADVISE 5
#define PTSCOPE_CALL_MLOCK 6
#define PTSCOPE_CALL_MUNLOCK 7
#define PTSCOPE_CALL_PKEY_ALLOC 8
#define PTSCOPE_CALL_PKEY_FREE 9
#define PTSCOPE_CALL_PKEY_MPROTECT 10
#define PTSCOPE_CALL_USERFAULTFD 11
#define PTSCOPE_CALL_IOCTL 12
#define PTSCOPE_CALL_PRCTL 13
#define PTSCOPE_CALL_PREAD 14

struct ptscope_action {
	__u32 kind;
	__u32 call;
	__u64 arguments[6];
	__u32 place;			/* bit i: the address is added to arguments[i] */
	__u32 spin;			/* empty loops inside what is timed: a planted slowdown */
	__u64 inner;
	__u64 rest;			/* ns slept before each sample, outside of what is timed */
};

struct ptscope_sample {
	__u64 start;			/* the first reading of the clock */
	__u64 ticks;			/* between the two readings of it */
	__s64 result;			/* of a call; 1 when the signal came; a PID; the rehearsal's error */
	__u32 minor;			/* faults of this thread, as the kernel counts them */
	__u32 major;
	__u32 voluntary;		/* times the thread was taken off the CPU */
	__u32 involuntary;
	__s32 cpu;			/* where it ended */
	__u32 reserved;
};

__s64 ptscope_call(__u32 call, const __u64 *arguments);

int ptscope_sample_run(int clock, const struct ptscope_action *action, const struct ptscope_action *rehearsals, __u32 rehearsed, const __u64 *addresses, __u64 count, struct ptscope_sample *samples);

int ptscope_child_run(int clock, const struct ptscope_action *action, const __u64 *addresses, __u64 count, struct ptscope_sample *samples);

void ptscope_touch(__u64 address, __u64 stride, __u64 count, int write);
void ptscope_link(__u64 address, const __u32 *order, __u64 count, __u64 stride, __u64 lines);

/* What the thread does that answers the faults of a userfaultfd. */
#define PTSCOPE_SERVE_COPY 1		/* missing: copies a page in */
#define PTSCOPE_SERVE_UNPROTECT 2	/* write-protected: makes it writable */
#define PTSCOPE_SERVE_CONTINUE 3	/* minor: maps the page that the file has */

int ptscope_serve_start(int fd, int mode, __u64 page_size, int cpu);
int ptscope_serve_stop(__u64 *served);

#endif /* PTSCOPE_SAMPLE_H */
