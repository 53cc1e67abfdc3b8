# SPDX-License-Identifier: GPL-2.0-or-later
"""The decoding tables, one module for each architecture."""

from __future__ import annotations

from importlib import import_module

from ptscope.decode.table import Architecture
from ptscope.errors import Unsupported

_MODULES = {name: f"ptscope.decode.arch.{name}" for name in ("x86_64", "arm64", "riscv64")}


def architecture(name: str) -> Architecture:
    """Return the table of the architecture `name` (as the module names it: arm64 for aarch64).

    Raises Unsupported when there is none.
    """
    if name not in _MODULES:
        raise Unsupported(
            f"no decoding table for architecture {name!r}",
            remedy=f"known architectures: {', '.join(_MODULES)}",
        )
    table: Architecture = import_module(_MODULES[name]).ARCHITECTURE
    return table
