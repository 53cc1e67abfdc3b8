# SPDX-License-Identifier: GPL-2.0-or-later
"""A whole address space for programs: JSON objects and lines of CSV. Sizes are in bytes."""

from __future__ import annotations

from collections.abc import Mapping

from ptscope.space.agreement import Agreement
from ptscope.space.rows import Row
from ptscope.space.usage import PROPERTIES, Usage
from ptscope.target.counters import Counters
from ptscope.views.map import Totals
from ptscope.views.text import printable

# Columns of --csv. Those with several numbers in them are KEY:NUMBER joined by semicolons.
CSV_COLUMNS = (
    *("start", "end", "permissions", "offset", "device", "inode", "name", "vm_flags"),
    *("size", "mapped", "resident", "by_size", "pmd_mapped", "could_be_huge", "not_huge_because"),
    *("swap", "not_present", "huge_zero", *PROPERTIES),
    *("tables", "special_entries", "run_pages", "changed"),
)


def usage_json(usage: Usage, tables_known: bool, page_size: int) -> dict[str, object]:
    """What a VMA or all of them use. What the source does not show is null."""

    def known(value: object) -> object:
        return value if tables_known else None

    return {
        "mapped": usage.mapped,
        "by_size": {str(size): amount for size, amount in sorted(usage.by_size.items())},
        "resident": usage.resident,
        "pmd_mapped": usage.pmd_mapped,
        "swap": usage.swap,
        "not_present": known(usage.not_present),
        "huge_zero": known(usage.huge_zero),
        **{name: usage.properties.get(name) for name in PROPERTIES},
        "tables": known(dict(usage.tables)),
        "special_entries": known(
            {kind: count for kind, count in usage.kinds.items() if kind != "swap"}
        ),
        "runs": [
            {
                "pages": 1 << log,
                "pages_last": (2 << log) - 1,
                "runs": usage.runs[log],
                "bytes": usage.run_pages[log] * page_size,
            }
            for log in sorted(usage.run_pages)
        ],
    }


def row_json(row: Row, page_size: int) -> dict[str, object]:
    """An object of `vmas` in `map --json`."""
    tables_known = row.layout is not None
    eligible = None if row.witness is None else row.witness.thp_eligible
    return {
        **row.vma.to_json(),
        "size": row.vma.end - row.vma.start,
        **usage_json(row.usage, tables_known, page_size),
        "could_be_huge": row.could_be if tables_known else None,
        "not_huge_because": row.barrier,
        "thp_eligible": eligible,
        "changed": row.changed,
    }


def row_csv(row: Row, page_size: int) -> list[object]:
    """The columns of CSV_COLUMNS; what is not known is empty."""
    values = row_json(row, page_size)
    values["run_pages"] = {1 << log: pages for log, pages in sorted(row.usage.run_pages.items())}
    return [_cell(values[column]) for column in CSV_COLUMNS]


def _cell(value: object) -> object:
    if value is None:
        return ""
    if type(value) is int:
        return value
    if isinstance(value, Mapping):
        return ";".join(f"{key}:{number}" for key, number in value.items())
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str):
        # JSON escapes what could steer a terminal; CSV has no way of its own to do so.
        return printable(value)
    return value


def totals_json(totals: Totals) -> dict[str, object]:
    """All that stands beside `vmas` in `map --json`."""
    known = totals.layout is not None
    return {
        "total": {
            "vmas": totals.sums.vmas,
            "size": totals.sums.size,
            **usage_json(totals.usage, known, totals.page_size),
            "could_be_huge": totals.sums.could_be if known else None,
        },
        "outside_vmas": usage_json(totals.outside, known, totals.page_size) if known else None,
        "page_tables": None if totals.agreement is None else _tables(totals.agreement),
        "counters": None if totals.counters is None else _counters(totals.counters),
        "compared": None if totals.agreement is None else _compared(totals.agreement),
        "longest_lock_ns": totals.longest_lock_ns,
        "frames_hidden": totals.frames_hidden,
        "leaves_only": not known,
    }


def _tables(agreement: Agreement) -> dict[str, object]:
    tables = agreement.page_tables
    return {
        "by_level": tables.levels,
        "root": tables.root,
        "kept_beside_huge_pages": tables.kept,
        "all": tables.all,
        "expected_vmpte": tables.expected,
    }


def _counters(counters: Counters) -> dict[str, object]:
    return {
        "statm_resident": counters.resident,
        "vmpte": counters.page_tables,
        "vmswap": counters.swap,
        "hugetlb": counters.hugetlb,
        "imprecision": counters.imprecision,
        "thp_disabled": counters.thp_disabled,
    }


def _compared(agreement: Agreement) -> dict[str, object]:
    return {
        "vmas": agreement.vmas,
        "vmpte": agreement.verdicts["VmPTE"],
        "statm": agreement.verdicts["statm"],
        "changed": [hex(start) for start, _ in agreement.changed],
        "findings": [finding.to_json() for finding in agreement.findings],
    }
