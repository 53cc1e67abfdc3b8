# SPDX-License-Identifier: GPL-2.0-or-later
"""The architectures a guest can have: what QEMU needs to be one. A new one is a row."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Arch:
    """One row: Debian's name for it and how QEMU plays it."""

    name: str
    """Debian's architecture name."""
    machine_names: tuple[str, ...]
    """What `uname -m` calls it; a host of the same name may use KVM."""
    qemu: str
    """The QEMU binary."""
    qemu_package: str
    """The Debian package that has it."""
    machine: str
    """QEMU's -M."""
    cpu: str
    """QEMU's -cpu, without the variant's additions."""
    console: str
    """The kernel's console= on QEMU's first serial port."""
    ram_base: int
    """Guest-physical address, in bytes, where RAM begins."""
    kernel_arch: str
    """The kernel's ARCH."""
    triplet: str
    """What the names of its compilers begin with, and its directory of libraries."""
    append: tuple[str, ...] = ()
    """Kernel arguments every guest of this architecture gets."""
    firmware: tuple[str, ...] = ()
    """Further QEMU arguments (firmware)."""


ARCHES: dict[str, Arch] = {
    row.name: row
    for row in (
        Arch(
            name="amd64",
            machine_names=("x86_64",),
            qemu="qemu-system-x86_64",
            qemu_package="qemu-system-x86",
            # q35, not pc: with a debug kernel pc loses 20 s for each virtio device.
            machine="q35",
            cpu="max,erms=off,fsrm=off",
            console="ttyS0",
            ram_base=0,
            kernel_arch="x86",
            triplet="x86_64-linux-gnu",
            # At boot the kernel waits 10 ticks for its timer, counts what came and panics when it
            # was too little (timer_irq_works): on a busy machine the emulated timer is late.
            append=("no_timer_check",),
        ),
        Arch(
            name="arm64",
            machine_names=("aarch64",),
            qemu="qemu-system-aarch64",
            qemu_package="qemu-system-arm",
            machine="virt",
            # The architected algorithm of pointer authentication makes boots three times slower.
            cpu="max,pauth-impdef=on",
            console="ttyAMA0",
            ram_base=0x4000_0000,
            kernel_arch="arm64",
            triplet="aarch64-linux-gnu",
        ),
        Arch(
            name="riscv64",
            machine_names=("riscv64",),
            qemu="qemu-system-riscv64",
            qemu_package="qemu-system-misc",
            machine="virt",
            cpu="rv64",
            console="ttyS0",
            ram_base=0x8000_0000,
            kernel_arch="riscv",
            triplet="riscv64-linux-gnu",
        ),
    )
}
