# SPDX-License-Identifier: GPL-2.0-or-later
"""Compares what ``ptscope walk --json`` says of an address with /proc/PID/pagemap."""

from __future__ import annotations

from typing import Any

from witness import PAGE, PagemapEntry, release

PAGEMAP_HAS_UFFD_WP = release() >= (5, 14)
PRESENT = {"leaf", "protnone", "splitting"}
"""States that count as resident: the page has a frame, whether or not the hardware may use it."""


def last_entry(walk: dict[str, Any]) -> dict[str, Any]:
    """The decoded entry that decides: the last one that was read."""
    decoded = [level["decoded"] for level in walk["levels"] if level.get("decoded") is not None]
    assert decoded, walk
    entry = decoded[-1]
    assert isinstance(entry, dict)
    return entry


def number(text: str | None) -> int | None:
    """A number from its hex text."""
    return None if text is None else int(text, 16)


def frame(walk: dict[str, Any]) -> int:
    """The frame of the page of the address, inside a huge page too, from the leaf's own frame."""
    entry = last_entry(walk)
    base = number(entry["pfn"])
    assert base is not None
    return base + (int(walk["address"], 16) % int(entry["page_size"]) // PAGE)


def differences(
    walk: dict[str, Any], witness: PagemapEntry, vma_soft_dirty: int, hugetlb: bool = False
) -> list[str]:
    """What the two disagree about; ``vma_soft_dirty`` is the mask of VM_SOFTDIRTY in vm_flags."""
    entry = last_entry(walk)
    state = entry["state"]
    found = []

    def expect(what: str, ours: object, theirs: object) -> None:
        if ours != theirs:
            found.append(f"{what}: {ours!r}, pagemap {theirs!r}")

    expect("present", state in PRESENT, witness.present)
    expect("swapped", state not in PRESENT | {"none"}, witness.swapped)
    if state in PRESENT and witness.present:
        expect("frame", frame(walk), witness.pfn)
    if entry["swap"] is not None and witness.swapped:
        expect("swap type", entry["swap"]["type"], witness.swap_type)
        expect("swap offset", number(entry["swap"]["offset"]), witness.swap_offset)
    vma = walk["vma"]
    in_vma = vma is not None and bool(int(vma["vm_flags"], 16) & vma_soft_dirty)
    # fs/proc/task_mmu.c: VM_SOFTDIRTY marks every page; of hugetlb pages it is the only mark
    in_entry = bool(entry["soft_dirty"]) and not hugetlb and state != "none"
    expect("soft-dirty", in_vma or in_entry, witness.soft_dirty)
    if state != "none" and PAGEMAP_HAS_UFFD_WP:
        expect("uffd-wp", bool(entry["uffd_wp"]), witness.uffd_wp)
    return found
