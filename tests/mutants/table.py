"""`modules.toml`: which tests judge which modules. `accepted.toml`: the survivors that stay."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

import msgspec

FOLDER = Path("tests/mutants")


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Modules judged by the same tests.

    All lists but `without` hold paths or patterns from the root of the repository.

    without: fixtures whose tests are left out, since they cost seconds for each mutant.
    elsewhere: those of the tests that run the modules in other processes, where nothing measures
        which lines they reach.
    """

    name: str
    modules: list[str]
    tests: list[str]
    without: list[str] = []
    elsewhere: list[str] = []


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    roots: list[str]  # folders that imports begin in
    group: list[Group]


class Accepted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A change of one module that no test can or should notice."""

    module: str
    before: str  # lines as a survivor shows them
    after: str
    reason: str


class _AcceptedFile(msgspec.Struct, forbid_unknown_fields=True):
    accepted: list[Accepted] = []


def load_table(root: Path) -> Table:
    return msgspec.toml.decode((root / FOLDER / "modules.toml").read_bytes(), type=Table)


def load_accepted(root: Path) -> list[Accepted]:
    return msgspec.toml.decode((root / FOLDER / "accepted.toml").read_bytes(), type=_AcceptedFile).accepted


def files(root: Path, patterns: list[str]) -> list[str]:
    """The files that paths and patterns name, each once. Raises for one that names none."""
    found: dict[str, None] = {}
    for pattern in patterns:
        matches = sorted(str(path.relative_to(root)) for path in root.glob(pattern))
        if not matches:
            raise FileNotFoundError(f"{FOLDER / 'modules.toml'} names {pattern}, which does not exist")
        found |= dict.fromkeys(matches)
    return list(found)


def wanted(group: Group, module: str, names: list[str]) -> bool:
    """Whether a module is asked for by group, path, folder or pattern. No name asks for all."""
    return not names or any(name == group.name or module.startswith(name) or fnmatch(module, name) for name in names)
