# SPDX-License-Identifier: GPL-2.0-or-later
"""Build ptscope.ko against a kernel's headers, outside the source tree, when something changed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from . import paths, store
from .arches import ARCHES
from .errors import BuildError
from .fetch import Fetched
from .proc import need, run
from .say import say
from .toolchain import toolchain

SOURCES = ("*.c", "*.h", "Kbuild", "Makefile", "*.mk", "*.sh")
# modpost's, too: a symbol that no kernel exports is an error of its own, but not everything is. The
# compiler of 6.1 and 5.10's headers is another than ours, which kbuild only remarks upon.
WARNING = re.compile(r"warning: (?!the compiler differs)|WARNING: ", re.MULTILINE)
PLANT = paths.TESTS / "guest" / "plant"
"""Faults that only the tests' own build has: a source, and what is added to Kbuild for it."""
KEPT = 4
"""Builds kept for a release."""


def sources() -> list[Path]:
    """Everything that is needed to build the module, below kmod/."""
    found = [
        path
        for pattern in SOURCES
        for path in paths.KMOD.rglob(pattern)
        if not path.name.endswith(".mod.c")
    ]
    if not (paths.KMOD / "Makefile").exists():
        raise BuildError(f"{paths.KMOD} has no Makefile")
    return sorted(found)


def build(fetched: Fetched, release: str, *, planted: bool = False) -> Path:
    """ptscope.ko for a release whose headers ``fetched`` has. The second time costs nothing.

    With ``planted`` it has the faults of `PLANT`.
    """
    files = sources()
    key = store.digest(
        str(fetched.root),
        release,
        fetched.kernel.toolchain,
        Path(__file__).read_bytes(),
        *(
            part
            for path in files
            for part in (str(path.relative_to(paths.KMOD)), path.read_bytes())
        ),
        *(path.read_bytes() for path in sorted(PLANT.iterdir()) if planted),
    )
    # The key is in the name: another run may be using what older sources made.
    home = paths.BUILD / "kmod"
    folder = home / f"{release}-{key}"
    built, complete = folder / "ptscope.ko", folder / "complete"
    if complete.exists():
        return built
    with store.locked(f"kmod-{store.digest(str(home), release)}"):
        if complete.exists():
            return built
        say(f"building ptscope.ko for {release}")
        shutil.rmtree(folder, ignore_errors=True)
        for path in files:
            copy = folder / path.relative_to(paths.KMOD)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
            shutil.copymode(path, copy)
        if planted:
            shutil.copyfile(PLANT / "plant.c", folder / "plant.c")
            with (folder / "Kbuild").open("a", encoding="utf-8") as kbuild:
                kbuild.write((PLANT / "Kbuild").read_text(encoding="utf-8"))
        output = _make(fetched, release, folder)
        (folder / "output").write_text(output, encoding="utf-8")
        warnings = [line for line in output.splitlines() if WARNING.search(line)]
        if warnings:
            raise BuildError(
                f"building ptscope.ko for {release} gave warnings:\n"
                + "\n".join(f"    {line}" for line in warnings)
            )
        if not built.exists():
            raise BuildError(f"kmod/Makefile made no ptscope.ko in {folder}")
        complete.touch()
        _forget_old(home, release)
    return built


def _make(fetched: Fetched, release: str, folder: Path) -> str:
    """Run make, on this machine or in the toolchain's directory; returns what it printed."""
    kernel = fetched.kernel
    what = f"building ptscope.ko for {release}"
    # Given on the command line, these override what the headers say.
    kdir = fetched.headers(release)
    words: list[str | Path] = ["make", "-j2", "-C", folder, f"KDIR={kdir}", "KCFLAGS=-Werror"]
    if kernel.toolchain == "host":
        need("make", "make")
        return run(["sh", "-c", 'exec "$@" 2>&1', "sh", *words], what=what)
    tools = toolchain()
    arch = ARCHES[kernel.arch]
    return tools.run(
        [
            *words,
            f"ARCH={arch.kernel_arch}",
            f"CROSS_COMPILE={arch.triplet}-",
            f"CC={tools.compiler(arch)}",
        ],
        shown=[fetched.root, folder],
        what=what,
    )


def _forget_old(home: Path, release: str) -> None:
    """Remove all but the `KEPT` newest builds for a release."""
    builds = [
        p
        for p in home.glob(f"{release}-*")
        if re.fullmatch(r"[0-9a-f]{16}", p.name[len(release) + 1 :])
    ]
    for old in sorted(builds, key=lambda p: p.stat().st_mtime, reverse=True)[KEPT:]:
        shutil.rmtree(old, ignore_errors=True)
