"""What stages of a layout hold and take at the bounds: full devices, one node, other modes of recompute, shared embeddings."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from coxswain.cost.constants import Hardware, load_hardware
from coxswain.cost.hardware import attention_flops
from coxswain.errors import Refused
from coxswain.plan.layouts.chains import pipeline_seconds, with_layers
from coxswain.plan.layouts.cluster import MOST_DEVICES, MOST_OF_NODE, DeviceState, Node, read_cluster
from coxswain.plan.layouts.costs import Costs, make_group
from coxswain.plan.layouts.filling import fill_layers
from coxswain.plan.layouts.migration import migration
from coxswain.plan.layouts.planner import Plan, healthy_plan, levelled, plan_layout
from coxswain.plan.layouts.result import planned
from coxswain.plan.layouts.rivals import data_only
from coxswain.plan.layouts.search import best_of
from coxswain.plan.layouts.settle import Draft
from tests.unit.layout_cases import SMALL, cluster_of, costs_of


def test_a_device_may_be_full_to_the_last_byte_of_its_limit() -> None:
    costs = costs_of([[1.0] * 8])
    costs.limit = costs.peak(1, 2, True, 2, 1).total
    assert costs.most_layers(1, True, 2, 1) == 2
    costs.limit -= 1
    assert costs.most_layers(1, True, 2, 1) == 1


def test_layers_are_given_to_no_chain_with_a_stage_that_holds_none() -> None:
    assert fill_layers(4, [1.0, 1.0], [0.0, 0.0], [4, 0]) is None


def test_a_later_stage_keeps_fewer_micro_batches_and_so_needs_less_memory() -> None:
    costs = costs_of([[1.0] * 4])
    chain = with_layers(costs, [make_group(0, [d], 1.0) for d in range(4)], [1, 2, 1, 1], 1)
    (replica,) = planned(costs, Draft((chain,), (8,), 1.0))
    expected = [costs.peak(1, n, s == 0, 4 - s, 1).total for s, n in enumerate((1, 2, 1, 1))]
    assert [stage.memory_bytes for stage in replica.stages] == expected


def test_a_tied_embedding_is_on_the_first_stage_and_on_the_last() -> None:
    rows = SMALL.vocabulary * SMALL.hidden
    costs = Costs(cluster_of([[1.0]]), replace(SMALL, tied_head=True))
    inner, first, last = (costs.elements(1, 3, *ends) for ends in ((False, False), (True, False), (False, True)))
    assert (first - inner, last - inner) == (rows, rows + SMALL.hidden)  # with the last norm


@pytest.mark.parametrize(("nodes", "more"), [(1, False), (2, True)])
def test_devices_of_one_node_keep_no_copies_of_another_one_s_state(nodes: int, more: bool) -> None:
    cluster = cluster_of([[1.0] * 4] * nodes)
    with_copies, without = (
        Costs(replace(cluster, copies=copies), SMALL).peak(1, 2, True, 2, 2).total for copies in (True, False)
    )
    assert (with_copies > without) is more


def test_a_stage_that_recomputes_sums_six_times_and_its_forward_is_a_quarter() -> None:
    found = {}
    for recompute in ("None", "Selective", "Full"):
        costs = Costs(replace(cluster_of([[1.0] * 2]), recompute=recompute), SMALL)
        travel = costs.layer_seconds(2, 1.0) - costs.layer_seconds(1, 1.0) / 2
        found[recompute] = (round(travel / (costs.hop_bytes / costs.inside), 6), costs.forward)
    assert found == {"None": (4.0, 1 / 3), "Selective": (6.0, 1 / 4), "Full": (6.0, 1 / 4)}


def with_table(attention: float) -> Hardware:
    """Devices whose attention has been measured at this rate for the cluster's sequences, and at the half for short ones."""
    shipped = load_hardware("a100-80g")
    return replace(shipped, rates=replace(shipped.rates, attention_table=((1024, attention / 2), (4096, attention))))


@pytest.mark.parametrize(("recompute", "times"), [("None", 1.0), ("Selective", 1.0), ("Full", 4.5 / 3.5)])
def test_attention_takes_the_seconds_of_a_measured_table_whatever_the_formula_says(recompute, times) -> None:
    cluster = replace(cluster_of([[1.0]]), recompute=recompute, micro_batch=2)
    formula, table = (Costs(cluster, SMALL, hardware) for hardware in (None, with_table(20.0)))
    square = attention_flops(SMALL) * 4096**2 * 1e-12  # TFLOP of a sequence
    more = times * 2 * square * (1 / 20.0 - 1 / 180.0) / SMALL.layers
    assert table.layer_seconds(1, 1.0) - formula.layer_seconds(1, 1.0) == pytest.approx(more)


def test_a_table_of_the_rate_of_the_formula_changes_no_second() -> None:
    formula, table = (Costs(cluster_of([[1.0]]), SMALL, hardware) for hardware in (None, with_table(180.0)))
    assert table.layer_seconds(2, 1.3) == pytest.approx(formula.layer_seconds(2, 1.3))


def test_a_table_that_differs_from_the_formula_changes_the_layout_that_is_chosen() -> None:
    """With attention nine times slower, a slow device is better as a replica than as a stage of one layer."""
    cluster = cluster_of([[1.0, 1.0], [1.0, 2.0]])
    formula, table = (Costs(cluster, SMALL, hardware) for hardware in (None, with_table(20.0)))
    before, after = plan_layout(formula).draft, plan_layout(table).draft
    assert [c.layers for c in before.chains] == [(5,), (4, 1)]
    assert [c.layers for c in after.chains] == [(5,), (5,), (5,)]
    kept = data_only(table, before)
    assert kept and after.seconds < kept.seconds


def test_a_change_that_no_step_repays_moves_nothing_where_many_steps_repay_it() -> None:
    costs = costs_of([[1.0] * 4, [1.0] * 3 + [2.57]], batch=16)
    short, long = (plan_layout(costs, healthy_plan(costs), horizon) for horizon in (0, 10**9))
    assert short.traffic and long.traffic
    assert short.traffic.bytes == 0 < long.traffic.bytes
    assert long.draft.seconds < short.draft.seconds


def test_what_is_chosen_costs_no_more_than_any_rung_with_the_seconds_of_its_own_change() -> None:
    """The other layers on the same tensor groups would be faster within one step, but for what moves."""
    costs = costs_of([[1.5, 5.42], [1.0, 2.57]], batch=4)
    healthy = healthy_plan(costs)
    rungs = [d for d in (best_of(costs), data_only(costs, healthy), levelled(costs, healthy)) if d]
    least = min(Plan(draft, migration(costs, healthy, draft)).cost(1) for draft in rungs)
    assert len(rungs) == 3
    assert plan_layout(costs, healthy, horizon=1).cost(1) == pytest.approx(least)


def test_a_stage_begins_its_first_backward_behind_as_many_forwards_as_there_are_stages_from_it_on() -> None:
    """Two stages, forward 1 s, backward 2 s, 1 s between them. The third forward of the first stage waits for its first backward,
    so the last one ends after 16 s; begun before it, after 14 s."""
    assert pipeline_seconds((3.0, 3.0), (1.0,), 3, 1 / 3) == pytest.approx(16.0)


@pytest.mark.parametrize(
    ("nodes", "devices", "beyond"), [(1, MOST_OF_NODE, "a node has at most"), (1000, 100, "are planned for")]
)
def test_a_cluster_may_have_as_many_devices_as_is_said_and_no_more(nodes: int, devices: int, beyond: str) -> None:
    cluster = cluster_of([[1.0] * devices] * nodes)
    assert cluster.devices in (MOST_OF_NODE, MOST_DEVICES)
    assert read_cluster(msgspec.json.encode(cluster), "file") == cluster
    first = Node("more", (DeviceState(),) * (devices + 1))
    with pytest.raises(Refused, match=beyond):
        read_cluster(msgspec.json.encode(replace(cluster, nodes=(first, *cluster.nodes[1:]))), "file")
