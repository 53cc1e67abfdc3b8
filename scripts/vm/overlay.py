# SPDX-License-Identifier: GPL-2.0-or-later
"""What changes from run to run: init, the agent, ptscope itself, the tests, the caller's files."""

from __future__ import annotations

import _imp
import importlib.util
import marshal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import cpio, modules, paths, store
from .errors import UsageError

GUEST_PYTHON = {"bookworm": (3, 11), "trixie": (3, 13)}
"""The python of each suite: byte code is only made when the host's is the same."""
PACKAGES = "usr/lib/python3/dist-packages"
COMMAND = """#!/usr/bin/python3
import sys

from ptscope.__main__ import main

sys.exit(main())
"""


@dataclass(frozen=True)
class Contents:
    """What goes into a guest beside its base and its kernel's modules."""

    module: Path | None = None
    """ptscope.ko, at /lib/ptscope/ptscope.ko."""
    foreign_module: Path | None = None
    """ptscope.ko for another flavour, at /lib/ptscope/ptscope-other.ko."""
    package: Path | None = None
    """The directory src/ptscope."""
    tests: Path | None = None
    """The directory tests, at /tests."""
    demo: Path | None = None
    """The directory scripts/demo, at /demo."""
    files: Path | None = None
    """A directory of the caller's, at /files."""
    extra: dict[str, cpio.Entry] = field(default_factory=dict)


def _compiled(name: str, source: bytes) -> tuple[str, bytes] | None:
    """Name and bytes of a source's byte code, which an import takes without reading the source."""
    path = Path(name)
    try:
        code = compile(source, f"/{name}", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return None
    # PEP 552: magic, flags (bit 0: hash-based, bit 1: check the source), hash of the source.
    hashed = _imp.source_hash(int.from_bytes(importlib.util.MAGIC_NUMBER[:2], "little"), source)
    data = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + hashed + marshal.dumps(code)
    tag = sys.implementation.cache_tag
    return str(path.parent / "__pycache__" / f"{path.stem}.{tag}.pyc"), data


def python_tree(root: Path, prefix: str, *, compiled: bool) -> dict[str, cpio.Entry]:
    """The files below ``root`` at ``prefix``, without caches, with byte code when ``compiled``."""
    tree: dict[str, cpio.Entry] = {}
    for name, entry in cpio.from_dir(root, f"{prefix}/"):
        if "__pycache__" in name or name.endswith((".pyc", ".o")):
            continue
        if isinstance(entry.data, Path):  # a link within the checkout would dangle in the guest
            tree[name] = entry
        elif (entry.mode & 0o170000) == 0o120000:
            target = root / name.removeprefix(f"{prefix}/")
            if target.is_file():
                tree[name] = cpio.file(target.resolve())
        else:
            tree[name] = entry
        if compiled and name.endswith(".py") and name in tree:
            made = _compiled(name, tree[name].content())
            if made:
                tree[made[0]] = cpio.file(made[1])
    return tree


def check_files(folder: Path) -> None:
    """Raise `UsageError` unless the caller's files are a directory."""
    if not folder.is_dir():
        raise UsageError(
            f"{folder} is not a directory", "FILES names the directory that appears at /files"
        )


def tree(contents: Contents, suite: str) -> dict[str, cpio.Entry]:
    """Everything of ``contents`` as entries."""
    compiled = GUEST_PYTHON.get(suite) == sys.version_info[:2]
    guest = paths.INSIDE
    entries: dict[str, cpio.Entry] = {
        "init": cpio.file(guest / "init", 0o755),
        "root": cpio.directory(0o700),
    }
    for name in ("agent.py", "wire.py", "warm.py"):
        if (guest / name).exists():
            entries[f"usr/lib/ptscope/{name}"] = cpio.file(guest / name)
    if contents.module:
        entries["usr/lib/ptscope/ptscope.ko"] = cpio.file(contents.module)
    if contents.foreign_module:
        entries["usr/lib/ptscope/ptscope-other.ko"] = cpio.file(contents.foreign_module)
    if contents.package:
        entries |= python_tree(contents.package, f"{PACKAGES}/ptscope", compiled=compiled)
        entries["usr/bin/ptscope"] = cpio.file(COMMAND, 0o755)
    if contents.tests:
        entries |= python_tree(contents.tests, "tests", compiled=compiled)
    if contents.demo:
        entries |= python_tree(contents.demo, "demo", compiled=compiled)
    if contents.files:
        check_files(contents.files)
        entries["files"] = cpio.directory()
        entries |= dict(cpio.from_dir(contents.files, "files/"))
    return entries | contents.extra


def kernel_modules(folder: Path, key: str) -> Path:
    """A cached archive of the modules in ``folder`` (a kernel's /lib/modules/RELEASE)."""
    name = f"modules-{folder.name}"
    digest = store.digest(key, str(folder), Path(modules.__file__).read_bytes())

    def make(partial: Path) -> None:
        found = modules.collect(folder)
        entries = {
            f"usr/{name}" if name.startswith("lib/") else name: entry
            for name, entry in found.tree.items()
            if name != "lib"
        }
        entries["usr/lib/modules/boot-order"] = cpio.file(
            "".join(f"{p}\n" for p in found.boot_order)
        )
        with partial.open("wb") as out:
            cpio.write(entries, out)

    final = store.make_file(paths.cache() / "images" / f"{name}-{digest}.cpio", make, name)
    store.forget_others(final, f"{name}-????????????????.cpio")
    return final


def initrd(parts: Sequence[Path], entries: cpio.Tree, final: Path) -> None:
    """Write the archives ``parts`` and one of ``entries`` one after another."""
    with final.open("wb") as out:
        for part in parts:
            with part.open("rb") as archive:
                while block := archive.read(1 << 20):
                    out.write(block)
        cpio.write(entries, out)
