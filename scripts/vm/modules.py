# SPDX-License-Identifier: GPL-2.0-or-later
"""The kernel's own modules a guest needs, with what they depend on, in the order to load them."""

from __future__ import annotations

import lzma
import subprocess
import tempfile
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


def dependencies(modules_dep: str) -> dict[str, tuple[str, list[str]]]:
    """Parse modules.dep: for each module name its path and the names it needs, nearest first."""
    found = {}
    for line in modules_dep.splitlines():
        path, _, needs = line.partition(":")
        found[_plain_name(path)] = (path, [_plain_name(each) for each in needs.split()])
    return found


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


def _scan(folder: Path) -> str:
    """modules.dep of a kernel, made in a scratch directory: the folder may be read-only."""
    with tempfile.TemporaryDirectory(prefix="ptscope-depmod-") as scratch:
        target = Path(scratch) / "lib" / "modules" / folder.name
        target.mkdir(parents=True)
        for each in folder.iterdir():
            if not each.name.startswith("modules.") or each.name.startswith(
                ("modules.builtin", "modules.order")
            ):
                (target / each.name).symlink_to(each)
        return _depmod(Path(scratch), folder.name)


def _depmod(root: Path, release: str) -> str:
    run([need("depmod", "kmod"), "-b", root, release], what=f"depmod of {release}")
    return (root / "lib" / "modules" / release / "modules.dep").read_text(encoding="utf-8")


def collect(folder: Path) -> ModuleSet:
    """The modules of a kernel (``folder`` is its /lib/modules/RELEASE) that a guest needs."""
    release = folder.name
    known = dependencies(_scan(folder))
    order: list[str] = []
    for name in (*AT_BOOT, *AT_HAND):
        if name in known:  # otherwise built in, or not there: a guest that needs it will say so
            _, needs = known[name]
            order += [each for each in [*reversed(needs), name] if each not in order]
    at_boot = [name for name in AT_BOOT if name in known]
    boot = [
        name for name in order if name in at_boot or any(name in known[each][1] for each in at_boot)
    ]
    tree: dict[str, cpio.Entry] = {}
    with tempfile.TemporaryDirectory(prefix="ptscope-modules-") as scratch:
        target = Path(scratch) / "lib" / "modules" / release
        target.mkdir(parents=True)  # a kernel may have no module at all
        for name in order:
            path = known[name][0]
            plain = path.split(".ko")[0] + ".ko"
            copy = target / plain
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(_content(folder / path))
        for each in ("modules.builtin", "modules.builtin.modinfo", "modules.order"):
            if (folder / each).exists():
                (target / each).write_bytes((folder / each).read_bytes())
        if order:
            _depmod(Path(scratch), release)
        for name, entry in cpio.from_dir(Path(scratch)):
            # Read now: the scratch directory goes away. busybox reads the text tables only.
            if not name.endswith(".bin"):
                tree[name] = cpio.Entry(entry.mode, entry.content())
    paths = tuple(f"{release}/{known[name][0].split('.ko')[0]}.ko" for name in boot)
    return ModuleSet(tree, paths)
