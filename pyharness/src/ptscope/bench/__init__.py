# SPDX-License-Identifier: GPL-2.0-or-later
"""Measured cost: what `make bench` asks of the host."""
