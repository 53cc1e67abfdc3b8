# SPDX-License-Identifier: GPL-2.0-or-later
"""Fixtures of the tests that run inside a guest, as root, with the module loaded.

The files named below need a guest that was started otherwise (without the module, with lockdown,
with two NUMA nodes, with two CPUs for long, with a kernel that checks, with a clock that counts
instructions); the harness names them when it starts such a guest, and a plain run of this directory
leaves them out.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import witness
from own import Own
from puppet import Commands, Puppet

MARKS = {
    "any_variant": "shows the same in every variant of a kernel: levels and PTI do not matter",
    "any_kernel": "shows the same on every kernel of an architecture",
    "any_machine": "shows the same on every kernel of every architecture",
}
"""What a guest may leave out when another one of the same run has it; the harness chooses."""

collect_ignore = [
    "test_bench.py",
    "test_failslab.py",
    "test_dkms.py",
    "test_lockdown_after.py",
    "test_lockdown_before.py",
    "test_model.py",
    "test_nomodule.py",
    "test_plant.py",
    "test_ptdump.py",
    "test_programs.py",
    "test_race.py",
    "test_race_check.py",
    "test_speed.py",
    "test_wrong_module.py",
]

PAGE = witness.PAGE
HUGE = witness.HUGE
SWAP_BYTES = 128 << 20


def pytest_configure(config: pytest.Config) -> None:
    """Make the marks known."""
    for name, meaning in MARKS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out a file all tests of which have a mark that is not wanted, without compiling it."""
    if collection_path.suffix != ".py":
        return None
    unwanted = [mark for mark in MARKS if f"not {mark}" in config.option.markexpr]
    text = collection_path.read_text() if unwanted else ""
    return any(f"\npytestmark = pytest.mark.{mark}\n" in text for mark in unwanted) or None


@pytest.fixture
def puppet() -> Iterator[Puppet]:
    """Another process."""
    with Puppet() as process:
        yield process


@pytest.fixture
def own() -> Iterator[Own]:
    """This process."""
    process = Own()
    yield process
    process.close()


@pytest.fixture(params=["puppet", "own"])
def target(request: pytest.FixtureRequest) -> Commands:
    """Another process, then this one."""
    process = request.getfixturevalue(request.param)
    assert isinstance(process, Commands)
    return process


@pytest.fixture(scope="session")
def swap() -> None:
    """Real swap space, on zram."""
    if "zram0" in Path("/proc/swaps").read_text():
        return
    if not Path("/sys/block/zram0").exists():  # else it is built in
        subprocess.run(["modprobe", "zram"], check=True)
    Path("/sys/block/zram0/disksize").write_text(str(SWAP_BYTES))
    subprocess.run(["mkswap", "/dev/zram0"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["swapon", "/dev/zram0"], check=True)


@pytest.fixture
def furnished(puppet: Puppet, swap: None) -> Puppet:
    """A puppet with something of everything."""
    address = puppet.map(64 * PAGE)
    puppet.touch("write", address, 32, 2 * PAGE)
    puppet.protect(address + 8 * PAGE, 4 * PAGE, "none")
    puppet.unmap(address + 20 * PAGE, 2 * PAGE)
    puppet.advise(address + 40 * PAGE, 8 * PAGE, "pageout")
    puppet.touch("read", puppet.map(16 * PAGE), 16)
    huge = puppet.map(2 * HUGE, align=HUGE)
    puppet.advise(huge, 2 * HUGE, "hugepage")
    puppet.touch("write", huge, 2, HUGE)
    puppet.touch("write", puppet.map(2 * HUGE, huge=HUGE.bit_length() - 1), 2, HUGE)
    shared = puppet.map(512 * PAGE, kind="shared")
    puppet.touch("write", shared, 100)
    puppet.stack(200 << 10)
    many = puppet.map(1024 * PAGE)
    puppet.advise(many, 1024 * PAGE, "nohugepage")
    puppet.touch("write", many, 1024)
    return puppet


@pytest.fixture(scope="session")
def eventually() -> Callable[[Callable[[], bool], str], None]:
    """Wait up to 20 s until something is true, and say what was waited for when it is not."""

    def wait(condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline, f"not within 20 s: {what}"
            time.sleep(0.02)

    return wait
