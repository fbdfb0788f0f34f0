"""The ladder: rungs by gain against cost, what it never does, and how often it changes under flapping."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any, get_args

import pytest

from coxswain.ladder import options as ladder_options
from coxswain.ladder.decide import DWELL, FORGET, decide, differing, slow
from coxswain.ladder.lead import LONG, PLANNED, heeds_suspects, steps_until_placed, waits_for_reports
from coxswain.ladder.options import (
    FORM,
    at_speeds,
    can_gain,
    draft_of,
    options_for,
    surviving,
    without_lost,
    without_slow,
)
from coxswain.ladder.speeds import STEP, bucket, changed, speed_of
from coxswain.ladder.standby import EVERY, MOST_DWELL, Standby, Waiting, due
from coxswain.ladder.values import (
    LEAST_GAIN,
    REPLACE_SECONDS,
    Action,
    Change,
    Keep,
    Option,
    Options,
    Plan,
    Relayout,
    ReplaceNode,
    Rung,
    View,
)
from coxswain.layout import Device, Layout, uniform_layout
from coxswain.plan.layouts.costs import Costs
from coxswain.plan.layouts.planner import healthy_plan
from coxswain.plan.layouts.result import layout_of
from tests.unit.layout_cases import costs_of

DEVICES = [Device(n, d) for n in range(2) for d in range(4)]
HERE, THERE = (uniform_layout(DEVICES, 8, pipeline=p) for p in (1, 2))
SLOW = Device(0, 1)
NODES = {device: f"n{device.trainer}" for device in DEVICES}
HEIGHT = {Keep: 0, Plan: 2, Relayout: 2, ReplaceNode: 3}
ALLOWED = {"None": 0, "Warn": 0, "Rebalance": 1, "Migrate": 2, "ReplaceNode": 3}


def options(speeds: dict[Device, float], stay: float = 12.0, seconds: float = 10.0, change: float = 5.0) -> Options:
    return Options(HERE, speeds, stay, 9.0, (Option("Groups", THERE, seconds, change),))


def view(slowdown: float = 2.0, steps: int = 10, **changed: Any) -> View:
    """`steps` after SLOW became slow; placements know it already."""
    speeds = {SLOW: 1 / slowdown}
    base = View(
        action="Migrate", step=100, layout=HERE, seconds=12.0, speeds=speeds, planned={},
        since={SLOW: 100 - steps}, nodes=NODES, options=options(speeds),
    )  # fmt: skip
    return replace(base, **changed)


def height(rung: Rung) -> int:
    return HEIGHT[type(rung)]


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


def random_view(random: Random) -> View:
    speeds = {d: random.choice([0.0, 0.2, 0.5, 0.8, 0.97]) for d in random.sample(DEVICES, random.randint(0, 3))}
    stay = math.inf if 0.0 in speeds.values() else random.uniform(9, 20)
    kinds = [random.choice(["Layers", "Groups"]) for _ in range(random.randint(0, 3))]
    found = tuple(Option(k, THERE, random.uniform(9, 20), random.uniform(0, 50)) for k in kinds)  # type: ignore[arg-type]
    changes = [Change(random.randint(0, 99), "Groups", frozenset(random.sample(DEVICES, 2))) for _ in range(2)]
    return View(
        action=random.choice(get_args(Action)), step=100, layout=HERE, seconds=random.uniform(1, 20), speeds=speeds,
        planned=random.choice([speeds, {}, {SLOW: 0.5}]), nodes=NODES,
        since={d: random.randint(0, 100) for d in DEVICES}, changes=tuple(changes[: random.randint(0, 2)]),
        options=random.choice([None, Options(HERE, speeds, stay, 9.0, found)]), replace=random.choice([None, 10.0, 300.0]),
    )  # fmt: skip


def test_no_rung_is_above_the_allowed_action_and_the_same_view_gives_the_same_rung() -> None:
    random, seen = Random(0), set()
    for _ in range(3000):
        one = random_view(random)
        rung = decide(one)
        assert height(rung) <= ALLOWED[one.action]
        assert decide(replace(one)) == rung
        seen.add(type(rung))
    assert seen == set(HEIGHT)


def test_no_change_takes_longer_with_its_cost_than_staying_would_over_as_many_steps_as_have_passed() -> None:
    random, judged = Random(1), 0
    for _ in range(3000):
        one = replace(random_view(random), action="Migrate")
        rung = decide(one)
        if isinstance(rung, Relayout) and math.isfinite(rung.gain):
            steps = one.step - min(one.since[d] for d in rung.devices)
            assert steps * (one.seconds - rung.gain) + rung.cost <= steps * one.seconds + 1e-9
            assert rung.gain >= LEAST_GAIN * one.seconds
            judged += 1
    assert judged > 100


@pytest.mark.parametrize("period", [2, 3, 10, 40])
def test_the_changes_for_a_flapping_device_grow_as_the_logarithm_of_the_steps(period: int) -> None:
    changes: list[Change] = []
    planned: dict[Device, float] = {}
    layouts = [HERE, THERE]
    steps = 4000
    for step in range(steps):
        on = step // period % 2 == 0
        speeds = {SLOW: 0.4} if on else {}
        here = layouts[len(changes) % 2]
        there = layouts[(len(changes) + 1) % 2]
        gains = Options(here, speeds, 12.0, 9.0, (Option("Groups", there, 9.0 if speeds != planned else 12.0, 0.1),))
        rung = decide(
            view(
                step=step, layout=here, speeds=speeds, planned=planned, options=gains,
                since={SLOW: step - step % period}, changes=tuple(changes),
            )
        )  # fmt: skip
        if isinstance(rung, Relayout):
            changes.append(Change(step, rung.kind, rung.devices))
            planned = speeds
    assert 1 <= len(changes) <= 2 + math.log2(steps / DWELL)


def changed_at(*steps: int) -> tuple[Change, ...]:
    return tuple(Change(step, "Groups", frozenset({SLOW})) for step in steps)


@pytest.mark.parametrize(("changes", "rest"), [(1, 8), (2, 16), (3, 32)])
def test_the_next_change_for_a_device_rests_eight_steps_and_twice_as_many_each_time(changes: int, rest: int) -> None:
    gains = replace(options({SLOW: 0.5}), layouts=(Option("Groups", THERE, 6.0, 0.1),))
    for since, taken in ((rest - 1, False), (rest, True)):
        last = 100 - since
        one = view(options=gains, steps=60, changes=changed_at(*range(last - changes + 1, last + 1)))
        assert isinstance(decide(one), Relayout) == taken, since


def test_what_a_change_would_have_saved_counts_from_the_last_change_on_and_reaches_its_cost_at_the_cost() -> None:
    gains = replace(options({SLOW: 0.5}), layouts=(Option("Groups", THERE, 6.0, 30.0),))  # six a step
    other = (Change(90, "Groups", frozenset({Device(1, 0)})),)
    assert isinstance(decide(view(options=gains, steps=5)), Relayout) and decide(view(options=gains, steps=4)) == Keep()
    cost = replace(gains, layouts=(Option("Groups", THERE, 6.0, 60.0),))
    assert isinstance(decide(view(options=cost, steps=40, changes=other)), Relayout)
    assert decide(view(options=cost, steps=40, changes=(replace(other[0], step=91),))) == Keep()


def test_a_change_counts_for_4096_steps() -> None:
    gains = replace(options({SLOW: 0.5}), layouts=(Option("Groups", THERE, 6.0, 6.0 * FORGET),))
    for ago, taken in ((FORGET, False), (FORGET + 1, True)):
        one = view(step=5000, since={SLOW: 0}, options=gains, changes=changed_at(5000 - ago))
        assert isinstance(decide(one), Relayout) == taken


def test_of_changes_from_a_layout_that_cannot_run_the_one_counts_that_ends_the_next_step_first() -> None:
    dead, speeds = (Option("Layers", THERE, 10.0, 1.0), Option("Groups", HERE, 8.0, 2.5)), {SLOW: 0.0}
    rung = decide(view(speeds=speeds, steps=0, options=replace(options(speeds, stay=math.inf), layouts=dead)))
    assert isinstance(rung, Relayout) and rung.kind == "Groups"


def test_the_node_that_costs_most_is_replaced_for_its_part_of_the_loss() -> None:
    speeds = {Device(0, 0): 0.8, Device(1, 0): 0.5, Device(1, 1): 0.5}
    nothing = replace(options(speeds), layouts=())
    one = view(
        action="ReplaceNode",
        speeds=speeds,
        planned=speeds,
        since=dict.fromkeys(speeds, 0),
        options=nothing,
        replace=1.0,
    )
    rung = decide(one)
    assert isinstance(rung, ReplaceNode) and rung.node == "n1"
    assert rung.gain == pytest.approx(12.0 * (1 - 9 / 12) * (1.0 / 1.2))


def test_what_a_lost_device_costs_is_no_reason_to_replace_the_node_of_a_slow_one() -> None:
    speeds = {Device(0, 0): 0.0, Device(1, 0): 0.5}
    one = view(
        action="ReplaceNode", speeds=speeds, planned=speeds, since=dict.fromkeys(speeds, 0), replace=1.0,
        options=replace(options(speeds), layouts=()), nodes={Device(1, 0): "n1"},
    )  # fmt: skip
    rung = decide(one)
    assert isinstance(rung, ReplaceNode) and (rung.node, rung.gain) == (
        "n1",
        pytest.approx(12.0 * (1 - 9 / 12) * 0.5 / 1.5),
    )


def test_a_second_device_does_not_wait_for_the_first_ones_back_off() -> None:
    other = Device(1, 0)
    flapped = tuple(Change(step, "Groups", frozenset({SLOW})) for step in range(10, 60, 10))
    speeds = {other: 0.5}
    one = view(speeds=speeds, since={other: 90}, options=options(speeds), changes=flapped)
    assert isinstance(decide(one), Relayout)
    assert decide(view(changes=flapped)) == Keep()


def test_a_node_is_replaced_where_another_fits_once_its_loss_reaches_the_seconds_of_replacing_it() -> None:
    settled = view(action="ReplaceNode", steps=100, planned={SLOW: 0.5}, replace=300.0)
    nothing = replace(options({SLOW: 0.5}), layouts=())
    rung = decide(replace(settled, options=nothing))
    assert isinstance(rung, ReplaceNode)
    assert (rung.node, rung.evidence, rung.gain) == ("n0", ((SLOW, 2.0),), pytest.approx(3.0))
    assert decide(replace(settled, options=nothing, replace=301.0)) == Keep()
    assert decide(replace(settled, options=nothing, replace=None)) == Keep()
    assert decide(replace(settled, options=nothing, action="Migrate")) == Keep()


def test_the_second_replacement_for_one_device_must_save_twice_as_much() -> None:
    nothing = replace(options({SLOW: 0.5}), layouts=())
    before = (Change(1, "ReplaceNode", frozenset({SLOW})),)
    one = view(action="ReplaceNode", steps=90, planned={SLOW: 0.5}, replace=150.0, options=nothing, changes=before)
    assert isinstance(decide(replace(one, replace=135.0)), ReplaceNode)
    assert decide(one) == Keep()


def test_a_change_of_layout_does_not_delay_a_replacement() -> None:
    nothing = replace(options({SLOW: 0.5}), layouts=())
    before = (Change(1, "Groups", frozenset({SLOW})),)
    one = view(action="ReplaceNode", steps=100, planned={SLOW: 0.5}, replace=300.0, options=nothing, changes=before)
    assert isinstance(decide(one), ReplaceNode)


def test_a_change_for_another_device_does_not_delay_one() -> None:
    other = (Change(95, "Groups", frozenset({DEVICES[5]})),)
    assert isinstance(decide(view(steps=400, changes=other)), Relayout)
    assert decide(view(steps=400, changes=(Change(95, "Groups", frozenset({SLOW})),))) == Keep()


def test_a_device_at_speed_one_is_not_slow_and_one_that_is_not_named_is_at_speed_one() -> None:
    assert differing({SLOW: 1.0}, {}) == differing({}, {SLOW: 1.0}) == slow({SLOW: 1.0}) == frozenset()
    assert differing({SLOW: 0.5}, {}) == differing({}, {SLOW: 0.5}) == {SLOW}


def test_the_constants_are_those_of_the_pages() -> None:
    assert (PLANNED, LONG, REPLACE_SECONDS, LEAST_GAIN) == (2, 1.0, 300.0, 0.005)
    assert [speed_of(power) for power in (0, 1, 28)] == [1.0, 0.952381, 0.255094]


@pytest.mark.parametrize("slowdown", [1.05, 1.2, 2.0, 12.53])
def test_options_are_faster_than_staying_by_the_least_gain(slowdown: float) -> None:
    costs, layout = healthy()
    found = options_for(costs, layout, {Device(0, 3): 1 / slowdown})
    assert all(option.seconds < found.stay * (1 - LEAST_GAIN) for option in found.layouts)


@pytest.mark.parametrize(("seconds", "waits"), [(0.0, False), (LONG - 0.001, False), (LONG, True), (60.0, True)])
def test_a_speed_is_in_placements_a_step_earlier_where_steps_are_long(seconds: float, waits: bool) -> None:
    assert waits_for_reports(seconds) == waits
    assert steps_until_placed(seconds) == PLANNED + (not waits)
    assert heeds_suspects(seconds, accelerators=True) == waits and not heeds_suspects(seconds, accelerators=False)


@cache
def healthy() -> tuple[Costs, Layout]:
    costs = costs_of([[1.0] * 8] * 2, batch=16)
    return costs, layout_of(healthy_plan(costs), costs.cluster)


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


def test_no_layout_gains_where_staying_is_as_fast_as_the_healthy_cluster() -> None:
    assert can_gain(12.0, 11.0) and can_gain(12.0, 11.99, least_gain=0.0)
    assert not can_gain(12.0, 12.0, least_gain=0.0) and not can_gain(12.0, 12 * (1 - LEAST_GAIN))


def test_a_draft_of_a_layout_has_all_micro_batches_and_groups_as_slow_as_their_slowest_device() -> None:
    _, layout = healthy()
    slow_one = layout.replicas[0].stages[0].devices[-1]
    for batch in (16, 17):
        now = at_speeds(costs_of([[1.0] * 8] * 2, batch=batch), {slow_one: 0.5})
        draft = draft_of(now, layout)
        assert sum(draft.counts) == batch and max(draft.counts) - min(draft.counts) <= 1
        assert draft.chains[0].groups[0].slowdown == 2.0 and draft.chains[1].groups[0].slowdown == 1.0


@pytest.mark.parametrize(
    ("steps", "before", "power"),
    [(0, 5, 0), (0.01, 0, 1), (0.6, 0, 1), (3.7, 3, 3), (2.3, 3, 3), (3.8, 3, 4), (2.2, 3, 2), (7.6, 3, 8)],
)
def test_a_power_of_speed_stays_while_the_slowdown_is_within_three_quarters_of_a_power(
    steps: float, before: int, power: int
) -> None:
    assert bucket(STEP**steps, before) == power


@pytest.mark.parametrize(
    ("before", "now", "begins"),
    [(0, 5, True), (5, 6, True), (5, 5, False), (5, 4, False), (5, 0, True), (0, 0, False)],
)
def test_what_a_slow_device_has_cost_counts_on_while_it_is_no_slower(before: int, now: int, begins: bool) -> None:
    other = Device(1, 1)
    powers = [{other: 3} | ({SLOW: power} if power else {}) for power in (before, now)]
    assert changed(*powers) == ({SLOW} if begins else set())


@pytest.mark.parametrize("slowdown", [1e6, 1e7, 1e12])
def test_a_device_that_computes_is_never_taken_for_a_dead_one_however_slow_it_is(slowdown: float) -> None:
    assert speed_of(bucket(slowdown, 0)) == 1e-6


def test_speeds_without_a_living_device_are_refused() -> None:
    costs, _ = healthy()
    with pytest.raises(ValueError, match="alive"):
        at_speeds(costs, dict.fromkeys((Device(n, d) for n in range(2) for d in range(8)), 0.0))


def test_a_standby_device_is_back_after_two_healthy_probes_then_four_at_most_sixty_four() -> None:
    for returns, needed in ((0, 2), (1, 4), (9, MOST_DWELL)):
        one = Waiting(since=0, speed=0.3, returns=returns)
        for number in range(needed):
            assert not one.back, number
            one = one.probed(1.05)
        assert one.back


def test_one_slow_probe_begins_the_dwell_again_and_gives_the_speed() -> None:
    one = Waiting(since=0, speed=0.3).probed(1.0).probed(2.0)
    assert (one.healthy, one.speed) == (0, 0.5)


def test_a_slow_device_waits_on_standby_until_it_is_well_and_longer_after_each_return() -> None:
    standby, took = Standby(), []
    for _ in range(3):
        standby.settle({SLOW: 0.5, Device(1, 1): 0.5}, (SLOW, Device(0, 0)), 7)
        assert list(standby.waiting) == [SLOW] and standby.waiting[SLOW].since == 7
        took.append(next(n for n in range(1, 99) if standby.probed(SLOW, 1.0)))
        assert not standby.waiting
    assert took == [2, 4, 8]


def test_a_device_keeps_what_its_probes_have_said_as_long_as_it_is_slow_and_on_standby() -> None:
    standby = Standby()
    standby.settle({SLOW: 0.5}, (SLOW,), 7)
    standby.probed(SLOW, 1.0)
    standby.settle({SLOW: 0.25}, (SLOW,), 9)
    assert standby.waiting == {SLOW: Waiting(7, 0.25, 1)}
    standby.settle({SLOW: 0.25}, (), 11)
    assert not standby.waiting


def test_the_devices_of_another_pod_have_never_been_back() -> None:
    standby, other = Standby(), Device(1, 1)
    both = {SLOW: 0.5, other: 0.5}
    standby.settle(both, tuple(both), 0)
    for device in (SLOW, SLOW, other, other):
        standby.probed(device, 1.0)
    standby.keep([other])
    standby.settle(both, tuple(both), 9)
    assert [standby.waiting[device].dwell for device in (SLOW, other)] == [2, 4]
    standby.keep([other])
    assert list(standby.waiting) == [other]


def test_standby_devices_are_probed_every_four_steps_each_in_its_own() -> None:
    waiting = {SLOW: Waiting(since=3, speed=0.3), Device(1, 1): Waiting(since=5, speed=0.3)}
    probed = {step: due(waiting, step) for step in range(5, 5 + 3 * EVERY)}
    assert [step for step, mine in probed.items() if SLOW in mine] == [6, 10, 14]
    assert all(len(mine) < 2 for mine in probed.values())
