"""Which layout the ladder changes to, and when: by what it gains against what it costs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from coxswain.ladder.decide import decide, differing, slow
from coxswain.ladder.values import LEAST_GAIN, Action, Change, Keep, Option, Plan, Relayout
from tests.unit.ladder_views import DEVICES, HERE, SLOW, THERE, options, view

OTHER = DEVICES[5]


@pytest.mark.parametrize("action", ["None", "Warn", "Rebalance"])
def test_nothing_is_planned_where_no_other_layout_is_allowed(action: Action) -> None:
    assert decide(view(action=action)) == decide(view(action=action, options=None)) == Keep()


def test_a_layout_is_asked_for_before_one_is_chosen_and_again_for_other_speeds_or_another_layout() -> None:
    assert decide(view(options=None)) == Plan({SLOW: 0.5})
    assert decide(view(options=options({SLOW: 0.4}))) == Plan({SLOW: 0.5})
    assert decide(view(layout=THERE)) == Plan({SLOW: 0.5})
    assert isinstance(decide(view()), Relayout)


@pytest.mark.parametrize(("steps", "taken"), [(0, False), (2, False), (3, True), (400, True)])
def test_a_change_of_five_seconds_that_saves_two_a_step_is_made_after_three_steps(steps: int, taken: bool) -> None:
    rung = decide(view(steps=steps))
    assert isinstance(rung, Relayout) == taken
    if isinstance(rung, Relayout):
        assert (rung.layout, rung.gain, rung.cost) == (THERE, pytest.approx(2.0), 5.0)


def test_the_gain_is_the_planners_ratio_of_the_step_as_it_is_measured() -> None:
    rung = decide(view(seconds=1.2, steps=30))
    assert isinstance(rung, Relayout) and rung.gain == pytest.approx(0.2)


def test_a_layout_with_a_dead_device_is_left_at_once() -> None:
    speeds = {SLOW: 0.0}
    rung = decide(view(speeds=speeds, steps=0, options=options(speeds, stay=math.inf)))
    assert isinstance(rung, Relayout) and math.isinf(rung.gain)


def test_a_cheap_change_comes_first_and_the_better_one_when_the_loss_has_grown_to_its_cost() -> None:
    both = (Option("Layers", THERE, 11.0, 1.0), Option("Groups", HERE, 10.0, 20.0))
    kinds = []
    for steps in (1, 8, 11, 100):
        rung = decide(view(steps=steps, options=replace(options({SLOW: 0.5}), layouts=both)))
        assert isinstance(rung, Relayout)
        kinds.append(rung.kind)
    assert kinds == ["Layers", "Layers", "Layers", "Groups"]


def test_any_gain_is_a_reason_to_leave_a_layout_that_was_taken_at_once_but_no_gain_is_none() -> None:
    little = options({SLOW: 0.5}, seconds=12 * (1 - LEAST_GAIN / 2), change=1.0)
    assert decide(view(options=little, steps=40)) == Keep()
    assert isinstance(decide(view(options=little, steps=40, least_gain=0.0)), Relayout)
    assert decide(view(options=little, steps=30, least_gain=0.0)) == Keep(), "its cost counts as ever"
    assert decide(view(options=options({SLOW: 0.5}, seconds=12.0, change=0.0), least_gain=0.0)) == Keep()


def test_a_device_that_has_recovered_is_a_reason_to_change_back() -> None:
    back = view(speeds={}, planned={SLOW: 0.5}, options=options({}))
    assert isinstance(decide(back), Relayout)
    assert decide(replace(back, planned={})) == Keep()


def test_a_lost_device_that_is_there_again_is_taken_in_at_once_and_a_slow_one_that_is_well_waits_for_its_cost() -> None:
    back = view(speeds={}, planned={SLOW: 0.0}, steps=0, options=options({}))
    earlier = tuple(Change(step, "Groups", frozenset({SLOW})) for step in (97, 99))
    assert isinstance(decide(back), Relayout) and isinstance(decide(replace(back, changes=earlier)), Relayout)
    assert decide(replace(back, planned={SLOW: 0.5})) == Keep()
    assert decide(replace(back, options=options({}, seconds=12 * (1 - LEAST_GAIN / 2)))) == Keep()


def test_of_changes_from_a_layout_that_cannot_run_the_one_counts_that_ends_the_next_step_first() -> None:
    dead, speeds = (Option("Layers", THERE, 10.0, 1.0), Option("Groups", HERE, 8.0, 2.5)), {SLOW: 0.0}
    rung = decide(view(speeds=speeds, steps=0, options=replace(options(speeds, stay=math.inf), layouts=dead)))
    assert isinstance(rung, Relayout) and rung.kind == "Groups"


def test_a_device_at_speed_one_is_not_slow_and_one_that_is_not_named_is_at_speed_one() -> None:
    assert differing({SLOW: 1.0}, {}) == differing({}, {SLOW: 1.0}) == slow({SLOW: 1.0}) == frozenset()
    assert differing({SLOW: 0.5}, {}) == differing({}, {SLOW: 0.5}) == {SLOW}


def test_speeds_within_a_twenty_fifth_are_the_same_to_a_layout() -> None:
    assert differing({SLOW: 0.25}, {SLOW: 0.26}) == differing({SLOW: 0.26}, {SLOW: 0.25}) == frozenset()
    assert differing({SLOW: 0.25}, {SLOW: 0.261}) == differing({SLOW: 0.261}, {SLOW: 0.25}) == {SLOW}


def test_nothing_is_planned_for_a_cluster_without_a_slow_device_that_has_the_layout_for_it() -> None:
    assert decide(view(speeds={}, planned={}, options=None)) == Keep()
    assert decide(view(speeds={SLOW: 1.0}, planned={}, options=None)) == Keep()


def test_a_change_is_for_the_devices_that_are_not_as_the_layout_was_chosen_for_and_counts_since_they_are_so() -> None:
    """Another one has been slow for long: the layout makes up for it."""
    speeds = {SLOW: 0.5, OTHER: 0.5}
    one = view(speeds=speeds, planned={OTHER: 0.5}, options=options(speeds), since={SLOW: 97, OTHER: 0})
    rung = decide(one)
    assert isinstance(rung, Relayout) and rung.devices == {SLOW}
    assert decide(replace(one, since={SLOW: 98, OTHER: 0})) == Keep()


def test_the_loss_counts_since_the_first_of_several_devices_got_slow_and_from_now_on_where_the_onset_is_unknown() -> (
    None
):
    speeds = {SLOW: 0.5, OTHER: 0.5}
    one = view(speeds=speeds, options=options(speeds))
    assert isinstance(decide(replace(one, since={SLOW: 97, OTHER: 99})), Relayout)
    assert decide(replace(one, since={SLOW: 98, OTHER: 99})) == Keep()
    assert decide(replace(one, since={})) == Keep()


def test_a_lost_device_that_is_back_is_taken_in_at_once_though_another_one_has_just_got_slow() -> None:
    speeds = {OTHER: 0.5}
    back = view(speeds=speeds, planned={SLOW: 0.0}, since={OTHER: 100}, options=options(speeds))
    assert isinstance(decide(back), Relayout)


def test_a_layout_with_a_dead_device_is_left_at_once_however_short_ago_it_was_changed() -> None:
    speeds, earlier = {SLOW: 0.0}, (Change(99, "Groups", frozenset({SLOW})),)
    one = view(speeds=speeds, steps=0, options=options(speeds, stay=math.inf), changes=earlier)
    assert isinstance(decide(one), Relayout)


def test_a_gain_of_just_the_least_is_worth_a_change() -> None:
    quarter = options({SLOW: 0.5}, stay=8.0, seconds=6.0, change=1.0)
    assert isinstance(decide(view(options=quarter, seconds=8.0, least_gain=0.25)), Relayout)
    assert decide(view(options=quarter, seconds=8.0, least_gain=0.2500001)) == Keep()


def test_of_two_changes_that_are_due_the_measured_step_says_which_would_have_cost_least() -> None:
    """Steps take ten times what the planner predicts, so the dearer change has paid after two of them."""
    both = (Option("Layers", THERE, 11.0, 1.0), Option("Groups", HERE, 10.0, 5.0))
    for seconds, kind in ((12.0, "Layers"), (120.0, "Groups")):
        rung = decide(view(steps=3, seconds=seconds, options=replace(options({SLOW: 0.5}), layouts=both)))
        assert isinstance(rung, Relayout) and rung.kind == kind
