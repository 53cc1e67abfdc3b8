# SPDX-License-Identifier: GPL-2.0-or-later
"""Write newc cpio archives, the format of an initramfs, so that equal inputs give equal bytes.

Names are written in sorted order, inode numbers count up, every owner is root and every time is
`EPOCH`. A guest's initrd is several archives one after another: the kernel unpacks each. The format
is described in the kernel's Documentation/driver-api/early-userspace/buffer-format.rst.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

EPOCH = 0
ALIGN = 512
"""Archives are padded to this many bytes, so that what follows begins aligned."""


@dataclass(frozen=True)
class Entry:
    """A file, directory or symbolic link; ``data`` is a link's target."""

    mode: int
    data: bytes | Path = b""

    def content(self) -> bytes:
        """The bytes of the file or the target of the link."""
        return self.data.read_bytes() if isinstance(self.data, Path) else self.data


Tree = Mapping[str, Entry]
"""Path in the guest without leading slash, and what is there."""


def directory(mode: int = 0o755) -> Entry:
    """A directory."""
    return Entry(stat.S_IFDIR | mode)


def file(data: bytes | str | Path, mode: int = 0o644) -> Entry:
    """A file with these contents, or those of a file on the host."""
    return Entry(stat.S_IFREG | mode, data.encode() if isinstance(data, str) else data)


def link(target: str) -> Entry:
    """A symbolic link."""
    return Entry(stat.S_IFLNK | 0o777, target.encode())


def from_dir(root: Path, prefix: str = "") -> Iterator[tuple[str, Entry]]:
    """Entries for everything below ``root``; sockets, pipes and devices are left out."""
    for path in root.rglob("*"):
        mode = path.lstat().st_mode
        name = f"{prefix}{path.relative_to(root)}"
        if stat.S_ISLNK(mode):
            yield name, link(str(path.readlink()))
        elif stat.S_ISDIR(mode):
            yield name, directory(stat.S_IMODE(mode))
        elif stat.S_ISREG(mode):
            yield name, file(path, stat.S_IMODE(mode))


def with_parents(tree: Tree) -> dict[str, Entry]:
    """The same tree with a directory for every parent that has no entry of its own."""
    full = dict(tree)
    for name in tree:
        parts = name.split("/")
        for length in range(1, len(parts)):
            full.setdefault("/".join(parts[:length]), directory())
    return full


def _record(number: int, name: str, mode: int, data: bytes) -> bytes:
    raw_name = name.encode() + b"\0"
    links = 2 if stat.S_ISDIR(mode) else 1
    fields = (number, mode, 0, 0, links, EPOCH, len(data), 0, 0, 0, 0, len(raw_name), 0)
    header = b"070701" + b"".join(b"%08X" % field for field in fields)
    return _pad(header + raw_name, 4) + _pad(data, 4)


def _pad(data: bytes, align: int) -> bytes:
    return data + b"\0" * (-len(data) % align)


def write(tree: Tree, out: BinaryIO) -> None:
    """Write ``tree`` to ``out`` as one archive. Parents sort before what they hold."""
    written = 0
    for number, (name, entry) in enumerate(sorted(with_parents(tree).items()), start=1):
        written += out.write(_record(number, name, entry.mode, entry.content()))
    written += out.write(_record(0, "TRAILER!!!", 0, b""))
    out.write(b"\0" * (-written % ALIGN))
