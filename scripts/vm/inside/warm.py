# SPDX-License-Identifier: GPL-2.0-or-later
"""A python that has imported what guest tests need and waits: part of a saved guest.

It prints "ready", then waits for one line on standard input, a JSON list of pytest's arguments,
and becomes that test run.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path

# All of these are Debian's; ptscope itself changes and is imported afterwards.
MODULES = (
    "_cffi_backend",
    "click",
    "psutil",
    "pytest",
    "xml.etree.ElementTree",
    "_pytest.junitxml",
    "ctypes",
    "mmap",
    "struct",
    "subprocess",
    "concurrent.futures",
)


def main() -> int:
    """Import, wait, test."""
    for name in MODULES:
        importlib.import_module(name)
    print("ready", flush=True)
    order = json.loads(sys.stdin.readline())
    os.environ.update(order["env"])
    sys.stdin = Path(os.devnull).open()  # noqa: SIM115
    pytest = importlib.import_module("pytest")
    return int(pytest.main(order["arguments"]))


if __name__ == "__main__":
    sys.exit(main())
