# SPDX-License-Identifier: GPL-2.0-or-later
"""Read, judge and write JUnit XML, the form in which every test run reports."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Counts:
    """How many tests ended how. An error (in a fixture, in collection) counts as failed."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped
        )

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"

    @property
    def ran(self) -> int:
        """Tests that did something."""
        return self.passed + self.failed


def parse(text: str | bytes) -> ET.Element:
    """The root of a JUnit document; raises ValueError when it is none."""
    try:
        root = ET.fromstring(text)
    except ET.ParseError as error:
        raise ValueError(f"not JUnit XML: {error}") from error
    if root.tag not in ("testsuites", "testsuite"):
        raise ValueError(f"not JUnit XML: the root is <{root.tag}>")
    return root


def count(root: ET.Element) -> Counts:
    """Count the cases themselves: attributes of the suite may say something else.

    pytest writes a test that passed and whose teardown failed as two cases; both count.
    """
    total = Counts()
    for case in root.iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            total += Counts(failed=1)
        elif case.find("skipped") is not None:
            total += Counts(skipped=1)
        else:
            total += Counts(passed=1)
    return total


def failures(root: ET.Element) -> list[str]:
    """Names of the failed cases."""
    return [
        f"{case.get('classname', '')}::{case.get('name', '')}".lstrip(":")
        for case in root.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]


def skips(root: ET.Element) -> list[tuple[str, str]]:
    """Names of the skipped cases, and why."""
    return [
        (
            f"{case.get('classname', '')}::{case.get('name', '')}".lstrip(":"),
            skipped.get("message") or "no reason is given",
        )
        for case in root.iter("testcase")
        if (skipped := case.find("skipped")) is not None
    ]


_UNPRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def add_problem(root: ET.Element, name: str, text: str) -> None:
    """Add a failed case for what went wrong outside any test (no result, a splat)."""
    suite = root if root.tag == "testsuite" else root.find("testsuite")
    if suite is None:
        suite = ET.SubElement(root, "testsuite")
    case = ET.SubElement(suite, "testcase", classname="guest", name=name)
    ET.SubElement(
        case, "error", message=_UNPRINTABLE.sub("?", text.splitlines()[0])
    ).text = _UNPRINTABLE.sub("?", text)


def write(root: ET.Element, suite_name: str, path: Path) -> None:
    """Write a document, its suites named ``suite_name`` and their attributes counted anew."""
    for suite in root.iter("testsuite"):
        suite.set("name", suite_name)
        counts = count(suite)
        suite.set("tests", str(counts.ran + counts.skipped))
        suite.set(
            "failures",
            str(sum(case.find("failure") is not None for case in suite.iter("testcase"))),
        )
        suite.set(
            "errors", str(sum(case.find("error") is not None for case in suite.iter("testcase")))
        )
        suite.set("skipped", str(counts.skipped))
    path.parent.mkdir(parents=True, exist_ok=True)
    ET.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)
