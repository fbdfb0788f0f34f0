"""Clocks that are set while a job runs, by a person or by NTP: nothing ends early, nothing waits for the old time to come."""

from __future__ import annotations

import pytest

from coxswain_operator.clock import SteadyClock
from coxswain_operator.controller import Controller
from tests.unit.fake_cluster import NAMESPACE
from tests.unit.test_reconcile_lifecycle import running

HOUR = 3600.0
BACK = -900.0  # the world of these tests begins 1000 s after 1970


class Machine:
    """A wall clock that the test sets, and elapsed time."""

    def __init__(self) -> None:
        self.wall, self.passed = 1e9, 500.0

    def tick(self, seconds: float) -> None:
        self.wall += seconds
        self.passed += seconds

    def steady(self) -> SteadyClock:
        return SteadyClock(lambda: self.wall, lambda: self.passed)


@pytest.mark.parametrize("jump", [24 * HOUR, HOUR, -HOUR, -24 * HOUR])
def test_a_clock_that_is_set_changes_decisions_only_by_a_tenth_of_the_time_that_passes(jump: float) -> None:
    machine = Machine()
    clock = machine.steady()
    machine.wall += jump
    before = clock()
    for _ in range(60):
        machine.tick(10.0)
        now = clock()
        assert 0.9 * 10 - 1e-3 <= now - before <= 1.1 * 10 + 1e-3
        before = now


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_a_clock_that_was_wrong_at_the_start_is_made_up_for_in_ten_times_the_difference(jump: float) -> None:
    machine = Machine()
    clock = machine.steady()
    machine.wall += jump
    for _ in range(1001):
        machine.tick(HOUR / 100)
        clock()
    assert clock() == pytest.approx(machine.wall, abs=1.0)


def test_an_even_clock_is_shown_as_it_is() -> None:
    machine = Machine()
    clock = machine.steady()
    machine.tick(1234.5)
    assert clock() == pytest.approx(machine.wall, abs=1e-3)


async def test_a_clock_set_forward_by_a_day_neither_ends_a_job_by_its_deadline_nor_gives_up_its_pods() -> None:
    world = await running(activeDeadlineSeconds=3600, startTimeoutSeconds=60)
    machine = Machine()
    machine.wall = world.now
    controller = Controller(world, world, machine.steady())
    world.vanish(world.pod("trainer-1"))
    await controller.pass_once(NAMESPACE, "demo")
    machine.wall += 24 * HOUR
    for _ in range(3):
        machine.tick(1.0)
        await controller.pass_once(NAMESPACE, "demo")
    assert world.state == "Running"
    assert world.job["status"]["restarts"] == {"counted": 0, "ignored": 1}
