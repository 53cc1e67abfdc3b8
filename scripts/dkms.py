#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Install ptscope.ko on this machine through DKMS, or remove all of it again.

    make install [BOOT=yes|no]      build, install, load; a new kernel gets the module too
    make uninstall

Nothing that works is given up before what replaces it has been built: a new version is built beside
the old one, and changed sources of the same version are first built in directories of their own.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
# The package need not be installed: what is used of it imports the standard library only.
sys.path.insert(1, str(REPO / "pyharness" / "src"))

from ptscope import __version__ as VERSION  # noqa: E402
from ptscope.host import Host  # noqa: E402
from ptscope.kmodule import NotAModule, unpacked  # noqa: E402
from ptscope.source.availability import DEBIAN_RELEASE, LOCKDOWN_REMEDY  # noqa: E402
from vm import module, paths  # noqa: E402
from vm.errors import BuildError, ModuleRefused, SetupError, VmError  # noqa: E402
from vm.say import say, warn  # noqa: E402

NAME = "ptscope"
LOG = paths.BUILD / "dkms-make.log"
"""Where the log of a failed build is kept: DKMS's own goes with what it was about."""
KEY_IS_NEW = ".dkms-key-is-new"
"""Lies beside the installed sources when DKMS had no signing key before them."""
SHOWN_ERRORS = 8
STATUS = re.compile(
    r"ptscope(?:/|, )(?P<version>[^,:]+)(?:, (?P<release>[^,]+), (?P<arch>[^,:]+))?: (?P<state>.*)"
)
"""A line of `dkms status`; before DKMS 3 a comma stood where the slash is."""
# What modprobe says for EKEYREJECTED, ENOKEY and EPERM: the signature is missing or not trusted.
UNSIGNED = re.compile(r"Key was rejected|Required key not available|Operation not permitted")


@dataclass(frozen=True)
class Status:
    """What DKMS has of one version, for one kernel once it is built."""

    version: str
    release: str | None
    state: str

    @property
    def installed(self) -> bool:
        """Installed as built; DKMS adds a warning when the file has been changed since."""
        return self.state.startswith("installed") and "WARNING" not in self.state


def parse_status(text: str) -> list[Status]:
    """The lines of `dkms status` about this module."""
    found = (STATUS.fullmatch(line.strip()) for line in text.splitlines())
    return [Status(line["version"], line["release"], line["state"]) for line in found if line]


@dataclass(frozen=True)
class System:
    """The machine that is changed; ``root`` is "/" except in tests."""

    root: Path = Path("/")

    @cached_property
    def host(self) -> Host:
        """Its facts."""
        return Host(self.root)

    @property
    def tree(self) -> Path:
        """What DKMS keeps."""
        return self.root / "var/lib/dkms"

    @property
    def at_boot(self) -> Path:
        """Has systemd load the module at each boot (modules-load.d(5))."""
        return self.root / "etc/modules-load.d/ptscope.conf"

    @property
    def installed(self) -> list[Path]:
        """Module files that DKMS has installed for the running kernel: one."""
        folder = self.root / "lib/modules" / self.host.release / "updates/dkms"
        return sorted(folder.glob(f"{NAME}.ko*"))

    @property
    def build(self) -> Path:
        """The headers of the running kernel."""
        return self.root / "lib/modules" / self.host.release / "build"

    def sources(self, version: str) -> Path:
        """Where DKMS wants a version's sources."""
        return self.root / "usr/src" / f"{NAME}-{version}"

    def versions(self) -> list[str]:
        """Versions whose sources are there, ours only."""
        return [
            conf.parent.name.removeprefix(f"{NAME}-")
            for conf in sorted(self.root.glob(f"usr/src/{NAME}-*/dkms.conf"))
            if f'PACKAGE_NAME="{NAME}"' in conf.read_text(errors="replace")
        ]

    def modules(self) -> list[Path]:
        """Module files that DKMS has installed, of all kernels."""
        return sorted(self.root.glob(f"lib/modules/*/updates/dkms/{NAME}.ko*"))

    def signing_key(self) -> tuple[Path, Path]:
        """The key that DKMS makes when it first builds anything, and its certificate."""
        return self.tree / "mok.key", self.tree / "mok.pub"


def program(name: str) -> str | None:
    """The path of a program; those of the administrator are not in everybody's PATH."""
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def command(words: Sequence[str | Path]) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; what it says is parsed, so it says it in English."""
    found = program(str(words[0]))
    if found is None:
        raise SetupError(f"{words[0]} is not installed", f"apt-get install {words[0]}")
    return subprocess.run(
        [found, *(str(word) for word in words[1:])],
        env={**os.environ, "LC_ALL": "C.UTF-8"},
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )


def indented(text: str, lines: int = 20) -> str:
    """The end of what a program said, for an error message."""
    return "\n".join(f"    {line}" for line in text.rstrip().splitlines()[-lines:])


def dkms(*words: str | Path) -> str:
    """Run dkms; raises `BuildError` with what it said when it fails."""
    done = command(["dkms", *words])
    if done.returncode:
        raise BuildError(f"dkms {words[0]} exited with {done.returncode}:\n{indented(done.stdout)}")
    return done.stdout


def status() -> list[Status]:
    """All that DKMS has of the module; nothing when there is no DKMS."""
    return parse_status(command(["dkms", "status", "-m", NAME]).stdout) if program("dkms") else []


def files() -> dict[str, bytes]:
    """What is installed as sources, by name: the module's, and DKMS's description of it."""
    found = {str(path.relative_to(paths.KMOD)): path.read_bytes() for path in module.sources()}
    conf = (paths.KMOD / "dkms.conf.in").read_text(encoding="utf-8")
    return {**found, "dkms.conf": conf.replace("@VERSION@", VERSION).encode()}


def write_sources(folder: Path) -> None:
    """Put the sources into a new directory."""
    for name, content in files().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o644)


def same_sources(folder: Path) -> bool:
    """Whether a directory has just these sources, whatever else of ours lies there."""
    present = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != KEY_IS_NEW
    }
    return present == files()


def require_root(what: str) -> None:
    """Raise `SetupError` unless this is root."""
    if os.geteuid() != 0:
        raise SetupError(f"make {what} needs root", f"run: sudo make {what}")


def check(system: System) -> None:
    """Raise `SetupError` for what would let the installation fail, all of it at once."""
    host = system.host
    if host.locked_down:
        raise SetupError(
            f"kernel lockdown ({host.lockdown}) refuses modules that no key it trusts has signed,"
            " and the files of debugfs in any case; nothing was installed",
            LOCKDOWN_REMEDY,
        )
    disabled = system.root / "proc/sys/kernel/modules_disabled"
    if disabled.exists() and disabled.read_text().strip() == "1":
        raise SetupError(
            "this kernel takes no more modules (kernel.modules_disabled is 1);"
            " nothing was installed",
            "boot without that setting: grep -r modules_disabled /etc/sysctl.d /etc/sysctl.conf",
        )
    causes, packages, remedies = [], [], []
    if program("dkms") is None:
        causes.append("DKMS is not installed")
        packages.append("dkms")
    if not (system.build / "include").exists():
        causes.append(f"the headers of the running kernel {host.release} are not installed")
        if DEBIAN_RELEASE.fullmatch(host.release):
            packages.append(f"linux-headers-{host.release}")
            remedies.append(
                f"if there is no linux-headers-{host.release} any more, a newer kernel has taken"
                " its place: upgrade and boot that"
            )
        else:
            remedies.append(
                f"install the headers of {host.release} (usually a package linux-headers-... or"
                f" kernel-devel): {system.build} must lead to them"
            )
    if causes:
        install = [f"apt-get install {' '.join(packages)}"] if packages else []
        raise SetupError(
            f"{'; '.join(causes)}; nothing was installed", "; ".join([*install, *remedies])
        )


def users(system: System) -> Iterator[str]:
    """Processes that have files of the module open."""
    folder = system.host.debugfs
    if folder is None:
        return
    for process in system.root.glob("proc/[0-9]*"):
        try:
            if any(folder / NAME in link.readlink().parents for link in (process / "fd").iterdir()):
                yield f"{process.name} ({(process / 'comm').read_text().strip()})"
        except OSError:  # ended meanwhile
            continue


def in_use(system: System) -> VmError:
    """The error for a module that cannot be unloaded now."""
    who = list(users(system))
    return SetupError(
        "the module is in use"
        + (f" by process {', '.join(who)}" if who else " by the kernel or another PID namespace"),
        "end what uses it, then try again; nothing was changed",
    )


def refuse_in_use(system: System) -> None:
    """Raise `SetupError` when the module is loaded and in use."""
    try:
        count = int((system.root / "sys/module/ptscope/refcnt").read_text())
    except FileNotFoundError:
        return
    if count:
        raise in_use(system)


def unload(system: System) -> None:
    """Raises `SetupError` when somebody uses it."""
    if not system.host.module_loaded:
        return
    done = command(["rmmod", NAME])
    if system.host.module_loaded:
        refuse_in_use(system)
        raise SetupError(f"rmmod {NAME}:\n{indented(done.stdout)}")


def load(system: System) -> None:
    """Raises `ModuleRefused` when the kernel does not take it."""
    done = command(["modprobe", NAME])
    if done.returncode == 0 and system.host.module_loaded:
        return
    key, certificate = system.signing_key()
    remedy = f"dmesg | tail; when the reason is gone: modprobe {NAME}"
    if UNSIGNED.search(done.stdout):
        remedy = (
            f"have the firmware trust DKMS's key: mokutil --import {certificate}, reboot, confirm"
            f" there, modprobe {NAME}; or turn Secure Boot off"
        )
        if not key.exists():
            remedy = f"apt-get install openssl, make uninstall install; then {remedy}"
    raise ModuleRefused(
        "the module was built and installed, but the kernel refuses to load it:\n"
        + indented(done.stdout),
        remedy,
    )


def loaded_is_installed(system: System) -> bool:
    """Whether the module in the kernel is the file that DKMS installed for it.

    The linker gives each build an identity, which the kernel shows and strip leaves.
    """
    note = system.root / "sys/module/ptscope/notes/.note.gnu.build-id"
    try:
        identity = note.read_bytes()
        return any(identity in unpacked(path) for path in system.installed)
    except (OSError, NotAModule):
        return False


def keep_log(tree: Path) -> None:
    """Copy the log of a build that failed from a DKMS tree, and raise `BuildError` about it."""
    logs = sorted(tree.glob(f"{NAME}/**/make.log"), key=lambda path: path.stat().st_mtime)
    if not logs:
        return
    LOG.parent.mkdir(exist_ok=True)
    shutil.copyfile(logs[-1], LOG)
    text = LOG.read_text(errors="replace")
    errors = [line for line in text.splitlines() if re.search(r"error|Error \d|\*\*\*", line)]
    raise BuildError(
        "the module did not build:\n" + indented("\n".join(errors[:SHOWN_ERRORS]) or text),
        f"the whole log: {LOG}; what was installed before is as it was",
    ) from None


def build(system: System, *trees: str | Path) -> None:
    """Have DKMS build this version for the running kernel; raises `BuildError` with its log."""
    try:
        dkms("build", "-m", NAME, "-v", VERSION, "-k", system.host.release, *trees)
    except BuildError:
        keep_log(Path(trees[1]) if trees else system.tree)
        raise


def trial() -> None:
    """Build as DKMS will, in directories of its own."""
    with tempfile.TemporaryDirectory(prefix="ptscope-dkms-") as scratch:
        tree, sources = Path(scratch) / "tree", Path(scratch) / "sources"
        tree.mkdir()
        write_sources(sources / f"{NAME}-{VERSION}")
        build(System(), "--dkmstree", tree, "--sourcetree", sources)


def drop(system: System, version: str) -> None:
    """Remove one version from DKMS, from all kernels, and its sources."""
    sources = system.sources(version)
    if any(each.version == version for each in status()):
        if not (sources / "dkms.conf").exists():
            # Somebody removed the sources; DKMS removes nothing without their dkms.conf.
            sources.mkdir(parents=True, exist_ok=True)
            (sources / "dkms.conf").write_bytes(files()["dkms.conf"])
        command(["dkms", "remove", "-m", NAME, "-v", version, "--all"])
    shutil.rmtree(sources, ignore_errors=True)


def sweep(system: System) -> None:
    """Remove what DKMS has left of the module, as it does when its own state is damaged."""
    shutil.rmtree(system.tree / NAME, ignore_errors=True)
    for path in system.modules():
        release = path.parents[2].name
        path.unlink()
        for folder in (path.parent, path.parent.parent):
            if not any(folder.iterdir()):
                folder.rmdir()
        command(["depmod", release])


def forget_key(system: System) -> None:
    """Remove DKMS's signing key if it was made for this module and nothing else can need it."""
    key, certificate = system.signing_key()
    if not key.exists():
        return
    others = [path.name for path in system.tree.iterdir() if path.is_dir() and path.name != NAME]
    reason = f"{', '.join(others)} may need it" if others else ""
    if not reason and (system.root / "sys/firmware/efi").exists():
        asked = command(["mokutil", "--test-key", certificate]) if program("mokutil") else None
        if asked is None or "is not enrolled" not in asked.stdout:
            reason = "the firmware may trust it"
    if reason:
        say(f"left DKMS's signing key {key}: {reason}")
        return
    key.unlink()
    certificate.unlink(missing_ok=True)


def replace_installed(system: System) -> None:
    """Bring this version in place of whatever is installed."""
    refuse_in_use(system)
    before = status()
    versions = {*system.versions(), *(each.version for each in before)}
    releases = {each.release for each in before if each.installed and each.release}
    had_key = system.signing_key()[0].exists()
    new_key = not had_key or any((system.sources(each) / KEY_IS_NEW).exists() for each in versions)
    if VERSION in versions:
        say(f"DKMS has {VERSION} with other sources, or not whole: building this one apart first")
        trial()
        unload(system)
        drop(system, VERSION)
    sources = system.sources(VERSION)
    try:
        say(f"building {NAME} {VERSION} for {system.host.release}")
        write_sources(sources)
        if new_key:
            (sources / KEY_IS_NEW).touch()
        dkms("add", "-m", NAME, "-v", VERSION)
        build(system)
        unload(system)
    except BaseException:
        drop(system, VERSION)
        if not had_key:
            forget_key(system)
        raise
    for version in sorted(versions - {VERSION}):
        say(f"removing {NAME} {version}")
        drop(system, version)
    # Beside a file of another version DKMS compares the two and may keep that one.
    dkms("install", "-m", NAME, "-v", VERSION, "-k", system.host.release, "--force")
    for release in sorted(releases - {system.host.release}):
        try:
            dkms("install", "-m", NAME, "-v", VERSION, "-k", release, "--force")
        except BuildError as error:
            warn(f"not installed for {release}, which had it: {error.cause}")


def not_at_boot(system: System) -> None:
    """Have it no longer loaded at boot; the directory goes with the last that was in it."""
    if system.at_boot.exists():
        system.at_boot.unlink()
        if not any(system.at_boot.parent.iterdir()):
            system.at_boot.parent.rmdir()


def install(boot: str | None) -> None:
    """Build, install, load."""
    system = System()
    require_root("install")
    check(system)
    release = system.host.release
    here = [each for each in status() if each.release == release and each.installed]
    alone = system.versions() == [VERSION]
    if (
        alone
        and [each.version for each in here] == [VERSION]
        and same_sources(system.sources(VERSION))
    ):
        say(f"{NAME} {VERSION} is installed for {release}")
    else:
        replace_installed(system)
        say(f"{NAME} {VERSION} is installed for {release}: {system.installed[0]}")
    if not loaded_is_installed(system):
        unload(system)
        load(system)
    say("the module is loaded")
    if boot == "yes":
        system.at_boot.parent.mkdir(exist_ok=True)
        system.at_boot.write_text(f"{NAME}\n")
    elif boot == "no":
        not_at_boot(system)
    if system.at_boot.exists():
        say(f"it is loaded at each boot: {system.at_boot}")
    else:
        say(f"after a boot: modprobe {NAME} (make install BOOT=yes has it loaded at each boot)")


def uninstall() -> None:
    """Unload, and leave nothing."""
    system = System()
    require_root("uninstall")
    refuse_in_use(system)
    unload(system)
    versions = {*system.versions(), *(each.version for each in status())}
    new_key = any((system.sources(each) / KEY_IS_NEW).exists() for each in versions)
    for version in sorted(versions):
        say(f"removing {NAME} {version}")
        drop(system, version)
    sweep(system)
    if new_key:
        forget_key(system)
    not_at_boot(system)
    say(f"nothing of {NAME} is installed" if not versions else f"removed {NAME}")


def main() -> int:
    """Run one command; returns the exit status."""
    # An unwanted end is an exception, so that what was begun is undone.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    installing = commands.add_parser("install", help="build, install and load")
    installing.add_argument(
        "--boot", choices=("yes", "no"), help="load it at each boot (default: as it was)"
    )
    commands.add_parser("uninstall", help="unload and remove everything")
    options = parser.parse_args()
    try:
        if options.command == "install":
            install(options.boot)
        else:
            uninstall()
    except VmError as error:
        warn(f"{NAME}: {error.cause}")
        if error.remedy:
            warn(f"  remedy: {error.remedy}")
        return error.exit_status
    except KeyboardInterrupt:
        warn(f"{NAME}: interrupted")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
