# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether /proc is there, and shows the processes under the numbers that system calls use."""

from __future__ import annotations

import os
from pathlib import Path

from ptscope.errors import PtscopeError, Unsupported


def procfs_error(proc: Path = Path("/proc")) -> PtscopeError | None:
    """Why the PIDs in `proc` cannot be used as ours; None when they can.

    A procfs shows the PID namespace of who mounted it. `NSpid` lists our PIDs in that namespace and
    in those nested in it down to our own (fs/proc/array.c), so it is one number where they are the
    same; kernels without PID namespaces have no such line.
    """
    own = proc / "self"
    try:
        status = (own / "status").read_text(errors="replace")
    except FileNotFoundError:
        # The link is in every procfs; it leads nowhere for who is in no namespace that it shows.
        if not own.is_symlink():
            return not_mounted(proc)
        return _foreign(proc)
    except OSError as error:
        return Unsupported(f"{proc} cannot be read: {error.strerror}")
    numbers = next((line for line in status.splitlines() if line.startswith("NSpid:")), None)
    if numbers is not None and numbers.split()[1:] != [str(os.getpid())]:
        return _foreign(proc)
    return None


def check_procfs(proc: Path = Path("/proc")) -> None:
    """Raise what `procfs_error` gives."""
    error = procfs_error(proc)
    if error is not None:
        raise error


def not_mounted(proc: Path) -> PtscopeError:
    """The error for a machine without /proc."""
    return Unsupported(f"{proc} is not mounted", f"as root: `mount -t proc proc {proc}`")


def _foreign(proc: Path) -> PtscopeError:
    return Unsupported(
        f"the {proc} mounted here belongs to another PID namespace: its PIDs are not ours",
        f"as root, inside: `mount -t proc proc {proc}`, or start it by `unshare --pid --fork "
        "--mount-proc`",
    )
