# SPDX-License-Identifier: GPL-2.0-or-later
"""The Python side of /dev/ptscope-map, with a file that answers as ptscope.h says."""

from __future__ import annotations

import errno
import io
import mmap
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from ptscope.doctor.checks import Patient, check_map_device
from ptscope.errors import BadStream, NotPermitted, PtscopeError, Unsupported, UsageError
from ptscope.host import Host
from ptscope.source.known import KINDS, MAX_BYTES, KnownFrames

PAGE = mmap.PAGESIZE
FRAMES = (0x12345000 // PAGE * PAGE, 7 * PAGE, 1 << 40)


@dataclass
class Device(io.RawIOBase):
    """Takes a number of pages, gives addresses piece by piece; mmap() maps a plain file."""

    addresses: tuple[int, ...] = FRAMES
    write_error: int = 0
    piece: int = 16
    written: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.data = struct.pack(f"={len(self.addresses)}Q", *self.addresses)
        self.memory = os.memfd_create("pages")
        os.ftruncate(self.memory, len(self.addresses) * PAGE)

    def write(self, data: object) -> int:
        if self.write_error:
            raise OSError(self.write_error, os.strerror(self.write_error))
        assert isinstance(data, bytes)
        self.written.append(data)
        return len(data)

    def read(self, size: int | None = -1) -> bytes:
        assert size is not None
        some, self.data = self.data[: min(size, self.piece)], self.data[min(size, self.piece) :]
        return some

    def fileno(self) -> int:
        return self.memory

    def close(self) -> None:
        if not self.closed:
            os.close(self.memory)
        super().close()


def loaded(root: Path) -> Host:
    """A machine with the module, where we may do everything."""
    (root / "sys/module/ptscope").mkdir(parents=True)
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/status").write_text("CapEff:\t000001ffffffffff\n")
    return Host(root)


def test_pages_are_asked_for_and_named(tmp_path: Path) -> None:
    device = Device()
    with KnownFrames.allocate(3, loaded(tmp_path), lambda path: device) as known:
        assert device.written == [b"3"]
        assert known.addresses == FRAMES
        area = known.map("remap", 1)
        assert area.frames == FRAMES[1:]
        area.area[0] = 42
        assert area.address % PAGE == 0
        with Path("/proc/self/mem").open("rb") as memory:
            memory.seek(area.address)
            assert memory.read(1) == b"\x2a"
        area.close()
        for first, count in ((0, 4), (3, 1), (-1, 1), (0, 0)):
            with pytest.raises(UsageError):
                known.map("remap", first, count)
    assert device.closed


def test_the_offset_says_the_kind() -> None:
    assert [KnownFrames.offset(kind) >> 40 for kind in KINDS] == [0, 1, 2, 3]
    assert KnownFrames.offset("fault", 5) == (2 << 40) + 5 * PAGE


@pytest.mark.parametrize(
    ("addresses", "says"),
    [(FRAMES[:2], "has 2 pages"), ((PAGE, PAGE, 0), "twice"), ((PAGE, 0, 8), "not that of a page")],
)
def test_a_device_that_contradicts_itself(
    addresses: tuple[int, ...], says: str, tmp_path: Path
) -> None:
    device = Device(addresses)
    with pytest.raises(BadStream, match=says):
        KnownFrames.allocate(3, loaded(tmp_path), lambda path: device)
    assert device.closed


@pytest.mark.parametrize(
    ("number", "kind", "says"),
    [
        (errno.ERANGE, UsageError, f"1 to {MAX_BYTES // PAGE}"),
        (errno.ENOSPC, Unsupported, "no 3 pages left"),
        (errno.ENOMEM, Unsupported, "no memory"),
        (errno.EPERM, NotPermitted, "refused"),
        (errno.EIO, Unsupported, os.strerror(errno.EIO)),
    ],
)
def test_why_it_gives_nothing(
    number: int, kind: type[PtscopeError], says: str, tmp_path: Path
) -> None:
    device = Device(write_error=number)
    with pytest.raises(kind, match=says):
        KnownFrames.allocate(3, loaded(tmp_path), lambda path: device)
    assert device.closed


def without_module(root: Path) -> Host:
    return Host(root)


def older_module(root: Path) -> Host:
    return loaded(root)


def no_devtmpfs(root: Path) -> Host:
    host = loaded(root)
    (root / "sys/class/misc/ptscope-map").mkdir(parents=True)
    (root / "sys/class/misc/ptscope-map/dev").write_text("10:122\n")
    return host


@pytest.mark.parametrize(
    ("make", "cause", "remedy"),
    [
        (without_module, "not loaded", None),
        (older_module, "the module that is loaded has no", "rmmod"),
        (no_devtmpfs, "does not exist", "mknod -m 600 {root}/dev/ptscope-map c 10 122"),
    ],
)
def test_a_device_that_is_missing(
    make: Callable[[Path], Host], cause: str, remedy: str | None, tmp_path: Path
) -> None:
    host = make(tmp_path)
    with pytest.raises(Unsupported, match=cause) as error:
        KnownFrames.allocate(1, host)
    result = check_map_device(Patient(host))
    assert result.status == "warn"
    assert cause in result.text
    if remedy:
        for found in (error.value.remedy, result.remedy):
            assert found
            assert remedy.format(root=tmp_path) in found


def test_the_doctor_names_the_device(tmp_path: Path) -> None:
    host = loaded(tmp_path)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/ptscope-map").touch()
    result = check_map_device(Patient(host))
    assert (result.status, result.remedy) == ("ok", None)
    assert str(tmp_path / "dev/ptscope-map") in result.text
