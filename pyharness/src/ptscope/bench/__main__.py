# SPDX-License-Identifier: GPL-2.0-or-later
"""`python3 -m ptscope.bench`: the figures of this machine as one JSON object."""

from __future__ import annotations

import json
import platform

from ptscope.bench.host import decoder, starts


def main() -> None:
    """Measure and print."""
    rows = [figure.to_json() for figure in (*decoder(), *starts())]
    print(json.dumps({"machine": platform.machine(), "rows": rows}))


if __name__ == "__main__":
    main()
