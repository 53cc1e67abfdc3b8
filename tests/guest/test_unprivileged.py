# SPDX-License-Identifier: GPL-2.0-or-later
"""Without privilege: cause and remedy are named, and what can be done without it is done."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Callable

import command
import pytest
import rawfiles
import witness
from command import Result
from puppet import Puppet

pytestmark = pytest.mark.any_variant

NOBODY = 65534
# include/uapi/linux/capability.h
CAP_SYS_ADMIN = 21
CAPABILITY_VERSION_3 = 0x20080522
PR_SET_DUMPABLE = 4
SYS_CAPSET = {"x86_64": 126, "aarch64": 91, "riscv64": 91}


def become_nobody() -> None:
    """Give up everything; own the files of /proc/self, as what nobody started does."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)


def drop_sys_admin() -> None:
    """Stay root with every capability but CAP_SYS_ADMIN."""
    keep = ((1 << 41) - 1) & ~(1 << CAP_SYS_ADMIN) & int(witness.status("self")["CapEff"], 16)
    low, high = keep & 0xFFFFFFFF, keep >> 32
    head = struct.pack("<Ii", CAPABILITY_VERSION_3, 0)
    data = struct.pack("<6I", low, low, 0, high, high, 0)
    if ctypes.CDLL(None).syscall(SYS_CAPSET[os.uname().machine], head, data):
        raise OSError("capset")


LOSSES = {"nobody": become_nobody, "root without CAP_SYS_ADMIN": drop_sys_admin}


def without(loss: Callable[[], None], *words: object) -> Result:
    """Run the command with privileges lost."""

    def action() -> Result:
        loss()
        return command.ptscope(*words)

    return command.forked(action)


@pytest.mark.parametrize("name", LOSSES)
def test_doctor_names_the_privilege(name: str) -> None:
    result = without(LOSSES[name], "doctor", "--json")
    assert result.status == 4, result.out + result.err
    answer = result.json
    checks = {check["name"]: check for check in answer["checks"]}
    assert checks["capability"]["status"] == "fail"
    assert "CAP_SYS_ADMIN" in checks["capability"]["text"]
    assert "root" in checks["capability"]["remedy"]
    assert (answer["source"], answer["error"]["kind"]) == ("pagemap", "NotPermitted")


@pytest.mark.parametrize("name", LOSSES)
def test_walk_by_the_module_names_the_privilege(name: str, puppet: Puppet) -> None:
    words = ("walk", puppet.pid, hex(puppet.where("text")), "--source", "module")
    result = without(LOSSES[name], *words)
    assert (result.status, result.out) == (4, ""), result.err
    assert "CAP_SYS_ADMIN" in result.err
    assert "remedy: run ptscope as root" in result.err
    assert command.ptscope(*words).status == 0  # with it, the same words work


def test_somebody_else_s_process_is_not_shown(puppet: Puppet) -> None:
    result = without(become_nobody, "walk", puppet.pid, hex(puppet.where("text")))
    assert (result.status, result.out) == (4, "")
    assert "belongs to somebody else" in result.err


def test_own_process_is_shown_with_frames_hidden() -> None:
    """Hidden is not frame 0, and not a mismatch."""
    place = next(vma.end - 64 for vma in witness.vmas("self") if vma.name == "[stack]")
    result = without(become_nobody, "walk", "self", hex(place), "--json")
    assert result.status == 0, result.err
    walk = result.json
    assert (walk["source"], walk["frames_hidden"]) == ("pagemap", True)
    assert (walk["mapping"]["state"], walk["mapping"]["pfn"]) == ("leaf", None)
    assert "CAP_SYS_ADMIN" in result.err


def test_an_open_file_gives_nothing_to_who_has_no_privilege() -> None:
    """A descriptor can be handed on; the privilege is asked for at each use."""

    def codes(*descriptors: int) -> Result:
        become_nobody()
        found = []
        uses: tuple[Callable[[int], object], ...] = (
            lambda fd: os.write(fd, b"self 0x1000"),
            lambda fd: os.read(fd, 4096),
            lambda fd: os.write(fd, dump_request),
            lambda fd: os.read(fd, 4096),
        )
        for fd, use in zip(descriptors, uses, strict=True):
            try:
                use(fd)
                found.append("done")
            except OSError as error:
                found.append(errno.errorcode[error.errno or 0])
        return Result(0, " ".join(found), "")

    dump_request = rawfiles.request(rawfiles.SELF, [(0x1000, 0x1000)])
    with (
        rawfiles.opened("walk") as walk, rawfiles.opened("walk") as walked,
        rawfiles.opened("dump") as dump, rawfiles.opened("dump") as dumped,
    ):
        os.write(walked, b"self 0x1000")
        os.write(dumped, dump_request)
        found = command.forked(lambda: codes(walk, walked, dump, dumped))
        assert found.out.split() == ["EPERM"] * 4, found.err
        assert os.read(walked, 4096)
        assert os.read(dumped, 4096)


@pytest.mark.parametrize("name", ["layout", "walk", "dump", "stats"])
def test_nobody_can_open_the_files(name: str) -> None:
    def action() -> Result:
        become_nobody()
        try:
            os.open(rawfiles.FILES / name, os.O_RDONLY)
        except OSError as error:
            return Result(error.errno or 0, "", "")
        return Result(0, "", "")

    assert command.forked(action).status == errno.EACCES


@pytest.mark.parametrize("name", ["layout", "walk", "dump", "stats"])
def test_root_without_the_capability_cannot_open_the_files(name: str) -> None:
    def action() -> Result:
        drop_sys_admin()
        try:
            os.open(rawfiles.FILES / name, os.O_RDONLY)
        except OSError as error:
            return Result(error.errno or 0, "", "")
        return Result(0, "", "")

    assert command.forked(action).status == errno.EPERM
