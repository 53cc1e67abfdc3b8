# SPDX-License-Identifier: GPL-2.0-or-later
"""What a run of `ptscope model` needs, put together: source, kernel, puppet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace

from ptscope.errors import NotPermitted, PtscopeError
from ptscope.model.drive import Puppet
from ptscope.model.kernel import PUD, Kernel
from ptscope.model.observe import ModuleView, PagemapView, View
from ptscope.model.operations import Arena, Table
from ptscope.model.probe import probe
from ptscope.model.run import Stage
from ptscope.source.choose import choose
from ptscope.source.module import ModuleSource
from ptscope.source.pagemap import frames_visible

# Around a border of PUDs, so that ranges have several tables at each level; every architecture has
# these addresses, riscv with three levels (256 GiB) too, and nothing else is near.
MIDDLE = 128 << 30
BELOW, ABOVE = 4 << 20, 8 << 20
GIGANTIC = 4
"""PUD entries from there on is the place of the gigantic page."""
PKEYS = 2
PR_SET_THP_DISABLE = 41


@dataclass
class Session:
    """A stage, and how it came about."""

    stage: Stage
    source: str
    layout: str | None
    instead_of_module: PtscopeError | None


@contextmanager
def open_session(
    wanted: str,
    only: frozenset[str] | None = None,
    kernel: Callable[[Kernel], Kernel] = lambda kernel: kernel,
    view: Callable[[View], View] = lambda view: view,
) -> Iterator[Session]:
    """A session with the source `wanted` (auto, module, pagemap); its processes end with it.

    `kernel` and `view` may put something else in place of what is found; tests plant faults so.
    Raises NotPermitted where frames are hidden from us, Unsupported without the puppet, and as
    `choose`.
    """
    choice = choose(wanted, "self")
    source = choice.source
    prepare: tuple[str, ...] = ()
    facts = probe(source.layout)
    arena = Arena(MIDDLE - BELOW, MIDDLE + ABOVE)
    ranges = [(arena.start, arena.end - 1)]
    if facts.gigantic:
        size = 1 << facts.geometry.shifts[PUD]
        arena = replace(arena, gigantic=MIDDLE + GIGANTIC * size)
        ranges.append((arena.gigantic, arena.gigantic + size - 1))
    if facts.pkeys:
        prepare = ("pkey_alloc 0 0",) * PKEYS
    if isinstance(source, ModuleSource):
        module = source

        def make(pid: int) -> View:
            return view(ModuleView(module, pid, facts.geometry, ranges))

    else:
        if not frames_visible():
            raise NotPermitted("frame numbers are hidden in pagemap", "run it as root")
        # Whether a page is part of a huge mapping does not show in pagemap.
        facts = replace(facts, thp="never", khugepaged=False, exact=False)
        prepare = (f"prctl {PR_SET_THP_DISABLE} 1 0 0 0",)

        def make(pid: int) -> View:
            return view(PagemapView(pid, facts.geometry, ranges))

    facts = kernel(facts)
    with closing(Puppet()) as puppet:
        stage = Stage(puppet, facts, arena, make, Table(only), prepare=prepare)
        layout = None if source.layout is None else source.layout.name
        yield Session(stage, source.name, layout, choice.instead_of_module)
