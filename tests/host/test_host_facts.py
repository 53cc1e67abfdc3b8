# SPDX-License-Identifier: GPL-2.0-or-later
"""Facts of a machine, of module files, and the errors that follow from them, on made-up
machines."""

from __future__ import annotations

import errno
import gzip
import lzma
import struct
from dataclasses import dataclass
from pathlib import Path

import pytest
from ptscope import kmodule
from ptscope.doctor.checks import (
    CHECKS,
    Patient,
    check_lockdown,
    check_module,
    check_module_file,
    check_module_files,
    check_secure_boot,
)
from ptscope.errors import NotPermitted, PtscopeError, Unsupported
from ptscope.host import SECURE_BOOT_VARIABLE, Host
from ptscope.kmodule import NotAModule, vermagic
from ptscope.source.availability import build_remedy, cannot_open
from ptscope.source.choose import choose
from ptscope.source.module import ModuleSource

RELEASE = "6.1.0-57-amd64"
ADMIN = "CapEff:\t000001ffffffffff\n"
NOBODY = "CapEff:\t0000000000000000\n"


@dataclass
class Machine:
    """A tree that looks like the parts of /proc, /sys and /lib that ptscope reads."""

    root: Path

    def put(self, path: str, content: str | bytes) -> Path:
        where = self.root / path
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_bytes(content if isinstance(content, bytes) else content.encode())
        return where

    @property
    def host(self) -> Host:
        return Host(self.root)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine on which everything is in place but the module's files in debugfs."""
    monkeypatch.setattr(kmodule, "CHECKOUT", tmp_path / "checkout")
    made = Machine(tmp_path)
    made.put("proc/sys/kernel/osrelease", RELEASE + "\n")
    made.put("proc/self/status", "Name:\tx\n" + ADMIN)
    made.put("proc/self/mounts", "debugfs /sys/kernel/debug debugfs rw 0 0\n")
    made.put("sys/kernel/security/lockdown", "[none] integrity confidentiality\n")
    made.put("sys/module/ptscope/refcnt", "0\n")
    return made


def elf(sections: dict[str, bytes], order: str = "<", bits: int = 2) -> bytes:
    """A minimal ELF object of these sections and the table of their names."""
    names = b"\0"
    body = b""
    rows = [struct.pack(order + "IIQQQQIIQQ", *[0] * 10)]
    for name, data in [*sections.items(), (".shstrtab", b"")]:
        where = len(names)
        names += name.encode() + b"\0"
        data = data or names
        head = (where, 1, 0, 0, 64 + len(body), len(data), 0, 0, 1, 0)
        rows.append(struct.pack(order + "IIQQQQIIQQ", *head))
        body += data
    ident = b"\x7fELF" + bytes((bits, 1 if order == "<" else 2, 1)) + bytes(9)
    fixed = struct.pack(
        order + "HHIQQQIHHHHHH", 1, 62, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, len(rows),
        len(rows) - 1,
    )  # fmt: skip
    return ident + fixed + body + b"".join(rows)


def module_for(release: str) -> bytes:
    magic = f"vermagic={release} SMP preempt mod_unload modversions "
    return elf({".text": b"\x90", ".modinfo": f"license=GPL\0{magic}\0name=ptscope\0".encode()})


@pytest.mark.parametrize("order", ["<", ">"])
def test_vermagic(tmp_path: Path, order: str) -> None:
    data = elf({".modinfo": b"a=b\0vermagic=1.2 SMP \0"}, order)
    for suffix, packed in (
        ("", data),
        (".xz", lzma.compress(data)),
        (".gz", gzip.compress(data)),
    ):
        path = tmp_path / f"x.ko{suffix}"
        path.write_bytes(packed)
        assert vermagic(path) == "1.2 SMP"


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("text.ko", b"#!/bin/sh\n"),
        ("empty.ko", b""),
        ("cut.ko", module_for(RELEASE)[:100]),
        ("32.ko", elf({".modinfo": b"vermagic=1\0"}, bits=1)),
        ("other.ko", elf({".text": b"\x90"})),
        ("nomagic.ko", elf({".modinfo": b"license=GPL\0"})),
        ("bad.ko.xz", b"not xz"),
        ("bad.ko.gz", b"not gzip"),
        ("packed.ko.zst", b"(\xb5/\xfd"),
    ],
)
def test_file_that_is_no_module(tmp_path: Path, name: str, data: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(NotAModule):
        vermagic(path)


def test_facts(machine: Machine) -> None:
    host = machine.host
    assert host.release == RELEASE
    assert host.sys_admin
    assert host.module_loaded
    assert host.debugfs == machine.root / "sys/kernel/debug"
    assert (host.lockdown, host.locked_down) == ("none", False)
    assert host.secure_boot is None
    for value in (0, 1):
        machine.put(
            f"sys/firmware/efi/efivars/{SECURE_BOOT_VARIABLE}", b"\x06\0\0\0" + bytes([value])
        )
        assert host.secure_boot is bool(value)


def test_empty_machine(tmp_path: Path) -> None:
    host = Host(tmp_path)
    assert (host.lockdown, host.secure_boot, host.debugfs) == (None, None, None)
    assert not host.module_loaded
    assert not host.sys_admin


def opening(machine: Machine) -> PtscopeError:
    with pytest.raises(PtscopeError) as caught:
        ModuleSource.open(machine.host)
    return caught.value


def unload(machine: Machine) -> None:
    (machine.root / "sys/module/ptscope/refcnt").unlink()
    (machine.root / "sys/module/ptscope").rmdir()


def lock(machine: Machine, mode: str) -> None:
    machine.put("sys/kernel/security/lockdown", f"none [{mode}] else\n")


def test_no_module_loaded_nor_built(machine: Machine) -> None:
    unload(machine)
    error = opening(machine)
    assert (type(error), error.exit_status) == (Unsupported, 5)
    assert "no ptscope.ko was found" in error.cause
    assert f"linux-headers-{RELEASE}" in str(error.remedy)


def test_module_built_but_not_loaded(machine: Machine) -> None:
    unload(machine)
    path = machine.put("lib/ptscope/ptscope.ko", module_for(RELEASE))
    error = opening(machine)
    assert error.cause == "the module ptscope is not loaded"
    assert f"insmod {path}" in str(error.remedy)
    assert check_module_file(Patient(machine.host)).status == "ok"


def test_module_for_another_kernel(machine: Machine) -> None:
    unload(machine)
    path = machine.put(f"lib/modules/{RELEASE}/extra/ptscope.ko", module_for("6.1.0-50-amd64"))
    for error in (opening(machine),):
        assert error.exit_status == 5
        assert "built for kernel 6.1.0-50-amd64" in error.cause
        assert f"the running {RELEASE}" in error.cause
        assert f"linux-headers-{RELEASE}" in str(error.remedy)
    result = check_module_file(Patient(machine.host))
    assert result.status == "fail"
    assert str(path) in result.text
    other = machine.put("elsewhere/ptscope.ko", module_for(RELEASE))
    assert check_module_file(Patient(machine.host, other)).status == "ok"
    assert str(other) in str(check_module(Patient(machine.host, other)).remedy)


@pytest.mark.parametrize("mode", ["integrity", "confidentiality"])
def test_lockdown_before_the_module_is_loaded(machine: Machine, mode: str) -> None:
    unload(machine)
    lock(machine, mode)
    error = opening(machine)
    assert (type(error), error.exit_status) == (NotPermitted, 4)
    assert f"lockdown ({mode}) refuses to load" in error.cause
    assert "boot without lockdown" in str(error.remedy)
    assert "unsigned modules" in check_lockdown(Patient(machine.host)).text


def test_lockdown_after_the_module_is_loaded(machine: Machine) -> None:
    lock(machine, "integrity")
    path = machine.root / "sys/kernel/debug/ptscope/dump"
    refusal = PermissionError(errno.EPERM, "Operation not permitted")
    error = cannot_open(machine.host, path, refusal)
    assert (type(error), error.exit_status) == (NotPermitted, 4)
    assert "lockdown (integrity) forbids" in error.cause
    assert check_lockdown(Patient(machine.host)).status == "fail"


def test_no_privilege(machine: Machine) -> None:
    machine.put("proc/self/status", NOBODY)
    refusal = PermissionError(errno.EACCES, "Permission denied")
    error = cannot_open(machine.host, machine.root / "x", refusal)
    assert (type(error), error.exit_status) == (NotPermitted, 4)
    assert "CAP_SYS_ADMIN" in error.cause
    assert "root" in str(error.remedy)


def test_debugfs_not_mounted(machine: Machine) -> None:
    machine.put("proc/self/mounts", "proc /proc proc rw 0 0\n")
    error = opening(machine)
    assert error.exit_status == 5
    assert "mount -t debugfs" in str(error.remedy)


def test_debugfs_mounted_at_a_place_with_a_blank(machine: Machine) -> None:
    machine.put("proc/self/mounts", "none /my\\040\\134debug debugfs rw 0 0\n")
    assert machine.host.debugfs == machine.root / "my \\debug"


@pytest.mark.parametrize(
    ("release", "debian"),
    [
        *((release, True) for release in (RELEASE, "5.10.0-30-cloud-amd64", "6.1.0-9-rt-amd64")),
        *((release, True) for release in ("6.12.48+deb13-riscv64", "7.2.3+deb14-arm64-16k")),
        *((release, True) for release in ("6.1.0-0.deb11.21-amd64", "6.12.9+bpo-amd64")),
        *((release, True) for release in ("7.3-amd64", "7.3-rc4-arm64")),
        *((release, False) for release in ("6.18.44-custom", "6.12.0", "6.1.0-amd64", "6.1.0+")),
        *((release, False) for release in ("6.8.0-45-generic", "5.14.0-503.el9.x86_64")),
    ],
)
def test_headers_are_a_package_for_debian_s_kernels_only(release: str, debian: bool) -> None:
    remedy = build_remedy(release)
    assert (f"apt install linux-headers-{release}" in remedy) == debian
    assert ("make modules_prepare" in remedy) != debian
    assert ("`make install`" in remedy) == debian


def test_module_without_its_files(machine: Machine) -> None:
    error = opening(machine)
    assert error.exit_status == 5
    assert "does not exist" in error.cause
    assert check_module_files(Patient(machine.host)).status == "fail"


def test_module_of_another_format(machine: Machine) -> None:
    machine.put("sys/kernel/debug/ptscope/layout", "format 2\narch x86_64\n")
    machine.put("sys/kernel/debug/ptscope/dump", "")
    error = opening(machine)
    assert error.exit_status == 5
    assert "format" in error.cause


def test_fallback_to_pagemap(machine: Machine) -> None:
    chosen = choose("auto", 1, machine.host)
    assert chosen.source.name == "pagemap"
    assert isinstance(chosen.instead_of_module, Unsupported)
    assert choose("pagemap", 1, machine.host).instead_of_module is None
    for wanted, pid in (("module", 1), ("auto", "kernel")):
        with pytest.raises(Unsupported):
            choose(wanted, pid, machine.host)  # type: ignore[arg-type]


def test_secure_boot(machine: Machine) -> None:
    assert check_secure_boot(Patient(machine.host)).status == "ok"
    machine.put(f"sys/firmware/efi/efivars/{SECURE_BOOT_VARIABLE}", b"\x06\0\0\0\1")
    assert check_secure_boot(Patient(machine.host)).status == "warn"


def test_every_check_answers_on_every_machine(machine: Machine, tmp_path: Path) -> None:
    bare = Host(tmp_path / "nothing")
    for host in (bare, machine.host, Host()):
        for name, check in CHECKS:
            result = check(Patient(host))
            assert result.status in ("ok", "warn", "fail"), name
            assert result.text, name
            assert result.status != "fail" or result.remedy or host.module_loaded is False, name
