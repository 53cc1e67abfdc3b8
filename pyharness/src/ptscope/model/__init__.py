# SPDX-License-Identifier: GPL-2.0-or-later
"""A model of Linux memory management that predicts every page-table entry of a process.

It is written to be read. `state` says what an address space is made of; `faults` what a page fault
does; `calls` has one function for each system call, named like it, with the behaviour of the
kernel that it relies on, and since when; `predict` turns the state into what each entry must hold.
None of these touches a kernel: they can be imported and tested anywhere.

Where the kernel may choose (a huge page or small ones, the same frame or a copy), a function names
all outcomes that the kernel's source permits, why, and asks a `Choose` which of them it was. When
`ptscope model` runs, that is whoever looks at the tables; all that follows from the choice is
predicted, and compared.

`puppet.c` is the process that does what the model predicts, `drive` commands it, `observe` reads
its tables, `compare` holds them against the prediction, and `search` makes up sequences with
hypothesis, which is imported there and nowhere else.
"""
