# SPDX-License-Identifier: GPL-2.0-or-later
"""Facts about the machine that ptscope runs on: kernel, lockdown, debugfs, module, privilege.

Each fact is one question to /proc or /sys, read when asked. `root` is "/" except in tests.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

# include/uapi/linux/capability.h
CAP_SYS_PTRACE = 19
CAP_SYS_ADMIN = 21
SECURE_BOOT_VARIABLE = "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"


@dataclass(frozen=True)
class Host:
    """The machine below `root`."""

    root: Path = Path("/")

    @cached_property
    def release(self) -> str:
        """The running kernel's release, as `uname -r` gives it."""
        return self._text("proc/sys/kernel/osrelease") or os.uname().release

    @property
    def machine(self) -> str:
        """The architecture, as `uname -m` gives it."""
        return os.uname().machine

    @property
    def lockdown(self) -> str | None:
        """Lockdown mode: none, integrity or confidentiality; None when the kernel tells nothing.

        The current mode stands in brackets (security/lockdown/lockdown.c).
        """
        text = self._text("sys/kernel/security/lockdown")
        if text is None or "[" not in text:
            return None
        return text[text.index("[") + 1 : text.index("]")]

    @property
    def locked_down(self) -> bool:
        """Whether lockdown forbids something. Integrity is enough to refuse unsigned modules and
        writable debugfs files."""
        return self.lockdown in ("integrity", "confidentiality")

    @property
    def secure_boot(self) -> bool | None:
        """Whether the firmware booted with Secure Boot; None without EFI variables.

        The variable is four bytes of attributes and one byte of value (Documentation/filesystems/
        efivarfs.rst).
        """
        try:
            data = (self.root / "sys/firmware/efi/efivars" / SECURE_BOOT_VARIABLE).read_bytes()
        except OSError:
            return None
        return data[4:5] == b"\1"

    @property
    def procfs(self) -> bool:
        """Whether /proc is mounted. Without it nothing is known of mounts and capabilities."""
        return os.path.lexists(self.root / "proc/self")

    @property
    def debugfs(self) -> Path | None:
        """Where debugfs is mounted; None when it is not."""
        for line in (self._text("proc/self/mounts") or "").splitlines():
            _, where, kind, *_ = line.split()
            if kind == "debugfs":
                return self.root / unescaped(where).lstrip("/")
        return None

    @property
    def module_loaded(self) -> bool:
        """Whether ptscope.ko is in the kernel; everybody may see that."""
        return (self.root / "sys/module/ptscope").exists()

    @cached_property
    def sys_admin(self) -> bool:
        """Whether this process has CAP_SYS_ADMIN in its own user namespace."""
        return self._capable(CAP_SYS_ADMIN)

    @cached_property
    def sys_ptrace(self) -> bool:
        """Whether this process has CAP_SYS_PTRACE, which other users' processes take."""
        return self._capable(CAP_SYS_PTRACE)

    def _capable(self, capability: int) -> bool:
        for line in (self._text("proc/self/status") or "").splitlines():
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> capability & 1)
        return False

    def _text(self, path: str) -> str | None:
        try:
            return (self.root / path).read_text(errors="replace").strip()
        except OSError:
            return None


def unescaped(word: str) -> str:
    r"""A word of /proc/mounts, where blanks and backslashes are octal (fs/seq_file.c): ``\040``."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), word)
