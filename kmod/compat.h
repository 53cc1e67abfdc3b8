/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What differs between kernel versions.  Tests are on macros that came with
 * the feature: distribution kernels backport, so a version number says little.
 */
#ifndef PTSCOPE_COMPAT_H
#define PTSCOPE_COMPAT_H

#include <linux/pgtable.h>

/*
 * The exclusive bit of swap entries came in 5.19 (1493a1913e34).  Its own
 * macro, __HAVE_ARCH_PTE_SWP_EXCLUSIVE, went away in 6.3 when all
 * architectures had it; the name of the bit stayed.
 */
#if defined(_PAGE_SWP_EXCLUSIVE) || defined(PTE_SWP_EXCLUSIVE)
static inline pte_t ptscope_swp_mkexclusive(pte_t pte)
{
	return pte_swp_mkexclusive(pte);
}
#else
static inline pte_t ptscope_swp_mkexclusive(pte_t pte)
{
	return pte;
}
#endif

/*
 * 7.3 calls the userfaultfd bit "uffd", no longer "uffd_wp", since it stands
 * for more than write protection; pgtable_supports_uffd() came with that.
 */
#ifdef pgtable_supports_uffd
static inline pte_t ptscope_swp_mkuffd(pte_t pte)
{
	return pte_swp_mkuffd(pte);
}
#else
static inline pte_t ptscope_swp_mkuffd(pte_t pte)
{
	return pte_swp_mkuffd_wp(pte);
}
#endif

#endif /* PTSCOPE_COMPAT_H */
