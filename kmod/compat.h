/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What differs between kernel versions.  Tests are on macros that came with
 * the feature: distribution kernels backport, so a version number says little.
 */
#ifndef PTSCOPE_COMPAT_H
#define PTSCOPE_COMPAT_H

#include <linux/mm.h>
#include <linux/pgtable.h>
#ifdef PTSCOPE_HAS_PFN_T
#include <linux/pfn_t.h>
#endif

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

/* vm_flags is not written to directly from 6.3 on (1c71222e5f23). */
static inline void ptscope_vm_flags_set(struct vm_area_struct *vma, unsigned long flags)
{
#ifdef PTSCOPE_HAS_VM_FLAGS_SET
	vm_flags_set(vma, flags);
#else
	vma->vm_flags |= flags;
#endif
}

/*
 * A PMD leaf of bare frames is marked as such (pmd_special()) from 6.12 on
 * (3c8e44c9b369); before, get_user_pages_fast() could not tell it from a huge
 * page.  The frame was a pfn_t until 6.17 took that type away (21aa65bf82a7).
 */
#if defined(CONFIG_ARCH_SUPPORTS_PMD_PFNMAP) && defined(CONFIG_TRANSPARENT_HUGEPAGE)
#define PTSCOPE_HAS_PMD_PFNMAP
static inline vm_fault_t ptscope_insert_pfn_pmd(struct vm_fault *vmf, unsigned long pfn, bool write)
{
#ifdef PTSCOPE_HAS_PFN_T
	return vmf_insert_pfn_pmd(vmf, __pfn_to_pfn_t(pfn, PFN_DEV), write);
#else
	return vmf_insert_pfn_pmd(vmf, pfn, write);
#endif
}
#endif

/* How many orders the page allocator has: until 6.4 that was MAX_ORDER (23baf831a32c). */
#if defined(NR_PAGE_ORDERS)
#define PTSCOPE_MAX_ORDERS NR_PAGE_ORDERS
#elif defined(MAX_PAGE_ORDER)
#define PTSCOPE_MAX_ORDERS (MAX_PAGE_ORDER + 1)
#else
#define PTSCOPE_MAX_ORDERS MAX_ORDER
#endif

#endif /* PTSCOPE_COMPAT_H */
