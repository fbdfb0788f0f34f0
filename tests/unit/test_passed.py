"""A long run of the tests goes on behind those that have passed at this commit."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.passed import selection
from tests.unit.checkouts import run_pytest, small_checkout

TESTS = """
from pathlib import Path

import pytest

@pytest.mark.parametrize("number", range(3))
def test_that_passes(number):
    with Path("ran").open("a") as file:
        file.write(f"{number} ")

def test_that_passes_once_it_is_mended(tmp_path):
    assert Path("mended").exists()

@pytest.fixture
def torn():
    yield
    assert Path("mended").exists()

def test_whose_end_passes_once_it_is_mended(torn): ...
"""


def git(checkout: Path, *words: str) -> None:
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *author, *words], cwd=checkout, check=True, capture_output=True, timeout=60)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    small_checkout(tmp_path, TESTS)
    (tmp_path / ".gitignore").write_text("ran\nmended\n.cache\n__pycache__\n")
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--message", "begun")
    return tmp_path


def ran(checkout: Path, *words: str) -> tuple[int, str, tuple[int, ...]]:
    """Exit code, which of the three ran, and how many have passed: at all, and in runs before."""
    (checkout / "ran").write_text("")
    done = run_pytest(checkout, "-p", "tests.passed", "tests", *words)
    said = re.search(r"(\d+) have passed at this commit, (\d+) of them in runs before", done.stdout)
    assert said, done.stdout + done.stderr
    numbers = sorted((checkout / "ran").read_text().split())
    return done.returncode, " ".join(numbers), tuple(map(int, said.groups()))


def test_a_run_goes_on_behind_what_passed_with_any_workers_and_one_that_is_whole_begins_again(checkout: Path) -> None:
    assert ran(checkout) == (1, "0 1 2", (3, 0))
    assert ran(checkout, "-n", "2") == (1, "", (3, 3))
    (checkout / "mended").touch()
    assert ran(checkout) == (0, "", (5, 3))
    assert ran(checkout, "-n", "2") == (0, "0 1 2", (5, 0))


def test_a_run_that_ended_behind_its_last_test_is_whole(checkout: Path) -> None:
    ran(checkout)
    record = checkout / ".cache" / "tests" / "passed.txt"
    with record.open("a") as file:
        file.write("tests/test_some.py::test_that_passes_once_it_is_mended\n")
        file.write("tests/test_some.py::test_whose_end_passes_once_it_is_mended\n")
    assert ran(checkout) == (0, "", (5, 5))
    assert not record.exists()


def test_an_edit_another_commit_and_another_selection_begin_from_the_start(checkout: Path) -> None:
    def name(marks: str = "slow") -> str:
        option = SimpleNamespace(markexpr=marks, keyword="")
        return selection(SimpleNamespace(option=option, args=["tests"]), checkout)

    seen = [name(), name("slow or hypothesis")]
    for edit in ("one", "two"):
        (checkout / "tests" / "test_some.py").write_text(TESTS + f"# {edit}\n")
        seen.append(name())
    git(checkout, "commit", "--all", "--message", "edited")
    seen.append(name())
    for new in ("new.py", "newer.py"):
        (checkout / "tests" / new).touch()
        seen.append(name())
    assert len(set(seen)) == len(seen) and name() == seen[-1]
