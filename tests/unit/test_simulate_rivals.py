"""What rivals do in virtual time, each as its publication says, and what the senses of ours are shown."""

from __future__ import annotations

import math

import numpy as np
import pytest

from coxswain.layout import Device
from coxswain.plan.layouts.result import layout_of
from coxswain.plan.layouts.settle import Draft
from coxswain.simulate.compare import NAMES, optimum, world_of
from coxswain.simulate.ours import Ours
from coxswain.simulate.rivals import Find, dropped, fast, whole
from coxswain.simulate.run import Measured, Run, Settings
from coxswain.simulate.senses import LONG, NOISE, PROBE, ROUNDS, SHORT, SPREAD, Senses
from coxswain.simulate.traces import Event, Trace
from coxswain.simulate.truth import Truth
from coxswain.simulate.world import load_seconds, replicas_of
from coxswain.stragglers.values import Step
from tests.unit.test_simulate import DEVICES, NODES, SICK, run, trace, world

LOST = Event(300.0, "n1/0", "lost", 1.0, None)
SLOW = Device(0, 1)


def under(slowdown: float, nodes: int = NODES) -> Truth:
    """One device is so slow."""
    return Truth(0.0, {(SLOW.trainer, SLOW.device): slowdown}, (nodes, DEVICES))


def devices(draft: Draft | None) -> set[Device]:
    assert draft
    return set(replicas_of(draft))


@pytest.mark.parametrize(("find", "left"), [(dropped, 8), (fast, 15)])
def test_a_rival_leaves_a_device_out_where_steps_are_shorter_without_it(find: Find, left: int) -> None:
    """On four nodes, which make two replicas: one of them is left, or all other devices."""
    wide = world_of(Trace(4, DEVICES, 900.0, 0, ()), "llama-7b", "a100-80g")
    assert len(wide.healthy.chains) == 2
    for slowdown, count in ((1.02, 16), (50.0, left), (math.inf, left)):
        found = devices(find(wide, wide.under(under(slowdown, 4)), wide.healthy))
        assert (len(found), SLOW in found) == (count, count == 16), slowdown


def test_the_layout_of_a_restart_has_every_device_that_is_not_lost_however_slow() -> None:
    assert whole(world(), world().under(under(50.0))) is world().healthy
    assert devices(whole(world(), world().under(under(math.inf)))) == devices(world().healthy) - {SLOW}


def test_every_rival_goes_on_after_a_loss_with_the_devices_that_are_left() -> None:
    for outcome in run(LOST, rivals=NAMES).values():
        assert outcome.ends[-1] > 800.0, outcome.name
        assert "too few devices" not in outcome.seconds_lost, outcome.name


def test_a_rival_that_restarts_does_so_once_the_slow_device_has_cost_what_a_restart_does() -> None:
    for restart, changes in ((60.0, 1), (200.0, 1), (2000.0, 0)):
        found = run(SICK, rivals=("restart",), settings=Settings(restart=restart))["restart"]
        assert found.changes == changes, restart
        if changes:
            cost = restart + 2 * load_seconds(world())
            assert found.seconds_lost["restart"] == pytest.approx(cost, abs=0.01)
            assert found.seconds_lost["slow or missing devices"] > 0.9 * cost


def test_each_change_of_a_device_is_planned_for() -> None:
    again = Event(500.0, "n1/2", "sick", 3.0, None)
    one, two = (run(*events, rivals=("data-only",))["data-only"].plans for events in ((SICK,), (SICK, again)))
    assert 1 <= one < two


def test_the_optimum_loses_the_first_device_of_a_node_as_any_other() -> None:
    first, other = (trace(Event(0.0, f"n1/{device}", "sick", 2.0, None)) for device in (0, 3))
    assert optimum(world(), first) == optimum(world(), other) == pytest.approx(1 - 0.5 / (NODES * DEVICES))


def test_a_world_is_of_the_hardware_that_was_asked_for_and_no_tensor_group_is_larger_than_a_node() -> None:
    assert world_of(trace(), "llama-7b", "h100-80g").healthy.seconds < world().healthy.seconds
    assert world().costs.cluster.max_tensor == DEVICES


def test_placements_follow_a_slow_device_once_and_again_only_when_its_speed_changes() -> None:
    slower = Event(600.0, "n0/1", "sick", 2.0, None)
    one, two = (run(*events, action="Rebalance")["ours"].rebalances for events in ((SICK,), (SICK, slower)))
    assert 1 <= one <= 4
    assert one < two <= 2 * one + 4


def sensed(
    senses: Senses, *, slowdown: float = 1.0, long: float = 1.0, pauses: dict[int, float] | None = None
) -> tuple[Step, list[Device]]:
    """The figures of one step of all replicas on the healthy layout, and the ranks' devices."""
    running = Run(world(), trace(), Ours(0))
    layout = layout_of(running.draft, world().costs.cluster)
    senses.begin(running, running.draft, layout, {})
    replicas = len(running.draft.chains)
    measured = Measured(1.0, 1.0, np.full(replicas, long), pauses or {}, ((1.0, under(slowdown)),))
    return senses.figures(running, measured), senses.seats


def test_a_slow_device_computes_as_much_slower_and_a_pause_is_on_top_of_it() -> None:
    well, seats = sensed(Senses(3))
    slow, _ = sensed(Senses(3), slowdown=5.42, pauses={2: 0.25})
    rank = seats.index(SLOW)
    expected = well.compute.copy()
    expected[rank] *= 5.42
    expected[2] += 0.25
    assert slow.compute == pytest.approx(expected)


def test_healthy_devices_differ_for_good_by_no_more_than_their_spread_and_noise_is_on_top_of_it() -> None:
    steps = [sensed(Senses(seed))[0] for seed in range(60)]
    each = np.array([step.compute / step.work for step in steps])
    assert (np.abs(np.median(each, axis=0) - 1) <= SPREAD + 0.01).all()
    assert np.ptp(np.median(each, axis=0)) > SPREAD
    assert np.std(np.log(each), axis=0) == pytest.approx(NOISE, rel=0.5)


def test_of_stages_with_as_many_layers_the_last_has_the_loss_as_work_besides() -> None:
    chain, work = world().healthy.chains[0], sensed(Senses(3))[0].work
    assert chain.layers == (16, 16)
    loss = world().healthy.counts[0] * world().costs.loss_seconds(chain.groups[-1])
    assert work.tolist() == pytest.approx([work[0]] * 4 + [work[0] + loss] * 4)


def test_the_longest_sequence_is_known_of_a_replica_whose_step_takes_longer() -> None:
    for long, tokens in ((1.0, SHORT), (1.5, LONG)):
        figures, _ = sensed(Senses(3), long=long)
        assert figures.longest is not None
        assert set(figures.longest) == {tokens}


def test_probes_take_as_long_as_the_slowest_of_them_with_its_warm_up_before_and_behind_a_step() -> None:
    lost = []
    for slowdown in (1.0, 3.8):
        sick = Event(120.0, "n0/1", "sick", slowdown, None)
        running = Run(world(), trace(sick, seconds=127.0), Ours(0, "Rebalance"))
        running.go()
        lost.append(running.lost["probes"])
    assert lost[1] - lost[0] == pytest.approx(2 * (1 + ROUNDS) * PROBE * 3.8, rel=SPREAD)
