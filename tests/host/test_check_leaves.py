# SPDX-License-Identifier: GPL-2.0-or-later
"""`ptscope check` without the module: what pagemap, smaps and status must say of each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import test_check as honest_world
from ptscope.check.invariants import BY_NAME, NAMES
from ptscope.check.leaves import LEAF_INVARIANTS, LeafChecker
from ptscope.check.process import Checked, HugeZeroPage
from ptscope.check.witness import parse_iomem
from world import IOMEM, PAGE, PRESENT, RAM_LAST, ZERO_PFN, World

LIES: dict[str, Callable[[World], None]] = {
    "frames-known": lambda world: world.show(honest_world.HEAP, PRESENT | (RAM_LAST + 1) // PAGE),
    "vm-size": honest_world.status("VmSize"),
    "resident": honest_world.figure("Rss", by=100 * PAGE),
    "hugetlb": honest_world.figure("Private_Hugetlb", honest_world.HUGETLB, -PAGE),
    "swapped": honest_world.figure("Swap", by=100 * PAGE),
}


def checked(world: World, *names: str, zero: int | None = ZERO_PFN) -> Checked:
    world.write()
    (world.directory / "maps").write_text(
        "".join(
            f"{vma.start:08x}-{vma.end:08x} rw-p 00000000 00:00 {vma.inode}\n" for vma in world.vmas
        )
    )
    checker = LeafChecker(
        frozenset(names or NAMES),
        zero,
        parse_iomem(IOMEM),
        HugeZeroPage(world.directory),
        lambda seconds: None,
    )
    return checker.check(world)


def test_the_truth_has_no_findings(tmp_path: Path) -> None:
    result = checked(honest_world.honest(tmp_path))
    assert result.findings == []
    assert result.changed == {}
    assert result.entries > 1000


def test_each_has_a_lie() -> None:
    assert set(LIES) == set(LEAF_INVARIANTS)


@pytest.mark.parametrize("name", LEAF_INVARIANTS)
def test_each_finds_its_lie(tmp_path: Path, name: str) -> None:
    world = honest_world.honest(tmp_path)
    LIES[name](world)
    result = checked(world)
    assert {finding.invariant for finding in result.findings} == {name}
    assert checked(world, *(other for other in NAMES if other != name)).findings == []


def test_hidden_frames(tmp_path: Path) -> None:
    """Without privilege pagemap shows frame 0: no page is where it should not be."""
    world = honest_world.honest(tmp_path)
    world.show(honest_world.HEAP, PRESENT)
    assert checked(world, zero=None).findings == []
    hidden = LeafChecker(frozenset(NAMES), None, None)
    assert "hidden" in (hidden.why_not(BY_NAME["resident"]) or "")
    assert "hidden" in (hidden.why_not(BY_NAME["frames-known"]) or "")
    assert hidden.why_not(BY_NAME["vm-size"]) is None
