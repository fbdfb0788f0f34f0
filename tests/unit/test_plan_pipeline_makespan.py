"""Makespan of pipelines: a bubble near the ideal one also with rings, a bound that brute force never passes, waves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations, product
from random import Random

import msgspec
import numpy as np
import pytest

from coxswain.cost.model import CostModel
from coxswain.layout import pipelines_of
from coxswain.plan.lengths import SETS, draw_lengths
from coxswain.plan.makespan.search import makespan
from coxswain.plan.pipelines.bound import ideal_bubble, ideal_bubble_of, pipeline_bound
from coxswain.plan.pipelines.classes import Deal, cut_packs, short_of
from coxswain.plan.pipelines.dispatch import end_of
from coxswain.plan.pipelines.groups import degrees_for, rings_of
from coxswain.plan.pipelines.operations import ordered
from coxswain.plan.pipelines.replay import replay
from coxswain.plan.planners import planner
from coxswain.plan.problem import Draft, Problem, make_problem
from coxswain.plan.simulate import simulate
from tests.fuzzed_plans import placement_of
from tests.unit.plan_cases import COST, given
from tests.unit.plan_machine import walk
from tests.unit.test_plan_pipelines import lists_of, tasks_of, text

K = 1024


def problem_of(name: str, context: int, stages: int, tasks: int, seed: int) -> Problem:
    lengths = draw_lengths(name, context=context, tokens=32 * tasks * 8 * K, seed=seed)
    return make_problem(lengths, **given(32, 8 * K), stages=stages)


@pytest.mark.parametrize("seeds", [1, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("context", [8 * K, 32 * K, 64 * K])
@pytest.mark.parametrize("stages", [4, 8])
@pytest.mark.parametrize("name", sorted(SETS))
def test_pipelines_idle_hardly_more_than_the_ideal_bubble_with_rings_too(
    name: str, context: int, stages: int, seeds: int
) -> None:
    """The median of the seeds, and each one nearly; the ideal is that of 16 equal tasks, one for each full pack of tokens."""
    found = []
    for seed in range(seeds):
        problem = problem_of(name, context, stages, 16, seed)
        drafts = planner("makespan")(problem)
        busy = sum(simulate(problem, drafts).busy)
        found.append((1 - busy / (32 * end_of(problem, drafts))) / ideal_bubble(stages, 16))
    assert np.median(found) <= 1.15, found
    assert max(found) <= 1.4, found


@pytest.mark.parametrize("seeds", [1, pytest.param(10, marks=pytest.mark.slow)])
@pytest.mark.parametrize("stages", [4, 8])
@pytest.mark.parametrize("name", sorted(SETS))
def test_where_one_sequence_needs_all_replicas_pipelines_idle_hardly_longer_than_for_that_one(
    name: str, stages: int, seeds: int
) -> None:
    found = []
    for seed in range(seeds):
        problem = problem_of(name, 256 * K, stages, 16, seed)
        drafts = planner("makespan")(problem)
        busy = sum(simulate(problem, drafts).busy)
        found.append((1 - busy / (32 * end_of(problem, drafts))) / ideal_bubble_of(problem))
    assert np.median(found) <= 1.15, found
    assert max(found) <= 1.25, found


def small_step(seed: int) -> Problem:
    """Some sequences, a few of which need rings, on pipelines of which some may be slow."""
    random = Random(seed)
    replicas, stages = random.choice([2, 3, 4, 8]), random.choice([2, 3, 4, 8])
    short = [min(8 * K, 1 + int(random.lognormvariate(7, 1.3))) for _ in range(random.randint(1, 40))]
    long = [random.randint(8 * K, 8 * K * replicas) for _ in range(random.randint(0, 3))]
    speeds = [random.choice([1.0, 1.0, 0.9, 0.5]) for _ in range(replicas)]
    return make_problem([*short, *long], **given(replicas, 8 * K), stages=stages, speeds=speeds)


def test_no_plan_of_pipelines_ends_later_than_that_of_one_stage() -> None:
    """Which is the better one of many small steps. Before, it was dropped for its estimate, where a step ended 8 % later."""
    ends = list[tuple[float, float]]()
    for problem in map(small_step, range(8)):
        ends.append((end_of(problem, planner("makespan")(problem)), end_of(problem, makespan(problem))))
        assert ends[-1][0] <= ends[-1][1]
    assert 0 < sum(end == flat for end, flat in ends) < 8


@pytest.mark.parametrize("count", [2, 7, 40])
def test_a_pack_holds_no_more_than_its_replica_has_room_for_however_long_its_tasks_may_take(count: int) -> None:
    """By the sum of their tokens sequences of more than half a pack need two thirds as many packs as they have."""
    problem, every = make_problem([5 * K] * count, **given(1, 8 * K), stages=2), np.arange(count)
    dealt = Deal(0 * every, np.array([1e9]), np.zeros(1), np.zeros(1, dtype=np.bool_), 0.0)
    packs = cut_packs(short_of(problem, every, 1e9), 0 * every, dealt)
    assert sorted(items.tolist() for items in packs.items) == [[i] for i in range(count)]


@pytest.mark.parametrize("lengths", [(48, 40, 24, 16), (48, 32, 24, 16)])
def test_sequences_share_packs_up_to_the_last_token_of_their_room(lengths: tuple[int, ...]) -> None:
    """Longest first, each to the pack with the least work that has room for it: the second of 32 and 24 has less, and no room."""
    problem, every = make_problem([n * K for n in lengths], **given(1, 64 * K), stages=2), np.arange(4)
    dealt = Deal(0 * every, np.array([1e9]), np.zeros(1), np.zeros(1, dtype=np.bool_), 0.0)
    packs = cut_packs(short_of(problem, every, 1e9), 0 * every, dealt)
    assert sorted(items.tolist() for items in packs.items) == [[0, 3], [1, 2]]


def test_the_ideal_bubble_is_that_of_full_packs_or_of_a_longer_sequence_over_all_replicas() -> None:
    packs = make_problem([8 * K] * 64, **given(4, 8 * K), stages=4)
    assert ideal_bubble_of(packs) == pytest.approx(ideal_bubble(4, 16))
    mixed = make_problem([32 * K, *[8 * K] * 60], **given(4, 8 * K), stages=4)
    ring = mixed.cost.ring_seconds(32.0 * K, 4.0, True)
    work = mixed.cost.work_seconds(mixed.lengths).sum() / 4 + 16 * mixed.cost.task
    assert ring > work / 16
    assert ideal_bubble_of(mixed) == pytest.approx(3 * ring / (work + 3 * ring))


def test_rings_in_groups_end_sooner_than_the_plan_of_one_stage() -> None:
    problem = problem_of("github", 32 * K, 8, 16, 0)
    flat = make_problem(problem.lengths, **given(32, 8 * K))
    assert end_of(problem, planner("makespan")(problem)) < 0.75 * end_of(problem, planner("makespan")(flat))


def test_every_ring_of_a_plan_of_pipelines_is_at_one_place_of_its_members_lists() -> None:
    for name, seed in product(sorted(SETS), range(3)):
        drafts = planner("makespan")(problem_of(name, 64 * K, 4, 8, seed))
        places = [0] * 32
        for draft in drafts:
            assert len({places[r] for r in draft.members}) == 1
            for r in draft.members:
                places[r] += 1


def every_dispatch(problem: Problem) -> Iterator[list[Draft]]:
    """All orders of all tasks on two replicas: each sequence alone on one of them, or a ring over both."""
    count = problem.lengths.size
    for places in product(((0,), (1,), (0, 1), (1, 0)), repeat=count):
        if all(problem.lengths[i] <= problem.capacity * len(m) for i, m in enumerate(places)):
            for order in permutations(range(count)):
                yield [Draft(places[i], (i,)) for i in order]


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize(
    "lengths",
    [(8000, 3000, 200), (60000, 50000, 900), (15000, 6000, 5000), (64000,), (30, 40, 50), (64000, 64000, 64000)],
)
def test_no_dispatch_of_a_small_step_ends_before_the_bound(lengths: tuple[int, ...], stages: int) -> None:
    problem = make_problem(lengths, **given(2, 32 * K), stages=stages)
    ends = [end_of(problem, drafts) for drafts in every_dispatch(problem)]
    bound = pipeline_bound(problem, [[1.0] * stages])
    assert bound <= min(ends) * (1 + 1e-9)
    assert bound >= 0.4 * min(ends)
    whole = [  # what planners do: a sequence that one replica holds is no ring
        end_of(problem, drafts)
        for drafts in every_dispatch(problem)
        if all(len(d.members) == 1 for d in drafts if problem.lengths[d.sequences[0]] <= problem.capacity)
    ]
    assert end_of(problem, planner("makespan")(problem)) <= 1.25 * min(whole)


def test_sequences_that_need_every_replica_end_as_the_bound_says() -> None:
    problem = make_problem([64000] * 3, **given(2, 32 * K), stages=2)
    assert end_of(problem, planner("makespan")(problem)) == pytest.approx(pipeline_bound(problem, [[1.0, 1.0]]))


WAVES = [((0,), 0), ((1,), 0), ((0, 1), 1), ((0,), 1), ((1,), 2)]


def test_a_wave_starts_once_the_one_before_has_ended_on_all_stages() -> None:
    layout, tasks = pipelines_of([2, 2]), tasks_of(*[members for members, _ in WAVES], waves=[w for _, w in WAVES])
    found = ordered(layout, tasks)
    assert text(found.operations) == [
        "F0 B0 F2 F3 B2 B3",
        "F0 B0 F2 B2 F3 B3",
        "F1 B1 F2 B2 F4 B4",
        "F1 B1 F2 B2 F4 B4",
    ]
    assert found.seconds == pytest.approx(2 + 3 + 2)  # one task, two, and one through two stages
    assert replay(placement_of(layout, tasks, found.operations), layout) == []
    assert walk(layout, tasks, found.operations) == "done"


def test_lists_and_tasks_that_mix_waves_are_refused() -> None:
    layout = pipelines_of([2])
    tasks = tasks_of((0,), (0,), waves=[0, 1])
    early = lists_of(layout, "F0 F1 B0 B1", "F0 B0 F1 B1")
    [fault] = replay(placement_of(layout, tasks, early), layout)
    assert fault.startswith("replica 0, stage 0: task 0 of wave 0 is behind task 1 of wave 1; a wave starts once")
    falling = tasks_of((0,), (0,), waves=[1, 0])
    assert "task 1 is of wave 0, task 0 before it of wave 1; waves rise along the order" in replay(
        placement_of(layout, falling, early), layout
    )


def test_forwards_of_an_evaluation_are_replayed_without_backwards() -> None:
    layout, tasks = pipelines_of([2, 2]), tasks_of((0, 1), (0, 1))
    good = lists_of(layout, "F0 F1", "F0 F1", "F0 F1", "F0 F1")
    assert replay(placement_of(layout, tasks, good), layout, "F") == []
    stuck = lists_of(layout, "F0 F1", "F0 F1", "F1 F0", "F1 F0")
    assert replay(placement_of(layout, tasks, stuck), layout, "F")[0].startswith("hang: ")
    trained = lists_of(layout, *["F0 B0 F1 B1"] * 4)
    assert "operation B of task 0 is missing, foreign or repeated" in replay(
        placement_of(layout, tasks, trained), layout, "F"
    )[0]  # fmt: skip


@pytest.mark.parametrize(("name", "context"), [("github", 8 * K), ("byted", 32 * K)])
def test_replicas_that_are_all_eight_times_as_fast_get_the_same_plan(name: str, context: int) -> None:
    """A stage of eight takes an eighth of a task: so fast are the replicas of a job whose stages are equal."""
    problem = problem_of(name, context, 8, 8, 0)
    fast = replace(problem, speeds=np.full(32, 8.0))
    assert planner("makespan")(fast) == planner("makespan")(problem)


@pytest.mark.parametrize("slow", [1 / 1.3, 1 / 4, 1e-3])
@pytest.mark.parametrize("context", [8 * K, 64 * K])
def test_a_slow_pipeline_costs_less_than_twice_its_share(context: int, slow: float) -> None:
    problem = problem_of("github", context, 4, 16, 0)
    some = replace(problem, speeds=np.where(np.arange(32) == 5, slow, 1.0))
    even, uneven = (end_of(p, planner("makespan")(p)) for p in (problem, some))
    assert uneven <= even * (1 + 2 * (1 - slow) / 32)
    assert uneven <= end_of(some, planner("makespan")(problem))


def test_a_ring_of_pipelines_stays_in_a_node_where_leaving_it_costs_more() -> None:
    """Found among fuzzed steps: the rival that stays was dropped unseen, for mine was judged without the network."""
    slow = msgspec.structs.replace(
        COST.constants, kv_bytes_per_token=400_000.0, inside_node_gbps=3, between_nodes_gbps=0.5
    )
    nodes = [0, 0, 1, 1, 1]
    numbers = given(5, 24, cost=CostModel(slow), nodes=nodes, stages=4, speeds=[1.0, 1 / 1.3, 1.0, 1 / 1.3, 1.0])
    (ring,) = planner("makespan")(make_problem([60], **numbers))
    assert {nodes[r] for r in ring.members} == {1}


def test_no_ring_of_pipelines_is_wider_than_the_most_degree_though_a_part_of_a_node_would_be() -> None:
    problem = make_problem([24 * K], **{**given(8, 8 * K), "max_degree": 3, "node_size": 4}, stages=2)
    assert degrees_for(problem, np.array([0]), 1e9).tolist() == [3]


def test_a_ring_may_take_every_replica() -> None:
    problem = make_problem([32 * K], **given(4, 8 * K), stages=2)  # which is as long as all of them hold
    assert rings_of(problem, np.array([0]), 1e9, wide=False).fit
