"""Whole runs on a small project: what is killed, what survives, what a kill of the tool leaves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from e2e.cluster.process import wait_until
from tests.mutants.orders import Result
from tests.mutants.test_kept import marked

REPOSITORY = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.timeout(300)  # a run starts pytest three times

MODULE = """\
LIMIT = 3


def within(value):
    if value <= LIMIT:
        return True
    return False


def wait(flag):
    while not flag:
        pass
    return flag


def twice(value):
    return 2 * value
"""
TESTS = """\
import os, signal, subprocess, sys

from toy import wait, within


def test_gate():
    if os.path.exists(os.environ["GATE"]):
        subprocess.Popen(["sleep", "600"], start_new_session=True)
        signal.pause()


def test_a_small_value_is_within():
    assert within(2)


def test_a_set_flag_is_not_waited_for():
    assert wait(True)


def test_another_process():
    assert subprocess.check_output([sys.executable, "-c", "import toy; print(toy.twice(2))"]) == b"4\\n"
"""
TABLE = """\
roots = ["source"]

[[group]]
name = "toy"
modules = ["source/toy.py"]
tests = ["checks/test_toy.py"]
"""


def make_project(root: Path) -> Path:
    tool = {"tests/mutants/modules.toml": TABLE, "tests/mutants/accepted.toml": "", "pytest.ini": ""}
    for path, text in {"source/toy.py": MODULE, "checks/test_toy.py": TESTS, **tool}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, str]:
    """A project whose mutants have all been tried, and what the run said."""
    root = make_project(tmp_path_factory.mktemp("tried") / "project")
    return root, *run(root)


@pytest.fixture
def tried(first_run: tuple[Path, int, str], tmp_path: Path) -> Path:
    """A copy of that project, with its state."""
    return Path(shutil.copytree(first_run[0], tmp_path / "project"))


def start(root: Path, *arguments: str) -> subprocess.Popen[str]:
    """`make mutants` for the project."""
    environment = {**os.environ, "KEPT_MARK": str(root), "GATE": str(root / "gate")}
    command = [sys.executable, "-m", "tests.mutants", "--root", str(root), "--jobs", "1", *arguments]
    return subprocess.Popen(
        command, cwd=REPOSITORY, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def run(root: Path, *arguments: str) -> tuple[int, str]:
    with start(root, *arguments) as process:
        output, _ = process.communicate(timeout=250)
    return process.returncode, output


def stored(root: Path) -> bytes:
    return b"".join(path.read_bytes() for path in (root / ".cache" / "mutants" / "results").glob("*.jsonl"))


def results(root: Path) -> list[Result]:
    return [msgspec.json.decode(line, type=Result) for line in stored(root).splitlines()]


def verdicts(root: Path) -> dict[tuple[str, str], str]:
    return {(result.before, result.after): result.verdict for result in results(root)}


def test_a_run_distinguishes_killed_mutants_from_survivors_and_from_those_that_never_end(
    first_run: tuple[Path, int, str],
) -> None:
    root, code, output = first_run
    found = verdicts(root)
    assert found.pop(("while not flag:", "while  flag:")) == "timeout"
    assert {change for change, verdict in found.items() if verdict == "survived"} == {
        ("LIMIT = 3", "LIMIT = 4"),
        ("LIMIT = 3", "LIMIT = 2"),
        ("if value <= LIMIT:", "if value < LIMIT:"),
        ("return False", "return True"),
    }
    in_another_process = ("return 2 * value", "return 2 / value")
    assert found[in_another_process] == "killed"
    assert set(found.values()) == {"killed", "survived"}
    assert code == 1  # too few are killed
    assert (
        "source/toy.py:5  ReplaceComparisonOperator_LtE_Lt:0\n  - if value <= LIMIT:\n  + if value < LIMIT:" in output
    )
    assert (root / "source" / "toy.py").read_text() == MODULE


@pytest.mark.slow
def test_a_killed_run_leaves_no_process_and_no_change_and_goes_on_where_it_was(tmp_path: Path) -> None:
    root = make_project(tmp_path / "project")
    with start(root, "--sample", "6") as driver:
        wait_until(lambda: bool(stored(root)), "a result", deadline=120)
        (root / "gate").touch()
        wait_until(lambda: any(_sleeps(pid) for pid in marked(str(root))), "a trial that waits")
        driver.kill()
        wait_until(lambda: not marked(str(root)), "the end of all processes")
    assert (root / "source" / "toy.py").read_text() == MODULE
    before = stored(root)
    (root / "gate").unlink()
    run(root, "--sample", "6")
    assert stored(root).startswith(before)
    keys = [result.key for result in results(root)]
    assert 0 < len(before.splitlines()) < len(keys) == len(set(keys)) == 6


def _sleeps(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep")
    except OSError:
        return False


@pytest.mark.slow
def test_survivors_alone_are_tried_again_when_tests_change(tried: Path) -> None:
    before = stored(tried)
    more = "\n\ndef test_a_large_value_is_not_within():\n    assert within(3) and not within(4)\n"
    (tried / "checks" / "test_toy.py").write_text(TESTS + more)
    code, output = run(tried)
    again = results(tried)[len(before.splitlines()) :]
    assert {result.verdict for result in again} == {"killed"}
    assert len(again) == before.count(b'"survived"') == 4
    assert (code, "100.0% killed" in output) == (0, True)


def test_an_accepted_survivor_is_left_out_and_a_stale_entry_is_reported(tried: Path) -> None:
    entries = [("return False", "return True"), ("return 2 * value", "return 2 / value")]
    text = "".join(
        f"[[accepted]]\nmodule = 'source/toy.py'\nbefore = '{before}'\nafter = '{after}'\nreason = 'a try'\n"
        for before, after in entries
    )
    (tried / "tests" / "mutants" / "accepted.toml").write_text(text)
    before = stored(tried)
    code, output = run(tried, "--at-least", "0")
    assert (code, stored(tried)) == (1, before)  # nothing is tried again
    assert "+ return True" not in output
    assert "accepted, but gone or killed by now: source/toy.py: 'return 2 * value' -> 'return 2 / value'" in output


def test_a_sample_is_as_large_as_it_is_asked_to_be_and_other_modules_are_left_out(tried: Path) -> None:
    _, output = run(tried, "--sample", "3", "source/toy.py")
    assert "3 mutants," in output
    _, output = run(tried, "elsewhere")
    assert "0 mutants," in output


def test_tests_that_fail_without_a_mutant_judge_none(tmp_path: Path) -> None:
    root = make_project(tmp_path / "project")
    (root / "checks" / "test_toy.py").write_text(TESTS.replace("within(2)", "within(4)"))
    code, output = run(root)
    assert code == 2
    assert "test_a_small_value_is_within" in output
    assert not stored(root)
