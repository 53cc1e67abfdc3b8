/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the module has to know about an architecture: facts, no code that walks.
 *
 * The walker sees an address space as a tree of tables of 64-bit values, read
 * from memory and never through a pte_t.  Which levels are walked, with what
 * shifts, is the same arithmetic everywhere (space.c).  What is left is said
 * by one header for each architecture, which gives
 *
 *   PTSCOPE_ARCH              its name in the layout
 *   ptscope_arch_root_bits()  address bits that are translated from one root
 *   ptscope_arch_half_bits()  address bits of one half of the address space;
 *                             the kernel half is where all bits above are set
 *   ptscope_arch_is_table()   does the hardware go on to a table from this
 *                             value, read above PTE level?  Must not be true
 *                             of any leaf, swap entry or entry being split,
 *                             at any level
 *   ptscope_arch_table_pa()   and if so, the physical address of that table
 *   ptscope_arch_kernel_root()  linear address of the root of the kernel half
 *   ptscope_arch_user_root()  the copy of the root that user mode runs on, or
 *                             NULL where user mode runs on the root itself
 *
 * and for the layout
 *
 *   PTSCOPE_ARCH_PFN_MASK     address bits of an entry, as compiled
 *   ptscope_arch_bits[]       positions of the other bits
 *   ptscope_arch_fixed_facts()    what else this kernel was compiled with
 *   ptscope_arch_runtime_facts()  what depends on the machine
 *
 * The kernel's own pXd_none(), pXd_present(), pXd_bad() and pXd_offset() are
 * not asked: at levels that are folded at run time they deny knowing (x86 and
 * riscv pgd_present() is 1 then, and arm64 pgd_bad() 0), what counts as a leaf
 * differs by level and config (riscv may map RAM with 512 GiB leaves, which
 * p4d_leaf() does not know), and some are not exported (riscv p4d_offset()
 * before 7.x).  What makes the hardware descend is the same at all levels and
 * in all versions.
 *
 * To add an architecture: write its header, name it below and in the README,
 * and check the argument at the top of walk.c against how it frees tables.
 */
#ifndef PTSCOPE_ARCH_H
#define PTSCOPE_ARCH_H

#if defined(CONFIG_X86_64)
#include "x86.h"
#elif defined(CONFIG_ARM64)
#include "arm64.h"
#elif defined(CONFIG_RISCV) && defined(CONFIG_64BIT)
#include "riscv.h"
#else
#error "ptscope has no header for this architecture yet"
#endif

#endif /* PTSCOPE_ARCH_H */
