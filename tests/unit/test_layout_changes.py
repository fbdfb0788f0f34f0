"""What a layout keeps where it is, what a change moves, and that what costs remember is what they were."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from random import Random

import pytest
from msgspec.structs import replace

from coxswain.plan.layouts.chains import chain_seconds, with_layers
from coxswain.plan.layouts.costs import Costs, make_group
from coxswain.plan.layouts.migration import migration
from coxswain.plan.layouts.planner import healthy_plan, plan_layout
from coxswain.plan.layouts.result import kept_in_place
from coxswain.plan.layouts.search import Effort, search
from coxswain.plan.layouts.settle import Draft, Settler
from tests.unit.layout_cases import DEAD, SMALL, costs_of

QUICK = Effort(starts=6, improved=2, tries=60, finalists=1, final=60)
Place = tuple[int, int]  # node and device


def draft_of(costs: Costs, *chains: tuple[list[Place], list[int]]) -> Draft:
    """Single devices with so many layers each, and micro-batches as they are dealt."""
    slow = costs.cluster.slowdowns
    found = Settler(costs).deal(
        [
            with_layers(costs, [make_group(n, [d], slow[n][d]) for n, d in places], layers, len(chains))
            for places, layers in chains
        ]
    )
    assert found
    return found


def places_of(draft: Draft) -> list[list[Place]]:
    return [[(g.node, *g.devices) for g in chain.groups] for chain in draft.chains]


def unequal_costs() -> Costs:
    """Nodes whose devices and links differ."""
    costs = costs_of([[1.0, 1.25, 1.0], [1.0, 2.57], [1.0] * 4], batch=12)
    nodes = [replace(n, bandwidth=b) for n, b in zip(costs.cluster.nodes, (1.0, 0.25, 0.5), strict=True)]
    return Costs(replace(costs.cluster, nodes=tuple(nodes)), SMALL)


def test_devices_of_one_speed_keep_the_layers_that_they_hold_in_whatever_order_a_search_names_them() -> None:
    costs = costs_of([[1.0, 1.0], [1.0, 1.0]])
    current = draft_of(costs, ([(0, 0), (1, 1)], [3, 2]), ([(1, 0), (0, 1)], [3, 2]))
    named = draft_of(costs, ([(0, 1), (0, 0)], [3, 2]), ([(1, 1), (1, 0)], [3, 2]))
    kept = kept_in_place(costs, named, current)
    assert migration(costs, current, named).bytes > migration(costs, current, kept).bytes == 0
    assert {tuple(places) for places in places_of(kept)} <= {
        ((a, b), (c, d)) for (a, b) in [(0, 0), (1, 0)] for (c, d) in [(1, 1), (0, 1)]
    }
    assert kept.seconds == draft_of(costs, *((p, [3, 2]) for p in places_of(kept))).seconds


def test_a_device_keeps_no_layers_that_were_planned_for_one_of_another_speed() -> None:
    costs = costs_of([[1.0, 2.57]])
    current = draft_of(costs, ([(0, 0), (0, 1)], [3, 2]))
    named = draft_of(costs, ([(0, 1), (0, 0)], [1, 4]))
    assert places_of(kept_in_place(costs, named, current)) == [[(0, 1), (0, 0)]]


def test_a_layer_that_changes_its_device_moves_its_weight_and_three_times_four_bytes_of_state() -> None:
    costs = costs_of([[1.0, 1.0]])
    old, new = (draft_of(costs, ([(0, 0), (0, 1)], layers)) for layers in ([3, 2], [2, 3]))
    layer = costs.elements(1, 1, False, False)
    found = migration(costs, old, new)
    assert (found.bytes, found.stored_bytes, found.most_sent, found.most_received) == (
        (2 + 12) * layer, 0, (2 + 12) * layer, (2 + 12) * layer,
    )  # fmt: skip
    assert found.seconds == pytest.approx((2 + 12) * layer / costs.inside)


def test_what_a_dead_device_alone_held_comes_from_the_checkpoint() -> None:
    well, hurt = costs_of([[1.0, 1.0]]), costs_of([[1.0, DEAD]])
    old, new = draft_of(well, ([(0, 0), (0, 1)], [3, 2])), draft_of(hurt, ([(0, 0)], [5]))
    lost = 14 * well.elements(1, 2, False, True)
    assert (found := migration(hurt, old, new)).bytes == found.stored_bytes == lost
    assert (found.seconds, migration(well, old, new).stored_bytes) == (0.0, 0)


def test_a_change_over_a_slow_link_of_a_node_takes_as_much_longer() -> None:
    fast = costs_of([[1.0], [1.0]])
    nodes = (fast.cluster.nodes[0], replace(fast.cluster.nodes[1], bandwidth=0.25))
    slow = Costs(replace(fast.cluster, nodes=nodes), SMALL)
    quick, late = (
        migration(c, *(draft_of(c, ([(0, 0), (1, 0)], layers)) for layers in ([3, 2], [2, 3]))).seconds
        for c in (fast, slow)
    )
    assert late == pytest.approx(4 * quick)


QUERIES: list[Callable[[Costs, Random], object]] = [
    lambda c, r: c.most_layers(r.choice(c.degrees), r.random() < 0.5, r.randint(1, 4), r.randint(1, 4)),
    lambda c, r: c.layer_seconds(r.choice(c.degrees), r.choice([1.0, 1.25, 2.57])),
    lambda c, r: c.elements(r.choice(c.degrees), r.randint(1, 5), r.random() < 0.5, r.random() < 0.5),
    lambda c, r: c.sync_seconds(
        make_group(r.randrange(3), range(r.choice(c.degrees)), 1.0), r.randint(1, 5), r.random() < 0.5,
        r.random() < 0.5, r.randint(1, 4),
    ),
    lambda c, r: c.hop_seconds(
        *(make_group(r.randrange(3), range(r.choice(c.degrees)), 1.0) for _ in range(2))
    ),
]  # fmt: skip


@pytest.mark.parametrize("query", range(len(QUERIES)))
def test_costs_that_remember_answer_as_those_that_are_asked_for_the_first_time(query: int) -> None:
    asked = unequal_costs()
    asked.limit = asked.peak(1, 3, True, 1, 2).total
    for seed in range(150):
        first = unequal_costs()
        first.limit = asked.limit
        assert QUERIES[query](asked, Random(seed)) == QUERIES[query](first, Random(seed)), seed


def test_a_found_layout_takes_as_long_as_its_slowest_replica_by_itself() -> None:
    costs = unequal_costs()
    for draft in (search(costs, QUICK), plan_layout(costs, healthy_plan(costs)).draft):
        assert draft
        fresh = unequal_costs()
        chains = [with_layers(fresh, c.groups, c.layers, len(draft.chains)) for c in draft.chains]
        ends = [chain_seconds(c, m, fresh.forward) for c, m in zip(chains, draft.counts, strict=True)]
        assert draft.seconds == pytest.approx(max(ends), rel=1e-12)


def test_replicas_that_differ_in_their_links_alone_are_simulated_each() -> None:
    costs = unequal_costs()
    settler = Settler(costs)
    for nodes, replicas in product([[0, 2], [1, 2], [0, 1], [2, 1]], [1, 2]):
        mine = with_layers(costs, [make_group(n, [0], 1.0) for n in nodes], [3, 2], replicas)
        assert settler.seconds(mine, 4) == chain_seconds(mine, 4, costs.forward)
