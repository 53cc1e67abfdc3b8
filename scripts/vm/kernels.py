# SPDX-License-Identifier: GPL-2.0-or-later
"""The kernels guests run: which suite and package each comes from. A new one is a row.

A kernel is named by its meta package, never by a version: an exact version disappears from the
mirrors when the next one is uploaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .errors import UsageError


@dataclass(frozen=True)
class Built:
    """A kernel that is built here, for what no packaged one has."""

    package: str
    """Debian's package of the source."""
    config: str
    """File below configs/ with the options that are added to tinyconfig."""


@dataclass(frozen=True)
class Kernel:
    """One row of the table."""

    name: str
    arch: str
    """A name from the table in `arches`."""
    suite: str
    """Where the kernel comes from."""
    levels: Mapping[str, int]
    """The variants this kernel is booted in, the default one first, and how many page-table levels
    the hardware then walks: both the kernel's config and the CPU decide."""
    image: str = ""
    """Meta package that depends on the newest image."""
    headers: str = ""
    """Meta package that depends on the newest headers."""
    built: Built | None = None
    """How it is built; it then has no packages of image and headers."""
    userland: str = "bookworm"
    """The suite of the guest's user space."""
    toolchain: str = "sid"
    """The suite whose compiler builds modules for it; "host" for this machine's own."""
    foreign_headers: str | None = None
    """Meta package of another flavour's headers: a module built with these must be refused."""
    memory: int = 3584
    """MiB of a guest."""
    laid_out_as: str = ""
    """The kernel whose shipped layout it shares; none: it has one of its own."""

    @property
    def layout(self) -> str:
        """The shipped layout this kernel must agree with."""
        return self.laid_out_as or self.name

    @property
    def default_variant(self) -> str:
        """The first of its variants."""
        return next(iter(self.levels))


CHECKING = "checking-6.12-amd64"
"""The kernel with the checkers: KASAN, lockdep, page_table_check, ptdump, failslab."""

_X86_5 = {"5-level": 5, "4-level": 4, "pti": 5, "4-level-pti": 4}
# 5.10 in Debian has no CONFIG_X86_5LEVEL: it walks four levels whatever the CPU can.
_X86_4 = {"4-level": 4, "4-level-pti": 4}
_ARM64_4K = {"lpa2": 5, "no-lpa2": 4}
_ARM64_16K = {"lpa2": 4, "no-lpa2": 3}
_RISCV64 = {"sv57": 5, "sv48": 4, "sv39": 3}

KERNELS: dict[str, Kernel] = {
    row.name: row
    for row in (
        Kernel(
            name="debian-5.10-amd64",
            arch="amd64",
            suite="bullseye",
            image="linux-image-amd64",
            headers="linux-headers-amd64",
            levels=_X86_4,
        ),
        Kernel(
            name="debian-6.1-amd64",
            arch="amd64",
            suite="bookworm",
            image="linux-image-amd64",
            headers="linux-headers-amd64",
            levels=_X86_5,
            toolchain="host",
            foreign_headers="linux-headers-cloud-amd64",
        ),
        Kernel(
            name="debian-6.12-amd64",
            arch="amd64",
            suite="trixie",
            image="linux-image-amd64",
            headers="linux-headers-amd64",
            levels=_X86_5,
        ),
        Kernel(
            name="debian-7.2-amd64",
            arch="amd64",
            suite="sid",
            image="linux-image-amd64",
            headers="linux-headers-amd64",
            levels=_X86_5,
        ),
        Kernel(
            name="debian-7.3-amd64",
            arch="amd64",
            suite="experimental",
            image="linux-image-amd64",
            headers="linux-headers-amd64",
            levels=_X86_5,
        ),
        Kernel(
            name="debian-6.1-arm64",
            arch="arm64",
            suite="bookworm",
            image="linux-image-arm64",
            headers="linux-headers-arm64",
            # Compiled for 48 bits of virtual and physical address, whatever the CPU can.
            levels={"48-bit": 4},
        ),
        Kernel(
            name="debian-6.12-arm64",
            arch="arm64",
            suite="trixie",
            image="linux-image-arm64",
            headers="linux-headers-arm64",
            levels=_ARM64_4K,
        ),
        Kernel(
            name="debian-7.2-arm64",
            arch="arm64",
            suite="sid",
            image="linux-image-arm64",
            headers="linux-headers-arm64",
            levels=_ARM64_4K,
        ),
        Kernel(
            name="debian-6.12-arm64-16k",
            arch="arm64",
            suite="trixie",
            image="linux-image-arm64-16k",
            headers="linux-headers-arm64-16k",
            levels=_ARM64_16K,
        ),
        Kernel(
            name="debian-7.2-arm64-16k",
            arch="arm64",
            suite="sid",
            image="linux-image-arm64-16k",
            headers="linux-headers-arm64-16k",
            levels=_ARM64_16K,
            # Of 3584 MiB a few pages above its watermark are left in the zone that is used first:
            # allocations take a longer way, until something is freed there.
            memory=5120,
        ),
        Kernel(
            name="debian-6.12-riscv64",
            arch="riscv64",
            suite="trixie",
            image="linux-image-riscv64",
            headers="linux-headers-riscv64",
            levels=_RISCV64,
            # Debian 12 has no riscv64.
            userland="trixie",
        ),
        Kernel(
            name="debian-7.2-riscv64",
            arch="riscv64",
            suite="sid",
            image="linux-image-riscv64",
            headers="linux-headers-riscv64",
            levels=_RISCV64,
            userland="trixie",
        ),
        # Last: it is built while the guests of the others run.
        Kernel(
            name=CHECKING,
            arch="amd64",
            suite="trixie",
            built=Built("linux-source-6.12", "checking-amd64.config"),
            levels={"5-level": 5, "4-level-pti": 4},
            laid_out_as="debian-6.12-amd64",
            # KASAN keeps an eighth for itself, at the end, where the gigantic page would be.
            memory=5120,
        ),
    )
}

DEFAULT = "debian-6.1-amd64"


def kernel(name: str) -> Kernel:
    """The row called ``name``; raises `UsageError` that lists the names there are."""
    if name not in KERNELS:
        raise UsageError(f"no kernel is called {name!r}", f"the kernels are: {', '.join(KERNELS)}")
    return KERNELS[name]
