# SPDX-License-Identifier: GPL-2.0-or-later
"""Snapshot files: the module's stream of one process, kept with all that is needed to read it.

FORMAT.md says what is in a file. `container.py` has the bytes: a preamble, chunks with checksums,
a trailer; `facts.py` what header and trailer say; `writer.py` and `reader.py` put batches in and
take them out; `atomic.py` makes a file appear whole or not at all.
"""
