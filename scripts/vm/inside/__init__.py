# SPDX-License-Identifier: GPL-2.0-or-later
"""What runs inside a guest. `wire` is imported on both sides, under two names."""
