# SPDX-License-Identifier: GPL-2.0-or-later
"""Build ptscope._core: cffi in API mode, with the stable ABI.

cffi's definitions are made from the headers themselves, so they cannot drift from what the module
and the C files are compiled with. The converter knows few constructs and refuses all others: a
line that it silently left out would be a field that only one side has.
"""

from __future__ import annotations

import re
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
# Each part of the core is a header for everybody and a C file; a header comes after those whose
# structs it uses.
HEADERS = (
    "ptscope.h", "core.h", "decode.h", "summary.h", "diff.h", "check.h", "find.h", "clock.h",
    "sample.h",
)  # fmt: skip
SOURCES = (
    "core.c", "decode.c", "summary.c", "diff.c", "check.c", "find.c", "clock.c", "sample.c",
)  # fmt: skip
# cffi's _core.c is one unit with all C files, and the loops over entries are worth more than -O2.
OPTIMIZED = ["-O3"]
WARNINGS = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra"]

# The fixed-width types of linux/types.h, as asm-generic/int-ll64.h defines them for x86, arm64 and
# riscv alike. uint64_t would be another type to the compiler, and a pointer to it an error.
FIXED = {
    f"__{letter}{bits}": f"{sign} {name}"
    for letter, sign in (("u", "unsigned"), ("s", "signed"))
    for bits, name in ((8, "char"), (16, "short"), (32, "int"), (64, "long long"))
}

_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_INTEGER = r"-?(?:0x[0-9a-fA-F]+|\d+)"
_TYPE = r"(?:const )?(?:struct \w+|__[us]\d+|int|char|void)(?: \*| )"
_FIELD = re.compile(rf"{_TYPE}\w+(?:\[\d+\])?;")
_PROTOTYPE = re.compile(rf"{_TYPE}\w+\((?:{_TYPE}\w+(?:, )?)+\);")
_SKIPPED = re.compile(r'#ifndef \w+_H|#define \w+_H|#endif|#include (?:<[\w/]+\.h>|"\w+\.h")')
_DEFINE = re.compile(rf"#define (\w+)\s+({_INTEGER})")
_STRUCT = re.compile(r"struct \w+ \{")


class UnknownConstruct(ValueError):
    """A line of a header that the converter does not know."""


def cdef(text: str) -> str:
    """cffi definitions made from the text of a header.

    Raises UnknownConstruct, naming the line, for all that is not a comment, the guard, an include,
    a `#define NAME INTEGER`, a struct of plain fields or a prototype on one line.
    """
    out: list[str] = []
    inside = False
    for line in _without_comments(text).splitlines():
        line = line.strip()
        if inside:
            inside = line != "};"
            known = not inside or not line or _FIELD.fullmatch(line)
        elif _STRUCT.fullmatch(line):
            known = inside = True
        else:
            if not line or _SKIPPED.fullmatch(line):
                continue
            known = _DEFINE.fullmatch(line) or _PROTOTYPE.fullmatch(line)
        if not known:
            raise UnknownConstruct(f"not known to the cffi converter: {line!r}")
        out.append(_with_known_types(line))
    if inside:
        raise UnknownConstruct("a struct without its end")
    return "\n".join(out) + "\n"


def _without_comments(text: str) -> str:
    text = _COMMENT.sub("", text)
    for mark in ("/*", "*/", "//", "\\\n"):
        if mark in text:
            raise UnknownConstruct(f"not known to the cffi converter: a stray {mark!r}")
    return text


def _with_known_types(line: str) -> str:
    def stdint(match: re.Match[str]) -> str:
        name = match.group()
        if name not in FIXED:
            raise UnknownConstruct(f"not known to the cffi converter: the type {name} in {line!r}")
        return FIXED[name]

    return re.sub(r"\b__\w+", stdint, line)


def make() -> FFI:
    """The cffi builder that setup.py hands to setuptools."""
    ffi = FFI()
    for header in HEADERS:
        ffi.cdef(cdef((HERE / header).read_text()))
    # The C files are included rather than compiled apart, so that their warnings can be errors
    # while those of the code cffi generates are not ours.
    included = "".join(f'#include "{name}"\n' for name in SOURCES)
    ffi.set_source(
        "ptscope._core",
        '#pragma GCC diagnostic push\n#pragma GCC diagnostic error "-Wall"\n'
        f'#pragma GCC diagnostic error "-Wextra"\n{included}#pragma GCC diagnostic pop\n',
        include_dirs=[str(HERE)],
        depends=[str(HERE / name) for name in (*HEADERS, *SOURCES)],
        extra_compile_args=[*OPTIMIZED, *WARNINGS],
        py_limited_api=True,
    )
    return ffi


ffibuilder = make()
