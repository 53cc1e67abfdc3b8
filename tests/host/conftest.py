# SPDX-License-Identifier: GPL-2.0-or-later
"""Settings of all host tests."""

from __future__ import annotations

import vmpath  # noqa: F401  what is in scripts/ can be imported
from hypothesis import settings

# How long an example takes depends on what else the machine does, which proves nothing.
settings.register_profile("ptscope", deadline=None)
settings.load_profile("ptscope")
