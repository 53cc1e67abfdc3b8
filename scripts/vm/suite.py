# SPDX-License-Identifier: GPL-2.0-or-later
"""Run pytest in a guest and bring its results out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .errors import NoResult
from .guest import Guest
from .paths import LOGS

RESULTS = "/results"
PYTEST = (
    "-p",
    "no:cacheprovider",
    "--color=no",
    "--tb=short",
    "--durations=3",
    "-o",
    "junit_family=xunit2",
    f"--junitxml={RESULTS}/junit.xml",
)


@dataclass(frozen=True)
class Outcome:
    """What pytest left in the guest."""

    status: int
    document: bytes | None
    """The JUnit file, None when there is none."""


def bring_out(guest: Guest, status: int) -> Outcome:
    """Fetch `RESULTS`; the kernel's messages and the layout go into files beside its log."""
    try:
        files = guest.fetch(RESULTS)
    except FileNotFoundError:
        files = {}
    messages = guest.run(["dmesg"]).out
    (LOGS / f"{guest.machine.log.stem}.dmesg").write_bytes(messages)
    layout = guest.run(["cat", "/sys/kernel/debug/ptscope/layout"])
    if layout.status == 0:
        (LOGS / f"{guest.machine.log.stem}.layout").write_bytes(layout.out)
    return Outcome(status, files.get("results/junit.xml"))


def guest_tests(
    guest: Guest,
    arguments: list[str],
    env: Mapping[str, str],
    show: Callable[[bytes, bytes], None],
    seconds: float,
) -> Outcome:
    """Run pytest with ``arguments`` for at most ``seconds``; raises `NoResult` or `Splat`."""
    command = ["python3", "-m", "pytest", *PYTEST, *arguments]
    status = guest.stream(command, show, env=env, timeout=seconds)
    try:
        return bring_out(guest, status)
    except NoResult as error:
        guest.check()
        raise error from None
