# SPDX-License-Identifier: GPL-2.0-or-later
"""Build guests and run commands and tests in them under QEMU (host side, standard library only).

`kernels`, `arches`, `variants` and `plan` are tables: a new kernel, architecture or boot is a row.
`apt`, `fetch`, `headers` bring a kernel onto this machine; `module`, `base`, `overlay` build what boots;
`qemu`, `frames`, `guest` run it; `splat`, `junit`, `testrun` judge it.
"""
