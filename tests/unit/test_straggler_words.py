"""A straggler in words, and what it keeps from step to step and from world to world."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from coxswain.ladder.speeds import speed_of
from coxswain.layout import Device, uniform_layout
from coxswain.stragglers.values import Cause
from coxswain_coordinator.stragglers.speeds import replica_speeds
from coxswain_coordinator.stragglers.words import Straggler, detected, recovered

ONE = Straggler("trainer-3", 1, "n7", 2.5, 40, 1000.0, Cause.DEVICE, 2, 0.4, 47)


def test_an_event_names_trainer_device_node_slowdown_steps_and_what_is_done() -> None:
    assert detected(ONE, 44) == (
        "trainer-3 device 1 (n7) computes 2.50 x as long as its work takes on peers, or took before, since step 40, "
        "confirmed at step 44. Rebalance: replica 2 is planned at speed 0.40 from step 47 on"
    )
    assert "; most devices of the node are slow alike. " in detected(replace(ONE, cause=Cause.NODE), 44)
    assert (
        recovered(ONE, 90)
        == "trainer-3 device 1 (n7) computes at its normal speed again at step 90; it was 2.50 x slower"
    )
    assert replace(ONE, node="").name == "trainer-3 device 1"
    assert replace(ONE, speed=None).action.startswith("Warn: ")


def test_the_first_time_stays_and_the_step_of_the_plan_as_long_as_the_speed_does() -> None:
    now = replace(ONE, since=2000.0, planned_from=None)
    assert now.kept(None) == now
    assert now.kept(ONE) == replace(now, since=1000.0, planned_from=47)
    assert replace(now, speed=0.3).kept(ONE) == replace(now, since=1000.0, speed=0.3)


@pytest.mark.parametrize(
    ("speed", "first", "since", "planned"),
    [(0.4, 60, 40, 47), (0.4, 47, 40, None), (0.4, 30, 30, None), (0.5, 60, 40, None), (None, 60, 40, None)],
)
def test_in_a_new_world_it_has_that_worlds_replica_and_began_with_it_at_the_latest(
    speed, first, since, planned
) -> None:
    found = ONE.moved(5, speed, first)
    assert (found.replica, found.speed, found.since_step, found.planned_from) == (5, speed, since, planned)
    assert replace(ONE, planned_from=None).moved(5, speed, first).planned_from is None


def test_a_replica_keeps_its_speed_while_its_slowest_rank_is_near_it() -> None:
    seats = uniform_layout([Device(n, 0) for n in range(4)], 4, pipeline=2).ranks()
    slowdowns = np.array([1.0, 1.05**6.6, 1.0, 1.05**3.0])
    assert replica_speeds(slowdowns, seats, ()) == (speed_of(7), speed_of(3))
    assert replica_speeds(slowdowns, seats, (speed_of(6), speed_of(3))) == (speed_of(6), speed_of(3))
    assert replica_speeds(slowdowns, seats, (speed_of(9), 1.0)) == (speed_of(7), speed_of(3))
    assert replica_speeds(np.ones(4), seats, (speed_of(9), 1.0)) == ()
