/* SPDX-License-Identifier: GPL-2.0-only */
/* Chooses the header of the architecture; arch/x86.h says what it must give. */
#ifndef PTSCOPE_ARCH_H
#define PTSCOPE_ARCH_H

#if defined(CONFIG_X86_64)
#include "x86.h"
#else
#error "ptscope has no header for this architecture yet"
#endif

#endif /* PTSCOPE_ARCH_H */
