"""The driver without sockets, in virtual time: what it must not write, drop or enter, and when it waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from coxswain import wire
from coxswain.config import CheckpointConfig, JobConfig
from coxswain.digests import tokens_digest
from coxswain.errors import Refused, Retryable, Stale
from coxswain.planlog import takeover_key
from coxswain_coordinator.driver import LONGEST_ACTION, Driver
from coxswain_coordinator.planning.placers import place_step
from coxswain_coordinator.planning.plan_log import PlanLog
from coxswain_coordinator.state.job_state import JobState
from coxswain_link.metrics import build
from coxswain_link.store import Store
from tests.unit.coordinator_fakes import BLOCKS, block_of, make_job, report_of, store_of, tokens_of
from tests.unit.crash_simulation import InTurn
from tests.unit.test_coordinator_checkpoints import manifest, shard, store_with
from tests.unit.test_coordinator_parts import agents

pytestmark = pytest.mark.looptime

ORPHAN = "shards/orphan.safetensors"


class HookedExecutor(InTurn):
    """Runs `before[name]` once, right before the store work of that name; that of `held[name]` waits for the event."""

    def __init__(self) -> None:
        super().__init__()
        self.before: dict[str, Callable[[], Any]] = {}
        self.held: dict[str, asyncio.Event] = {}

    async def __call__(self, work, *args, **kwargs):
        self.before.pop(work.__name__, lambda: None)()
        if work.__name__ in self.held:
            await self.held[work.__name__].wait()
        return await super().__call__(work, *args, **kwargs)


class Lead:
    """One coordinator's state and driver; the test sends what members would send."""

    def __init__(self, job: JobConfig, author: str) -> None:
        self.job, self.store = job, store_of(job)
        self.state = JobState(job, build("coordinator"), None, lambda: 0.0)
        self.state.store_executor = self.executor = HookedExecutor()
        self.driver = Driver(self.state, self.store, place_step, author)
        self.work: asyncio.Task[wire.Finished] = asyncio.create_task(self.driver.drive())

    def index(self) -> None:
        """The loader registers and indexes its shares."""
        self.state.register(wire.Register("loader", "loader-0", "pod", "one", "h", 7))
        for share in self.state.index_progress.shares:
            blocks = tuple(block_of(share.source, b) for b in range(BLOCKS))
            self.state.add_indexed(wire.Indexed(share, blocks, "tokenizer", 257))

    def arrive(self, **changes: Any) -> list[wire.Registered]:
        """Every trainer registers."""
        return [self.state.register(replace(agent, **changes)) for agent in agents(self.job.trainers)]

    async def world(self, generation: int = 1) -> None:
        """Waits until a world of this generation has committed plans."""
        await self.until(lambda: self.state.generation == generation and self.state.session.committed > 0)

    async def until(self, holds: Callable[[], Any]) -> None:
        assert await self.state.notifier.wait_until(holds, 60)

    async def close(self, *steps: int) -> None:
        """Every rank reports these steps, and constructors deliver their digests."""
        session = self.state.session
        for step in steps:
            plan = session.plans_from(step).plans[0]
            for seat in session.world.seats:
                self.state.add_report(report_of(plan, seat.rank, seat.replica))
            served = tuple((i, tokens_digest(tokens_of(s))) for i, s in enumerate(plan.sequences))
            self.state.add_delivered(wire.DeliveredDigests(plan.generation, step, served))
        await self.until(lambda: session.book.open > steps[-1])

    def save(self, step: int, *ranks: int, key: str = "", end: str = "") -> None:
        for rank in ranks:
            found = shard(key or f"{step}-{rank}")
            self.store.put(found.key, b"1234")
            self.state.add_saved(wire.ShardsSaved(self.state.generation, step, rank, 2, (found,), 0.1, end))

    def leave(self, code: int, *ranks: int) -> None:
        for rank in ranks or range(2):
            self.state.add_exit(wire.WorkerExit(self.state.generation, f"trainer-{rank}", 0, rank, code))

    def keys(self, prefix: str) -> list[str]:
        return [found.path for found in self.store.list(prefix)]


@asynccontextmanager
async def leading(job: JobConfig, author: str = "one") -> AsyncIterator[Lead]:
    lead = Lead(job, author)
    try:
        yield lead
    finally:
        lead.work.cancel()
        await asyncio.gather(lead.work, return_exceptions=True)


@asynccontextmanager
async def training(job: JobConfig) -> AsyncIterator[Lead]:
    """A coordinator with its first world."""
    async with leading(job) as lead:
        lead.index()
        lead.arrive()
        await lead.world()
        yield lead


def small(folder, **changes: Any) -> JobConfig:
    """Eight steps: one segment of the plan log holds them, so no commit comes after the first."""
    checkpoint = CheckpointConfig(uri=f"file://{folder}/store", every_steps=3, keep_last=1)
    return make_job(folder, **{"stop_steps": 8, "checkpoint": checkpoint} | changes)


def newer_generation(store: Store, record) -> None:
    assert PlanLog(store).create_generation(replace(record, generation=record.generation + 1, author="rival"))


def takeover(store: Store, record) -> None:
    assert PlanLog(store).take_over(record.generation, "rival")


RIVALS = pytest.mark.parametrize("rival", [newer_generation, takeover])


async def test_what_still_arrives_of_a_lost_world_counts_before_the_next_one_is_formed(tmp_path):
    async with training(small(tmp_path)) as lead:
        await lead.close(0, 1, 2)
        lost = lead.state.session
        assert lost.directive(3).checkpoint
        lead.save(3, 0)
        lead.state.mark_world_lost("the network broke")
        lead.save(3, 1)
        await lead.close(3)
        lead.arrive(left=1)
        await lead.world(2)
        assert (lost.saved, lost.book.open, lead.state.session.record.first_step) == (3, 4, 3)


# --- fences ----------------------------------------------------------------------------------------------------------


@RIVALS
async def test_a_superseded_coordinator_creates_no_manifest(tmp_path, rival):
    async with training(small(tmp_path)) as lead:
        await lead.close(0, 1, 2)
        rival(lead.store, lead.state.session.record)
        lead.save(3, 0, 1)
        with pytest.raises(Stale, match="another coordinator has"):
            await lead.work
        assert lead.keys("manifests/") + lead.keys("steps/") == []


@RIVALS
async def test_a_superseded_coordinator_records_no_step_lines(tmp_path, rival):
    async with training(small(tmp_path)) as lead:
        lead.state.history.most_unsaved = 4
        await lead.close(0, 1, 2)
        rival(lead.store, lead.state.session.record)
        await lead.close(3)
        with pytest.raises(Stale, match="another coordinator has"):
            await lead.work
        assert lead.keys("steps/") == []


@RIVALS
async def test_a_superseded_coordinator_creates_no_world_that_begins_at_a_checkpoint(tmp_path, rival):
    async with training(small(tmp_path)) as lead:
        await lead.close(0, 1)
        rival(lead.store, lead.state.session.record)
        before = lead.keys("log/")
        lead.state.mark_world_lost("the network broke")
        lead.arrive()
        await lead.until(lambda: lead.work.done() or lead.state.generation > 1)
        assert (lead.keys("log/"), lead.state.generation) == (before, 1)
        with pytest.raises(Stale, match="another coordinator has"):
            await lead.work


@RIVALS
async def test_a_coordinator_superseded_after_its_last_manifest_deletes_nothing(tmp_path, rival):
    async with training(small(tmp_path, stop_steps=3)) as lead:
        await lead.close(0, 1, 2)
        lead.save(3, 0, 1, end="Completed")
        await lead.until(lambda: lead.state.manifest)
        rival(lead.store, lead.state.session.record)
        lead.store.put(ORPHAN, b"x")
        lead.leave(0)
        assert (await lead.work).exit_code == 0
        assert ORPHAN in lead.keys("shards/")


async def test_a_created_generation_is_fenced_against_its_first_takeover_whatever_was_taken_over_before(tmp_path):
    store = store_of(small(tmp_path))
    async with training(small(tmp_path)) as lead:
        record = lead.state.session.record
    log = PlanLog(store)
    assert log.take_over(record.generation, "rival")
    assert log.create_generation(replace(record, generation=2))
    log.check_current(2)
    assert PlanLog(store).take_over(2, "three")
    with pytest.raises(Stale, match="taken over generation 2"):
        log.check_current(2)


# --- checkpoints -----------------------------------------------------------------------------------------------------


async def test_metrics_hold_the_last_committed_step_and_the_last_checkpoint(tmp_path):
    async with training(small(tmp_path)) as lead:
        await lead.close(0, 1, 2)
        lead.save(3, 0, 1)
        await lead.until(lambda: lead.state.manifest)
        for line in (b"coxswain_committed_step 7.0", b"coxswain_checkpoint_step 3.0", b"coxswain_world_generation 1.0"):
            assert line in lead.state.metrics.exposition()


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


async def test_the_world_after_a_hang_asks_agents_for_stacks_and_the_one_after_a_crash_does_not(tmp_path):
    async with training(small(tmp_path)) as lead:
        why = "step 1 has not ended for 61 s (limit 60 s); not done by rank 1 on trainer-1"
        lead.driver._stall_detector.judge = lambda *_: why if lead.state.generation == 1 else ""
        await lead.until(lambda: lead.state.session.lost)
        assert (lead.state.failures, lead.state.session.lost.startswith(why)) == (1, True)
        assert lead.arrive(generation=1) == [wire.Registered(1, lost=1, stacks=True)] * 2
        lead.arrive(left=1)
        await lead.world(2)
        lead.leave(-9, 1)
        assert lead.arrive(generation=2) == [wire.Registered(2, lost=2)] * 2
        lead.arrive(left=2)
        await lead.world(3)
        assert lead.state.failures == 2


def refuse_as(error: Exception) -> Callable[[], None]:
    def refuse() -> None:
        raise error

    return refuse


async def test_a_shard_that_a_save_under_way_shares_with_a_dropped_checkpoint_stays(tmp_path):
    async with training(small(tmp_path)) as lead:
        await lead.close(0, 1, 2)
        lead.save(3, 0, 1, key="same")
        await lead.until(lambda: lead.state.manifest)
        await lead.close(3, 4, 5)
        lead.save(8, 0, key="same")
        lead.save(6, 0, 1, key="other")
        await lead.until(lambda: lead.keys("manifests/") == ["manifests/step-0000000006.json"])
        assert lead.keys("shards/") == ["shards/other.safetensors", "shards/same.safetensors"]


async def test_a_shard_that_the_next_world_saves_again_while_a_collection_waits_stays(tmp_path):
    async with training(small(tmp_path)) as lead:
        await lead.close(0, 1, 2)
        lead.save(3, 0, 1, key="same")
        await lead.until(lambda: lead.state.manifest)
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


async def test_a_save_that_comes_before_its_last_step_is_closed_waits_for_the_digest(tmp_path):
    async with training(small(tmp_path)) as lead:
        await lead.close(0, 1)
        lead.save(3, 0, 1)
        await asyncio.sleep(3)
        assert (lead.keys("manifests/"), lead.work.done()) == ([], False)
        await lead.close(2)
        digest = lead.state.session.book.stream_digests[3]
        await lead.until(lambda: lead.state.manifest)
        assert (lead.state.manifest.step, lead.state.manifest.stream_digest) == (3, digest)


async def test_a_checkpoint_is_not_made_while_a_rank_has_not_saved(tmp_path):
    async with training(small(tmp_path)) as lead:
        await lead.close(0, 1, 2)
        lead.save(3, 0)
        await lead.close(3, 4)
        assert lead.keys("manifests/") == []


async def test_a_save_of_a_step_whose_manifest_is_made_counts_for_nothing(tmp_path):
    async with training(small(tmp_path)) as lead:
        await lead.close(0, 1, 2)
        lead.save(3, 0, 1)
        await lead.until(lambda: lead.state.manifest)
        lead.save(3, 0, key="late")
        assert lead.state.session.pending.pending_keys() == set()


async def test_a_job_over_another_index_than_its_checkpoint_ends_before_its_world(tmp_path):
    job = small(tmp_path)
    store_with(job, manifest(job, 3))
    async with leading(job) as lead:
        lead.index()
        lead.arrive()
        finished = await lead.work
        assert (finished.exit_code, finished.reason) == (2, "SourceChanged")
        assert lead.keys("log/") == []


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


async def test_the_first_of_two_faults_ends_the_job(tmp_path):
    job = small(tmp_path)
    store_with(job, manifest(job, 3))  # of another index
    async with leading(job) as lead:
        lead.executor.before["merge"] = lambda: lead.state.fail(wire.Fault("First", ""))
        lead.index()
        assert (await lead.work).reason == "First"


async def test_a_completed_job_that_is_started_again_drops_orphans_without_a_world(tmp_path):
    job = small(tmp_path)
    store_with(job, manifest(job, 8)).put(ORPHAN, b"x")
    async with leading(job) as lead:
        assert await lead.work == wire.Finished(0, "StopReached", "completed 8 steps")
        assert lead.keys("shards/") == []


# --- worlds ----------------------------------------------------------------------------------------------------------


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


async def test_a_lost_world_is_replaced_once_all_of_its_workers_have_left_it(tmp_path):
    async with training(small(tmp_path)) as lead:
        lead.state.mark_world_lost("rank 1 ended")
        assert lead.arrive(generation=1) == [wire.Registered(1, lost=1)] * 2
        assert lead.state.registry.missing("trainer", 2)
        lead.arrive(left=1)
        await lead.world(2)
        assert not lead.state.session.adopted


async def test_a_world_is_adopted_only_with_every_trainer_in_it(tmp_path):
    async with training(small(tmp_path)):
        pass
    async with leading(small(tmp_path), "two") as lead:
        lead.index()
        one, two = agents(2)
        lead.state.register(replace(one, generation=1))
        lead.state.register(two)
        await lead.until(lambda: lead.state.session and lead.state.session.lost)
        assert lead.state.register(replace(one, generation=1)).lost == 1
        lead.state.register(replace(one, left=1))
        await lead.world(2)
        assert not lead.state.session.adopted


@pytest.mark.parametrize(("work", "generation"), [("create_generation", 0), ("take_over", 1)])
async def test_a_trainer_that_is_replaced_while_its_world_is_claimed_gets_the_next_one_at_once(
    tmp_path, looptime, work, generation
):
    async with training(small(tmp_path)):
        pass
    async with leading(small(tmp_path), "two") as lead:
        new = replace(agents(2)[1], instance="two", pod="new")
        lead.executor.before[work] = lambda: lead.state.register(new)
        lead.index()
        lead.arrive(generation=generation)
        await lead.until(lambda: lead.state.session)
        if generation:
            lead.state.register(replace(agents(2)[0], left=1))
            await lead.until(lambda: lead.state.generation == 2)
        assert lead.state.session.record.trainers == ("pod-0", "new")
        assert looptime == 0
        assert not lead.state.session.adopted


@pytest.mark.parametrize(("work", "generation"), [("create_generation", 0), ("take_over", 1)])
async def test_a_trainer_that_loses_its_world_while_it_is_claimed_has_to_register_again(tmp_path, work, generation):
    async with training(small(tmp_path)):
        pass
    async with leading(small(tmp_path), "two") as lead:
        lead.executor.before[work] = lambda: lead.state.registry.expect_again("trainer")
        lead.index()
        lead.arrive(generation=generation)
        await lead.until(lambda: lead.state.registry.missing("trainer", 2))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(lead.work), 5)
        assert lead.state.session is None


async def test_a_generation_that_another_coordinator_claims_first_is_not_entered(tmp_path):
    async with training(small(tmp_path)) as first:
        record = first.state.session.record
    async with leading(small(tmp_path), "two") as lead:
        lead.executor.before["create_generation"] = lambda: newer_generation(lead.store, record)
        lead.index()
        lead.arrive()
        await lead.until(lambda: lead.state.session)
        assert lead.state.generation == 3


async def test_a_takeover_that_another_coordinator_wins_is_not_entered(tmp_path):
    async with training(small(tmp_path)) as first:
        record = first.state.session.record
    async with leading(small(tmp_path), "two") as lead:
        listed = lead.store.list

        def lose() -> None:
            """The rival takes over after our listing and before our claim."""

            def stale(prefix: str = "") -> Any:
                lead.store.list = listed
                return []

            takeover(lead.store, record)
            lead.store.list = stale

        lead.executor.before["take_over"] = lose
        lead.index()
        lead.arrive(generation=1)
        await lead.world()
        assert lead.keys("log/takeovers/") == [takeover_key(1, 1), takeover_key(1, 2)]


# --- waits -----------------------------------------------------------------------------------------------------------


async def test_a_saved_end_waits_until_every_worker_has_left(tmp_path, looptime):
    async with training(small(tmp_path, stop_steps=3)) as lead:
        await lead.close(0, 1, 2)
        lead.save(3, 0, 1, end="Completed")
        await lead.until(lambda: lead.state.manifest)
        began = float(looptime)
        for rank, seconds in ((0, 3), (1, 7)):
            asyncio.get_running_loop().call_later(seconds, lead.leave, 0, rank)
        assert (await lead.work).reason == "StopReached"
        assert float(looptime) - began == 7


async def test_workers_that_do_not_leave_hold_the_end_up_for_half_a_minute(tmp_path, looptime):
    async with training(small(tmp_path, stop_steps=3)) as lead:
        await lead.close(0, 1, 2)
        lead.save(3, 0, 1, end="Completed")
        await lead.until(lambda: lead.state.manifest)
        began = float(looptime)
        assert (await lead.work).reason == "StopReached"
        assert float(looptime) - began == 30


@pytest.mark.parametrize(("acks", "seconds"), [(3, 0), (2, 5)])
async def test_the_end_is_answered_until_every_service_has_it_or_five_seconds_are_over(
    tmp_path, looptime, acks, seconds
):
    async with training(small(tmp_path)) as lead:
        for _ in range(acks):
            lead.driver.ack_end()
        began = float(looptime)
        await lead.driver.drain()
        assert float(looptime) - began == seconds


# --- messages --------------------------------------------------------------------------------------------------------

MESSAGES = {
    "report": lambda state, g: state.add_report(wire.StepReport(g, 0, 0, 1.0, 0, 1.0, 1e-3, 1.0, 1.0, 0.0, 0.0)),
    "delivered": lambda state, g: state.add_delivered(wire.DeliveredDigests(g, 0, ((0, "aa"),))),
    "saved": lambda state, g: state.add_saved(wire.ShardsSaved(g, 3, 0, 2, (shard("a"),), 0.1, "Completed")),
    "heartbeat": lambda state, g: state.heartbeat(g, 0),
}


@pytest.mark.parametrize("message", MESSAGES)
@pytest.mark.parametrize("generation", [0, 2])
async def test_a_message_of_another_generation_changes_nothing(tmp_path, message, generation):
    async with training(small(tmp_path)) as lead:
        session = lead.state.session
        plan = session.open_plan()
        with pytest.raises(Stale, match=f"generation {generation} is not the current one"):
            MESSAGES[message](lead.state, generation)
        assert session.book.missing_ranks() == [0, 1]
        assert session.book.missing_digests(plan) == len(plan.sequences)
        assert (session.pending.pending_keys(), session.ending, session.last_heard) == (set(), None, {})
        assert lead.state.fault is None


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_before_the_first_world_is_sent_again_later(tmp_path, message):
    state = JobState(small(tmp_path), build("coordinator"), None, lambda: 0.0)
    with pytest.raises(Retryable, match="there is no world yet"):
        MESSAGES[message](state, 1)


async def test_a_worker_that_ends_in_an_older_world_does_not_cost_the_current_one(tmp_path):
    async with training(small(tmp_path)) as lead:
        lead.state.mark_world_lost("rank 1 ended")
        lead.arrive()
        await lead.world(2)
        lead.state.add_exit(wire.WorkerExit(1, "trainer-0", 0, 0, 1))
        assert (lead.state.session.lost, lead.state.session.exited) == ("", {})
        lead.state.add_exit(wire.WorkerExit(1, "trainer-0", 0, 0, 2))
        assert (await lead.work).reason == "WorkerFailed"


async def test_a_heartbeat_counts_for_its_rank_and_a_constructors_for_none(tmp_path):
    async with training(small(tmp_path)) as lead:
        lead.state.heartbeat(1, -1)
        assert lead.state.session.last_heard == {}
        lead.state.heartbeat(1, 0)
        assert list(lead.state.session.last_heard) == [0]


async def test_the_first_cause_of_a_loss_counts_and_an_end_that_is_saved_is_no_loss(tmp_path):
    async with training(small(tmp_path, stop_steps=3)) as lead:
        state, session = lead.state, lead.state.session
        await lead.close(0, 1, 2)
        lead.save(3, 0, 1, end="Completed")
        await lead.until(lambda: state.manifest)
        state.mark_world_lost("too late")
        assert (session.lost, state.worlds_lost) == ("", 0)
    async with training(small(tmp_path / "other")) as lead:
        for why in ("first", "second"):
            lead.state.mark_world_lost(why)
        assert (lead.state.session.lost, lead.state.worlds_lost) == ("first", 1)


@pytest.mark.parametrize(("role", "instance"), [("trainer", "one"), ("constructor", "two")])
async def test_only_another_instance_of_a_trainer_costs_the_world(tmp_path, role, instance):
    async with training(small(tmp_path)) as lead:
        lead.state.register(wire.Register("constructor", "trainer-0", "pod-0", "one", "h", 0))
        lead.state.register(wire.Register(role, "trainer-0", "pod-0", instance, "h", 0, 1))
        assert lead.state.session.lost == ""


def test_an_exit_with_a_fault_does_not_replace_the_first_fault(tmp_path):
    state = JobState(small(tmp_path), build("coordinator"), None, lambda: 0.0)
    for reason in ("First", "Second"):
        state.add_exit(wire.WorkerExit(1, "trainer-0", 0, 0, 2, wire.Fault(reason, "")))
    assert state.fault == wire.Fault("First", "")


async def test_a_driver_whose_action_does_not_end_is_a_problem_that_only_a_restart_solves(tmp_path):
    async with leading(small(tmp_path)) as lead:
        never, reached = asyncio.Event(), asyncio.Event()

        async def hang(*_args, **_kwargs):
            reached.set()
            await never.wait()

        lead.index()
        lead.arrive()
        lead.driver._store_call = lead.driver._worlds._store_call = hang
        await asyncio.wait_for(reached.wait(), 60)
        began = time.monotonic()
        assert lead.driver.problem(began + LONGEST_ACTION - 60) == ""
        assert "has not advanced for 36" in lead.driver.problem(began + LONGEST_ACTION + 60)


async def test_a_driver_that_is_done_does_not_hang(tmp_path):
    async with leading(small(tmp_path)) as lead:
        lead.state.request_stop(wire.StopRequest("asked", -1))
        await asyncio.wait_for(lead.work, 60)
        assert lead.driver.problem(time.monotonic() + LONGEST_ACTION + 60) == ""
