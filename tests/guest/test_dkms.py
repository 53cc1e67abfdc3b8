# SPDX-License-Identifier: GPL-2.0-or-later
"""A guest like somebody's own machine (scripts/vm/workstation.py): `make install` through DKMS.

The tests are one story and run in this order: compilers are slow on an emulated CPU.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import command
import pytest
from puppet import Puppet

CHECKOUT = Path("/home/ptscope")
RELEASE = os.uname().release
NEXT = f"{RELEASE}-next"
"""A kernel that will be installed later."""
MODULES = Path("/lib/modules")
INSTALLED = MODULES / RELEASE / "updates/dkms/ptscope.ko"
STATS = Path("/sys/kernel/debug/ptscope/stats")
BOOT = Path("/etc/modules-load.d/ptscope.conf")
MINUTES = 15 * 60.0

# Of these directories the kernel or the tests keep what is in them.
VOLATILE = ("/proc", "/sys", "/dev", "/run", "/tmp", "/results")
# Where an installation may write: files are compared by content, elsewhere by size and time.
BY_CONTENT = ("/etc/", "/var/", "/usr/src/ptscope", "/usr/lib/modules/", "/home/", "/root/")
# Thousands of files that are only looked at in the beginning and in the end.
HEADERS = ("/usr/src/linux-headers-", "/usr/lib/linux-kbuild-")

Listing = dict[str, tuple[object, ...]]


def listing(*, headers: bool = False) -> Listing:
    """Every file, directory and link of the root file system, and what it is."""
    without = () if headers else HEADERS
    found: Listing = {}
    for folder, folders, names in os.walk("/"):
        within = folder.rstrip("/")
        folders[:] = [
            name
            for name in folders
            if f"{within}/{name}" not in VOLATILE and not f"{within}/{name}".startswith(without)
        ]
        for name in folders + names:
            path = f"{within}/{name}"
            facts = os.lstat(path)
            what: tuple[object, ...] = (oct(facts.st_mode), facts.st_uid, facts.st_gid)
            if stat.S_ISLNK(facts.st_mode):
                what += (str(Path(path).readlink()),)
            elif stat.S_ISREG(facts.st_mode):
                content = path.startswith(BY_CONTENT)
                data = Path(path).read_bytes() if content else b""
                what += (
                    (facts.st_size, hashlib.md5(data).hexdigest())
                    if content
                    else (facts.st_size, facts.st_mtime_ns)
                )
            found[path] = what
    return found


def difference(before: Listing, after: Listing) -> list[str]:
    """What came, went and changed."""
    return [
        *(f"new: {path}" for path in sorted(after.keys() - before.keys())),
        *(f"gone: {path}" for path in sorted(before.keys() - after.keys())),
        *(
            f"changed: {path}: {before[path]} -> {after[path]}"
            for path in sorted(before.keys() & after.keys())
            if before[path] != after[path]
        ),
    ]


@pytest.fixture(scope="module")
def whole_before() -> Listing:
    """The machine before any installation, with its own modules indexed and a second kernel."""
    other = MODULES / NEXT
    other.mkdir()
    for name in ("build", "source"):
        (other / name).symlink_to((MODULES / RELEASE / name).readlink())
    for name in ("modules.builtin", "modules.order"):
        (other / name).write_text("")
    for release in (RELEASE, NEXT):
        # What the package of a kernel does.
        subprocess.run(["depmod", release], check=True)
    found = listing(headers=True)
    assert f"/usr/lib/modules/{RELEASE}" in found
    assert len(found) > 5000
    return found


@pytest.fixture(scope="module")
def before(whole_before: Listing) -> Listing:
    """The same without headers."""
    return {path: what for path, what in whole_before.items() if not path.startswith(HEADERS)}


def make(
    target: str, *words: str, checkout: Path = CHECKOUT, user: int | None = None
) -> subprocess.CompletedProcess[str]:
    """Run make as a person does; what it says goes to the test's output too."""
    start = time.monotonic()
    done = subprocess.run(
        ["make", "-C", str(checkout), target, *words],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, user=user,
        timeout=MINUTES,
    )  # fmt: skip
    print(f"{done.stdout}make {target}: {done.returncode}, {time.monotonic() - start:.0f} s")
    return done


def made(target: str, *words: str, checkout: Path = CHECKOUT) -> str:
    """Run make, which must succeed; returns what it said."""
    done = make(target, *words, checkout=checkout)
    assert done.returncode == 0, done.stdout
    return done.stdout


def refused(
    target: str, *words: str, checkout: Path = CHECKOUT, user: int | None = None
) -> str:
    """Run make, which must fail and say a remedy; returns what it said, blanks as one."""
    done = make(target, *words, checkout=checkout, user=user)
    assert done.returncode != 0
    assert "remedy: " in done.stdout
    assert "Traceback" not in done.stdout
    return " ".join(done.stdout.split())


def status() -> dict[tuple[str, str], str]:
    """`dkms status`: the state of each version for each kernel."""
    done = subprocess.run(["dkms", "status"], capture_output=True, text=True, check=True)
    found = {}
    for line in done.stdout.splitlines():
        match = re.fullmatch(r"ptscope/([^,]+), ([^,]+), x86_64: (.*)", line)
        assert match, line
        found[match[1], match[2]] = match[3]
    return found


def loaded() -> bool:
    """Whether the module is in the kernel."""
    listed = subprocess.run(["lsmod"], capture_output=True, text=True, check=True).stdout
    return any(line.split()[0] == "ptscope" for line in listed.splitlines())


def identity() -> bytes:
    """Tells the loaded module from every other build."""
    return Path("/sys/module/ptscope/notes/.note.gnu.build-id").read_bytes()


def version() -> str:
    """Of the checkout."""
    text = (CHECKOUT / "pyharness/src/ptscope/__init__.py").read_text()
    match = re.search(r'__version__ = "(.*)"', text)
    assert match
    return match[1]


def small_checkout(name: str, number: str = "", *, kbuild: str = "") -> Path:
    """A copy of the checkout, of this version, with a module that is small, or does not build."""
    copy = Path("/tmp") / name
    shutil.copytree(CHECKOUT, copy, symlinks=True)
    for path in (copy / "kmod").glob("*.c"):
        path.unlink()
    (copy / "kmod/Kbuild").write_text(f"obj-m := ptscope.o\n{kbuild}\n")
    (copy / "kmod/ptscope.c").write_text('#include <linux/module.h>\nMODULE_LICENSE("GPL");\n')
    init = copy / "pyharness/src/ptscope/__init__.py"
    init.write_text(init.read_text().replace(version(), number or version()))
    return copy


@contextmanager
def away(*paths: Path) -> Iterator[None]:
    """Something that is not there for a while."""
    for path in paths:
        path.rename(f"{path}.away")
    try:
        yield
    finally:
        for path in paths:
            Path(f"{path}.away").rename(path)


def test_nobody_is_told_to_be_root(before: Listing) -> None:
    for target in ("install", "uninstall"):
        assert f"sudo make {target}" in refused(target, user=65534)
    assert difference(before, listing()) == []


def test_what_is_missing_is_named_with_its_package(before: Listing) -> None:
    headers, dkms = MODULES / RELEASE / "build", Path("/usr/sbin/dkms")
    with away(headers):
        said = refused("install")
        assert f"headers of the running kernel {RELEASE} are not installed" in said
        assert f"apt-get install linux-headers-{RELEASE}" in said
    with away(dkms):
        assert "apt-get install dkms" in refused("install")
    with away(headers, dkms):
        assert f"apt-get install dkms linux-headers-{RELEASE}" in refused("install")
    assert difference(before, listing()) == []


def test_build_that_fails_leaves_its_log_and_nothing_else(before: Listing) -> None:
    broken = small_checkout("broken", kbuild="$(error planted by the test)")
    said = refused("install", checkout=broken)
    assert "the module did not build" in said
    assert "*** planted by the test" in said
    log = broken / "build/dkms-make.log"
    assert f"the whole log: {log}" in said
    assert "planted by the test" in log.read_text()
    assert difference(before, listing()) == []
    assert not loaded()


def test_nothing_to_remove_is_no_error(before: Listing) -> None:
    assert "nothing of ptscope is installed" in made("uninstall")
    assert difference(before, listing()) == []


def test_install_builds_installs_and_loads() -> None:
    made("install")
    assert status() == {(version(), RELEASE): "installed"}
    assert loaded()
    assert identity() in INSTALLED.read_bytes()
    found = subprocess.run(
        ["modinfo", "-F", "filename", "ptscope"], capture_output=True, text=True, check=True
    )
    assert Path(found.stdout.strip()) == INSTALLED
    assert not BOOT.exists()


def test_the_installed_module_works(puppet: Puppet) -> None:
    doctor = command.run("doctor")
    assert doctor.status == 0, doctor.out + doctor.err
    address = puppet.map(4096)
    puppet.touch("write", address)
    status_, walk = command.walk_status(puppet.pid, address, "--compare")
    assert status_ == 0, walk
    assert walk["source"] == "module"
    assert walk["mapping"]["state"] == "leaf"


def test_second_install_changes_nothing() -> None:
    earlier = listing()
    inode = INSTALLED.stat().st_ino
    stats = STATS.read_text()
    assert "dumps 0\n" not in stats
    # Not even a module that is in use is in its way.
    with STATS.open():
        made("install")
    assert difference(earlier, listing()) == []
    assert INSTALLED.stat().st_ino == inode
    # The counters of a module that is loaded anew are 0.
    assert STATS.read_text() == stats


def test_loading_at_boot_is_a_choice() -> None:
    earlier = listing()
    assert str(BOOT) in made("install", "BOOT=yes")
    assert BOOT.read_text() == "ptscope\n"
    made("install")
    assert BOOT.exists()
    made("install", "BOOT=no")
    assert difference(earlier, listing()) == []


def test_module_in_use_is_not_removed_and_its_user_named() -> None:
    earlier = listing()
    holder = subprocess.Popen(
        ["python3", "-c", f"f = open('{STATS}'); print(flush=True); input()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"\n"
    other = small_checkout("other", "9.8.7")
    for target, checkout in (("uninstall", CHECKOUT), ("install", other)):
        said = refused(target, checkout=checkout)
        assert f"the module is in use by process {holder.pid} (python3)" in said
    holder.communicate(b"\n", timeout=60)
    assert loaded()
    assert difference(earlier, listing()) == []


def test_another_version_takes_its_place() -> None:
    old, inode = identity(), INSTALLED.stat().st_ino
    newer = small_checkout("newer", "0.99.0")
    made("install", checkout=newer)
    assert status() == {("0.99.0", RELEASE): "installed"}
    assert [path.name for path in Path("/usr/src").glob("ptscope*")] == ["ptscope-0.99.0"]
    assert INSTALLED.stat().st_ino != inode
    assert identity() != old
    assert identity() in INSTALLED.read_bytes()


def test_a_new_kernel_gets_the_module() -> None:
    ((number, _),) = status()
    # What the package of a kernel runs once it is unpacked.
    subprocess.run(["/etc/kernel/postinst.d/dkms", NEXT], check=True, timeout=MINUTES)
    assert status() == {(number, kernel): "installed" for kernel in (RELEASE, NEXT)}
    assert (MODULES / NEXT / "updates/dkms/ptscope.ko").exists()


def test_failed_upgrade_leaves_what_is_installed_at_work() -> None:
    earlier, running = listing(), identity()
    for number in ("0.99.0", "0.99.1"):
        broken = small_checkout(f"broken-{number}", number, kbuild="$(error planted)")
        assert "the module did not build" in refused("install", checkout=broken)
        assert difference(earlier, listing()) == []
        assert identity() == running


def test_kernel_that_takes_signed_modules_only_is_explained() -> None:
    subprocess.run(["rmmod", "ptscope"], check=True)
    # As with Secure Boot; there is no way back.
    Path("/sys/module/module/parameters/sig_enforce").write_text("Y")
    said = refused("install", checkout=Path("/tmp/newer"))
    assert "built and installed, but the kernel refuses to load it" in said
    assert "mokutil --import /var/lib/dkms/mok.pub" in said
    assert not loaded()


def test_uninstall_leaves_nothing(whole_before: Listing) -> None:
    BOOT.parent.mkdir(exist_ok=True)
    BOOT.write_text("ptscope\n")
    made("uninstall")
    assert difference(whole_before, listing(headers=True)) == []
    assert status() == {}
    assert not loaded()


def test_lockdown_is_named_before_anything_is_done(before: Listing) -> None:
    Path("/sys/kernel/security/lockdown").write_text("integrity")
    said = refused("install")
    assert "kernel lockdown (integrity)" in said
    assert "boot without lockdown" in said
    assert difference(before, listing()) == []
