"""What the driver hands to a host process, and what comes back. It lies in the state folder."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

ORDER = "MUTANTS_ORDER"  # environment variable: the path of the order

Verdict = Literal["killed", "survived", "timeout", "same", "error"]


class Case(msgspec.Struct, frozen=True):
    """A mutant to be tried."""

    module: str
    operator: str
    occurrence: int


class Result(msgspec.Struct, frozen=True):
    """What became of a mutant. "same": no change of meaning, not counted.

    tests: digest of the tests that judged it.
    """

    key: str
    verdict: Verdict
    tests: str
    line: int = 0
    before: str = ""
    after: str = ""
    killer: str = ""
    seconds: float = 0.0  # by the clock
    cpu: float = 0.0  # seconds of processor time, of all processes that were waited for


class Order(msgspec.Struct, frozen=True):
    """One host's work.

    measure: run the tests, write down which reach which lines, and how long they take.
    control: run them in forks as for mutants, but without one: they must pass.
    try: run those that reach each case.
    """

    work: Literal["measure", "control", "try"]
    driver: int  # process id; a host ends with it
    tree: str
    measure: str  # path of the Measure, to be written or read
    modules: list[str]
    results: dict[str, str] = {}  # module -> file
    without: list[str] = []  # fixtures whose tests are left out
    elsewhere: list[str] = []  # files of tests that run the modules in other processes
    cases: list[Case] = []
    tests: str = ""


class Measure(msgspec.Struct):
    """What a run without mutants showed."""

    seconds: dict[str, float] = {}  # test -> duration
    reached: dict[str, dict[int, list[str]]] = {}  # module -> line -> tests
    imported: dict[str, list[int]] = {}  # module -> lines that run when it is imported
    libraries: list[str] = []  # modules that the tests import and that are not mutated

    def reaching(self, module: str, lines: tuple[int, int], elsewhere: list[str]) -> list[str]:
        """The tests that run one of the lines, here or elsewhere; all where none is known."""
        found = self.reached.get(module, {})
        tests = {test for line in range(lines[0], lines[1] + 1) for test in found.get(line, ())}
        tests |= {test for test in self.seconds if test.partition("::")[0] in elsewhere}
        return list(tests or self.seconds)

    def runs_at_import(self, module: str, lines: tuple[int, int]) -> bool:
        return any(lines[0] <= line <= lines[1] for line in self.imported.get(module, ()))


def append(path: Path, result: Result) -> None:
    with path.open("ab") as file:
        file.write(msgspec.json.encode(result) + b"\n")
