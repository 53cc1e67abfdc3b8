# SPDX-License-Identifier: GPL-2.0-or-later
"""What must be true of page tables, asked of live processes: `ptscope check`.

`invariants` says what and why, `rules` which entries break it, `scan` finds suspects in a stream
(in C), `counts` compares sums with what the kernel counts, `confirm` reads suspects anew until they
are findings or have changed, `process` does all of it for one process.
"""
