# SPDX-License-Identifier: GPL-2.0-or-later
"""Where entries come from: the module, or /proc/PID/pagemap for leaves alone."""
