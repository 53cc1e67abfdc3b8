# SPDX-License-Identifier: GPL-2.0-or-later
"""What an access of memory does: the hardware's part, and the kernel's page fault.

`access` is what a process does; `handle` is handle_mm_fault of mm/memory.c, which mlock and
MADV_POPULATE call too. Functions are named like those of the kernel.
"""

from __future__ import annotations

from ptscope.model.kernel import PMD, PTE
from ptscope.model.state import Leaf, Marker, Object, Page, Space, Swapped, Vma

DONE, SIGSEGV, SIGBUS = "ok", "SIGSEGV", "SIGBUS"


def access(space: Space, address: int, write: bool) -> str:
    """One access from user mode: `ok`, or the signal it ends with.

    A present entry that permits the access gets its accessed bit, and dirty for a write, from the
    hardware, which does not set soft-dirty. Otherwise there is a fault first.
    """
    vma = space.find(address)
    if vma is None:
        vma = expand_stack(space, address)
    if vma is None or not permits(vma, write):
        return SIGSEGV
    if not _hardware(space, address, vma, write):
        outcome = handle(space, vma, address, write)
        if outcome != DONE:
            return outcome
        _hardware(space, address, vma, write)
    return DONE


def step(space: Space, vma: Vma) -> int:
    """Bytes of one of its pages."""
    return 1 << space.shifts[PTE if vma.object is None else vma.object.level]


def permits(vma: Vma, write: bool) -> bool:
    """Whether the VMA permits it (access_error); on all our machines w and x come with r."""
    return "w" in vma.prot if write else bool(vma.prot)


def expand_stack(space: Space, address: int) -> Vma | None:
    """A MAP_GROWSDOWN mapping grows down to a page that is touched below it.

    Up to stack_guard_gap (256 pages) stay free below (mm/mmap.c, expand_downwards; from 6.5 under
    the write lock, with the same result). It gets an anon_vma by that, so that fork copies even its
    zero pages (the model first had it not).
    """
    page = address & -space.geometry.page
    above = next((vma for vma in space.vmas if vma.start > address), None)
    if above is None or "growsdown" not in above.flags:
        return None
    gap = 256 * space.geometry.page
    below = [vma for vma in space.vmas if vma.end <= address]
    near = bool(below) and page - below[-1].end < gap
    if near and below[-1].prot and "growsdown" not in below[-1].flags:
        return None
    above.pgoff -= above.start - page >> space.geometry.shift
    above.start = page
    above.anon_vma = True
    space.vmas_changed = True
    return above


def _hardware(space: Space, address: int, vma: Vma, write: bool) -> bool:
    """Whether an entry lets the access pass; it then has its bits set."""
    found = space.at(address)
    if found is None:
        return False
    level, index, leaf = found
    if not isinstance(leaf, Leaf) or (write and not leaf.write):
        return False
    if not leaf.accessed or (write and not leaf.dirty):
        leaf.accessed = True
        if write:
            if not leaf.dirty and not space.kernel.hardware_dirty and space.kernel.soft_dirty:
                leaf.soft_dirty = True  # the fault that does it for the hardware: pte_mkdirty
            leaf.dirty = leaf.page.written = True
        space.changed.add((level, index))
    return True


def handle(space: Space, vma: Vma, address: int, write: bool) -> str:
    """A page fault that the VMA permits: handle_mm_fault."""
    if vma.object is not None and vma.object.level > PTE:
        from ptscope.model.hugetlb import hugetlb_fault

        return hugetlb_fault(space, vma, address, write)
    index = address >> space.shifts[PMD]
    space.ensure(PMD, index)  # whatever becomes of the fault (__handle_mm_fault)
    entry = space.entries[PMD].get(index)
    if entry is None and thp_at(space, vma, address):
        outcome = do_huge_pmd_anonymous_page(space, vma, address, write)
        if outcome is not None:
            return outcome
    elif isinstance(entry, Leaf):
        if write and entry.uffd_wp and "uffd_wp" in vma.flags:
            return SIGBUS
        if write and not entry.write and not do_huge_pmd_wp_page(space, vma, index, entry):
            return handle(space, vma, address, write)
        return DONE
    return handle_pte_fault(space, vma, address, write)


def handle_pte_fault(space: Space, vma: Vma, address: int, write: bool) -> str:
    """The fault of a page that is mapped by a PTE."""
    index = address >> space.shifts[PTE]
    entry = space.entries[PTE].get(index)
    if isinstance(entry, Leaf):
        if write and not entry.write:
            return do_wp_page(space, vma, index, entry)
        return DONE
    if isinstance(entry, Marker) and entry.kind == "guard":
        return SIGSEGV  # from 6.13, handle_pte_marker: VM_FAULT_SIGSEGV
    if isinstance(entry, Swapped):
        return do_swap_page(space, vma, index, entry, write)
    marked = isinstance(entry, Marker)
    if vma.object is None:
        return do_anonymous_page(space, vma, address, write, uffd_wp=marked)
    return do_fault(space, vma, address, write, uffd_wp=marked)


# ---- anonymous memory


def thp_at(space: Space, vma: Vma, address: int) -> bool:
    """Whether a fault here may map a huge page (hugepage_vma_check; thp_vma_allowable_order).

    The VMA is private and anonymous, has all of the aligned range, and the policy is for it.
    """
    first = address & -space.geometry.huge
    if vma.object is not None or vma.start > first or first + space.geometry.huge > vma.end:
        return False
    return thp_wanted(space, vma)


def thp_wanted(space: Space, vma: Vma) -> bool:
    """The policy: sysfs, and what madvise has said of the VMA."""
    if "nohugepage" in vma.flags or space.kernel.thp == "never":
        return False
    return space.kernel.thp == "always" or "hugepage" in vma.flags


def do_huge_pmd_anonymous_page(
    space: Space, vma: Vma, address: int, write: bool
) -> str | None:
    """A huge page, or the huge zero page for a read; None: small pages after all.

    The VMA has an anon_vma before anything else, for a read too (anon_vma_prepare; the model first
    gave it one only with a page of its own).
    """
    index = address >> space.shifts[PMD]
    vma.anon_vma = True
    if "uffd_missing" in vma.flags:
        return SIGBUS  # userfaultfd is asked before there is a table
    got = space.world.choose(
        space, address, ("huge", "small"), "there may be no free huge page", None
    )
    if got == "small":
        return None
    if not write and space.kernel.huge_zero:
        space.put(PMD, index, Leaf(space.world.huge_zero, pkey=vma.pkey))
        return DONE
    _map_fresh_huge(space, vma, index)
    return DONE


def _map_fresh_huge(space: Space, vma: Vma, index: int) -> None:
    """map_anon_folio_pmd: dirty, and writable when the VMA is."""
    page = Page("anon", size=space.geometry.per_huge, exclusive=True)
    leaf = Leaf(
        page,
        write="w" in vma.prot,
        dirty=True,
        soft_dirty=space.kernel.soft_dirty,
        pkey=vma.pkey,
    )
    space.put(PMD, index, leaf)


def gup(space: Space, vma: Vma, address: int, write: bool) -> str:
    """A page is faulted in for the process by the kernel (get_user_pages with FOLL_TOUCH).

    Nothing is set in PTEs that already permit the access. A PMD entry is made young and, for a
    write, dirty (touch_pmd); on x86 the first alone does not reach the entry
    (pmdp_set_access_flags).
    """
    level, index, leaf = space.at(address) or (PTE, 0, None)
    if isinstance(leaf, Leaf) and (leaf.write or not write):
        if level == PMD and vma.object is None and (write or space.kernel.arch != "x86_64"):
            leaf.accessed = True
            if write:
                leaf.dirty, leaf.soft_dirty = True, space.kernel.soft_dirty
            space.changed.add((level, index))
        return DONE
    return handle(space, vma, address, write)


def do_huge_pmd_wp_page(space: Space, vma: Vma, index: int, leaf: Leaf) -> bool:
    """A write to a huge page that is mapped read-only; False: it was split, and must be tried anew.

    Exclusive pages are made writable. One that was shared by fork is, once nobody else has it,
    unless there are other references; else it is mapped page by page. The huge zero page is
    split into zero pages; from 6.13 it is replaced by a huge page if there is one.
    """
    address = index << space.shifts[PMD]
    if leaf.page.kind == "huge_zero":
        vma.anon_vma = True
        if space.kernel.since(6, 13) and thp_at(space, vma, address):
            reason = "there may be no free huge page (do_huge_zero_wp_pmd)"
            if space.world.choose(space, address, ("huge", "small"), reason, None) == "huge":
                _map_fresh_huge(space, vma, index)
                return True
        space.split_huge(vma, index)
        return False
    if not leaf.page.exclusive:
        alone = leaf.page.mapped == 1 and not any(p.mapped for p in leaf.page.parts or ())
        reason = "references from elsewhere keep the kernel from reusing it"
        if not alone or (
            space.world.choose(space, address, ("huge", "small"), reason, leaf.page) == "small"
        ):
            space.split_huge(vma, index)
            return False
        leaf.page.exclusive = True
    _make_writable(space, PMD, index, leaf, vma)
    return True


def _make_writable(space: Space, level: int, index: int, leaf: Leaf, vma: Vma) -> None:
    """wp_page_reuse: young, dirty (which sets soft-dirty), and writable."""
    leaf.accessed = leaf.dirty = True
    leaf.page.written = leaf.page.dirty = True
    leaf.write = "w" in vma.prot
    leaf.soft_dirty = space.kernel.soft_dirty
    space.changed.add((level, index))


def do_anonymous_page(
    space: Space, vma: Vma, address: int, write: bool, uffd_wp: bool = False
) -> str:
    """The first access of a private anonymous page: the zero page for a read, else a new page.

    For a write the VMA has an anon_vma even if userfaultfd then is asked.
    """
    index = address >> space.shifts[PTE]
    if write:
        vma.anon_vma = True
    if "uffd_missing" in vma.flags:
        space.ensure(PTE, index)
        return SIGBUS  # UFFD_FEATURE_SIGBUS, which the puppet asks for
    if not write:
        space.put(PTE, index, Leaf(space.world.zero, uffd_wp=uffd_wp, pkey=vma.pkey))
        return DONE
    put_fresh(space, vma, index)
    return DONE


def do_swap_page(space: Space, vma: Vma, index: int, entry: Swapped, write: bool) -> str:
    """A page comes back from swap space.

    It has the soft-dirty and uffd-wp of its entry, and is exclusive if it was, or if nobody else
    has the slot: then a write finds it writable at once. A read leaves it clean, and read-only
    until 6.10; from 6.11 it is writable where a write would only make it so (do_swap_page). While
    others have the slot, it is shared with them as long as the swap cache has it, and a write
    copies it.
    """
    world, slot = space.world, entry.slot
    address = index << space.shifts[PTE]
    others = world.swapped(slot) > 1
    shared = slot.page if slot.page is not None and slot.page.mapped else None
    reason = "the swap cache may have it still"
    if (
        shared is None
        or world.choose(space, address, ("same", "fresh"), reason, shared) == "fresh"
    ):
        shared = None
    page = shared or Page("anon", from_swap=True)
    page.exclusive = entry.exclusive
    page.unsure = not entry.exclusive and not others and shared is None
    if others:
        slot.page = page
    elif page.unsure:
        page.exclusive = True
    uffd_wp = entry.uffd_wp and "uffd_wp" in vma.flags
    leaf = Leaf(page, soft_dirty=entry.soft_dirty, uffd_wp=entry.uffd_wp, pkey=vma.pkey)
    early = space.kernel.since(6, 11)
    if page.exclusive and "w" in vma.prot:
        tracked = space.kernel.soft_dirty and not vma.soft_dirty and not leaf.soft_dirty
        leaf.write = early and not uffd_wp and not tracked
        if leaf.write and page.unsure and not write:
            why = "references from elsewhere make it not exclusive"
            seen = world.choose(space, address, ("writable", "read-only"), why, page)
            page.exclusive = leaf.write = seen == "writable"
            page.unsure = False
        if write and not (early and uffd_wp):
            page.unsure = False
            leaf.dirty = True
            leaf.soft_dirty = space.kernel.soft_dirty
            leaf.write = not entry.uffd_wp
    space.put(PTE, index, leaf)
    if not write or leaf.write:
        return DONE
    return do_wp_page(space, vma, index, leaf)


def put_fresh(space: Space, vma: Vma, index: int) -> None:
    """A new anonymous page: dirty, soft-dirty with it, and writable when the VMA is."""
    leaf = Leaf(
        Page("anon", exclusive=True),
        write="w" in vma.prot,
        dirty=True,
        soft_dirty=space.kernel.soft_dirty,
        pkey=vma.pkey,
    )
    space.put(PTE, index, leaf)


def do_wp_page(space: Space, vma: Vma, index: int, leaf: Leaf) -> str:
    """A write to a page that is mapped read-only."""
    if leaf.uffd_wp and "uffd_wp" in vma.flags:
        return SIGBUS
    if vma.shared:
        # wp_page_shared: shared memory has no page_mkwrite, so the page is just made writable.
        _make_writable(space, PTE, index, leaf, vma)
        return DONE
    page = leaf.page
    if page.kind == "anon" and _may_reuse(space, index, leaf):
        page.exclusive, page.unsure = True, False
        _make_writable(space, PTE, index, leaf, vma)
        return DONE
    vma.anon_vma = True
    put_fresh(space, vma, index)  # wp_page_copy
    fresh = space.entries[PTE][index]
    assert isinstance(fresh, Leaf)
    fresh.page.other_than = page.known_frame()
    return DONE


def _may_reuse(space: Space, index: int, leaf: Leaf) -> bool:
    """wp_can_reuse_anon_folio, from 5.19.

    A page that only this process has ever had is always reused. One that was shared by fork is
    copied as long as somebody else maps it; after that it is reused when the entry's is the only
    reference, which batches of the LRU (of other CPUs) may prevent. Pages of large folios are
    copied; from 6.15 they may be reused when no other process maps the folio.
    """
    page = leaf.page
    if page.exclusive and not page.unsure:
        return True
    if page.mapped > 1 or (page.whole is not None and page.whole.mapped):
        return False
    address = index << space.shifts[PTE]
    if page.whole is not None and not page.whole.split and not space.kernel.since(6, 15):
        alone = sum(part.mapped for part in page.whole.parts or ()) == 1
        if not alone:
            return False
    reason = "references from elsewhere, as the LRU batch of another CPU, keep the kernel from it"
    return space.world.choose(space, address, ("same", "fresh"), reason, page) == "same"


# ---- files and shared memory


def do_fault(
    space: Space, vma: Vma, address: int, write: bool, uffd_wp: bool = False
) -> str:
    """The first access of a page of a file or of shared memory."""
    assert vma.object is not None
    index = address >> space.shifts[PTE]
    number = vma.page_of(address, space.geometry.shift)
    page_start = address & -space.geometry.page
    if vma.known:
        return do_known_fault(space, vma, index, number, write)
    if "uffd_minor" in vma.flags and has_page(space, vma.object, number, address, "absent"):
        # shmem_get_folio: before there is a table for it. Swap counts as the page cache.
        return SIGBUS
    if not write:
        # Before it is known whether the file is long enough for the page itself.
        do_fault_around(space, vma, address)
        if isinstance(space.entries[PTE].get(index), Leaf):
            return DONE
    if write and not vma.shared:
        vma.anon_vma = True  # do_cow_fault prepares it before it asks for the page
    if number >= vma.object.pages:
        return SIGBUS
    page = cached(space, vma.object, number)
    if write and not vma.shared:
        put_fresh(space, vma, page_start >> space.shifts[PTE])  # do_cow_fault
        return DONE
    leaf = Leaf(page, write=default_write(space, vma), pkey=vma.pkey)
    if write:
        leaf.write = leaf.dirty = True
        leaf.soft_dirty = space.kernel.soft_dirty
        page.written = page.dirty = True
    else:
        _as_the_page(space, address, leaf)
    if uffd_wp:
        leaf.uffd_wp, leaf.write = True, False
    space.put(PTE, index, leaf)
    return DONE


def _as_the_page(space: Space, address: int, leaf: Leaf) -> None:
    """A page that a read maps writable is dirty at once when the page cache has it as dirty: in
    set_pte_range from 6.16, for all architectures (6.12 does not, 7.2 was seen to). The model first
    had it clean. Setting dirty sets soft-dirty."""
    if not space.kernel.since(6, 16) or not leaf.write:
        return
    page = leaf.page
    outcome = "dirty" if page.dirty else "clean"
    if page.written and not page.dirty:
        reason = "the page cache may have heard of a write that an entry showed"
        outcome = space.world.choose(space, address, ("clean", "dirty"), reason, page)
    if outcome == "dirty":
        leaf.dirty, leaf.soft_dirty = True, space.kernel.soft_dirty


def do_known_fault(space: Space, vma: Vma, index: int, number: int, write: bool) -> str:
    """vmf_insert_pfn: an entry for the frame, clean, as the VMA's protection has it; a write that
    this does not permit faults anew (wp_pfn_shared). Only for the mapping that fills in at faults:
    nothing takes an entry from the others, but if something had, it would be SIGBUS."""
    assert vma.object is not None
    if vma.known != "fault":
        return SIGBUS
    leaf = Leaf(vma.object.cache[number], write=default_write(space, vma), pkey=vma.pkey)
    space.put(PTE, index, leaf)
    if write and not leaf.write:
        return do_wp_page(space, vma, index, leaf)
    return DONE


def cached(space: Space, file: Object, number: int) -> Page:
    """The page of the page cache; shared memory gets it when it is first asked for."""
    page = file.cache.get(number)
    if page is None:
        page = file.cache[number] = Page("cache")
    page.unsure = False
    return page


def has_page(space: Space, file: Object, number: int, address: int, shown_by: str) -> bool:
    """Whether shared memory has a page. After reclaim that shows in what becomes of the entry:
    `shown_by` is the outcome, present or absent, that means it has."""
    page = file.cache.get(number)
    if page is None or not page.unsure:
        return page is not None
    reason = "reclaim may drop what was never written"
    outcomes = ("absent", "present") if shown_by == "absent" else ("present", "absent")
    return space.world.choose(space, address, outcomes, reason, None) == shown_by


def default_write(space: Space, vma: Vma) -> bool:
    """Whether entries are writable from the start (vma_set_page_prot, vma_wants_writenotify).

    Those of shared mappings are when the VMA is, unless somebody wants to hear of the first write:
    soft-dirty tracking once clear_refs has cleared VM_SOFTDIRTY (from 6.0 not for hugetlb), or
    userfaultfd write protection.
    """
    if not vma.shared or "w" not in vma.prot or "uffd_wp" in vma.flags:
        return False
    if vma.object is not None and vma.object.level > PTE:
        return True
    return vma.soft_dirty or not space.kernel.soft_dirty


def do_fault_around(space: Space, vma: Vma, address: int) -> None:
    """A read also maps the neighbours that the page cache has (filemap_map_pages).

    They lie within fault_around_bytes, the VMA, the object and the PTE table. The window begins at
    an aligned page; one that the start of the VMA cuts off is as long as others, and so ends later
    (the model first had it end where an aligned one does). Neighbours may be left out when they are
    locked, or not up to date. It takes place before it is known whether the object has the page
    itself, so that a read that ends with SIGBUS maps neighbours too (the model first had it not).
    """
    around = space.kernel.fault_around
    if around <= 1 or vma.object is None or vma.flags & {"uffd_minor", "uffd_wp"}:
        return
    shift = space.geometry.shift
    at = address >> shift
    first = max(at & -around, vma.start >> shift)
    last = first + around
    table = at | space.geometry.per_huge - 1
    last = min(last, table + 1, vma.end >> shift)
    first = max(first, at & -space.geometry.per_huge)
    reason = "pages around a fault are mapped if they are at hand (filemap_map_pages)"
    for index in range(first, last):
        number = vma.page_of(index << shift, shift)
        page = vma.object.cache.get(number)
        if page is None or number >= vma.object.pages or index in space.entries[PTE]:
            continue
        where = index << shift
        outcome = space.world.choose(space, where, ("present", "absent"), reason, page)
        if outcome == "absent":
            continue
        leaf = Leaf(page, write=default_write(space, vma), pkey=vma.pkey)
        leaf.accessed = index == at or not space.kernel.old_prefaulted
        _as_the_page(space, where, leaf)
        space.put(PTE, index, leaf)
