# SPDX-License-Identifier: GPL-2.0-or-later
"""The kernel's own modules a guest needs, with what they depend on, in the order to load them."""

from __future__ import annotations

import lzma
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from . import cpio
from .errors import BuildError
from .proc import need, run

# Loaded at boot, in this order. What a kernel has built in is skipped.
AT_BOOT = ("virtio_pci", "virtio_console")
# In the image, to be loaded by name in the guest: swap and what compresses it, block devices.
AT_HAND = ("zram", "lzo", "lzo_rle", "lz4", "zstd", "virtio_blk")


@dataclass(frozen=True)
class ModuleSet:
    """A kernel's modules as far as a guest needs them."""

    tree: cpio.Tree
    boot_order: tuple[str, ...]
    """Paths below /lib/modules, each after those it needs."""


def _plain_name(path: str) -> str:
    return Path(path).name.split(".ko")[0].replace("-", "_")


def load_order(wanted: Iterable[str], needs: Callable[[str], Iterable[str]]) -> list[str]:
    """``wanted`` and all that ``needs`` names for them, each once and after those it needs."""
    order: list[str] = []

    def add(name: str) -> None:
        if name not in order:
            for each in needs(name):
                add(each)
            order.append(name)

    for name in wanted:
        add(name)
    return order


def _needs(path: Path) -> list[str]:
    """The modules that one names as those it needs.

    modinfo of a handful costs nothing; a depmod of all reads, and from 6.12 on uncompresses,
    four thousand files.
    """
    text = run([need("modinfo", "kmod"), "-F", "depends", path], what=f"modinfo of {path}")
    return [_plain_name(each) for each in text.strip().split(",") if each]


def _content(path: Path) -> bytes:
    """A module as insmod of busybox takes it: kernels from 6.12 on have them compressed."""
    data = path.read_bytes()
    if path.suffix == ".xz":
        return lzma.decompress(data)
    if path.suffix == ".zst":
        done = subprocess.run(
            [need("zstd", "zstd"), "-dc"], input=data, capture_output=True, check=False
        )
        if done.returncode:
            raise BuildError(f"zstd cannot unpack {path}: {done.stderr.decode(errors='replace')}")
        return done.stdout
    return data


def collect(folder: Path) -> ModuleSet:
    """The modules of a kernel (``folder`` is its /lib/modules/RELEASE) that a guest needs."""
    release = folder.name
    places = {_plain_name(path.name): path for path in folder.rglob("*.ko*")}

    def needs(name: str) -> list[str]:
        return [each for each in _needs(places[name]) if each in places]

    # What is not there is built in, or missing: a guest that needs it will say so.
    boot = load_order([name for name in AT_BOOT if name in places], needs)
    order = load_order([*boot, *(name for name in AT_HAND if name in places)], needs)
    plain = {
        name: places[name].relative_to(folder).with_name(f"{places[name].name.split('.ko')[0]}.ko")
        for name in order
    }
    tree: dict[str, cpio.Entry] = {}
    with tempfile.TemporaryDirectory(prefix="ptscope-modules-") as scratch:
        target = Path(scratch) / "lib" / "modules" / release
        target.mkdir(parents=True)  # a kernel may have no module at all
        for name in order:
            copy = target / plain[name]
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(_content(places[name]))
        for each in ("modules.builtin", "modules.builtin.modinfo", "modules.order"):
            if (folder / each).exists():
                (target / each).write_bytes((folder / each).read_bytes())
        if order:
            run([need("depmod", "kmod"), "-b", scratch, release], what=f"depmod of {release}")
        for name, entry in cpio.from_dir(Path(scratch)):
            # Read now: the scratch directory goes away. busybox reads the text tables only.
            if not name.endswith(".bin"):
                tree[name] = cpio.Entry(entry.mode, entry.content())
    return ModuleSet(tree, tuple(f"{release}/{plain[name]}" for name in boot))
