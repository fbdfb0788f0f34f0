"""The parts of the planners: degrees, loads, rings, packs, bins, and the rivals' packing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from coxswain.cost import Constants
from coxswain.cost.model import CostModel
from coxswain.plan.degrees import least_degrees, ring_seconds
from coxswain.plan.makespan.blocks import Blocks
from coxswain.plan.makespan.line import line_of
from coxswain.plan.makespan.loads import replica_loads
from coxswain.plan.makespan.nested import Level, block_sizes, deal_longest_first, place_nested
from coxswain.plan.makespan.packing import Bins, fill_bins, fit_bins
from coxswain.plan.makespan.rings import SLACK, place_rings
from coxswain.plan.makespan.search import drafts_of, makespan, search
from coxswain.plan.problem import Draft, Problem, make_problem
from coxswain.plan.rivals.naive import best_fit, naive
from coxswain.plan.rivals.static import static
from coxswain.plan.water_level import water_level
from tests.unit import plan_reference as reference
from tests.unit.plan_cases import COST, given, steps

calm = settings(deadline=None, max_examples=40)
ROUNDING = 1e-9  # seconds
SLOW_LINKS = CostModel(
    Constants(
        linear_us_per_token=10, attention_ns_per_token2=1, kv_bytes_per_token=400_000,
        inside_node_gbps=100, between_nodes_gbps=20, task_ms=5,
    )
)  # fmt: skip
"""Rings of many members get slower: the fastest degree lies inside the range."""


def long_first(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(-problem.lengths, kind="stable")
    long = order[problem.lengths[order] > problem.capacity]
    return long, order[long.size :]


@calm
@for_all(step=steps())
def test_the_makespan_that_the_search_believes_in_is_what_its_tasks_take(
    step: tuple[list[int], dict[str, Any]],
) -> None:
    lengths, numbers = step
    problem = make_problem(lengths, **numbers)
    long, short = long_first(problem)
    trial = search(problem, long, short)
    assert max(reference.run(problem, drafts_of(trial, short)), default=0.0) == pytest.approx(trial.makespan)


@calm
@for_all(step=steps())
def test_a_plan_that_heeds_speeds_never_ends_after_one_that_knows_of_none(
    step: tuple[list[int], dict[str, Any]],
) -> None:
    lengths, numbers = step
    problem = make_problem(lengths, **numbers)
    unaware = makespan(replace(problem, speeds=np.ones(problem.replicas)))
    ends = (max(reference.run(problem, drafts), default=0.0) for drafts in (makespan(problem), unaware))
    assert next(ends) <= next(ends) + ROUNDING


@calm
@for_all(step=steps())
def test_rings_start_as_planned_and_every_wait_before_one_is_listed_as_a_gap(
    step: tuple[list[int], dict[str, Any]],
) -> None:
    lengths, numbers = step
    problem = make_problem(lengths, **numbers)
    schedule = search(problem, *long_first(problem)).schedule
    free, gaps = [0.0] * problem.replicas, []
    drafts = [Draft(r.members, (r.sequence,)) for r in schedule.rings]
    for ring, end in zip(schedule.rings, reference.run(problem, drafts), strict=True):
        assert ring.start == pytest.approx(max(free[r] for r in ring.members))
        gaps += [(r, free[r], ring.start) for r in ring.members if ring.start - free[r] > ROUNDING]
        for r in ring.members:
            free[r] = end
    listed = np.stack([schedule.gaps.replica, schedule.gaps.start, schedule.gaps.stop], axis=1)
    found = [gap for gap in listed.tolist() if gap[2] - gap[1] > ROUNDING]
    assert len(found) == len(gaps)
    assert np.allclose(sorted(found), sorted(gaps), rtol=1e-9, atol=ROUNDING)
    assert schedule.loads.tolist() == pytest.approx(free)


@st.composite
def ring_cases(draw: st.DrawFn) -> tuple[Problem, list[int]]:
    """Sequences that need rings, on any nodes; fast or slow links."""
    replicas, capacity = draw(st.integers(2, 40)), draw(st.integers(100, 8192))
    cost = draw(st.sampled_from([COST, SLOW_LINKS]))
    lengths = draw(st.lists(st.integers(capacity + 1, capacity * replicas), min_size=1, max_size=6))
    return make_problem(lengths, **given(replicas, capacity, cost=cost, node_size=draw(st.integers(1, 9)))), lengths


@calm
@for_all(case=ring_cases(), factor=st.floats(0.3, 3))
def test_a_ring_gets_the_least_degree_that_meets_the_target_or_the_fastest(
    case: tuple[Problem, list[int]], factor: float
) -> None:
    problem, lengths = case
    target = factor * problem.lower_bound()
    for length, found in zip(lengths, least_degrees(problem, problem.lengths, target).tolist(), strict=True):
        degree, meets = reference.least_degree(problem, length, target)
        if meets:
            assert found == degree
        else:
            best, mine = (
                reference.task_seconds(problem.cost.constants, [length], d, d <= problem.node_size)
                for d in (degree, found)
            )
            assert mine <= 1.002 * best


@pytest.mark.parametrize("length", [22_000, 27_000])
def test_a_ring_over_slow_links_that_cannot_meet_its_target_has_the_fastest_degree(length: int) -> None:
    problem = make_problem([length], **given(40, 8192, cost=SLOW_LINKS, node_size=1))
    degrees = np.array([*least_degrees(problem, problem.lengths, 0.0), reference.least_degree(problem, length, 0.0)[0]])
    mine, best = ring_seconds(problem, np.full(2, length), degrees)
    assert mine <= 1.001 * best


@pytest.mark.parametrize("degree", [2, 3, 4])
def test_a_degree_within_a_node_that_ends_exactly_at_the_target_is_not_widened_beyond_it(degree: int) -> None:
    problem = make_problem([16_000], **given(8, 8192, node_size=4))
    target = float(ring_seconds(problem, problem.lengths, np.array([degree]))[0])
    assert least_degrees(problem, problem.lengths, target).tolist() == [degree]


@calm
@for_all(loads=st.lists(st.integers(0, 9), min_size=1, max_size=24), size=st.integers(1, 9), degree=st.integers(1, 24))
def test_members_of_equal_speed_are_the_neighbours_that_are_free_first(
    loads: list[int], size: int, degree: int
) -> None:
    degree, replicas = min(degree, len(loads)), len(loads)
    found = replica_loads(make_problem([1], **given(replicas, 10, node_size=size)))
    for r, load in enumerate(loads):
        if r % 7 < 2:  # what is known of a degree is brought up to date when it is asked for again
            found.choose(degree, 1.0)
        found.occupy(np.array([r]), float(load))
    members = sorted(found.line.replicas[found.choose(degree, 1.0).places].tolist())
    nodes = [list(range(n, min(n + size, replicas))) for n in range(0, replicas, size)]
    assert members == list(range(members[0], members[-1] + 1))
    assert found.first_free() == min(loads)
    if degree <= size:
        inside = [node[k : k + degree] for node in nodes for k in range(len(node) - degree + 1)]
        runs = inside
    else:
        runs = [
            list(range(nodes[a][0], nodes[b - 1][-1] + 1))
            for a in range(len(nodes))
            for b in range(a + 1, len(nodes) + 1)
        ]
        runs = [run for run in runs if degree <= len(run) < degree + size]
    assert members in runs
    assert max(loads[r] for r in members) == min(max(loads[r] for r in run) for run in runs)


@calm
@for_all(data=st.data())
def test_the_peers_of_a_replica_in_all_rings_of_neighbours_are_seven_at_most(data: st.DataObject) -> None:
    nodes, size = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 9))
    problem = make_problem([1], **given(nodes * size, 10, node_size=size))
    line, peers = line_of(problem), [set[int]() for _ in range(nodes * size)]
    inside = [
        range(n * size + a, n * size + b) for n in range(nodes) for a in range(size) for b in range(a + 1, size + 1)
    ]
    beyond = [range(a * size, b * size) for a in range(nodes) for b in range(a + 1, nodes + 1)]
    for run in [*inside, *beyond]:
        ring = line.replicas[line.turned(np.array(run))].tolist()
        assert sorted(ring) == list(run)
        for one, two in zip(ring, [*ring[1:], ring[0]], strict=True):
            peers[one] |= {two} - {one}
            peers[two] |= {one} - {two}
    assert max(map(len, peers)) <= 7


def test_members_of_uneven_speed_are_of_the_node_whose_last_one_is_free_first() -> None:
    found = replica_loads(make_problem([1], **given(4, 10, node_size=2, speeds=[1.0, 1.0, 1.0, 1.01])))
    for r, load in enumerate([0.0, 10.0, 4.0, 5.0]):
        found.occupy(np.array([r]), load)
    assert sorted(found.line.replicas[found.choose(2, 1.0).places].tolist()) == [2, 3]
    assert found.line.replicas[found.choose(1, 1.0).places].tolist() == [0]


def test_a_ring_that_ends_too_late_gets_the_least_degree_that_ends_in_time_or_the_fastest() -> None:
    """A target of 0 is past already, so no degree is looked for."""
    problem = make_problem([16_000], **given(8, 8192))
    took = {d: COST.ring_seconds(16_000.0, float(d), True) for d in (2, 3, 4)}
    for target, degree in ((took[4], 4), (took[3], 3), (took[2] / SLACK, 2), (0.001, 8), (0.0, 2)):
        schedule = place_rings(problem, np.array([0]), np.array([2]), target, np.inf)
        assert schedule is not None
        assert len(schedule.rings[0].members) == degree, target
        assert max(schedule.loads) == pytest.approx(COST.ring_seconds(16_000.0, float(degree), True))


def test_a_ring_stays_narrow_where_a_wider_one_ends_no_sooner() -> None:
    problem = make_problem([9000, 17_000], **given(3, 8192, cost=SLOW_LINKS, node_size=1))
    schedule = place_rings(problem, np.array([0]), np.array([2]), 0.001, np.inf)
    assert schedule is not None
    alone = {d: float(ring_seconds(problem, np.array([9000]), np.array([d]))[0]) for d in (2, 3)}
    assert len(schedule.rings[0].members) == min(alone, key=lambda d: alone[d])
    assert float(schedule.loads.max()) == pytest.approx(min(alone.values()))


def test_placing_stops_at_a_ring_that_ends_when_the_rival_does() -> None:
    problem = make_problem([16_000], **given(2, 8192))
    seconds = COST.ring_seconds(16_000.0, 2.0, True)
    assert place_rings(problem, np.array([0]), np.array([2]), 1.0, seconds) is None
    assert place_rings(problem, np.array([0]), np.array([2]), 1.0, seconds * 1.001) is not None


def bins_of(limits: list[float], levels: list[float], replicas: list[int]) -> Bins:
    columns = np.array(replicas), np.array(levels), np.array(limits), np.array(levels)
    return Bins(replica=columns[0], level=columns[1], limit=columns[2], start=columns[3])


@calm
@for_all(
    lengths=st.lists(st.integers(1, 8192), min_size=1, max_size=80),
    speeds=st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=1, max_size=6),
    rooms=st.lists(st.floats(0, 1.0), max_size=6),
)
def test_levels_hold_the_work_and_the_task_cost_of_every_pack_and_gaps_are_not_overfilled(
    lengths: list[int], speeds: list[float], rooms: list[float]
) -> None:
    replicas, lengths = len(speeds), sorted(lengths, reverse=True)
    problem = make_problem(lengths, **given(replicas, 8192, speeds=speeds))
    bins = bins_of(
        [np.inf] * replicas + [1.0] * len(rooms),
        [0.5 * r for r in range(replicas)] + [1.0 - room for room in rooms],
        [*range(replicas), *(k % replicas for k in range(len(rooms)))],
    )
    packing = fill_bins(problem, problem.lengths, bins)
    assert (packing.level <= bins.limit).all()
    for b in range(bins.size):
        mine = np.flatnonzero(packing.bin == b)
        packs = [[lengths[i] for i in mine if packing.pack[i] == p] for p in set(packing.pack[mine].tolist())]
        assert all(sum(pack) <= 8192 for pack in packs)
        seconds = sum(reference.task_seconds(COST.constants, [s], 1, True) - COST.task for pack in packs for s in pack)
        taken = (seconds + COST.task * len(packs)) / problem.speeds[bins.replica[b]]
        assert packing.level[b] == pytest.approx(bins.level[b] + taken)


@calm
@for_all(lengths=st.lists(st.integers(1, 8192), min_size=1, max_size=80), replicas=st.integers(1, 6))
def test_even_replicas_end_within_one_sequence_of_each_other(lengths: list[int], replicas: int) -> None:
    problem = make_problem(sorted(lengths, reverse=True), **given(replicas, 8192))
    bins = bins_of([np.inf] * replicas, [0.0] * replicas, list(range(replicas)))
    level = fill_bins(problem, problem.lengths, bins).level
    assert level.max() - level.min() <= COST.pack_seconds([max(lengths)]) + 1e-9


@calm
@for_all(
    lengths=st.lists(st.integers(8193, 8 * 8192), min_size=1, max_size=40),
    short=st.lists(st.integers(1, 8192), max_size=20),
    replicas=st.integers(16, 40),
    slow=st.lists(st.sampled_from([1.0, 1.0, 0.7]), min_size=5, max_size=5),
)
def test_blocks_hold_each_ring_once_and_end_no_later_than_longest_first(
    lengths: list[int], short: list[int], replicas: int, slow: list[float]
) -> None:
    lengths, short = sorted(lengths, reverse=True), sorted(short, reverse=True)
    speeds = np.repeat(slow, 8)[:replicas].tolist()
    problem = make_problem([*lengths, *short], **given(replicas, 8192, speeds=speeds))
    long, rest = long_first(problem)
    schedule = place_nested(problem, long, rest, 8, 1e9, np.inf)
    assert schedule is not None
    assert sorted(ring.sequence for ring in schedule.rings) == list(range(len(lengths)))
    blocks = [tuple(range(a, min(a + 8, replicas))) for a in range(0, replicas, 8)]
    assert {tuple(sorted(ring.members)) for ring in schedule.rings} <= set(blocks)
    drafts = [Draft(ring.members, (ring.sequence,)) for ring in schedule.rings]
    ends = reference.run(problem, drafts)
    assert max(schedule.loads) == pytest.approx(max(ends))
    assert all(len(d.members) * 8192 >= lengths[d.sequences[0]] for d in drafts)
    assert max(ends) <= longest_first(problem, blocks, [*lengths, *short[::8]]) + ROUNDING


def test_a_block_leaves_out_a_slow_replica_without_which_its_rings_are_faster() -> None:
    problem = make_problem([8 * 8192 - 9000], **given(8, 8192, speeds=[1.0, 1.0, 0.7, 1.0, 1.0, 1.0, 1.0, 1.0]))
    schedule = place_nested(problem, np.array([0]), np.zeros(0, dtype=np.int64), 8, 1.0, np.inf)
    assert schedule is not None
    assert sorted(schedule.rings[0].members) == [0, 1, 3, 4, 5, 6, 7]


def longest_first(problem: Problem, blocks: list[tuple[int, ...]], lengths: list[int]) -> float:
    """When the last block ends if each sequence goes, longest first, to the block that then ends first."""
    c, loads = problem.cost.constants, [0.0] * len(blocks)
    for length in lengths:
        ends = []
        for load, block in zip(loads, blocks, strict=True):
            pack, fits = length <= problem.capacity, len(block) > 1 and length <= problem.capacity * len(block)
            seconds = reference.task_seconds(c, [length], 1 if pack else len(block), True) / min(
                problem.speeds[[*block]]
            )
            ends.append(load + seconds * len(blocks[0]) / len(block) if pack else load + seconds if fits else np.inf)
        loads[ends.index(min(ends))] = min(ends)
    return max(loads)


@pytest.mark.parametrize("seed", range(20))
def test_equal_blocks_are_dealt_as_any_others_are_where_loads_that_differ_end_as_one(seed: int) -> None:
    """Tenths do not add up: 0.1 + 0.2 is not 0.3, and both end with 4.7 at one number."""
    rng = np.random.default_rng(seed)
    seconds, loads = rng.integers(1, 30, (1, 200)) / 10, rng.integers(0, 4, 12) / 10
    blocks = [np.arange(8 * k, 8 * k + 8) for k in range(12)]
    alike, any_ = Level(blocks, np.ones((1, 3)), np.arange(12) * 0), Level(blocks, np.ones((2, 3)), np.arange(12) % 2)
    one = deal_longest_first(alike, seconds, loads.copy())
    other = deal_longest_first(any_, np.repeat(seconds, 2, axis=0), loads.copy())
    assert (one.where.tolist(), one.loads.tolist()) == (other.where.tolist(), other.loads.tolist())


def test_exchanges_level_what_longest_first_leaves_uneven() -> None:
    """Of two blocks, longest first gives one 3 + 2 + 2 and the other 3 + 2: exchanged, 3 + 3 and 2 + 2 + 2."""
    blocks = Blocks(
        of=np.zeros(2, dtype=np.int64),
        seconds=np.array([[3.0, 3.0, 2.0, 2.0, 2.0]]),
        where=np.array([0, 1, 0, 1, 0]),
        loads=np.array([7.0, 5.0]),
    )
    blocks.level(6.0)
    assert blocks.loads.tolist() == [6.0, 6.0]
    assert sorted(np.bincount(blocks.where, weights=blocks.seconds[0]).tolist()) == [6.0, 6.0]


def test_exchanges_end_where_none_helps() -> None:
    blocks = Blocks(np.zeros(2, np.int64), np.array([[3.0, 3.0, 3.0]]), np.array([0, 0, 1]), np.array([6.0, 3.0]))
    blocks.level(0.0)
    assert sorted(blocks.loads.tolist()) == [3.0, 6.0]


@pytest.mark.parametrize(
    ("replicas", "node", "degree", "sizes"),
    [
        (32, 8, 32, [2, 4, 8, 16, 32]), (31, 8, 31, [2, 4, 8, 16, 31]), (64, 1, 64, [2, 4, 8, 16, 32, 64]),
        (32, 8, 7, [2, 4, 7]), (24, 6, 24, [2, 3, 6, 12, 24]), (12, 16, 12, [2, 3, 4, 6, 12]), (9, 4, 1, []), (1, 8, 1, []),
    ],
)  # fmt: skip
def test_blocks_are_even_parts_of_a_node_or_doubled_nodes_up_to_the_largest_degree(
    replicas: int, node: int, degree: int, sizes: list[int]
) -> None:
    assert block_sizes(make_problem([1], **given(replicas, 8, node_size=node, max_degree=degree))) == sizes


@calm
@for_all(
    lengths=st.lists(st.integers(1, 8192), min_size=1, max_size=40),
    levels=st.lists(st.floats(0, 3), min_size=1, max_size=8),
    top=st.floats(0, 4),
)
def test_sequences_go_where_they_just_fit_and_the_rest_to_the_lowest(
    lengths: list[int], levels: list[float], top: float
) -> None:
    lengths, count = sorted(lengths, reverse=True), len(levels)
    problem = make_problem(lengths, **given(count, 8192))
    packing = fit_bins(problem, problem.lengths, bins_of([np.inf] * count, levels, list(range(count))), top)
    now, tokens = list(levels), dict[tuple[int, int], int]()
    for i, length in enumerate(lengths):
        alone = reference.task_seconds(COST.constants, [length], 1, True)
        at, key = int(packing.bin[i]), (int(packing.bin[i]), int(packing.pack[i]))
        fitting = [top - level for level in now if top - level >= alone]
        wanted = min(fitting) if fitting else top - min(now)
        assert top - now[at] == pytest.approx(wanted, abs=1e-6)
        now[at] += alone - (COST.task if key in tokens else 0.0)
        tokens[key] = tokens.get(key, 0) + length
    assert max(tokens.values()) <= 8192
    assert packing.level.tolist() == pytest.approx(now)


def test_a_short_sequence_goes_into_the_wait_before_a_ring() -> None:
    """A ring of two, then one of three: the third replica waits for the first ring to end."""
    problem = make_problem([18_000, 16_384, 6_000], **given(3, 9192))
    rings = COST.ring_seconds(18_000.0, 2.0, True) + COST.ring_seconds(16_384.0, 3.0, True)
    long, short = long_first(problem)
    assert max(reference.run(problem, drafts_of(search(problem, long, short), short))) == pytest.approx(rings)


@calm
@for_all(levels=st.lists(st.floats(0, 10), min_size=1, max_size=8), work=st.floats(1e-6, 100), seed=st.integers(0, 99))
def test_the_water_level_is_where_all_work_is_done(levels: list[float], work: float, seed: int) -> None:
    speeds = np.random.default_rng(seed).uniform(0.1, 3, len(levels)).tolist()
    found = water_level(np.array(levels), np.array(speeds), work)
    assert found == pytest.approx(reference.water_level(levels, speeds, work), abs=1e-6)


@calm
@for_all(lengths=st.lists(st.integers(1, 64), max_size=30))
def test_best_fit_puts_each_sequence_into_the_fullest_pack_that_holds_it(lengths: list[int]) -> None:
    found = best_fit(lengths, list(range(len(lengths))), 64)
    assert [list(pack) for pack in found] == reference.best_fit(lengths, 64)


def test_naive_deals_rings_then_packs_to_replicas_in_turn() -> None:
    problem = make_problem([64, 129, 65, 10, 128], **given(4, 64))
    assert naive(problem) == [
        Draft((0, 1, 2), (1,)), Draft((0, 3), (2,)), Draft((1, 2), (4,)), Draft((3,), (0,)), Draft((0,), (3,)),
    ]  # fmt: skip


def test_a_static_mesh_cuts_packs_of_the_data_in_order_over_equal_groups() -> None:
    problem = make_problem([100, 28, 1, 127, 129], **given(6, 64))
    groups = (0, 1, 2), (3, 4, 5)
    assert static(problem) == [Draft(groups[0], (0, 1, 2)), Draft(groups[1], (3,)), Draft(groups[0], (4,))]
    exact = make_problem([128, 128], **given(4, 64, max_degree=2))
    assert static(exact) == [Draft((0, 1), (0,)), Draft((2, 3), (1,))]
