# SPDX-License-Identifier: GPL-2.0-or-later
"""ptscope: a microscope for Linux page tables.

The folders show the flow: a target is walked by a source, which gives raw entries; they are
decoded with a layout and shown by a view. Importing this package imports nothing else.
"""

from __future__ import annotations

__version__ = "0.1.0"
