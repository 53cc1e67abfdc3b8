# SPDX-License-Identifier: GPL-2.0-or-later
"""What a walk as a whole allows, and which level decides it.

A permission is the AND over all levels walked of what each entry allows (for execution that
is the OR of no-execute).  What an entry is asked is data of the architecture (`Fold`):
riscv table entries allow everything, and arm64 ones forbid execution to user and
kernel with a bit each.  Under x86 PTI there are two roots: user mode runs on a
copy of the PGD, and the kernel's own copy carries no-execute on user entries, so
what user code may do is decided with the copy's entry in place of the root.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ptscope.decode.arch import architecture
from ptscope.decode.entry import Entry, has_attribute
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
    folds = {fold.permission: fold for fold in architecture(layout.arch).folds}

    def first_that_denies(permission: str, is_user: bool) -> str | None:
        attribute = folds[permission].attribute(is_user)
        return next(
            (entry.level for entry in walked if not _allows(layout, entry, attribute)), None
        )

    user = user_denied_by or first_that_denies("user", True)
    decided = {name: first_that_denies(name, user is None) for name in PERMISSIONS}
    decided["user"] = user
    return Effective(
        read=decided["read"] is None,
        write=decided["write"] is None,
        exec=decided["exec"] is None,
        user=decided["user"] is None,
        decided_by=decided,
    )


def _allows(layout: Layout, entry: Entry, attribute: str) -> bool:
    """A level allows something only if the hardware takes its entry and the entry says so."""
    return entry.hw_present and entry.access is not None and has_attribute(layout, entry, attribute)
