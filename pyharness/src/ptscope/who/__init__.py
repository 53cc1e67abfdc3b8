# SPDX-License-Identifier: GPL-2.0-or-later
"""From a frame to every process, address and permission that maps it."""
