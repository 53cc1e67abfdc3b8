# SPDX-License-Identifier: GPL-2.0-or-later
"""Which guests `make test` and `make matrix` boot and what each runs. A new scenario is a row.

Guest tests learn where they run from the environment:

    PTSCOPE_VM_SCENARIO   name of the row
    PTSCOPE_VM_VARIANT    name in the table of `variants`
    PTSCOPE_VM_LEVELS     page-table levels the hardware walks (3, 4, 5)
    PTSCOPE_VM_PTI        1 or 0
    PTSCOPE_VM_SMP        number of CPUs
    PTSCOPE_VM_LAYOUT     the shipped layout that must equal the running kernel's
    PTSCOPE_VM_MODULE     what became of ptscope.ko: loaded, none, refused
    PTSCOPE_VM_RACE       seconds of race; 0 where there is none
    PTSCOPE_VM_MODEL      steps for which the model has to agree; 0 where that is not asked
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .kernels import CHECKING, DEFAULT, KERNELS, Kernel
from .variants import VARIANTS

MAIN = "main"
SCENARIO_FILES = (
    "test_nomodule.py",
    "test_lockdown_before.py",
    "test_lockdown_after.py",
    "test_wrong_module.py",
    "test_programs.py",
    "test_race.py",
    "test_race_check.py",
    "test_model.py",
    "test_speed.py",
    "test_bench.py",
    "test_failslab.py",
    "test_plant.py",
    "test_ptdump.py",
    "test_dkms.py",
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
    without: tuple[str, ...] = ()
    """Marks of tests (tests/guest/conftest.py) that another guest of the same run has."""
    module: str = "loaded"
    """What must become of ptscope.ko."""
    init: tuple[str, ...] = ()
    """Words for init on the kernel's command line."""
    seconds: float = SECONDS
    memory: int = 0
    """MiB, where it takes more than the kernel's others have."""
    icount: bool = False
    """Its clock counts instructions: see `Machine.icount`."""
    race: int = 0
    """Seconds for which page tables are changed and walked at the same time."""
    model: int = 0
    """Steps for which `ptscope model` has to agree with the kernel."""
    expect_splat: tuple[str, ...] = ()
    """What the kernel has to report once each, as patterns of a report's first line; the lack of
    one is a failure, as any other report is."""
    prefix: str = ""
    """What its name begins with, where there are several kernels."""
    workstation: bool = False
    """With DKMS, compiler, headers and the checkout: see `workstation`."""

    @property
    def name(self) -> str:
        """Names the row's log, its JUnit file and its lines in the output."""
        scenario = "" if self.scenario == MAIN else f"{self.scenario}-"
        return f"{self.prefix}{scenario}{self.variant}"

    def pytest(self) -> list[str]:
        """pytest's arguments in the guest."""
        if self.tests:
            return [f"/tests/guest/{name}" for name in self.tests]
        marks = " and ".join(f"not {mark}" for mark in self.without)
        chosen = ["-m", marks] if marks else []
        ignored = (f"--ignore=/tests/guest/{name}" for name in SCENARIO_FILES)
        return ["/tests/guest", *chosen, *ignored]

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
            "PTSCOPE_VM_RACE": str(self.race),
            "PTSCOPE_VM_MODEL": str(self.model),
        }


def race(arch: str, variant: str, seconds: int, prefix: str = "", *, check: bool = True) -> Row:
    """A race on two CPUs, with or without `ptscope check` of what never holds still.

    Freed pages are filled with 0xaa: a walker that reads one shows it. Of the architectures only
    x86 can play two NUMA nodes without the machine's help.
    """
    nodes = ("numa=fake=2",) if arch == "amd64" else ()
    return Row(
        "race",
        variant,
        ("test_race.py", "test_race_check.py") if check else ("test_race.py",),
        smp=2,
        init=("page_poison=1", *nodes),
        race=seconds,
        prefix=prefix,
    )


def model(arch: str, variant: str, steps: int, prefix: str = "") -> Row:
    """The model against the kernel, for so many steps; with two nodes where they can be played."""
    init = ("numa=fake=2",) if arch == "amd64" else ()
    return Row("model", variant, ("test_model.py",), init=init, model=steps, prefix=prefix)


# The longest first: two guests run at a time.
PLAN: tuple[Row, ...] = (
    # Compilers are slow under emulation.
    Row(
        "dkms",
        "5-level",
        ("test_dkms.py",),
        smp=2,
        module="none",
        init=("vm.module=none",),
        seconds=2 * SECONDS,
        workstation=True,
    ),
    # Large ones: 4 GiB resident, many thousand VMAs.
    Row("programs", "5-level", ("test_programs.py",), memory=6656, seconds=2 * SECONDS),
    Row(MAIN, "pti", ()),
    Row(MAIN, "5-level", ()),
    Row(MAIN, "4-level", ()),
    race("amd64", "5-level", 30),
    race("amd64", "4-level-pti", 30),
    model("amd64", "5-level", 400),
    # The same path must not become longer: instructions are counted.
    Row("icount", "5-level", ("test_speed.py",), icount=True),
    Row("bench", "5-level", ("test_bench.py",), icount=True),
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


ANY_VARIANT, ANY_KERNEL, ANY_MACHINE = "any_variant", "any_kernel", "any_machine"
"""Marks of tests that show the same elsewhere: MARKS in tests/guest/conftest.py."""


def matrix_rows(kernel: Kernel, *, sparing: bool = False) -> tuple[Row, ...]:
    """What `make matrix` boots for a kernel: all of `MAIN` in every variant, some races, and the
    model.

    ``sparing`` leaves tests out that another row of the whole matrix has: what does not depend on
    levels or PTI runs in the kernel's first variant, what does not depend on the kernel on the
    architecture's first kernel (on the default one where it is of that architecture), and what
    lies in user space on the default kernel.
    """
    prefix = f"{kernel.name}-"
    # First what takes longest for a kernel that is the last: its rows end together.
    rows = [replace(row, prefix=prefix) for row in KERNEL_ROWS.get(kernel.name, ())]
    rows += [
        Row(
            MAIN,
            variant,
            (),
            without=_spared(kernel, variant) if sparing else (),
            prefix=prefix,
        )
        for variant in MATRIX_MAIN.get(kernel.name, tuple(kernel.levels))
    ]
    rows += [
        race(
            kernel.arch,
            variant,
            seconds,
            prefix,
            check=not sparing or kernel.name == WHOLE_RACE_CHECK,
        )
        for variant, seconds in MATRIX_RACES.get(kernel.name, {}).items()
        if not (sparing and kernel.name in WHOLE_WITHOUT_RACE)
    ]
    if kernel.name in MATRIX_BENCH and not sparing:
        rows.append(
            Row("bench", kernel.default_variant, ("test_bench.py",), icount=True, prefix=prefix)
        )
    rows += [
        model(kernel.arch, variant, steps, prefix)
        for variant, steps in MATRIX_MODELS.get(kernel.name, {}).items()
        if not sparing
    ]
    return tuple(rows)


def _spared(kernel: Kernel, variant: str) -> tuple[str, ...]:
    if variant != kernel.default_variant:
        return ANY_MACHINE, ANY_KERNEL, ANY_VARIANT
    if kernel.name == DEFAULT:
        return ()
    same = [each.name for each in KERNELS.values() if each.arch == kernel.arch]
    first = DEFAULT not in same and kernel.name == same[0]
    return (ANY_MACHINE,) if first else (ANY_MACHINE, ANY_KERNEL)


PLANTED = "/lib/ptscope/ptscope-plant.ko"
# What one kernel alone is asked.
KERNEL_ROWS: dict[str, tuple[Row, ...]] = {
    CHECKING: (
        Row("checks", "5-level", ("test_ptdump.py", "test_failslab.py")),
        Row("checks", "4-level-pti", ("test_ptdump.py",)),
        # A module with faults, so that the silence of the others means something. In this order:
        # lockdep reports once, and turns itself off when KASAN has reported.
        Row(
            "plant",
            "5-level",
            ("test_plant.py",),
            init=(f"vm.module={PLANTED}",),
            expect_splat=(
                r"WARNING: possible circular locking dependency detected",
                r"BUG: sleeping function called from invalid context at \S*plant\.c:",
                r"BUG: KASAN: slab-use-after-free in use_after_free\S+ \[ptscope\]",
            ),
        ),
        Row(
            "plant-rcu",
            "5-level",
            ("test_plant.py",),
            init=(f"vm.module={PLANTED}",),
            expect_splat=(r"WARNING: suspicious RCU usage",),
        ),
    ),
}


# The kernel that checks itself is slow; its other variant dumps its tables (see KERNEL_ROWS).
MATRIX_MAIN: dict[str, tuple[str, ...]] = {CHECKING: ("5-level",)}

# Variants and seconds. Long on the kernel that frees tables in most ways (per-VMA locks, page-table
# reclaim by MADV_DONTNEED) and on the one that checks itself; a short one for each other
# architecture and page size, and where the locking differs most.
MATRIX_RACES: dict[str, dict[str, int]] = {
    "debian-5.10-amd64": {"4-level-pti": 30},
    "debian-6.12-amd64": {"5-level": 30},
    "debian-7.2-amd64": {"5-level": 120},
    "debian-7.2-arm64": {"lpa2": 30},
    "debian-7.2-arm64-16k": {"lpa2": 30},
    "debian-7.2-riscv64": {"sv48": 30},
    CHECKING: {"5-level": 120},
}

# Variants and steps, for ONLY=: the whole matrix leaves them to `make model-long` (MODEL_RUNS).
MATRIX_MODELS: dict[str, dict[str, int]] = {
    "debian-6.1-amd64": {"4-level": 400, "pti": 200},
    "debian-6.12-amd64": {"5-level": 400},
}

# What `make model-long` takes: kernel, variant, steps.
MODEL_RUNS: tuple[tuple[str, str, int], ...] = (
    ("debian-6.1-amd64", "5-level", 20_000),
    ("debian-6.1-amd64", "4-level", 20_000),
    ("debian-6.12-amd64", "5-level", 20_000),
    ("debian-7.2-amd64", "5-level", 20_000),
    ("debian-7.2-arm64", "lpa2", 5_000),
    ("debian-7.2-riscv64", "sv57", 5_000),
)

# What the whole matrix spares itself. The kernel that checks itself is 6.12, too; and what is read
# again when it has changed lies in user space and is the same for all.
WHOLE_WITHOUT_RACE = ("debian-6.12-amd64",)
WHOLE_RACE_CHECK = "debian-7.2-amd64"

# Where `ptscope bench` is played: what a fault has to do differs with the kernel.
MATRIX_BENCH = (
    "debian-5.10-amd64",
    "debian-6.1-amd64",
    "debian-6.12-amd64",
    "debian-7.2-amd64",
    "debian-7.3-amd64",
    "debian-7.2-arm64",
    "debian-7.2-arm64-16k",
    "debian-7.2-riscv64",
)
