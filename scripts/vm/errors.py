# SPDX-License-Identifier: GPL-2.0-or-later
"""What can go wrong in the harness itself, each with its own exit status.

A command that ran in a guest ends the harness with that command's own status. The statuses here lie
where a shell has none of its own (0-125 are commonly used by commands, 126-127 by the shell and
128+n by signals), so a script can tell "the guest command said 2" from "the guest never answered".
"""

from __future__ import annotations

from typing import ClassVar


class VmError(Exception):
    """The harness cannot go on; ``remedy`` says what a person can do about it."""

    exit_status: ClassVar[int] = 200

    def __init__(self, cause: str, remedy: str | None = None) -> None:
        super().__init__(cause)
        self.cause = cause
        self.remedy = remedy


class UsageError(VmError):
    """Wrong options or names given to the harness."""

    exit_status = 201


class SetupError(VmError):
    """This machine lacks something: privilege, a program, the network."""

    exit_status = 202


class BuildError(VmError):
    """The module, the package or an image did not build."""

    exit_status = 203


class NoResult(VmError):
    """The guest ended, or its time did, without the result it owed."""

    exit_status = 204


class TimedOut(NoResult):
    """A command had its time; the guest itself may be well."""


class NeverUp(NoResult):
    """The guest's agent never answered."""


class ModuleRefused(VmError):
    """The guest's kernel refused to load ptscope.ko."""

    exit_status = 205


class Splat(VmError):
    """The guest's kernel reported a bug of its own (oops, warning, lockdep, stall...)."""

    exit_status = 206


class Missing(SetupError):
    """A suite no longer has, or does not yet have, a package."""

    exit_status = 207
