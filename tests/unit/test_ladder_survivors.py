"""What is left of a layout without some of its devices, and what the ladder takes a layout for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from coxswain.ladder.options import FORM, at_speeds, draft_of, settled, surviving, without_lost, without_slow
from coxswain.layout import Device, Layout, Replica, Stage, uniform_layout
from coxswain.plan.layouts.costs import Costs
from coxswain.plan.layouts.planner import healthy_plan
from tests.unit.ladder_views import DEVICES, THERE, healthy
from tests.unit.layout_cases import costs_of


@pytest.mark.parametrize(
    ("gone", "replicas"), [([], (0, 1, 2, 3)), ([1], (1, 2, 3)), ([2, 7], (0, 2)), ([0, 2, 4, 6], ()), (range(8), ())]
)
def test_the_replicas_all_of_whose_devices_are_there_survive_and_what_is_left_of_the_others_stands_by(
    gone: Sequence[int], replicas: tuple[int, ...]
) -> None:
    late = Device(9, 0)  # one that this layout does not have
    there = {late, *(device for i, device in enumerate(DEVICES) if i not in gone)}
    found = surviving(THERE, there)
    if not replicas:
        assert found is None
        return
    assert found and found.replicas == tuple(THERE.replicas[i] for i in replicas)
    used = {seat.device for seat in found.ranks()}
    assert found.standby == tuple(sorted(there - used))


def test_the_replicas_that_lost_no_device_are_a_plan_at_once() -> None:
    costs, layout = healthy()
    assert len(layout.replicas) > 1
    for lost in (0, len(layout.replicas) - 1):
        dead = layout.replicas[lost].stages[0].devices[0]
        slow_one = layout.replicas[1 - lost and 1].stages[0].devices[0]
        found = without_lost(costs, layout, {dead: 0.0, slow_one: 0.5})
        assert found and found.layout.replicas == tuple(r for i, r in enumerate(layout.replicas) if i != lost)
        assert found.change > FORM and found.seconds > healthy_plan(costs).seconds
        assert dead not in found.layout.standby and slow_one not in found.layout.standby


def test_there_is_no_plan_at_once_where_each_replica_lost_a_device_or_the_others_lack_the_memory() -> None:
    costs, layout = healthy()
    dead = {r.stages[0].devices[0]: 0.0 for r in layout.replicas}
    assert without_lost(costs, layout, dead) is None
    tight, rows = costs_of([[1.0] * 8] * 2, batch=16), range(len(layout.replicas))
    stages = [
        (len(s.devices), s.stop - s.start, i == 0, len(r.stages) - i)
        for r in layout.replicas
        for i, s in enumerate(r.stages)
    ]
    tight.limit = max(tight.peak(d, n, first, depth, len(rows)).total for d, n, first, depth in stages)
    one = dict(list(dead.items())[:1])
    assert without_lost(costs, layout, one) and without_lost(tight, layout, one) is None


def test_a_draft_of_a_layout_has_all_micro_batches_and_groups_as_slow_as_their_slowest_device() -> None:
    _, layout = healthy()
    slow_one = layout.replicas[0].stages[0].devices[-1]
    for batch in (16, 17):
        now = at_speeds(costs_of([[1.0] * 8] * 2, batch=batch), {slow_one: 0.5})
        draft = draft_of(now, layout)
        assert sum(draft.counts) == batch and max(draft.counts) - min(draft.counts) <= 1
        assert draft.chains[0].groups[0].slowdown == 2.0 and draft.chains[1].groups[0].slowdown == 1.0


def test_speeds_without_a_living_device_are_refused() -> None:
    costs, _ = healthy()
    with pytest.raises(ValueError, match="alive"):
        at_speeds(costs, dict.fromkeys((Device(n, d) for n in range(2) for d in range(8)), 0.0))


def with_memory(total: int) -> Costs:
    costs = costs_of([[1.0, 1.0, 1.0, 4.0], [1.0] * 4])
    costs.limit = total
    return costs


@pytest.mark.parametrize("order", [1, -1])
def test_a_layout_of_which_one_replica_lacks_the_memory_is_no_plan_and_leaves_no_slow_device_out(order: int) -> None:
    """Another one fits, which does not speak for all."""
    deep, flat = uniform_layout(DEVICES[:2], 5, pipeline=2), uniform_layout(DEVICES[2:4], 5)
    layout, speeds = Layout((deep.replicas + flat.replicas)[::order]), {DEVICES[3]: 0.25}
    three, two = (costs_of([[1.0]]).peak(1, 5, True, 1, replicas).total for replicas in (3, 2))
    assert settled(with_memory(three - 1), uniform_layout(DEVICES[:6], 5, pipeline=2)), "of one kind"
    assert settled(with_memory(three), layout) and settled(with_memory(three - 1), layout) is None
    (option,) = without_slow(with_memory(two), layout, speeds, 12.0)
    assert option.layout.standby == (DEVICES[3],)
    assert without_slow(with_memory(two - 1), layout, speeds, 12.0) == []


@pytest.mark.parametrize("layers", [1, 2, 4])
def test_each_stage_of_a_pipeline_must_fit_by_its_own_layers_and_place(layers: int) -> None:
    first, last = Stage((DEVICES[0],), 0, layers), Stage((DEVICES[1],), layers, 5)
    peaks = (
        costs_of([[1.0]]).peak(1, layers, True, 2, 1).total,
        costs_of([[1.0]]).peak(1, 5 - layers, False, 1, 1).total,
    )
    layout = Layout((Replica((first, last)),))
    assert settled(with_memory(max(peaks)), layout) and settled(with_memory(max(peaks) - 1), layout) is None


def test_a_draft_has_the_layers_of_each_stage() -> None:
    layout = uniform_layout(DEVICES, 5, pipeline=4)
    (chain, _) = draft_of(costs_of([[1.0] * 4] * 2), layout).chains
    assert list(chain.layers) == [stage.stop - stage.start for stage in layout.replicas[0].stages]


def test_no_layout_leaves_a_device_out_where_none_is_slow() -> None:
    costs, layout = healthy()
    assert without_slow(costs, layout, {}, 12.0) == []
