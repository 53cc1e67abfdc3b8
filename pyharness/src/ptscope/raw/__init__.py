# SPDX-License-Identifier: GPL-2.0-or-later
"""Raw entries and other records, as the kernel gave them and checked, but not interpreted."""
