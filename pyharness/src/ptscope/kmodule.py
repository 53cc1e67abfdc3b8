# SPDX-License-Identifier: GPL-2.0-or-later
"""The module file on disk: where it may be, and which kernel it was built for."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from ptscope.host import Host

# DKMS puts it under updates/dkms, `make modules_install` under updates or extra, a guest of
# scripts/vm under /lib/ptscope.
INSTALLED = (
    "lib/modules/{release}/updates/dkms",
    "lib/modules/{release}/updates",
    "lib/modules/{release}/extra",
    "lib/ptscope",
)
CHECKOUT = Path(__file__).resolve().parents[3] / "kmod"
SUFFIXES = ("", ".xz", ".gz", ".zst")

_ELF_IDENT = 16
_SHDR64 = "IIQQQQIIQQ"
_ORDER = {1: "<", 2: ">"}


class NotAModule(ValueError):
    """A file that is no 64-bit ELF object with a .modinfo section, or cannot be unpacked."""


def candidates(host: Host) -> Iterator[Path]:
    """Module files that exist, the ones that `modprobe` would take first."""
    for folder in (
        *(host.root / where.format(release=host.release) for where in INSTALLED),
        CHECKOUT,
    ):
        for suffix in SUFFIXES:
            path = folder / f"ptscope.ko{suffix}"
            if path.is_file():
                yield path


def vermagic(path: Path) -> str:
    """The `vermagic` of a module file; its first word is the release it was built for.

    Raises NotAModule, OSError.
    """
    for field in modinfo(unpacked(path)).split(b"\0"):
        key, _, value = field.partition(b"=")
        if key == b"vermagic":
            return value.decode(errors="replace").strip()
    raise NotAModule(f"{path} has no vermagic")


def modinfo(data: bytes) -> bytes:
    """The content of section .modinfo of a 64-bit ELF object: `key=value`, separated by zero bytes.

    Raises NotAModule when there is none.
    """
    if data[:4] != b"\x7fELF" or data[4:5] != b"\2" or data[5] not in _ORDER:
        raise NotAModule("not a 64-bit ELF file")
    order = _ORDER[data[5]]
    try:
        (table,) = struct.unpack_from(f"{order}Q", data, 0x28)
        size, count, names = struct.unpack_from(f"{order}HHH", data, 0x3A)
        sections = [
            struct.unpack_from(order + _SHDR64, data, table + i * size) for i in range(count)
        ]
        strings = sections[names][4]
        for name, _, _, _, offset, length, *_ in sections:
            begin = strings + name
            if data[begin : data.index(b"\0", begin)] == b".modinfo":
                return data[offset : offset + length]
    except (struct.error, IndexError, ValueError) as error:
        raise NotAModule("a damaged ELF file") from error
    raise NotAModule("no .modinfo section")


def unpacked(path: Path) -> bytes:
    """The content of a module file. Raises NotAModule when it cannot be unpacked, OSError."""
    # Few machines have a packed module, and these two take longer to import than all of this.
    import gzip
    import lzma

    data = path.read_bytes()
    try:
        if path.suffix == ".xz":
            return lzma.decompress(data)
        if path.suffix == ".gz":
            return gzip.decompress(data)
    except (lzma.LZMAError, EOFError, OSError) as error:
        raise NotAModule(f"{path} cannot be unpacked") from error
    if path.suffix == ".zst":
        raise NotAModule(f"{path} is packed with zstd, which this Python cannot unpack")
    return data
