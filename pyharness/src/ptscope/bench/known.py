# SPDX-License-Identifier: GPL-2.0-or-later
"""Pages of the module's device, whose frames it tells, for scenarios."""

from __future__ import annotations

from ptscope.bench.stage import NotHere
from ptscope.errors import PtscopeError
from ptscope.source.known import KnownFrames


def known_frames(pages: int) -> KnownFrames:
    """So many pages of the device. Raises NotHere when there are none."""
    try:
        return KnownFrames.allocate(pages)
    except PtscopeError as error:
        raise NotHere(error.cause, error.remedy) from None


class Frames:
    """Pages that scenarios have one after the other, so that all map the same frames."""

    def __init__(self) -> None:
        """None at first."""
        self._known: KnownFrames | None = None

    def reserve(self, pages: int) -> KnownFrames:
        """At least so many; raises NotHere when there are none."""
        if self._known is None or len(self._known.addresses) < pages:
            self.close()
            self._known = known_frames(pages)
        return self._known

    def has(self, pages: int) -> bool:
        """Whether so many are there."""
        return self._known is not None and len(self._known.addresses) >= pages

    def close(self) -> None:
        """Give them back."""
        if self._known is not None:
            self._known.close()
            self._known = None
