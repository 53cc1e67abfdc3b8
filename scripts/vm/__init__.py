# SPDX-License-Identifier: GPL-2.0-or-later
"""Build guests and run commands and tests in them under QEMU (host side, standard library only).

`kernels`, `arches`, `variants` and `plan` are tables: a new kernel, architecture or boot is a row.
`apt` and `fetch` bring a kernel onto this machine; `module`, `package`, `base`, `modules` and
`overlay` build what boots; `accel`, `qemu`, `qmp` and `guest` run it; `splat`, `junit` and
`testrun` judge it. `inside` is what runs in the guest.
"""
