"""Slow and lost devices in virtual time: the clock, ours and rivals."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from coxswain.errors import Refused
from coxswain.ladder.lead import LONG, PLANNED
from coxswain.ladder.options import draft_of
from coxswain.ladder.speeds import bucket, speed_of
from coxswain.ladder.values import ReplaceNode
from coxswain.layout import Device, Layout
from coxswain.plan.layouts.rivals import data_only
from coxswain.simulate.compare import NAMES, optimum, report, simulate, world_of
from coxswain.simulate.generate import HOGS
from coxswain.simulate.ours import Ours
from coxswain.simulate.rivals import KINDS as KINDS_OF_RIVALS
from coxswain.simulate.rivals import Known, Rival
from coxswain.simulate.run import Measured, Outcome, Run, Settings
from coxswain.simulate.senses import ANSWER, Senses
from coxswain.simulate.traces import Event, Trace
from coxswain.simulate.truth import ARMED, Timeline, Truth
from coxswain.simulate.world import World, load_seconds, planning_seconds
from coxswain.stragglers.values import Step

NODES, DEVICES = 2, 4
SPAN = 900.0  # seconds


def trace(*events: Event, seconds: float = SPAN, seed: int = 0) -> Trace:
    return Trace(NODES, DEVICES, seconds, seed, tuple(sorted(events, key=lambda e: e.t)))


@cache
def world() -> World:
    return world_of(trace(), "llama-7b", "a100-80g")


@cache
def run(*events: Event, seconds: float = SPAN, rivals: tuple[str, ...] = (), **options: Any) -> dict[str, Outcome]:
    outcomes = simulate(world(), trace(*events, seconds=seconds), rivals, **options)
    return {outcome.name: outcome for outcome in outcomes}


class Still:
    """Changes nothing; remembers what it was given."""

    name = "still"

    def __init__(self) -> None:
        self.steps: list[Measured] = []

    def stepped(self, run: Run, measured: Measured) -> None:
        self.steps.append(measured)

    def lost(self, run: Run) -> bool:
        return False


def still(*events: Event, seconds: float = SPAN) -> tuple[Outcome, list[Measured]]:
    policy = Still()
    return Run(world(), trace(*events, seconds=seconds), policy).go(), policy.steps


SICK = Event(120.0, "n0/1", "sick", 5.42, None)


def test_slowdowns_multiply_and_end() -> None:
    line = Timeline(trace(Event(10, "n0/1", "sick", 2.0, 20), Event(15, "n0", "contention", 1.5, 20)))
    seen = [line.at(t).slowdowns[0] for t in (0, 10, 15, 30, 35)]
    assert seen == [(1, 1, 1, 1), (1, 2, 1, 1), (1.5, 3, 1.5, 1.5), (1.5, 1.5, 1.5, 1.5), (1, 1, 1, 1)]
    assert [line.next_change(t) for t in (0, 10, 34, 35)] == [10, 15, 35, math.inf]


def test_a_lost_node_takes_its_devices_and_gives_them_back() -> None:
    line = Timeline(trace(Event(10, "n1", "lost", 1.0, 5)))
    assert line.at(12).lost == {Device(1, d) for d in range(4)} and not line.at(15).lost
    used = frozenset({Device(1, 2)})
    assert [line.next_loss(a, b, used) for a, b in ((0, 10), (0, 11), (10, 20))] == [None, 10, None]
    assert line.next_loss(0, 11, frozenset({Device(0, 2)})) is None


def test_an_armed_event_begins_with_the_first_change_or_ten_minutes_later() -> None:
    armed = trace(Event(100, "n0/1", "armed", 2.0, 50))
    waiting, changed = Timeline(armed), Timeline(armed)
    changed.changed(50.0)
    assert changed.at(120).slowdowns[0][1] == 1
    changed.changed(130.0)
    assert changed.at(130).slowdowns[0][1] == 2 and changed.at(180).slowdowns[0][1] == 1
    assert waiting.next_change(0.0) == 100 + ARMED
    assert waiting.at(99 + ARMED).slowdowns[0][1] == 1 and waiting.at(100 + ARMED).slowdowns[0][1] == 2


class Changing(Still):
    """Changes to the layout that it has, once."""

    def stepped(self, run: Run, measured: Measured) -> None:
        if not run.changes:
            run.change(run.draft, 0.5)


def test_the_change_of_a_policy_begins_what_is_armed_in_its_run() -> None:
    armed = trace(Event(0.0, "n1/2", "armed", 2.0, None), seconds=ARMED / 2)
    slowed, calm = Run(world(), armed, Changing()), Run(world(), armed, Still())
    slowed.go(), calm.go()
    assert [r.truth.of(Device(1, 2)) for r in (slowed, calm)] == [2.0, 1.0]


def test_a_quiet_hour_has_as_many_steps_as_fit_and_goodput_one() -> None:
    outcome, steps = still()
    assert len(outcome.ends) == math.floor(SPAN / world().healthy.seconds) == len(steps) - 1
    assert outcome.goodput == pytest.approx(1, rel=1e-9)  # the step that the end cuts off counts by its part
    assert 0 < outcome.part < 1
    assert outcome.seconds_lost == {}


@pytest.mark.parametrize(
    ("events", "seconds"),
    [
        ((SICK,), SPAN),
        ((SICK,), 130.0),
        ((Event(100.0, "n0/1", "drift", 3.0, None),), 123.0),
        ((Event(100.0, "n1", "lost", None, None),), 101.0),
        ((Event(100.0, "n1", "lost", None, None),), 150.0),
        ((Event(100.0, "n1", "lost", None, 300.0), SICK), SPAN),
    ],
)
def test_the_steps_and_the_seconds_lost_of_each_policy_are_the_seconds_of_the_trace(
    events: tuple[Event, ...], seconds: float
) -> None:
    """What begins before the end and would end behind it costs the seconds before it alone."""
    for outcome in (*run(*events, seconds=seconds, rivals=NAMES).values(), still(*events, seconds=seconds)[0]):
        useful = outcome.goodput * outcome.seconds
        assert useful + sum(outcome.seconds_lost.values()) == pytest.approx(seconds, abs=0.1), outcome.name


def test_a_device_that_recovers_in_the_middle_of_a_step_ends_its_part_faster() -> None:
    healthy = world().healthy.seconds
    slow, _ = still(Event(0.0, "n0/1", "sick", 5.0, 2 * healthy))
    always, _ = still(Event(0.0, "n0/1", "sick", 5.0, None))
    assert healthy < slow.ends[0] < always.ends[0]
    left = 1 - 2 * healthy / always.ends[0]
    assert slow.ends[0] == pytest.approx(2 * healthy + left * healthy)


def test_fleet_drift_pauses_and_long_sequences_take_time_but_slow_no_device() -> None:
    for event in (Event(0, "fleet", "drift", 1.02), Event(0, "fleet", "pauses", 0.5), Event(0, "fleet", "long", 1.5)):
        outcome, _ = still(event)
        assert set(outcome.seconds_lost) == {"drift, pauses, long sequences"}, event
        assert outcome.goodput < 0.999


def test_goodput_and_seconds_lost_make_up_the_whole_time() -> None:
    lost = Event(400.0, "n1/0", "lost", 1.0, 200)
    for outcome in run(SICK, lost, rivals=("restart",)).values():
        whole = len(outcome.ends) * outcome.healthy + sum(outcome.seconds_lost.values())
        assert whole == pytest.approx(SPAN, rel=0.02), outcome.name
        assert sum(outcome.curve(10)) / 10 == pytest.approx(outcome.goodput, abs=0.01)


def test_ours_finds_a_slow_device_after_two_steps_and_is_near_the_optimum() -> None:
    found = run(SICK, rivals=("rigid", "data-only", "malleus"))
    assert found["ours"].changes >= 1
    assert found["ours"].goodput >= max(o.goodput for o in found.values()) - 0.01
    best = optimum(world(), trace(SICK))
    assert best > found["ours"].goodput > 0.9 * best > found["rigid"].goodput


def test_placements_heed_a_suspect_two_steps_later_and_the_answer_of_its_probe_comes_as_late() -> None:
    mine, policy = trace(Event(120.0, "n0/1", "sick", 1.5, None), seconds=240), Ours(0, "Rebalance")
    running, drafts, states = Run(world(), mine, policy), list[Any](), list[tuple[bool, bool]]()
    device, stepped = Device(0, 1), policy.stepped

    def watched(run: Run, measured: Measured) -> None:
        stepped(run, measured)
        drafts.append(run.draft)
        states.append((device in policy.suspects, device in policy.speeds))

    policy.stepped = watched  # type: ignore[method-assign]
    running.go()
    assert world().healthy.seconds >= LONG
    suspected, confirmed = states.index((True, False)), states.index((False, True))
    moved = next(step for step, draft in enumerate(drafts) if draft is not drafts[0])
    assert (confirmed - suspected, moved - suspected) == (ANSWER, PLANNED)


def test_a_step_that_surprises_its_ranks_confirms_a_slow_device_at_its_end() -> None:
    policy = Ours(0, "Rebalance")
    running = Run(world(), trace(Event(120.0, "n0/1", "sick", 3.8, None), seconds=123.0), policy)
    running.go()
    assert running.ends[-1] > 120.0 > running.ends[-2] and set(policy.speeds) == {Device(0, 1)}


def test_nothing_is_planned_for_drift_pauses_and_long_sequences() -> None:
    events = [Event(0, "fleet", "drift", 1.02), Event(0, "fleet", "pauses", 0.5), Event(0, "fleet", "long", 1.5)]
    ours = run(*events)["ours"]
    assert (ours.plans, ours.changes, ours.rebalances) == (0, 0, 0)


@pytest.mark.parametrize(("action", "changes", "rebalances"), [("Warn", 0, 0), ("Rebalance", 0, 1), ("Migrate", 1, 1)])
def test_no_rung_above_the_allowed_action_is_taken(action: Any, changes: int, rebalances: int) -> None:
    ours = run(SICK, action=action)["ours"]
    assert (ours.changes, min(ours.rebalances, 1)) == (changes, rebalances)


def test_a_lost_device_costs_one_step_with_copies_and_those_since_the_checkpoint_without() -> None:
    lost = Event(300.0, "n1/0", "lost", 1.0, None)
    copies, without = (run(lost, copies=c, settings=Settings(checkpoint=200.0))["ours"] for c in (True, False))
    assert 0 < copies.seconds_lost["redone"] <= 2 * world().healthy.seconds
    assert "restart" not in copies.seconds_lost
    assert 80 < without.seconds_lost["redone"] <= 100 + world().healthy.seconds  # the checkpoint is of second 200
    assert without.seconds_lost["restart"] >= Settings().restart
    assert copies.goodput > without.goodput


def test_of_several_losses_each_takes_the_steps_since_the_checkpoint_before_it_and_no_others() -> None:
    """Steps of 10 s, a checkpoint each 100 s: of 25 steps 5 are done again, of the 7 behind them 2, of the next 12 again 4."""
    made: Any = SimpleNamespace(healthy=SimpleNamespace(seconds=10.0, chains=()))
    now: Any = Run(made, Trace(1, 1, 1e6, 0, ()), None, Settings(checkpoint=100.0))  # type: ignore[arg-type]
    for steps, left, again in ((25, 20, 50.0), (7, 25, 70.0), (12, 33, 110.0)):
        for _ in range(steps):
            now.count(Measured(10.0, 10.0, np.ones(1), {}, ()))
        now.redo()
        assert (len(now.ends), now.lost["redone"]) == (left, again)


def test_a_second_loss_before_the_first_is_known_takes_the_copies_and_the_checkpoint_is_used() -> None:
    first = Event(300.0, "n1/0", "lost", 1.0, None)
    second = Event(300.0 + Settings().loss / 2, "n0/0", "lost", 1.0, None)
    found = run(first, second, settings=Settings(checkpoint=200.0))["ours"]
    assert found.seconds_lost["redone"] > 80 and found.seconds_lost["restart"] >= Settings().restart


def test_steps_that_are_not_observed_change_nothing() -> None:
    """A sick device that comes and goes."""
    mine, observed = trace(Event(300, "n0/1", "sick", 5.42, 300), seconds=1200), dict[bool, int]()
    outcomes = []
    for skips in (True, False):
        senses = Counting(7, skips)
        outcomes.append(Run(world(), mine, Ours(7, senses=senses)).go())
        observed[skips] = senses.observed
    assert outcomes[0] == outcomes[1] and outcomes[0].changes == 2
    assert observed[True] < observed[False] / 2


class Counting(Senses):
    observed = 0

    def figures(self, run: Run, measured: Measured) -> Step:
        self.observed += 1
        return super().figures(run, measured)


NODE = Event(120.0, "n1", "node", 6.87, None)


def test_a_slow_node_is_replaced_by_a_spare_and_the_whole_cluster_is_well_again() -> None:
    mine = trace(NODE, seconds=1800.0)
    outcomes = {
        (action, spares): simulate(world(), mine, (), action=action, settings=Settings(spares=spares, replace=100.0))[0]
        for action, spares in (("ReplaceNode", 1), ("ReplaceNode", 0), ("Migrate", 1))
    }
    replaced, without = outcomes["ReplaceNode", 1], outcomes["ReplaceNode", 0]
    assert replaced.seconds_lost["replacement"] == 100.0
    assert replaced.curve(6)[-1] == pytest.approx(1, abs=0.02)
    assert without.curve(6)[-1] < 0.8
    assert "replacement" not in without.seconds_lost and without == outcomes["Migrate", 1]


def test_the_first_step_with_a_spare_node_is_placed_as_if_the_node_were_well() -> None:
    found = []

    class Watched(Ours):
        def _replace(self, run: Run, rung: ReplaceNode) -> None:
            super()._replace(run, rung)
            assert self._layout
            found.append((run.draft, data_only(run.world.costs, draft_of(run.world.costs, self._layout))))

    Run(world(), trace(NODE, seconds=600.0), Watched(0, "ReplaceNode"), Settings(replace=100.0)).go()
    ((placed, well),) = found
    assert placed == well


def test_a_replaced_node_is_a_spare_again_once_it_is_well() -> None:
    line = Timeline(
        trace(Event(10, "n1", "node", 3.0, 50), Event(20, "n1/2", "sick", 2.0, 10), Event(15, "n0/1", "sick", 2.0, 90))
    )
    assert line.replaced(1, 25.0) == 60 and line.at(25).slowdowns == ((1, 2, 1, 1), (1, 1, 1, 1))
    assert line.replaced(1, 26.0) == 26.0


def test_a_rival_knows_a_device_after_its_window_whatever_others_do_meanwhile() -> None:
    known = Known((NODES, DEVICES), 3)
    truths = [Truth(float(t), {(0, 1): 5.0, (1, 0): 1.0 + t}, (NODES, DEVICES)) for t in range(0, 40, 10)]
    assert [known.learn(truth, truth.since + 9.0) for truth in truths] == [False, False, True, False]
    assert known.truth.key == (((0, 1), 5.0),)
    gone = Truth(40.0, {(0, 1): 5.0, (1, 3): math.inf}, (NODES, DEVICES))
    assert known.learn(gone, 41.0) and known.truth.lost == {Device(1, 3)}


def test_a_rival_does_not_notice_a_speed_that_differs_by_less_than_its_publication_says() -> None:
    known, at = Known((NODES, DEVICES), 3, 1.25), [(1.2, 0), (1.25, 40), (1.05, 80), (1.0, 120)]
    for slowdown, since in at:
        truth = Truth(float(since), {(0, 1): slowdown}, (NODES, DEVICES))
        for step in range(4):
            known.learn(truth, since + 11.0 + step)
        assert known.truth.of(Device(0, 1)) == (1.25 if since in (40, 80) else 1.0), slowdown
    network = Truth(160.0, {(1, -1): 0.5}, (NODES, DEVICES))
    for felt, noticed in ((1.2, False), (1.25, True)):
        learned = [known.learn(network, 180.0 + step, felt) for step in range(4)]
        assert any(learned) == noticed
        assert (known.truth.bandwidths[1] == 0.5) == noticed
    least = {kind.name: kind.least for kind in KINDS_OF_RIVALS}
    assert (least["data-only"], least["layers-only"], least["always"]) == (1.10, 1.25, 1.0)


def test_a_rival_whose_layout_after_a_loss_is_of_our_search_takes_the_seconds_of_our_planner() -> None:
    found = run(Event(300.0, "n1/0", "lost", 1.0, None), rivals=("layers-only", "torchft", "restart", "always"))
    seconds = {name: o.seconds_lost.get("planning", 0.0) for name, o in found.items()}
    took = pytest.approx(planning_seconds(NODES * DEVICES), abs=1e-3)
    assert seconds == {"ours": took, "layers-only": took, "always": took, "torchft": 0.0, "restart": 0.0}


def test_after_a_loss_ours_goes_on_at_once_without_the_replica_however_long_planning_takes() -> None:
    slow, lost = Event(10.0, "coordinator", "coordinator", 50.0, None), Event(30.0, "n1/0", "lost", 1.0, 200.0)
    whole = Trace(4, 8, 300.0, 0, (slow, lost))
    large = world_of(whole, "llama-7b", "a100-80g")
    assert len(large.healthy.chains) > 1
    for events in ((slow, lost), (lost,)):
        outcome = simulate(large, replace(whole, events=events), ())[0]
        assert "planning" not in outcome.seconds_lost
        assert outcome.plans and outcome.changes == 3, "without the replica, as the search says, and back with it"
    without = simulate(large, whole, (), copies=False)[0]
    assert without.seconds_lost["planning"] > 50, "the state is in the checkpoint, so a restart waits for the plan"


@pytest.mark.parametrize("nodes", [NODES, 4])
def test_a_change_after_a_loss_waits_for_the_copies_of_what_was_lost(nodes: int) -> None:
    """With the replica of the lost device alone, and where others are whole."""
    first = []

    class Copying(Ours):
        seconds = 0.0

        def _from_copies(self, run: Run) -> float:
            return self.seconds

        def _enter(self, run: Run, layout: Layout, cost: float, cause: str = "migration") -> None:
            first.append(cost)
            run.now = run.trace.seconds
            super()._enter(run, layout, cost, cause)

    lost = Trace(nodes, 2 * nodes, 60.0, 0, (Event(30.0, "n1/0", "lost", 1.0, None),))
    for Copying.seconds in (0.0, 50.0):
        Run(world_of(lost, "llama-7b", "a100-80g"), lost, Copying(0)).go()
    assert first[1] == pytest.approx(first[0] + 50.0) and len(first) == 2


def test_with_every_device_lost_time_passes_until_they_are_back() -> None:
    gone = [Event(200.0, f"n{n}", "lost", 1.0, 300) for n in range(NODES)]
    for outcome in run(*gone, rivals=("rigid", "torchft")).values():
        assert outcome.seconds_lost["too few devices"] > 200
        assert any(t > 800 for t in outcome.ends), outcome.name


def test_a_recovered_device_is_taken_back_and_a_flapping_one_ever_more_seldom() -> None:
    back = run(Event(120.0, "n0/1", "sick", 5.42, 300.0))["ours"]
    assert back.changes == 2
    assert back.curve(6)[-1] == pytest.approx(1, abs=0.05)
    flaps = [Event(120.0 + 40 * i, "n0/1", "flapping", 5.42, 20.0) for i in range(12)]
    assert run(*flaps, seconds=700)["ours"].changes <= 6


def test_the_same_trace_gives_the_same_outcomes() -> None:
    mine = trace(SICK, Event(0, "fleet", "pauses", 0.5), Event(0, "fleet", "long", 1.5), seconds=200)
    first, again = (simulate(world(), mine, ("rigid",)) for _ in range(2))
    assert first == again


def test_malleus_acts_on_what_moves_by_its_gap_and_no_less() -> None:
    (kind,) = (k for k in KINDS_OF_RIVALS if k.name == "malleus")
    for slowdown, changes in ((1.25, 0), (2.57, 1)):
        mine = trace(Event(60.0, "n0/1", "sick", slowdown, None), seconds=200)
        assert Run(world(), mine, Rival(kind)).go().changes == changes


def test_an_unknown_rival_is_refused() -> None:
    with pytest.raises(Refused, match="--rivals is 'megatron'"):
        run(rivals=("megatron",))


def test_the_optimum_counts_each_device_by_its_speed_at_each_time() -> None:
    half = trace(Event(0.0, "n0/1", "sick", 4.0, SPAN / 2))
    assert optimum(world(), half) == pytest.approx(1 - 0.5 * 0.75 / 8)
    assert optimum(world(), trace(Event(0.0, "fleet", "drift", 1.25, SPAN / 2))) == pytest.approx(1 - 0.5 * 0.2)
    assert optimum(world(), trace(Event(0.0, "n0", "bandwidth", 0.5, None))) == 1, "a slow network slows no device"


def test_planning_and_loading_take_longer_where_there_is_more() -> None:
    seconds = [planning_seconds(n) for n in (8, 64, 512, 1024, 4096)]
    assert seconds == sorted(seconds) and len(set(seconds)) == 5
    assert 5 < load_seconds(world()) < 5.4  # 5.9e9 parameters of 14 bytes, 8 devices of 2e9 bytes a second


def test_rivals_plan_as_long_as_their_publications_say() -> None:
    planning = {kind.name: kind.planning for kind in KINDS_OF_RIVALS}
    assert [planning["data-only"](8 * n, n) for n in (256, 512)] == pytest.approx([6.8, 35.9], rel=0.01)
    assert [planning["malleus"](n, n) for n in (8, 64, 1024)] == pytest.approx([20.0, 20.0, 60.0], rel=0.02)
    assert planning["always"](64, 8) == planning_seconds(64)


def test_slowdowns_are_rounded_by_less_than_their_bucket() -> None:
    for slowdown in (1.1, 1.25, *HOGS):
        assert 1 / 1.026 <= speed_of(bucket(slowdown, 0)) * slowdown <= 1.026


def test_the_report_names_every_run_with_its_figures() -> None:
    mine = trace(SICK)
    found = report(world(), mine, simulate(world(), mine, ("rigid",)))
    assert [r["name"] for r in found["runs"]] == ["ours", "rigid"]
    assert found["devices"] == 8 and found["events"] == 1
    for one in found["runs"]:
        assert set(one) == {"name", "goodput", "steps", "plans", "changes", "rebalances", "seconds_lost", "curve"}
