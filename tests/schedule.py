"""Which worker runs which tests, and in which order: whole files, those with one API server together, the longest first.

Workers that end at the same time need the long files early. What is long is what was long on this machine before; on a
fresh clone, what `python -m tests.times record` wrote to `tests/long_files.json`.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests import times

_ONE_API_SERVER = re.compile(
    r"tests/integration/test_(crd|operator|children|checkpoints|cox_in|gang|harness|pod_security|quarantine|token|ways_to)"
)
_GUESSES = {
    "tests/local": 3.0,
    "tests/integration": 0.7,
    "tests/distributed": 0.5,
}  # seconds of a test of which nothing is known


def unit_of(test: str) -> str:
    """What one worker runs as a whole: module fixtures are made once, and the API server of tests/integration by one worker."""
    file = times.file_of(test)
    return "one API server" if _ONE_API_SERVER.match(file) else file


def longest_first(tests: list[str], known: times.Times, recorded: Mapping[str, float]) -> list[str]:
    """The tests by their units, each unit in its own order. `recorded`: seconds of files of which no test is known."""
    files: dict[str, list[str]] = defaultdict(list)
    for test in tests:
        files[times.file_of(test)].append(test)
    lengths: Counter[str] = Counter()
    for file, its in files.items():
        lengths[unit_of(file)] += _length(file, its, known, recorded)
    return sorted(tests, key=lambda test: (-lengths[unit_of(test)], unit_of(test)))


def _length(file: str, tests: list[str], known: times.Times, recorded: Mapping[str, float]) -> float:
    measured = [known[test][0] for test in tests if test in known]
    if file in recorded and not measured:
        return recorded[file]
    return sum(measured) + (len(tests) - len(measured)) * _GUESSES.get(file.rpartition("/")[0], 0.1)


class ByUnits(LoadScopeScheduling):
    """Hands out units in the order of collection, which is the longest first."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


@pytest.hookimpl(optionalhook=True)  # `-p no:xdist`
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByUnits:
    config.option.loadscopereorder = False
    return ByUnits(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        tests = longest_first([i.nodeid for i in items], times.read(), times.recorded())
        order = {test: place for place, test in enumerate(tests)}
        items.sort(key=lambda item: order[item.nodeid])
