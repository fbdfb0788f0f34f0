"""Clocks that are set while a job runs, by a person or by NTP: nothing ends early, nothing waits for the old time to come."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coxswain_operator.clock import SLEW, SteadyClock
from coxswain_operator.controller import Controller
from coxswain_operator.reconcile import incarnations
from coxswain_operator.reconcile.force_delete import LATE_SECONDS, MARGIN_SECONDS
from coxswain_operator.reconcile.status import Incarnation
from coxswain_operator.reconcile.times import stamp
from coxswain_operator.sightings import AHEAD_SECONDS, FORGOTTEN_SECONDS, Sightings
from tests.unit.fake_cluster import NAMESPACE, FakeCluster, with_job
from tests.unit.reconcile_scenes import TRAINER
from tests.unit.test_reconcile_lifecycle import running

HOUR = 3600.0
GRACE = 60.0
COUNTED = (1 + SLEW) * GRACE  # of a clock that may be a tenth too fast
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


async def ending(ready: str) -> FakeCluster:
    """One pod has been deleted, with its grace, on a node that is Ready or not."""
    world = await running()
    world.set_node("node-of-trainer-1", ready)
    deleted = {"deletionTimestamp": stamp(world.now + GRACE), "deletionGracePeriodSeconds": int(GRACE)}
    world.pod("trainer-1")["metadata"] |= deleted
    return world


async def later(seconds: float, world: FakeCluster, operator: Controller) -> None:
    """That time passes, and the operator looks."""
    world.tick(seconds)
    await operator.pass_once(NAMESPACE, "demo")


@pytest.mark.parametrize("ahead", [0.0, -BACK, BACK])
async def test_a_pod_has_its_grace_however_far_the_operators_clock_is_from_the_servers(ahead: float) -> None:
    world = await ending("False")
    operator = Controller(world, world, lambda: world.now + ahead)
    await operator.pass_once(NAMESPACE, "demo")
    await later(COUNTED + MARGIN_SECONDS - 1, world, operator)
    assert world.pod("trainer-1")["metadata"]["deletionGracePeriodSeconds"] == GRACE
    await later(1, world, operator)
    assert world.pod("trainer-1") is None or "deletionTimestamp" not in world.pod("trainer-1")["metadata"]


@pytest.mark.parametrize("ahead", [0.0, -BACK, BACK])
async def test_a_pod_is_late_on_a_node_that_works_however_far_the_clocks_are_apart(ahead: float) -> None:
    world = await ending("True")
    operator = Controller(world, world, lambda: world.now + ahead)
    await operator.pass_once(NAMESPACE, "demo")
    await later(COUNTED + LATE_SECONDS - 1, world, operator)
    assert "TerminationLate" not in world.condition("Succeeded")["message"]
    await later(10, world, operator)  # messages are written every five seconds
    assert "TerminationLate: Pod demo-trainer-1-0" in world.condition("Succeeded")["message"]


async def test_a_new_operator_waits_once_more_for_a_deletion_that_it_finds() -> None:
    world = await ending("False")
    world.tick(HOUR)
    operator = Controller(world, world, world.clock)
    await operator.pass_once(NAMESPACE, "demo")
    assert world.pod("trainer-1")["metadata"]["deletionGracePeriodSeconds"] == GRACE
    await later(COUNTED + MARGIN_SECONDS, world, operator)
    assert world.pod("trainer-1") is None or "deletionTimestamp" not in world.pod("trainer-1")["metadata"]


def test_a_deletion_that_is_repeated_with_less_grace_ends_sooner_and_never_later() -> None:
    periods, pod = Sightings(), replace(TRAINER, deleting=True, grace=100.0)
    ends = [
        periods.dated([replace(pod, grace=g)], now)[0].grace_ends
        for g, now in ((100, 0), (100, 50), (10, 60), (90, 61))
    ]
    assert ends == pytest.approx([110, 110, 71, 71])


def test_a_deletion_is_known_as_long_as_passes_see_it_and_no_longer() -> None:
    periods, pod, day = Sightings(), replace(TRAINER, deleting=True), 24 * HOUR
    seen = [periods.dated([pod], now)[0].grace_ends for now in (0.0, FORGOTTEN_SECONDS - 1, 1.5 * FORGOTTEN_SECONDS)]
    periods.dated([], day)
    assert (seen, periods.dated([pod], day)[0].grace_ends) == ([0.0, 0.0, 0.0], day)
    assert periods.dated([replace(pod, deleting=False)], day)[0].grace_ends == 0.0


@pytest.mark.parametrize("ahead", [0.0, -BACK, BACK])
async def test_a_pod_has_the_same_time_to_start_however_far_the_clocks_are_apart(ahead: float) -> None:
    world = with_job(startTimeoutSeconds=600)
    operator = Controller(world, world, lambda: world.now + ahead)
    for _ in range(4):
        await operator.pass_once(NAMESPACE, "demo")
    world.unprepared(world.pod("trainer-0"))
    for waited, counted, said in ((29, 0, False), (31, 0, True), (530, 0, True), (60, 1, True)):
        await later(waited, world, operator)
        assert world.job["status"]["restarts"]["counted"] == counted
        assert ("NotPrepared" in world.condition("PodsReady")["message"]) is said


def test_of_pods_whose_dates_are_in_order_nothing_is_changed() -> None:
    sightings, nearly = Sightings(), 10.0 + AHEAD_SECONDS - 0.1
    pods = (TRAINER, replace(TRAINER, phase="Pending", created=9.0, scheduled=nearly))
    assert all(dated is pod for dated, pod in zip(sightings.dated(pods, 10.0), pods, strict=True))


def test_a_pod_that_seems_to_be_made_in_the_future_was_made_when_it_was_first_seen() -> None:
    sightings, pod = Sightings(), replace(TRAINER, phase="Pending", created=100.0)
    placed = replace(pod, scheduled=105.0)
    seen = [sightings.dated([p], now)[0] for p, now in ((pod, 40.0), (pod, 60.0), (placed, 44.0), (placed, 200.0))]
    assert [(p.created - p.lead, p.scheduled) for p in seen] == [(40.0, 0.0), (40.0, 0.0), (39.0, 44.0), (39.0, 44.0)]


@pytest.mark.parametrize(("since", "starts"), [(0.0, False), (-59.0, False), (-60.0, True), (1.0, True), (HOUR, True)])
def test_a_back_off_that_begins_in_the_future_is_over(since: float, starts: bool) -> None:
    """It stems from before the clock was set back. One of the same second has begun."""
    entry = Incarnation(name="trainer-1", number=1, since=stamp(HOUR + since), delay_seconds=60)
    assert incarnations.may_start(entry, HOUR) is starts
