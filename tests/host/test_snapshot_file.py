# SPDX-License-Identifier: GPL-2.0-or-later
"""A snapshot's file appears whole or not at all, whatever happens to who writes it."""

from __future__ import annotations

import errno
import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from ptscope.errors import CannotWrite, UsageError
from ptscope.snapshot import atomic
from ptscope.snapshot.atomic import Output, whole_file

DATA = b"whole" * 1000

# What a child does: write a part, meet its end, and never come to the end of the block.
CHILD = """
import os, signal, sys, time
from pathlib import Path
from ptscope.snapshot import atomic
if sys.argv[3] == "named":
    atomic.NO_NAMELESS = frozenset(range(200))
    real = os.open
    def refuse(path, flags, *more, **kw):
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(95, "no")
        return real(path, flags, *more, **kw)
    os.open = refuse
# Whoever runs the tests in the background, or by nohup, may have had them ignored.
for ignored in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    signal.signal(ignored, signal.SIG_DFL)
with atomic.whole_file(Path(sys.argv[1]), False) as out:
    out.write(b"half")
    print("writing", flush=True)
    if sys.argv[2] == "raise":
        raise SystemExit(9)
    os.kill(os.getpid(), int(sys.argv[2]))
    time.sleep(60)
"""


@pytest.fixture(params=["nameless", "named"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With files without names, and on a filesystem that has none."""
    if request.param == "named":
        real = os.open

        def refuse(path: str, flags: int, *more: int, **others: int) -> int:
            if flags & os.O_TMPFILE == os.O_TMPFILE:
                raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
            return real(path, flags, *more, **others)

        monkeypatch.setattr(os, "open", refuse)
    return str(request.param)


def written(
    path: Path, meanwhile: Callable[[Output], None] = lambda out: None, replace: bool = False
) -> None:
    """Write something, in between of which something happens."""
    with whole_file(path, replace) as out:
        out.write(DATA)
        meanwhile(out)
        out.write(DATA)


def test_it_appears_at_the_end(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "a.pts"
    with whole_file(path, replace=False) as out:
        out.write(DATA)
        assert not path.exists()
        assert len(list(tmp_path.iterdir())) == (kind == "named")
    assert path.read_bytes() == DATA
    assert out.bytes == len(DATA)
    assert list(tmp_path.iterdir()) == [path]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_existing_file_is_kept(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "a.pts"
    path.write_bytes(b"old")
    with pytest.raises(UsageError, match="exists already"), whole_file(path, replace=False):
        pytest.fail("it was written")
    path.unlink()

    def meanwhile(out: Output) -> None:
        path.write_bytes(b"other")

    with pytest.raises(UsageError, match="exists already"):
        written(path, meanwhile)
    assert path.read_bytes() == b"other"
    assert list(tmp_path.iterdir()) == [path]


def test_it_is_replaced_at_once(kind: str, tmp_path: Path) -> None:
    path, link = tmp_path / "a.pts", tmp_path / "link"
    path.write_bytes(b"old")
    link.symlink_to("a.pts")
    with whole_file(link, replace=True) as out:
        out.write(DATA)
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == DATA
    assert link.is_symlink()
    assert sorted(tmp_path.iterdir()) == [path, link]


def test_an_error_leaves_nothing(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "a.pts"

    def fail(out: Output) -> None:
        raise RuntimeError

    for replace in (False, True):
        with pytest.raises(RuntimeError):
            written(path, fail, replace)
        assert list(tmp_path.iterdir()) == []
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError):
        written(path, fail, replace=True)
    assert path.read_bytes() == b"old"


def test_a_full_disk_leaves_nothing(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "a.pts"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(CannotWrite, match=r"cannot write .*a\.pts: File too large"):
            written(path, lambda out: out.write(bytes(9_999)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert list(tmp_path.iterdir()) == []
    assert CannotWrite.exit_status == 74


def test_a_disk_that_is_full_when_it_is_written_out(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CannotWrite, match="No space left"):
        written(tmp_path / "a.pts")
    assert list(tmp_path.iterdir()) == []


def ended(folder: Path, how: object, kind: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(folder / "a.pts"), str(how), kind],
        capture_output=True, text=True, check=False, timeout=30,
    )  # fmt: skip
    assert done.stdout == "writing\n", done.stderr
    return done.returncode


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
@pytest.mark.parametrize("which", ["nameless", "named"])
def test_a_signal_leaves_nothing(which: str, number: signal.Signals, tmp_path: Path) -> None:
    assert ended(tmp_path, int(number), which) == -number
    assert list(tmp_path.iterdir()) == []


def test_being_killed_leaves_nothing(tmp_path: Path) -> None:
    assert ended(tmp_path, int(signal.SIGKILL), "nameless") == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


def test_where_it_cannot_be(kind: str, tmp_path: Path) -> None:
    for path, why in ((tmp_path / "none" / "a.pts", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(CannotWrite, match=why):
            written(path)


def test_devices_are_written_to() -> None:
    with whole_file(Path("/dev/null"), replace=False) as out:
        out.write(DATA)
    with pytest.raises(CannotWrite, match="No space left"):
        written(Path("/dev/full"))
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


@pytest.mark.parametrize("kind", ["named"], indirect=True)
def test_a_filesystem_without_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """vfat has neither files without names nor links."""

    def refuse(*paths: object, **options: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "a.pts"
    with whole_file(path, replace=False) as out:
        out.write(DATA)
    assert path.read_bytes() == DATA
    with pytest.raises(UsageError, match="exists already"), whole_file(path, replace=False):
        pytest.fail("it was written")
    assert list(tmp_path.iterdir()) == [path]


def test_a_terminal_gets_no_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal: Callable[[int], bool] = lambda fd: True  # noqa: E731
    monkeypatch.setattr(os, "isatty", terminal)
    with pytest.raises(UsageError, match="not written to a terminal"), atomic.standard_output():
        pytest.fail("it was written")


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "free some space there"),
        (errno.ENOENT, "make its directory first"),
        (errno.EROFS, "give a FILE elsewhere"),
    ],
)
def test_what_cannot_be_written_has_a_remedy(
    number: int, words: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(fd: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(CannotWrite) as caught:
        written(tmp_path / "a.pts")
    assert caught.value.remedy is not None
    assert words in caught.value.remedy
