// SPDX-License-Identifier: GPL-2.0-or-later
/* See clock.h. */
#include <stdint.h>
#include <time.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "clock.h"

static inline __u64 clock_raw(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC_RAW, &now);
	return (__u64)now.tv_sec * 1000000000u + (__u64)now.tv_nsec;
}

/*
 * What was done before is finished when the clock is read, and nothing of what
 * comes after has begun.  The same code stands on both sides of what is timed,
 * so that what it costs itself can be measured and taken off.
 *
 * x86: rdtscp waits for all instructions before it, lfence keeps those after
 * from starting (Intel SDM 2B, RDTSCP).  arm64: isb on both sides, as in the
 * kernel's __arch_counter_get_cntvct().  riscv64: a fence for memory; the
 * counter itself is read in order.
 */
static inline __u64 clock_ticks(int clock)
{
#if defined(__x86_64__)
	if (clock == PTSCOPE_CLOCK_TSC) {
		__u32 low, high, cpu;

		__asm__ volatile("lfence\n\trdtscp\n\tlfence"
				 : "=a"(low), "=d"(high), "=c"(cpu)
				 :
				 : "memory");
		return (__u64)high << 32 | low;
	}
#elif defined(__aarch64__)
	if (clock == PTSCOPE_CLOCK_CNTVCT) {
		__u64 ticks;

		__asm__ volatile("dsb ish\n\tisb\n\tmrs %0, cntvct_el0\n\tisb" : "=r"(ticks) : : "memory");
		return ticks;
	}
#elif defined(__riscv)
	if (clock == PTSCOPE_CLOCK_TIME) {
		__u64 ticks;

		__asm__ volatile("fence\n\trdtime %0\n\tfence" : "=r"(ticks) : : "memory");
		return ticks;
	}
#endif
	(void)clock;
	return clock_raw();
}

/*
 * Whether a clock can be read here and runs at one rate.  Whether it really
 * does is for the calibration to find out.
 */
int ptscope_clock_usable(int clock)
{
	if (clock == PTSCOPE_CLOCK_RAW)
		return 1;
#if defined(__x86_64__)
	unsigned int a, b, c, d;

	/* Intel SDM 3B, 18.17: invariant TSC is bit 8, rdtscp bit 27. */
	return clock == PTSCOPE_CLOCK_TSC && __get_cpuid(0x80000007, &a, &b, &c, &d) &&
	       d >> 8 & 1 && __get_cpuid(0x80000001, &a, &b, &c, &d) && d >> 27 & 1;
#elif defined(__aarch64__)
	return clock == PTSCOPE_CLOCK_CNTVCT;
#elif defined(__riscv)
	return clock == PTSCOPE_CLOCK_TIME;
#else
	return 0;
#endif
}

/* The best of several tries: the one that nothing interrupted. */
void ptscope_clock_pair(int clock, __u32 tries, struct ptscope_clock_pair *pair)
{
	pair->width_ns = UINT64_MAX;
	while (tries--) {
		__u64 before = clock_raw(), ticks = clock_ticks(clock), after = clock_raw();

		if (after - before >= pair->width_ns)
			continue;
		pair->ticks = ticks;
		pair->width_ns = after - before;
		pair->raw_ns = before + (after - before) / 2;
	}
}
