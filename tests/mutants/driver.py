"""Copies the sources, measures each group of tests, and has hosts try what is not settled yet.

State is one file of results for each module. A result holds while the module's text is the same;
a survivor is tried again once the tests have changed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from tests.mutants.kept import adopt_orphans, end_descendants
from tests.mutants.mutation import Mutant, mutants_of, sample
from tests.mutants.orders import ORDER, Case, Order, Result
from tests.mutants.table import Group, Table, files, load_table, wanted

_LEFT_OUT = shutil.ignore_patterns(".git", ".venv", ".cache", "runs", "dist", "__pycache__", ".*_cache", ".hypothesis")
_PYTEST = (
    "-p", "tests.mutants.host", "-p", "no:cacheprovider", "--hypothesis-profile", "mutants", "--maxfail", "1", "--tb",
    "short", "--timeout", "120", "-o", "tmp_path_retention_policy=none",
)  # fmt: skip

_OPERATORS = [Path(__file__).with_name(name).read_text() for name in ("operators.py", "mutation.py")]
_SILENCE = 120.0  # seconds


class TestsFail(RuntimeError):
    """The tests of a group fail without a mutant: their verdicts would mean nothing."""


@dataclass(frozen=True)
class Plan:
    """A module's part of a run."""

    group: Group
    module: str
    mutants: list[Mutant]
    results: Path


class Driver:
    def __init__(self, root: Path, jobs: int, say: Callable[[str], None]) -> None:
        self._root, self._jobs, self._say = root.resolve(), jobs, say
        self._state = self._root / ".cache" / "mutants"
        self._trees = [self._state / f"tree-{number}" for number in range(jobs)]

    def run(self, names: list[str], size: int | None) -> list[Plan]:
        """Tries every mutant of the sample that is not settled. Leaves no process."""
        adopt_orphans()
        try:
            for tree in self._trees:
                self._copy(tree)
            table = load_table(self._trees[0])
            plans = self._plans(table, names, size)
            for group in table.group:
                self._run_group(table, group, [plan for plan in plans if plan.group == group])
            return plans
        finally:
            end_descendants()
            for tree in self._trees:
                shutil.rmtree(tree, ignore_errors=True)

    def _copy(self, tree: Path) -> None:
        """The sources, and a link to the tools that tests run."""
        shutil.rmtree(tree, ignore_errors=True)
        shutil.copytree(self._root, tree, ignore=_LEFT_OUT, symlinks=True)
        (tree / ".cache").mkdir()
        (tree / ".cache" / "bin").symlink_to(self._root / ".cache" / "bin")

    def _plans(self, table: Table, names: list[str], size: int | None) -> list[Plan]:
        tree, plans = self._trees[0], []
        for group in table.group:
            for module in files(tree, group.modules):
                if not wanted(group, module, names):
                    continue
                source = (tree / module).read_text()
                if mutants := sample(mutants_of(module, source), size):
                    plans.append(Plan(group, module, mutants, self._results(module, source)))
        return plans

    def _results(self, module: str, source: str) -> Path:
        """Named after the module, its text and our operators. Results of former texts go."""
        folder, name = self._state / "results", module.removesuffix(".py").replace("/", ".")
        current = folder / f"{name}-{_digest(source, *_OPERATORS)}.jsonl"
        folder.mkdir(exist_ok=True)
        for old in folder.glob(f"{name}-*.jsonl"):
            if old != current:
                old.unlink()
        return current

    def _run_group(self, table: Table, group: Group, plans: list[Plan]) -> None:
        judges = files(self._trees[0], group.tests)
        tests = _digest(*group.without, *((self._trees[0] / path).read_text() for path in judges))
        cases = [case for plan in plans for case in _unsettled(plan, tests)]
        if not cases:
            return
        self._say(f"{group.name}: {len(cases)} mutants to try, judged by {len(judges)} files of tests")
        results = {plan.module: str(plan.results) for plan in plans}
        run = _Run(table, group, self._state, judges, results, tests, self._say)
        run.hosts("measure", self._trees[:1], [])
        run.hosts("control", self._trees[:1], [])
        run.hosts("try", self._trees, cases)


@dataclass(frozen=True)
class _Run:
    """What the hosts of one group have in common."""

    table: Table
    group: Group
    state: Path
    judges: list[str]
    results: dict[str, str]
    tests: str
    say: Callable[[str], None]

    def hosts(self, work: Literal["measure", "control", "try"], trees: list[Path], cases: list[Case]) -> None:
        """Starts one for each tree, each with its part of the cases, and waits for all."""
        running = [self._start(work, tree, cases[index :: len(trees)]) for index, tree in enumerate(trees)]
        for process, tree in zip(running, trees, strict=True):
            if self._wait(process, len(cases)):
                log = tree.with_suffix(".log").read_text()
                raise TestsFail(f"{work} ended with exit code {process.returncode}:\n{log[-4000:]}")

    def _wait(self, process: subprocess.Popen[bytes], cases: int) -> int:
        """Returns the exit code; says every few minutes how far the hosts are."""
        before = self._lines()
        while True:
            try:
                return process.wait(timeout=_SILENCE)
            except subprocess.TimeoutExpired:
                if cases:
                    self.say(f"  {self._lines() - before} of {cases} tried")

    def _lines(self) -> int:
        """Of all results."""
        return sum(path.read_bytes().count(b"\n") for path in map(Path, self.results.values()) if path.exists())

    def _start(
        self, work: Literal["measure", "control", "try"], tree: Path, cases: list[Case]
    ) -> subprocess.Popen[bytes]:
        order = Order(
            work=work, driver=os.getpid(), tree=str(tree), measure=str(self.state / "measure.json"),
            modules=list(self.results), results=self.results, without=self.group.without,
            elsewhere=files(tree, self.group.elsewhere), cases=cases, tests=self.tests,
        )  # fmt: skip
        path, scratch = tree.with_suffix(".json"), tree.with_suffix(".tmp")
        path.write_bytes(msgspec.json.encode(order))
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        with tree.with_suffix(".log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "pytest", *_PYTEST, "--basetemp", scratch / "pytest", *self.judges],
                cwd=tree, env=self._environment(tree, path, scratch), stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def _environment(self, tree: Path, order: Path, scratch: Path) -> dict[str, str]:
        """The tree's sources come before those of the checkout."""
        tool = Path(__file__).resolve().parents[2]
        paths = [*(str(tree / root) for root in self.table.roots), str(tree), str(tool)]
        own = {ORDER: str(order), "PYTHONPATH": os.pathsep.join(paths), "TMPDIR": str(scratch), "PYTHONHASHSEED": "0"}
        return {**os.environ, **own, "OMP_NUM_THREADS": "1"}


def results_of(plan: Plan) -> dict[str, Result]:
    """By key; a later line replaces a former one. A line cut off by a kill is left out."""
    lines = plan.results.read_bytes().splitlines(keepends=True) if plan.results.exists() else []
    whole = [msgspec.json.decode(line, type=Result) for line in lines if line.endswith(b"\n")]
    return {result.key: result for result in whole}


def _unsettled(plan: Plan, tests: str) -> list[Case]:
    results = results_of(plan)
    settled = {key for key, result in results.items() if result.verdict in ("killed", "timeout", "same")}
    settled |= {key for key, result in results.items() if result.tests == tests}
    return [Case(m.module, m.operator, m.occurrence) for m in plan.mutants if m.key not in settled]


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]
