# SPDX-License-Identifier: GPL-2.0-or-later
"""A layout: what one kernel says about its page tables.

The module states these facts in the debugfs file ``layout`` (its keys are in
``kmod/README.md``); layouts captured from known kernels ship as JSON.  Facts are
fixed when a kernel is compiled, runtime facts can differ from boot to boot.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

from ptscope.decode.arch import architecture
from ptscope.decode.sound import flaws
from ptscope.decode.table import Changes
from ptscope.errors import BadLayout, Unsupported, UsageError

FORMAT = 1
UNNAMED = "unnamed"
DEFAULT = "debian-6.1-amd64"
U64_MAX = (1 << 64) - 1

_DIRECTORY = Path(__file__).resolve().parent.parent / "layouts"
_RUNTIME = "runtime."
# Masks and addresses are written in hex, all other numbers in decimal, as the
# module writes them.
_HEX_PREFIXES = ("mask.", "vm.", "swap.marker.")
_HEX_SUFFIXES = ("_mask", "user_last", "kernel_first")
# What Layout itself works with; each architecture adds what its table needs.
_REQUIRED = ("page_shift", "runtime.levels", "runtime.user_last", "runtime.kernel_first")


@dataclass(frozen=True)
class Level:
    """One level of the walk.

    `number` is the level in the wire format: PTE is 1 and PGD 5, also when
    levels between them are folded.  A table of the level has `entries` entries.
    """

    name: str
    number: int
    shift: int
    entries: int

    @property
    def span(self) -> int:
        """Bytes of address space that one entry covers."""
        return 1 << self.shift


@dataclass(frozen=True)
class Layout:
    """The facts of one kernel, those of this boot under `runtime`.

    Layouts are equal when architecture, release and all facts are; `name` is
    only how people call it.  Making one raises Unsupported when the architecture
    is unknown, and BadLayout when a fact that the decoder cannot do without is missing
    or one is what it cannot be.
    """

    name: str = field(compare=False)
    arch: str
    release: str
    facts: Mapping[str, int]
    runtime: Mapping[str, int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "facts", MappingProxyType(dict(self.facts)))
        object.__setattr__(self, "runtime", MappingProxyType(dict(self.runtime)))
        values = {**self.facts, **{_RUNTIME + key: self.runtime[key] for key in self.runtime}}
        required = (*_REQUIRED, *architecture(self.arch).required)
        missing = [key for key in required if key not in values]
        if missing:
            raise BadLayout(self.name, f"it lacks {', '.join(missing)}")
        flaw = next(flaws(self.all_level_names, values), None)
        if flaw is not None:
            raise BadLayout(self.name, flaw)
        if len(self.levels) != self.runtime["levels"]:
            raise BadLayout(
                self.name,
                f"it says {self.runtime['levels']} levels but describes {len(self.levels)}",
            )

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        facts = frozenset(self.facts.items())
        return hash((self.arch, self.release, facts, frozenset(self.runtime.items())))

    @classmethod
    def from_text(cls, text: str, name: str = "live") -> Layout:
        """Parse what the module's file ``layout`` holds: one ``key value`` a line.

        Raises BadLayout for another format, and for text that is not a layout.
        """
        values: dict[str, str] = {}
        for number, line in enumerate(text.splitlines(), 1):
            key, space, value = line.partition(" ")
            if not space or not key or key in values:
                raise BadLayout(name, f"line {number} is not one new key: {line!r}")
            values[key] = value.strip()
        return cls._from_values(values, name)

    @classmethod
    def from_json(cls, source: str | Mapping[str, object], name: str | None = None) -> Layout:
        """Parse what `to_json` gives, as text or already loaded; `name` stands for the one in it.

        Raises BadLayout for another format, and for what is not a layout.
        """
        if isinstance(source, str):
            try:
                source = json.loads(source)
            except ValueError as error:
                raise BadLayout(name or UNNAMED, f"no JSON: {error}") from error
            except RecursionError:
                raise BadLayout(name or UNNAMED, "JSON nested too deeply") from None
        if not isinstance(source, Mapping):
            raise BadLayout(name or UNNAMED, "no JSON object")
        values = {key: str(value) for key, value in source.items() if not isinstance(value, dict)}
        for part, prefix in (("facts", ""), ("runtime", _RUNTIME)):
            numbers = source.get(part)
            if not isinstance(numbers, Mapping):
                raise BadLayout(name or UNNAMED, f"there is no object {part!r}")
            values |= {f"{prefix}{key}": str(value) for key, value in numbers.items()}
        own_name = values.pop("name", UNNAMED)
        return cls._from_values(values, name or own_name)

    @classmethod
    def _from_values(cls, values: dict[str, str], name: str) -> Layout:
        if values.get("format") != str(FORMAT):
            raise BadLayout(
                name,
                f"it has format {values.get('format', 'none')}, not {FORMAT}",
                remedy="use a module and a package of the same version",
            )
        texts = {key: values.get(key, "") for key in ("arch", "release")}
        facts: dict[str, int] = {}
        runtime: dict[str, int] = {}
        for key, value in values.items():
            if key == "format" or key in texts:
                continue
            try:
                number = int(value, 0)
            except ValueError:
                number = -1
            if not 0 <= number <= U64_MAX:
                raise BadLayout(name, f"{key} is no 64-bit number: {value!r}")
            if key.startswith(_RUNTIME):
                runtime[key.removeprefix(_RUNTIME)] = number
            else:
                facts[key] = number
        return cls(name, texts["arch"], texts["release"], facts, runtime)

    def to_json(self) -> dict[str, object]:
        """The layout as JSON-able objects, the same for equal layouts of one name.

        Masks and addresses are ``"0x…"`` text, other numbers are numbers.
        """
        return {
            "format": FORMAT,
            "name": self.name,
            "arch": self.arch,
            "release": self.release,
            "facts": {key: _shown(key, self.facts[key]) for key in sorted(self.facts)},
            "runtime": {key: _shown(key, self.runtime[key]) for key in sorted(self.runtime)},
        }

    def to_text(self) -> str:
        """The layout as the text of a file under ``layouts/``."""
        return json.dumps(self.to_json(), indent=1) + "\n"

    def with_context(
        self, context: Mapping[str, int | None] | None = None, /, **more: int | None
    ) -> Layout:
        """The layout with some of its facts overridden, and with all that follows from them.

        Keys are those of the architecture, in its table (``decode/arch/``); the order
        in which they are given does not matter.  Raises UsageError for an unknown
        key or a value that cannot be.
        """
        known = architecture(self.arch).context
        wanted = {**(context or {}), **more}
        for key in wanted:
            if key not in known:
                raise UsageError(
                    f"{self.arch} has no context key {key!r}",
                    remedy=f"known keys: {', '.join(known)}",
                )
        layout = self
        for key in (key for key in known if key in wanted):
            value = wanted[key]
            number = None if value is None else int(value)
            try:
                changes = known[key].derive(layout.facts, layout.runtime, number)
            except ValueError:
                raise UsageError(
                    f"{key} cannot be {'none' if number is None else number} on {self.name}",
                    remedy=f"{key} is {known[key].values}",
                ) from None
            layout = layout._changed(changes)
        return layout

    def _changed(self, changes: Changes) -> Layout:
        """The layout with these keys changed, or removed where the value is None."""
        facts: dict[str, int | None] = dict(self.facts)
        runtime: dict[str, int | None] = dict(self.runtime)
        for key, value in changes.items():
            if key.startswith(_RUNTIME):
                runtime[key.removeprefix(_RUNTIME)] = value
            else:
                facts[key] = value
        return replace(
            self,
            facts={key: value for key, value in facts.items() if value is not None},
            runtime={key: value for key, value in runtime.items() if value is not None},
        )

    @property
    def all_level_names(self) -> tuple[str, ...]:
        """The names of all levels Linux knows, root first, folded ones included."""
        return architecture(self.arch).level_names

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """The levels the hardware walks, root first."""
        names = self.all_level_names
        return tuple(
            Level(
                name,
                len(names) - position,
                self.runtime[f"level.{name}.shift"],
                self.runtime[f"level.{name}.entries"],
            )
            for position, name in enumerate(names)
            if f"level.{name}.shift" in self.runtime
        )

    def level(self, name: str) -> Level:
        """The walked level `name`; UsageError for one that is unknown or folded."""
        for level in self.levels:
            if level.name == name:
                return level
        walked = ", ".join(level.name for level in self.levels)
        if name in self.all_level_names:
            root = self.levels[0].name
            raise UsageError(
                f"{name} is folded with {len(self.levels)} levels: its entry is the {root} entry",
                remedy=f"levels of {self.name}: {walked}",
            )
        raise UsageError(f"no level is called {name!r}", remedy=f"levels of {self.name}: {walked}")

    def is_folded(self, name: str) -> bool:
        """True for a level that Linux knows but the hardware does not walk here.

        Raises UsageError for a name that is no level at all.
        """
        if name not in self.all_level_names:
            self.level(name)
        return all(level.name != name for level in self.levels)

    def index(self, level: Level | str, address: int) -> int:
        """The index in a table of `level` of the entry that covers `address`."""
        if isinstance(level, str):
            level = self.level(level)
        return (address >> level.shift) & (level.entries - 1)

    @property
    def page_size(self) -> int:
        """Bytes of a page of the smallest size."""
        return 1 << self.facts["page_shift"]

    @property
    def user_last(self) -> int:
        """The last address of the user half."""
        return self.runtime["user_last"]

    @property
    def kernel_first(self) -> int:
        """The first address of the kernel half."""
        return self.runtime["kernel_first"]

    def is_canonical(self, address: int) -> bool:
        """True when `address` lies in the user half or in the kernel half."""
        return 0 <= address <= self.user_last or self.kernel_first <= address <= U64_MAX


def _shown(key: str, value: int) -> int | str:
    in_hex = key.startswith(_HEX_PREFIXES) or key.endswith(_HEX_SUFFIXES)
    return hex(value) if in_hex else value


def available() -> tuple[str, ...]:
    """The names of the layouts that ship with the package."""
    return tuple(sorted(path.stem for path in _DIRECTORY.glob("*.json")))


def load(name: str = DEFAULT) -> Layout:
    """Load a shipped layout by name, or one from a file when `name` ends in ``.json``.

    It is called what its file is called.
    Raises UsageError when there is no such layout, or the file is not one.
    """
    is_file = name.endswith(".json")
    if not is_file and name not in available():
        raise UsageError(
            f"no layout is called {name!r}",
            remedy=f"available: {', '.join(available())}, or the path of a .json file",
        )
    path = Path(name) if is_file else _DIRECTORY / f"{name}.json"
    try:
        return Layout.from_json(path.read_text(encoding="utf-8"), path.stem)
    except OSError as error:
        raise UsageError(f"cannot read layout {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is no layout: it is no UTF-8 text") from error
    except Unsupported as error:
        reason = error.reason if isinstance(error, BadLayout) else error.cause
        raise UsageError(f"{path} is no layout: {reason}", error.remedy) from error
