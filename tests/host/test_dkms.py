# SPDX-License-Identifier: GPL-2.0-or-later
"""`make install` and `make uninstall` as far as they can be tried without DKMS: scripts/dkms.py.

What they do to a machine is shown in a guest (tests/guest/test_dkms.py).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import dkms
import pytest
from dkms import Status, System
from ptscope import __version__
from vm import paths
from vm.errors import BuildError, SetupError

DEBIAN = "6.1.0-57-amd64"


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> System:
    """A machine on which nothing is missing."""
    files = {
        "proc/sys/kernel/osrelease": DEBIAN,
        "proc/sys/kernel/modules_disabled": "0",
        "sys/kernel/security/lockdown": "[none] integrity confidentiality",
        f"lib/modules/{DEBIAN}/build/include/x": "",
        "var/lib/dkms/x": "",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    monkeypatch.setattr(dkms, "program", lambda name: f"/usr/sbin/{name}")
    monkeypatch.setattr(dkms, "status", list)
    return System(tmp_path)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The programs that were run; each of them succeeds and says nothing."""
    commands: list[list[str]] = []

    def command(words: Sequence[str | Path]) -> subprocess.CompletedProcess[str]:
        commands.append([str(word) for word in words])
        return subprocess.CompletedProcess(list(words), 0, "")

    monkeypatch.setattr(dkms, "command", command)
    return commands


def test_the_version_is_in_one_place() -> None:
    assert f'PACKAGE_VERSION="{__version__}"\n'.encode() in dkms.files()["dkms.conf"]
    assert b"@" not in dkms.files()["dkms.conf"]
    for path in (*paths.KMOD.rglob("*"), paths.PACKAGE / "pyproject.toml"):
        if path.suffix in (".c", ".h", ".in", ".toml", "") and path.is_file():
            assert f'"{__version__}"' not in path.read_text(), path


def test_all_sources_are_installed_and_nothing_that_was_built() -> None:
    names = set(dkms.files())
    assert {"Kbuild", "Makefile", "dkms.conf", "main.c", "ptscope.h", "arch/x86.h"} < names
    assert {str(p.relative_to(paths.KMOD)) for p in paths.KMOD.rglob("*.h")} < names
    assert not [name for name in names if name.endswith((".o", ".ko", ".mod.c", ".in"))]


def test_sources_are_the_same_or_not(tmp_path: Path) -> None:
    dkms.write_sources(tmp_path)
    assert dkms.same_sources(tmp_path)
    (tmp_path / dkms.KEY_IS_NEW).touch()
    assert dkms.same_sources(tmp_path)
    (tmp_path / "more.h").touch()
    assert not dkms.same_sources(tmp_path)
    (tmp_path / "more.h").unlink()
    (tmp_path / "main.c").write_text("other\n")
    assert not dkms.same_sources(tmp_path)


def test_states_are_read_from_every_dkms() -> None:
    text = f"""\
ptscope/0.1.0, {DEBIAN}, x86_64: installed
ptscope/0.1.0, 6.1.0-58-amd64, x86_64: built
ptscope/0.2.0: added
ptscope, 0.0.9, 5.10.0-46-amd64, x86_64: installed
ptscope/0.1.0, 6.12.1+deb13-amd64, x86_64: installed (WARNING! Diff between built and installed)
other/0.1.0: added
Error! There are problems
"""
    found = dkms.parse_status(text)
    assert [(each.version, each.release, each.installed) for each in found] == [
        ("0.1.0", DEBIAN, True),
        ("0.1.0", "6.1.0-58-amd64", False),
        ("0.2.0", None, False),
        ("0.0.9", "5.10.0-46-amd64", True),
        ("0.1.0", "6.12.1+deb13-amd64", False),
    ]


def test_dkms_takes_the_kernels_that_the_module_builds_for() -> None:
    conf = dkms.files()["dkms.conf"].decode()
    match = re.search('BUILD_EXCLUSIVE_KERNEL="(.*)"', conf)
    assert match
    for release in (DEBIAN, "5.10.0-46-amd64", "7.3-amd64", "10.0-rc1"):
        assert re.search(match[1], release)
    for release in ("4.19.0-27-amd64", "5.4.0-42-generic", "3.10.0"):
        assert not re.search(match[1], release)


def test_nothing_missing_is_no_error(system: System) -> None:
    dkms.check(system)


@pytest.mark.parametrize("mode", ["integrity", "confidentiality"])
def test_lockdown_is_named(system: System, mode: str) -> None:
    (system.root / "sys/kernel/security/lockdown").write_text(f"none [{mode}]\n")
    with pytest.raises(SetupError, match=rf"kernel lockdown \({mode}\)") as caught:
        dkms.check(system)
    assert "boot without lockdown" in str(caught.value.remedy)


def test_kernel_that_takes_no_more_modules_is_named(system: System) -> None:
    (system.root / "proc/sys/kernel/modules_disabled").write_text("1\n")
    with pytest.raises(SetupError, match="modules_disabled is 1"):
        dkms.check(system)


def test_missing_packages_are_named_together(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    system.build.rename(system.build.with_name("away"))
    monkeypatch.setattr(dkms, "program", lambda name: None)
    with pytest.raises(SetupError, match="DKMS is not installed; the headers") as caught:
        dkms.check(system)
    assert f"apt-get install dkms linux-headers-{DEBIAN};" in str(caught.value.remedy)


def test_headers_of_a_kernel_that_is_not_debians(system: System) -> None:
    (system.root / "proc/sys/kernel/osrelease").write_text("6.9.0-mine\n")
    with pytest.raises(SetupError, match=r"headers of the running kernel 6\.9\.0-mine") as caught:
        dkms.check(system)
    assert "apt-get" not in str(caught.value.remedy)
    assert "lib/modules/6.9.0-mine/build must lead to them" in str(caught.value.remedy)


def test_who_uses_the_module_is_named(system: System) -> None:
    root = system.root
    dkms.refuse_in_use(system)
    (root / "sys/module/ptscope").mkdir(parents=True)
    (root / "sys/module/ptscope/refcnt").write_text("0\n")
    dkms.refuse_in_use(system)
    (root / "sys/module/ptscope/refcnt").write_text("1\n")
    with pytest.raises(SetupError, match="another PID namespace"):
        dkms.refuse_in_use(system)
    (root / "proc/self").mkdir()
    (root / "proc/self/mounts").write_text("debugfs /sys/kernel/debug debugfs rw 0 0\n")
    for pid, where in (("12", "ptscope/dump"), ("13", "tracing/ptscope")):
        (root / f"proc/{pid}/fd").mkdir(parents=True)
        (root / f"proc/{pid}/comm").write_text(f"name-{pid}\n")
        (root / f"proc/{pid}/fd/3").symlink_to(root / "sys/kernel/debug" / where)
    with pytest.raises(SetupError, match=r"in use by process 12 \(name-12\)$"):
        dkms.refuse_in_use(system)


def test_only_our_own_versions_are_known(system: System) -> None:
    dkms.write_sources(system.sources("0.0.1"))
    system.sources("mine").mkdir(parents=True)
    assert system.versions() == ["0.0.1"]


def test_sources_that_somebody_removed_do_not_hinder_removal(
    system: System, monkeypatch: pytest.MonkeyPatch, said: list[list[str]]
) -> None:
    monkeypatch.setattr(dkms, "status", lambda: [Status("0.0.1", DEBIAN, "installed")])
    dkms.drop(system, "0.0.1")
    assert said == [["dkms", "remove", "-m", "ptscope", "-v", "0.0.1", "--all"]]
    assert not system.sources("0.0.1").exists()


def test_what_dkms_leaves_is_swept(system: System, said: list[list[str]]) -> None:
    left = system.root / f"lib/modules/{DEBIAN}/updates/dkms/ptscope.ko.xz"
    left.parent.mkdir(parents=True)
    left.touch()
    (system.tree / "ptscope/0.0.1/build").mkdir(parents=True)
    dkms.sweep(system)
    assert said == [["depmod", DEBIAN]]
    assert not left.parents[1].exists()
    assert left.parents[2].exists()
    assert not (system.tree / "ptscope").exists()
    other = left.with_name("other.ko")
    for path in (left, other):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    dkms.sweep(system)
    assert (left.exists(), other.exists()) == (False, True)


def test_signing_key_goes_only_when_nothing_can_need_it(
    system: System, said: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    key, certificate = system.signing_key()
    for path in (key, certificate):
        path.touch()
    (system.tree / "zfs").mkdir()
    dkms.forget_key(system)
    assert key.exists()
    assert "zfs may need it" in capsys.readouterr().err
    (system.tree / "zfs").rmdir()
    # A machine with EFI whose mokutil does not say "is not enrolled".
    (system.root / "sys/firmware/efi").mkdir(parents=True)
    dkms.forget_key(system)
    assert key.exists()
    assert said == [["mokutil", "--test-key", str(certificate)]]
    (system.root / "sys/firmware/efi").rmdir()
    dkms.forget_key(system)
    assert not key.exists()
    assert not certificate.exists()


def builds_nothing(system: System, monkeypatch: pytest.MonkeyPatch, bad: str = "") -> list[str]:
    """DKMS does nothing but what ``bad`` begins, which fails; what it was asked, in short."""
    asked: list[str] = []

    def run(*words: str | Path) -> str:
        text = " ".join(str(word) for word in words if word not in ("-m", "ptscope", "-v", "-k"))
        asked.append(text)
        if bad and text.startswith(bad):
            raise BuildError("planted")
        return ""

    def drop(system: System, version: str) -> None:
        asked.append(f"drop {version}")
        shutil.rmtree(system.sources(version), ignore_errors=True)

    monkeypatch.setattr(dkms, "dkms", run)
    monkeypatch.setattr(dkms, "drop", drop)
    monkeypatch.setattr(dkms, "trial", lambda: asked.append("trial"))
    monkeypatch.setattr(dkms, "unload", lambda system: asked.append("unload"))
    dkms.write_sources(system.sources("0.0.1"))
    states = [Status("0.0.1", DEBIAN, "installed"), Status("0.0.1", "6.1.0-56-amd64", "installed")]
    monkeypatch.setattr(dkms, "status", lambda: states)
    return asked


def test_another_version_is_built_before_the_old_one_goes_and_serves_all_kernels(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = builds_nothing(system, monkeypatch)
    dkms.replace_installed(system)
    assert asked == [
        f"add {__version__}",
        f"build {__version__} {DEBIAN}",
        "unload",
        "drop 0.0.1",
        f"install {__version__} {DEBIAN} --force",
        f"install {__version__} 6.1.0-56-amd64 --force",
    ]
    assert dkms.same_sources(system.sources(__version__))
    assert (system.sources(__version__) / dkms.KEY_IS_NEW).exists()


def test_other_sources_of_the_same_version_are_tried_before_anything_goes(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    dkms.write_sources(system.sources(__version__))
    (system.sources(__version__) / "main.c").write_text("other\n")
    asked = builds_nothing(system, monkeypatch)
    dkms.replace_installed(system)
    assert asked[:4] == ["trial", "unload", f"drop {__version__}", f"add {__version__}"]
    assert dkms.same_sources(system.sources(__version__))


def test_old_kernel_that_cannot_have_the_new_version_is_named(
    system: System, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    builds_nothing(system, monkeypatch, bad=f"install {__version__} 6.1.0-56-amd64")
    dkms.replace_installed(system)
    assert "not installed for 6.1.0-56-amd64, which had it: planted" in capsys.readouterr().err


def test_new_version_that_does_not_build_goes_and_the_old_one_stays(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = builds_nothing(system, monkeypatch, bad="build")
    # The key with which the old one is signed.
    (system.sources("0.0.1") / dkms.KEY_IS_NEW).touch()
    system.signing_key()[0].touch()
    with pytest.raises(BuildError, match="planted"):
        dkms.replace_installed(system)
    assert asked[-1] == f"drop {__version__}"
    assert "unload" not in asked
    assert system.sources("0.0.1").exists()
    assert system.signing_key()[0].exists()
    assert not system.sources(__version__).exists()


def test_log_of_a_failed_build_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dkms, "LOG", tmp_path / "build/dkms-make.log")
    log = tmp_path / "tree/ptscope/0.1.0/build/make.log"
    log.parent.mkdir(parents=True)
    log.write_text("CC main.o\nmain.c:9:2: error: no such thing\nmake: *** [x] Error 2\nend\n")
    with pytest.raises(BuildError, match=r"main\.c:9:2: error: no such thing") as caught:
        dkms.keep_log(tmp_path / "tree")
    assert str(dkms.LOG) in str(caught.value.remedy)
    assert "CC main.o" not in caught.value.cause
    assert dkms.LOG.read_text() == log.read_text()


def test_root_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SetupError, match="make install needs root") as caught:
        dkms.install(None)
    assert caught.value.remedy == "run: sudo make install"
    with pytest.raises(SetupError, match="make uninstall needs root"):
        dkms.uninstall()
