# SPDX-License-Identifier: GPL-2.0-or-later
"""Only what pyproject.toml cannot say: the cffi extension ptscope._core, and a program.

The program is the process that `ptscope model` commands. It is no extension but an executable of
its own, static, beside the module that starts it.
"""

from __future__ import annotations

from pathlib import Path

from setuptools import setup
from setuptools.command.build_ext import build_ext

PUPPET = "ptscope/model/puppet"


class BuildAll(build_ext):
    """Extensions, then the puppet, to where the package is built or, when editable, lies."""

    def run(self) -> None:
        """As build_ext."""
        super().run()
        root = Path("src") if self.editable_mode or self.inplace else Path(self.build_lib)
        target = root / PUPPET
        target.parent.mkdir(parents=True, exist_ok=True)
        options = ["-O2", "-std=gnu11", "-Wall", "-Wextra", "-static"]
        self.spawn(["cc", *options, "-o", str(target), f"src/{PUPPET}.c"])

    def get_outputs(self) -> list[str]:
        """What was built, the program included."""
        return [*super().get_outputs(), str(Path(self.build_lib) / PUPPET)]


setup(cffi_modules=["src/ptscope/core/build.py:ffibuilder"], cmdclass={"build_ext": BuildAll})
