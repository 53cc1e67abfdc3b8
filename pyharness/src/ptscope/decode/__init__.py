# SPDX-License-Identifier: GPL-2.0-or-later
"""Raw entries made readable: a pure function of (layout, level, raw value).

`layout.py` holds the facts of a kernel, `table.py` and `arch/` what an
architecture's bits mean, `rules.py` joins them into mask and value rows, `entry.py`
decodes one entry with them, `effective.py` combines the entries of a walk.
"""
