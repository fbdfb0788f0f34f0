"""`pytest -p tests.passed`: a run that was interrupted goes on behind the tests that have passed at this commit.

`.cache/tests/passed.txt` has the commit and the selection in its first line, and a passed test in each other line. Another
commit, an edit or another selection begins from the start, and so does the run after one that has passed as a whole.
"""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from tests import times

FILE = times.FILE.with_name("passed.txt")
_PASSED = pytest.StashKey[frozenset[str]]()


def selection(config: pytest.Config, root: Path) -> str:
    """What is run, and of which sources: the commit, and a digest of what is edited."""
    git = [["rev-parse", "HEAD"], ["diff", "HEAD"], ["ls-files", "--others", "--exclude-standard"]]
    commit, *edits = (subprocess.check_output(["git", *words], cwd=root, text=True) for words in git)
    edited = hashlib.sha256("".join(edits).encode()).hexdigest()[:8] if any(edits) else "unchanged"
    return " ".join([commit[:12], edited, config.option.markexpr, config.option.keyword, *config.args])


def pytest_configure(config: pytest.Config) -> None:
    worker: dict[str, list[str]] | None = getattr(config, "workerinput", None)
    if worker is not None:
        config.stash[_PASSED] = frozenset(worker["passed"])
        return
    name = selection(config, times.ROOT)
    known, *passed = FILE.read_text().splitlines() if FILE.exists() else [""]
    config.stash[_PASSED] = frozenset(passed if known == name else [])
    config.pluginmanager.register(Recorder(name, config.stash[_PASSED]))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    node.workerinput["passed"] = sorted(node.config.stash[_PASSED])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    passed = config.stash[_PASSED]
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in passed])
    items[:] = [item for item in items if item.nodeid not in passed]


class Recorder:
    """Plugin of the process that reports: the only one, or the controller of several workers."""

    def __init__(self, name: str, before: frozenset[str]) -> None:
        self._before, self._now, self._others, self._whole = before, set[str](), set[str](), False
        if not before:
            FILE.parent.mkdir(parents=True, exist_ok=True)
            FILE.write_text(name + "\n")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self._others.add(report.nodeid)
        elif report.when == "teardown" and report.nodeid not in self._others:
            self._now.add(report.nodeid)
            with FILE.open("a") as file:
                file.write(report.nodeid + "\n")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        nothing_left = exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self._before
        if nothing_left:
            session.exitstatus = pytest.ExitCode.OK
        self._whole = bool(nothing_left) or exitstatus == pytest.ExitCode.OK

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        rest = (
            "that is all of them"
            if self._whole
            else f"run it again to go on behind them, or remove {FILE} to begin again"
        )
        count = len(self._before) + len(self._now)
        terminalreporter.line(f"{count} have passed at this commit, {len(self._before)} of them in runs before; {rest}")
        if self._whole:
            FILE.unlink()
