"""What the layout planner offers from a running layout."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from coxswain.ladder import options as ladder_options
from coxswain.ladder.options import FORM, at_speeds, can_gain, draft_of, options_for, without_lost, without_slow
from coxswain.ladder.values import LEAST_GAIN
from coxswain.layout import Device, uniform_layout
from coxswain.plan.layouts.costs import Costs
from tests.unit.ladder_views import DEVICES, SLOW, healthy
from tests.unit.layout_cases import costs_of


@pytest.mark.parametrize("slowdown", [1.05, 1.2, 2.0, 12.53])
def test_options_are_faster_than_staying_by_the_least_gain(slowdown: float) -> None:
    costs, layout = healthy()
    found = options_for(costs, layout, {Device(0, 3): 1 / slowdown})
    assert all(option.seconds < found.stay * (1 - LEAST_GAIN) for option in found.layouts)


def test_options_of_a_healthy_cluster_are_no_better_than_staying() -> None:
    costs, layout = healthy()
    found = options_for(costs, layout, {})
    assert not found.layouts
    assert found.healthy == pytest.approx(found.stay)


def test_the_planners_options_leave_a_very_slow_device_out_and_count_what_moves() -> None:
    costs, layout = healthy()
    found = options_for(costs, layout, {Device(0, 3): 1 / 12.53})
    groups = next(o for o in found.layouts if o.kind == "Groups")
    assert Device(0, 3) in groups.layout.standby and groups.seconds < found.stay
    assert groups.change > FORM


def test_no_layout_is_searched_where_other_micro_batches_alone_make_up_for_a_slow_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    costs, layout = healthy()
    searched: list[Costs] = []
    monkeypatch.setattr(ladder_options, "search", lambda found: searched.append(found))
    one = options_for(costs, layout, {Device(0, 3): 1 / 1.001})
    assert one.layouts == () and one.stay < one.healthy * 1.005 and not searched
    options_for(costs, layout, {Device(0, 3): 1 / 2.0})
    assert searched


def test_a_change_takes_the_seconds_of_forming_a_world_beside_those_of_what_moves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    costs, layout = costs_of([[1.0] * 4] * 2), uniform_layout(DEVICES, 5, pipeline=2)
    monkeypatch.setattr(ladder_options, "search", lambda found: None)
    speeds, dead = {SLOW: 0.25}, {SLOW: 0.0}

    def changes(**form: float) -> list[float]:
        lost = without_lost(costs, layout, dead, **form)
        aside = without_slow(at_speeds(costs, speeds), layout, speeds, 12.0, **form)
        assert lost and len(aside) == 1
        return [o.change for o in (lost, *aside, *options_for(costs, layout, speeds, **form).layouts)]

    moves = changes(form=0.0)
    assert len(moves) == 3 and min(moves) > 0 and FORM == 1.0
    assert changes(form=5.0) == pytest.approx([5.0 + seconds for seconds in moves])
    assert changes() == pytest.approx([1.0 + seconds for seconds in moves])


def offered(monkeypatch: pytest.MonkeyPatch, found: float, in_place: float) -> list[float]:
    """Seconds of the searched layouts that are offered, as parts of the seconds of staying, which are 10."""
    costs, layout = costs_of([[1.0] * 4] * 2), uniform_layout(DEVICES, 5)
    stay = draft_of(costs, layout)
    monkeypatch.setattr(ladder_options, "data_only", lambda costs, running: replace(stay, seconds=10.0))
    monkeypatch.setattr(ladder_options, "healthy_plan", lambda costs: replace(stay, seconds=1.0))
    monkeypatch.setattr(ladder_options, "levelled", lambda costs, running: None)
    monkeypatch.setattr(ladder_options, "search", lambda costs: replace(stay, seconds=found))
    monkeypatch.setattr(ladder_options, "kept_in_place", lambda costs, best, now: replace(best, seconds=in_place))
    options = options_for(costs, layout, {})
    assert all(o.kind == "Groups" for o in options.layouts) and (options.stay, options.healthy) == (10.0, 1.0)
    return [option.seconds for option in options.layouts]


@pytest.mark.parametrize(
    ("found", "in_place", "taken"), [(8.001, 8.004, 8.004), (8.001, 8.02, 8.001), (8.02, 8.0, 8.0)]
)
def test_of_two_layouts_that_are_nearly_as_fast_the_one_that_keeps_devices_in_place_is_offered(
    monkeypatch: pytest.MonkeyPatch, found: float, in_place: float, taken: float
) -> None:
    assert offered(monkeypatch, found, in_place) == [taken]


def test_a_layout_is_offered_that_is_faster_than_staying_by_more_than_the_least_gain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    least = 10.0 * (1 - LEAST_GAIN)
    assert offered(monkeypatch, least, least) == [] and offered(monkeypatch, least - 1e-6, least - 1e-6)


def test_other_layers_in_the_same_groups_are_offered_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    costs, layout = costs_of([[1.0] * 4] * 2), uniform_layout(DEVICES, 5, pipeline=2)
    monkeypatch.setattr(ladder_options, "search", lambda found: None)
    (option,) = options_for(costs, layout, {SLOW: 0.25}).layouts
    groups = [[stage.devices for stage in r.stages] for r in layout.replicas]
    assert option.kind == "Layers" and [[s.devices for s in r.stages] for r in option.layout.replicas] == groups
    fast, slow_one = option.layout.replicas[0].stages
    assert fast.stop - fast.start > slow_one.stop - slow_one.start


def test_a_dead_device_leaves_only_layouts_without_it() -> None:
    costs, layout = healthy()
    dead = Device(0, 3)
    found = options_for(costs, layout, {dead: 0.0})
    assert math.isinf(found.stay) and found.layouts
    for option in found.layouts:
        used = {seat.device for seat in option.layout.ranks()}
        assert dead not in used and dead not in option.layout.standby


def test_no_layout_gains_where_staying_is_as_fast_as_the_healthy_cluster() -> None:
    assert can_gain(12.0, 11.0) and can_gain(12.0, 11.99, least_gain=0.0)
    assert not can_gain(12.0, 12.0, least_gain=0.0) and not can_gain(12.0, 12 * (1 - LEAST_GAIN))


def searched(monkeypatch: pytest.MonkeyPatch, healthy: float, **least: float) -> bool:
    """Whether a layout is searched where staying takes 10 s."""
    costs, layout = costs_of([[1.0] * 4] * 2), uniform_layout(DEVICES, 5)
    stay, calls = draft_of(costs, layout), list[Costs]()
    monkeypatch.setattr(ladder_options, "data_only", lambda costs, running: replace(stay, seconds=10.0))
    monkeypatch.setattr(ladder_options, "healthy_plan", lambda costs: replace(stay, seconds=healthy))
    monkeypatch.setattr(ladder_options, "levelled", lambda costs, running: None)
    monkeypatch.setattr(ladder_options, "search", lambda costs: calls.append(costs))
    options_for(costs, layout, {SLOW: 0.5}, **least)
    return bool(calls)


def test_where_any_gain_counts_a_layout_is_searched_that_gains_less_than_half_a_percent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert searched(monkeypatch, 9.94) and not searched(monkeypatch, 9.96)
    assert searched(monkeypatch, 9.96, least_gain=0.0) and not searched(monkeypatch, 10.0, least_gain=0.0)
