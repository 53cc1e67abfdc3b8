# SPDX-License-Identifier: GPL-2.0-or-later
"""Takes a snapshot of a live process, or of the kernel half, through the module."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ptscope import __version__
from ptscope.snapshot.container import Sink
from ptscope.snapshot.facts import Header, Memory, Target, Trailer
from ptscope.snapshot.writer import SnapshotWriter, boot_id, executable, now, read_maps_text
from ptscope.source.module import ModuleSource
from ptscope.source.stream import Progress, open_stream
from ptscope.space.huge import shmem_devices
from ptscope.target.process import Pid, Process
from ptscope.target.stat import start_ticks

Ranges = Sequence[tuple[int, int]]


def take(
    source: ModuleSource,
    process: Process | None,
    ranges: Ranges | None,
    vmas: bool,
    sink: Sink,
    progress: Callable[[Progress], None] = lambda progress: None,
) -> tuple[Header, Trailer]:
    """Write a snapshot of a process (None: of the kernel half) to `sink`.

    `ranges` are (first, last) addresses in order, None for all there is. With `vmas`, they come
    along with the tables, and the text of /proc/PID/maps gives them names. `progress` is told
    after each batch. Raises what `open_stream` and its stream raise, what reading maps does, and
    ChangedIdentity or Exited when at the end the process is not the one that was found.
    """
    pid: Pid = "kernel" if process is None else process.pid
    vmas = vmas and process is not None
    with open_stream(source, pid, ranges, vmas=vmas, user_pgd=True) as stream:
        header = Header(
            layout=source.layout,
            target=_target(process),
            ranges=stream.request.ranges,
            with_vmas=vmas,
            with_user_pgd=stream.request.user_pgd,
            source=stream.source,
            kernel=source.host.release,
            machine=source.host.machine,
            boot_id=boot_id(),
            time=now(),
            shmem=tuple(sorted(shmem_devices())),
            memory=_memory(process),
            writer=f"ptscope {__version__}",
        )
        writer = SnapshotWriter(sink, header)
        if process is not None and vmas:
            for text in read_maps_text(process.proc):
                writer.add_maps(text)
        for _ in writer.add_stream(stream):
            progress(stream.progress)
        memory = _memory(process)
        if process is not None:
            process.check_unchanged()
        return header, writer.finish(stream, memory)


def in_order(ranges: Ranges) -> list[tuple[int, int]]:
    """(first, last) ranges sorted by address, those that touch or overlap made one."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(last, merged[-1][1])
        else:
            merged.append((first, last))
    return merged


def _target(process: Process | None) -> Target:
    if process is None:
        return Target(None, None, None, None, False)
    return Target(
        pid=process.pid,
        comm=process.comm,
        exe=executable(process.proc),
        start_ticks=start_ticks(process.proc),
        leader_exited=process.leader_exited,
    )


def _memory(process: Process | None) -> Memory:
    return Memory({}, {}) if process is None else Memory.read(process.proc)


