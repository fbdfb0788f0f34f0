"""Rings whose members exchange heads: what they cost, which rings do, and what the validator refuses."""

from __future__ import annotations

import random

import numpy as np
import pytest
from msgspec import UNSET
from msgspec.structs import replace

from coxswain.config import ModelConfig, ParallelConfig
from coxswain.cost.constants import Constants, constants_for
from coxswain.cost.hardware import Tables
from coxswain.cost.model import CostModel
from coxswain.cost.ulysses import HeadExchange, key_heads_of
from coxswain.layout import Device, Layout, uniform_layout
from coxswain.plan.assemble import assemble
from coxswain.plan.head_groups import group_size, head_exchange, key_heads, ring_seconds
from coxswain.plan.kinds import nodes_of, rates_of
from coxswain.plan.planners import BALANCES, SLOW
from coxswain.plan.problem import Draft, make_problem
from coxswain.plan.step import cost_model, loss_layers, plan_step
from coxswain.plan.validator import validate
from coxswain.plan.values import Placement
from tests.layouts import layout_of

# A token: 1 us of linear work, 8 us for its keys and values inside a node, 80 between nodes; 1 ns a token squared.
CONSTANTS = Constants(
    linear_us_per_token=1.0, attention_ns_per_token2=1.0, kv_bytes_per_token=8e3, inside_node_gbps=1.0,
    between_nodes_gbps=0.1, task_ms=0.0,
)  # fmt: skip
MODEL = ModelConfig(layers=4, hidden=64, heads=16, kv_heads=8, feed_forward=64, vocabulary=64)


def cost(
    choice: str = "Auto", heads: int = 8, queries: float = 2.0, node: int = 8, tables: Tables | None = None
) -> CostModel:
    constants = CONSTANTS if tables is None else replace(CONSTANTS, tables=tables)
    return CostModel(constants, HeadExchange(choice, heads, queries, node))  # type: ignore[arg-type]


def test_a_ring_of_one_group_attends_to_everything_and_waits_for_what_it_exchanges() -> None:
    """Of 1,000 tokens a member: all attention of 8,000 over 8, and 7/8 of queries and keys twice each, over links of 8 us."""
    exchanged = 1000 * 8e-6 * (2 + 2 * 2) / 3 * 7 / 8
    expected = 1e-6 * 1000 + 1e-9 * 8000**2 / 8 + exchanged
    assert cost("Ulysses").ring_seconds(8000.0, 8.0, True) == pytest.approx(expected)
    assert cost("Ulysses").packed_ring_seconds([8000], 8, True, 8, True) == pytest.approx(expected)


def test_groups_of_a_ring_pass_on_their_keys_as_members_do_and_attend_to_more_of_them_with_fewer_heads() -> None:
    """Two groups of four: two steps, each of 4,000 tokens with a quarter of the heads; the second waits for 1,000 tokens."""
    step, travel = 1e-9 * 4000**2 / 4, 1000 * 8e-6
    exchanged = 1000 * 8e-6 * 2 * 3 / 4
    expected = 1e-6 * 1000 + step + max(step, travel) + exchanged
    assert travel > step
    assert cost().packed_ring_seconds([8000], 8, True, 4, True) == pytest.approx(expected)


@pytest.mark.parametrize("choice", ["Ulysses", "Auto"])
def test_a_table_of_lengths_by_degrees_has_the_seconds_of_each_pair(choice: str) -> None:
    lengths, degrees = np.array([[900.0], [9000.0], [90000.0]]), np.array([2.0, 3.0, 4.0, 8.0, 12.0])
    table = cost(choice).ring_seconds(lengths, degrees, True)
    each = [[float(cost(choice).ring_seconds(s, d, True)) for d in degrees.tolist()] for s in lengths[:, 0].tolist()]
    assert table.tolist() == each


def test_without_an_exchange_of_heads_no_time_has_another_bit() -> None:
    plain = CostModel(CONSTANTS)
    for degree in (2, 3, 8):
        assert plain.ring_seconds(9000.0, float(degree), False) == cost(heads=1).ring_seconds(
            9000.0, float(degree), False
        )
        assert ring_seconds(plain, [9000, 80], [0] * degree, 1) == plain.packed_ring_seconds([9000, 80], degree, True)


@pytest.mark.parametrize("attention", ["Ring", "Ulysses"])
def test_recompute_repeats_what_rings_and_their_exchanges_send(attention: str) -> None:
    """Of 400 tokens over four members: three hops, or one exchange; what computes again takes a third more."""
    layout = uniform_layout([Device(0, d) for d in range(4)], layers=4)

    def cost_of(recompute: str) -> CostModel:
        parallel = ParallelConfig(attention=attention, recompute=recompute, hardware="h100-80g")  # type: ignore[arg-type]
        return cost_model(layout, parallel, MODEL)

    none, selective, full = (cost_of(recompute) for recompute in ("None", "Selective", "Full"))
    assert none.constants == constants_for("h100-80g", MODEL)
    assert (selective.kv(True), full.kv(True)) == (none.kv(True), pytest.approx(none.kv(True) * 4 / 3))
    assert selective.linear == full.linear == pytest.approx(none.linear * 4 / 3)
    assert (selective.attention, full.attention) == (none.attention, pytest.approx(none.attention * 4.5 / 3.5))
    if attention == "Ulysses":
        assert none.exchanged(4, True) == pytest.approx(none.kv(True) * 2 * 3 / 3 * 3 / 4)
        assert selective.exchanged(4, True) == full.exchanged(4, True) == pytest.approx(none.exchanged(4, True) * 3 / 2)


def test_auto_takes_rings_for_long_sequences_and_head_groups_where_travel_would_be_waited_for() -> None:
    """8,000 tokens a member compute for 64 ms a step, and a step's keys travel for as long."""
    assert group_size(cost(), [64_000 * 8], [0] * 8) == 1
    assert group_size(cost(), [8_000], [0] * 8) == 8


def test_auto_exchanges_heads_inside_nodes_and_passes_keys_between_them() -> None:
    """A ring of 16 over two nodes of 8; where the members of each group are apart, it exchanges none."""
    together, apart = [0] * 8 + [1] * 8, [0, 1] * 8
    assert group_size(cost(), [160_000], together) == 8
    best = min(cost().exchange.of(16), key=lambda u: ring_seconds(cost(), [160_000], apart, u))  # type: ignore[union-attr]
    assert group_size(cost(), [160_000], apart) == best
    assert ring_seconds(cost(), [160_000], together, 8) < ring_seconds(cost(), [160_000], apart, best)


def test_the_head_groups_of_a_ring_are_of_its_members_in_the_order_of_the_ring() -> None:
    """Replicas of two nodes by turns: groups of four are inside nodes where the ring goes through one node first."""
    problem = make_problem([16_000], replicas=8, capacity=2000, cost=cost(), max_degree=8, nodes=[0, 1] * 4)
    rings = [(0, 2, 4, 6, 1, 3, 5, 7), tuple(range(8))]
    assert [assemble(problem, "any", [Draft(ring, (0,))]).tasks[0].ulysses for ring in rings] == [4, 8]


@pytest.mark.parametrize(
    ("degree", "heads", "size"),
    [(4, 8, 4), (6, 8, 2), (5, 8, 1), (16, 8, 8), (16, 32, 8), (12, 6, 6), (7, 7, 7), (9, 1, 1)],
)
def test_ulysses_takes_as_many_neighbours_as_the_degree_and_the_key_heads_allow(
    degree: int, heads: int, size: int
) -> None:
    assert group_size(cost("Ulysses", heads), [64_000 * degree], [0] * degree) == size


@pytest.mark.parametrize(
    ("kv_heads", "degrees", "found"),
    [(8, [1], 8), (8, [2], 4), (8, [8], 1), (8, [16], 1), (8, [1, 4], 2), (6, [1, 2], 3)],
)
def test_every_device_of_every_stage_must_have_the_key_heads(kv_heads: int, degrees: list[int], found: int) -> None:
    assert key_heads_of(kv_heads, degrees) == found


@pytest.mark.parametrize("choice", ["Ulysses", "Auto"])
@pytest.mark.parametrize(
    "tables", [None, Tables(attention=((100, 0.1), (1000, 1.2), (10_000, 99.0)), ring=((100, 0.2), (5000, 30.0)))]
)
def test_no_ring_takes_less_than_the_planner_and_the_bound_assume(choice: str, tables: Tables | None) -> None:
    """Whatever its members' nodes are."""
    rng, model = random.Random(4), cost(choice, node=4, tables=tables)
    for _ in range(300):
        degree, s = rng.randint(2, 16), rng.randint(20, 60_000)
        nodes = [rng.choice((0, 1)) for _ in range(degree)] if rng.random() < 0.5 else [k // 4 for k in range(degree)]
        took = ring_seconds(model, [s], nodes, group_size(model, [s], nodes))
        assumed = float(model.ring_seconds(float(s), float(degree), len(set(nodes)) == 1))
        assert took >= assumed * (1 - 1e-12)
        assert degree * took >= float(model.least_work_seconds([s])[0]) * (1 - 1e-12)


def planned(
    attention: str, balance: str = "Makespan", layout: Layout | None = None, longest: int = 400
) -> tuple[Placement, list[int], Layout]:
    rng = random.Random(2)
    lengths = [rng.choice((rng.randint(1, 64), rng.randint(65, longest))) for _ in range(24)]
    layout = layout or uniform_layout([Device(t, d) for t in range(2) for d in range(4)], layers=4)
    parallel = ParallelConfig(tokens_per_replica=64, max_degree=8, balance=balance, attention=attention)  # type: ignore[arg-type]
    return plan_step(lengths, layout, parallel, MODEL), lengths, layout


@pytest.mark.parametrize("balance", sorted({*BALANCES} - SLOW))
@pytest.mark.parametrize("attention", ["Ring", "Ulysses", "Auto"])
def test_every_planners_plans_say_of_each_ring_what_it_exchanges(attention: str, balance: str) -> None:
    placement, _, layout = planned(attention, balance)
    rings = [task for task in placement.tasks if task.kind == "ring"]
    assert rings
    assert all(task.ulysses is UNSET for task in placement.tasks if task.kind == "pack" or attention == "Ring")
    model = CostModel(replace(CONSTANTS, task_ms=1.0), HeadExchange("Ulysses", 8, 2.0, 4))
    if attention == "Ulysses":
        assert [t.ulysses or 1 for t in rings] == [group_size(model, [1], [0] * len(t.replicas)) for t in rings]
    assert placement.makespan_seconds >= placement.lower_bound_seconds * (1 - 1e-9)
    nodes, rates = nodes_of(layout), rates_of(layout, loss_layers(MODEL))
    own = cost_model(layout, ParallelConfig(attention=attention), MODEL)  # type: ignore[arg-type]
    for task in rings:
        lengths = {s.sequence: 0 for s in task.slices}
        for s in task.slices:
            lengths[s.sequence] += s.stop - s.start
        took = ring_seconds(own, [*lengths.values()], [nodes[r] for r in task.replicas], task.ulysses or 1)
        assert task.seconds == pytest.approx(took / rates[task.replicas[0]])


def test_unequal_replicas_exchange_what_all_of_their_devices_have() -> None:
    layout = layout_of([(1, 4)], [(1, 4)], [(4, 4)], [(4, 4)], [(2, 2), (4, 4)], [(2, 2), (4, 4)])
    assert key_heads(MODEL, layout) == 2
    placement, _, _ = planned("Ulysses", layout=layout, longest=128)
    assert {task.ulysses for task in placement.tasks if task.kind == "ring"} == {2}


def test_groups_exchange_inside_a_node_only_if_each_of_them_is_on_one() -> None:
    model = cost("Ulysses", node=2)
    for nodes, inside in (([0, 0, 1, 1], True), ([0, 0, 0, 1], False), ([0, 1, 1, 1], False)):
        expected = model.packed_ring_seconds([9000], 4, False, 2, inside)
        assert ring_seconds(model, [9000], nodes, 2) == expected
    assert model.packed_ring_seconds([9000], 4, False, 2, True) < model.packed_ring_seconds([9000], 4, False, 2, False)


def test_a_node_may_hold_as_large_a_group_as_the_largest_node_has_replicas() -> None:
    exchange = head_exchange("Auto", MODEL, layout_of([(1, 4)], [(1, 4)], [(1, 4)]), [0, 1, 1])
    assert exchange and exchange.node == 2


@pytest.mark.parametrize(
    ("size", "says"),
    [(3, "head groups of 3 do not divide its 4 replicas"), (1, "head groups of 1 do not divide its 4 replicas"),
     (8, "head groups of 8 do not divide its 4 replicas"), (4, "head groups of 4 do not divide the 2 key heads of a device")],
)  # fmt: skip
def test_a_ring_whose_groups_or_heads_are_uneven_is_refused(size: int, says: str) -> None:
    placement, lengths, layout = planned("Ulysses", "ByteScale")
    ring = next(t for t in placement.tasks if t.kind == "ring" and len(t.replicas) == 4)

    def faults(size: int, heads: int) -> list[str]:
        tasks = tuple(replace(t, ulysses=size) if t.index == ring.index else t for t in placement.tasks)
        return validate(replace(placement, tasks=tasks), lengths, layout, 64, 8, heads)

    assert faults(size, 2 if size == 4 else 8) and says in faults(size, 2 if size == 4 else 8)[-1]
    assert faults(4, 8) == faults(2, 8) == []


def test_a_pack_that_would_exchange_heads_is_refused() -> None:
    placement, lengths, layout = planned("Ring", "ByteScale")
    pack = next(t for t in placement.tasks if t.kind == "pack")
    tasks = tuple(replace(t, ulysses=2) if t.index == pack.index else t for t in placement.tasks)
    (fault,) = validate(replace(placement, tasks=tasks), lengths, layout, 64, 8, 8)
    assert fault == f"task {pack.index} (pack): head groups of 2 do not divide its 1 replicas"
