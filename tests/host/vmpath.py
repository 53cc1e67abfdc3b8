# SPDX-License-Identifier: GPL-2.0-or-later
"""Importing this makes the harness importable as the package `vm`."""

from __future__ import annotations

import sys
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "scripts"
if str(SCRIPTS) not in sys.path:
    sys.path.insert(0, str(SCRIPTS))
