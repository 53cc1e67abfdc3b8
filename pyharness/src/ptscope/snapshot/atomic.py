# SPDX-License-Identifier: GPL-2.0-or-later
"""A file that appears whole or not at all.

It is written without a name, and gets one when everything is on the disk. So nothing is left
behind however the writer ends, also by SIGKILL. On a filesystem without such files (O_TMPFILE:
NFS, vfat) it has a name of its own beside the final one until then, which is removed when the
writer ends in any way that it can notice.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import signal
import stat
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from ptscope.errors import CannotWrite, UsageError

# Frames and addresses of a process are nobody else's business.
MODE = 0o600
# What open() says where a filesystem knows no O_TMPFILE (man open).
NO_NAMELESS = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL})
NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS})
ELSEWHERE = "give a FILE elsewhere"
REMEDIES = {
    errno.ENOENT: f"make its directory first, or {ELSEWHERE}",
    errno.EISDIR: "give the name of a file in it",
    errno.ENOSPC: f"free some space there, or {ELSEWHERE}",
    errno.EDQUOT: f"free some space there, or {ELSEWHERE}",
}
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Output:
    """What is written to; `write` takes all of its bytes."""

    def __init__(self, fd: int, name: str) -> None:
        self._fd = fd
        self.name = name
        self.bytes = 0

    def write(self, data: bytes, /) -> None:
        """Write all of `data`. Raises CannotWrite."""
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._fd, left) :]
        except BrokenPipeError:
            raise
        except OSError as error:
            raise _cannot_write(self.name, error) from None
        self.bytes += len(data)


@contextlib.contextmanager
def whole_file(path: Path, replace: bool) -> Iterator[Output]:
    """The output that becomes the file `path` when the block ends without an exception.

    Without `replace`, an existing file is left as it is and UsageError raised. What is not a file
    (a device, a pipe) is written to as it is. Raises CannotWrite.
    """
    try:
        found = path.stat()
    except OSError:
        found = None
    if found is not None and not stat.S_ISREG(found.st_mode):
        with _device(path) as output:
            yield output
        return
    if found is not None and not replace:
        raise _exists(path)
    # A link to a file means that file: the link stays a link.
    final = Path(os.path.realpath(path))
    try:
        fd = os.open(final.parent, os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, MODE)
    except OSError as error:
        if error.errno not in NO_NAMELESS:
            raise _cannot_write(str(path), error) from None
        with _named(path, final, replace) as output:
            yield output
        return
    try:
        yield (output := Output(fd, str(path)))
        try:
            os.fsync(fd)
            _place(fd, path, final, replace)
            _sync_directory(final.parent)
        except OSError as error:
            raise _cannot_write(str(path), error) from None
    finally:
        os.close(fd)


@contextlib.contextmanager
def standard_output() -> Iterator[Output]:
    """Standard output, which must not be a terminal: UsageError."""
    if os.isatty(1):
        raise UsageError(
            "a snapshot is no text: it is not written to a terminal",
            "send it to a file or a pipe",
        )
    yield Output(1, "standard output")


@contextlib.contextmanager
def _device(path: Path) -> Iterator[Output]:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _cannot_write(str(path), error) from None
    try:
        yield Output(fd, str(path))
    finally:
        os.close(fd)


@contextlib.contextmanager
def _named(path: Path, final: Path, replace: bool) -> Iterator[Output]:
    temporary = _beside(final)
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
    except OSError as error:
        raise _cannot_write(str(path), error) from None
    try:
        with _removed_by_signals(temporary):
            yield (output := Output(fd, str(path)))
            try:
                os.fsync(fd)
                if replace:
                    temporary.replace(final)
                else:
                    _rename_to_new(temporary, path, final)
                _sync_directory(final.parent)
            except OSError as error:
                raise _cannot_write(output.name, error) from None
    finally:
        os.close(fd)
        temporary.unlink(missing_ok=True)


def _place(fd: int, path: Path, final: Path, replace: bool) -> None:
    """Give a file without a name its name."""
    if not replace:
        try:
            _link(fd, final)
        except FileExistsError:
            raise _exists(path) from None
        return
    # link() replaces nothing, rename() does; between the two the file has a name that goes.
    temporary = _beside(final)
    _link(fd, temporary)
    try:
        temporary.replace(final)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _link(fd: int, name: Path) -> None:
    """/proc/self/fd/N is the way to a file without a name (man open, O_TMPFILE)."""
    descriptors = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Without a directory Python calls link(), which does not follow the link that N is.
        os.link(str(fd), name, src_dir_fd=descriptors, follow_symlinks=True)
    finally:
        os.close(descriptors)


def _rename_to_new(temporary: Path, path: Path, final: Path) -> None:
    """Rename without replacing: link() refuses an existing name, and is no race."""
    try:
        os.link(temporary, final)
    except FileExistsError:
        raise _exists(path) from None
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        # A filesystem without links: the name is taken first, then the file put there.
        try:
            os.close(os.open(final, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE))
        except FileExistsError:
            raise _exists(path) from None
        temporary.replace(final)


@contextlib.contextmanager
def _removed_by_signals(temporary: Path) -> Iterator[None]:
    """Signals that end a process remove the file first, and then end it as they would have."""

    def end(number: int, frame: FrameType | None) -> None:
        temporary.unlink(missing_ok=True)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    before = {}
    for number in ENDING_SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            before[number] = signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _beside(final: Path) -> Path:
    return final.parent / f".{final.name[:200]}.{secrets.token_hex(6)}.part"


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        # Some filesystems cannot: then they keep names in another way, or do not at all.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(fd)


def _exists(path: Path) -> UsageError:
    return UsageError(f"{path} exists already", "give another name, or --force to replace it")


def _cannot_write(name: str, error: OSError) -> CannotWrite:
    remedy = REMEDIES.get(error.errno or 0, ELSEWHERE)
    return CannotWrite(f"cannot write {name}: {error.strerror}", remedy)
