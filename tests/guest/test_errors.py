# SPDX-License-Identifier: GPL-2.0-or-later
"""What cannot be done: each its own errno, its own message and exit status, and nothing lost."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from dataclasses import dataclass

import command
import pytest
import rawfiles
import witness
from puppet import Puppet
from rawfiles import RANGE, REQUEST, request

pytestmark = pytest.mark.any_variant

PAGE = witness.PAGE
KTHREADD = 2
"""kthreadd is the second task of every Linux."""
UNUSED_PID = 4194303
LIBC = ctypes.CDLL(None, use_errno=True)
NON_CANONICAL = 0x0100_0000_0000_0000
"""Bit 56 set and bit 63 clear: canonical neither with four levels nor with five."""
KERNEL_ADDRESS = 0xFFFF_FFFF_8000_0000


@pytest.fixture
def address(puppet: Puppet) -> int:
    place = puppet.map(PAGE)
    puppet.touch("write", place)
    return place


def refused(name: str, data: bytes) -> int:
    """The errno of a write to one of the files; fails when it is accepted."""
    with rawfiles.opened(name) as fd:
        with pytest.raises(OSError) as error:
            os.write(fd, data)
        # a refused request leaves the file as it was: usable, without a request
        with pytest.raises(OSError) as no_request:
            os.read(fd, rawfiles.MAX_READ)
    assert no_request.value.errno == errno.ENODATA
    assert error.value.errno is not None
    return int(error.value.errno)


POINT = [(0x1000, 0x1000)]

WRONG_BINARY: dict[str, tuple[bytes, int]] = {
    "empty": (b"", errno.ENODATA),
    "shorter than its head": (request(0, POINT)[: REQUEST.size - 1], errno.EBADMSG),
    "one byte": (b"P", errno.EBADMSG),
    "truncated range": (request(0, POINT)[:-1], errno.EBADMSG),
    "one range missing": (request(0, POINT, range_count=2), errno.EBADMSG),
    "a byte too many": (request(0, POINT) + b"\0", errno.EBADMSG),
    "a range too many": (request(0, POINT * 2, range_count=1), errno.EBADMSG),
    "wrong magic": (request(0, POINT, magic=0x12345678), errno.EPROTO),
    "magic of the other byte order": (request(0, POINT, magic=0x50545343), errno.EPROTO),
    "older version": (request(0, POINT, version=0), errno.EPROTONOSUPPORT),
    "newer version": (request(0, POINT, version=2), errno.EPROTONOSUPPORT),
    "another head size": (request(0, POINT, header_size=32), errno.EPROTONOSUPPORT),
    "another range size": (request(0, POINT, range_size=24), errno.EPROTONOSUPPORT),
    "unknown flag": (request(0, POINT, flags=4), errno.EINVAL),
    "highest flag": (request(0, POINT, flags=1 << 31), errno.EINVAL),
    "last before first": (request(0, [(0x2000, 0x1fff)]), errno.EINVAL),
    "no range": (request(0, []), errno.ENODATA),
    "too many ranges": (request(0, POINT * (rawfiles.MAX_RANGES + 1)), errno.E2BIG),
    "too many ranges announced": (request(0, POINT, range_count=0xFFFFFFFF), errno.E2BIG),
    "no such process": (request(UNUSED_PID, POINT), errno.ESRCH),
    "negative PID": (request(-2, POINT), errno.ESRCH),
    "lowest PID": (request(-(1 << 31), POINT), errno.ESRCH),
    "highest PID": (request((1 << 31) - 1, POINT), errno.ESRCH),
    "kernel thread": (request(KTHREADD, POINT), errno.EOPNOTSUPP),
    "non-canonical": (request(0, [(NON_CANONICAL, NON_CANONICAL)]), errno.ERANGE),
    "non-canonical last": (request(0, [(0x1000, NON_CANONICAL)]), errno.ERANGE),
    "kernel address of a process": (
        request(0, [(KERNEL_ADDRESS, KERNEL_ADDRESS)]), errno.EADDRNOTAVAIL),
    "user address of the kernel": (request(-1, POINT), errno.EADDRNOTAVAIL),
}

WRONG_TEXT: dict[str, tuple[bytes, int]] = {
    "empty": (b"", errno.ENODATA),
    "only a newline": (b"\n", errno.ENODATA),
    "only a PID": (b"self\n", errno.EINVAL),
    "three words": (b"self 0x1000 0x2000\n", errno.EINVAL),
    "no number": (b"self banana\n", errno.EINVAL),
    "half a number": (b"self 0x10zz\n", errno.EINVAL),
    "negative address": (b"self -4096\n", errno.EINVAL),
    "more than 64 bits": (b"self 0x10000000000000000\n", errno.EINVAL),
    "no target": (b"banana 0x1000\n", errno.EINVAL),
    "a zero byte": (b"self\0 0x1000\n", errno.EINVAL),
    "overlong": (b"self " + b"0" * 4096 + b"1\n", errno.E2BIG),
    "very long": (b"x" * (1 << 20), errno.E2BIG),
    "PID 0": (b"0 0x1000\n", errno.ESRCH),
    "negative PID": (b"-1 0x1000\n", errno.EINVAL),
    "huge PID": (b"99999999999 0x1000\n", errno.ESRCH),
    "no such process": (f"{UNUSED_PID} 0x1000\n".encode(), errno.ESRCH),
    "kernel thread": (f"{KTHREADD} 0x1000\n".encode(), errno.EOPNOTSUPP),
    "non-canonical": (f"self {NON_CANONICAL:#x}\n".encode(), errno.ERANGE),
    "kernel address of a process": (
        f"self {KERNEL_ADDRESS:#x}\n".encode(), errno.EADDRNOTAVAIL),
    "user address of the kernel": (b"kernel 0x1000\n", errno.EADDRNOTAVAIL),
}


@pytest.mark.parametrize("name", WRONG_BINARY)
def test_wrong_binary_request(name: str) -> None:
    data, expected = WRONG_BINARY[name]
    assert errno.errorcode[refused("dump", data)] == errno.errorcode[expected]


@pytest.mark.parametrize("name", WRONG_TEXT)
def test_wrong_text_request(name: str) -> None:
    data, expected = WRONG_TEXT[name]
    assert errno.errorcode[refused("walk", data)] == errno.errorcode[expected]


@pytest.mark.parametrize(
    "text", ["self 0x1000", "self 4096\n", "  self   0x1000  \n", "self\t0X1000", "self 04096"])
def test_text_request_may_be_spaced_freely(text: str) -> None:
    with rawfiles.opened("walk") as fd:
        assert os.write(fd, text.encode()) == len(text)
        assert rawfiles.parse_walk(os.read(fd, 65536).decode()).address == 0x1000


def test_unaligned_address_is_the_page_it_lies_in(puppet: Puppet, address: int) -> None:
    aligned, inside = (rawfiles.walk(puppet.pid, address + offset) for offset in (0, 0xABC))
    assert aligned.entries == inside.entries
    assert inside.address == address + 0xABC


def test_zombie(puppet: Puppet) -> None:
    child = puppet.fork()
    child.exit_to_zombie()
    assert witness.status(child.pid)["State"].startswith("Z")
    assert refused("walk", f"{child.pid} 0x1000".encode()) == errno.ENXIO
    assert refused("dump", request(child.pid, POINT)) == errno.ENXIO
    child.reap()
    assert refused("walk", f"{child.pid} 0x1000".encode()) == errno.ESRCH


def test_leader_that_has_exited_with_a_live_thread(puppet: Puppet, address: int) -> None:
    before = rawfiles.walk(puppet.pid, address)
    thread = puppet.leader_exit()
    assert witness.status(puppet.pid)["State"].startswith("Z")
    for pid in (puppet.pid, thread):
        assert rawfiles.walk(pid, address).entries == before.entries
        batches = rawfiles.dump(pid, [(address, address)])
        assert any(isinstance(r, rawfiles.Table) and r.level == "pte" for r in batches[0].records)
    walk = command.walk(puppet.pid, address)
    assert walk["mapping"]["state"] == "leaf"
    assert walk["pid"] == puppet.pid


def test_read_without_a_request() -> None:
    for name in ("walk", "dump"):
        with rawfiles.opened(name) as fd, pytest.raises(OSError) as error:
            os.read(fd, rawfiles.MAX_READ)
        assert error.value.errno == errno.ENODATA


@pytest.mark.parametrize("size", [1, 8, rawfiles.MIN_READ - 1])
def test_buffer_too_small_for_a_batch_loses_nothing(
    puppet: Puppet, address: int, size: int
) -> None:
    with rawfiles.opened("dump") as fd:
        os.write(fd, request(puppet.pid, [(address, address)]))
        with pytest.raises(OSError) as error:
            os.read(fd, size)
        assert error.value.errno == errno.EMSGSIZE
        (batch,) = rawfiles.read_batches(fd, rawfiles.MIN_READ)
    assert (batch.sequence, isinstance(batch.records[-1], rawfiles.End)) == (0, True)


def test_walk_may_be_read_in_pieces_and_again(puppet: Puppet, address: int) -> None:
    whole = rawfiles.walk_text(puppet.pid, address)
    with rawfiles.opened("walk") as fd:
        os.write(fd, f"{puppet.pid} {address:#x}".encode())
        assert b"".join(iter(lambda: os.read(fd, 7), b"")).decode() == whole
        os.write(fd, f"{puppet.pid} {address + PAGE:#x}".encode())
        second = b"".join(iter(lambda: os.read(fd, 100), b"")).decode()
    assert rawfiles.parse_walk(second).address == address + PAGE


def test_two_open_files_do_not_disturb_each_other(puppet: Puppet, address: int) -> None:
    with rawfiles.opened("walk") as one, rawfiles.opened("walk") as two:
        os.write(one, f"{puppet.pid} {address:#x}".encode())
        os.write(two, b"self 0x1000")
        assert f"pid {puppet.pid} ".encode() in os.read(one, 65536)
        assert f"pid {os.getpid()} ".encode() in os.read(two, 65536)


def test_second_request_on_one_dump_file(puppet: Puppet, address: int) -> None:
    with rawfiles.opened("dump") as fd:
        data = request(puppet.pid, [(address, address)])
        assert os.write(fd, data) == len(data)
        with pytest.raises(OSError) as error:
            os.write(fd, data)
        assert error.value.errno == errno.EBUSY
        assert len(list(rawfiles.read_batches(fd))) == 1
        assert os.read(fd, rawfiles.MAX_READ) == b""


def libc_io(function: str, fd: int, pointer: int, size: int) -> int:
    """read or write with any pointer; the errno, 0 when it worked."""
    call = getattr(LIBC, function)
    call.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
    call.restype = ctypes.c_ssize_t
    return ctypes.get_errno() if call(fd, pointer, size) < 0 else 0


BAD_POINTERS = [8, witness.nowhere(), KERNEL_ADDRESS, (1 << 64) - 8]


@pytest.mark.parametrize("pointer", BAD_POINTERS, ids=hex)
def test_bad_pointer_of_a_request(pointer: int, puppet: Puppet, address: int) -> None:
    with rawfiles.opened("walk") as fd:
        assert libc_io("write", fd, pointer, 16) == errno.EFAULT
    with rawfiles.opened("dump") as fd:
        assert libc_io("write", fd, pointer, REQUEST.size + RANGE.size) == errno.EFAULT
        os.write(fd, request(puppet.pid, [(address, address)]))
        assert len(list(rawfiles.read_batches(fd))) == 1


@pytest.mark.parametrize("pointer", BAD_POINTERS, ids=hex)
def test_bad_pointer_of_a_read_loses_nothing(pointer: int, puppet: Puppet, address: int) -> None:
    with rawfiles.opened("walk") as fd:
        os.write(fd, f"{puppet.pid} {address:#x}".encode())
        assert libc_io("read", fd, pointer, 4096) == errno.EFAULT
        assert rawfiles.parse_walk(os.read(fd, 65536).decode()).address == address
    with rawfiles.opened("dump") as fd:
        os.write(fd, request(puppet.pid, [(address, address)]))
        assert libc_io("read", fd, pointer, rawfiles.MIN_READ) == errno.EFAULT
        (batch,) = rawfiles.read_batches(fd)
    tables = [record for record in batch.records if isinstance(record, rawfiles.Table)]
    assert batch.sequence == 0
    assert tables
    assert not any(t.flags & rawfiles.AGAIN for t in tables)


def test_files_belong_to_root() -> None:
    modes = {name: (rawfiles.FILES / name).stat().st_mode & 0o777 for name in
             ("layout", "walk", "dump", "stats", ".")}
    assert modes == {"layout": 0o400, "walk": 0o600, "dump": 0o600, "stats": 0o400, ".": 0o700}


# ---- the command ---------------------------------------------------------


@dataclass(frozen=True)
class Refusal:
    """A command line that must be refused, with which exit status and which kind of error."""

    words: Callable[[Puppet], list[object]]
    status: int
    kind: str


def zombie(puppet: Puppet) -> list[object]:
    child = puppet.fork()
    child.exit_to_zombie()
    return [child.pid, "0x1000"]


REFUSALS = {
    "no such process": Refusal(lambda p: [UNUSED_PID, "0x1000"], 3, "NoSuchProcess"),
    "kernel thread": Refusal(lambda p: [KTHREADD, "0x1000"], 3, "KernelThread"),
    "zombie": Refusal(zombie, 3, "Exited"),
    "non-canonical": Refusal(lambda p: [p.pid, hex(NON_CANONICAL)], 2, "UsageError"),
    "kernel address": Refusal(lambda p: [p.pid, hex(KERNEL_ADDRESS)], 2, "UsageError"),
    "garbage number": Refusal(lambda p: [p.pid, "0x12banana"], 2, "UsageError"),
    "too large": Refusal(lambda p: [p.pid, "0x1" + "0" * 16], 2, "UsageError"),
    "negative address": Refusal(lambda p: ["--", p.pid, "-4096"], 2, "UsageError"),
    "garbage PID": Refusal(lambda p: ["banana", "0x1000"], 2, "UsageError"),
    "PID 0": Refusal(lambda p: [0, "0x1000"], 2, "UsageError"),
    "negative PID": Refusal(lambda p: ["--", -5, "0x1000"], 2, "UsageError"),
    "huge PID": Refusal(lambda p: [1 << 40, "0x1000"], 2, "UsageError"),
}


@pytest.fixture(scope="module")
def causes() -> dict[str, str]:
    """The causes named so far, to see that no two refusals read the same."""
    return {}


@pytest.mark.parametrize("name", REFUSALS)
def test_command_says_why(name: str, puppet: Puppet, causes: dict[str, str]) -> None:
    refusal = REFUSALS[name]
    words = refusal.words(puppet)
    people = command.ptscope("walk", *words)
    assert people.status == refusal.status, people.err
    assert people.out == ""
    assert people.err.startswith("ptscope: ")
    machine = command.ptscope("walk", "--json", *words)
    assert machine.status == refusal.status
    error = machine.json["error"]
    assert (error["kind"], error["exit_status"]) == (refusal.kind, refusal.status)
    assert error["cause"]
    assert error["cause"] in people.err
    same = [other for other, cause in causes.items() if cause == error["cause"]]
    assert not same, f"the same words as for {same}: {error['cause']}"
    causes[name] = error["cause"]


@pytest.mark.any_machine
def test_command_without_addresses() -> None:
    assert command.ptscope("walk", "self").status == 2


@pytest.mark.any_machine
def test_exit_status_of_a_process_of_its_own() -> None:
    """What the shell sees of a refusal; test_walk.py has a success."""
    done = command.run("walk", UNUSED_PID, "0x1000")
    assert done.status == 3
    assert str(UNUSED_PID) in done.err
    assert "Traceback" not in done.err
