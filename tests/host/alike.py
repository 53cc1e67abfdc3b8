# SPDX-License-Identifier: GPL-2.0-or-later
"""`make bench-alike`: how often `ptscope bench compare` finds a difference where there is none.

    python tests/host/alike.py [--files N] [SCENARIO]...

Makes files of the same scenario on this machine, one after the other, and compares each with the
next. At 95 % one pair in twenty may be called different; ends with 1 when it is more than one in
ten.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

from ptscope.bench.compare import compare
from ptscope.bench.store import read

PTSCOPE = Path(sys.executable).with_name("ptscope")
FILES = 21
MOST = 0.1
SCENARIOS = ("read", "write", "write-again", "shm-write")


def make(name: str, path: Path) -> None:
    """A file of one scenario, as its user makes it."""
    words: list[str | Path] = [PTSCOPE, "bench", "fault", name, "--source", "pagemap", "-o", path]
    subprocess.run(words, stdout=subprocess.DEVNULL, check=True)


def main() -> int:
    """Print a line a scenario."""
    parser = argparse.ArgumentParser(description="ptscope bench compare, where nothing differs")
    parser.add_argument("--files", type=int, default=FILES)
    parser.add_argument("scenarios", nargs="*", default=SCENARIOS)
    options = parser.parse_args()
    found = pairs = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in options.scenarios:
            files = []
            for number in range(options.files):
                files.append(Path(folder, f"{name}-{number}"))
                print(f"{name}, file {number + 1} of {options.files}", file=sys.stderr, flush=True)
                make(name, files[-1])
            results = [compare(read(one), read(other)) for one, other in pairwise(files)]
            called = sum(bool(each.found) for each in results)
            print(f"{name:<20} {called} of {len(results)} pairs called different", flush=True)
            found, pairs = found + called, pairs + len(results)
    print(f"{'all':<20} {found} of {pairs}, {found / pairs:.1%}; at 95 % {pairs * 0.05:.0f} may be")
    return 1 if found > MOST * pairs else 0


if __name__ == "__main__":
    sys.exit(main())
