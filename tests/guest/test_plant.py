# SPDX-License-Identifier: GPL-2.0-or-later
"""A module with faults: the kernel that checks has to report each.

The harness looks for the reports too, with the means by which it judges every other guest, and
fails this one when a report is missing (`expect_splat` in scripts/vm/plan.py).
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import rawfiles

PLANT = Path("/sys/module/ptscope/parameters/plant")
SCENARIO = os.environ["PTSCOPE_VM_SCENARIO"]

# In the order of the rows' needs: lockdep reports once and is off when KASAN has reported.
FAULTS = {
    "plant": {
        "lock_inversion": (
            r"WARNING: possible circular locking dependency detected(?s:.*)"
            r"is trying to acquire lock:(?s:.*)&mm->mmap_lock(?s:.*)"
            r"already holding lock:(?s:.*)i_mmap_rwsem(?s:.*)__wrap_ptscope_batch"
        ),
        "sleep_in_rcu": r"BUG: sleeping function called from invalid context(?s:.*)plant\.c",
        "use_after_free": (
            r"BUG: KASAN: slab-use-after-free in use_after_free\S+ \[ptscope\]"
            r"(?s:.*)Freed by task"
        ),
    },
    "plant-rcu": {
        "rcu_unprotected": (
            r"WARNING: suspicious RCU usage(?s:.*)plant\.c:\d+ suspicious rcu_dereference_check"
        ),
    },
}[SCENARIO]


def messages() -> str:
    """What the kernel has said."""
    return subprocess.run(["dmesg"], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("fault", FAULTS)
def test_the_kernel_reports(fault: str) -> None:
    pattern = re.compile(FAULTS[fault])
    assert not pattern.search(messages())
    rawfiles.walk("self", rawfiles.vma_of_own_stack())
    assert not pattern.search(messages()), "a walk without the fault is reported"
    PLANT.write_text(fault)
    rawfiles.walk("self", rawfiles.vma_of_own_stack())
    assert PLANT.read_text().strip() == "", "the fault was not made"
    said = messages()
    assert pattern.search(said), said[-8000:]
