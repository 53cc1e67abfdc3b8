# SPDX-License-Identifier: GPL-2.0-or-later
"""A kernel built from source: lost options are noticed, and what is kept looks like a package."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import vmpath  # noqa: F401
from vm import fetch, kernels, qemu, source, variants
from vm.errors import SetupError

CONFIG = """\
CONFIG_KASAN=y
CONFIG_LSM="lockdown"
# CONFIG_VT is not set
CONFIG_SLUB_TINY=y
"""


@pytest.mark.parametrize(
    ("wanted", "lost"),
    [
        ("# a comment\n\nCONFIG_KASAN=y\n", []),
        ('CONFIG_LSM="lockdown"\n', []),
        ('CONFIG_LSM="yama"\n', ['CONFIG_LSM="yama"']),
        ("CONFIG_PROVE_LOCKING=y\n", ["CONFIG_PROVE_LOCKING=y"]),
        # "n" is what a line that is not there means, and what a comment means.
        ("CONFIG_VT=n\nCONFIG_WERROR=n\n", []),
        ("CONFIG_SLUB_TINY=n\n", ["CONFIG_SLUB_TINY=n"]),
        # The beginning of another option's name is not the option.
        ("CONFIG_KAS=y\n", ["CONFIG_KAS=y"]),
    ],
)
def test_options_that_kconfig_drops_are_named(wanted: str, lost: list[str]) -> None:
    assert source.lost(wanted, CONFIG) == lost


def test_the_checking_kernel_asks_for_its_checkers() -> None:
    built = kernels.kernel(kernels.CHECKING).built
    assert built is not None
    lines = (source.CONFIGS / built.config).read_text(encoding="utf-8").splitlines()
    checkers = (
        *("KASAN", "PROVE_LOCKING", "PROVE_RCU", "DEBUG_ATOMIC_SLEEP", "DEBUG_VM", "FAILSLAB"),
        *("PAGE_TABLE_CHECK_ENFORCED", "PTDUMP_DEBUGFS"),
    )
    assert {f"CONFIG_{name}=y" for name in checkers} <= set(lines)


def test_what_is_built_is_found_as_what_is_extracted(tmp_path: Path) -> None:
    release = "6.12.117-ptscope-checking"
    for name in (f"boot/vmlinuz-{release}", f"lib/modules/{release}/modules.order"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    assert source.release_in(tmp_path) == release
    fetched = fetch.Fetched(kernels.kernel(kernels.CHECKING), "1", release, None, tmp_path)
    assert fetched.image == tmp_path / f"boot/vmlinuz-{release}"
    assert fetched.modules == tmp_path / f"lib/modules/{release}"
    with pytest.raises(SetupError, match="no kernel"):
        source.release_in(tmp_path / "lib")


def test_a_device_tree_is_changed_in_one_word_only() -> None:
    tree = b"\0cpu@0\0riscv\0riscv,sv48\0riscv,svpbmt\0"
    wanted = variants.variant("sv57", "riscv64").mmu_type.encode() + b"\0"
    changed, count = qemu.MMU_TYPE.subn(wanted, tree)
    assert (changed, count) == (b"\0cpu@0\0riscv\0riscv,sv57\0riscv,svpbmt\0", 1)


def test_a_kernel_of_another_configuration_is_built_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = kernels.kernel(kernels.CHECKING)
    (tmp_path / "1").mkdir()
    current = tmp_path / "current"
    known = {"version": "1", "release": "6.12", "foreign_release": None}
    inputs = fetch._inputs(kernel)
    current.write_text(json.dumps({**known, "inputs": inputs}))
    assert fetch._from_current(kernel, current) is not None
    monkeypatch.setattr(source, "inputs", lambda built: ["another"])
    assert fetch._from_current(kernel, current) is None
    monkeypatch.undo()
    current.write_text(json.dumps(known))
    assert fetch._from_current(kernel, current) is None
    assert fetch._from_current(kernels.kernel(kernels.DEFAULT), current) is not None
