# SPDX-License-Identifier: GPL-2.0-or-later
"""Only what pyproject.toml cannot say: the cffi extension ptscope._core."""

from setuptools import setup

setup(cffi_modules=["src/ptscope/core/build.py:ffibuilder"])
