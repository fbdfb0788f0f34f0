"""Without the tools of `make binaries`, pytest says in one line what to type, before any test runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.children import REPOSITORY
from tests.unit.checkouts import run_pytest, small_checkout

TESTS = """
import pytest

@pytest.mark.binaries("etcd", "helm")
def test_that_needs_tools(): ...

def test_that_needs_none(): ...
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return small_checkout(tmp_path, TESTS)


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_pytest_is_refused_in_one_line_while_tools_are_missing(checkout: Path, workers: tuple[str, ...]) -> None:
    done = run_pytest(checkout, "tests", *workers)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert done.stderr.strip() == "ERROR: not built: etcd, helm; run `make binaries` (once, some minutes)"
    assert "passed" not in done.stdout


def test_a_selection_that_needs_none_runs_without_them(checkout: Path) -> None:
    done = run_pytest(checkout, "tests", "-k", "needs_none")
    assert (done.returncode, "1 passed" in done.stdout) == (0, True), done.stdout + done.stderr


def test_make_binaries_builds_every_tool_that_the_selected_tests_need(request: pytest.FixtureRequest) -> None:
    """In `make test` that is every test of the quick tier; the slow one builds more."""
    makefile = (REPOSITORY / "Makefile").read_text()
    built = next(line for line in makefile.splitlines() if line.startswith("TEST_TOOLS :=")).split()[2:]
    quick = [item for item in request.session.items if not item.get_closest_marker("slow")]
    needed = {name for item in quick for mark in item.iter_markers("binaries") for name in mark.args}
    assert needed <= set(built)
