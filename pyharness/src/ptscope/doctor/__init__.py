# SPDX-License-Identifier: GPL-2.0-or-later
"""What works on this machine, what does not, and the remedy."""
