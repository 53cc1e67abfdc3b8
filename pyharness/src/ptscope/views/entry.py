# SPDX-License-Identifier: GPL-2.0-or-later
"""One decoded entry as text for people, at most 80 columns wide.

Colour is put in as ANSI codes; `click.echo` takes them out again where the output is
no terminal.
"""

from __future__ import annotations

from collections.abc import Iterable

import click

from ptscope.decode.entry import Access, Entry, named_bits
from ptscope.decode.layout import Layout

WIDTH = 80
_LABEL = 9

STATE_WORDS = {
    "none": "empty",
    "table": "points to a table of the next level",
    "leaf": "maps a page",
    "protnone": "mapped, but not hardware-present: PROT_NONE or a NUMA hint",
    "splitting": "a huge page, not hardware-present while it is split",
    "swap": "swapped out",
    "migration": "its page is under migration",
    "device": "its page is in device memory, or lent to a device",
    "hwpoison": "its page has an uncorrected memory error",
    "marker": "no page, only a note of the kernel",
    "invalid": "",
}
KIND_WORDS = {
    "uffd_wp_marker": "userfaultfd write protection",
    "poison_marker": "access gives SIGBUS",
    "guard_marker": "guard region, access gives SIGSEGV",
    "swapin_error": "the page could not be read from swap, access gives SIGBUS",
}
_COLOURS = {
    "none": "bright_black",
    "table": "blue",
    "leaf": "green",
    "invalid": "red",
    "hwpoison": "red",
}
_OTHER_COLOUR = "yellow"
_PROPERTIES = (
    ("accessed", "accessed"),
    ("dirty", "dirty"),
    ("soft_dirty", "soft-dirty"),
    ("uffd_wp", "uffd-wp"),
    ("special", "special"),
    ("global_", "global"),
    ("encrypted", "encrypted"),
    ("shadow_stack", "shadow stack"),
    ("contiguous", "contiguous"),
)


def render(layout: Layout, entry: Entry) -> str:
    """All lines for one entry, without the last newline."""
    lines = list(_line("level", f"{entry.level}, {size_text(layout.level(entry.level).span)}"))
    lines += _line("raw", f"{entry.raw:#018x}")
    state = click.style(entry.state, fg=_COLOURS.get(entry.state, _OTHER_COLOUR), bold=True)
    words = wrap([*(entry.reason or STATE_WORDS[entry.state]).split(" ")], len(entry.state) + 2)
    lines += _line("state", f"{state}: {words[0]}", *words[1:])
    if entry.pa is not None and entry.pfn is not None:
        lines += _line("pa", f"{entry.pa:#x}")
        lines += _line("pfn", f"{entry.pfn:#x}")
    if entry.page_size is not None:
        lines += _line("size", _sizes(entry))
    if entry.access is not None:
        lines += _line("access", access_text(entry.access))
    if entry.swap is not None:
        kind = (
            f"{entry.swap.kind}: {KIND_WORDS[entry.swap.kind]}"
            if (entry.swap.kind in KIND_WORDS)
            else entry.swap.kind
        )
        lines += _line("swap", f"type {entry.swap.type}, offset {entry.swap.offset:#x}")
        lines += _line("kind", kind)
    properties = property_words(entry)
    if properties:
        lines += _line("page", *wrap(properties, separator=", "))
    flags = flag_words(layout, entry)
    if flags:
        lines += _line("bits", *wrap(flags))
    return "\n".join(lines)


def access_text(access: Access) -> str:
    """``rwxu``, with a dash for each permission that is missing."""
    allowed = (access.read, access.write, access.exec, access.user)
    return "".join(letter if allow else "-" for letter, allow in zip("rwxu", allowed, strict=True))


def size_text(size: int) -> str:
    """A power of two of bytes in the largest unit that keeps it whole, as ``2 MiB``."""
    for unit, shift in (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << shift and not size & ((1 << shift) - 1):
            return f"{size >> shift} {unit}"
    return f"{size} bytes"


def property_words(entry: Entry) -> list[str]:
    """What is true of the page, in words; the protection key when it has one."""
    words = [word for name, word in _PROPERTIES if getattr(entry, name)]
    if entry.pkey is not None:
        words.append(f"pkey {entry.pkey}")
    return words


def flag_words(layout: Layout, entry: Entry) -> list[str]:
    """The set bits as ``word(bit)``, lowest first; a field is ``word(high:low)``."""
    return [
        f"{bits.word}({bits.low})"
        if bits.low == bits.high
        else f"{bits.word}({bits.high}:{bits.low})"
        for bits in named_bits(layout, entry)
    ]


def wrap(words: Iterable[str], used: int = 0, separator: str = " ") -> list[str]:
    """Join words to lines that fit beside the label; the first is `used` columns shorter."""
    lines: list[str] = []
    room = WIDTH - _LABEL - used
    for word in words:
        if lines and len(lines[-1]) + len(separator) + len(word) < room:
            lines[-1] += separator + word
            continue
        if lines:
            lines[-1] += separator.rstrip()
            room = WIDTH - _LABEL
        lines.append(word)
    return lines


def _sizes(entry: Entry) -> str:
    assert entry.page_size is not None
    if entry.mapping_size is None or entry.mapping_size == entry.page_size:
        return size_text(entry.page_size)
    return f"{size_text(entry.page_size)}, part of {size_text(entry.mapping_size)}"


def _line(label: str, text: str, *more: str) -> Iterable[str]:
    yield f"{label:<{_LABEL}}{text}"
    for line in more:
        yield " " * _LABEL + line
