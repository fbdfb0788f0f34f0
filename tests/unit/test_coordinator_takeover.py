"""A coordinator that dies takes no world with it: the next one takes it up, if all of it lives, and is alone with it."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from msgspec.structs import replace

from coxswain import wire
from coxswain.errors import Stale
from coxswain.planlog import Generation
from coxswain_coordinator.planning.plan_log import PlanLog
from coxswain_coordinator.state.session import Session
from coxswain_coordinator.world.formation import is_adoptable, next_generation
from coxswain_link.http_client import JobEnded
from tests.unit.coordinator_fakes import cluster, make_job, store_of
from tests.unit.test_coordinator_faults import baseline, digests
from tests.unit.test_coordinator_parts import agents, committed, session


def living(job, count: int = 2) -> tuple[Generation, list[wire.Register]]:
    return next_generation(job, 3, "one", agents(count), (), None), [replace(a, generation=3) for a in agents(count)]


def test_a_world_stands_when_all_its_trainers_say_that_their_workers_live(tmp_path):
    job = make_job(tmp_path)
    record, here = living(job)
    assert is_adoptable(record, job, here, ())
    assert not is_adoptable(None, job, here, ())


@pytest.mark.parametrize("change", [{"generation": 2}, {"generation": 0}, {"pod": "another"}])
def test_a_world_with_a_dead_worker_or_another_pod_does_not_stand(tmp_path, change):
    job = make_job(tmp_path)
    record, here = living(job)
    assert not is_adoptable(record, job, [here[0], replace(here[1], **change)], ())


def test_a_job_that_was_changed_gets_a_new_world(tmp_path):
    job = make_job(tmp_path)
    record, here = living(job)
    assert not is_adoptable(record, replace(job, stop_steps=99), here, ())


def test_who_takes_a_world_over_fences_the_one_before(tmp_path):
    store = store_of(make_job(tmp_path))
    first, second, third = (PlanLog(store) for _ in range(3))
    assert first.create_generation(living(make_job(tmp_path))[0])
    first.check_current(3)
    assert second.take_over(3, "two")
    with pytest.raises(Stale, match="another coordinator has taken over generation 3"):
        first.check_current(3)
    assert third.take_over(3, "three")
    third.check_current(3)
    with pytest.raises(Stale, match="taken over"):
        second.check_current(3)


def test_what_a_checkpoint_needs_stays_although_nobody_asked_for_its_ticket(tmp_path):
    found: Session = session(make_job(tmp_path))
    found.add(committed(*range(8)))
    found.cursors = {step: replace(found.cursors[0], step=step) for step in range(9)}
    found.forget_before(8)
    assert sorted(found.cursors) == [6, 8]  # everySteps is 6
    found.mark_saved(6)
    found.forget_before(8)
    assert sorted(found.cursors) == [8]


def test_who_is_ahead_of_a_coordinator_that_catches_up_begins_the_step_alone(tmp_path):
    found: Session = session(make_job(tmp_path))
    assert not found.catching_up(5)  # nobody is ahead of the coordinator that made the world
    found.adopted = True
    assert found.catching_up(5)
    found.request_stop(-1)
    assert found.stop_at == 6  # the step that somebody is in is not stopped before
    found.add(committed(*range(8)))
    assert not found.catching_up(7)


async def test_a_coordinator_without_a_world_sends_those_on_who_live_in_one(tmp_path):
    async with cluster(make_job(tmp_path), tmp_path) as c:
        asked = await c.client.get("/v1/steps", wire.StepDirective, generation=3, step=7, wait=30)
        assert asked == wire.StepDirective(step=7, checkpoint=False, end="", plan=None)


async def test_who_is_ahead_when_the_job_has_ended_is_told_of_the_end(tmp_path):
    async with cluster(make_job(tmp_path), tmp_path) as c:
        report = await c.play()
        c.coordinator._state.session.adopted = True
        with pytest.raises(JobEnded):
            await c.client.get("/v1/steps", wire.StepDirective, generation=report.generation, wait=1, step=99)


async def lead(c, until_step: int) -> wire.World:
    """Plays the first coordinator's time, up to some step; returns the world of that time."""
    simulation = asyncio.create_task(c.play())
    world = await c.client.get("/v1/world", wire.World, after=0, wait=30)
    assert await c.coordinator.wait_until(lambda report: report.checkpoint_step >= until_step, 60)
    simulation.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await simulation
    return world


async def go_on(c, world: wire.World, generation: int) -> None:
    """The same processes before another coordinator: they register, tell again what no checkpoint holds, and go on."""

    async def trainer(index: int) -> None:
        member = wire.Register(
            "trainer", f"trainer-{index}", f"demo-trainer-{index}-0", "i", "127.0.0.1", 7, 1, generation
        )
        with contextlib.suppress(JobEnded):
            while True:
                await c.client.post("/v1/register", member, wire.Registered)
                await c.client.get("/v1/world", wire.World, after=world.generation, wait=1, instance="i")

    async def constructor(index: int) -> None:
        with contextlib.suppress(JobEnded):
            await c.register("constructor", f"trainer-{index}")
            await c._deliver(world, index)

    async with asyncio.TaskGroup() as group:
        for index in range(c.job.trainers):
            group.create_task(trainer(index))
            group.create_task(constructor(index))
        for seat in world.seats:
            group.create_task(c._worker(world, seat, f"trainer-{seat.device.trainer}"))
        group.create_task(c._loader(0))
        await c.coordinator.drive()


async def test_the_next_coordinator_takes_the_world_up_where_the_last_checkpoint_was(tmp_path):
    expected, job = await baseline(tmp_path), make_job(tmp_path)
    async with cluster(job, tmp_path) as c:
        world = await lead(c, 6)
        saved = c.coordinator.report().checkpoint_step
    async with cluster(job, tmp_path, instance="two") as c:
        await asyncio.wait_for(go_on(c, replace(world, first_step=saved), generation=1), 60)
        report = c.coordinator.report()
        assert (report.phase, report.generation, report.step) == ("Completed", 1, 20)
        assert digests(c) == expected
        assert any(e.reason == "Resumed" and "did without a coordinator" in e.message for e in report.events)
