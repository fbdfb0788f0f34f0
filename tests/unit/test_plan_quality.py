"""How good plans are: against the lower bound, against the rivals, and against every plan of a small step."""

from __future__ import annotations

import random
from itertools import combinations, product

import pytest

from coxswain.cost import load_constants
from coxswain.cost.model import CostModel
from coxswain.plan.bounds import lower_bound
from coxswain.plan.lengths import SETS, draw_lengths
from coxswain.plan.planners import plan, planner
from coxswain.plan.problem import Draft, make_problem
from coxswain.plan.simulate import drafts_of, ring_bytes, simulate
from tests.unit.plan_cases import given

K = 1024
CONTEXTS = (256 * K, K * K, 2 * K * K)


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("name", sorted(SETS))
def test_a_step_on_256_replicas_ends_within_1_2_percent_of_the_lower_bound(name: str, context: int) -> None:
    for seed in range(3):
        lengths = draw_lengths(name, context=context, tokens=8 * K * K, seed=seed)
        assert plan("makespan", lengths, **given(256, 8 * K)).makespan_over_bound <= 1.012, f"seed {seed}"


def mostly_long(replicas: int, rings: int, seed: int, most: int = 8) -> list[int]:
    """Uniform up to `most` times the capacity: each replica is in so many rings of least degree."""
    rng, lengths, members = random.Random(seed), list[int](), 0
    while members < replicas * rings:
        lengths.append(rng.randint(1, most * 8 * K))
        members += -(-lengths[-1] // (8 * K))
    return lengths


@pytest.mark.parametrize("rings", [2, 4, 8])
@pytest.mark.parametrize(("replicas", "seeds"), [(64, 8), (256, 4), (1024, 2)])
def test_a_step_of_mostly_long_sequences_ends_within_6_percent_of_the_lower_bound(
    replicas: int, seeds: int, rings: int
) -> None:
    for seed in range(seeds):
        found = plan("makespan", mostly_long(replicas, rings, seed), **given(replicas, 8 * K))
        assert found.makespan_over_bound <= 1.06, f"seed {seed}"
        assert found.makespan_over_bound <= 1.035 or replicas == 64, f"seed {seed}"


@pytest.mark.parametrize("seed", [20, 26, 42, 50])
def test_over_slow_links_no_ring_is_widened_so_far_that_a_plan_of_least_degrees_ends_much_earlier(seed: int) -> None:
    """Keys and values travel longer than they are computed with: a wider ring sends more and ends hardly earlier."""
    rng = random.Random(seed)
    spread, count = rng.choice([-1.5, -1, 0]), 64 * rng.choice([2, 4, 8])
    lengths = [min(256 * K, max(1, int(8 * K * rng.lognormvariate(spread, 1.5)))) for _ in range(count)]
    slow = {**given(64, 8 * K), "cost": CostModel(load_constants("a100-40g")), "node_size": 1}
    ours, least = (plan(name, lengths, **slow).makespan_seconds for name in ("makespan", "bytescale"))
    assert ours <= 1.04 * least


@pytest.mark.parametrize("replicas", [64, 256])
@pytest.mark.parametrize(
    ("name", "context", "rings"),
    [
        ("video", 64, 2),
        ("video", 128, 2),
        ("video", 128, 8),
        ("documents", 128, 4),
        ("documents", 512, 8),
        ("huge", 512, 4),
    ],
)
def test_videos_books_and_one_huge_sequence_end_within_6_percent_of_the_lower_bound(
    name: str, context: int, rings: int, replicas: int
) -> None:
    lengths = draw_lengths(name, context=context * K, tokens=replicas * rings * 8 * K, seed=0)
    assert plan("makespan", lengths, **given(replicas, 8 * K)).makespan_over_bound <= 1.06


@pytest.mark.parametrize("name", ["github", "byted", "video"])
def test_over_many_steps_a_replica_meets_seven_ring_peers_at_most(name: str) -> None:
    peers = [set[int]() for _ in range(64)]
    for seed in range(12):
        lengths = draw_lengths(name, context=256 * K, tokens=64 * 32 * K, seed=seed)
        for draft in drafts_of(plan("makespan", lengths, **given(64, 8 * K))):
            for one, two in zip(draft.members, (*draft.members[1:], draft.members[0]), strict=True):
                peers[one] |= {two} - {one}
                peers[two] |= {one} - {two}
    assert 2 <= max(map(len, peers)) <= 7


@pytest.mark.parametrize(
    ("counts", "capacities", "speeds"),
    [((32, 16), (8, 8), (1.0, 2.0)), ((64, 8), (8, 32), (1.0, 4.0)), ((64, 32), (8, 4), (1.0, 0.5))],
)
@pytest.mark.parametrize("name", ["github", "byted"])
def test_kinds_of_replicas_that_differ_in_speed_and_room_end_near_the_bound(
    name: str, counts: tuple[int, int], capacities: tuple[int, int], speeds: tuple[float, float]
) -> None:
    kind = [k for k in (0, 1) for _ in range(counts[k])]
    lengths = draw_lengths(name, context=256 * K, tokens=len(kind) * 32 * K, seed=1)
    numbers = given(len(kind), [capacities[k] * K for k in kind], speeds=[speeds[k] for k in kind])
    problem = make_problem(lengths, **numbers, kinds=kind)
    assert simulate(problem, planner("makespan")(problem)).makespan <= 1.04 * lower_bound(problem)


@pytest.mark.parametrize(("replicas", "node", "most"), [(100, 8, 4), (64, 1, 8), (64, 16, 4), (96, 8, 16), (60, 4, 3)])
def test_nodes_of_other_sizes_do_not_spoil_a_step_of_mostly_long_sequences(replicas: int, node: int, most: int) -> None:
    for seed in range(3):
        lengths = mostly_long(replicas, 4, seed, most)
        assert plan("makespan", lengths, **given(replicas, 8 * K, node_size=node)).makespan_over_bound <= 1.06, (
            f"seed {seed}"
        )


def test_a_slow_replica_among_rings_of_whole_nodes_costs_no_more_than_its_node() -> None:
    lengths = mostly_long(256, 4, 0)
    slow = plan("makespan", lengths, **given(256, 8 * K, speeds=[1 / 1.3, *[1.0] * 255]))
    assert slow.makespan_over_bound <= 1.06


@pytest.mark.parametrize("name", sorted(SETS))
def test_rivals_need_almost_twice_the_time_or_more_on_every_length_set(name: str) -> None:
    lengths = draw_lengths(name, context=256 * K, tokens=8 * K * K, seed=0)
    ours, static, naive = (plan(b, lengths, **given(256, 8 * K)) for b in ("makespan", "static", "naive"))
    assert static.makespan_seconds > 1.9 * ours.makespan_seconds
    assert naive.makespan_seconds > 1.9 * ours.makespan_seconds


def test_one_slow_replica_of_256_costs_no_more_than_its_share() -> None:
    lengths = draw_lengths("github", context=256 * K, tokens=8 * K * K, seed=0)
    slow = plan("makespan", lengths, **given(256, 8 * K, speeds=[1 / 1.3, *[1.0] * 255]))
    assert slow.makespan_over_bound <= 1.012


def test_sequences_that_fit_move_no_bytes() -> None:
    lengths = draw_lengths("github", context=8 * K, tokens=K * K, seed=0)
    numbers = given(32, 8 * K)
    assert ring_bytes(make_problem(lengths, **numbers), drafts_of(plan("makespan", lengths, **numbers))) == (0, 0)


def test_rings_of_up_to_a_node_stay_inside_it() -> None:
    lengths = draw_lengths("github", context=64 * K, tokens=2 * K * K, seed=0)
    numbers = given(64, 8 * K)
    problem = make_problem(lengths, **numbers)
    small = [d for d in drafts_of(plan("makespan", lengths, **numbers)) if 2 <= len(d.members) <= 8]
    assert small
    assert ring_bytes(problem, small)[1] == 0


@pytest.mark.parametrize(
    ("replicas", "lengths"),
    [
        (3, [8000, 7000, 6000, 5000, 4000]),
        (3, [20000, 8192, 100]),
        (3, [9000, 9000, 3000, 200, 8000]),
        (3, [16000, 19000]),  # needs shelves
        (4, [5000, 23000, 3000]),  # needs a later target
        (4, [15000, 23000, 1000]),
    ],
)
def test_a_small_step_is_planned_as_well_as_by_trying_all_plans(replicas: int, lengths: list[int]) -> None:
    numbers = given(replicas, 8192)
    problem = make_problem(lengths, **numbers)
    places = [p for size in range(1, replicas + 1) for p in combinations(range(replicas), size)]
    fits = [[p for p in places if s <= 8192 * len(p) and (len(p) == 1 or s > 8192)] for s in lengths]
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    best = min(simulate(problem, [Draft(choice[i], (i,)) for i in order]).makespan for choice in product(*fits))
    assert plan("makespan", lengths, **numbers).makespan_seconds <= best * (1 + 1e-9)


@pytest.mark.parametrize("name", sorted(SETS))
def test_drawn_lengths_have_just_the_tokens_asked_for_and_follow_the_seed(name: str) -> None:
    one, two, three = (draw_lengths(name, context=64 * K, tokens=300 * K, seed=s) for s in (1, 1, 2))
    assert one.tolist() == two.tolist() != three.tolist()
    assert int(one.sum()) == 300 * K
    assert 1 <= int(one.min()) <= int(one.max()) <= 64 * K


def test_the_byted_set_has_the_token_shares_that_were_published() -> None:
    lengths = draw_lengths("byted", context=2 * K * K, tokens=2000 * K * K, seed=0)
    share = {k: float(lengths[lengths > k * K].sum() / lengths.sum()) for k in (128, 256)}
    assert share[128] == pytest.approx(0.443, abs=0.05)
    assert share[256] == pytest.approx(0.37, abs=0.05)
