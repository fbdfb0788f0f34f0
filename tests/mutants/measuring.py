"""The run without mutants: which tests reach which lines, how long they take, what they import."""

from __future__ import annotations

import functools
import gc
import sys
import time
from collections import defaultdict
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

import coverage
import msgspec
import pytest

from tests.mutants.orders import Measure, Order

_WIDE = "fixture "  # context of a fixture that several tests share


class Measuring:
    """A pytest plugin."""

    def __init__(self, order: Order) -> None:
        self._order, self._measure = order, Measure()
        self._files = {module: str(Path(order.tree) / module) for module in order.modules}
        self._caches: list[functools._lru_cache_wrapper[Any]] = []
        self._users: dict[str, list[str]] = defaultdict(list)  # fixture -> tests
        self._context = ""
        self._coverage = coverage.Coverage(data_file=None, config_file=False, include=list(self._files.values()))
        self._coverage.start()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._measure.libraries = sorted(name for name, module in sys.modules.items() if _installed(module))
        self._caches = [cache for cache in gc.get_objects() if self._caches_ours(cache)]
        for item in session.items:
            for fixture in getattr(item, "fixturenames", ()):
                self._users[_WIDE + fixture].append(item.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        for cache in self._caches:
            cache.cache_clear()  # otherwise only the first test reaches what is behind a cache
        self._enter(item.nodeid)
        began = time.monotonic()
        outcome = yield
        self._measure.seconds[item.nodeid] = self._measure.seconds.get(item.nodeid, 0.0) + time.monotonic() - began
        return outcome

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        """Counts what a shared fixture runs as reached by all its tests, not only by the first."""
        if fixturedef.scope == "function":
            return (yield)
        around, began, fixture = self._context, time.monotonic(), _WIDE + fixturedef.argname
        self._enter(fixture)
        try:
            return (yield)
        finally:
            self._enter(around)
            for test in self._users[fixture]:
                self._measure.seconds[test] = self._measure.seconds.get(test, 0.0) + time.monotonic() - began

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        data = self._coverage.get_data()
        for module, path in self._files.items():
            lines = data.contexts_by_lineno(path)
            self._measure.reached[module] = {line: self._tests(contexts) for line, contexts in lines.items()}
            self._measure.imported[module] = [line for line, contexts in lines.items() if "" in contexts]
        Path(self._order.measure).write_bytes(msgspec.json.encode(self._measure))

    def _enter(self, context: str) -> None:
        self._context = context
        self._coverage.switch_context(context)

    def _caches_ours(self, thing: Any) -> bool:
        # isinstance would ask for __class__, at which some objects of torch warn.
        if type(thing) is not functools._lru_cache_wrapper:
            return False
        code = getattr(thing.__wrapped__, "__code__", None)
        return code is not None and code.co_filename.startswith(self._order.tree)

    def _tests(self, contexts: Iterable[str]) -> list[str]:
        return sorted({test for context in contexts if context for test in self._users.get(context, [context])})


def _installed(module: Any) -> bool:
    return "site-packages" in (getattr(module, "__file__", None) or "")
