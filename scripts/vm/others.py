# SPDX-License-Identifier: GPL-2.0-or-later
"""`make bench-others`: have the programs that `ptscope bench` is compared with, and compare.

The kernel's selftest of mremap() is compiled from Debian's source of the kernel; what it costs to
get that, 140 MB, is kept in the cache.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from . import kernels, package, packages, paths, prepare, store
from .apt import Apt
from .proc import need, run
from .say import say
from .scratch import scratch_dir
from .source import unpack

PROGRAMS = ("linux-perf", "stress-ng")
COMPARE = paths.TESTS / "host" / "others.py"
SELFTESTS = Path("tools/testing/selftests")


def run_others() -> int:
    """Compare; 0 when all agree, else 1."""
    packages.install(PROGRAMS)
    python = package.build()
    prepare.tests()
    return subprocess.run([python, COMPARE, "--mremap-test", mremap_test()]).returncode


def mremap_test() -> Path:
    """The program, of the newest source package that the checking kernel is built from."""
    kernel = kernels.kernel(kernels.CHECKING)
    assert kernel.built is not None
    apt = Apt(kernel.suite, kernel.arch)
    apt.update()
    found = apt.show(kernel.built.package)

    def build(partial: Path) -> None:
        with scratch_dir("others") as scratch:
            tree = unpack(apt, found, scratch)
            say("compiling mremap_test")
            folder = tree / SELFTESTS
            run(
                [need("gcc", "gcc"), "-O2", "-I", tree / "tools/include/uapi", "-I", folder,
                 "-o", partial, folder / "mm" / "mremap_test.c"],
                what="compiling mremap_test",
            )  # fmt: skip

    name = f"mremap_test-{found.version.replace(os.sep, '_')}"
    return store.make_file(paths.cache() / "selftests" / name, build, "selftests")
