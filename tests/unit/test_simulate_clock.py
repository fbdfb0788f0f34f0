"""What is true at each moment of a trace, and what steps and waits take in virtual time."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from coxswain.ladder.options import draft_of
from coxswain.layout import Device, uniform_layout
from coxswain.simulate.compare import world_of
from coxswain.simulate.run import Measured, Run, Settings
from coxswain.simulate.traces import Event, Trace
from coxswain.simulate.truth import ARMED, Timeline, Truth
from tests.unit.test_simulate import DEVICES, NODES, Still, still, trace, world


def test_an_armed_event_of_the_moment_of_a_change_begins_and_one_behind_it_does_not() -> None:
    armed = [Event(t, f"n0/{d}", "armed", 2.0, None) for d, t in enumerate((100.0, 100.5))]
    line = Timeline(trace(*armed))
    line.changed(100.0)
    assert line.at(100.0).slowdowns[0] == (2, 1, 1, 1)
    assert line.next_change(100.0) == 100.5 + ARMED
    line.changed(101.0)
    assert line.at(101.0).slowdowns[0] == (2, 2, 1, 1) and line.next_change(101.0) == math.inf


def test_of_several_armed_events_each_begins_ten_minutes_after_it_was_armed() -> None:
    line = Timeline(trace(*(Event(100.0 * d, f"n0/{d}", "armed", 2.0, None) for d in range(3))))
    assert [sum(line.at(ARMED + t).slowdowns[0]) for t in (0.0, 99.0, 100.0, 150.0, 200.0)] == [5, 5, 6, 6, 7]


def test_an_armed_event_is_not_there_yet_for_a_step_that_is_under_way() -> None:
    line = Timeline(trace(Event(0.0, "n0/1", "armed", 2.0, None)))
    assert line.next_edge(0.0) == math.inf and line.next_change(0.0) == ARMED
    assert line.peek(ARMED + 1).slowdowns[0][1] == 1 and line.at(ARMED + 1).slowdowns[0][1] == 2


def test_the_truth_of_a_moment_is_the_same_in_whatever_order_moments_are_asked_for() -> None:
    events = [Event(10.0 * n, f"n0/{n}", "sick", 2.0, 15.0) for n in range(4)]
    moments = [0.0, 9.9, 10.0, 14.9, 15.0, 24.9, 25.0, 30.0, 44.9, 45.0]
    forth, back = Timeline(trace(*events)), Timeline(trace(*events))
    assert [forth.at(t).key for t in moments] == [back.at(t).key for t in reversed(moments)][::-1]
    assert forth.at(15.0).key == (((0, 1), 2.0),) and forth.at(9.9).key == (((0, 0), 2.0),)


def test_what_is_left_of_a_networks_bandwidth_multiplies_and_no_device_is_slow() -> None:
    line = Timeline(trace(Event(0.0, "n1", "bandwidth", 0.5, None), Event(0.0, "n1", "congestion", 0.5, 10.0)))
    assert [line.at(t).bandwidths for t in (0.0, 10.0)] == [(1.0, 0.25), (1.0, 0.5)]
    assert line.at(0.0).key != line.at(10.0).key and line.at(0.0).slowdowns == ((1.0,) * 4,) * 2


def test_a_replaced_node_leaves_behind_what_befell_it_and_nothing_that_comes_or_has_been() -> None:
    mine = [Event(5, "n1/0", "sick", 2.0, 10), Event(20, "n1", "node", 3.0, 30), Event(25, "n1/1", "sick", 2.0, 50)]
    line = Timeline(trace(*mine, Event(40, "n1/2", "thermal", 1.5, 10)))
    assert line.replaced(1, 25.0) == 75.0
    assert [line.at(t).slowdowns[1] for t in (6.0, 21.0, 26.0, 41.0)] == [
        (2, 1, 1, 1),
        (3,) * 4,
        (1,) * 4,
        (1, 1, 1.5, 1),
    ]


def test_a_slow_network_makes_the_steps_longer_of_a_layout_that_crosses_it() -> None:
    whole = Trace(2, 8, 60.0, 0, (Event(30.0, "n0", "bandwidth", 0.05, None),))
    large = world_of(whole, "llama-30b", "a100-80g")
    before, *_, behind, end = Run(large, whole, Still()).go().ends
    assert before == pytest.approx(large.healthy.seconds) and end - behind > before * 1.001


def virtual(seconds: float, **settings: float) -> Run:
    """A run of steps of which each takes what the test says: 10 s where every device is well."""
    made: Any = SimpleNamespace(healthy=SimpleNamespace(seconds=10.0, chains=()))
    return Run(made, Trace(1, 1, seconds, 0, ()), Still(), Settings(**settings))  # type: ignore[arg-type]


def took(run: Run, *seconds: float) -> None:
    for each in seconds:
        run.count(Measured(each, each, np.ones(1), {}, ()))


def test_a_step_that_ends_with_the_trace_counts_once_and_one_that_it_cuts_off_by_its_part() -> None:
    for last, part, lost in ((20.0, 0.0, 10.0), (40.0, 0.5, 15.0)):
        run = virtual(30.0)
        took(run, 10.0, last)
        found = run.go()
        assert (len(found.ends), found.part) == (2 - (part > 0), part)
        assert found.seconds_lost == {"slow or missing devices": lost}
        assert found.goodput == pytest.approx((len(found.ends) + part) * 10 / 30)


def test_the_curve_has_the_step_that_ends_with_the_trace_in_its_last_span() -> None:
    run = virtual(30.0)
    took(run, 10.0, 10.0, 10.0)
    assert run.go().curve(2) == pytest.approx([10 / 15, 20 / 15], abs=1e-4)


def test_a_checkpoint_is_written_as_soon_as_its_seconds_have_passed() -> None:
    run = virtual(1e6, checkpoint=30.0)
    took(run, *[10.0] * 3)
    assert (run.saved, run.saved_at) == (3, 30.0)
    took(run, *[10.0] * 2)
    run.redo()
    assert (len(run.ends), run.lost["redone"], run.steps) == (3, 20.0, 5)
    took(run, 10.0)
    assert run.saved == 4, "30 s after the last one, whatever was done again"


def test_what_a_change_waits_for_is_lost_up_to_the_end_of_the_trace_alone() -> None:
    run = virtual(30.0)
    run.wait(20.0, "restart")
    run.wait(20.0, "restart")
    run.wait(20.0, "planning")
    assert (dict(run.lost), run.now) == ({"restart": 30.0, "planning": 0.0}, 60.0)
    assert run.go().seconds_lost == {"restart": 30.0}


def test_a_change_arms_what_waits_for_it_as_it_begins() -> None:
    """Another device gets slow while the layout changes, not behind it."""
    run = Run(world(), trace(Event(0.0, "n1/2", "armed", 2.0, 30.0)), Still())
    run.change(run.draft, 20.0)
    assert run.truth.of(Device(1, 2)) == 2.0 and run.timeline.next_change(20.0) == 30.0


@pytest.mark.parametrize("step", [10.0, 30.0])
def test_a_loss_in_the_middle_of_a_step_costs_the_seconds_since_its_beginning(step: float) -> None:
    healthy = world().healthy.seconds
    found = still(Event(2.5 * healthy, "n1/0", "lost", 1.0, None), seconds=step * healthy)[0]
    assert len(found.ends) == 2 and found.seconds_lost["redone"] == pytest.approx(0.5 * healthy, abs=1e-3)


def test_pauses_are_of_a_tenth_of_a_second_at_least_and_meet_a_rank_in_300_steps() -> None:
    _, steps = still(Event(0.0, "fleet", "pauses", 0.5, None))
    seconds = [s for step in steps for s in step.pauses.values()]
    assert len(seconds) == pytest.approx(len(steps) * NODES * DEVICES / 300, rel=0.5)
    assert 0.1 <= min(seconds) <= max(seconds) <= 0.5
    for step in steps:
        assert step.seconds - step.base == pytest.approx(max(step.pauses.values(), default=0.0))


def test_a_step_with_a_long_sequence_takes_as_long_as_its_slowest_replica_and_the_others_are_as_ever() -> None:
    whole = Trace(2, 8, 120.0, 0, (Event(0.0, "fleet", "long", 1.5, None), Event(0.0, "fleet", "drift", 2.0, None)))
    large, policy = world_of(whole, "llama-7b", "a100-80g"), Still()
    Run(large, whole, policy).go()
    assert len(policy.steps) > 10
    for step in policy.steps:
        assert sorted(step.long)[-2] == 1.0 < max(step.long) <= 1.5
        assert step.base == pytest.approx(large.healthy.seconds)
        assert step.seconds == pytest.approx(2 * step.base * max(step.long))


def test_each_replica_takes_as_long_as_its_own_micro_batches() -> None:
    layout = uniform_layout([Device(n, d) for n in range(NODES) for d in range(DEVICES)], 32, pipeline=4)
    draft = dataclasses.replace(draft_of(world().costs, layout), counts=(6, 2))
    most, least = world().ends(draft, Truth(0.0, {}, (NODES, DEVICES)))
    assert most > 1.5 * least


def test_what_was_found_for_another_draft_or_by_another_name_is_found_again_and_the_same_is_not() -> None:
    drafts = [dataclasses.replace(world().healthy) for _ in range(2)]
    found = [world().kept(name, "key", (draft,), object) for name in ("one", "other") for draft in drafts]
    assert len(set(found)) == 4
    assert world().kept("one", "key", (drafts[0],), object) is found[0]
    assert world().kept("one", "another key", (drafts[0],), object) not in found
