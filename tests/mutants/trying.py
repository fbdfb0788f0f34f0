"""The run with mutants: a fork of pytest for each goes on as a run of the tests that reach it.

Where only code of functions differs, the fork happens after collection and takes a moment. A change
that shows at import needs the modules again: then the fork happens before collection, with the
libraries loaded.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType

import msgspec
import pytest

from tests.mutants.kept import TIMED_OUT, fork_kept
from tests.mutants.mutation import Change, Mutant, apply
from tests.mutants.orders import Case, Measure, Order, Result, Verdict, append
from tests.mutants.swap import functions_of, swap

# A trial may take so many times as long as its tests took, and so many seconds more: by the clock,
# of processor time, for imports.
_FACTOR, _GRACE, _GRACE_CPU, _IMPORT = 10.0, 10.0, 3.0, 30.0
# A busy machine makes a test slow by the clock, an endless loop uses up processor time.
_TIMERS = (
    (signal.SIGALRM, signal.ITIMER_REAL, _GRACE),
    (signal.SIGPROF, signal.ITIMER_PROF, _GRACE_CPU),
)


class Trying:
    """A pytest plugin."""

    def __init__(self, order: Order) -> None:
        self._order, self._tree = order, Path(order.tree)
        self._measure = msgspec.json.decode(Path(order.measure).read_bytes(), type=Measure)
        self._sources = {module: (self._tree / module).read_text() for module in order.modules}
        self._changes = {case: self._change(case) for case in order.cases}
        self._kills: Counter[str] = Counter()
        self._killer = self._tree / ".killer"  # where a fork writes which test failed
        self._selected: list[str] | None = None  # in a fork: the tests it runs

    def _change(self, case: Case) -> Change | None:
        return apply(self._sources[case.module], Mutant(case.module, case.operator, case.occurrence))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self) -> None:
        for unchanged in (case for case, change in self._changes.items() if change is None):
            self._note(unchanged, None, "same")
        for name in self._measure.libraries:
            _load(name)
        for case, change in self._trials(at_import=True):
            if self._try(case, change):
                return

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self._selected is not None:
            place = {test: index for index, test in enumerate(self._selected)}
            items[:] = sorted((item for item in items if item.nodeid in place), key=lambda item: place[item.nodeid])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Pytest's own loop runs in the forks alone."""
        if self._selected is not None:
            return None
        functions = {module: functions_of(str(self._tree / module)) for module in self._order.modules}
        gc.freeze()
        for case, change in self._trials(at_import=False):
            if self._try(case, change):
                self._mutate(functions, case, change)
                self.pytest_collection_modifyitems(session.items)
                return None
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_timeout_set_timer(self, item: pytest.Item) -> bool:
        """Ends the trial when a test takes much longer than it did: a failure would be shrunk."""
        for number, timer, grace in _TIMERS:
            signal.signal(number, lambda *_: self._time_out(item.nodeid))
            signal.setitimer(timer, self._deadline([item.nodeid], grace))
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_timeout_cancel_timer(self) -> bool:
        for _, timer, _ in _TIMERS:
            signal.setitimer(timer, 0)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._killer.write_text(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if self._selected is not None:
            os._exit(exitstatus)

    def _trials(self, at_import: bool) -> Iterator[tuple[Case | None, Change | None]]:
        if self._order.work == "control":
            yield None, None
        for case, change in self._changes.items():
            if change is not None and self._at_import(case, change) == at_import:
                yield case, change

    def _at_import(self, case: Case, change: Change) -> bool:
        loaded = self._measure.imported.get(case.module)
        return not (loaded and change.in_function) or self._measure.runs_at_import(case.module, change.lines)

    def _try(self, case: Case | None, change: Change | None) -> bool:
        """True in the fork, which now is the trial. The file is for processes that tests start."""
        tests = list(self._measure.seconds)
        if case and change:
            tests = self._measure.reaching(case.module, change.lines, self._order.elsewhere)
            self._write(case.module, change.source)
        self._killer.write_text("")
        began, spent = time.monotonic(), _spent()
        code = fork_kept(_IMPORT + self._deadline(tests))
        if code is None:
            self._selected = self._in_order(tests)
            return True
        if case and change:
            self._write(case.module, self._sources[case.module])
            self._note(case, change, _verdict(code), time.monotonic() - began, _spent() - spent)
        elif code:
            raise RuntimeError(
                f"without a mutant {self._killer.read_text() or 'the run'} fails in a fork (exit {code})"
            )
        return False

    def _time_out(self, test: str) -> None:
        self._killer.write_text(test)
        os._exit(TIMED_OUT)

    def _deadline(self, tests: list[str], grace: float = _GRACE) -> float:
        """Any test may be the first that starts the processes which tests share."""
        if self._order.elsewhere:
            grace += _IMPORT
        return grace + _FACTOR * sum(self._measure.seconds[test] for test in tests)

    def _mutate(self, functions: dict[str, list[FunctionType]], case: Case | None, change: Change | None) -> None:
        if case and change and not swap(functions[case.module], self._sources[case.module], change.source):
            os._exit(pytest.ExitCode.INTERNAL_ERROR)

    def _in_order(self, tests: list[str]) -> list[str]:
        """First those that cost little and have killed much."""
        return sorted(tests, key=lambda test: (self._measure.seconds[test] / (1 + self._kills[test]), test))

    def _write(self, module: str, source: str) -> None:
        """Removes the bytecode: two mutants may share the time and size by which it is judged."""
        path = self._tree / module
        path.write_text(source)
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)

    def _note(
        self, case: Case, change: Change | None, verdict: Verdict, seconds: float = 0.0, cpu: float = 0.0
    ) -> None:
        killer = self._killer.read_text() if verdict in ("killed", "timeout") else ""
        self._kills[killer] += 1
        shown = (change.line, change.before, change.after) if change else (0, "", "")
        key = Mutant(case.module, case.operator, case.occurrence).key
        result = Result(key, verdict, self._order.tests, *shown, killer, round(seconds, 2), round(cpu, 2))
        append(Path(self._order.results[case.module]), result)


def _spent() -> float:
    """Processor time of the forks so far, and of what they waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _load(library: str) -> None:
    """One that cannot be loaded alone will be loaded by the tests that need it."""
    if library not in sys.modules:
        try:
            importlib.import_module(library)
        except Exception:
            sys.modules.pop(library, None)


def _verdict(code: int) -> Verdict:
    """Exit code 1 is a failed test, 2 a module that cannot be collected, below 0 are signals."""
    if code in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED) or code < 0:
        return "killed"
    return {0: "survived", TIMED_OUT: "timeout"}.get(code, "error")  # type: ignore[return-value]
