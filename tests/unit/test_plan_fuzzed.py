"""No planner returns an illegal plan, nor one that ends before the bound, whatever the replicas are."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from coxswain.plan.planners import planner
from tests.fuzzed_problems import fuzzed_problem


def faults(balance: str, seeds: Iterable[int]) -> list[tuple[int, str]]:
    """The first faults by seed."""
    plan = planner(balance)
    return [(seed, found) for seed in seeds for found in fuzzed_problem(seed, pipelines=0.05).faults(balance, plan)[:1]]


def test_a_makespan_plan_of_any_replicas_is_legal_and_no_better_than_the_bound() -> None:
    assert faults("makespan", [3035, *range(150)]) == []


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_no_makespan_plan_of_a_hundred_thousand_is_illegal_or_better_than_the_bound(part: int) -> None:
    assert faults("makespan", range(10_000 * part, 10_000 * (part + 1)))[:5] == []
