# SPDX-License-Identifier: GPL-2.0-or-later
"""What can go wrong, and with which exit status.

Every error a user can meet names its cause and, where there is one, the remedy. The exit statuses
are part of the interface: 0 done, 1 a comparison found something, 2 wrong usage, 3 the target
cannot be walked, 4 not permitted, 5 module or kernel support is missing, and 74 (EX_IOERR) when the
output cannot be written.
"""

from __future__ import annotations

import os
from typing import ClassVar

EXIT_DONE = 0
EXIT_FOUND = 1


class PtscopeError(Exception):
    """Base of all errors shown to users.

    `cause` is one sentence without a full stop; `remedy`, when there is one, says what to do.
    """

    exit_status: ClassVar[int] = 5

    def __init__(self, cause: str, remedy: str | None = None) -> None:
        super().__init__(cause)
        self.cause = cause
        self.remedy = remedy

    @property
    def kind(self) -> str:
        """The name of the class: what a program tells errors apart by."""
        return type(self).__name__

    def to_json(self) -> dict[str, object]:
        """The `error` object that `--json` prints."""
        return {
            "kind": self.kind,
            "cause": self.cause,
            "remedy": self.remedy,
            "exit_status": self.exit_status,
        }


class UsageError(PtscopeError):
    """The command line asks for something that cannot be meant: also a bad address or PID."""

    exit_status = 2


class BadSnapshot(UsageError):
    """What should be a snapshot is none, is damaged, or is of a version that we do not know."""


class CannotWrite(PtscopeError):
    """The output cannot be written: a full disk, no such directory, no permission."""

    exit_status = os.EX_IOERR


class TargetError(PtscopeError):
    """The target cannot be walked."""

    exit_status = 3


class NoSuchProcess(TargetError):
    """No process has this PID in our PID namespace."""


class KernelThread(TargetError):
    """The target is a kernel thread: it has no user half of its own."""


class Exited(TargetError):
    """The target has exited: a zombie, or it went away while it was walked."""


class ChangedIdentity(TargetError):
    """The PID now means another process, or the target has a new address space (exec)."""


class Unstable(TargetError):
    """The tables changed at each of many reads, so no consistent snapshot was had."""


class NotPermitted(PtscopeError):
    """A privilege is missing, or lockdown forbids it."""

    exit_status = 4


class Unsupported(PtscopeError):
    """The module, or something in the kernel, is missing or is another version."""

    exit_status = 5


class BadLayout(Unsupported):
    """What should be a layout is not one, or of another format; `reason` does not name it."""

    def __init__(self, name: str, reason: str, remedy: str | None = None) -> None:
        super().__init__(f"layout {name}: {reason}", remedy)
        self.reason = reason


class BadStream(Unsupported):
    """What the module sent breaks the wire format of ptscope.h or contradicts itself."""
