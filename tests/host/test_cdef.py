# SPDX-License-Identifier: GPL-2.0-or-later
"""The converter that makes cffi definitions from the headers: what it knows, it knows exactly."""

from __future__ import annotations

import pytest
from ptscope._core import ffi, lib
from ptscope.core.build import HERE, UnknownConstruct, cdef

GOOD = """
/* A comment
 * of two lines. */
#ifndef SOME_H
#define SOME_H
#include <linux/types.h>
#define SOME_NUMBER 0x10	/* why */
#define SOME_OTHER -1
struct some_thing {
	__u64 first;
	__s32 second[2];
	struct some_other third;
};
#endif /* SOME_H */
"""


def test_known_constructs() -> None:
    assert cdef(GOOD) == (
        "#define SOME_NUMBER 0x10\n"
        "#define SOME_OTHER -1\n"
        "struct some_thing {\n"
        "unsigned long long first;\n"
        "signed int second[2];\n"
        "struct some_other third;\n"
        "};\n"
    )


@pytest.mark.parametrize(
    "planted",
    [
        "#define SQUARE(x) ((x) * (x))",
        "#define SUM (1 + 2)",
        "#define NAME other",
        "#ifdef __KERNEL__",
        "#else",
        "#pragma pack(1)",
        "#undef SOME_NUMBER",
        "typedef __u32 handle;",
        "union some_union {",
        "enum some_enum { A, B };",
        "// a comment that the kernel would take",
        "#define LONG 1 \\\n + 1",
        "static inline int f(void) { return 0; }",
        "struct open {",
    ],
)
def test_unknown_construct_is_refused(planted: str) -> None:
    with pytest.raises(UnknownConstruct):
        cdef(GOOD.replace("#endif", planted + "\n#endif"))


@pytest.mark.parametrize(
    "planted",
    [
        "unsigned long size;",
        "__u64 bits : 3;",
        "__le32 number;",
        "__u64 a, b;",
        "int (*call)(int);",
        "__u8 tail[];",
        "__u8 name[SOME_NUMBER];",
        "struct { __u32 inner; } nested;",
    ],
)
def test_unknown_field_is_refused(planted: str) -> None:
    with pytest.raises(UnknownConstruct):
        cdef(GOOD.replace("__u64 first;", planted))


def test_every_definition_of_the_header_arrives() -> None:
    text = (HERE / "ptscope.h").read_text()
    names = [line.split()[1] for line in text.splitlines() if line.startswith("#define PTSCOPE_")]
    names.remove("PTSCOPE_H")
    assert len(names) > 20
    assert [name for name in names if not hasattr(lib, name)] == []
    structs = [line.split()[1] for line in text.splitlines() if line.startswith("struct ptscope_")]
    assert {ffi.sizeof(f"struct {name}") % 8 for name in structs} == {0}
