/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Clocks to time one fault by: the CPU's own counter where it runs at one rate
 * whatever the CPU does, and otherwise the kernel's clock.
 *
 * cffi makes its definitions from this text: see build.py for the constructs
 * that may stand here.
 */
#ifndef PTSCOPE_CLOCK_H
#define PTSCOPE_CLOCK_H

#include "core.h"

#define PTSCOPE_CLOCK_TSC 1		/* x86: rdtscp, with fences */
#define PTSCOPE_CLOCK_CNTVCT 2		/* arm64: cntvct_el0 */
#define PTSCOPE_CLOCK_TIME 3		/* riscv64: rdtime */
#define PTSCOPE_CLOCK_RAW 4		/* clock_gettime(CLOCK_MONOTONIC_RAW), in ns */

/* A counter and CLOCK_MONOTONIC_RAW, read at the same time. */
struct ptscope_clock_pair {
	__u64 ticks;
	__u64 raw_ns;			/* the middle of the two readings around it */
	__u64 width_ns;			/* how far apart these were */
};

int ptscope_clock_usable(int clock);
void ptscope_clock_pair(int clock, __u32 tries, struct ptscope_clock_pair *pair);

#endif /* PTSCOPE_CLOCK_H */
