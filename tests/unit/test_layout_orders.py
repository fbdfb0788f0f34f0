"""Orders of stages and tables of costs that are kept are those that each question of its own would find."""

from __future__ import annotations

import builtins
from itertools import combinations
from random import Random

import pytest
from msgspec.structs import replace

from coxswain.plan.layouts.cluster import Node
from coxswain.plan.layouts.costs import Costs, make_group
from coxswain.plan.layouts.ordering import Chains
from coxswain.plan.layouts.planner import plan_layout
from tests.unit.layout_cases import DEAD, LARGE, SMALL, cluster_of, costs_of, eight_nodes
from tests.unit.plan_cases import newer_sum


def mixed_costs(seed: int) -> Costs:
    """Four nodes, some with a slow device or half a network."""
    random = Random(seed)
    rows = [[random.choice((1.0, 1.0, 2.57)) for _ in range(2)] for _ in range(4)]
    cluster = cluster_of(rows, batch=random.choice((8, 24)), tensor=2)
    nodes = [Node(n.name, n.devices, random.choice((1.0, 1.0, 0.25))) for n in cluster.nodes]
    costs = Costs(replace(cluster, nodes=tuple(nodes)), SMALL)
    costs.limit = costs.limit and int(costs.limit * random.choice((0.2, 0.5, 1.0)))
    return costs


@pytest.mark.parametrize("seed", range(12))
def test_a_set_of_groups_has_the_chain_that_is_found_where_no_other_set_was_asked_before(seed: int) -> None:
    costs = mixed_costs(seed)
    rows = costs.cluster.slowdowns
    singles = [make_group(n, [d], rows[n][d]) for n in range(4) for d in range(2)]
    pairs = [make_group(n, [0, 1], max(rows[n])) for n in range(4)]
    sets = [(s, r) for of in (singles, pairs) for k in (1, 2, 3) for s in combinations(of, k) for r in (1, 2)]
    shared = Chains(costs)
    Random(seed).shuffle(sets)
    for groups, replicas in sets:
        found = shared.of(groups, replicas)
        assert found == Chains(costs).of(groups, replicas)
        assert found is None or sorted(found.groups) == sorted(groups)


def numbers(costs: Costs, slowdown: float) -> list[float]:
    """Everything that is kept in tables, of a group of four at this slowdown and one on another node."""
    a, b = (make_group(n, range(4), slowdown) for n in (0, 1))
    return [
        costs.layer_seconds(4, slowdown), costs.loss_seconds(a), costs.hop_seconds(a, b),
        costs.sync_seconds(a, 40, True, False, 2), costs.most_layers(4, False, 2, 2), costs.elements(4, 40, True, False),
    ]  # fmt: skip


def test_costs_at_other_speeds_are_those_of_a_cluster_with_these_speeds() -> None:
    costs = costs_of([[1.0] * 8] * 2, model=LARGE)
    costs.limit = 30_000_000_000
    filled = [costs.most_layers(d, True, 3, 2) for d in costs.degrees]
    rows = [[1.0] * 7 + [2.57], [DEAD] + [1.0] * 7]
    kept, fresh = costs.at(rows), costs_of(rows, model=LARGE)
    fresh.limit = costs.limit
    assert kept.cluster == fresh.cluster
    assert costs.cluster.slowdowns == ((1.0,) * 8,) * 2
    assert filled == [kept.most_layers(d, True, 3, 2) for d in kept.degrees]
    assert [numbers(kept, x) for x in (1.0, 2.57)] == [numbers(fresh, x) for x in (1.0, 2.57)]


def test_another_limit_of_memory_holds_at_once_also_where_costs_share_their_tables() -> None:
    costs = costs_of([[1.0] * 8], model=LARGE)
    assert costs.limit
    most = costs.most_layers(8, True, 4, 1)
    other = costs.at([[1.0] * 7 + [2.57]])
    other.limit = costs.limit // 2
    assert other.most_layers(8, True, 4, 1) < most == costs.most_layers(8, True, 4, 1)


def test_a_layout_is_the_same_with_every_version_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = {(0, 0): 2.57, (1, 3): 1.3, (5, 5): DEAD, (6, 1): 1.7}
    before = plan_layout(eight_nodes(slow))
    monkeypatch.setattr(builtins, "sum", newer_sum)
    assert plan_layout(eight_nodes(slow)) == before
