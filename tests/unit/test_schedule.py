"""Workers share the tests by whole files, the longest first."""

from __future__ import annotations

import re
from pathlib import Path

from tests.schedule import longest_first, unit_of
from tests.times import ROOT, recorded

INTEGRATION = Path(__file__).parents[1] / "integration"


def test_files_that_took_long_before_come_first_and_keep_the_order_within() -> None:
    tests = ["tests/unit/a.py::one", "tests/unit/b.py::one", "tests/unit/a.py::two", "tests/unit/b.py::two"]
    known = {"tests/unit/a.py::one": (1.0, 1.0), "tests/unit/b.py::one": (5.0, 1.0), "tests/unit/b.py::two": (0.5, 9.0)}
    assert longest_first(tests, known, {"tests/unit/a.py": 90.0}) == [tests[1], tests[3], tests[0], tests[2]]


def test_without_measurements_tests_of_servers_and_trainings_come_first() -> None:
    tests = ["tests/unit/a.py::one", "tests/distributed/b.py::one", "tests/local/c.py::one"]
    assert longest_first(tests, {}, {}) == tests[::-1]


def test_without_measurements_a_file_that_is_recorded_as_long_comes_first() -> None:
    tests = ["tests/local/c.py::one", "tests/unit/a.py::one"]
    assert longest_first(tests, {}, {"tests/unit/a.py": 30.0}) == tests[::-1]


def test_every_file_that_is_recorded_as_long_exists() -> None:
    assert [file for file in recorded() if not (ROOT / file).exists()] == []


def test_all_tests_on_the_shared_api_server_are_one_unit() -> None:
    using = [file for file in INTEGRATION.glob("test_*.py") if re.search(r"[(, ]api: ApiServer", file.read_text())]
    own = INTEGRATION / "test_chart_applies.py"  # its helpers take a server of its own by that name
    assert len({unit_of(f"tests/integration/{file.name}::a[b/c::d]") for file in using if file != own}) == 1
    assert unit_of("tests/integration/test_run_s3.py::a") == "tests/integration/test_run_s3.py"
