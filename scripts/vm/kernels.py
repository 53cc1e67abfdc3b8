# SPDX-License-Identifier: GPL-2.0-or-later
"""The kernels guests run: which suite and package each comes from. A new one is a row.

A kernel is named by its meta package, never by a version: an exact version disappears from the
mirrors when the next one is uploaded.
"""

from __future__ import annotations

from dataclasses import dataclass

from .errors import UsageError


@dataclass(frozen=True)
class Kernel:
    """One row of the table."""

    name: str
    arch: str
    """A name from the table in `arches`."""
    suite: str
    """Where kernel and user space of the guest come from."""
    image: str
    """Meta package that depends on the newest image; headers are found from its release."""
    foreign_headers: str | None
    """Meta package of another flavour's headers: a module built with these must be refused."""
    layout: str
    """The shipped layout this kernel must agree with."""


KERNELS: dict[str, Kernel] = {
    row.name: row
    for row in (
        Kernel(
            name="debian-6.1-amd64",
            arch="amd64",
            suite="bookworm",
            image="linux-image-amd64",
            foreign_headers="linux-headers-cloud-amd64",
            layout="debian-6.1-amd64",
        ),
    )
}

DEFAULT = "debian-6.1-amd64"


def kernel(name: str) -> Kernel:
    """The row called ``name``; raises `UsageError` that lists the names there are."""
    if name not in KERNELS:
        raise UsageError(f"no kernel is called {name!r}", f"the kernels are: {', '.join(KERNELS)}")
    return KERNELS[name]
