# SPDX-License-Identifier: GPL-2.0-or-later
"""What a walk as a whole allows, and which level decides it.

The hardware takes the AND of the permissions of all levels it walks (for execution that
is the OR of no-execute).  Under PTI it has two roots: user mode runs on a
copy of the PGD, and the kernel's own copy carries no-execute on user entries, so
what user code may do is decided with the copy's entry in place of the root.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ptscope.decode.entry import Entry
from ptscope.decode.layout import Layout
from ptscope.decode.table import MAPPED
from ptscope.errors import UsageError

PERMISSIONS = ("read", "write", "exec", "user")


@dataclass(frozen=True, slots=True)
class Effective:
    """The permissions of an address.

    `decided_by` names for each permission the first level, from the root, that
    denies it; None when it is allowed, and for all when nothing is mapped.  With
    `user` false, `exec` and the others are what the kernel may do.  Protection
    keys, SMEP and SMAP are not part of the tables and not of this.
    """

    read: bool
    write: bool
    exec: bool
    user: bool
    decided_by: Mapping[str, str | None]

    def to_json(self) -> dict[str, object]:
        """The four permissions, and `decided_by`."""
        return {
            **{name: getattr(self, name) for name in PERMISSIONS},
            "decided_by": dict(self.decided_by),
        }


def effective(layout: Layout, entries: Sequence[Entry], user_pgd: Entry | None = None) -> Effective:
    """Combine the entries of one walk, root first and down to where it ended.

    `user_pgd` is the entry of the PTI user copy for the same address.  Where the
    copy is empty (most of the kernel half) user mode has no access and the rest is what
    the kernel's own root allows.  Raises UsageError when `entries` is not a walk of `layout`
    from the root.
    """
    names = [level.name for level in layout.levels]
    if not entries or [entry.level for entry in entries] != names[: len(entries)]:
        raise UsageError("the entries are not one walk from the root of this layout")
    last = entries[-1]
    if last.state not in MAPPED and last.state != "invalid":
        return Effective(False, False, False, False, dict.fromkeys(PERMISSIONS))
    walked = list(entries)
    user_denied_by: str | None = None
    if user_pgd is not None:
        if user_pgd.hw_present and user_pgd.access is not None:
            walked[0] = user_pgd
        else:
            user_denied_by = user_pgd.level
    decided: dict[str, str | None] = {}
    for name in PERMISSIONS:
        decided[name] = next((entry.level for entry in walked if not _allows(entry, name)), None)
    decided["user"] = user_denied_by or decided["user"]
    return Effective(
        read=decided["read"] is None,
        write=decided["write"] is None,
        exec=decided["exec"] is None,
        user=decided["user"] is None,
        decided_by=decided,
    )


def _allows(entry: Entry, permission: str) -> bool:
    """A level allows something only if the hardware takes its entry and the entry says so."""
    if not entry.hw_present or entry.access is None:
        return False
    return bool(getattr(entry.access, permission))
