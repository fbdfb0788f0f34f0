"""Steps of few long sequences: rings on columns of whole nodes that end together."""

from __future__ import annotations

import random

import numpy as np
import pytest

from coxswain.plan.bounds import lower_bound
from coxswain.plan.lengths import draw_lengths
from coxswain.plan.makespan.columns import are_few, place_columns
from coxswain.plan.planners import planner
from coxswain.plan.problem import Draft, Problem, make_problem
from coxswain.plan.simulate import simulate
from tests.unit.plan_cases import given

K = 1024


def long_of(problem: Problem) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    order = np.argsort(-problem.lengths, kind="stable")
    return np.split(order, [int((problem.lengths > problem.capacity).sum())])  # type: ignore[return-value]


@pytest.mark.parametrize("seed", [0, 2, 7])
def test_thirty_rings_on_256_replicas_end_within_4_percent_of_the_bound(seed: int) -> None:
    """On blocks of doubled sizes they end 5 to 6.4 % above it."""
    lengths = draw_lengths("documents", context=512 * K, tokens=256 * 16 * K, seed=seed)
    problem = make_problem(lengths, **given(256, 8 * K))
    assert simulate(problem, planner("makespan")(problem)).makespan <= 1.04 * lower_bound(problem)


@pytest.mark.parametrize("uneven", [False, True])
def test_columns_are_whole_nodes_whose_rings_follow_each_other_and_end_in_time(uneven: bool) -> None:
    placed = 0
    for seed in range(30):
        rng = random.Random(seed)
        speeds = [rng.uniform(0.7, 1) if uneven else 1.0 for _ in range(64)]
        lengths = [rng.randint(9, 160) * K for _ in range(rng.randint(4, 14))] + [
            rng.randint(1, 8) * K for _ in range(9)
        ]
        problem = make_problem(lengths, **given(64, 8 * K, speeds=speeds))
        long, short = long_of(problem)
        seconds = rng.uniform(1, 1.4) * problem.lower_bound()
        if (schedule := place_columns(problem, long, short, seconds)) is None:
            continue
        placed += 1
        drafts = [Draft(ring.members, (ring.sequence,)) for ring in schedule.rings]
        timeline = simulate(problem, drafts)
        assert sorted(i for d in drafts for i in d.sequences) == sorted(long.tolist())
        assert timeline.makespan <= seconds * (1 + 1e-9)
        assert timeline.starts == pytest.approx([ring.start for ring in schedule.rings])
        assert schedule.gaps.replica.size == 0
        assert {len({r // 8 for r in d.members}) * 8 - len(d.members) for d in drafts} == {0}
        ends = [
            max(
                [s + t for s, t, d in zip(timeline.starts, timeline.seconds, drafts, strict=True) if r in d.members],
                default=0.0,
            )
            for r in range(64)
        ]
        assert schedule.loads.tolist() == pytest.approx(ends)
    assert placed >= 10


@pytest.mark.parametrize("most", [8, 16, 24])
def test_no_ring_of_a_column_has_more_members_than_the_maximum_degree(most: int) -> None:
    """A wider column would run more of them one after another: the validator refuses such a plan, and the step has none."""
    placed, widest = 0, 0
    for seed in range(20):
        rng = random.Random(seed)
        lengths = [rng.randint(9, 8 * most) * K for _ in range(rng.randint(4, 14))]
        problem = make_problem(lengths, **given(64, 8 * K, max_degree=most))
        if schedule := place_columns(problem, *long_of(problem), rng.uniform(1, 1.4) * problem.lower_bound()):
            placed, widest = placed + 1, max(widest, *(len(ring.members) for ring in schedule.rings))
    assert (placed >= 5, widest) == (True, most)


def test_columns_refuse_too_little_time_and_nodes_of_different_sizes() -> None:
    problem = make_problem([60 * K, 50 * K, 40 * K], **given(16, 8 * K))
    long, short = long_of(problem)
    assert place_columns(problem, long, short, 0.99 * problem.lower_bound()) is None
    assert place_columns(problem, long, short, 2 * problem.lower_bound()) is not None
    uneven = make_problem([60 * K, 50 * K, 40 * K], **given(15, 8 * K))
    assert place_columns(uneven, long, short, 2 * problem.lower_bound()) is None


def test_a_step_has_few_rings_by_its_nodes_and_by_what_may_be_tried() -> None:
    def few(replicas: int, rings: int) -> bool:
        return are_few(make_problem([1], **given(replicas, 10)), rings)

    assert [few(16, rings) for rings in (0, 1, 5, 6)] == [False, True, True, False]
    assert [few(1024, rings) for rings in (48, 49)] == [True, False]
