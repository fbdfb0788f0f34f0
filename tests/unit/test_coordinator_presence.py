"""A lost world goes on with the trainers that are present; how long the others are waited for."""

from __future__ import annotations

import asyncio
import time

import pytest
from msgspec.structs import replace

from coxswain.layout import Device
from coxswain_coordinator.state.job_steps import heartbeat_seconds
from coxswain_coordinator.world.presence import still_leaving
from tests.unit.coordinator_fakes import make_job
from tests.unit.coordinator_lead import begun, holds, lose, moved_to, register, suspend, training
from tests.unit.coordinator_samples import agents, session

pytestmark = pytest.mark.looptime


async def test_a_trainer_that_does_not_come_back_is_planned_around_and_joins_later(tmp_path, looptime):
    job = make_job(tmp_path, trainers=2, min_trainers=1)
    async with training(job) as lead:
        await lead.close(0, 1)
        lead.state.register(replace(agents(2)[0], left=1, broken="Connection closed by peer"))
        assert "has lost its peers" in lead.state.session.lost
        register(lead, holds(lead, 2, copies=True)[0])
        await begun(lead, 2)
        assert 3 <= looptime < 5
        session = lead.state.session
        assert (session.world.trainers, len(session.world.seats), session.book.open) == (("trainer-0",), 1, 2)
        assert session.record.live.step == 2
        await lead.close(2)
        register(lead, replace(agents(2)[1], instance="two", pod="new"))
        await lead.until(lambda: session.move)
        await moved_to(lead, 3)
        assert lead.state.session.record.trainers == ("pod-0", "new")


async def test_a_trainer_that_comes_back_within_three_seconds_is_in_the_next_world(tmp_path):
    async with training(make_job(tmp_path, trainers=2, min_trainers=1)) as lead:
        await lead.close(0, 1)
        one, two = holds(lead, 2, copies=True)
        lose(lead, 1)
        register(lead, one)
        await asyncio.sleep(2.9)
        register(lead, replace(two, held=()))
        await begun(lead, 2)
        assert lead.state.session.world.trainers == ("trainer-0", "trainer-1")


@pytest.mark.parametrize(
    ("says", "late", "seconds", "seats"), [(True, 60, 60, 2), (True, 80, 70, 1), (False, 60, 3, 1)]
)
async def test_a_trainer_whose_workers_still_compute_in_the_lost_world_is_waited_for_a_minute(
    tmp_path, looptime, says, late, seconds, seats
):
    """A third one does not come back."""
    async with training(make_job(tmp_path, trainers=3, min_trainers=1)) as lead:
        await lead.close(0, 1)
        lead.state.mark_world_lost("the network broke")
        one, two, _ = agents(3)
        register(lead, replace(one, left=1))
        if says:
            register(lead, replace(two, generation=1))
        asyncio.get_running_loop().call_later(late, lead.state.register, replace(two, left=1))
        assert await lead.state.notifier.wait_until(lambda: lead.state.generation == 2, 200)
        assert (len(lead.state.session.world.seats), round(float(looptime))) == (seats, seconds)
        lead.state.mark_world_lost("the network broke again")
        register(lead, replace(one, left=2))
        await begun(lead, 3)
        assert round(float(looptime)) == seconds + 3


@pytest.mark.parametrize(
    ("silent", "stop", "seconds"), [(31, False, 3), (29, False, 70), (31, True, 15), (29, True, 70)]
)
async def test_a_trainer_that_ends_while_its_workers_leave_is_waited_for_like_one_that_is_lost(
    tmp_path, looptime, silent, stop, seconds
):
    """Its workers end with it. Before, the next world and a stop waited 70 s for it."""
    async with training(make_job(tmp_path, min_trainers=1 + stop)) as lead:
        await lead.close(0, 1)
        lead.state.mark_world_lost("the network broke")
        register(lead, holds(lead, 2)[0], replace(agents(2)[1], generation=1))
        lead.state.session.last_heard = {0: time.monotonic() + 999, 1: time.monotonic() - silent}
        if stop:
            suspend(lead)
        assert await lead.state.notifier.wait_until(lambda: lead.state.finished or lead.state.generation == 2, 200)
        assert round(float(looptime)) == seconds


@pytest.mark.parametrize(
    ("heard", "may_run"),
    [({0: 0.0, 1: 0.0}, False), ({0: 5.0, 1: 0.0}, True), ({0: 0.0, 1: 5.0}, True), ({0: 0.0}, True), ({}, True)],
)
def test_an_agent_may_run_as_long_as_any_of_its_workers_is_heard_or_has_not_been_heard_at_all(tmp_path, heard, may_run):
    found = session(make_job(tmp_path)).world
    seats = tuple(replace(seat, device=Device(0, seat.rank)) for seat in found.seats)
    assert still_leaving(["trainer-0"], replace(found, seats=seats), heard, 31.0) == frozenset(["trainer-0"] * may_run)


@pytest.mark.parametrize("stops", [False, True])
async def test_a_trainer_on_standby_has_no_workers_that_leave_so_what_follows_does_not_wait_for_its_next_registration(
    tmp_path, looptime, stops
):
    """Before, its agent had the order to leave: where it ended before it registered again, the next world waited 70 s for it."""
    policy = replace(make_job(tmp_path).parallelism, pipeline=2)
    async with training(make_job(tmp_path, trainers=3, min_trainers=2, parallelism=policy)) as lead:
        await lead.close(0, 1)
        assert lead.state.session.world.layout.standby == (Device(2, 0),)
        lead.state.mark_world_lost("the network broke")
        *working, aside = agents(3)
        assert lead.state.register(replace(aside, generation=1)).lost == 0
        if stops:
            register(lead, *(replace(agent, left=1) for agent in working))
            suspend(lead)
            assert (await lead.work).reason == "Suspended"
        else:
            register(lead, *holds(lead, 2))
            await begun(lead, 2)
            assert lead.state.session.world.trainers == ("trainer-0", "trainer-1", "trainer-2")
            assert (lead.state.session.record.live.step, lead.state.session.record.layout.standby) == (
                2,
                (Device(2, 0),),
            )
        assert float(looptime) < 1


async def test_a_trainer_of_an_earlier_world_leaves_it_whether_or_not_it_works_in_the_present_one(tmp_path):
    async with training(make_job(tmp_path, trainers=2, min_trainers=1)) as lead:
        await lead.close(0, 1)
        lose(lead, 1)
        register(lead, holds(lead, 2, copies=True)[0])
        await begun(lead, 2)
        assert lead.state.register(replace(agents(2)[1], generation=1)).lost == 1
        assert lead.state.register(replace(agents(2)[0], generation=1)).lost == 1


def test_a_heartbeat_behind_a_pause_does_not_count_as_a_later_one(tmp_path):
    found = session(make_job(tmp_path))
    found.last_heard = {0: 10.0, 1: 39.0}
    found.forgive(40.0, 20.0)
    assert found.last_heard == {0: 30.0, 1: 40.0}


def test_a_message_that_counts_as_a_heartbeat_takes_back_no_progress_of_its_rank(tmp_path):
    found = session(make_job(tmp_path))
    found.hear(0, 1.0, 5)
    found.hear(0, 2.0, 0)
    assert (found.progress, found.last_heard) == (5, {0: 2.0})


@pytest.mark.parametrize(("ranks", "seconds"), [(85, 0.0), (102, 1.2), (170, 2.0), (100_000, 12.0)])
def test_ranks_of_a_large_world_send_some_85_heartbeats_a_second_together(ranks, seconds):
    assert heartbeat_seconds(ranks) == pytest.approx(seconds)


async def test_without_a_least_number_of_trainers_all_of_them_are_waited_for(tmp_path, looptime):
    async with training(make_job(tmp_path, trainers=2, min_trainers=2)) as lead:
        lose(lead, 1)
        register(lead, holds(lead, 0, copies=True)[0])
        await asyncio.sleep(100)
        assert lead.state.generation == 1


async def test_a_world_with_a_gap_between_its_trainers_names_them_by_index(tmp_path):
    job = make_job(tmp_path, trainers=3, min_trainers=1)
    async with training(job) as lead:
        lose(lead, 1)
        for agent in (agents(3)[0], agents(3)[2]):
            lead.state.register(replace(agent, left=1))
        await begun(lead, 2)
        world = lead.state.session.world
        assert [world.trainers[seat.device.trainer] for seat in world.seats] == ["trainer-0", "trainer-2"]
        assert lead.state.session.record.trainers == ("pod-0", "", "pod-2")
        await lead.close(0, 1)
