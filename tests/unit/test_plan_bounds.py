"""The bound is below every plan, and near the best one where rings must take slow replicas."""

from __future__ import annotations

import dataclasses
import random
from itertools import combinations, product

import msgspec
import numpy as np
import pytest

from coxswain.errors import Refused
from coxswain.plan.bounds import lower_bound
from coxswain.plan.lengths import draw_lengths
from coxswain.plan.planners import BALANCES, SLOW, plan, planner
from coxswain.plan.problem import Draft, make_problem
from coxswain.plan.simulate import simulate
from tests.fuzzed_problems import fuzzed_problem
from tests.unit.plan_cases import COST, given

K = 1024


@pytest.mark.parametrize("seed", range(12))
def test_no_plan_of_a_small_step_on_uneven_replicas_ends_before_the_bound(seed: int) -> None:
    """All placements of four sequences, in every order, on three replicas in nodes of any size."""
    rng = random.Random(seed)
    lengths = [rng.choice((rng.randint(1, 8192), rng.randint(8193, 3 * 8192))) for _ in range(4)]
    speeds, nodes = [rng.uniform(0.4, 1) for _ in range(3)], [rng.randrange(2) for _ in range(3)]
    problem = make_problem(lengths, **given(3, 8192, speeds=speeds, nodes=nodes))
    places = [p for size in (1, 2, 3) for p in combinations(range(3), size)]
    fits = [[p for p in places if s <= 8192 * len(p)] for s in lengths]
    orders = [sorted(range(4), key=lambda i: keys[i]) for keys in ([-s for s in lengths], lengths, [3, 1, 0, 2])]
    plans = [[Draft(where[i], (i,)) for i in order] for where in product(*fits) for order in orders]
    assert lower_bound(problem) <= min(simulate(problem, drafts).makespan for drafts in plans) * (1 + 1e-9)


@pytest.mark.parametrize("balance", sorted(set(BALANCES) - SLOW))
def test_no_planner_ends_before_the_bound_whatever_the_replicas_are(balance: str) -> None:
    planned = 0
    for seed in range(1000, 1040):
        problem = fuzzed_problem(seed).problem
        try:
            found = simulate(problem, planner(balance)(problem)).makespan
        except Refused:  # a mesh does not divide the replicas
            continue
        planned += 1
        assert found >= lower_bound(problem) * (1 - 1e-9), f"seed {seed}"
    assert planned >= 20


def test_the_bound_counts_what_a_ring_over_all_replicas_loses_by_a_slow_one() -> None:
    speeds = [1 / 1.3, *[1.0] * 7]
    problem = make_problem([8 * 8192, *[4000] * 40], **given(8, 8192, speeds=speeds))
    ring = float(problem.cost.work_seconds([8 * 8192])[0])
    packs = problem.cost.task * -(-int(problem.lengths.sum()) // 8192)
    lost = ring * (sum(speeds) / 8 * 1.3 - 1)
    rest = float(problem.cost.work_seconds([4000] * 40).sum())
    assert lower_bound(problem) == pytest.approx((ring + lost + rest + packs) / sum(speeds), rel=1e-6)


def test_sequences_that_each_need_more_than_half_of_all_replicas_are_counted_one_after_another() -> None:
    problem = make_problem([3 * 8192] * 3, **given(4, 8192, max_degree=3))
    alone = problem.cost.work_seconds(3 * 8192) / 3
    assert problem.lower_bound() < 0.9 * 3 * alone <= 0.9 * lower_bound(problem) * (1 + 1e-9)
    pairs = make_problem([3 * 8192] * 5, **given(7, 8192, max_degree=3))  # two at once
    assert lower_bound(pairs) >= 5 * alone / 2 * (1 - 1e-9)


@pytest.mark.parametrize("speeds", [[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 0.8, 0.8]])
def test_sequences_that_each_need_just_half_of_all_replicas_run_side_by_side(speeds: list[float]) -> None:
    problem = make_problem([2 * 8192] * 2, **given(4, 8192, speeds=speeds, max_degree=2, node_size=2))
    found = simulate(problem, [Draft((0, 1), (0,)), Draft((2, 3), (1,))]).makespan
    assert lower_bound(problem) <= found * (1 + 1e-9)


def test_a_ring_of_all_replicas_of_a_node_has_the_links_within_it() -> None:
    cost = dataclasses.replace(COST, constants=msgspec.structs.replace(COST.constants, between_nodes_gbps=0.01))
    problem = make_problem([4 * 8192], **given(8, 8192, cost=cost, max_degree=4, node_size=4))
    assert lower_bound(problem) <= simulate(problem, [Draft((0, 1, 2, 3), (0,))]).makespan * (1 + 1e-9)


def test_long_sequences_that_share_a_ring_have_the_cost_of_one_task() -> None:
    cost = dataclasses.replace(COST, constants=msgspec.structs.replace(COST.constants, task_ms=1000.0))
    problem = make_problem([12 * K] * 2, **given(3, 8192, cost=cost))
    assert lower_bound(problem) <= simulate(problem, [Draft((0, 1, 2), (0, 1))]).makespan * (1 + 1e-9)


def test_a_crowd_of_long_sequences_can_not_be_short_and_leave_the_fast_replicas_to_others() -> None:
    """The best of all pairs of rings of these two sequences, when whatever they do not lose is filled without a gap."""
    speeds = np.array([1.0] * 4 + [0.5] * 4)
    problem = make_problem([5 * 8192, 5 * 8192, *[8192] * 20], **given(8, 8192, speeds=speeds.tolist(), node_size=8))
    work, ring = (
        problem.cost.work_seconds(problem.lengths),
        problem.cost.ring_seconds(5.0 * 8192, np.arange(5.0, 9), True),
    )
    rest = float(work[2:].sum()) + 20 * problem.cost.task
    ways = []
    for one, two in product(range(4), repeat=2):
        for fast in product(*(range(1 + k, 5) for k in (one, two))):  # of each ring's members
            took = [2 * ring[one], 2 * ring[two]]
            busy = sum(t * (f + (5 + k - f) / 2) for t, f, k in zip(took, fast, (one, two), strict=True))
            ways.append(max(sum(took), (busy + rest) / speeds.sum()))
    assert 1.02 * problem.lower_bound() < lower_bound(problem) <= min(ways)


def test_a_step_whose_longest_sequence_needs_even_the_slow_replica_ends_near_the_bound() -> None:
    lengths = draw_lengths("huge", context=512 * K, tokens=2 * K * K, seed=2)
    found = plan("makespan", lengths, **given(64, 8 * K, speeds=[1 / 1.3, *[1.0] * 63]))
    assert found.makespan_over_bound <= 1.05
    plain = make_problem(lengths, **given(64, 8 * K, speeds=[1 / 1.3, *[1.0] * 63])).lower_bound()
    assert found.lower_bound_seconds > 1.1 * plain


def test_rings_of_like_speeds_keep_a_step_of_mostly_long_sequences_near_the_bound() -> None:
    speeds = np.random.default_rng(5).uniform(0.7, 1, 256).tolist()
    lengths = draw_lengths("uniform", context=64 * K, tokens=256 * 32 * K, seed=0)
    assert plan("makespan", lengths, **given(256, 8 * K, speeds=speeds)).makespan_over_bound <= 1.05
