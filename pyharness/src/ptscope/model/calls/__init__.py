# SPDX-License-Identifier: GPL-2.0-or-later
"""What system calls, and accesses of memory, do to the state: one function each."""
