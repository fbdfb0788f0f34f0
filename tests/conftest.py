"""How the tests run: drawn examples, order, times, and the tools that they need."""

import msgspec  # noqa: F401  first: pickle takes `UNSET` from the first module that has it, and a solver would import that test
import pytest
from hypothesis import HealthCheck, settings

from e2e.tools.build import is_current
from tests import schedule, times

settings.register_profile("fixed", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""The same examples in every run: no draw decides whether a change passes. `make test` runs with it."""

settings.register_profile("drawn", settings.get_profile("fixed"), derandomize=False, print_blob=True, database=None)
"""Other examples in every run, for `make test-slow`. What it finds becomes an `@example` of the test."""

settings.load_profile("fixed")


def pytest_configure(config):
    config.pluginmanager.register(times)
    config.pluginmanager.register(schedule)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(times.Recorder())


@pytest.hookimpl(trylast=True)  # after the deselections of -m and -k
def pytest_collection_modifyitems(config, items):
    """Refuses a selection whose tests need tools that are not built. A build inside a test would outlast the test.

    A worker that raised here would end with an error of xdist's own: the process that reports says it.
    """
    needed = {name for item in items for mark in item.iter_markers("binaries") for name in mark.args}
    missing = sorted(name for name in needed if not is_current(name))
    if missing and hasattr(config, "workeroutput"):
        config.workeroutput["missing binaries"] = missing
        items.clear()
    elif missing:
        raise _not_built(missing)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    if missing := getattr(node, "workeroutput", {}).get("missing binaries"):
        raise _not_built(missing)


def _not_built(missing):
    return pytest.UsageError(f"not built: {', '.join(missing)}; run `make binaries` (once, some minutes)")
