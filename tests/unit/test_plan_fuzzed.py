"""No planner returns an illegal plan, nor one that ends before the bound, whatever the replicas are."""

from __future__ import annotations

from pathlib import Path

import pytest

from coxswain.plan.planners import BALANCES, SLOW
from tests import fuzz_plans
from tests.draws import drawn_below
from tests.fuzz_plans import lines, planned

FAST = sorted({*BALANCES} - SLOW)
PART = 5_000  # seeds


@pytest.mark.parametrize("balance", FAST)
def test_a_plan_of_any_replicas_is_legal_and_no_better_than_the_bound(balance: str) -> None:
    assert [planned(balance, seeds, 0.05)["faults"] for seeds in (range(30), range(3035, 3036))] == [[], []]


@pytest.mark.parametrize("balance", sorted(SLOW))
def test_a_plan_of_integer_programs_is_legal_too(balance: str) -> None:
    assert planned(balance, range(6), 0.05)["faults"] == []


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("balance", FAST)
def test_of_a_hundred_thousand_plans_none_is_illegal_or_better_than_the_bound(balance: str) -> None:
    """A twentieth of them, another in each run of the slow tier; `python -m tests.fuzz_plans` plans all."""
    first = PART * drawn_below(100_000 // PART)
    assert planned(balance, range(first, first + PART), 0.25)["faults"] == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("balance", sorted(SLOW))
def test_of_hundreds_of_plans_of_integer_programs_none_is_illegal(balance: str) -> None:
    assert planned(balance, range(300), 0.25)["faults"] == []


def test_a_run_that_was_interrupted_goes_on_behind_the_chunks_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, asked = tmp_path / "log", list[tuple[str, range]]()

    def noted(balance: str, seeds: range, pipelines: float) -> fuzz_plans.Line:
        asked.append((balance, seeds))
        return {"refused": 1, "faults": [[seeds.start, "wrong"]] if balance == "kk" else []}

    monkeypatch.setattr(fuzz_plans, "planned", noted)
    first = lines(log, "abc", ["naive", "kk"], range(1200), 0.25)
    begun = [next(first) for _ in range(3)]
    found = list(lines(log, "abc", ["naive", "kk"], range(1200), 0.25))
    assert found[:3] == begun
    chunks = [range(500), range(500, 1000), range(1000, 1200)]
    assert asked == [(balance, chunk) for chunk in chunks for balance in ("naive", "kk")]
    assert [line["faults"] for line in found if line["balance"] == "kk"] == [[[c.start, "wrong"]] for c in chunks]
    assert next(lines(log, "def", ["naive"], range(500), 0.25))["commit"] == "def"
    assert len(asked) == 7
