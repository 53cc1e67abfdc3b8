# SPDX-License-Identifier: GPL-2.0-or-later
"""A whole address space as text for people: a line a VMA, then the totals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import click

from ptscope.decode.layout import Layout
from ptscope.space.agreement import Agreement, Finding, Sums
from ptscope.space.huge import RULE
from ptscope.space.rows import Row
from ptscope.space.usage import Usage
from ptscope.target.counters import Counters
from ptscope.views.text import printable
from ptscope.views.walk import WIDTH, labelled

COLUMN = 6
UNITS = ("K", "M", "G", "T", "P")
PROPERTY_WORDS = {
    "accessed": "accessed",
    "dirty": "dirty",
    "soft_dirty": "soft-dirty",
    "uffd_wp": "uffd-wp",
    "writable": "writable",
    "executable": "executable",
    "special": "special",
}
LONGEST = 9_999_999  # pages: longer runs are given as powers of 2
MORE_NAMES = 8  # how many findings and VMAs that changed are named


@dataclass(frozen=True)
class Totals:
    """What stands below the VMAs; sizes in bytes.

    `agreement` and `layout` are None for leaves alone.
    """

    sums: Sums
    outside: Usage
    page_size: int
    source: str
    kernel: str
    layout: Layout | None
    agreement: Agreement | None
    counters: Counters | None
    longest_lock_ns: int
    frames_hidden: bool

    @property
    def usage(self) -> Usage:
        """All that the VMAs use together."""
        return self.sums.usage


def short(size: int) -> str:
    """An amount of bytes in at most six characters: exact up to 9999K, else about."""
    if not size:
        return "-"
    if size % 1024:
        return f"{size}B" if size < 10000 else short(size - size % 1024)
    amount = size >> 10
    if amount < 10000:
        return f"{amount}K"
    scaled = float(amount)
    for unit in UNITS:
        if scaled < 1000:
            return f"{scaled:.1f}{unit}"
        scaled /= 1024
    return f"{scaled:.0f}E"


@lru_cache(maxsize=64)
def digits(layout: Layout | None) -> int:
    """Hex digits of the highest user address."""
    return 12 if layout is None else max(12, len(f"{layout.user_last:x}"))


def header(layout: Layout | None) -> str:
    """The line above the VMAs."""
    wide = digits(layout)
    text = f"{'address':<{wide}} {'size':>6} {'perm':<4} {'mapped':>6} {'huge':>6}"
    return text + f" {'could':>6} {'swap':>6} {'tables':>6} name"


def row_line(row: Row, page_size: int) -> str:
    """One VMA, at most 80 columns."""
    wide = digits(row.layout)
    usage = row.usage
    huge = sum(amount for size, amount in usage.by_size.items() if size > page_size)
    tables = sum(usage.tables.values())
    could = "?" if row.layout is None else short(row.could_be)
    columns = [
        f"{row.vma.start:0{wide}x}",
        f"{short(row.vma.end - row.vma.start):>{COLUMN}}",
        row.vma.permissions,
        f"{short(usage.mapped):>{COLUMN}}",
        f"{short(huge):>{COLUMN}}",
        f"{could:>{COLUMN}}",
        f"{short(usage.swap):>{COLUMN}}",
        f"{'?' if row.layout is None else tables or '-':>{COLUMN}}",
    ]
    line = " ".join(columns) + " "
    return (line + shortened(printable(row.vma.name), WIDTH - len(line))).rstrip()


def shortened(text: str, room: int) -> str:
    """The end of a name that is too long: of a path it tells more than the beginning."""
    return text if len(text) <= room else "…" + text[len(text) - room + 1 :]


def totals_text(totals: Totals) -> str:
    """Everything below the VMAs, without the last newline."""
    return "\n".join(_totals(totals))


def _totals(totals: Totals) -> Iterator[str]:
    usage = totals.usage
    yield from labelled("total", _total(totals))
    yield from labelled("pages", _sizes(usage))
    words = [
        f"{PROPERTY_WORDS[name]} {short(amount)}"
        for name, amount in usage.properties.items()
        if name in PROPERTY_WORDS
    ]
    yield from labelled("of them", ", ".join(words) or "not known")
    yield from labelled("not mapped", _not_mapped(usage))
    yield from labelled("huge", _huge(totals))
    yield from labelled("tables", _tables(totals))
    yield from _contiguity(totals)
    yield from labelled("compared", _compared(totals))
    if totals.agreement is not None:
        for finding in totals.agreement.findings[:MORE_NAMES]:
            yield from labelled("", _finding(finding))
        more = len(totals.agreement.findings) - MORE_NAMES
        if more > 0:
            yield from labelled("", f"and {more} more; --json has all")
    yield from labelled("source", _source(totals))


def _total(totals: Totals) -> str:
    usage = totals.usage
    text = (
        f"{short(usage.mapped)} mapped of {short(totals.sums.size)} in {totals.sums.vmas} VMAs, "
        f"{short(usage.resident)} resident"
    )
    if usage.not_present:
        text += f", {short(usage.not_present)} not for the hardware (PROT_NONE or NUMA hint)"
    if usage.huge_zero:
        text += f", {short(usage.huge_zero)} the huge zero page"
    if totals.outside.mapped:
        text += f"; {short(totals.outside.mapped)} mapped OUTSIDE of every VMA"
    return text


def _sizes(usage: Usage) -> str:
    parts = [
        f"{short(size)} x {amount // size} = {short(amount)}"
        for size, amount in sorted(usage.by_size.items())
    ]
    return ", ".join(parts) or "none"


def _not_mapped(usage: Usage) -> str:
    others = [f"{count} {kind}" for kind, count in sorted(usage.kinds.items()) if kind != "swap"]
    text = f"swapped out {short(usage.swap)}"
    return text + ("; special entries: " + ", ".join(others) if others else "")


def _huge(totals: Totals) -> str:
    usage = totals.usage
    huge = sum(amount for size, amount in usage.by_size.items() if size > totals.page_size)
    text = f"{short(huge)} in use"
    if totals.layout is None:
        return text + "; what could be is not visible in pagemap"
    size = next((level.span for level in totals.layout.levels if level.name == "pmd"), 0)
    text += f", {short(totals.sums.could_be)} more could be: {RULE.format(size=short(size))}"
    if totals.counters is not None and totals.counters.thp_disabled:
        text += "; but this process has THP switched off (prctl, or a kernel without it)"
    return text


def _tables(totals: Totals) -> str:
    counters = totals.counters
    vmpte = None if counters is None else counters.page_tables
    if totals.agreement is None or totals.layout is None:
        return f"not visible in pagemap; VmPTE {short(vmpte or 0)}"
    tables = totals.agreement.page_tables
    usage = totals.usage
    counts = [
        f"{level.name} {usage.tables.get(level.name, 0) + totals.outside.tables.get(level.name, 0)}"
        for level in totals.layout.levels[1:]
    ]
    text = f"{totals.layout.levels[0].name} 1, {', '.join(counts)}: {short(tables.all)}"
    if tables.kept:
        text += f" with {short(tables.kept)} kept beside anonymous huge pages"
    verdict = totals.agreement.verdicts["VmPTE"]
    return text + f"; {VMPTE[verdict].format(vmpte=short(vmpte or 0), ours=short(tables.expected))}"


VMPTE = {
    "equal": "PUDs to PTEs are VmPTE exactly: {vmpte}",
    "changed": "VmPTE changed meanwhile, now {vmpte}",
    "differs": "PUDs to PTEs are {ours}, but VmPTE is {vmpte}",
    "unknown": "VmPTE is not known",
}
STATM = {
    "equal": "statm agrees",
    "close": "statm agrees within its own imprecision",
    "changed": "statm changed meanwhile",
    "differs": "statm DIFFERS",
    "unknown": "statm is not known",
}


def _contiguity(totals: Totals) -> Iterator[str]:
    usage = totals.usage
    if totals.frames_hidden:
        yield from labelled("runs", "frames are hidden from us")
        return
    all_pages = sum(usage.run_pages.values())
    if not all_pages:
        yield from labelled("runs", "none")
        return
    yield from labelled("runs", "consecutive pages in consecutive frames, by length in pages:")
    for log in sorted(usage.run_pages):
        yield run_line(log, usage.runs, usage.run_pages, all_pages, totals.page_size)


def run_line(
    log: int, runs: Mapping[int, int], pages: Mapping[int, int], all_pages: int, page_size: int
) -> str:
    """One line of the distribution of runs."""
    low, high = 1 << log, (2 << log) - 1
    length = str(low) if low == high else f"{low}-{high}"
    if high > LONGEST:
        length = f"2^{log} and more"
    share = pages[log] / all_pages
    line = f"{'':11}{length:>15} {runs[log]:>9} runs {short(pages[log] * page_size):>6}"
    return f"{line} {share:>6.1%}  {'#' * round(share * 20)}".rstrip()


def _compared(totals: Totals) -> str:
    agreement = totals.agreement
    if agreement is None:
        return "nothing: these figures are smaps' and pagemap's own"
    parts = []
    wrong = {finding.start for finding in agreement.findings if finding.start is not None}
    if agreement.vmas:
        good = agreement.vmas - len(wrong) - len(agreement.changed)
        parts.append(f"{good} of {agreement.vmas} VMAs agree with smaps")
        if agreement.changed:
            parts.append(f"{len(agreement.changed)} changed meanwhile")
        if wrong:
            parts.append(click.style(f"{len(wrong)} DIFFER", fg="red", bold=True))
    parts.append(STATM[agreement.verdicts["statm"]])
    return "; ".join(parts)


def _finding(finding: Finding) -> str:
    where = "the process"
    if finding.start is not None and finding.end is not None:
        where = f"{finding.start:x}-{finding.end:x} {printable(finding.name)}".rstrip()
    figure = finding.figure
    return (
        f"{where}: {figure.what} is {figure.kernel} bytes, but the entries make "
        f"{figure.entries}, at each of {finding.readings} readings"
    )


def _source(totals: Totals) -> str:
    if totals.layout is None:
        return f"pagemap and smaps: leaves only, no lock; kernel {totals.kernel}"
    return (
        f"{totals.source}, layout {totals.layout.name}, {len(totals.layout.levels)} levels; "
        f"longest hold of the lock {totals.longest_lock_ns / 1000:.0f} us; kernel {totals.kernel}"
    )
