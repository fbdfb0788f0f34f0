"""Time in a queue is neither run time nor time in which a pod finds no node."""

from __future__ import annotations

from typing import Any

import pytest

from coxswain_operator.reconcile.pending import GATED
from coxswain_operator.reconcile.times import stamp
from tests.unit.fake_cluster import FakeCluster, report, with_job
from tests.unit.test_reconcile_lifecycle import passes, running


async def queued(seconds: float, **spec: Any) -> FakeCluster:
    """A job whose pods a queue has held back for so long."""
    world = with_job(**spec)
    await passes(world, 2)
    hold(world)
    await passes(world, 2)
    world.tick(seconds)
    await passes(world)
    assert world.state == "Queued"
    return world


def hold(world: FakeCluster) -> None:
    for pod in world.pods():
        world.unschedulable(pod, GATED)


async def admit(world: FakeCluster) -> None:
    for pod in world.pods():
        world.run(pod)
    world.report_now = report("Running", 10)
    await passes(world)


async def test_a_job_that_waits_for_its_queue_does_not_reach_its_deadline() -> None:
    world = await queued(10_000, activeDeadlineSeconds=60)
    assert world.job["status"]["activeSeconds"] <= 2
    await admit(world)
    world.tick(50)
    await passes(world)
    assert world.state == "Running"
    world.tick(10)
    await passes(world)
    assert world.condition("Succeeded")["message"].startswith("DeadlineExceeded")


async def test_a_job_that_goes_back_into_its_queue_keeps_the_time_that_it_ran() -> None:
    world = await queued(10_000, activeDeadlineSeconds=100)
    await admit(world)
    world.tick(60)
    await passes(world, 1)
    world.report_now = None
    hold(world)
    await passes(world, 2)
    assert 60 <= world.job["status"]["activeSeconds"] <= 70 and "activeSince" not in world.job["status"]
    world.tick(10_000)
    await passes(world)
    assert world.state == "Queued"
    await admit(world)
    world.tick(40)
    await passes(world)
    assert world.condition("Succeeded")["message"].startswith("DeadlineExceeded")


async def test_the_first_lack_of_room_behind_admission_does_not_shrink_the_gang() -> None:
    trainers = {"count": 4, "minCount": 2, "maxCount": 4}
    world = await queued(10_000, trainers=trainers)
    world.unplaceable = {"trainer-2", "trainer-3"}
    for pod in world.pods():
        pod["status"] = {"phase": "Pending"}
    world.run_all()
    await passes(world)
    assert world.job["status"]["attempt"] == 0
    world.tick(880)
    await passes(world)
    assert world.job["status"]["attempt"] == 0
    world.tick(20)
    await passes(world)
    assert (world.job["status"]["attempt"], world.job["status"]["trainers"]["desired"]) == (1, 2)


@pytest.mark.parametrize("resumed", [False, True])
async def test_a_status_of_an_earlier_release_counts_from_its_start_or_resumption(resumed: bool) -> None:
    world = await running(activeDeadlineSeconds=600)
    status = world.job["status"]
    del status["activeSince"]
    status["startTime"] = stamp(world.now - 500)
    world.condition("Suspended")["lastTransitionTime"] = stamp(world.now - (100 if resumed else 500))
    await passes(world)
    assert world.job["status"]["activeSince"] == stamp(world.now - 4 - (100 if resumed else 500))
    world.tick(400 if resumed else 100)
    await passes(world)
    assert (world.state == "Failed") is not resumed
