"""Each rival on an example of its paper or its code, worked by hand or against all possible plans."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest

from coxswain.cost.model import CostModel
from coxswain.errors import Refused
from coxswain.plan.planners import BALANCES, SLOW, planner
from coxswain.plan.problem import Draft, Problem, make_problem
from coxswain.plan.rivals import flexsp, hydraulis
from coxswain.plan.rivals.buckets import blast, bucket
from coxswain.plan.rivals.kk import differencing
from coxswain.plan.rivals.milp import Budget, Program, solve
from coxswain.plan.rivals.wlb import pack
from coxswain.plan.simulate import simulate
from tests.fuzzed_problems import COSTS
from tests.unit.plan_cases import given

K = 1024


def problem(lengths: list[int], replicas: int, capacity: int, stages: int = 1) -> Problem:
    return make_problem(lengths, **given(replicas, capacity, stages=stages))


def slow_links(lengths: list[int], replicas: int, capacity: int) -> Problem:
    """Rings here take longer the more members they have."""
    return make_problem(lengths, **given(replicas, capacity, cost=CostModel(COSTS[2]), node_size=1))


def plan(balance: str, lengths: list[int], replicas: int, capacity: int, stages: int = 1) -> list[Draft]:
    return planner(balance)(problem(lengths, replicas, capacity, stages))


def test_bytescale_gives_768k_tokens_96_ranks_of_8k_and_local_work_to_the_other_32() -> None:
    ring, *packs = plan("bytescale", [768 * K, *[8 * K] * 32], replicas=128, capacity=8 * K)
    assert len(ring.members) == 96 and ring.sequences == (0,)
    assert {draft.members for draft in packs} == {(r,) for r in {*range(128)} - {*ring.members}}


def test_bytescale_keeps_each_pipeline_to_one_length_class_and_gives_short_classes_more_micro_batches() -> None:
    lengths = [8192] * 8 + [4096] * 24 + [1024] * 112
    drafts = plan("bytescale", lengths, replicas=2, capacity=8192, stages=4)
    one, two = ([d for d in drafts if d.members == (r,)] for r in range(2))
    assert max(lengths[i] for d in two for i in d.sequences) <= min(lengths[i] for d in one for i in d.sequences)
    assert len(one) < len(two)
    mixed = plan("bytescale", lengths, replicas=2, capacity=8192)
    assert {lengths[i] for d in mixed if d.members == (1,) for i in d.sequences} == {8192, 4096, 1024}


def test_waves_take_one_degree_after_the_other_with_a_barrier_between_and_leave_no_replica_idle() -> None:
    drafts = plan("waves", [4096, 1500, 2048, 1000, 1000], replicas=4, capacity=1024)
    assert drafts == [
        Draft((0, 1, 2, 3), (0,), 0),
        Draft((0, 1), (2,), 1),
        Draft((2, 3), (1,), 1),
        Draft((0, 1), (3,), 2),
        Draft((2, 3), (4,), 2),
    ]


def test_waves_close_once_a_smaller_degree_levels_them_within_five_percent() -> None:
    # 2048 tokens on two replicas are as much work as 1448 on one; a sequence of 1400 is within 5 % of that
    drafts = plan("waves", [2048, 1448, 1448, *[1400] * 4], replicas=4, capacity=1450)
    assert [draft.sequences for draft in drafts if not draft.wave] == [(0,), (1,), (2,)]


def test_waves_of_five_eighths_of_a_mesh_take_the_next_power_of_two() -> None:
    (draft,) = plan("waves", [5 * K], replicas=8, capacity=K)
    assert len(draft.members) == 8


def test_wlb_takes_the_least_workload_if_it_has_room_else_the_fewest_tokens() -> None:
    # workloads with b = 4: 6, 2.81, 2, 1.31, 0.75
    assert pack([8, 5, 4, 3, 2], 2, 12, 4) == [[0, 4], [1, 2, 3]]
    assert pack([8, 5, 4, 3, 2], 2, 11, 4) == [[0, 3], [1, 2, 4]]
    assert pack([8, 5, 4, 3, 2], 2, 10, 4) is None


@pytest.mark.parametrize(
    ("count", "sums"), [(1, [30]), (2, [14, 16]), (3, [8, 11, 11]), (5, [4, 5, 6, 7, 8]), (6, [0, 4, 5, 6, 7, 8])]
)
def test_differencing_of_8_7_6_5_4_has_the_parts_of_karmarkar_and_karp(count: int, sums: list[int]) -> None:
    costs = [8.0, 7.0, 6.0, 5.0, 4.0]
    parts = differencing(costs, count)
    assert sorted(sum(costs[i] for i in part) for part in parts) == sums


def test_kk_takes_more_micro_batches_where_even_cost_is_over_the_token_cap() -> None:
    # two of even cost would be 8,192 tokens alone and 9,000 in short ones
    lengths = [8192, *[100] * 90]
    drafts = plan("kk", lengths, replicas=1, capacity=8192)
    assert len(drafts) == 3
    assert all(sum(lengths[i] for i in draft.sequences) <= 8192 for draft in drafts)


# Of the examples of FlexSP's code (test_sequence_module.py), the first sixteen.
LENGTHS = [1024, 1536, 1762, 1428, 2479, 5728, 3739, 8729, 15273, 6482, 1726, 837, 8627, 9273, 17263, 18729]


def cuts(lengths: list[int], parts: int) -> list[list[list[int]]]:
    """All ways to cut a list into so many parts in a row."""
    every = combinations(range(1, len(lengths)), parts - 1)
    return [[lengths[a:b] for a, b in pairwise([0, *inner, len(lengths)])] for inner in every]


@pytest.mark.parametrize("count", [1, 2, 4])
def test_flexsp_has_the_buckets_with_the_least_token_error_of_all(count: int) -> None:
    found = [[LENGTHS[i] for i in part] for part in bucket(LENGTHS, count)]
    assert sorted(s for part in found for s in part) == sorted(LENGTHS)
    error = [sum(max(part) - s for part in parts for s in part) for parts in [found, *cuts(sorted(LENGTHS), count)]]
    assert error[0] == min(error)


@pytest.mark.parametrize("count", [1, 3, 5])
def test_flexsp_blasts_a_step_into_the_most_even_micro_batches_of_falling_lengths(count: int) -> None:
    found = [[LENGTHS[i] for i in part] for part in blast(LENGTHS, count)]
    assert [s for part in found for s in part] == sorted(LENGTHS, reverse=True)
    assert max(map(sum, found)) == min(max(map(sum, parts)) for parts in cuts(sorted(LENGTHS, reverse=True), count))


def test_flexsp_plans_unlike_groups_in_one_micro_batch_and_like_ones_where_its_program_is_too_large() -> None:
    step = slow_links([17 * K, 8 * K, 8 * K, 7 * K, 7 * K], 8, 8 * K)
    solved = planner("flexsp")(step)
    assert {len(draft.members) for draft in solved} > {4} and {draft.wave for draft in solved} == {0}
    homogeneous = flexsp.flexsp(step, columns=0)
    assert all(len(one.members) == len(two.members) for one, two in pairwise(homogeneous) if one.wave == two.wave)
    assert simulate(step, solved).makespan < simulate(step, homogeneous).makespan


def test_the_groups_of_a_flexsp_micro_batch_are_aligned_neighbours() -> None:
    rng = np.random.default_rng(1)
    lengths = [int(s) for s in np.minimum(3000 * (1 + rng.pareto(1, 12)), 16 * K)]
    drafts = plan("flexsp", lengths, replicas=11, capacity=4 * K)
    for draft in drafts:
        first, degree = draft.members[0], len(draft.members)
        assert draft.members == tuple(range(first, first + degree)) and first % degree == 0
    assert {len(draft.members) for draft in drafts} <= {1, 2, 4, 8}


def pipeline(lengths: list[int], capacity: int, stages: int = 1) -> hydraulis.Pipeline:
    seconds = np.array([1e-7 * s * s + 1e-3 * s for s in lengths])
    return hydraulis.Pipeline((0,), stages, capacity, 1.0, seconds, 0.01)


def test_hydraulis_packs_the_example_of_its_code_into_three_even_micro_batches() -> None:
    lengths = [1000, 2000, 3000, 4000, 5000]
    found = hydraulis.pack(pipeline(lengths, 6000), lengths, [*range(5)], 3, hydraulis.BUDGET)
    assert found is not None and sorted(found) == [[0, 3], [1, 2], [4]]


def test_hydraulis_takes_more_micro_batches_in_a_deep_pipeline() -> None:
    lengths = [1000] * 16
    few, many = (hydraulis.greedy(pipeline(lengths, 8000, p), lengths, [*range(16)]) for p in (1, 8))
    assert len(few) < len(many)


def test_hydraulis_sends_long_sequences_to_the_long_group_and_the_others_where_the_pipeline_ends_first() -> None:
    lengths = [24 * K, *[2 * K] * 60]
    drafts = planner("hydraulis")(slow_links(lengths, 8, 8 * K))
    assert [len(draft.members) for draft in drafts if 0 in draft.sequences] == [4]
    assert {len(draft.members) for draft in drafts} == {1, 4}


@pytest.mark.parametrize("balance", sorted({*BALANCES} - {"makespan", "naive", "bytescale"}))
def test_a_rival_that_has_no_groups_for_the_longest_sequence_says_so(balance: str) -> None:
    with pytest.raises(Refused, match="maxDegree") as refused:
        planner(balance)(make_problem([21 * K], **given(7, 7 * K, max_degree=3)))
    assert refused.value.reason == "CapacityLost"


@pytest.mark.parametrize("balance", sorted(SLOW))
def test_planners_of_integer_programs_give_the_same_plan_again(balance: str) -> None:
    lengths = [*LENGTHS, *LENGTHS[::2]]
    one, two = (plan(balance, lengths, replicas=8, capacity=6000) for _ in range(2))
    assert one == two


def test_a_program_without_a_point_has_no_answer() -> None:
    program = Program()
    column = program.column(1)
    program.row([(column, 2.0)], 1, 1)
    assert solve(program, None, Budget(10, 10)) is None


def test_the_best_known_start_is_the_answer_of_a_program_without_time() -> None:
    program = Program()
    columns = [program.column(1, cost=-1.0 - i % 3) for i in range(30)]
    program.row([(c, 1.0 + c % 7) for c in columns], 0, 20)
    start = np.array([1.0] * 3 + [0.0] * 27)
    found = solve(program, start, Budget(0, 0))
    assert found is not None and np.dot(program.cost, found) <= np.dot(program.cost, start)
