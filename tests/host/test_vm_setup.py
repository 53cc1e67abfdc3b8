# SPDX-License-Identifier: GPL-2.0-or-later
"""Bringing things onto the machine: sources, versions, the cache, the choice of accelerator."""

from __future__ import annotations

import multiprocessing
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import vmpath
from vm import accel, apt, arches, fetch, kernels, packages, prepare, scratch, store, variants
from vm.errors import SetupError, UsageError, VmError
from vm.scratch import scratch_dir

TARGETS = """\
http://mirror.example/debian/ Debian bookworm
http://mirror.example/debian/ Debian bookworm-updates
http://security.example/debian-security/ Debian bookworm-security
http://elsewhere.example/debian/ Debian bookworm-backports
http://other.example/nodejs/ . nodistro
http://second.example/debian/ Debian bookworm
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ptscope"


def test_sources_come_from_the_machines_own_mirrors() -> None:
    found = apt.archives(TARGETS)
    assert found == {
        "main": "http://mirror.example/debian/",
        "security": "http://security.example/debian-security/",
    }
    lines = apt.sources("bookworm", found).splitlines()
    assert [line.split()[-3:] for line in lines] == [
        ["http://mirror.example/debian/", "bookworm", "main"],
        ["http://mirror.example/debian/", "bookworm-updates", "main"],
        ["http://security.example/debian-security/", "bookworm-security", "main"],
    ]
    assert len(apt.sources("bookworm", {"main": "x"}).splitlines()) == 2


def test_no_mirror_is_named_in_the_harness() -> None:
    for path in (vmpath.SCRIPTS / "vm").rglob("*.py"):
        assert "://" not in path.read_text(), path


def test_packages_are_parsed() -> None:
    text = (
        "Package: linux-image-amd64\nVersion: 6.1.192-3\nDepends: linux-image-6.1.0-57-amd64"
        " (= 6.1.192-3), a | b, c:any (>= 1)\nDescription: x\n more\n\nPackage: old\nVersion: 1\n"
    )
    package = apt.parse_package(text)
    assert package == apt.Package(
        "linux-image-amd64", "6.1.192-3", ("linux-image-6.1.0-57-amd64", "a", "c")
    )
    assert fetch._release(package, "image") == "6.1.0-57-amd64"
    with pytest.raises(SetupError, match="no linux-headers package"):
        fetch._release(package, "headers")


def test_headers_are_made_relocatable(tmp_path: Path) -> None:
    source = tmp_path / "usr/src/linux-headers-1-amd64"
    source.mkdir(parents=True)
    (source / "Makefile").write_text("include /usr/src/linux-headers-1-common/Makefile\n")
    for _ in range(2):  # a second time changes nothing
        fetch.relocate_headers(tmp_path, Path("/cache/v"))
        assert (source / "Makefile").read_text() == (
            "include /cache/v/usr/src/linux-headers-1-common/Makefile\n"
        )


def pretend_network(monkeypatch: pytest.MonkeyPatch, error: str | None) -> list[str]:
    """Replace apt: versions come from a list, or everything fails with ``error``."""
    asked: list[str] = []

    def fake_update(self: apt.Apt) -> None:
        asked.append("update")
        if error:
            raise SetupError(error)

    def fake_extract(
        apt_: apt.Apt, packages: list[apt.Package], partial: Path, final: Path
    ) -> None:
        asked.append("download")
        (partial / "boot").mkdir()
        (partial / "boot" / "vmlinuz-6.1.0-1-amd64").touch()

    monkeypatch.setattr(apt.Apt, "update", fake_update)
    monkeypatch.setattr(fetch, "_resolve", lambda kernel, _: ("6.1.1-1", "6.1.0-1-amd64", None, []))
    monkeypatch.setattr(fetch, "_extract", fake_extract)
    return asked


def test_a_kernel_is_downloaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = pretend_network(monkeypatch, None)
    kernel = kernels.kernel(kernels.DEFAULT)
    first = fetch.fetch(kernel)
    assert fetch.fetch(kernel) == first
    assert asked.count("download") == 1
    assert first.image.name == "vmlinuz-6.1.0-1-amd64"


def test_without_network_the_cache_serves_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel = kernels.kernel(kernels.DEFAULT)
    pretend_network(monkeypatch, "no route to the mirror")
    with pytest.raises(SetupError, match="no route"):
        fetch.fetch(kernel)
    pretend_network(monkeypatch, None)
    first = fetch.fetch(kernel)
    pretend_network(monkeypatch, "no route to the mirror")
    assert fetch.fetch(kernel) == first
    said = capsys.readouterr().err
    assert "no route" in said
    assert "using the one in the cache: 6.1.0-1-amd64" in said


def test_only_two_versions_are_kept(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_network(monkeypatch, None)
    kernel = kernels.kernel(kernels.DEFAULT)
    for number in range(4):
        monkeypatch.setattr(
            fetch, "_resolve", lambda k, a, n=number: (f"6.1.{n}-1", "6.1.0-1-amd64", None, [])
        )
        fetch.fetch(kernel)
        time.sleep(0.01)
    kept = sorted(p.name for p in (own_cache / "kernels" / kernel.name).iterdir() if p.is_dir())
    assert kept == ["6.1.2-1", "6.1.3-1"]


def test_what_was_interrupted_leaves_nothing_and_is_made_again(own_cache: Path) -> None:
    final = own_cache / "things" / "thing"

    def interrupted(partial: Path) -> None:
        (partial / "half").write_text("x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.make_dir(final, interrupted, "thing")
    assert list(final.parent.iterdir()) == []
    # A run that was killed could not even clean up.
    (final.parent / ".partial-thing-abc").mkdir()
    store.make_dir(final, lambda partial: (partial / "whole").touch(), "thing")
    assert [p.name for p in final.parent.iterdir()] == ["thing"]
    assert (final / "whole").exists()


def _aged(path: Path, days: float) -> Path:
    path.touch()
    when = time.time() - days * 86400
    os.utime(path, (when, when))
    return path


def test_what_another_checkout_may_be_reading_is_kept(tmp_path: Path) -> None:
    old = [_aged(tmp_path / f"thing-{days}", days) for days in (2, 3, 4, 5)]
    other = _aged(tmp_path / "other-9", 9)
    mine = _aged(tmp_path / "thing-mine", 30)
    store.forget_others(mine, "thing-*")
    # The newest three: mine, for it is used now, and two of the others.
    assert sorted(tmp_path.iterdir()) == sorted([mine, *old[:2], other])
    young = [_aged(tmp_path / f"thing-young-{hours}", hours / 24) for hours in (1, 2, 20, 23)]
    store.forget_others(mine, "thing-*")
    assert sorted(tmp_path.iterdir()) == sorted([mine, *young, other])


def test_what_a_killed_run_left_goes_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    foreign = tmp_path / "ptscope-vm-foreign"
    foreign.mkdir()
    with scratch_dir("vm") as living:
        (tmp_path / "ptscope-vm-dead").mkdir()
        (tmp_path / "ptscope-vm-dead" / scratch.LOCK).touch()
        with scratch_dir("vm") as mine:
            assert set(tmp_path.iterdir()) == {foreign, living, mine}
    assert list(tmp_path.iterdir()) == [foreign]


HANGING = """
import signal, sys, time
from vm import commands, main
from vm.scratch import scratch_dir

# Whatever started the tests (nohup, a shell in the background) ignores.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)

def run(options):
    with scratch_dir("vm") as folder:
        print(folder, flush=True)
        time.sleep(60)

commands.kdir = run
sys.argv[1:] = ["kdir"]
sys.exit(main.main())
"""


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_ended_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HANGING],
        env={**os.environ, "PYTHONPATH": str(vmpath.SCRIPTS), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as run:
        assert run.stdout is not None
        folder = Path(run.stdout.readline().strip())
        assert folder.parent == tmp_path
        run.send_signal(number)
        assert run.wait(20) == 128 + number
    assert list(tmp_path.glob("ptscope-*")) == []


def _make_slowly(cache: str, counter: str) -> None:
    os.environ["XDG_CACHE_HOME"] = cache

    def fill(partial: Path) -> None:
        with Path(counter).open("a") as log:
            log.write("made\n")
        time.sleep(0.3)
        partial.write_text("whole")

    path = store.make_file(Path(cache) / "ptscope" / "images" / "x", fill, "x")
    assert path.read_text() == "whole"


def test_two_runs_at_once_make_a_thing_once(tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    runs = [
        multiprocessing.get_context("fork").Process(
            target=_make_slowly, args=(str(tmp_path / "cache"), str(counter))
        )
        for _ in range(3)
    ]
    for run in runs:
        run.start()
    for run in runs:
        run.join(20)
    assert [run.exitcode for run in runs] == [0, 0, 0]
    assert counter.read_text() == "made\n"


def test_install_says_what_to_do_without_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "installed", lambda names: set(names) - {"mmdebstrap", "sparse"})
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SetupError, match="mmdebstrap sparse") as caught:
        packages.install()
    assert caught.value.remedy == "run as root: apt-get install mmdebstrap sparse"


def test_install_with_nothing_missing_runs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "installed", set)
    monkeypatch.setattr(packages, "run", lambda *a, **k: pytest.fail("something was run"))
    packages.install()


FIVE, FOUR = variants.VARIANTS["5-level"], variants.VARIANTS["4-level"]
AMD64 = arches.ARCHES["amd64"]


@pytest.mark.parametrize(
    ("variant", "machine", "flags", "device", "reason"),
    [
        (FOUR, "x86_64", {"vmx"}, True, None),
        (FOUR, "x86_64", {"svm"}, True, None),
        (FIVE, "x86_64", {"vmx", "la57"}, True, None),
        (FIVE, "x86_64", {"vmx"}, True, "la57"),
        (FOUR, "x86_64", {"fpu"}, True, "neither vmx nor svm"),
        (FOUR, "x86_64", {"vmx"}, False, "/dev/kvm"),
        (FOUR, "aarch64", {"vmx"}, True, "amd64 on aarch64"),
    ],
)
def test_kvm_needs_more_than_its_device(
    variant: variants.Variant, machine: str, flags: set[str], device: bool, reason: str | None
) -> None:
    said = accel.decide(AMD64, variant, machine, frozenset(flags), device)
    assert (said is None) if reason is None else (said is not None and reason in said)


def test_accelerator_can_be_forced() -> None:
    assert accel.choose(AMD64, FIVE, Path("none"), {"PTSCOPE_ACCEL": "tcg"}).name == "tcg"


def bzimage(path: Path, text: bytes) -> Path:
    """A file with the header of a bzImage whose version text is ``text``."""
    data = bytearray(0x1000)
    data[0x202:0x206] = b"HdrS"
    struct.pack_into("<H", data, 0x20E, 0x300)
    data[0x500 : 0x500 + len(text)] = text
    path.write_bytes(data)
    return path


def test_a_kernel_of_ones_own_is_known_by_its_header(tmp_path: Path) -> None:
    image = bzimage(tmp_path / "bzImage", b"6.9.0-mine (me@here) #1 SMP")
    assert prepare.image_release(image) == "6.9.0-mine"
    (tmp_path / "text").write_text("no kernel")
    with pytest.raises(UsageError, match="not a bzImage"):
        prepare.image_release(tmp_path / "text")
    with pytest.raises(UsageError, match="there is no kernel"):
        prepare.own(tmp_path / "none", None)


def test_a_module_for_another_kernel_is_explained(tmp_path: Path) -> None:
    module = tmp_path / "ptscope.ko"
    module.write_bytes(b"\x7fELF\0license=GPL\0vermagic=6.1.0-57-amd64 SMP preempt mod_unload \0")
    image = bzimage(tmp_path / "bzImage", b"6.9.0-mine (me@here)")
    release = prepare.own_release(image)
    with pytest.raises(UsageError, match=r"built for 6\.1\.0-57-amd64, but .* is 6\.9\.0-mine"):
        prepare.check_module(module, image, release)
    module.write_bytes(b"text")
    with pytest.raises(UsageError, match="not a kernel module"):
        prepare.module_release(module)


def test_tables_refer_to_each_other() -> None:
    for kernel in kernels.KERNELS.values():
        assert kernel.arch in arches.ARCHES
        assert kernel.suite in apt.SUITES
    for variant in variants.VARIANTS.values():
        assert variant.arch in arches.ARCHES
        assert variants.variant(variant.name, variant.arch) is variant
    with pytest.raises(UsageError, match="no variant"):
        variants.variant("5-level", "arm64")
    with pytest.raises(UsageError, match="no kernel"):
        kernels.kernel("nonesuch")


def test_harness_statuses_are_told_from_a_commands() -> None:
    kinds: list[type[VmError]] = [VmError, *VmError.__subclasses__()]
    statuses = [kind.exit_status for kind in kinds]
    assert len(set(statuses)) == len(statuses)
    assert all(200 <= status < 255 for status in statuses)


def test_wrong_usage_of_the_command_line_names_what_there_is() -> None:
    done = subprocess.run(
        [sys.executable, str(vmpath.SCRIPTS / "vm/main.py"), "test", "--only", "nonesuch"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == UsageError.exit_status
    assert "no test row is called nonesuch" in done.stderr
    assert "5-level" in done.stderr
