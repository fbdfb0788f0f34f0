"""Measured speeds in plans: any vector ends near its bound, and heeding speeds never costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from coxswain.plan.bounds import lower_bound
from coxswain.plan.lengths import draw_lengths
from coxswain.plan.planners import planner
from coxswain.plan.problem import Problem, make_problem
from coxswain.plan.simulate import simulate
from tests.unit.plan_cases import given

K = 1024
FAMILIES = {
    "wikipedia": 256 * K, "github": 256 * K, "byted": 256 * K, "uniform": 64 * K, "video": 64 * K,
    "documents": 512 * K, "huge": 1024 * K,
}  # fmt: skip


def speeds(kind: str, replicas: int, seed: int) -> NDArray[np.float64]:
    """The measured speeds of some ways in which replicas become slow."""
    rng, found = np.random.default_rng(seed), np.ones(replicas)
    some = rng.permutation(replicas)
    if kind == "one slow":
        found[some[0]] = 1 / 1.3
    elif kind == "one throttled":
        found[some[0]] = 1 / 4
    elif kind == "half slow":
        found[some[::2]] = 1 / 2
    elif kind == "three hang":
        found[some[:3]] = 1e-3
    elif kind == "one node slow":
        found[some[0] // 8 * 8 :][:8] = 1 / 2
    elif kind == "a few slow":
        found[some[: replicas // 20]] = rng.uniform(0.3, 0.9, replicas // 20)
    elif kind == "all differ":
        found = rng.uniform(0.7, 1, replicas)
    return found


KINDS = ("one slow", "one throttled", "half slow", "three hang", "one node slow", "a few slow", "all differ")


def step(family: str, kind: str, replicas: int = 256, seed: int = 0) -> Problem:
    lengths = draw_lengths(family, context=min(FAMILIES[family], replicas * 4 * K), tokens=replicas * 32 * K, seed=seed)
    return make_problem(lengths, **given(replicas, 8 * K, speeds=speeds(kind, replicas, seed).tolist()))


def end(problem: Problem, judged_by: Problem) -> float:
    """When the plan that the one problem gets ends on the replicas of the other one."""
    return simulate(judged_by, planner("makespan")(problem)).makespan


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_whatever_the_speeds_are_a_plan_ends_within_5_percent_of_the_bound(family: str, kind: str) -> None:
    problem = step(family, kind)
    assert end(problem, problem) <= 1.05 * lower_bound(problem)


@pytest.mark.parametrize("seed", [1, 3, 5, 7])
def test_sequences_that_need_slow_replicas_whichever_they_take_end_near_what_that_must_cost(seed: int) -> None:
    lengths = draw_lengths("byted", context=2048 * K, tokens=256 * 32 * K, seed=seed)
    problem = make_problem(lengths, **given(256, 8 * K, speeds=speeds("half slow", 256, seed).tolist()))
    assert end(problem, problem) <= 1.09 * lower_bound(problem)
    assert lower_bound(problem) >= 1.2 * problem.lower_bound()


@pytest.mark.parametrize(("replicas", "seed"), [(1024, 1), (1024, 2), (256, 0)])
def test_a_few_slow_replicas_by_themselves_leave_the_others_to_rings_that_need_a_quarter_of_all(
    replicas: int, seed: int
) -> None:
    """On 256 replicas the longest one needs the slow ones too."""
    lengths = draw_lengths("byted", context=2048 * K, tokens=replicas * 32 * K, seed=seed)
    problem = make_problem(lengths, **given(replicas, 8 * K, speeds=speeds("a few slow", replicas, seed).tolist()))
    assert end(problem, problem) <= 1.07 * lower_bound(problem)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("stages", [1, 4])
@pytest.mark.parametrize("fast", [1e9, 1e12])
def test_a_sequence_too_short_to_change_when_a_slow_replica_ends_is_placed_too(fast: float, stages: int) -> None:
    lengths = [4 * 8192, 3 * 8192, 2 * 8192, 5, 1]
    problem = make_problem(lengths, **given(4, 8192, speeds=[fast, 1 / fast, 1.0, 1.0], stages=stages))
    assert sorted(i for draft in planner("makespan")(problem) for i in draft.sequences) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_heeding_speeds_never_makes_a_plan_slower_on_those_replicas(family: str, kind: str) -> None:
    problem = step(family, kind, 64, seed=1)
    flat = replace(problem, speeds=np.ones(problem.replicas))
    assert end(problem, problem) <= end(flat, problem)


@pytest.mark.parametrize("kind", ["one slow", "a few slow", "all differ"])
@pytest.mark.parametrize("family", ["github", "byted", "documents"])
def test_a_speed_that_wavers_by_a_quarter_percent_changes_no_plan(family: str, kind: str) -> None:
    problem = step(family, kind, 64)
    settled = np.exp2(np.round(np.log2(problem.speeds) * 128) / 128)
    plans = [
        replace(problem, speeds=settled * (1 + np.where(settled == settled.min(), by, 0))) for by in (-25e-4, 0, 25e-4)
    ]
    below, as_settled, above = (planner("makespan")(each) for each in plans)
    assert below == as_settled == above


@pytest.mark.parametrize("family", ["wikipedia", "github", "uniform"])
def test_a_replica_that_is_hardly_slow_keeps_the_plan_of_equal_speeds(family: str) -> None:
    problem = step(family, "equal")
    slow = replace(problem, speeds=np.where(np.arange(256) == 77, 1 / 1.015, 1.0))
    assert planner("makespan")(slow) == planner("makespan")(problem)
    assert end(slow, slow) <= 1.03 * lower_bound(slow)
