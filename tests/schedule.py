"""Which worker runs which tests, and in which order: whole files, those with one API server together, the longest first.

Two workers that end at the same time need the long files early. What is long is what was long on this machine before;
on a fresh clone, what starts servers and trains models.
"""

from __future__ import annotations

import re
from collections import Counter

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests import times

_ONE_API_SERVER = re.compile(
    r"tests/integration/test_(crd|operator|children|checkpoints|cox_in|gang|harness|pod_security|quarantine|token)"
)
_GUESSES = {
    "tests/integration": 20.0,
    "tests/local": 20.0,
    "tests/distributed": 10.0,
    "tests/unit": 1.0,
}  # seconds a test


def unit_of(test: str) -> str:
    """What one worker runs as a whole: module fixtures are made once, and the API server of tests/integration by one worker."""
    file = times.file_of(test)
    return "one API server" if _ONE_API_SERVER.match(file) else file


def longest_first(tests: list[str], known: times.Times) -> list[str]:
    """The tests by their units, each unit in its own order."""
    lengths: Counter[str] = Counter()
    for test in tests:
        folder = times.file_of(test).rpartition("/")[0]
        lengths[unit_of(test)] += known[test][0] if test in known else _GUESSES.get(folder, 1.0)
    return sorted(tests, key=lambda test: (-lengths[unit_of(test)], unit_of(test)))


class ByUnits(LoadScopeScheduling):
    """Hands out units in the order of collection, which is the longest first."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByUnits:
    config.option.loadscopereorder = False
    return ByUnits(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        order = {test: place for place, test in enumerate(longest_first([i.nodeid for i in items], times.read()))}
        items.sort(key=lambda item: order[item.nodeid])
