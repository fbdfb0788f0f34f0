"""Survivors that are accepted do not count; entries that accept nothing are reported."""

from __future__ import annotations

from tests.mutants.orders import Result, Verdict
from tests.mutants.report import Report
from tests.mutants.table import Accepted

MODULE = "core/sample.py"
SOURCE = "def f(x):\n    return x + 1\n"


def result(verdict: Verdict, after: str = "return x - 1") -> Result:
    return Result("op:0", verdict, "digest", 2, "return x + 1", after, "", 0.1)


def entry(after: str = "return x - 1", before: str = "return x + 1") -> Accepted:
    return Accepted(MODULE, before, after, "equal")


def report(results: list[Result], accepted: list[Accepted]) -> Report:
    return Report({MODULE: results}, accepted, {MODULE: SOURCE})


def test_a_survivor_is_shown_with_its_place_and_its_change() -> None:
    found = report([result("survived"), result("killed")], [])
    assert list(found.details()) == [f"{MODULE}:2  op:0", "  - return x + 1", "  + return x - 1"]
    assert found.rate == 0.5


def test_an_accepted_survivor_does_not_count() -> None:
    found = report([result("survived"), result("killed", "return 1")], [entry()])
    assert (list(found.details()), found.rate) == ([], 1.0)


def test_another_change_of_the_same_line_is_not_accepted_with_it() -> None:
    found = report([result("survived", "return x")], [entry()])
    assert len(found.survivors) == 1


def test_a_mutant_that_ran_out_of_time_counts_as_killed_and_an_error_does_not() -> None:
    assert report([result("timeout"), result("error", "return 1")], []).rate == 0.5


def test_an_entry_is_stale_when_its_mutant_is_killed() -> None:
    assert report([result("killed")], [entry()]).stale == [entry()]


def test_an_entry_is_stale_when_its_line_is_gone() -> None:
    gone = entry(before="return x + 2")
    assert report([], [gone]).stale == [gone]


def test_an_entry_is_kept_when_one_of_its_mutants_survives_or_none_was_tried() -> None:
    assert report([result("killed"), result("survived")], [entry()]).stale == []
    assert report([], [entry()]).stale == []


def test_the_summary_counts_each_module() -> None:
    lines = list(report([result("killed"), result("timeout"), result("survived")], []).lines())
    assert lines[1].split() == [MODULE, "3", "1", "1", "1", "0", "0", "66.7%"]
    assert lines[-1] == "3 mutants, 1 survivors that are not accepted, 66.7% killed"
