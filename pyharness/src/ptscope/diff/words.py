# SPDX-License-Identifier: GPL-2.0-or-later
"""What a change is called."""

from __future__ import annotations

from functools import lru_cache

from ptscope._core import lib
from ptscope.decode.compiled import ATTRIBUTE
from ptscope.decode.table import MAPPED, STATES
from ptscope.diff.merge import Change

# States that an entry went from and to; "mapped" is any that has a page, "*" all others. Of the
# rows that fit the first counts.
TRANSITIONS: tuple[tuple[str, str, str], ...] = (
    ("none", "mapped", "page appeared"),
    ("mapped", "none", "page vanished"),
    ("mapped", "swap", "swapped out"),
    ("swap", "mapped", "swapped in"),
    ("none", "swap", "swap entry appeared"),
    ("swap", "none", "swap entry vanished"),
    ("leaf", "protnone", "protection none"),
    ("protnone", "leaf", "accessible again"),
    ("*", "splitting", "being split"),
    ("splitting", "mapped", "no longer being split"),
    ("*", "migration", "migration began"),
    ("migration", "mapped", "migration ended"),
    ("migration", "none", "page vanished"),
    ("*", "device", "moved to a device"),
    ("device", "mapped", "came back from a device"),
    ("*", "hwpoison", "memory error"),
    ("hwpoison", "*", "memory error gone"),
    ("*", "marker", "marker set"),
    ("marker", "mapped", "page appeared"),
    ("marker", "*", "marker gone"),
    ("*", "invalid", "became invalid"),
    ("invalid", "*", "no longer invalid"),
)
# Attributes by their names in the decoder: the words when gained and when lost.
ATTRIBUTES: tuple[tuple[str, str, str], ...] = (
    ("access.write", "became writable", "became read-only"),
    ("access.exec", "became executable", "no longer executable"),
    ("access.read", "became readable", "no longer readable"),
    ("access.user", "became the user's", "no longer the user's"),
    ("contiguous", "joined a group", "left its group"),
    ("dirty", "dirtied", "no longer dirty"),
    ("soft_dirty", "soft-dirty since", "soft-dirty cleared"),
    ("uffd_wp", "write-protected by userfaultfd", "userfaultfd protection gone"),
    ("special", "became special", "no longer special"),
    ("global_", "became global", "no longer global"),
    ("encrypted", "became encrypted", "no longer encrypted"),
    ("shadow_stack", "became shadow stack", "no longer shadow stack"),
    ("accessed", "accessed since", "accessed bit cleared"),
)
OTHERS: tuple[tuple[int, str], ...] = (
    (lib.PTSCOPE_CHANGE_LARGER, "became huge"),
    (lib.PTSCOPE_CHANGE_SMALLER, "split"),
    (lib.PTSCOPE_CHANGE_FRAME, "moved frame"),
    (lib.PTSCOPE_CHANGE_SLOT, "another swap slot"),
    (lib.PTSCOPE_CHANGE_KIND, "another kind of special entry"),
    (lib.PTSCOPE_CHANGE_PKEY, "another protection key"),
    (lib.PTSCOPE_CHANGE_BITS, "other bits"),
)
# A change of attributes goes along with what became of a page, but is not what matters then.
HUGE_WORDS = {"page appeared": "huge page appeared", "page vanished": "huge page vanished"}


@lru_cache(maxsize=4096)
def words(change: Change) -> tuple[str, ...]:
    """The words for a change, the weightiest first; at least one."""
    found = []
    if change.old_state != change.new_state:
        word = _transition(STATES[change.old_state], STATES[change.new_state])
        found.append(HUGE_WORDS.get(word, word) if change.what & lib.PTSCOPE_CHANGE_HUGE else word)
    found += [word for bit, word in OTHERS if change.what & bit]
    for name, gained, lost in ATTRIBUTES:
        if change.gained & ATTRIBUTE[name]:
            found.append(gained)
        elif change.lost & ATTRIBUTE[name]:
            found.append(lost)
    return tuple(found)


def _transition(old: str, new: str) -> str:
    def fits(pattern: str, state: str) -> bool:
        return pattern in ("*", state) or (pattern == "mapped" and state in MAPPED)

    for before, after, word in TRANSITIONS:
        if fits(before, old) and fits(after, new):
            return word
    return f"{old} became {new}"
