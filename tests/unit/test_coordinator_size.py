"""Another number of trainers: what the coordinator answers, over HTTP to the operator, and which numbers it refuses."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from coxswain import wire
from coxswain.config import CustomModel, RecoveryConfig, ReplicaShape, StageShape
from coxswain.cost.constants import device_memory
from coxswain.cost.memory import RESERVED
from coxswain.layout import Device, Layout, uniform_layout
from coxswain.presets import PRESETS
from coxswain_coordinator.api.handlers import Handlers
from coxswain_coordinator.api.report import job_report
from coxswain_coordinator.capacity import change_fault
from coxswain_coordinator.world.presence import are_gathered
from coxswain_coordinator.world.resize import refusal, resize
from coxswain_link.http_server import HttpService
from coxswain_operator.jobcontrol import HttpJobControl
from coxswain_operator.views import Manifest
from tests.unit.coordinator_fakes import TOKEN, make_job
from tests.unit.coordinator_lead import Lead, begun, leading, moved_to, register, saved_and_moved, small, training
from tests.unit.coordinator_samples import agents
from tests.unit.test_reconcile_jobcontrol import knowing


@asynccontextmanager
async def asked(lead: Lead) -> AsyncIterator[tuple[HttpJobControl, Manifest]]:
    """The operator's control, and the job; it talks to this coordinator's handlers."""
    service = HttpService(TOKEN, lambda: lead.state.generation, lead.state.metrics)
    Handlers(lead.state, lead.driver.ack_end).routes(service)
    port = await service.start("127.0.0.1", 0)
    try:
        async with knowing(port, TOKEN) as (control, world):
            yield control, world.job
    finally:
        await service.stop()


async def test_the_operator_learns_that_trainers_are_awaited_then_that_the_world_changes_then_that_it_is_done(tmp_path):
    async with training(small(tmp_path)) as lead, asked(lead) as (control, job):
        await lead.close(0, 1)
        assert await control.resize(job, 2) == wire.SizeReply("Done", 2)
        waiting = wire.SizeReply("UnderWay", 2, "waiting for trainer-2 to register")
        assert [await control.resize(job, 3), await control.resize(job, 3)] == [waiting, waiting]
        lead.state.register(replace(agents(3)[2], starting=True))
        waiting = wire.SizeReply("UnderWay", 2, "waiting for trainer-2 to import what workers need")
        assert await control.resize(job, 3) == waiting
        await lead.close(2)
        assert not lead.state.session.move
        lead.state.register(agents(3)[2])
        changing = wire.SizeReply("UnderWay", 2, "waiting for the world to change at a step boundary")
        assert await control.resize(job, 3) == changing
        session = lead.state.session
        await lead.until(lambda: session.move)
        await moved_to(lead, session.move.step)
        assert await control.resize(job, 3) == wire.SizeReply("Done", 3)
        assert lead.state.session.record.size == 3


async def test_the_operator_learns_that_a_smaller_number_waits_for_a_save(tmp_path):
    async with training(small(tmp_path, min_trainers=1)) as lead:
        await lead.close(0, 1)
        session = lead.state.session
        assert (await resize(lead.state, 1)).message == "waiting for the world to change at a step boundary"
        await lead.until(lambda: session.move)
        assert session.directive(session.move.step).checkpoint
        reply = await resize(lead.state, 1)
        assert reply.message == "waiting for step 2 to be saved, since trainers that leave hold state"


async def test_a_number_that_is_refused_leaves_the_job_as_it_is(tmp_path):
    async with training(small(tmp_path)) as lead, asked(lead) as (control, job):
        reply = await control.resize(job, 0)
        assert reply == wire.SizeReply("Refused", 2, "trainers 0: at least 1 are allowed (trainers.minCount)")
        assert lead.state.size == 2 and not lead.state.session.move


async def test_a_job_that_has_ended_answers_no_number(tmp_path):
    async with training(small(tmp_path)) as lead, asked(lead) as (control, job):
        lead.state.finish(wire.Finished(0, "StopReached", "done"))
        assert await control.resize(job, 3) is None
        assert lead.state.size == 2


async def test_a_number_that_is_taken_back_before_its_trainers_came_is_done_at_once(tmp_path):
    async with training(small(tmp_path)) as lead:
        assert (await resize(lead.state, 5)).message == "waiting for trainer-2, trainer-3, trainer-4 to register"
        assert job_report(lead.state).size == 5
        assert await resize(lead.state, 2) == wire.SizeReply("Done", 2)
        assert job_report(lead.state).size == 2
        assert lead.state.size == 2


async def test_a_number_that_is_taken_back_before_a_rank_has_the_directive_ends_no_world(tmp_path):
    """The answer was `Done`, and the world ended all the same for the change that was taken back."""
    async with training(small(tmp_path, min_trainers=1)) as lead, asked(lead) as (control, job):
        await lead.close(0, 1)
        session = lead.state.session
        assert (await control.resize(job, 1)).state == "UnderWay"
        await lead.until(lambda: session.move)
        step = session.move.step
        assert await control.resize(job, 2) == wire.SizeReply("Done", 2)
        await lead.until(lambda: not session.move)
        assert session.known_end is None
        assert session.directive(step).end == ""
        assert lead.state.registry.missing("trainer", 2) == [], "it has never left"


async def test_a_number_that_is_taken_back_behind_the_directive_leaves_the_change_as_it_is(tmp_path):
    """Other ranks may have left."""
    async with training(small(tmp_path, min_trainers=1)) as lead:
        await lead.close(0, 1)
        session = lead.state.session
        await resize(lead.state, 1)
        await lead.until(lambda: session.move)
        assert session.directive(session.move.step).end == "Moved"
        await resize(lead.state, 2)
        await asyncio.sleep(5)
        assert session.move.decided


async def shrunk(lead: Lead) -> None:
    """A job of two trainers has one; the other one's pod has registered once more, and is deleted then."""
    await lead.close(0, 1)
    session = lead.state.session
    await resize(lead.state, 1)
    await lead.until(lambda: session.move)
    assert session.directive(session.move.step).end == "Moved"
    await saved_and_moved(lead, session.move.step, 2)
    register(lead, replace(agents(2)[1], left=1, instance="left"))
    await lead.close(2)


async def test_a_job_that_grows_again_waits_for_the_new_pods_of_trainers_that_have_left(tmp_path):
    """The coordinator is asked before there are pods."""
    async with training(small(tmp_path, min_trainers=1)) as lead:
        await shrunk(lead)
        session, lost = lead.state.session, lead.state.worlds_lost
        waiting = wire.SizeReply("UnderWay", 1, "waiting for trainer-1 to register")
        assert await resize(lead.state, 2) == waiting
        await lead.close(3)
        assert (session.move, lead.state.worlds_lost) == (None, lost)
        register(lead, replace(agents(2)[1], pod="pod-1-1", instance="new"))
        await lead.until(lambda: session.move)
        assert session.move.why == "trainer-1 joined"


async def test_a_trainer_that_has_left_and_is_wanted_again_before_its_pod_is_deleted_is_asked_to_register(tmp_path):
    async with training(small(tmp_path, min_trainers=1)) as lead:
        await shrunk(lead)
        assert lead.state.registry.knows("left")
        await resize(lead.state, 2)
        assert not lead.state.registry.knows("left"), "ends its poll of the world"


async def test_no_trainer_trains_in_a_world_that_is_lost_or_not_there_yet(tmp_path):
    async with leading(small(tmp_path)) as lead:
        assert await resize(lead.state, 2) == wire.SizeReply(
            "UnderWay", 0, "waiting for trainer-0, trainer-1 to register"
        )
    async with training(small(tmp_path)) as lead:
        lead.state.mark_world_lost("the network broke")
        again = await resize(lead.state, 2)
        assert (again.state, again.trainers) == ("UnderWay", 0)


async def grown(lead, trainers: int) -> None:
    """Behind its first step the job gets one more trainer."""
    await lead.close(0)
    await resize(lead.state, trainers)
    lead.state.register(agents(trainers)[-1])
    session = lead.state.session
    await lead.until(lambda: session.move)
    await moved_to(lead, session.move.step)


@pytest.mark.parametrize("pause", [0.0, 0.5], ids=["at once", "one late"])
async def test_a_new_coordinator_that_adopts_a_world_keeps_the_size_that_the_job_was_given(tmp_path, pause):
    """Also where the last trainer of a job that has grown registers after as many as the job began with."""
    async with training(small(tmp_path)) as lead:
        await grown(lead, 3)
    async with leading(small(tmp_path), "two") as lead:
        lead.index()
        *early, late = (replace(agent, generation=2) for agent in agents(3))
        for agent in early:
            lead.state.register(agent)
        await asyncio.sleep(pause)
        lead.state.register(late)
        await begun(lead, 2)
        assert lead.state.session.adopted and not lead.state.session.lost
        await lead.close(lead.state.session.book.open)
        assert (lead.state.size, lead.state.session.move) == (3, None)


async def test_a_changed_job_of_fewer_trainers_than_the_world_that_still_runs_takes_in_none_beyond_its_number(tmp_path):
    async with training(small(tmp_path, trainers=3)) as lead:
        await grown(lead, 4)
    async with leading(small(tmp_path, stop_steps=9), "two") as lead:
        lead.index()
        for agent in agents(4):
            lead.state.register(replace(agent, generation=2))
        await begun(lead, 3)
        assert lead.state.session.world.trainers == ("trainer-0", "trainer-1")


FIXED = (ReplicaShape((StageShape(tensor=1, layers=2),), 2),)


@pytest.mark.parametrize(
    ("changes", "parallel", "size", "trainers", "why"),
    [
        ({}, {}, 2, 1, ""),
        ({}, {}, 2, 9, ""),
        ({}, {}, 2, 0, "trainers 0: at least 1 are allowed (trainers.minCount)"),
        ({"trainers": 4, "min_trainers": 2}, {}, 4, 1, "trainers 1: at least 2 are allowed (trainers.minCount)"),
        ({"min_trainers": 2}, {}, 2, 1, "trainers 1: at least 2 are allowed (trainers.minCount)"),
        ({}, {"layout": FIXED}, 2, 2, ""),
        ({}, {"layout": FIXED}, 2, 3, "parallelism.layout names every replica"),
        ({}, {"layout": FIXED, "mode": "Auto"}, 2, 3, ""),
        ({}, {"tokens_per_replica": 128}, 2, 3, ""),
        ({}, {"tokens_per_replica": 128}, 2, 1, "CapacityLost: 1 replicas hold 128 tokens of one sequence"),
        ({}, {"tokens_per_replica": 128}, 1, 1, ""),  # what a job has is never refused
    ],
)
def test_a_number_is_refused_that_is_too_small_or_that_no_layout_has(tmp_path, changes, parallel, size, trainers, why):
    job = make_job(tmp_path, **changes)
    found = refusal(replace(job, parallelism=replace(job.parallelism, **parallel)), size, trainers)
    assert found.startswith(why) and bool(found) == bool(why) and "waiting" not in found


@pytest.mark.parametrize(
    ("size", "trainers", "copies", "fits"),
    [(2, 3, False, False), (8, 9, False, True), (8, 9, True, True), (4, 3, False, True), (4, 3, True, False)],
)
def test_a_number_is_refused_whose_state_does_not_fit_beside_that_of_the_present_one(
    tmp_path, size, trainers, copies, fits
):
    """12 bytes of optimizer state for each of 6.6 G parameters, shared by old and by new replicas, and weights twice."""
    job = make_job(tmp_path, model=PRESETS["llama-7b"], recovery=RecoveryConfig(copies=copies))
    job = replace(job, parallelism=replace(job.parallelism, hardware="a100-80g"))
    found = refusal(job, size, trainers)
    assert found.startswith("" if fits else "MemoryTooSmall: trainer-0 device 0 would hold ") and bool(found) != fits
    assert refusal(replace(job, parallelism=replace(job.parallelism, hardware="cpu")), size, trainers) == ""
    own = replace(job.model, custom=CustomModel(path="my_models:Wide"))
    assert refusal(replace(job, model=own), size, trainers) == "", "what it takes is not known"


def test_the_refusal_says_in_gib_what_the_state_would_take_and_what_there_is(tmp_path):
    job = make_job(tmp_path, model=PRESETS["llama-7b"], recovery=RecoveryConfig(copies=False))
    job = replace(job, parallelism=replace(job.parallelism, hardware="a100-80g"))
    found = refusal(job, 2, 3)
    size, beside, limit = (float(figure) for figure in re.findall(r"([0-9.]+) GiB", found))
    assert (beside, limit) == (round(RESERVED / 2**30, 1), round(device_memory("a100-80g") / 2**30, 1))
    assert limit - beside < size < 3 * limit
    assert change_fault(job, uniform_layout([Device(0, 0)], 32), Layout((), (Device(0, 0),))) == "", "nothing is held"


@pytest.mark.parametrize(
    ("count", "least", "size", "present", "gathered"),
    [
        (2, 2, 2, 1, False),  # as without minCount
        (4, 2, 4, 2, True),
        (4, 2, 4, 1, False),
        (1, 1, 2, 1, True),  # only a job with minCount has another size than its own
        (2, 2, 3, 2, True),
        (2, 2, 3, 1, False),
    ],
)
def test_a_job_that_has_grown_beyond_its_least_number_goes_on_with_that_many(
    tmp_path, count, least, size, present, gathered
):
    job = make_job(tmp_path, trainers=count, min_trainers=least)
    assert are_gathered(job, size, present, 3.0, 3.0) == gathered
    assert not are_gathered(job, size, present, 2.9, 3.0)
