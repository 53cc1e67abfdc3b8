# SPDX-License-Identifier: GPL-2.0-or-later
"""The matrix: what it covers, how it is chosen from, and what its table says."""

from __future__ import annotations

from pathlib import Path

import pytest
import vmpath  # noqa: F401
from ptscope.decode.layout import available
from vm import (
    apt,
    arches,
    cross,
    fetch,
    junit,
    kernels,
    matrix,
    module,
    overlay,
    plan,
    testrun,
    variants,
    workstation,
)
from vm.errors import UsageError
from vm.junit import Counts
from vm.testrun import Result


def test_every_kernel_has_what_it_names() -> None:
    assert len(kernels.KERNELS) == 13
    for kernel in kernels.KERNELS.values():
        assert kernel.arch in arches.ARCHES
        assert {kernel.suite, kernel.userland} <= set(apt.SUITES)
        assert kernel.layout in available()
        for variant in kernel.levels:
            assert variants.variant(variant, kernel.arch).arch == kernel.arch
        assert kernel.userland in cross.GLIBC
        assert kernel.userland in overlay.GUEST_PYTHON


def test_every_geometry_is_booted() -> None:
    """x86 with 4 and 5 levels; arm64 48-bit, LPA2, 47-bit; riscv64 Sv39, Sv48, Sv57."""
    walked: dict[str, set[int]] = {}
    for kernel in kernels.KERNELS.values():
        pages = "16k" if kernel.name.endswith("16k") else "4k"
        walked.setdefault(f"{kernel.arch} {pages}", set()).update(kernel.levels.values())
    assert walked == {
        "amd64 4k": {4, 5}, "arm64 4k": {4, 5}, "arm64 16k": {3, 4}, "riscv64 4k": {3, 4, 5},
    }
    assert kernels.kernel("debian-5.10-amd64").levels == {"4-level": 4, "4-level-pti": 4}


def test_no_selection_is_everything_and_races_are_some() -> None:
    everything = matrix.select([])
    assert {target.kernel.name for target in everything} == set(kernels.KERNELS)
    assert len({target.row.name for target in everything}) == len(everything)
    races = [target for target in everything if target.row.scenario == "race"]
    assert {target.kernel.arch for target in races} == set(arches.ARCHES)
    assert all(target.row.smp == 2 for target in races)
    raced = {target.kernel.name for target in races}
    assert raced == set(plan.MATRIX_RACES) - set(plan.WHOLE_WITHOUT_RACE)
    checked = [target.kernel.name for target in races if "test_race_check.py" in target.row.tests]
    assert checked == [plan.WHOLE_RACE_CHECK]
    for name in plan.MATRIX_RACES:
        (race,) = matrix.select([name, "race"])
        assert race.row.tests == ("test_race.py", "test_race_check.py")


def test_only_the_whole_matrix_leaves_a_test_to_another_row() -> None:
    main = [target for target in matrix.select([]) if target.row.scenario == plan.MAIN]
    assert [t.row.name for t in main if plan.ANY_MACHINE not in t.row.without] == [
        "debian-6.1-amd64-5-level"
    ]
    assert [t.row.name for t in main if plan.ANY_KERNEL not in t.row.without] == [
        "debian-6.1-amd64-5-level", "debian-6.1-arm64-48-bit", "debian-6.12-riscv64-sv57",
    ]  # fmt: skip
    for kernel in kernels.KERNELS.values():
        rows = [target.row for target in main if target.kernel is kernel]
        whole = [row.variant for row in rows if plan.ANY_VARIANT not in row.without]
        assert whole == [kernel.default_variant]
    spared = next(t.row for t in main if t.row.name == "debian-7.2-amd64-pti")
    assert "not any_machine and not any_kernel and not any_variant" in spared.pytest()
    assert all(not target.row.without for target in matrix.select(["amd64", "riscv64"]))


def test_the_workstation_is_a_guest_of_its_own() -> None:
    rows = [row for row in plan.PLAN if row.workstation]
    assert [row.tests for row in rows] == [("test_dkms.py",)]
    assert rows[0].module == "none"


def test_headers_are_again_as_they_are_when_installed(tmp_path: Path) -> None:
    kernel, release = kernels.kernel("debian-6.1-amd64"), "6.1.0-57-amd64"
    fetched = fetch.Fetched(kernel, "6.1.1-1", release, None, tmp_path)
    own, common = f"linux-headers-{release}", "linux-headers-6.1.0-57-common"
    include = "include {}/usr/src/linux-headers-6.1.0-57-common/Makefile\n"
    for name, text in {
        f"usr/src/{own}/Makefile": include.format(""),
        f"usr/src/{common}/Makefile": "all:\n",
        f"usr/src/{common}/include/x.h": "",
        "usr/src/linux-headers-6.1.0-57-cloud-amd64/Makefile": "",
        "usr/lib/linux-kbuild-6.1/scripts/mod/modpost": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    modules = tmp_path / "lib/modules" / release
    modules.mkdir(parents=True)
    (modules / "build").symlink_to(f"/usr/src/{own}")
    (modules / "source").symlink_to(f"../../../src/{common}")
    fetch.relocate_headers(tmp_path, tmp_path)
    assert include.format(tmp_path) == (tmp_path / f"usr/src/{own}/Makefile").read_text()
    tree = workstation.headers_tree(fetched)
    assert tree[f"usr/src/{own}/Makefile"].content() == include.format("").encode()
    assert tree[f"usr/lib/modules/{release}/build"].content() == f"/usr/src/{own}".encode()
    assert tree[f"usr/lib/modules/{release}/source"].content() == f"/usr/src/{common}".encode()
    assert {f"usr/src/{common}/include/x.h", "usr/lib/linux-kbuild-6.1/scripts/mod/modpost"} < set(
        tree
    )
    assert not [name for name in tree if "cloud" in name]


@pytest.mark.parametrize(
    ("names", "rows"),
    [
        (["debian-7.2-arm64-lpa2"], ["debian-7.2-arm64-lpa2"]),
        (["7.2-arm64", "main"], ["debian-7.2-arm64-lpa2", "debian-7.2-arm64-no-lpa2"]),
        (["6.12-riscv64", "7.2-riscv64", "sv39"],
         ["debian-6.12-riscv64-sv39", "debian-7.2-riscv64-sv39"]),
        (["riscv64", "race"], ["debian-7.2-riscv64-race-sv48"]),
    ],
)
def test_names_of_one_kind_add_up_and_of_several_narrow(
    names: list[str], rows: list[str]
) -> None:
    assert [target.row.name for target in matrix.select(names)] == rows


def test_unknown_name_is_refused() -> None:
    with pytest.raises(UsageError, match=r"all of: 7\.3-amd64, race"):
        matrix.select(["7.3-amd64", "race"])
    with pytest.raises(UsageError, match=r"6\.13-amd64"):
        matrix.select(["6.13-amd64"])


def outcomes() -> list[matrix.Outcome]:
    one, two, three = matrix.select(["7.3-amd64", "5-level", "4-level", "pti"])[:3]
    return [
        matrix.Outcome(one, Result("a", Counts(10, 0, 1), 12.3, skips=(("t::x", "why"),)), "7.3"),
        matrix.Outcome(two, Result("b", Counts(9, 1, 1), 4.0, ("t::y",), skips=(("t::x", "why"),)),
                       "7.3"),
        matrix.Outcome(three, None, "experimental has no package linux-image-amd64 for amd64"),
    ]


def test_table_tells_passed_failed_skipped_and_missing() -> None:
    found = outcomes()
    assert [outcome.good for outcome in found] == [True, False, False]
    lines = matrix.table(found).splitlines()
    assert lines[0].split()[:3] == ["kernel", "release", "arch"]
    assert lines[1].split()[-4:] == ["10", "0", "1", "12"]
    assert "missing" in lines[3]
    assert "FAILED b: t::y" in lines
    assert "skipped t::x: why (a, b)" in lines
    assert any(line.startswith("MISSING debian-7.3-amd64: experimental has") for line in lines)
    assert lines[-1] == "19 passed, 1 failed, 2 skipped"


def test_table_explains_what_rows_leave_to_others() -> None:
    whole = [target for target in matrix.select([]) if target.kernel.name == "debian-7.3-amd64"]
    found = [matrix.Outcome(target, Result("a", Counts(1, 0, 0), 1.0), "7.3") for target in whole]
    text = matrix.table(found)
    assert text.count("kernel tests ") == 1
    assert text.count("variant tests ") == 3
    assert "variant tests: what all variants show alike is left to" in text
    assert "all tests" not in text


def test_reasons_of_skips_are_read() -> None:
    root = junit.parse(
        '<testsuites><testsuite><testcase classname="c" name="n"><skipped message="why"/>'
        '</testcase><testcase classname="c" name="m"/></testsuite></testsuites>'
    )
    assert junit.skips(root) == [("c::n", "why")]


def test_c_library_that_is_too_new_is_noticed() -> None:
    elf = b"\x7fELF\0GLIBC_2.17\0memcpy\0GLIBC_2.4\0GLIBC_2.38\0"
    assert cross.glibc_needed(elf) == (2, 38)
    assert cross.glibc_needed(b"\x7fELF") == (0, 0)


def test_warnings_of_a_build_are_found_and_its_remark_is_not() -> None:
    for line in ("a.c:1:2: warning: unused variable", "WARNING: modpost: missing symbol"):
        assert module.WARNING.search(line)
    remark = "warning: the compiler differs from the one used to build the kernel"
    assert not module.WARNING.search(remark)


def test_what_make_test_leaves_out_is_said() -> None:
    said = testrun.left_out()
    assert "debian-6.1-amd64 4-level-pti" in said
    assert "debian-7.2-riscv64" in said
    assert "5-level" not in said
