# SPDX-License-Identifier: GPL-2.0-or-later
"""What an entry must hold, given the state: `Prediction`, and how it is put into words."""

from __future__ import annotations

from dataclasses import dataclass

from ptscope.decode.compiled import ATTRIBUTE
from ptscope.model.kernel import Kernel
from ptscope.model.state import Entry, Leaf, Marker, Space, Swapped, Table, Vma

ACCESSED, DIRTY = ATTRIBUTE["accessed"], ATTRIBUTE["dirty"]
SOFT_DIRTY, UFFD_WP = ATTRIBUTE["soft_dirty"], ATTRIBUTE["uffd_wp"]
SPECIAL, PRESENT = ATTRIBUTE["special"], ATTRIBUTE["hw_present"]
READ, WRITE = ATTRIBUTE["access.read"], ATTRIBUTE["access.write"]
EXEC, USER = ATTRIBUTE["access.exec"], ATTRIBUTE["access.user"]

WORDS = {
    PRESENT: "present",
    READ: "r",
    WRITE: "w",
    EXEC: "x",
    USER: "user",
    ACCESSED: "accessed",
    DIRTY: "dirty",
    SOFT_DIRTY: "soft-dirty",
    UFFD_WP: "uffd-wp",
    SPECIAL: "special",
}
LEAF_CARE = PRESENT | READ | WRITE | EXEC | USER | ACCESSED | DIRTY | SOFT_DIRTY | UFFD_WP | SPECIAL
# An entry without permissions keeps what is not about them.
PROTNONE_CARE = PRESENT | ACCESSED | DIRTY | SOFT_DIRTY | UFFD_WP


@dataclass(frozen=True, slots=True)
class Prediction:
    """What must be true of one entry: its state, bits of ATTRIBUTE, and where its frame is known.

    Of the bits only those in `care` are predicted. `why` names the rule in the model's terms.
    """

    state: str
    bits: int = 0
    care: int = 0
    frame: int | None = None
    pkey: int = 0
    why: str = ""

    def words(self) -> str:
        """For people: state, the bits that must be set, those that must not."""
        if self.state == "none":
            return "empty" + (f" ({self.why})" if self.why else "")
        yes = [word for bit, word in WORDS.items() if self.care & bit and self.bits & bit]
        no = [word for bit, word in WORDS.items() if self.care & bit and not self.bits & bit]
        text = " ".join((self.state, *yes))
        if no:
            text += ", not " + " ".join(no)
        if self.frame is not None:
            text += f", frame {self.frame:#x}"
        return text + (f" ({self.why})" if self.why else "")


EMPTY = Prediction("none")


def predict(space: Space, level: int, index: int) -> Prediction:
    """The prediction for one entry of the arena."""
    entry = space.entries[level].get(index)
    if entry is None:
        return EMPTY
    return of_entry(space, level, index, entry)


def of_entry(space: Space, level: int, index: int, entry: Entry) -> Prediction:
    """The prediction for an entry that is there."""
    if isinstance(entry, Table):
        # Tables permit everything: leaves decide. Under PTI the kernel's copy of a root entry
        # forbids execution (kernel_to_user_pgdp), so that is not looked at in roots.
        care = READ | WRITE | USER | (0 if level == space.geometry.levels[-1] else EXEC)
        return Prediction("table", READ | WRITE | EXEC | USER, care, entry.frame)
    if isinstance(entry, Swapped):
        bits = (SOFT_DIRTY if entry.soft_dirty else 0) | (UFFD_WP if entry.uffd_wp else 0)
        return Prediction("swap", bits, SOFT_DIRTY | UFFD_WP)
    if isinstance(entry, Marker):
        return Prediction("marker", why=entry.kind)
    vma = space.find(index << space.shifts[level])
    if vma is None:
        return Prediction("none", why="no VMA")
    return of_leaf(space.kernel, vma, entry)


def of_leaf(kernel: Kernel, vma: Vma, leaf: Leaf) -> Prediction:
    """The prediction for an entry with a page; without permissions the hardware does not see it."""
    page = leaf.page
    # The huge zero page is special from 6.17 on (vm_normal_page_pmd).
    special = (
        page.kind == "zero"
        or (page.kind == "huge_zero" and kernel.since(6, 17))
        # Bare frames; what vm_insert_page maps has a page behind it.
        or (page.kind == "known" and vma.known != "insert")
    )
    bits = (
        (ACCESSED if leaf.accessed else 0)
        | (DIRTY if leaf.dirty else 0)
        | (SOFT_DIRTY if leaf.soft_dirty else 0)
        | (UFFD_WP if leaf.uffd_wp else 0)
        | (SPECIAL if special else 0)
    )
    frame = page.known_frame()
    if not vma.prot:
        return Prediction("protnone", bits, PROTNONE_CARE, frame, vma.pkey, page.kind)
    bits |= PRESENT | READ | USER
    bits |= WRITE if leaf.write else 0
    bits |= EXEC if "x" in vma.prot else 0
    return Prediction("leaf", bits, LEAF_CARE, frame, vma.pkey, page.kind)
