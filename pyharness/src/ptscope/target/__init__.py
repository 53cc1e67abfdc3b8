# SPDX-License-Identifier: GPL-2.0-or-later
"""The process that is looked at: what it is, and its VMAs."""
