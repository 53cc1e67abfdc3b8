# SPDX-License-Identifier: GPL-2.0-or-later
"""The test's own process as a target, with those commands of the puppet that a case needs."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import witness
from puppet import Commands

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
                       ctypes.c_long]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_LIBC.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

# include/uapi/asm-generic/mman-common.h, mman.h
PROT = {"r": mmap.PROT_READ, "w": mmap.PROT_WRITE, "x": mmap.PROT_EXEC}
MAP_FIXED = 0x10
MAP_NORESERVE = 0x4000
MAP_HUGETLB = 0x40000
MAP_HUGE_SHIFT = 26
ADVICE = {"hugepage": 14, "nohugepage": 15, "pageout": 21, "dontneed": 4, "collapse": 25}


def _prot(letters: str) -> int:
    return 0 if letters == "none" else sum(PROT[letter] for letter in letters)


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class Own(Commands):
    """Maps in this very process; :meth:`close` unmaps what is left."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._mapped: dict[int, int] = {}
        self._guarded: list[tuple[int, int]] = []

    def close(self) -> None:
        """Unmap everything that was mapped here."""
        for address, length in list(self._mapped.items()):
            self.unmap(address, length)
        for address, length in self._guarded:
            _check(_LIBC.munmap(address, length))
        self._guarded.clear()

    def where(self, place: str) -> int:
        """``text`` (a function of the C library, already called) or ``stack`` (its used end)."""
        if place == "text":
            _LIBC.getpid()
            address = ctypes.cast(_LIBC.getpid, ctypes.c_void_p).value
            assert address is not None
            return address
        assert place == "stack"
        return next(vma.end - 64 for vma in witness.vmas("self") if vma.name == "[stack]")

    def stack(self, length: int = 0) -> int:
        # A fork leaves the page read-only until it is written. It holds the name of the program.
        address = self.where("stack")
        byte = ctypes.c_ubyte.from_address(address)
        byte.value = byte.value
        return address

    def map(
        self,
        length: int,
        *,
        kind: str | None = None,
        prot: str | None = None,
        fd: int | None = None,
        private: bool = False,
        offset: int = 0,
        at: int | None = None,
        hint: bool = False,
        fixed: bool = False,
        align: int | None = None,
        huge: int | None = None,
        flags: str = "",
    ) -> int:
        bits = mmap.MAP_SHARED if kind == "shared" else mmap.MAP_PRIVATE
        bits |= mmap.MAP_ANONYMOUS
        assert fd is None
        assert not private
        assert not flags
        assert (at is None or hint)
        if huge is not None:
            bits |= MAP_HUGETLB | huge << MAP_HUGE_SHIFT
        if align is not None:
            whole = self._mmap(0, length + align, 0, bits | MAP_NORESERVE)
            at = -(-whole // align) * align
            _check(_LIBC.munmap(whole, length + align))
            bits |= MAP_FIXED  # nothing else runs in this process that could take the place
        elif at is None and huge is None:
            # Pages without permission on both sides: else the mapping becomes one with python's.
            around = length + 2 * witness.PAGE
            whole = self._mmap(0, around, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self._guarded.append((whole, around))
            at = whole + witness.PAGE
            bits |= MAP_FIXED
        address = self._mmap(at or 0, length, _prot(prot or "rw"), bits)
        self._mapped[address] = length
        return address

    @staticmethod
    def _mmap(at: int, length: int, prot: int, bits: int) -> int:
        address = _LIBC.mmap(at or None, length, prot, bits, -1, 0)
        if address is None or address == ctypes.c_void_p(-1).value:
            _check(-1)
        return int(address)

    def unmap(self, address: int, length: int) -> None:
        self._mapped.pop(address, None)
        _check(_LIBC.munmap(address, length))

    def protect(self, address: int, length: int, prot: str) -> None:
        _check(_LIBC.mprotect(address, length, _prot(prot)))

    def advise(self, address: int, length: int, advice: str) -> None:
        _check(_LIBC.madvise(address, length, ADVICE[advice]))

    def touch(self, how: str, address: int, count: int = 1, stride: int = witness.PAGE) -> None:
        for place in range(address, address + count * stride, stride):
            byte = ctypes.c_ubyte.from_address(place)
            if how == "write":
                byte.value = 1
            else:
                assert how == "read"
                byte.value  # noqa: B018


def executable() -> Path:
    """The program this process runs."""
    return Path("/proc/self/exe").resolve()
