# SPDX-License-Identifier: GPL-2.0-or-later
"""What a guest boots from: equal inputs give equal bytes, and the kernel gets what was meant."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
import vmpath  # noqa: F401
from vm import cpio, modules, overlay, quick
from vm.errors import UsageError
from vm.overlay import Contents


def plant(root: Path, stamp: int) -> Path:
    """A tree with a file, an executable, a link and an empty directory, made at time ``stamp``."""
    (root / "a" / "empty").mkdir(parents=True)
    (root / "a" / "run").write_text("#!/bin/sh\n")
    (root / "a" / "run").chmod(0o755)
    (root / "b.txt").write_bytes(b"x" * 5)
    (root / "link").symlink_to("b.txt")
    for path in root.rglob("*"):
        os.utime(path, (stamp, stamp), follow_symlinks=False)
    return root


def archive(tree: cpio.Tree) -> bytes:
    """The bytes of one archive."""
    out = io.BytesIO()
    cpio.write(tree, out)
    return out.getvalue()


def test_two_archives_of_equal_trees_are_identical(tmp_path: Path) -> None:
    first = dict(cpio.from_dir(plant(tmp_path / "one", 1_000_000)))
    second = dict(reversed(list(cpio.from_dir(plant(tmp_path / "two", 2_000_000)))))
    assert archive(first) == archive(second)
    assert archive(first) != archive({**first, "b.txt": cpio.file(b"other")})
    assert archive(first) != archive({**first, "b.txt": cpio.file(b"x" * 5, 0o600)})


def test_cpio_unpacks_what_was_written(tmp_path: Path) -> None:
    tree = {**dict(cpio.from_dir(plant(tmp_path / "in", 1))), "deep/er/file": cpio.file("text")}
    out = tmp_path / "out"
    out.mkdir()
    subprocess.run(["cpio", "-id", "--quiet"], cwd=out, input=archive(tree), check=True)
    assert (out / "a" / "run").stat().st_mode & 0o777 == 0o755
    assert (out / "a" / "empty").is_dir()
    assert (out / "link").readlink() == Path("b.txt")
    assert (out / "deep/er/file").read_text() == "text"
    assert len(archive(tree)) % cpio.ALIGN == 0


def test_two_overlays_are_identical_and_complete(tmp_path: Path) -> None:
    package = tmp_path / "ptscope"
    (package / "__pycache__").mkdir(parents=True)
    (package / "__init__.py").write_text("VALUE = 1\n")
    (package / "__pycache__" / "stale.pyc").write_bytes(b"old")
    files = plant(tmp_path / "files", 3)
    contents = Contents(package=package, files=files)
    first = overlay.tree(contents, "bookworm")
    assert archive(first) == archive(overlay.tree(contents, "bookworm"))
    assert first["init"].mode & 0o111
    assert "files/a/run" in first
    assert not any("stale" in name for name in first)
    assert f"{overlay.PACKAGES}/ptscope/__init__.py" in first


def test_byte_code_in_the_overlay_is_taken_by_python(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    (source / "planted.py").write_text("VALUE = 1\n")
    tree = overlay.python_tree(source, "lib", compiled=True)
    for name, entry in tree.items():
        path = tmp_path / "out" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(entry.content())
    # Were the byte code not taken, the changed source would be.
    (tmp_path / "out/lib/planted.py").write_text("VALUE = 2\n")
    done = subprocess.run(
        [sys.executable, "-c", "import planted; print(planted.VALUE)"],
        cwd=tmp_path / "out/lib",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "1\n"


def test_files_that_are_no_directory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a directory"):
        overlay.tree(Contents(files=tmp_path / "none"), "bookworm")


def test_a_tar_for_a_running_guest_has_the_same_files(tmp_path: Path) -> None:
    tree = cpio.with_parents(dict(cpio.from_dir(plant(tmp_path / "in", 1))))
    out = tmp_path / "out"
    out.mkdir()
    subprocess.run(["tar", "-x"], cwd=out, input=quick.tar(tree), check=True)
    assert archive(dict(cpio.from_dir(out))) == archive(tree)


def test_modules_come_after_what_they_need() -> None:
    needs = {
        "virtio_pci": ["virtio_pci_modern_dev", "virtio"],
        "virtio": ["virtio_ring"],
        "zram": ["lz4"],
    }
    order = modules.load_order(["virtio_pci", "zram", "lz4"], lambda name: needs.get(name, []))
    assert order == [
        *("virtio_pci_modern_dev", "virtio_ring", "virtio", "virtio_pci", "lz4", "zram"),
    ]


def test_kernel_without_modules_is_one(tmp_path: Path) -> None:
    """As one that was built with everything in it."""
    folder = tmp_path / "lib/modules/6.12.0"
    folder.mkdir(parents=True)
    lists = ("modules.builtin", "modules.order")
    for name in lists:
        (folder / name).write_text("")
    found = modules.collect(folder)
    assert found.boot_order == ()
    assert {f"lib/modules/6.12.0/{name}" for name in lists} <= set(found.tree)
