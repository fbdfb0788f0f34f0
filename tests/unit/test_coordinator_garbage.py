"""Which shards and manifests a coordinator drops, which stay, and that training does not wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext

import pytest

from coxswain import wire
from coxswain.errors import Refused, Retryable, Stale
from coxswain.planlog import manifest_key
from coxswain_coordinator.planning.plan_log import PlanLog
from tests.unit.coordinator_fakes import store_of
from tests.unit.coordinator_lead import ORPHAN, RIVALS, Lead, leading, newer_generation, small, takeover, training
from tests.unit.test_coordinator_checkpoints import manifest, store_with

pytestmark = pytest.mark.looptime


async def test_steps_checkpoints_and_the_next_world_do_not_wait_for_garbage(tmp_path):
    async with training(small(tmp_path, stop_steps=30)) as lead:
        over = lead.executor.held["collect"] = asyncio.Event()
        for step in (3, 6, 9, 12):  # behind 8: plans are committed meanwhile
            await lead.close(step - 3, step - 2, step - 1)
            lead.save(step, 0, 1)
            await lead.until(lambda step=step: lead.state.manifest and lead.state.manifest.step == step)
        assert len(lead.keys("manifests/")) == 4
        lead.leave(-9, 1)
        lead.arrive()
        await lead.world(2)
        over.set()
        await lead.until(lambda: len(lead.keys("manifests/")) == 1)


async def test_an_error_of_a_collection_ends_the_coordinator_as_one_in_the_driver_does(tmp_path):
    async with training(small(tmp_path)) as lead:
        lead.executor.before["collect"] = refuse_as(Stale("another coordinator has taken over"))
        await lead.close(0, 1, 2)
        lead.save(3, 0, 1)
        with pytest.raises(Stale, match="taken over"):
            await lead.work


@RIVALS
async def test_a_collection_of_a_superseded_coordinator_ends_with_the_checkpoint_that_it_is_dropping(tmp_path, rival):
    """The next coordinator's ranks may save shards of the same content again."""
    async with training(small(tmp_path, stop_steps=30)) as lead:
        over = lead.executor.held["collect"] = asyncio.Event()
        for step in (3, 6, 9):
            await lead.saved(step)
        rival(lead.store, lead.state.session.record)
        over.set()
        with pytest.raises(Stale, match="another coordinator has"):
            await lead.work
        assert lead.keys("manifests/") == [manifest_key(6), manifest_key(9)]


def refuse_as(error: Exception) -> Callable[[], None]:
    def refuse() -> None:
        raise error

    return refuse


async def test_a_shard_that_a_save_under_way_shares_with_a_dropped_checkpoint_stays(tmp_path):
    async with training(small(tmp_path)) as lead:
        await lead.saved(3, key="same")
        await lead.close(3, 4, 5)
        lead.save(8, 0, key="same")
        lead.save(6, 0, 1, key="other")
        await lead.until(lambda: lead.keys("manifests/") == ["manifests/step-0000000006.json"])
        assert lead.keys("shards/") == ["shards/other.safetensors", "shards/same.safetensors"]


async def test_a_shard_that_the_next_world_saves_again_while_a_collection_waits_stays(tmp_path):
    async with training(small(tmp_path)) as lead:
        await lead.saved(3, key="same")
        await lead.close(3, 4, 5)
        over = lead.executor.held["collect"] = asyncio.Event()
        lead.save(6, 0, 1, key="other")
        await lead.until(lambda: lead.state.manifest.step == 6)
        lead.leave(-9, 1)
        lead.arrive()
        await lead.world(2)
        lead.save(8, 0, key="same")
        over.set()
        await lead.until(lambda: lead.keys("manifests/") == ["manifests/step-0000000006.json"])
        await asyncio.sleep(1)
        assert lead.keys("shards/") == ["shards/other.safetensors", "shards/same.safetensors"]


async def collecting(lead) -> asyncio.Event:
    """A collection has begun, and goes on once this is set."""
    await lead.saved(3)
    await lead.close(3, 4, 5)
    over = lead.executor.held["collect"] = asyncio.Event()
    lead.save(6, 0, 1, key="other")
    await lead.until(lambda: lead.state.manifest.step == 6)
    await asyncio.sleep(1)
    return over


def of_a_worker(lead: Lead) -> None:
    lead.state.fail(wire.Fault("WorkerCrashLoop", ""))
    lead.state.notifier.notify()


def of_the_driver(lead: Lead) -> None:
    lead.executor.before["last_generation"] = refuse_as(Refused("TornPlanLog", ""))
    lead.leave(-9, 1)
    lead.arrive()


@pytest.mark.parametrize("fault", [of_a_worker, of_the_driver])
async def test_the_end_of_a_job_waits_for_the_collection_under_way(tmp_path, fault):
    async with training(small(tmp_path)) as lead:
        over = await collecting(lead)
        fault(lead)
        await asyncio.sleep(1)
        assert not lead.work.done()
        over.set()
        assert (await lead.work).exit_code == 2
        assert lead.keys("manifests/") == ["manifests/step-0000000006.json"]


async def test_a_coordinator_that_is_ended_leaves_no_collection_that_goes_on(tmp_path):
    async with training(small(tmp_path)) as lead:
        over = await collecting(lead)
        lead.work.cancel()
        await asyncio.wait({lead.work})
        over.set()
        await asyncio.sleep(1)
        assert len(lead.keys("manifests/")) == 2


@pytest.mark.parametrize("retryable", [True, False])
async def test_a_failed_job_deletes_no_shard(tmp_path, retryable):
    async with training(small(tmp_path)) as lead:
        lead.store.put(ORPHAN, b"x")
        lead.state.fail(wire.Fault("WorkerCrashLoop", "", retryable=retryable))
        lead.state.notifier.notify()
        assert (await lead.work).exit_code == (1 if retryable else 2)
        assert ORPHAN in lead.keys("shards/")


async def test_a_suspended_job_drops_orphans(tmp_path):
    async with training(small(tmp_path)) as lead:
        await lead.close(0, 1, 2)
        lead.state.request_stop(wire.StopRequest("suspend"))
        lead.save(3, 0, 1, end="Suspended")
        lead.store.put(ORPHAN, b"x")
        assert (await lead.work).exit_code == 3
        assert ORPHAN not in lead.keys("shards/")


@pytest.mark.parametrize("error", [Refused("Denied", ""), Retryable("the store is away"), Stale("taken over")])
async def test_a_good_end_stays_one_although_garbage_cannot_be_collected(tmp_path, error):
    def refuse() -> None:
        raise error

    job = small(tmp_path)
    store_with(job, manifest(job, 8))
    async with leading(job) as lead:
        lead.executor.before["collect_garbage"] = refuse
        assert (await lead.work).reason == "StopReached"


async def test_a_completed_job_that_is_started_again_drops_orphans_without_a_world(tmp_path):
    job = small(tmp_path)
    store_with(job, manifest(job, 8)).put(ORPHAN, b"x")
    async with leading(job) as lead:
        assert await lead.work == wire.Finished(0, "StopReached", "completed 8 steps")
        assert lead.keys("shards/") == []


async def test_a_last_checkpoint_that_comes_before_a_coordinators_first_world_ends_the_job_without_one(tmp_path):
    """The coordinator before may make it while this one waits for trainers."""
    job = small(tmp_path)
    async with leading(job) as lead:
        lead.index()
        await lead.until(lambda: lead.state.index_progress.index)
        store_with(job, manifest(job, 8))
        lead.arrive()
        assert await asyncio.wait_for(lead.work, 60) == wire.Finished(0, "StopReached", "completed 8 steps")
        assert lead.keys("log/generations/") == []


async def test_only_the_first_world_of_a_coordinator_drops_orphans(tmp_path):
    job = small(tmp_path)
    store_of(job).put(ORPHAN, b"x")
    async with training(job) as lead:
        assert lead.keys("shards/") == []
        lead.save(3, 0)
        lead.state.mark_world_lost("rank 1 ended")
        lead.arrive()
        await lead.world(2)
        assert lead.keys("shards/") == ["shards/3-0.safetensors"]


@RIVALS
@pytest.mark.parametrize("late", [False, True], ids=["before the stop", "while it ends"])
async def test_a_superseded_coordinator_that_had_no_world_deletes_nothing_at_its_end(tmp_path, rival, late):
    """Shards without a manifest are those that the other's world saves now."""
    job = small(tmp_path)
    async with training(job) as first:
        record = first.state.session.record
        takeover(first.store, record)
    async with leading(job, "two") as lead:
        lead.index()
        await lead.until(lambda: lead.state.index_progress.index)
        lead.store.put(ORPHAN, b"x")
        if late:
            lead.executor.before["collect_garbage"] = lambda: rival(lead.store, record)
        else:
            rival(lead.store, record)
        lead.state.request_stop(wire.StopRequest("suspend"))
        with nullcontext() if late else pytest.raises(Stale, match="another coordinator has"):
            assert (await lead.work).exit_code == 3
        assert ORPHAN in lead.keys("shards/")


async def test_a_coordinator_without_a_world_drops_orphans_at_its_end_behind_the_takeovers_before_it(tmp_path):
    job = small(tmp_path)
    async with training(job) as first:
        takeover(first.store, first.state.session.record)
    async with leading(job, "two") as lead:
        lead.index()
        lead.store.put(ORPHAN, b"x")
        lead.state.request_stop(wire.StopRequest("suspend"))
        assert (await lead.work).exit_code == 3
        assert ORPHAN not in lead.keys("shards/")


async def test_a_coordinator_that_is_stopped_before_it_collects_orphans_deletes_none_of_the_next_world(tmp_path):
    async with leading(small(tmp_path)) as lead:
        goes_on = lead.executor.held["collect_orphans"] = asyncio.Event()
        lead.index()
        lead.arrive()
        await asyncio.sleep(1)
        newer_generation(lead.store, PlanLog(lead.store).generation(1))
        lead.store.put(ORPHAN, b"x")
        goes_on.set()
        with pytest.raises(Stale, match="another coordinator has created generation 2"):
            await lead.work
        assert ORPHAN in lead.keys("shards/")


async def test_a_run_that_goes_on_behind_a_long_stop_changes_nothing_of_the_run_that_has_taken_over(tmp_path):
    job = small(tmp_path)
    async with training(job) as first, leading(job, "two") as second:
        await first.close(0, 1, 2)
        second.index()
        second.arrive(left=1)
        await second.world(2)
        await second.saved(3)
        second.save(6, 0)
        before = {o.path: o.etag for o in first.store.list()}
        first.save(3, 0, 1, key="late")
        with pytest.raises(Stale, match="another coordinator has created generation 2"):
            await first.work
        after = {o.path: o.etag for o in first.store.list() if "late" not in o.path}
        assert after == before
