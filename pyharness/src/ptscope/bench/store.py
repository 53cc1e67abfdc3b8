# SPDX-License-Identifier: GPL-2.0-or-later
"""Results as a file in the format of pyperf, so that its own commands read it.

The format is that of pyperf 2 (version 1.0 of the file): a suite of benchmarks, each a list of
runs, each run a list of values in seconds. A run is a round here; the samples that came first are
its warm-ups. pyperf itself is not needed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptscope import __version__
from ptscope.bench.conditions import Conditions
from ptscope.bench.result import Measured, Round
from ptscope.errors import UsageError

if TYPE_CHECKING:
    from ptscope.bench.inside import Inside

FORMAT = "1.0"
NS = 1e-9
TIMES_NS = (1e-9, 1e18)
"""What can be the time of anything, in ns: from far below an instruction to thirty years."""


@dataclass(frozen=True)
class Stored:
    """One benchmark of a file: its values in ns, by runs, and what is said of it."""

    name: str
    runs: tuple[tuple[float, ...], ...]
    facts: Mapping[str, Any]

    @property
    def values(self) -> list[float]:
        """All values, in ns."""
        return [value for run in self.runs for value in run]


def document(measured: Sequence[Measured], conditions: Conditions) -> dict[str, object]:
    """The object that a file holds. What was refused, or not measured, has no values."""
    return {
        "version": FORMAT,
        "metadata": {
            "unit": "second",
            "tool": f"ptscope {__version__}",
            **conditions.facts,
            **_not_measured(measured),
        },
        "benchmarks": [_benchmark(each) for each in measured if each.values and not each.refused],
    }


def _not_measured(measured: Sequence[Measured]) -> dict[str, str]:
    """Why benchmarks are missing: pyperf knows no other place for it."""
    reasons = {each.name: why_missing(each) for each in measured}
    return {f"missing_{name}": why for name, why in reasons.items() if why}


def why_missing(each: Measured) -> str | None:
    """Why there is no figure; None when there is one."""
    if each.unavailable is not None:
        return f"cannot be measured here: {each.unavailable}"
    if each.errors and not each.values:
        return f"did not happen: {each.errors[0]}"
    if each.refused:
        return f"below what the clock can tell from nothing ({each.resolution:.1f} ns)"
    if each.values:
        return None
    return "the CPU was lost in every sample" if each.marked else "no samples"


def _benchmark(each: Measured) -> dict[str, object]:
    facts: dict[str, object] = {
        "name": each.name,
        "description": each.title,
        "loops": 1,
        "samples": each.samples,
        "faults_counted": each.faults,
        "samples_marked": each.marked,
        "samples_kept_although_long": each.kept,
        "samples_in_error": len(each.errors),
        "interrupts": sum(round_.interrupts for round_ in each.rounds),
        "proven_by": each.proven_by,
        "resolution_ns": each.resolution,
    }
    if each.tables:
        facts["tables"] = _numbers(each.tables)
    if each.stretches:
        facts["stretches_of_frames"] = _numbers(each.stretches)
    if each.family:
        facts["family"] = each.family
    if each.size is not None:
        facts["size"] = each.size
    if each.pages is not None:
        facts["pages"] = each.pages
    if each.inside is not None:
        facts |= _inside(each.inside)
    return {
        "metadata": facts,
        "runs": [_run(round_) for round_ in each.rounds if round_.values],
    }


def _inside(inside: Inside) -> dict[str, object]:
    """What the round with probes has shown; times in ns."""
    facts: dict[str, object] = {}
    if inside.parts is not None:
        facts["inside_samples"] = inside.samples
        for name in ("entry", "handled", "back", "exception", "lock"):
            value = getattr(inside.parts, name)
            if value is not None:
                facts[f"inside_{name}_ns"] = value
    for name, delay in (inside.delays or {}).items():
        facts[f"delay_{name}_count"], facts[f"delay_{name}_ns"] = delay.count, delay.ns
    if inside.missing:
        facts["inside_missing"] = "; ".join(inside.missing)
    return facts


def _numbers(numbers: set[int]) -> str:
    return " ".join(str(number) for number in sorted(numbers))


def _run(round_: Round) -> dict[str, object]:
    run: dict[str, object] = {"values": [value * NS for value in round_.values]}
    if round_.first:
        run["warmups"] = [[1, value * NS] for value in round_.first]
    date = datetime.now(UTC).replace(tzinfo=None)
    run["metadata"] = {"date": date.isoformat(sep=" ")}
    return run


def encoded(content: Mapping[str, object]) -> bytes:
    """What a file holds."""
    return json.dumps(content, indent=1).encode() + b"\n"


MAKE = "`ptscope bench fault -o FILE` makes one"


def read(path: Path) -> dict[str, Stored]:
    """The benchmarks of a file by name; raises UsageError when it is none, or cannot be read."""
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError, MemoryError):
        raise UsageError(f"{path} is no file of results: it is not JSON", MAKE) from None
    version = content.get("version", FORMAT) if isinstance(content, dict) else FORMAT
    if version != FORMAT:
        raise UsageError(
            f"{path} is no file of results: its format is version {version}, and {FORMAT} is known",
            MAKE,
        )
    try:
        found = _benchmarks(content)
    except (KeyError, TypeError, AttributeError, IndexError):
        raise UsageError(
            f"{path} is no file of results: it has not what pyperf's format has", MAKE
        ) from None
    for stored in found:
        _check(path, stored)
    if not found:
        raise UsageError(f"{path} has no benchmark in it", "measure something that is there")
    by_name = {stored.name: stored for stored in found}
    if len(by_name) < len(found):
        raise UsageError(f"{path} has two benchmarks of one name", "measure each once")
    return by_name


def _check(path: Path, stored: Stored) -> None:
    """Raise UsageError for figures that can be no times."""
    if not stored.runs or not all(stored.runs):
        raise UsageError(f"{path}: {stored.name} has a run without values", MAKE)
    if not all(TIMES_NS[0] < value < TIMES_NS[1] for value in stored.values):
        raise UsageError(f"{path}: {stored.name} has values that are no times", MAKE)
    step = stored.facts.get("resolution_ns", 0.0)
    if not isinstance(step, int | float) or not 0 <= step < TIMES_NS[1]:
        raise UsageError(f"{path}: {stored.name} has a resolution_ns that is no time", MAKE)
    unit = stored.facts.get("unit", "second")
    if unit != "second":
        raise UsageError(f"{path}: {stored.name} is in {unit}, not in seconds", MAKE)


def _benchmarks(content: Mapping[str, Any]) -> list[Stored]:
    common = content.get("metadata", {})
    found = []
    for each in content["benchmarks"]:
        facts = {**common, **each.get("metadata", {})}
        # pyperf keeps what all runs have in common at the highest level it can.
        name = facts.get("name") or each["runs"][0]["metadata"]["name"]
        runs = tuple(
            tuple(value / NS for value in run["values"]) for run in each["runs"] if "values" in run
        )
        found.append(Stored(name, runs, facts))
    return found
