# SPDX-License-Identifier: GPL-2.0-or-later
"""The C core: builds requests, validates record streams, splits pagemap entries in bulk."""
