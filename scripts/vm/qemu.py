# SPDX-License-Identifier: GPL-2.0-or-later
"""One QEMU process: its command line, its sockets, its end.

QEMU runs in a session of its own, so Ctrl-C in the terminal reaches the harness alone, which ends
QEMU; `setpriv --pdeathsig` has the kernel end QEMU when the harness is killed without a chance to.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import signal
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .accel import Accel
from .arches import Arch
from .errors import SetupError
from .inside import wire
from .proc import need, run
from .variants import Variant

# A busy host must not look like a hung guest: under emulation a guest's second can take many.
CALM = ("watchdog_thresh=60", "rcupdate.rcu_cpu_stall_timeout=120")
# An oops ends the guest at once (panic, and -no-reboot) instead of leaving it half alive.
STRICT = ("oops=panic", "panic=-1")
# What the clock on the board of a guest that counts instructions says when it starts. The kernel
# stirs the time into its random numbers: of two guests a second apart 7.2 had figures 3 % apart.
BOOTED = "2026-01-01T00:00:00"
# The values of mmu-type, all of one length, so that nothing in the tree moves.
MMU_TYPE = re.compile(rb"riscv,sv(?:39|48|57)\0")


@dataclass(frozen=True)
class Machine:
    """Everything about a guest that QEMU must know."""

    arch: Arch
    variant: Variant
    accel: Accel
    kernel: Path
    kernel_release: str
    initrd: Path
    log: Path
    """The console's log."""
    append: tuple[str, ...] = ()
    smp: int = 1
    memory: int = 3584
    """MiB. q35 puts 2 GiB below 4 GiB, with the initrd at their end, and the rest above: of those
    1.5 GiB the first is one whole gigantic page, as the early kernel takes memory from the end."""
    gigantic: int = 1
    """1 GiB huge pages reserved at boot."""
    ram_file: Path | None = None
    """A file that holds the guest's RAM, for reading it from outside."""
    incoming: Path | None = None
    """A saved state to go on from."""
    icount: bool = False
    """The guest's clock counts instructions, 2 ns each (shift=1): one CPU, emulated."""

    def command_line(self) -> str:
        """The kernel's."""
        gigantic = (f"hugepagesz=1G hugepages={self.gigantic}",) if self.gigantic else ()
        words = (
            f"console={self.arch.console}",
            "rdinit=/init",
            *CALM,
            *STRICT,
            *gigantic,
            *self.arch.append,
            *self.variant.append,
            *self.append,
        )
        return " ".join(words)

    def _accel(self) -> list[str]:
        if not self.icount:
            return ["-accel", self.accel.name]
        # Time passes with instructions alone: while the CPU is idle it jumps to the next timer.
        # That is true of the clock on the board, too, which would go by the host's.
        # Nor do the CPU's instructions for random numbers give others in each run: the kernel lays
        # out its memory by them.
        clock = ["-icount", "shift=1,sleep=off", "-rtc", f"base={BOOTED},clock=vm"]
        return ["-accel", "tcg,thread=single", *clock, "-seed", "1"]

    def arguments(self) -> list[str]:
        """QEMU's, without serial port and sockets."""
        cpu = self.arch.cpu + self.variant.cpu
        machine = self.arch.machine
        ram: list[str] = []
        if self.ram_file:
            machine += ",memory-backend=ram"
            ram = [
                "-object",
                f"memory-backend-file,id=ram,size={self.memory}M,share=on,mem-path={self.ram_file}",
            ]
        saved = (
            ["-incoming", f"exec:cat {shlex.quote(str(self.incoming))}"] if self.incoming else []
        )
        return [
            need(self.arch.qemu, self.arch.qemu_package),
            "-M",
            machine,
            *self._accel(),
            "-cpu",
            cpu,
            "-smp",
            str(self.smp),
            "-m",
            str(self.memory),
            *ram,
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-no-reboot",
            *self.arch.firmware,
            "-kernel",
            str(self.kernel),
            "-initrd",
            str(self.initrd),
            "-append",
            self.command_line(),
            *saved,
        ]


def device_tree(machine: Machine) -> list[str]:
    """QEMU's arguments for the device tree of a variant that needs another than QEMU's own.

    It is QEMU's own with one word changed. Raises `SetupError` when that word is not there.
    """
    wanted = machine.variant.mmu_type.encode()
    if not wanted:
        return []
    path = machine.log.with_suffix(".dtb")
    arguments = machine.arguments()
    arguments[arguments.index("-M") + 1] += f",dumpdtb={path}"
    run(arguments, what="having QEMU write its device tree", error=SetupError)
    tree, changed = MMU_TYPE.subn(wanted + b"\0", path.read_bytes())
    if not changed:
        raise SetupError("QEMU's device tree names no MMU", f"it is in {path}")
    path.write_bytes(tree)
    return ["-dtb", str(path)]


def port_arguments(agent: int, monitor: int) -> list[str]:
    """QEMU's arguments for the agent's port and the monitor on two inherited sockets."""
    return [
        "-device",
        # What a guest sends is taken as it sends it; by another thread it would be at any time.
        "virtio-serial-pci,ioeventfd=off",
        "-chardev",
        f"socket,id=agent,fd={agent}",
        "-device",
        f"virtserialport,chardev=agent,name={wire.PORT}",
        "-chardev",
        f"socket,id=qmp,fd={monitor}",
        "-mon",
        "chardev=qmp,mode=control",
    ]


class Qemu:
    """A running QEMU with the host's ends of its two sockets."""

    def __init__(self, machine: Machine) -> None:
        machine.log.parent.mkdir(parents=True, exist_ok=True)
        self.machine = machine
        self.agent, agent = socket.socketpair()
        self.monitor, monitor = socket.socketpair()
        self.errors = machine.log.with_suffix(".qemu")
        command = [
            "setpriv",
            "--pdeathsig",
            "KILL",
            *machine.arguments(),
            *device_tree(machine),
            "-serial",
            f"file:{machine.log}",
            *port_arguments(agent.fileno(), monitor.fileno()),
        ]
        try:
            with self.errors.open("wb") as errors:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=errors,
                    stderr=errors,
                    pass_fds=(agent.fileno(), monitor.fileno()),
                    start_new_session=True,
                )
        except OSError as error:
            raise SetupError(f"cannot start QEMU: {error}") from error
        finally:
            agent.close()
            monitor.close()

    def complaint(self) -> str:
        """What QEMU itself printed (a wrong option, no memory)."""
        with contextlib.suppress(OSError):
            return self.errors.read_text(errors="replace").strip()
        return ""

    def wait(self, seconds: float) -> bool:
        """Whether QEMU ended by itself within this time."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def end(self) -> None:
        """End QEMU now."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
        self.agent.close()
        self.monitor.close()
        if not self.complaint():
            self.errors.unlink(missing_ok=True)


def console_command(machine: Machine) -> Sequence[str]:
    """The command that runs a guest with the terminal as its console; Ctrl-C goes to the guest."""
    return [
        "setpriv",
        "--pdeathsig",
        "KILL",
        *machine.arguments(),
        *device_tree(machine),
        "-chardev",
        f"stdio,id=terminal,mux=on,signal=off,logfile={machine.log}",
        "-serial",
        "chardev:terminal",
        "-mon",
        "chardev=terminal",
    ]
