# SPDX-License-Identifier: GPL-2.0-or-later
"""What changes under `ptscope check` is never a finding."""

from __future__ import annotations

import re
import subprocess
import time
from collections import Counter
from pathlib import Path

from ptscope.check.invariants import NAMES
from ptscope.check.process import Checker
from ptscope.source.module import ModuleSource
from ptscope.target.process import find

HERE = Path(__file__).parent
CHURN_SECONDS = 20
THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def test_no_false_finding_in_a_process_that_never_holds_still(swap: None) -> None:
    before = re.search(r"\[(\w+)\]", THP.read_text())
    assert before is not None
    THP.write_text("always")
    churn = subprocess.Popen(
        [str(HERE / "churn"), "11"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        time.sleep(1)
        checker = Checker.here(ModuleSource.open(), frozenset(NAMES))
        runs, changed = 0, Counter[str]()
        until = time.monotonic() + CHURN_SECONDS
        while time.monotonic() < until or runs < 2:
            result = checker.check(find(churn.pid))
            assert result.findings == []
            changed.update(result.changed)
            runs += 1
        print(f"{runs} runs, changed: {dict(changed)}")
        assert changed.total() > 0, "nothing changed: the race did not take place"
    finally:
        churn.terminate()
        churn.communicate(timeout=60)
        THP.write_text(before[1])
