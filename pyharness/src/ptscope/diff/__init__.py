# SPDX-License-Identifier: GPL-2.0-or-later
"""What changed between two streams of tables.

`events.py` makes each stream a sequence of areas and entries in order of address, `merge.py` walks
two of them side by side, `words.py` says what a change is.
"""
