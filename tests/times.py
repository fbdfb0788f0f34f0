"""How long each test takes, by the wall and of the processors: kept in `.cache/tests/times.json`, listed by `make slowest`.

The processor's time counts the children that a test has waited for: servers that outlive it count nowhere.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / ".cache" / "tests" / "times.json"
LONG_FILES = ROOT / "tests" / "long_files.json"
LONG = 4.0  # seconds
_WALL, _CPU = "wall seconds", "processor seconds"
Times = dict[str, tuple[float, float]]


def read() -> Times:
    """By test: wall seconds and processor seconds, as last measured; empty before the first run."""
    return {test: (wall, cpu) for test, (wall, cpu) in json.loads(FILE.read_text()).items()} if FILE.exists() else {}


def recorded() -> dict[str, float]:
    """Seconds by the wall of each file that takes long, for a checkout that has measured none."""
    found: dict[str, float] = json.loads(LONG_FILES.read_text())
    return found


def record() -> None:
    """Writes what was measured here, after a run of the quick tests alone on a fresh clone."""
    walls = {file: round(wall) for file, (wall, _) in sorted(sums(read(), file_of).items()) if wall >= LONG}
    LONG_FILES.write_text(json.dumps(walls, indent=2) + "\n")


def file_of(test: str) -> str:
    return test.partition("::")[0]


class Recorder:
    """Plugin of the process that reports: the only one, or the controller of several workers."""

    def __init__(self) -> None:
        self._seen: Times = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        measured = dict(report.user_properties)
        if report.when == "teardown" and _WALL in measured:
            self._seen[report.nodeid] = (measured[_WALL], measured[_CPU])

    def pytest_sessionfinish(self) -> None:
        FILE.parent.mkdir(parents=True, exist_ok=True)
        partial = FILE.with_suffix(".partial")
        older = {test: time for test, time in read().items() if (ROOT / file_of(test)).exists()}
        partial.write_text(json.dumps(older | self._seen, indent=0))
        partial.replace(FILE)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Fixtures included: those of several tests count to the first and the last of them."""
    try:
        return (yield)
    finally:
        wall, cpu = item.stash[_STARTED]
        item.user_properties += [(_WALL, round(time.monotonic() - wall, 2)), (_CPU, round(_processors() - cpu, 2))]


_STARTED = pytest.StashKey[tuple[float, float]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    item.stash[_STARTED] = time.monotonic(), _processors()
    return (yield)


def _processors() -> float:
    uses = [resource.getrusage(target) for target in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


def folder_of(test: str) -> str:
    return "/".join(file_of(test).split("/")[:-1][:2])


def sums(times: Times, by: Callable[[str], str]) -> Times:
    found: Times = {}
    for test, (wall, cpu) in times.items():
        before = found.get(by(test), (0.0, 0.0))
        found[by(test)] = (before[0] + wall, before[1] + cpu)
    return found


def main(count: int = 25) -> int:
    """Prints the slowest tests, then files, then folders, and the sum. `record`: writes `tests/long_files.json`."""
    if sys.argv[1:] == ["record"]:
        record()
        return 0
    times = read()
    for title, rows in (("test", times), ("file", sums(times, file_of)), ("folder", sums(times, folder_of))):
        print(f"{'wall':>8} {'CPU':>8}  {title}")
        for name, (wall, cpu) in sorted(rows.items(), key=lambda row: -row[1][0])[:count]:
            print(f"{wall:7.1f}s {cpu:7.1f}s  {name}")
    print(
        f"{sum(w for w, _ in times.values()):7.1f}s {sum(c for _, c in times.values()):7.1f}s  all {len(times)} tests"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
