#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""What `make demo` shows: runs in a guest, or as root on any machine with ptscope.ko loaded.

Starts `target.py`, walks one address of each kind in it, and compares every entry with what
/proc/PID/pagemap says. Exit status 0 when all agree.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

AGREE = re.compile(r"^(\d+) of (\d+) entries agree with /proc/\d+/pagemap", re.MULTILINE)


def show(*command: str) -> str:
    """Run a command as a person would see it, and return what it printed."""
    print(f"\n$ {' '.join(command)}", flush=True)
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    print(done.stdout, end="", flush=True)
    if done.returncode:
        print(f"(exit status {done.returncode})", flush=True)
    return done.stdout


def main() -> int:
    """Show everything; returns the exit status."""
    show("ptscope", "doctor")
    target = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("target.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert target.stdin is not None
    assert target.stdout is not None
    agreed = total = 0
    walked: set[str] = set()
    with target:
        for line in target.stdout:
            if line.strip() == "ready":
                break
            name, address, explanation = line.strip().split(" ", 2)
            print(f"\n{name}: {explanation}", flush=True)
            match = AGREE.search(show("ptscope", "walk", str(target.pid), address, "--compare"))
            if match:
                walked.add(name)
                agreed += int(match[1])
                total += int(match[2])
        target.stdin.close()
    print(f"\nwalked process {target.pid} (python3) at: {', '.join(sorted(walked))}")
    print(f"{agreed} of {total} entries agree with /proc/{target.pid}/pagemap", flush=True)
    return 0 if total and agreed == total and len(walked) == 6 else 1


if __name__ == "__main__":
    sys.exit(main())
