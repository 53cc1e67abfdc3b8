# SPDX-License-Identifier: GPL-2.0-or-later
"""Which guests `make test` boots and what each runs. A new scenario is a row.

Guest tests learn where they run from the environment:

    PTSCOPE_VM_SCENARIO   name of the row
    PTSCOPE_VM_VARIANT    name in the table of `variants`
    PTSCOPE_VM_LEVELS     page-table levels the hardware walks (3, 4, 5)
    PTSCOPE_VM_PTI        1 or 0
    PTSCOPE_VM_SMP        number of CPUs
    PTSCOPE_VM_LAYOUT     the shipped layout that must equal the running kernel's
    PTSCOPE_VM_MODULE     what became of ptscope.ko: loaded, none, refused
"""

from __future__ import annotations

from dataclasses import dataclass

from .kernels import Kernel
from .variants import VARIANTS

MAIN = "main"
SCENARIO_FILES = (
    "test_nomodule.py",
    "test_lockdown_before.py",
    "test_lockdown_after.py",
    "test_wrong_module.py",
    "test_race.py",
    "test_speed.py",
)
"""Files below tests/guest that rows of their own run; every other test file belongs to `MAIN`."""
SECONDS = 900.0
"""A row that takes longer than this has failed."""


@dataclass(frozen=True)
class Row:
    """One guest."""

    scenario: str
    variant: str
    tests: tuple[str, ...]
    """Files below tests/guest; none means all that no scenario has."""
    smp: int = 1
    module: str = "loaded"
    """What must become of ptscope.ko."""
    init: tuple[str, ...] = ()
    """Words for init on the kernel's command line."""
    seconds: float = SECONDS
    icount: bool = False
    """Its clock counts instructions: see `Machine.icount`."""
    prefix: str = ""
    """What its name begins with, where there are several kernels."""

    @property
    def name(self) -> str:
        """Names the row's log, its JUnit file and its lines in the output."""
        scenario = "" if self.scenario == MAIN else f"{self.scenario}-"
        return f"{self.prefix}{scenario}{self.variant}"

    def pytest(self) -> list[str]:
        """pytest's arguments in the guest."""
        if self.tests:
            return [f"/tests/guest/{name}" for name in self.tests]
        return ["/tests/guest", *(f"--ignore=/tests/guest/{name}" for name in SCENARIO_FILES)]

    def environment(self, kernel: Kernel) -> dict[str, str]:
        """What the tests are told."""
        variant = VARIANTS[self.variant]
        return {
            "PTSCOPE_VM_SCENARIO": self.scenario,
            "PTSCOPE_VM_VARIANT": self.variant,
            "PTSCOPE_VM_LEVELS": str(kernel.levels[self.variant]),
            "PTSCOPE_VM_PTI": str(int(variant.pti)),
            "PTSCOPE_VM_SMP": str(self.smp),
            "PTSCOPE_VM_LAYOUT": kernel.layout,
            "PTSCOPE_VM_MODULE": self.module,
        }


# The longest first: two guests run at a time.
PLAN: tuple[Row, ...] = (
    Row(MAIN, "pti", ()),
    Row(MAIN, "5-level", ()),
    Row(MAIN, "4-level", ()),
    # Freed pages are filled with 0xaa: a walker that reads one shows it.
    Row("race", "5-level", ("test_race.py",), smp=2, init=("page_poison=1",)),
    Row("race", "4-level-pti", ("test_race.py",), smp=2, init=("page_poison=1",)),
    # The same path must not become longer: instructions are counted.
    Row("icount", "5-level", ("test_speed.py",), icount=True),
    Row(
        "lockdown-before",
        "5-level",
        ("test_lockdown_before.py",),
        module="refused",
        init=("vm.lockdown_before=integrity",),
    ),
    Row(
        "lockdown-after",
        "5-level",
        ("test_lockdown_after.py",),
        init=("vm.lockdown_after=integrity",),
    ),
    Row(
        "lockdown-after-confidentiality",
        "5-level",
        ("test_lockdown_after.py",),
        init=("vm.lockdown_after=confidentiality",),
    ),
    Row(
        "wrong-module",
        "5-level",
        ("test_wrong_module.py",),
        module="refused",
        init=("vm.module=/lib/ptscope/ptscope-other.ko",),
    ),
    Row("nomodule", "5-level", ("test_nomodule.py",), module="none", init=("vm.module=none",)),
)


BENCH_KERNELS = ("debian-6.1-amd64", "debian-6.12-amd64")
"""What `make bench` measures on when not told otherwise."""


def matrix_rows(kernel: Kernel) -> tuple[Row, ...]:
    """What `make matrix` boots for a kernel: all of `MAIN` in every variant, and some races."""
    prefix = f"{kernel.name}-"
    rows = [Row(MAIN, variant, (), prefix=prefix) for variant in kernel.levels]
    rows += [
        Row("race", variant, ("test_race.py",), smp=2, init=("page_poison=1",), prefix=prefix)
        for variant in MATRIX_RACES.get(kernel.name, ())
    ]
    return tuple(rows)


# One for each architecture, on the kernel that frees tables in most ways (per-VMA locks, page-table
# reclaim by MADV_DONTNEED), and where the locking differs most from it.
MATRIX_RACES: dict[str, tuple[str, ...]] = {
    "debian-5.10-amd64": ("4-level-pti",),
    "debian-6.12-amd64": ("5-level",),
    "debian-7.2-amd64": ("5-level",),
    "debian-7.2-arm64": ("lpa2",),
    "debian-7.2-riscv64": ("sv48",),
}
