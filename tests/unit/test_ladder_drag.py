"""What a slow device costs besides tasks: how it is learned, and when a device is left out for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coxswain.ladder.decide import decide
from coxswain.ladder.drag import drag_of, dragged, slowest
from coxswain.ladder.options import FORM, without_slow
from coxswain.ladder.values import Change, Keep, Option, Options, Relayout, View
from coxswain.layout import Device, Layout, uniform_layout
from coxswain_coordinator.stragglers.drag import Drag
from tests.unit.ladder_samples import SLOW as SECOND
from tests.unit.ladder_samples import Job, slower_without
from tests.unit.layout_cases import costs_of

DEVICES = [Device(0, d) for d in range(4)]
SLOW = DEVICES[1]
WHOLE = uniform_layout(DEVICES, 5)
ASIDE = Layout(tuple(r for r in WHOLE.replicas if r.stages[0].devices != (SLOW,)), (SLOW,))


@pytest.mark.parametrize(
    ("healthy", "now", "slowdown", "drag"),
    [
        (0.05, 0.2, 4.0, 1.0),
        (0.05, 0.125, 4.0, 0.5),
        (0.05, 0.05, 4.0, 0.0),
        (0.05, 0.04, 4.0, 0.0),
        (0.05, 0.9, 4.0, 1.0),  # no more than the device's own slowdown
        (0.0, 0.2, 4.0, 0.0),
        (0.05, 0.2, 1.0, 0.0),
    ],
)
def test_the_drag_is_how_much_of_the_slowdown_the_work_besides_tasks_shares(healthy, now, slowdown, drag) -> None:
    assert drag_of(healthy, now, slowdown) == pytest.approx(drag)
    if drag > 0 and now < 0.9:
        assert healthy * dragged(drag, slowdown) == pytest.approx(now)


def test_only_devices_with_a_seat_drag_and_dead_ones_do_not() -> None:
    assert slowest(WHOLE, {SLOW: 0.25, DEVICES[2]: 0.5}) == 4.0
    assert slowest(ASIDE, {SLOW: 0.25, DEVICES[2]: 0.5}) == 2.0
    assert slowest(ASIDE, {SLOW: 0.25}) == slowest(WHOLE, {SLOW: 0.0}) == slowest(WHOLE, {}) == 1.0
    assert slowest(WHOLE, dict.fromkeys(DEVICES, 0.0)) == 1.0


def view(layout: Layout, beside: float, drag: float, steps: int = 1000) -> View:
    """Steps of 1.36 s; four devices compute in 12 what three compute in 13."""
    speeds, there = {SLOW: 0.25}, ASIDE if layout == WHOLE else WHOLE
    stay, other = (12.0, 13.0) if layout == WHOLE else (13.0, 12.0)
    options = Options(layout, speeds, stay, 9.0, (Option("Groups", there, other, 1.0),))
    return View(
        action="Migrate", step=steps, layout=layout, seconds=1.36, beside=beside, drag=drag, speeds=speeds,
        planned={} if layout == WHOLE else speeds, since={SLOW: 0}, options=options,
    )  # fmt: skip


def test_a_device_is_left_out_where_it_drags_more_than_it_computes() -> None:
    rung = decide(view(WHOLE, 0.2, 1.0))
    assert isinstance(rung, Relayout) and rung.layout == ASIDE
    assert rung.gain == pytest.approx(0.15 - 1.16 / 12)
    assert decide(view(WHOLE, 0.2, 0.25)) == Keep(), "only 0.086 of 0.2 s are dragged"
    assert decide(view(WHOLE, 0.0, 1.0)) == decide(view(WHOLE, 0.2, 0.0)) == Keep()


@pytest.mark.parametrize(("steps", "taken"), [(18, False), (19, True)])
def test_leaving_a_device_out_waits_until_the_loss_has_grown_to_its_cost(steps: int, taken: bool) -> None:
    assert isinstance(decide(view(WHOLE, 0.2, 1.0, steps)), Relayout) == taken


def test_a_device_that_was_left_out_is_not_taken_in_again_while_it_is_as_slow() -> None:
    earlier = (Change(1, "Groups", frozenset({SLOW})),)
    again = replace(view(ASIDE, 0.05, 1.0, 4000), changes=earlier)
    assert decide(again) == Keep()
    assert isinstance(decide(replace(again, drag=0.0)), Relayout), "its tasks alone would be a gain"


def test_the_layout_without_the_slow_replica_takes_longer_by_the_replicas_rates() -> None:
    (option,) = without_slow(costs_of([[1.0, 4.0, 1.0, 1.0]]), WHOLE, {SLOW: 0.25}, 12.0)
    assert (option.kind, option.layout) == ("Groups", ASIDE) and option.change > FORM
    assert option.seconds == pytest.approx(13.0)


def test_devices_are_left_out_from_the_slowest_on_and_dead_ones_are_not_on_standby() -> None:
    costs, speeds = costs_of([[1.0, 4.0, 2.0, float("inf")]]), {SLOW: 0.25, DEVICES[2]: 0.5, DEVICES[3]: 0.0}
    three = Layout(WHOLE.replicas[:3], (DEVICES[3],))
    found = [o.layout for o in without_slow(costs, three, speeds, 12.0)]
    assert [layout.standby for layout in found] == [(SLOW,), (SLOW, DEVICES[2])]
    assert [layout.replicas for layout in found] == [(WHOLE.replicas[0], WHOLE.replicas[2]), WHOLE.replicas[:1]]


def test_a_layout_whose_replicas_are_all_slow_or_whose_others_lack_the_memory_has_no_such_option() -> None:
    every = dict.fromkeys(DEVICES, 0.25)
    assert without_slow(costs_of([[4.0] * 4]), WHOLE, every, 12.0) == []
    assert without_slow(costs_of([[1.0, 4.0, 1.0, 1.0]]), ASIDE, {SLOW: 0.25}, 12.0) == [], "it is on standby"
    wide, tight = costs_of([[1.0, 4.0, 1.0, 1.0]]), costs_of([[1.0, 4.0, 1.0, 1.0]])
    wide.limit, tight.limit = (wide.peak(1, 5, True, 1, replicas).total for replicas in (3, 4))
    assert without_slow(wide, WHOLE, {SLOW: 0.25}, 12.0)
    assert without_slow(tight, WHOLE, {SLOW: 0.25}, 12.0) == [], "fewer replicas share the optimizer's state"


def test_no_more_than_two_layouts_leave_the_slowest_out() -> None:
    speeds = {DEVICES[0]: 0.1, DEVICES[1]: 0.2, DEVICES[2]: 0.3}
    costs = costs_of([[1 / speeds.get(device, 1.0) for device in DEVICES]])
    assert [len(o.layout.standby) for o in without_slow(costs, WHOLE, speeds, 12.0)] == [1, 2]


def learned(*phases: tuple[int, float, float], drag: Drag | None = None) -> Drag:
    """Phases of (steps, seconds, slowdown)."""
    found = drag or Drag()
    for steps, seconds, slowdown in phases:
        for _ in range(steps):
            found.stepped(seconds, slowdown)
    return found


def test_five_steps_without_and_five_with_a_slow_device_show_its_drag() -> None:
    assert learned((5, 0.05, 1.0), (5, 0.2, 4.0)).value == pytest.approx(1.0)
    assert learned((5, 0.05, 1.0), (5, 0.2, 4.0)).beside == 0.2
    for few in ((4, 0.05, 1.0), (5, 0.2, 4.0)), ((5, 0.05, 1.0), (4, 0.2, 4.0)), ((9, 0.2, 4.0),):
        assert learned(*few).value == 0.0
    assert learned((5, 0.05, 1.0), (4, 0.2, 4.0)).beside == 0.0


def test_steps_of_another_slowdown_do_not_count_and_steps_before_it_was_confirmed_hardly_do() -> None:
    assert learned((8, 0.05, 1.0), (3, 0.2, 1.0), (5, 0.2, 4.0)).value == pytest.approx(1.0)
    assert learned((5, 0.05, 1.0), (9, 0.8, 16.0), (5, 0.2, 4.0)).value == pytest.approx(1.0)


def test_the_drag_is_kept_in_the_next_world_and_what_a_healthy_step_takes_is_not() -> None:
    found = learned((5, 0.05, 1.0), (5, 0.2, 4.0))
    found.enter()
    assert (found.value, found.beside) == (pytest.approx(1.0), 0.0)
    assert learned((20, 0.9, 4.0), drag=found).value == pytest.approx(1.0), "no healthy step was seen"
    assert learned((5, 0.04, 1.0), (5, 0.04, 4.0), drag=found).value == 0.0


def test_a_device_that_is_slow_again_does_not_lose_its_drag_before_five_such_steps() -> None:
    found = learned((5, 0.05, 1.0), (5, 0.2, 4.0), (5, 0.05, 1.0), (4, 0.2, 2.0))
    assert (found.value, found.beside) == (pytest.approx(1.0), 0.0)


def test_a_median_is_of_sixteen_steps_at_most() -> None:
    assert learned((8, 1.0, 1.0), (8, 3.0, 1.0)).beside == 2.0
    assert learned((8, 1.0, 1.0), (9, 3.0, 1.0)).beside == 3.0


def test_a_pipelines_healthy_devices_stand_by_with_its_slow_one() -> None:
    deep = uniform_layout(DEVICES, 5, pipeline=2)
    speeds = {deep.replicas[0].stages[1].devices[0]: 0.25}
    costs = costs_of([[1 / speeds.get(device, 1.0) for device in DEVICES]])
    (option,) = without_slow(costs, deep, speeds, 12.0)
    assert option.layout.replicas == deep.replicas[1:]
    assert set(option.layout.standby) == {device for s in deep.replicas[0].stages for device in s.devices}


@pytest.mark.parametrize(("besides", "left"), [((1.0, 2.0), True), ((1.0, 1.2), False)])
async def test_a_running_job_leaves_a_device_out_by_what_it_has_measured(tmp_path, besides, left: bool) -> None:
    j = Job(tmp_path, planner=slower_without, besides=besides, slow=False)
    await j.run(8)
    j.slow, j.onset = True, j.step
    await j.run(60)
    assert [layout.standby for layout, _ in j.asked] == ([(SECOND,)] if left else [])
    if left:
        assert j.ladder.drag.beside == 1.0, "of the world that it is in"
        assert "is predicted to save 0.590 of 10.000 s of each step" in j.asked[0][1]
