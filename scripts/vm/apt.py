# SPDX-License-Identifier: GPL-2.0-or-later
"""A private apt: any suite and architecture, from this machine's own mirrors, checked by apt.

Nothing of the host's apt state is changed and no mirror is named here: where Debian's archives
are is taken from the sources this machine is set up with.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import paths, store
from .errors import Missing, SetupError
from .proc import need, run
from .say import say, warn

FRESH_SECONDS = 24 * 3600
"""The package lists are refreshed at most this often."""
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

# Which lines a suite's sources have: the archive (main or security) and the release name there.
SUITES: dict[str, tuple[tuple[str, str], ...]] = {
    "bullseye": (
        ("main", "bullseye"),
        ("security", "bullseye-security"),
    ),
    "bookworm": (
        ("main", "bookworm"),
        ("main", "bookworm-updates"),
        ("security", "bookworm-security"),
    ),
    "trixie": (
        ("main", "trixie"),
        ("main", "trixie-updates"),
        ("security", "trixie-security"),
    ),
    "sid": (("main", "sid"),),
    # On its own: beside sid apt would always prefer what sid has.
    "experimental": (("main", "experimental"),),
}


@dataclass(frozen=True)
class Package:
    """One version of a package, as `apt-cache show` prints it."""

    name: str
    version: str
    depends: tuple[str, ...]
    """Names only, the first of each group of alternatives."""
    arch: str = "all"


def parse_package(text: str) -> Package:
    """Parse the first paragraph of ``apt-cache show``; raises KeyError when a field is missing."""
    fields: dict[str, str] = {}
    for line in text.split("\n\n")[0].splitlines():
        match = re.match(r"([A-Za-z-]+): (.*)", line)
        if match:
            fields[match[1]] = match[2]
    names = [
        re.split(r"[ |(:]", group.strip())[0] for group in fields.get("Depends", "").split(",")
    ]
    return Package(
        fields["Package"],
        fields["Version"],
        tuple(name for name in names if name),
        fields.get("Architecture", "all"),
    )


def archive_of(release: str) -> str:
    """Which of Debian's archives carries a release name: "security", "main", or "" for neither."""
    if "security" in release:
        return "security"
    # Backports live in the main archive too, but a machine may have them from somewhere else.
    return "" if "backports" in release else "main"


def archives(targets: str) -> dict[str, str]:
    """The addresses of Debian's archives, from ``apt-get indextargets`` as `URI ORIGIN RELEASE`."""
    found: dict[str, str] = {}
    for line in targets.splitlines():
        fields = line.split()
        if len(fields) == 3 and fields[1] == "Debian":
            found.setdefault(archive_of(fields[2]), fields[0])
    found.pop("", None)
    return found


def _host_archives() -> dict[str, str]:
    command = [
        need("apt-get", "apt"),
        "indextargets",
        "--format",
        "$(REPO_URI) $(ORIGIN) $(RELEASE)",
        "Created-By: Packages",
    ]
    found = archives(run(command, what="reading this machine's apt sources", error=SetupError))
    if "main" not in found:
        say("this machine's package lists are empty: apt-get update")
        run(
            ["apt-get", "update"],
            what="apt-get update",
            error=SetupError,
            remedy="run as root with network, on Debian, with Debian's mirrors in /etc/apt",
        )
        found = archives(run(command, what="reading this machine's apt sources", error=SetupError))
    if "main" not in found:
        raise SetupError(
            "no Debian archive is among this machine's apt sources",
            "add Debian's mirrors to /etc/apt/sources.list and run apt-get update",
        )
    return found


def sources(suite: str, found: dict[str, str]) -> str:
    """The sources.list of ``suite`` from the archives' addresses, leaving out unknown archives."""
    signed = f"[signed-by={KEYRING}] " if KEYRING.exists() else ""
    lines = [
        f"deb {signed}{found[archive]} {release} main"
        for archive, release in SUITES[suite]
        if archive in found
    ]
    return "".join(line + "\n" for line in lines)


@dataclass(frozen=True)
class Apt:
    """apt for one suite and architecture, rooted in the cache."""

    suite: str
    arch: str

    @property
    def root(self) -> Path:
        """Everything this apt keeps."""
        return paths.cache() / "apt" / f"{self.suite}-{self.arch}"

    @property
    def sources_list(self) -> Path:
        """The derived sources, written by `update`."""
        return self.root / "sources.list"

    @property
    def _stamp(self) -> Path:
        return self.root / "updated"

    def _options(self) -> list[str]:
        values = {
            "Dir::State": self.root / "state",
            "Dir::State::status": self.root / "status",
            "Dir::Cache": self.root / "cache",
            # Images made for containers turn these off; without them each look-up parses all lists.
            "Dir::Cache::pkgcache": "pkgcache.bin",
            "Dir::Cache::srcpkgcache": "srcpkgcache.bin",
            "Dir::Etc::sourcelist": self.sources_list,
            "Dir::Etc::sourceparts": "-",
            "Dir::Etc::preferences": "-",
            "Dir::Etc::preferencesparts": "-",
            "APT::Architecture": self.arch,
            "APT::Architectures": self.arch,
            "APT::Default-Release": "",
            # The cache is the caller's; apt's own user could not write there.
            "APT::Sandbox::User": "root",
            # A list that cannot be fetched is otherwise only a warning.
            "APT::Update::Error-Mode": "any",
            "Acquire::Languages": "none",
            "Acquire::Retries": "3",
            "Acquire::http::Timeout": "30",
        }
        return [part for key, value in values.items() for part in ("-o", f"{key}={value}")]

    def fresh(self) -> bool:
        """Whether the lists are younger than `FRESH_SECONDS`."""
        try:
            return 0 <= time.time() - self._stamp.stat().st_mtime < FRESH_SECONDS
        except FileNotFoundError:
            return False

    def update(self) -> None:
        """Refresh the lists unless they are fresh; raises `SetupError` when that fails."""
        if self.fresh():
            return
        with store.locked(f"apt-{self.suite}-{self.arch}"):
            if self.fresh():
                return
            for folder in ("state/lists/partial", "cache/archives/partial"):
                (self.root / folder).mkdir(parents=True, exist_ok=True)
            (self.root / "status").touch()
            lines = sources(self.suite, _host_archives())
            say(f"refreshing the package lists of {self.suite} {self.arch}")
            try:
                self._refresh(lines)
            except SetupError as error:
                # A mirror in the middle of its own update has lists that do not match their hashes;
                # what the suite was released with has been there for long.
                first, *more = lines.splitlines(keepends=True)
                if not more:
                    raise
                self._refresh(first)
                warn(f"{error.cause.splitlines()[0]}: the mirror's updates are left out")
            self._stamp.touch()

    def _refresh(self, lines: str) -> None:
        store.write(self.sources_list, lines)
        run(
            ["apt-get", *self._options(), "update"],
            what=f"package lists of {self.suite} {self.arch}",
            error=SetupError,
            remedy="is the network there, and the mirror reachable?",
        )

    def show(self, name: str) -> Package:
        """The newest version of a package; raises `Missing` when the suite has none."""
        what = f"looking up {name} in {self.suite}"
        names = run(["apt-cache", *self._options(), "pkgnames", name], what=what, error=SetupError)
        missing = Missing(f"{self.suite} has no package {name} for {self.arch}")
        if name not in names.split():
            raise missing
        text = run(
            ["apt-cache", *self._options(), "show", "--no-all-versions", name],
            what=what,
            error=Missing,
        )
        try:
            return parse_package(text)
        except KeyError:
            raise missing from None

    def closure(self, name: str, pattern: str) -> list[Package]:
        """``name`` and what it depends on, directly or not, as far as names match ``pattern``."""
        found: dict[str, Package] = {}
        todo = [name]
        while todo:
            wanted = todo.pop()
            if wanted not in found:
                found[wanted] = self.show(wanted)
                todo += [other for other in found[wanted].depends if re.match(pattern, other)]
        return list(found.values())

    def download(self, packages: list[Package], into: Path) -> list[Path]:
        """Download, have apt check hashes and signatures, and return the .deb files."""
        names = [f"{package.name}={package.version}" for package in packages]
        run(
            ["apt-get", *self._options(), "download", *names],
            cwd=into,
            error=SetupError,
            what=f"downloading {', '.join(names)}",
            remedy="is the network there, and the mirror reachable?",
        )
        return sorted(into.glob("*.deb"))

    def extract(self, packages: Sequence[str], root: Path) -> None:
        """Unpack ``packages`` and all they need into a new directory, running nothing of them."""
        # A mirror that is frozen in time is one that this machine is set up for, or none at all.
        valid = run(
            ["apt-config", "shell", "value", "Acquire::Check-Valid-Until/b"],
            what="asking apt how it is set up",
        )
        options = []
        if "false" in valid:
            options.append('--aptopt=Acquire::Check-Valid-Until "false"')
        run(
            [
                need("mmdebstrap", "mmdebstrap"),
                "--mode=root",
                "--variant=extract",
                f"--architectures={self.arch}",
                f"--include={','.join(packages)}",
                "--format=directory",
                *options,
                self.suite,
                root,
                self.sources_list,
            ],
            what=f"mmdebstrap of {self.suite} {self.arch}",
            remedy="run as root, with the network there",
        )


def installed(names: list[str]) -> set[str]:
    """Which of these packages the host has installed."""
    done = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *names],
        capture_output=True,
        text=True,
        check=False,
    )
    return {line.split()[0] for line in done.stdout.splitlines() if line.endswith(" installed")}
