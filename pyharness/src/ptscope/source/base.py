# SPDX-License-Identifier: GPL-2.0-or-later
"""What every source gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ptscope.raw.records import Lock, RawEntry
from ptscope.target.process import Pid
from ptscope.target.vma import Vma

if TYPE_CHECKING:
    from ptscope.decode.layout import Layout
    from ptscope.raw.pagemap import Page


@dataclass(frozen=True)
class RawLeaf:
    """What pagemap and its neighbours say of a page.

    Sizes in bytes: `base_size` is that of the pages that pagemap counts in; `page_size`, that of
    the mapping, is None when they do not tell it: a page of a folio that may or may not be mapped
    by one PMD.
    """

    page: Page
    base_size: int
    page_size: int | None


@dataclass(frozen=True)
class RawWalk:
    """One address, not interpreted.

    The module gives `entries`, root first, `user_pgd` under PTI, and the `lock` that they and the
    `vma` were read under. pagemap gives none of these but a `leaf`.
    """

    address: int
    entries: tuple[RawEntry, ...]
    user_pgd: RawEntry | None
    vma: Vma | None
    lock: Lock
    leaf: RawLeaf | None = None


class Source(Protocol):
    """Something that can be asked for addresses of a process."""

    @property
    def name(self) -> str:
        """`module` or `pagemap`."""

    @property
    def layout(self) -> Layout | None:
        """The running kernel's layout; None when this source cannot know it."""

    def walk(self, pid: Pid, addresses: Sequence[int]) -> list[RawWalk]:
        """One RawWalk for each address, in their order."""
