"""A new coordinator adopts a world that still runs, and fences the coordinator before."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
from msgspec.structs import replace

from coxswain import wire
from coxswain.errors import Stale
from coxswain.live import Held, LiveSource
from coxswain.membership.stream import initial_cursor
from coxswain.planlog import Generation, LoaderShare
from coxswain_coordinator.planning.plan_log import PlanLog
from coxswain_coordinator.state.session import Session
from coxswain_coordinator.world.formation import at_checkpoint, is_adoptable, next_generation, start_of
from coxswain_link.http_client import JobEnded
from tests.unit.coordinator_fakes import cluster, digests_of, make_job, store_of
from tests.unit.coordinator_lead import begun, holds, leading, led_again, register, small, training
from tests.unit.coordinator_samples import agents, committed, session
from tests.unit.test_coordinator_checkpoints import manifest


def running(job, count: int = 2) -> tuple[Generation, list[wire.Register]]:
    return next_generation(job, 3, "one", agents(count), (), at_checkpoint(job, None)), [
        replace(a, generation=3) for a in agents(count)
    ]


def test_a_world_is_adoptable_when_every_trainer_reports_its_generation(tmp_path):
    job = make_job(tmp_path)
    record, here = running(job)
    assert is_adoptable(record, job, here, ())
    assert not is_adoptable(None, job, here, ())


@pytest.mark.parametrize("change", [{"generation": 2}, {"generation": 0}, {"pod": "another"}, {"left": 3}])
def test_a_world_with_a_failed_worker_or_another_pod_is_not_adoptable(tmp_path, change):
    job = make_job(tmp_path)
    record, here = running(job)
    assert not is_adoptable(record, job, [here[0], replace(here[1], **change)], ())


@pytest.mark.parametrize(
    "loaders", [(), (LoaderShare("loader-0", "code", 0, 2),), (LoaderShare("loader-1", "code", 0, 1),)]
)
def test_a_world_whose_loaders_have_changed_is_not_adopted(tmp_path, loaders):
    job = make_job(tmp_path)
    record, here = running(job)
    shares = (LoaderShare("loader-0", "code", 0, 1),)
    assert is_adoptable(replace(record, loaders=shares), job, here, shares)
    assert not is_adoptable(replace(record, loaders=shares), job, here, loaders)


@pytest.mark.parametrize(("saved", "is_live"), [(None, True), (5, True), (6, True), (7, False)])
def test_an_adopted_world_counts_from_living_state_unless_a_newer_checkpoint_is_there(tmp_path, saved, is_live):
    job = make_job(tmp_path)
    record, _ = running(job)
    source = LiveSource(2, record.layout, 6, ())
    record = replace(
        record, live=source, first_step=6, cursor=replace(initial_cursor(job.mix), step=6), stream_digest="d"
    )
    found = start_of(record, job, None if saved is None else manifest(job, saved))
    assert found.live == (source if is_live else None)


def test_a_job_that_was_changed_gets_a_new_world(tmp_path):
    job = make_job(tmp_path)
    record, here = running(job)
    assert not is_adoptable(record, replace(job, stop_steps=99), here, ())


def test_a_takeover_fences_the_coordinator_before(tmp_path):
    store = store_of(make_job(tmp_path))
    first, second, third = (PlanLog(store) for _ in range(3))
    assert first.create_generation(running(make_job(tmp_path))[0])
    first.check_current(3)
    assert second.take_over(3, "two")
    with pytest.raises(Stale, match="another coordinator has taken over generation 3"):
        first.check_current(3)
    assert third.take_over(3, "three")
    third.check_current(3)
    with pytest.raises(Stale, match="taken over"):
        second.check_current(3)


def test_a_generation_that_a_coordinator_has_created_itself_and_left_unused_does_not_fence_it(tmp_path):
    store, record = store_of(make_job(tmp_path)), running(make_job(tmp_path))[0]
    one, rival = PlanLog(store), PlanLog(store)
    assert one.create_generation(record) and one.create_generation(replace(record, generation=4))
    one.check_current(3)
    assert rival.take_over(4, "rival")
    with pytest.raises(Stale, match="another coordinator has taken over generation 4"):
        one.check_current(3)


def test_a_world_that_was_made_since_the_start_of_its_next_coordinator_is_held_from_its_takeover_on(tmp_path):
    store, record = store_of(make_job(tmp_path)), replace(running(make_job(tmp_path))[0], generation=1)
    one = PlanLog(store)
    assert one.read_held() == 0
    assert PlanLog(store).create_generation(record) and one.take_over(1, "one")
    one.check_held()
    assert PlanLog(store).take_over(1, "rival")
    with pytest.raises(Stale, match="another coordinator has taken over generation 1"):
        one.check_held()


def test_a_generation_that_another_coordinator_was_faster_with_fences_the_slower_one(tmp_path):
    store, record = store_of(make_job(tmp_path)), running(make_job(tmp_path))[0]
    one, rival = PlanLog(store), PlanLog(store)
    assert one.create_generation(record)
    assert rival.create_generation(replace(record, generation=4, author="rival"))
    assert not one.create_generation(replace(record, generation=4))
    with pytest.raises(Stale, match="another coordinator has created generation 4"):
        one.check_current(3)


@pytest.mark.parametrize("is_made", [False, True])
def test_a_coordinator_that_creates_a_generation_does_not_fence_its_own_collection_meanwhile(
    tmp_path, monkeypatch, is_made
):
    """A collection looks at the fence in another thread, before the record is there or before its creator knows that."""
    store, record = store_of(make_job(tmp_path)), running(make_job(tmp_path))[0]
    one, create, looks = PlanLog(store), store.create, []
    assert PlanLog(store).create_generation(record) and one.take_over(3, "one")
    with ThreadPoolExecutor() as threads:

        def slowly(key, data):
            made = is_made and create(key, data)
            looks.append(threads.submit(one.check_current, 3))
            wait(looks, timeout=0.2)
            return made or create(key, data)

        monkeypatch.setattr(store, "create", slowly)
        assert one.create_generation(replace(record, generation=4))
    assert [look.result() for look in looks] == [None]


def test_the_cursor_of_a_due_checkpoint_is_kept_without_a_directive(tmp_path):
    found: Session = session(make_job(tmp_path))
    found.add(committed(*range(8)))
    found.cursors = {step: replace(found.cursors[0], step=step) for step in range(9)}
    found.forget_before(8)
    assert sorted(found.cursors) == [6, 8]  # everySteps is 6
    found.mark_saved(6)
    found.forget_before(8)
    assert sorted(found.cursors) == [8]


def test_a_rank_ahead_of_a_new_coordinator_begins_its_step_alone(tmp_path):
    found: Session = session(make_job(tmp_path))
    assert not found.catching_up(5)  # no rank is ahead of the coordinator that made the world
    found.adopted = True
    assert found.catching_up(5)
    found.request_stop(-1)
    assert found.stop_at == 6  # a step that has begun is not stopped
    found.add(committed(*range(8)))
    assert not found.catching_up(7)


@pytest.mark.parametrize("generation", [0, 1], ids=["the next world", "the one that runs"])
async def test_a_new_coordinator_counts_from_the_checkpoint_that_the_one_before_has_made_meanwhile(
    tmp_path, generation
):
    async with training(small(tmp_path)) as first, leading(small(tmp_path), "two") as lead:
        await first.close(0, 1, 2)
        lead.index()
        assert lead.state.manifest is None
        first.save(3, 0, 1)
        await first.until(lambda: first.state.manifest)
        lead.arrive(generation=generation)
        await lead.world(1 if generation else 2)
        assert (lead.state.manifest.step, lead.state.session.cursors[3].step) == (3, 3)


async def test_a_checkpoint_that_is_made_until_the_coordinator_before_is_superseded_counts(tmp_path):
    """Workers have dropped their reports of the steps before it."""
    async with training(small(tmp_path)) as first, leading(small(tmp_path), "two") as lead:
        await first.close(0, 1, 2)
        lead.index()
        reached, goes_on = asyncio.Event(), asyncio.Event()
        lead.executor.before["take_over"], lead.executor.held["take_over"] = reached.set, goes_on
        lead.arrive(generation=1)
        await reached.wait()
        first.save(3, 0, 1)
        await first.until(lambda: first.state.manifest)
        goes_on.set()
        await lead.world(1)
        assert (lead.state.manifest.step, lead.state.session.cursors[3].step) == (3, 3)


@pytest.mark.parametrize("generation", [0, 1], ids=["the next world", "the one that runs"])
async def test_a_new_coordinator_begins_no_world_behind_the_last_checkpoint_that_the_one_before_has_made_meanwhile(
    tmp_path, generation
):
    job = small(tmp_path, stop_steps=3)
    async with training(job) as first, leading(job, "two") as lead:
        await first.close(0, 1, 2)
        lead.index()
        first.save(3, 0, 1, end="Completed")
        await first.until(lambda: first.state.manifest)
        lead.arrive(generation=generation)
        assert (await asyncio.wait_for(lead.work, 60)).reason == "StopReached"
        assert (lead.state.session, len(lead.keys("log/generations/"))) == (None, 1)


async def continue_world(c, world: wire.World, generation: int) -> None:
    """The same processes under another coordinator: they register, repeat messages and continue."""

    async def trainer(index: int) -> None:
        member = wire.Register(
            "trainer", f"trainer-{index}", f"demo-trainer-{index}-0", "i", "127.0.0.1", 7, 1, generation
        )
        with contextlib.suppress(JobEnded):
            while True:
                await c.client.post("/v1/register", member, wire.Registered)
                await c.client.get("/v1/world", wire.World, after=world.generation, wait=1, instance="i")

    async def constructor(index: int) -> None:
        async with c.until_end("constructor", f"trainer-{index}"):
            await c.register("constructor", f"trainer-{index}")
            await c.deliver(world, index)

    async with asyncio.TaskGroup() as group:
        for index in range(c.job.trainers):
            group.create_task(trainer(index))
            group.create_task(constructor(index))
        for seat in world.seats:
            group.create_task(c.worker(world, seat, f"trainer-{seat.device.trainer}"))
        group.create_task(c.loader(0))
        await c.coordinator.drive()


async def test_a_new_coordinator_adopts_the_world_from_the_last_checkpoint(tmp_path):
    expected, job = await digests_of(make_job(tmp_path / "calm"), tmp_path / "calm"), make_job(tmp_path)
    async with cluster(job, tmp_path) as c:
        world = await c.play_until(6)
        saved = c.coordinator.report().checkpoint_step
    async with cluster(job, tmp_path, instance="two") as c:
        await asyncio.wait_for(continue_world(c, replace(world, first_step=saved), generation=1), 60)
        report = c.coordinator.report()
        assert (report.phase, report.generation, report.step) == ("Completed", 1, 20)
        assert c.digests() == expected
        assert any(e.reason == "Resumed" and "kept running without a coordinator" in e.message for e in report.events)


@pytest.mark.looptime
async def test_workers_that_leave_an_adopted_world_for_the_change_of_the_coordinator_before_are_no_failure(tmp_path):
    """They have its directive, and the new coordinator does not know of it."""
    async with led_again(tmp_path) as lead:
        register(lead, *(replace(a, generation=1) for a in agents(2)))
        await begun(lead, 1)
        assert lead.state.session.adopted
        one, two = holds(lead, 1, generation=1)
        register(lead, one)
        assert "a change that the coordinator before had begun" in lead.state.session.lost
        register(lead, two)
        await begun(lead, 2)
        assert lead.state.failures == 0
        assert [(e.reason, e.warning) for e in lead.state.events.latest()][-1] == ("Resumed", False)


@pytest.mark.looptime
@pytest.mark.parametrize("work", ["take_over", "drop_belated"])
async def test_a_world_whose_trainer_is_replaced_while_it_is_taken_over_does_not_run_on(tmp_path, work):
    """Its ranks would wait for the lost one until they are found silent."""
    async with led_again(tmp_path) as lead:
        one, two = (replace(a, generation=1) for a in agents(2))
        again = replace(two, instance="two", pod="new", generation=0)
        lead.executor.before[work] = lambda: register(lead, again)
        register(lead, one, two)
        await lead.until(lambda: lead.state.session)
        assert lead.state.session.lost == "some of its workers left it while there was no coordinator"


@pytest.mark.looptime
async def test_plans_of_an_adopted_world_are_not_read_while_they_are_being_made(tmp_path):
    """The calls share what they know of a segment, and claim its parts by number."""
    job = small(tmp_path)
    slow = replace(job, parallelism=replace(job.parallelism, balance="FlexSP"))
    async with training(slow) as lead:
        lead.driver.close()
    async with leading(slow, "two") as lead:
        began, over = [], asyncio.Event()
        lead.executor.held["commit"] = over
        lead.executor.before["commit"] = lambda: began.append("made")
        lead.index()
        register(lead, *(replace(a, generation=1) for a in agents(2)))
        await lead.until(lambda: began)
        lead.executor.before["commit"] = lambda: began.append("read")
        register(lead, *holds(lead, 1, generation=1))
        await asyncio.sleep(5)
        assert (began, bool(lead.state.session.lost)) == (["made"], True)
        over.set()
        await begun(lead, 2)
        lead.driver.close()


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("holding", "held", "failures"), [(False, (), 1), (False, (Held(0, 0, 0, 1),), 1), (True, (), 0)]
)
async def test_an_agent_of_an_adopted_world_whose_worker_holds_nothing_of_it_any_more_has_lost_it(
    tmp_path, holding, held, failures
):
    async with led_again(tmp_path) as lead:
        register(lead, *(replace(a, generation=1) for a in agents(2)))
        await begun(lead, 1)
        one, _ = holds(lead, 1, generation=1)
        register(lead, one if holding else replace(one, held=held))
        assert lead.state.session.lost and lead.state.failures == failures
