"""A coordinator that another one has superseded writes nothing, and enters no world that it has not claimed."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from coxswain import wire
from coxswain.errors import Stale
from coxswain.exits import Exit
from coxswain.planlog import takeover_key
from coxswain_coordinator.planning.plan_log import PlanLog
from coxswain_link.store import StoreUnavailable
from tests.unit.coordinator_fakes import make_job, store_of
from tests.unit.coordinator_lead import (
    ORPHAN,
    RIVALS,
    Lead,
    beaten_to_a_takeover,
    holds,
    leading,
    newer_generation,
    one_replica,
    register,
    small,
    suspend,
    training,
)
from tests.unit.coordinator_samples import session

pytestmark = pytest.mark.looptime


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
        await lead.saved(3, end="Completed")
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


def test_a_coordinator_that_has_read_a_generation_is_fenced_by_later_takeovers_alone(tmp_path):
    """It may be the third one of a generation: the takeover of the second says nothing of it."""
    job = make_job(tmp_path)
    store = store_of(job)
    first, second, third = (PlanLog(store) for _ in range(3))
    assert first.create_generation(session(job).record) and second.take_over(1, "second")
    assert third.read_held() == 1
    third.check_held()
    with pytest.raises(Stale, match="taken over generation 1"):
        first.check_held()
    assert PlanLog(store).take_over(1, "fourth")
    for each in (second, third):
        with pytest.raises(Stale, match="taken over generation 1"):
            each.check_held()


def test_a_coordinator_whose_takeover_came_second_holds_nothing(tmp_path):
    job = make_job(tmp_path)
    store, slow = store_of(job), store_of(job)
    assert PlanLog(store).create_generation(session(job).record) and PlanLog(store).take_over(1, "first")
    slow.list = lambda prefix="": []  # it looked before the first one
    late = PlanLog(slow)
    assert not late.take_over(1, "second")
    with pytest.raises(Stale):
        late.check_held()


def test_what_still_looks_at_the_generation_before_is_fenced_by_that_of_its_own_coordinator(tmp_path):
    """A planner's thread may commit for the last world when the next one begins; a rival's next world ends both."""
    job = make_job(tmp_path)
    store, record = store_of(job), session(job).record
    log = PlanLog(store)
    assert log.create_generation(record) and log.create_generation(replace(record, generation=2))
    log.check_current(1)
    assert PlanLog(store).create_generation(replace(record, generation=3))
    with pytest.raises(Stale, match="created generation 3"):
        log.check_current(1)


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
        beaten_to_a_takeover(lead, record, goes_on=False)
        lead.index()
        lead.arrive(generation=1)
        await lead.world()
        assert lead.keys("log/takeovers/") == [takeover_key(1, 1), takeover_key(1, 2)]


async def test_a_world_that_the_winner_of_a_takeover_has_left_already_is_not_taken_over_again(tmp_path):
    async with training(small(tmp_path)) as first:
        record = first.state.session.record
    async with leading(small(tmp_path), "two") as lead:
        beaten_to_a_takeover(lead, record, goes_on=True)
        lead.index()
        lead.arrive(generation=1)
        await lead.until(lambda: lead.state.session)
        assert (lead.state.generation, lead.keys("log/takeovers/")) == (3, [takeover_key(1, 1)])


@RIVALS
async def test_a_superseded_coordinator_records_nothing_of_a_world_that_could_go_on_from_memory(tmp_path, rival):
    async with training(small(tmp_path)) as lead:
        await lead.close(0, 1, 2, 3)
        rival(lead.store, lead.state.session.record)
        before = lead.keys("log/")
        lead.state.mark_world_lost("the network broke")
        register(lead, *holds(lead, 4))
        with pytest.raises(Stale, match="another coordinator has"):
            await lead.work
        assert (lead.keys("steps/"), lead.keys("log/")) == ([], before)


def hang(lead: Lead) -> None:
    """A rank sends its heartbeats to the other coordinator."""
    lead.driver.stall_detector.judge = lambda *_: "rank 1 on trainer-1 has been silent for 31 s"
    lead.state.notifier.notify()


def change(lead: Lead) -> None:
    lead.state.request_layout(one_replica(), "trainer-1 is slow")


@RIVALS
@pytest.mark.parametrize("decide", [hang, change, suspend])
async def test_a_superseded_coordinator_looks_at_its_fence_before_it_ends_a_world_that_may_be_its_successors(
    tmp_path, looptime, rival, decide
):
    """Before, workers that still reached it left that world, or their agents made them leave it."""
    async with training(small(tmp_path)) as lead:
        await lead.close(0)
        session, began = lead.state.session, float(looptime)
        rival(lead.store, session.record)
        decide(lead)
        with pytest.raises(Stale, match="another coordinator has"):
            await asyncio.wait_for(lead.work, 60)
        assert (session.lost, session.move, float(looptime) - began < 2) == ("", None, True)


@RIVALS
async def test_a_superseded_coordinator_whose_world_is_lost_ends_no_job(tmp_path, rival):
    """Before, it answered every call with the end of the job at its own last checkpoint, and workers exited."""
    async with training(small(tmp_path)) as lead:
        await lead.saved(3)
        rival(lead.store, lead.state.session.record)
        lead.state.mark_world_lost("the network broke")
        lead.state.stop = wire.StopRequest("suspend")
        lead.state.notifier.notify()
        with pytest.raises(Stale, match="another coordinator has"):
            await lead.work
        assert lead.state.finished is None


async def test_a_stop_of_a_lost_world_that_is_saved_ends_the_job_also_while_the_store_is_away(tmp_path, monkeypatch):
    """What a user stops never counts: the coordinator ended as after a failure, since it could not look at its fence."""

    def away(self: PlanLog, generation: int) -> None:
        raise StoreUnavailable("the store is away")

    async with training(small(tmp_path)) as lead:
        await lead.saved(3)
        monkeypatch.setattr(PlanLog, "check_current", away)
        lead.state.mark_world_lost("the network broke")
        lead.state.request_stop(wire.StopRequest("suspend"))
        await asyncio.wait_for(lead.until(lambda: lead.state.finished), 60)
        assert lead.state.finished.exit_code == Exit.STOPPED
