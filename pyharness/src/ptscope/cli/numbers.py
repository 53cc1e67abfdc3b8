# SPDX-License-Identifier: GPL-2.0-or-later
"""Targets, addresses and entries as they are typed."""

from __future__ import annotations

import re
from collections.abc import Sequence

import click

from ptscope.errors import UsageError
from ptscope.target.process import Pid

U64_MAX = (1 << 64) - 1
MOST_FRAME = (1 << 52 - 12) - 1

_HEX = re.compile(r"0[xX][0-9a-fA-F]+")
_DECIMAL = re.compile(r"[0-9]+", re.ASCII)
_BARE_HEX = re.compile(r"[0-9a-fA-F]+")
_NEGATIVE = re.compile(r"-(0[xX])?[0-9a-fA-F]+")
# Python refuses to convert decimal numbers of thousands of digits; none of ours has that many.
MOST_DIGITS = 100
RANGE = "0 to 0xffffffffffffffff"
RANGES = "write START-END, END being the first address after it, or START+LENGTH"
HOW = "write it in decimal, or in hex with 0x in front"


def parse_address(text: str) -> int:
    """An address in decimal or 0x hex, from 0 to 2**64-1; raises UsageError for all else."""
    return _parse(text, "address", f"addresses are {RANGE}")


def parse_range(text: str) -> tuple[int, int]:
    """A range as (first, last) address, both inside it; raises UsageError for all else.

    It is typed as START-END, END being the first address after it as in /proc/PID/maps, or as
    START+LENGTH.
    """
    for sign in "-+":
        start, found, rest = text.partition(sign)
        if found and start and rest:
            first = parse_address(start)
            last = (first if sign == "+" else 0) + _parse(rest, "length", HOW) - 1
            if last < first:
                raise UsageError(f"the range {text} is empty", RANGES)
            if last > U64_MAX:
                raise UsageError(f"the range {text} does not fit into 64 bits", RANGES)
            return first, last
    raise UsageError(f"{text!r} is no range", RANGES)


def parse_entry(text: str) -> int:
    """A raw entry in decimal or 0x hex, from 0 to 2**64-1; raises UsageError for all else."""
    return _parse(text, "entry", f"entries are {RANGE}")


def parse_frame(text: str) -> int:
    """A frame number in decimal or 0x hex; raises UsageError for all else.

    Beyond 52 bits no architecture has physical addresses.
    """
    value = _parse(text, "frame number", "frame numbers are physical addresses without the offset")
    if value > MOST_FRAME:
        raise UsageError(
            f"{text} is too large for a frame number",
            "a frame number is a physical address without its offset in the page",
        )
    return value


def _parse(text: str, noun: str, values: str) -> int:
    """A number of 64 bits.

    Hex digits without 0x are refused even where they could only be hex: the next number that is
    copied may happen to have no letter in it, and would be taken for decimal.
    """
    if len(text) > MOST_DIGITS:
        raise UsageError(f"{text[:20]}… is no {noun}: {len(text)} characters", values)
    if _HEX.fullmatch(text):
        value = int(text, 16)
    elif _DECIMAL.fullmatch(text):
        value = int(text, 10)
    elif _BARE_HEX.fullmatch(text):
        raise UsageError(f"{text!r} is hex without 0x in front", f"write it as 0x{text}")
    elif _NEGATIVE.fullmatch(text):
        raise UsageError(f"{noun} {text} is negative", values)
    else:
        raise UsageError(f"{text!r} is no {noun}", HOW)
    if value > U64_MAX:
        raise UsageError(f"{noun} {text} does not fit into 64 bits", values)
    return value


def refuse_options(words: Sequence[str]) -> None:
    """Raise click's own error for words that are unknown options rather than negative numbers.

    A negative number looks like an option to click; a command that has it passed on, by
    `ignore_unknown_options`, can say what is wrong with the number.
    """
    for word in words:
        if word.startswith("-") and not word[1:2].isdigit():
            raise click.NoSuchOption(word, ctx=click.get_current_context())


def parse_target(text: str) -> Pid:
    """A PID in decimal, `self` or `kernel`; whether there is such a process is not asked here.

    Raises UsageError for all else.
    """
    if text == "self":
        return "self"
    if text == "kernel":
        return "kernel"
    if _DECIMAL.fullmatch(text) and len(text) <= MOST_DIGITS:
        return int(text, 10)
    if re.fullmatch(r"-[0-9]+", text, re.ASCII):
        raise UsageError(f"{text} cannot be a PID: it is negative", "`ps -e` lists the processes")
    raise UsageError(
        f"{text!r} is no target",
        "give a PID in decimal, `self` or `kernel`; `pidof NAME` finds PIDs",
    )
