# SPDX-License-Identifier: GPL-2.0-or-later
"""Install the Debian packages that building and running need, those that are missing only."""

from __future__ import annotations

import os
from collections.abc import Sequence

from . import paths
from .apt import installed
from .arches import ARCHES
from .errors import SetupError
from .proc import need, run
from .say import say

PACKAGES = (
    "cpio",
    "debian-archive-keyring",
    "gcc",
    "kmod",
    "libc6-dev",
    "make",
    "mmdebstrap",
    "python3-dev",
    "python3-venv",
    "shellcheck",
    "sparse",
    "tar",
    "util-linux",
    "xz-utils",
    # What the kernel's headers need to build a module against them.
    "gcc-12",
    "libelf-dev",
    # cffi, should the package index have no built one for this machine.
    "libffi-dev",
)


def install(more: Sequence[str] = ()) -> None:
    """Install what is missing; raises `SetupError` without root or network when something is.

    ``more`` are packages that only the caller needs.
    """
    names = sorted({*PACKAGES, *(arch.qemu_package for arch in ARCHES.values()), *more})
    need("dpkg-query", "dpkg")
    have = installed(names)
    missing = [name for name in names if name not in have]
    if not missing:
        say(f"all {len(names)} Debian packages needed are installed")
        return
    if os.geteuid() != 0:
        raise SetupError(
            f"these packages are missing: {' '.join(missing)}",
            f"run as root: apt-get install {' '.join(missing)}",
        )
    say(f"installing {' '.join(missing)}")
    env = {"DEBIAN_FRONTEND": "noninteractive"}
    remedy = "is the network there, and does `apt-get update` succeed?"
    run(
        ["apt-get", "-q", "-o", "APT::Update::Error-Mode=any", "update"],
        what="apt-get update",
        error=SetupError,
        remedy=remedy,
        env=env,
    )
    run(
        ["apt-get", "-q", "-y", "--no-install-recommends", "install", *missing],
        what="apt-get install",
        env=env,
        error=SetupError,
        remedy=remedy,
        cwd=paths.REPO,
    )
    say("installed")
