# SPDX-License-Identifier: GPL-2.0-or-later
"""A whole address space: what each VMA holds, in sum, and whether the kernel's counters agree."""
