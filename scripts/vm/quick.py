# SPDX-License-Identifier: GPL-2.0-or-later
"""`make vm-quick`: a guest that booted once and was saved; from an edit to test results in seconds.

The saved guest holds what does not change (kernel, user space, agent, a warmed-up python); module,
package and tests are sent to it after it is restored. Its key is a hash of everything it holds, so
it is made anew when, and only when, that changes.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import stat
import tarfile
import time
from dataclasses import replace
from pathlib import Path

from . import cpio, kernels, overlay, paths, prepare, store, variants
from .errors import NoResult
from .guest import Guest, Job
from .plan import MAIN, Row
from .qemu import Machine
from .say import say
from .scratch import scratch_dir
from .suite import PYTEST, bring_out
from .testrun import Printer, judge, summary

SAVE_SECONDS = 120.0
TEST_SECONDS = 900.0
WARM = ["python3", "/lib/ptscope/warm.py"]


def tar(tree: cpio.Tree) -> bytes:
    """A tree as a tar, for a guest that runs."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, entry in sorted(tree.items()):
            info = tarfile.TarInfo(name)
            info.mode = stat.S_IMODE(entry.mode)
            content = entry.content()
            if stat.S_ISDIR(entry.mode):
                info.type = tarfile.DIRTYPE
                archive.addfile(info)
            elif stat.S_ISLNK(entry.mode):
                info.type, info.linkname = tarfile.SYMTYPE, content.decode()
                archive.addfile(info)
            else:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def save(guest: Guest, state: Path) -> None:
    """Stop a guest and save it to ``state``; raises `NoResult` when QEMU cannot."""
    monitor = guest.monitor
    monitor.execute("stop")
    monitor.execute("migrate-set-parameters", max_bandwidth=1 << 34)
    monitor.execute("migrate", uri=f"exec:cat > {shlex.quote(str(state))}")
    until = time.monotonic() + SAVE_SECONDS
    while (status := monitor.execute("query-migrate").get("status")) != "completed":
        if status == "failed" or time.monotonic() > until:
            raise NoResult(f"QEMU did not save the guest: {status}")
        time.sleep(0.1)


def _save(machine: Machine, state: Path) -> None:
    """Boot, warm up, stop and save to ``state``."""
    say("making the saved guest (once)")
    with Guest(machine) as guest:
        guest.expect_module("none")
        warm = guest.start(WARM, stdin=True)
        if next(warm.lines(SAVE_SECONDS), "") != "ready":
            raise NoResult("the warmed-up python did not get ready")
        save(guest, state)
    say(f"saved: {state.stat().st_size / 1e6:.0f} MB")


def _saved(machine: Machine, bootable: prepare.Bootable) -> Path:
    """The saved state of this machine, made when absent."""
    inside = store.tree_digest(paths.INSIDE, skip=lambda p: "__pycache__" in p.parts)
    version = _stamp_digest([Path(machine.arguments()[0])])
    arguments = [part for part in machine.arguments() if part != str(machine.initrd)]
    name = f"{machine.variant.name}-{machine.smp}"
    key = store.digest(
        inside,
        version,
        bootable.fetched.version if bootable.fetched else "",
        *(part.name for part in bootable.parts),
        *arguments,
    )
    folder = paths.cache() / "saved"
    final = store.make_file(
        folder / f"{name}-{key}.state", lambda partial: _save(machine, partial), f"saved-{name}"
    )
    store.forget_others(final, f"{name}-????????????????.state")
    return final


def _stamp_digest(files: list[Path]) -> str:
    """A name for these files that changes when they are replaced (size and time, not contents)."""
    return store.digest(
        *(f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files)
    )


def run_quick(variant: str, words: list[str]) -> int:
    """Restore the saved guest, send what changed, run pytest with ``words``; the exit status."""
    kernel = kernels.kernel(kernels.DEFAULT)
    variants.variant(variant, kernel.arch)
    bootable = prepare.debian(kernel.name)
    assert bootable.fetched is not None
    contents = prepare.contents(bootable)
    row = Row(MAIN, variant, ())
    with scratch_dir("quick") as scratch:
        options = prepare.Options(
            variant=variant, init=("vm.module=none",), name=f"quick-{variant}"
        )
        machine = prepare.machine(bootable, options, scratch)
        state = _saved(machine, bootable)
        start = time.monotonic()
        log = paths.LOGS / f"quick-{variant}-{os.getpid()}.log"
        try:
            with Guest(replace(machine, incoming=state, log=log)) as guest:
                guest.push(tar(overlay.tree(contents, kernel.userland)))
                say(f"restored and filled after {time.monotonic() - start:.1f} s")
                loaded = guest.run("insmod /lib/ptscope/ptscope.ko")
                if loaded.status:
                    raise NoResult(
                        f"insmod: {loaded.err.decode(errors='replace').strip()}\n"
                        + guest.run("dmesg | tail -5").out.decode(errors="replace")
                    )
                arguments = [*PYTEST, *_in_guest(words, row)]
                printer = Printer(row.name, len(row.name))
                job = Job(guest, 1)
                guest.adopt(job)
                order = {"arguments": arguments, "env": row.environment(kernel)}
                job.write(json.dumps(order).encode() + b"\n")
                outcome = bring_out(guest, guest.follow(job, printer, TEST_SECONDS))
                guest.check()
        except (KeyboardInterrupt, SystemExit):
            log.unlink(missing_ok=True)
            raise
        log.unlink(missing_ok=True)
        result = judge(
            f"quick-{variant}", outcome.document, outcome.status, time.monotonic() - start
        )
    print(summary([result]), flush=True)
    return 0 if result.good else 1


def _in_guest(words: list[str], row: Row) -> list[str]:
    """pytest's arguments with paths of the checkout as they are in the guest.

    Options alone choose among the row's tests: without a path pytest would collect from /.
    """
    words = [f"/{word}" if word.startswith("tests/") else word for word in words]
    named = any(word.startswith("/tests/") for word in words)
    return words if named else [*row.pytest(), *words]
