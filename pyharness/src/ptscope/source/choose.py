# SPDX-License-Identifier: GPL-2.0-or-later
"""Which source to use."""

from __future__ import annotations

from dataclasses import dataclass

from ptscope.errors import NotPermitted, PtscopeError, Unsupported
from ptscope.host import Host
from ptscope.source.base import Source
from ptscope.source.module import ModuleSource
from ptscope.source.pagemap import PagemapSource
from ptscope.target.process import Pid

NAMES = ("auto", "module", "pagemap")


@dataclass(frozen=True)
class Choice:
    """A source, and why it is not the module where the module would have been better."""

    source: Source
    instead_of_module: PtscopeError | None


def choose(wanted: str, pid: Pid, host: Host | None = None) -> Choice:
    """The source that `wanted` (one of NAMES) means for this target.

    `auto` is the module when it is usable, else pagemap with the reason; the kernel half has no
    pagemap. Raises Unsupported or NotPermitted when the module is a must and cannot be used.
    """
    if wanted == "pagemap":
        return Choice(PagemapSource(), None)
    try:
        return Choice(ModuleSource.open(host), None)
    except (Unsupported, NotPermitted) as error:
        if wanted == "module" or pid == "kernel":
            raise
        return Choice(PagemapSource(), error)
