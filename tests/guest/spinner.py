# SPDX-License-Identifier: GPL-2.0-or-later
"""The guest's half of tests/host/test_mmu.py.

For each kind of page: a puppet touches one, ptscope walks it, the walk is printed as a line of
JSON, and the puppet reads the page in user mode until a line comes in on standard input.
"""

from __future__ import annotations

import json
import sys

import command
from puppet import Puppet

HUGE = 1 << 21
CPU = 0


def small(puppet: Puppet) -> int:
    """An address in an ordinary page."""
    address = puppet.map(3 * 4096) + 4096
    puppet.touch("write", address)
    return address + 0x328


def huge(puppet: Puppet) -> int:
    """An address within a transparent huge page."""
    address = puppet.map(HUGE, align=HUGE)
    puppet.advise(address, HUGE, "hugepage")
    puppet.touch("write", address)
    return address + 77 * 4096 + 0x51


def main() -> None:
    """One kind after the other."""
    with Puppet() as puppet:
        for kind, make in (("4 KiB", small), ("2 MiB", huge)):
            address = make(puppet)
            print(json.dumps({"kind": kind, "walk": command.walk(puppet.pid, address)}), flush=True)
            puppet.spin(address, CPU)
            sys.stdin.readline()
            puppet.stop()


if __name__ == "__main__":
    main()
