# SPDX-License-Identifier: GPL-2.0-or-later
"""Looking for a frame in many processes, and asking pagemap whether what was found is so."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from ptscope.decode.layout import Layout
from ptscope.errors import NotPermitted, TargetError, Unsupported
from ptscope.raw.pagemap import Page
from ptscope.source.pagemap import PagemapFile
from ptscope.source.stream import RawStream
from ptscope.target.process import Process
from ptscope.target.vma import Vma, named, read_maps
from ptscope.who.answer import Answer, Mapper, Mapping
from ptscope.who.leaves import leaf_places
from ptscope.who.places import Place, Search
from ptscope.who.processes import Census, Space, skipped

ATTEMPTS = 3
PAUSE = 0.02  # seconds
CHECKED = 256
"""Of one process, so many places are looked up in pagemap; nobody maps a page more often but the
zero page."""


class Opener(Protocol):
    """Makes streams: `open_stream` of a ModuleSource, or what a test has."""

    def __call__(
        self, process: Process, ranges: Sequence[tuple[int, int]] | None, /
    ) -> AbstractContextManager[RawStream]:
        """A stream of these ranges of a process, VMAs and user root included; None: of all."""


Tell = Callable[[str], None]


@dataclass(frozen=True)
class Tables:
    """Looks through the module."""

    layout: Layout
    opener: Opener

    def places(self, process: Process, pfn: int, answer: Answer, tell: Tell) -> list[Place]:
        """All places of a process."""
        search = Search(self.layout, pfn)
        with self.opener(process, None) as stream:
            places = list(search.places(stream))
        answer.entries += search.looked
        return places

    def again(self, process: Process, pfn: int, address: int) -> Place | None:
        """The place at one address, read anew."""
        with self.opener(process, [(address, address)]) as stream:
            return next(iter(list(Search(self.layout, pfn).places(stream))), None)


@dataclass(frozen=True)
class Leaves:
    """Looks through pagemap; so there is nothing to compare with."""

    def places(self, process: Process, pfn: int, answer: Answer, tell: Tell) -> list[Place]:
        """All places of a process."""
        return list(leaf_places(process, pfn, lambda address: tell(f"at {address:#x}")))


def ask(answer: Answer, census: Census, eyes: Tables | Leaves, tell: Tell) -> None:
    """Look at all processes of the census; fills the answer.

    A process that exits or executes a program meanwhile, or that we may not look at, is among the
    `skipped` ones. Raises Unsupported, which concerns all of them, and NotPermitted when we may
    look at none.
    """
    answer.kernel_threads = census.kernel_threads
    answer.skipped += census.skipped
    refusal: NotPermitted | None = None
    for number, space in enumerate(census.spaces, 1):
        process = space.process
        prefix = f"{number} of {len(census.spaces)} processes, {process.pid} {process.comm}"
        tell(prefix)
        try:
            mapper = _look(answer, space, eyes, partial(_tell_at, tell, prefix))
        except (TargetError, NotPermitted) as error:
            answer.skipped.append(skipped(process, error))
            refusal = error if isinstance(error, NotPermitted) else refusal
            continue
        answer.looked += 1
        answer.sharing += len(space.sharers)
        if mapper.mappings:
            answer.mappers.append(mapper)
    if refusal is not None and not answer.looked:
        raise refusal


def _tell_at(tell: Tell, prefix: str, text: str) -> None:
    tell(f"{prefix}, {text}")


def _look(answer: Answer, space: Space, eyes: Tables | Leaves, tell: Tell) -> Mapper:
    process = space.process
    places = eyes.places(process, answer.pfn, answer, tell)
    # Also in time: of whoever had the PID before, nothing is reported.
    process.check_unchanged()
    if not places:
        return Mapper(process, space.sharers, ())
    if isinstance(eyes, Leaves):
        return Mapper(process, space.sharers, tuple(Mapping(place) for place in places))
    try:
        places = list(_with_names(process, places))
        mappings = list(_checked_all(eyes, process, answer, places))
    except (NotPermitted, Unsupported):
        # The module shows what /proc does not show us: without names, and unchecked.
        mappings = [Mapping(place) for place in places]
    return Mapper(process, space.sharers, tuple(mappings))


def _checked_all(
    eyes: Tables, process: Process, answer: Answer, places: Sequence[Place]
) -> Iterator[Mapping]:
    """The places that are still there, with what pagemap says of them."""
    with PagemapFile(process.proc, hidden=False) as pagemap:
        for place in places[:CHECKED]:
            mapping = _checked(eyes, process, answer, place, pagemap)
            if mapping is None:
                answer.changed += 1
            else:
                yield mapping
        process.check_unchanged()
    yield from map(Mapping, places[CHECKED:])


def _with_names(process: Process, places: Sequence[Place]) -> Iterator[Place]:
    """The places, with the names of their VMAs: the module does not know these."""
    maps = {vma.start: vma for vma in read_maps(process.proc)}

    def name(vma: Vma) -> Vma:
        same = maps.get(vma.start)
        return vma if same is None else named(vma, (same,))

    for place in places:
        yield place if place.vma is None else replace(place, vma=name(place.vma))


def _checked(
    eyes: Tables, process: Process, answer: Answer, place: Place, pagemap: PagemapFile
) -> Mapping | None:
    """What pagemap says of a place; None when it is not there any more."""
    if not place.mapped or place.vma is None or _is_unseen(eyes.layout, place.vma):
        return Mapping(place)
    for attempt in range(1, ATTEMPTS + 1):
        page = pagemap.read(place.address)
        if page.frame == answer.pfn:
            return Mapping(place, agrees=True)
        if attempt == ATTEMPTS:
            break
        time.sleep(PAUSE)
        if eyes.again(process, answer.pfn, place.address) is None:
            return None
    return Mapping(place, agrees=False, lasting=_shown(page))


def _is_unseen(layout: Layout, vma: Vma) -> bool:
    """Whether pagemap shows nothing of a VMA (mm/pagewalk.c, walk_page_test: VM_PFNMAP)."""
    bit = layout.facts.get("vm.pfnmap", 0)
    return bool(vma.vm_flags and vma.vm_flags & bit)


def _shown(page: Page) -> str:
    if page.frame is not None:
        return f"frame {page.frame:#x}"
    return "a page that is swapped out" if page.swapped else "no page"


def look_into_kernel(answer: Answer, layout: Layout, stream: RawStream) -> None:
    """Look for the frame in the kernel half.

    Raises what the stream raises: Unstable when it changed at each of many readings.
    """
    search = Search(layout, answer.pfn)
    answer.kernel = list(search.places(stream))
    answer.entries += search.looked
