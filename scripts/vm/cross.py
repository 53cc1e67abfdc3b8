# SPDX-License-Identifier: GPL-2.0-or-later
"""What runs in guests of another architecture, compiled for it: ptscope._core, the tests' programs.

Both are built by the toolchain of `toolchain`. The programs are static; the extension uses the
stable ABI of python, and that it asks for no newer C library than the guest has is checked.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from . import package, paths, store
from .arches import ARCHES, Arch
from .errors import BuildError
from .kernels import Kernel
from .proc import run
from .say import say
from .toolchain import toolchain

GLIBC = {"bookworm": (2, 36), "trixie": (2, 41)}
"""The C library of each suite guests have their user space from."""
PROGRAMS = ("puppet", "churn", "failer", "loops", "speed", "walker")
CORE = "_core.abi3.so"
MODEL_PUPPET = "model/puppet"
"""The program that the package itself has, as it is called below the package."""
KEPT = 3


def glibc_needed(library: bytes) -> tuple[int, int]:
    """The newest version of the C library whose symbols an ELF file names."""
    found = re.findall(rb"\0GLIBC_(\d+)\.(\d+)", library)
    return max(((int(major), int(minor)) for major, minor in found), default=(0, 0))


def check_glibc(path: Path, suite: str) -> None:
    """Raise `BuildError` when a shared library needs a newer C library than ``suite`` has."""
    needed = glibc_needed(path.read_bytes())
    if needed > GLIBC[suite]:
        raise BuildError(
            f"{path} needs version {needed[0]}.{needed[1]} of the C library, and {suite} has"
            f" {GLIBC[suite][0]}.{GLIBC[suite][1]}"
        )


def _inputs() -> tuple[list[Path], list[Path]]:
    """Files of the extension and of the programs."""
    suffixes = (".c", ".h", ".py")
    core = sorted(p for p in (package.SOURCE / "core").glob("*") if p.suffix in suffixes)
    guest = paths.TESTS / "guest"
    model = package.SOURCE / f"{MODEL_PUPPET}.c"
    programs = sorted([*guest.glob("*.[ch]"), guest / "Makefile"])
    return [*core, model, paths.KMOD / "ptscope.h"], programs


def _core(arch: Arch, folder: Path) -> None:
    tools = toolchain()
    source = folder / "core"
    shutil.copytree(
        package.SOURCE / "core", source, ignore=shutil.ignore_patterns("__pycache__", "_core.*")
    )
    script = "from build import ffibuilder; ffibuilder.emit_c_code('_core.c')"
    run([package.build(), "-B", "-c", script], cwd=source, what="making _core.c with cffi")
    tools.run(
        [
            tools.compiler(arch),
            "-shared",
            "-fPIC",
            "-O2",
            "-std=c11",
            "-D_GNU_SOURCE",
            "-DPy_LIMITED_API=0x030b0000",
            f"-I/usr/include/{tools.python}",
            f"-I{source}",
            "-o",
            folder / CORE,
            source / "_core.c",
        ],
        shown=[folder],
        what=f"building {CORE} for {arch.name}",
    )


def _model_puppet(arch: Arch, folder: Path) -> None:
    tools = toolchain()
    source, program = folder / "model.c", folder / MODEL_PUPPET
    shutil.copyfile(package.SOURCE / f"{MODEL_PUPPET}.c", source)
    program.parent.mkdir()
    tools.run(
        [tools.compiler(arch), "-O2", "-std=gnu11", "-static", "-o", program, source],
        shown=[folder],
        what=f"building the model's puppet for {arch.name}",
    )


def _programs(arch: Arch, folder: Path) -> None:
    tools = toolchain()
    guest = folder / "tests" / "guest"
    guest.mkdir(parents=True)
    for path in _inputs()[1]:
        shutil.copyfile(path, guest / path.name)
    (folder / "kmod").mkdir()
    shutil.copyfile(paths.KMOD / "ptscope.h", folder / "kmod" / "ptscope.h")
    tools.run(
        ["make", "-s", "-C", guest, f"CC={tools.compiler(arch)}"],
        shown=[folder],
        what=f"building the tests' programs for {arch.name}",
    )


def build(kernel: Kernel) -> dict[str, Path]:
    """The extension and the programs for guests of this kernel, by file name; cached."""
    arch = ARCHES[kernel.arch]
    core, programs = _inputs()
    key = store.digest(
        str(toolchain().root),
        *(part for p in (*core, *programs) for part in (p.name, p.read_bytes())),
        Path(__file__).read_bytes(),
    )
    home = paths.BUILD / "cross"
    final = home / f"{arch.name}-{key}"

    def fill(partial: Path) -> None:
        say(f"building ptscope._core and the tests' programs for {arch.name}")
        _core(arch, partial)
        _model_puppet(arch, partial)
        _programs(arch, partial)

    store.make_dir(final, fill, f"cross-{store.digest(str(home), arch.name)}")
    store.forget_others(final, f"{arch.name}-????????????????")
    check_glibc(final / CORE, kernel.userland)
    return {
        CORE: final / CORE,
        MODEL_PUPPET: final / MODEL_PUPPET,
        **{name: final / "tests" / "guest" / name for name in PROGRAMS},
    }
