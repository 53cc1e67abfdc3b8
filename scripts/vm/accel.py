# SPDX-License-Identifier: GPL-2.0-or-later
"""Which accelerator runs a guest: KVM where a guest really boots on it, otherwise TCG (emulation).

A machine may have /dev/kvm, and even create a VM on it, without a guest ever booting (a paravirtual
host). So KVM needs the CPU's flags and a guest that boots; the probe's answer is cached.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from . import paths, store
from .arches import Arch
from .say import say
from .variants import Variant

PROBE_SECONDS = 20
MARK = "Linux version"
"""A kernel that prints this has decompressed itself and started: enough for the probe."""


@dataclass(frozen=True)
class Accel:
    """The choice and why."""

    name: str
    """QEMU's name: kvm or tcg."""
    reason: str

    def __str__(self) -> str:
        return f"{self.name.upper()} ({self.reason})"


COUNTING = Accel("tcg", "instructions are counted")
"""What `Machine.icount` needs."""


def cpu_flags(cpuinfo: str) -> frozenset[str]:
    """The flags of the first CPU in the text of /proc/cpuinfo."""
    match = re.search(r"^(?:flags|Features)\s*:(.*)$", cpuinfo, re.MULTILINE)
    return frozenset(match[1].split()) if match else frozenset()


def decide(
    arch: Arch, variant: Variant, machine: str, flags: frozenset[str], device: bool
) -> str | None:
    """Why KVM cannot be used here, or None when a boot probe has to tell."""
    if machine not in arch.machine_names:
        return f"a guest of {arch.name} on {machine}"
    if not device:
        return "/dev/kvm is not there or not writable"
    if machine == "x86_64" and not flags & {"vmx", "svm"}:
        return "the CPU shows neither vmx nor svm"
    missing = [flag for flag in variant.host_flags if flag not in flags]
    if missing:
        return f"the host's CPU lacks {', '.join(missing)}"
    return None


def _probe(arch: Arch, image: Path) -> bool:
    """Whether this kernel starts under KVM within `PROBE_SECONDS`."""
    with tempfile.NamedTemporaryFile(prefix="ptscope-probe-") as log:
        command = [
            arch.qemu,
            "-M",
            arch.machine,
            "-accel",
            "kvm",
            "-cpu",
            "host",
            "-m",
            "256",
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-no-reboot",
            "-serial",
            f"file:{log.name}",
            "-kernel",
            str(image),
            "-append",
            f"console={arch.console} panic=-1",
        ]
        try:
            # Without a root the kernel panics and, with -no-reboot, ends QEMU.
            subprocess.run(
                command,
                timeout=PROBE_SECONDS,
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            pass
        except OSError:
            return False
        return MARK in Path(log.name).read_text(errors="replace")


def choose(
    arch: Arch, variant: Variant, image: Path, environ: Mapping[str, str] = os.environ
) -> Accel:
    """The accelerator for this guest; PTSCOPE_ACCEL=kvm or tcg overrides."""
    forced = environ.get("PTSCOPE_ACCEL")
    if forced:
        return Accel(forced, "PTSCOPE_ACCEL says so")
    cpuinfo = Path("/proc/cpuinfo").read_text(errors="replace")
    flags = cpu_flags(cpuinfo)
    reason = decide(
        arch, variant, platform.machine(), flags, os.access("/dev/kvm", os.R_OK | os.W_OK)
    )
    if reason:
        return Accel("tcg", reason)
    key = store.digest(" ".join(sorted(flags)), str(image), platform.release())
    answer = paths.cache() / "kvm" / key
    if not answer.exists():
        say("trying whether a guest boots under KVM")
        store.write(answer, "kvm\n" if _probe(arch, image) else "tcg\n")
    if answer.read_text().strip() == "kvm":
        return Accel("kvm", "a guest boots on it")
    return Accel("tcg", "KVM is there but no guest boots on it")
