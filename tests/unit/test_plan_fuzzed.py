"""No planner returns an illegal plan, nor one that ends before the bound, whatever the replicas are."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from coxswain.errors import Refused
from coxswain.plan.planners import BALANCES, SLOW, planner
from tests.fuzzed_problems import fuzzed_problem

FAST = sorted({*BALANCES} - SLOW)
ALWAYS = {"makespan", "naive", "bytescale"}  # plan whatever fits; the others need a mesh or powers of two


def faults(balance: str, seeds: Iterable[int]) -> list[tuple[int, str]]:
    """The first faults by seed. A step that the rival's groups cannot hold is refused by that name."""
    found = list[tuple[int, str]]()
    for seed in seeds:
        try:
            found += [(seed, fault) for fault in fuzzed_problem(seed, pipelines=0.05).faults(balance, planner(balance))]
        except Refused as refused:
            if balance in ALWAYS or refused.reason != "CapacityLost" or "maxDegree" not in str(refused):
                found.append((seed, str(refused)))
    return found[:5]


@pytest.mark.parametrize("balance", FAST)
def test_a_plan_of_any_replicas_is_legal_and_no_better_than_the_bound(balance: str) -> None:
    assert faults(balance, [3035, *range(30)]) == []


@pytest.mark.parametrize("balance", sorted(SLOW))
def test_a_plan_of_integer_programs_is_legal_too(balance: str) -> None:
    assert faults(balance, range(6)) == []


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(20))
@pytest.mark.parametrize("balance", FAST)
def test_of_a_hundred_thousand_plans_none_is_illegal_or_better_than_the_bound(balance: str, part: int) -> None:
    assert faults(balance, range(5_000 * part, 5_000 * (part + 1))) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("balance", sorted(SLOW))
def test_of_hundreds_of_plans_of_integer_programs_none_is_illegal(balance: str) -> None:
    assert faults(balance, range(300)) == []
