# SPDX-License-Identifier: GPL-2.0-or-later
"""The faults are in the tests' own build of the module and in no other."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import vmpath  # noqa: F401
from vm import fetch, kernels, module, paths, plan

NAMES = re.compile(r"plant|__wrap_|use_after_free|lock_inversion", re.IGNORECASE)


def contents(ko: Path) -> set[str]:
    """What the symbols and strings of a module name of the faults."""
    found = set()
    for command in (["nm", str(ko)], ["strings", "-a", str(ko)]):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found |= {line for line in done.stdout.splitlines() if NAMES.search(line)}
    return found


@pytest.mark.parametrize("planted", [False, True])
def test_faults_are_in_the_planted_module_only(planted: bool) -> None:
    fetched = fetch.fetch(kernels.kernel(kernels.DEFAULT))
    found = contents(module.build(fetched, fetched.release, planted=planted))
    assert bool(found) is planted, found
    if planted:
        assert any("__wrap_ptscope_batch" in line for line in found)


def test_the_module_s_own_sources_know_nothing_of_them() -> None:
    for path in module.sources():
        assert not NAMES.search(path.read_text(encoding="utf-8")), path
    assert not any(paths.KMOD.rglob("plant*"))


def test_only_planted_rows_expect_reports_and_each_expects_some() -> None:
    rows = [row for kernel in kernels.KERNELS.values() for row in plan.matrix_rows(kernel)]
    planted = {row.name for row in [*plan.PLAN, *rows] if f"vm.module={plan.PLANTED}" in row.init}
    expecting = {row.name for row in [*plan.PLAN, *rows] if row.expect_splat}
    assert planted == expecting
    assert planted
