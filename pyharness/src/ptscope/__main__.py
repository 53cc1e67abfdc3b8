# SPDX-License-Identifier: GPL-2.0-or-later
"""`python3 -m ptscope`, and the entry point of the `ptscope` command."""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Run the command line and exit with its status.

    A closed pipe and Ctrl-C end the process by their signals, without a traceback, so that a
    shell sees what it would see of any other tool.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    # Python leaves it ignored where it was: a shell does that for what it runs in the background.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # What Python makes of a descriptor 1 that is closed; printing to it does nothing.
    if sys.stdout is None:
        print("ptscope: cannot write the output: stdout is closed", file=sys.stderr)
        sys.exit(os.EX_IOERR)
    from ptscope.cli import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
