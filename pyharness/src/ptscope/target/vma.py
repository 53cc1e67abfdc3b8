# SPDX-License-Identifier: GPL-2.0-or-later
"""VMAs, from /proc/PID/maps and from the module's records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ptscope.target.access import cannot_read, mm_gone


@dataclass(frozen=True, slots=True)
class Vma:
    """One VMA; `end` is the first address after it, `offset` is in bytes.

    `permissions` are the four characters of /proc/PID/maps. `vm_flags` are the kernel's own flags
    and known only when the module reported the VMA; their bits are named by the layout.
    """

    start: int
    end: int
    permissions: str
    offset: int
    device: str
    inode: int
    name: str
    vm_flags: int | None = None

    def __contains__(self, address: int) -> bool:
        return self.start <= address < self.end

    def to_json(self) -> dict[str, object]:
        """The `vma` object of `walk --json`."""
        return {
            "start": hex(self.start),
            "end": hex(self.end),
            "permissions": self.permissions,
            "offset": hex(self.offset),
            "device": self.device,
            "inode": self.inode,
            "name": self.name,
            "vm_flags": None if self.vm_flags is None else hex(self.vm_flags),
        }


def parse_maps(lines: Iterable[str]) -> Iterator[Vma]:
    """VMAs of the lines of a `maps` file (man proc_pid_maps)."""
    return map(parse_map, lines)


def parse_map(line: str) -> Vma:
    """The VMA of one such line."""
    span, permissions, offset, device, inode, *name = line.rstrip("\n").split(maxsplit=5)
    start, _, end = span.partition("-")
    return Vma(
        int(start, 16),
        int(end, 16),
        permissions,
        int(offset, 16),
        device,
        int(inode),
        name[0] if name else "",
    )


def read_maps(proc: Path) -> tuple[Vma, ...]:
    """All VMAs of the process whose directory under /proc is `proc`, in order of address.

    Raises NotPermitted for a process of somebody else, Exited or ChangedIdentity when the address
    space is gone.
    """
    path = proc / "maps"
    try:
        with path.open(errors="backslashreplace") as maps:
            vmas = tuple(parse_maps(maps))
    except OSError as error:
        raise cannot_read(path, error) from None
    # Code that runs has a VMA it runs from: only the maps of a dead address space are empty.
    if not vmas:
        raise mm_gone(proc)
    return vmas


def find_vma(vmas: Sequence[Vma], address: int) -> Vma | None:
    """The VMA that holds `address`."""
    return next((vma for vma in vmas if address in vma), None)


def named(vma: Vma, others: Sequence[Vma]) -> Vma:
    """`vma` with the name that /proc/PID/maps gives the same range of the same file.

    maps is read later than the VMA, so a name is taken only where all else still agrees.
    """
    for other in others:
        if (other.start, other.end, other.inode) == (vma.start, vma.end, vma.inode):
            return replace(vma, name=other.name)
    return vma
