"""A job's life through the controller, over a cluster in memory."""

from __future__ import annotations

import asyncio

import pytest

from coxswain_operator.controller import Controller
from tests.unit.reconcile_world import NAMESPACE, World, data_mix, data_source, report, report_text, training_job


async def passes(world: World, count: int = 4) -> None:
    controller = Controller(world, world, world.clock)
    for _ in range(count):
        await controller.pass_once(NAMESPACE, "demo")
        world.tick()
        world.reap()


async def running(**spec: object) -> World:
    """A job whose pods are ready and whose coordinator says Running."""
    world = World(data_source(), data_mix(), training_job(**spec))
    await passes(world)
    world.run_all()
    world.report_now = report("Running", 10)
    await passes(world)
    return world


async def test_a_job_gets_one_pod_for_each_member_and_all_other_children() -> None:
    world = World(data_source(), data_mix(), training_job())
    await passes(world)
    assert sorted(world.created) == ["demo-coordinator-0", "demo-loader-0-0", "demo-trainer-0-0", "demo-trainer-1-0"]
    kinds = {kind for kind, _ in world.objects}
    assert {"Secret", "ConfigMap", "Service", "NetworkPolicy", "PodDisruptionBudget"} <= kinds


async def test_a_running_job_says_so_and_tells_its_progress() -> None:
    world = await running()
    status = world.job["status"]
    assert world.state == "Running"
    assert status["ready"] == "2/2"
    assert status["progress"]["step"] == 10 and status["progress"]["loss"] == "2.5000"
    assert [h.reason for h in world.happenings] == ["Validated", "GangStarted"]


async def test_a_job_whose_coordinator_leaves_with_0_is_completed_and_stays_so() -> None:
    world = await running()
    world.end(world.pod("coordinator"), 0, report_text("Completed", step=100, reason="StopReached"))
    await passes(world)
    assert world.state == "Completed"
    assert world.condition("Progressing")["reason"] == "StopReached"
    before = world.status_writes
    world.vanish(world.pod("trainer-0"))
    await passes(world, 20)
    assert world.status_writes == before
    assert not [p for p in world.pods() if p["status"]["phase"] == "Running"]


@pytest.mark.timeout(10)
async def test_run_job_returns_once_the_job_is_over_and_its_pods_are_gone() -> None:
    world = await running()
    run = asyncio.create_task(Controller(world, world, world.clock, poll_seconds=0.01).run_job(NAMESPACE, "demo"))
    for pod in list(world.pods()):
        world.end(pod, 0, report_text("Completed", step=100, reason="DataExhausted"))
    job = await run
    assert job is not None and job["status"]["progress"]["step"] == 100
