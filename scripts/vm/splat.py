# SPDX-License-Identifier: GPL-2.0-or-later
"""Find what a kernel reports about itself in its log. Each kind of report is a row."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

CONTEXT_BEFORE = 2
CONTEXT_AFTER = 40
"""Lines shown around the first line of a report."""

# What a report begins with, and what to call it. The texts are those of Linux 5.10 to 7.x:
# kernel/panic.c, lib/bug.c, mm/kasan/report.c, kernel/locking/lockdep.c, kernel/rcu/tree_stall.h,
# kernel/hung_task.c, kernel/watchdog.c, mm/slub.c, arch/x86/kernel/{dumpstack,traps}.c,
# arch/x86/mm/fault.c.
KINDS: tuple[tuple[str, str], ...] = (
    ("BUG", r"\bBUG: "),
    ("BUG", r"kernel BUG at "),
    # mm/slub.c, of a damaged object: "BUG kmalloc-64 (Not tainted): Poison overwritten".
    ("BUG", r"\bBUG \S+ \((Not tainted|Tainted)"),
    ("KASAN", r"\b(KASAN|KCSAN|KFENCE|KMSAN|UBSAN): "),
    (
        "lockdep",
        (
            r"(possible|inconsistent) .*(lock|deadlock)|INFO: trying to register non-static key"
            r"|lock order detected|suspicious RCU usage|bad unlock balance|bad contention detected"
            r"|held lock freed|Invalid wait context|Nested lock was not taken"
            r"|still has locks held|lock held when returning to user space"
            r"|INFO: lockdep is turned off"
        ),
    ),
    ("WARNING", r"WARNING: (CPU: \d+|.* at )"),
    (
        "oops",
        (
            r"\bOops\b|Internal error: |general protection fault|unable to handle (kernel|page)"
            r"|Unable to handle kernel|double fault|stack segment fault|invalid opcode: "
        ),
    ),
    (
        "bad page",
        (
            r"Bad page (state|map|cache)|Bad rss-counter state|Bad pagetable|page_table_check"
            r"|bad p[gmu4t][dte] "
        ),
    ),
    (
        "stall",
        (
            r"rcu.*(self-)?detected (stall|expedited stalls)"
            r"|rcu.* kthread (starved|timer wakeup didn't happen)"
        ),
    ),
    ("hung task", r"INFO: task .* blocked for more than \d+ seconds"),
    ("lockup", r"soft lockup|hard (lockup|LOCKUP)|watchdog: BUG"),
    ("panic", r"Kernel panic - not syncing"),
    ("leak", r"kmemleak: \d+ new suspected|Objects remaining in .* on __kmem_cache_shutdown"),
    ("refcount", r"refcount_t: "),
)
_PATTERN = re.compile("|".join(f"(?P<k{n}>{pattern})" for n, (_, pattern) in enumerate(KINDS)))

# Lines that say one of the words above and are no report: the kernel describing itself at boot.
HARMLESS = re.compile(
    r"Command line: |Kernel command line: |Unknown kernel command line"
    r"|Lockdown: |RCU .*(enabled|restricting)|kfence: initialized|Lock dependency validator"
    r"|hung_task_panic|oops=panic"
)


# What a kernel says when it refuses a module: by its name, or by what insmod may not do.
_ABOUT_MODULE = re.compile(r"ptscope|Lockdown: insmod: |[Ll]oading of .*module")
LAST_LINES = 8
"""What is shown of a log when nothing in it is to the point."""


@dataclass(frozen=True)
class Report:
    """One report of the kernel."""

    kind: str
    line: int
    """Line number in the log, from 1."""
    lines: tuple[str, ...]
    """The report with a little of what came before."""
    first: str = ""
    """What it begins with."""

    def __str__(self) -> str:
        return "\n".join(f"    {line}" for line in self.lines)


@dataclass(frozen=True)
class KnownAtBoot:
    """A report that a kernel makes by mistake, now and then, before user space is up.

    Checkers report once, so the silence of a guest that made it would mean nothing: it is booted
    again.
    """

    first: str
    """Pattern of the report's first line."""
    within: str
    """Pattern of another line of it."""
    reason: str


KNOWN_AT_BOOT = (
    # arch/x86/kernel/cpu/common.c, identify_cpu(), 6.12: it zeroes boot_cpu_data.x86_capability and
    # fills it in again, interrupts being on; KASAN_SHADOW_START depends on its LA57 bit.
    KnownAtBoot(
        r"BUG: KASAN: wild-memory-access in ",
        r"\bidentify_cpu\+",
        "an interrupt came while identify_cpu() had the 5-level bit cleared, and KASAN took the"
        " direct map for wild",
    ),
)


@dataclass(frozen=True)
class Verdict:
    """What a log came to, where some reports are wanted: a test provokes them."""

    unexpected: tuple[Report, ...]
    missing: tuple[str, ...]
    """Patterns that were in no report."""


def find(log: str) -> list[Report]:
    """The kernel's reports in a console log, first to last; what follows closely is part of one."""
    lines = log.splitlines()
    found: list[Report] = []
    skip_to = 0
    for number, line in enumerate(lines):
        if number < skip_to or HARMLESS.search(line):
            continue
        match = _PATTERN.search(line)
        if match:
            kind = KINDS[int(str(match.lastgroup)[1:])][0] if match.lastgroup else "BUG"
            end = _end_of_report(lines, number)
            found.append(
                Report(
                    kind,
                    number + 1,
                    tuple(lines[max(0, number - CONTEXT_BEFORE) : end]),
                    line,
                )
            )
            skip_to = end
    return found


def known_at_boot(log: str) -> KnownAtBoot | None:
    """The first row of `KNOWN_AT_BOOT` that a report of the log fits."""
    for report in find(log):
        for known in KNOWN_AT_BOOT:
            if re.search(known.first, report.first) and any(
                re.search(known.within, line) for line in report.lines
            ):
                return known
    return None


def judge(log: str, expected: Sequence[str]) -> Verdict:
    """Compare the reports of a log with patterns of which each must be in the first line of one.

    A pattern stands for one report: the second of the same kind is not expected.
    """
    left = list(expected)
    unexpected = []
    for report in find(log):
        match = next((each for each in left if re.search(each, report.first)), None)
        if match is None:
            unexpected.append(report)
        else:
            left.remove(match)
    return Verdict(tuple(unexpected), tuple(left))


def _end_of_report(lines: list[str], start: int) -> int:
    """One past a report's last line: at its end marker, at most `CONTEXT_AFTER` on."""
    last = min(len(lines), start + CONTEXT_AFTER)
    for number in range(start + 1, last):
        if "---[ end " in lines[number] or "</TASK>" in lines[number]:
            return number + 1
    return last


def about_module(log: str) -> list[str]:
    """The lines that tell why ptscope.ko was refused, else the last ones."""
    lines = log.splitlines()
    return [line for line in lines if _ABOUT_MODULE.search(line)] or lines[-LAST_LINES:]
