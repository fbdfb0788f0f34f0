"""Few replicas: rings of several sequences end a step that has hardly more tasks than replicas."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coxswain.plan.bounds import lower_bound
from coxswain.plan.makespan.meshes import FEW, GAIN, SEQUENCES, meshes, or_mesh
from coxswain.plan.makespan.search import makespan
from coxswain.plan.planners import planner
from coxswain.plan.problem import Problem, make_problem
from coxswain.plan.simulate import simulate
from tests.unit.plan_cases import given

K = 1024


def problem_of(lengths: list[int], replicas: int, **more: Any) -> Problem:
    return make_problem(lengths, **given(replicas, K, **more))


def end(problem: Problem, balance: str) -> float:
    return simulate(problem, planner(balance)(problem)).makespan


def text_of(replicas: int, seed: int) -> Problem:
    """A step of so many replicas, of texts with a long tail, of which the longest needs half of them or more."""
    draw = np.random.default_rng(seed)
    longest = replicas * K
    lengths = [min(longest, int(256 * (1 + draw.pareto(0.7)))) for _ in range(2 * replicas)]
    return problem_of([longest * 3 // 4, *lengths], replicas)


@pytest.mark.parametrize("replicas", [2, 3, 4, 6, FEW])
def test_a_step_of_few_replicas_ends_at_most_a_hundredth_after_that_of_a_static_mesh(replicas: int) -> None:
    gained = []
    for seed in range(12):
        problem = text_of(replicas, seed)
        gained.append(end(problem, "static") / end(problem, "makespan"))
    assert min(gained) >= 1 / GAIN - 1e-9


def test_four_sequences_on_four_replicas_end_within_a_hundredth_of_the_bound() -> None:
    problem = problem_of([4 * K, 4 * K, 3 * K, 1], 4)
    assert end(problem, "makespan") <= 1.01 * lower_bound(problem)


def test_a_mesh_has_every_degree_that_divides_the_replicas_and_holds_the_longest_sequence() -> None:
    problem = problem_of([3 * K, *[K] * 9], 12)
    found = list(meshes(problem))
    degrees = [{len(draft.members) for draft in drafts} for drafts in found]
    assert degrees == [{3}, {3}, {4}, {4}, {6}, {6}, {12}, {12}]
    assert all(sorted(i for draft in drafts for i in draft.sequences) == list(range(10)) for drafts in found)
    assert [len(drafts[0].members) for drafts in meshes(replace(problem, max_degree=4))] == [3, 3, 4, 4]


@pytest.mark.parametrize(
    ("lengths", "replicas"),
    [([4 * K, K // 4], FEW + 1), ([K, K, 9], 4), ([4 * K, *[1] * 4 * SEQUENCES], 4), ([4 * K, 4 * K], 4)],
    ids=["many replicas", "all fit one replica", "many sequences", "nothing to gain"],
)
def test_a_plan_stays_as_it_was_found(lengths: list[int], replicas: int) -> None:
    problem = problem_of(lengths, replicas)
    found = makespan(problem)
    assert or_mesh(problem, found) is found
    assert all(len(draft.members) == 1 or len(draft.sequences) == 1 for draft in found)


def test_a_mesh_gives_slow_groups_less() -> None:
    problem = problem_of([K] * 60, 4, speeds=[1.0, 1.0, 0.5, 0.5])
    drafts = next(found for found in meshes(problem) if len(found[0].members) == 2)
    tokens = dict.fromkeys(((0, 1), (2, 3)), 0)
    for draft in drafts:
        tokens[draft.members] += int(problem.lengths[list(draft.sequences)].sum())
    assert 1.8 <= tokens[0, 1] / tokens[2, 3] <= 2.2
