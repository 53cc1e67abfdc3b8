# SPDX-License-Identifier: GPL-2.0-or-later
"""Text for people, at most 80 columns wide."""
