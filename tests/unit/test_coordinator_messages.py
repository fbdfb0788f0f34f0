"""Messages and registrations from another world change nothing in the present one."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from coxswain import wire
from coxswain.errors import Retryable, Stale
from coxswain_coordinator.state.job_state import JobState
from coxswain_link.metrics import build
from tests.unit.coordinator_fakes import report_of
from tests.unit.coordinator_lead import Lead, in_the_second_world, newer_generation, served_of, small, training
from tests.unit.coordinator_samples import agents, report
from tests.unit.test_coordinator_checkpoints import shard

pytestmark = pytest.mark.looptime


MESSAGES = {
    "report": lambda state, g: state.add_report(wire.StepReport(g, 0, 0, 1.0, 0, 1.0, 1e-3, 1.0, 1.0, 0.0, 0.0)),
    "delivered": lambda state, g: state.add_delivered(wire.DeliveredDigests(g, 0, ((0, "aa"),))),
    "saved": lambda state, g: state.add_saved(wire.ShardsSaved(g, 3, 0, 2, (shard("a"),), 0.1, "Completed")),
    "heartbeat": lambda state, g: state.heartbeat(g, 0),
}


@pytest.mark.parametrize("message", MESSAGES)
@pytest.mark.parametrize(("generation", "error"), [(0, Stale), (2, Retryable)])
async def test_a_message_of_another_generation_changes_nothing(tmp_path, message, generation, error):
    """One of a newer generation comes from a world of the coordinator that has replaced this one: its sender is not stale."""
    async with training(small(tmp_path)) as lead:
        session = lead.state.session
        plan = session.open_plan()
        with pytest.raises(error, match=f"generation {generation} is n"):
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


async def test_a_rank_whose_reports_and_saves_leave_no_time_for_heartbeats_is_not_silent(tmp_path):
    async with training(small(tmp_path)) as lead:
        heard = lead.state.session.last_heard
        lead.save(3, 1)
        assert list(heard) == [1]
        lead.state.add_report(report(0))
        assert list(heard) == [1, 0]


async def test_a_heartbeat_counts_for_its_rank_and_a_constructors_for_none(tmp_path):
    async with training(small(tmp_path)) as lead:
        lead.state.heartbeat(1, -1)
        assert lead.state.session.last_heard == {}
        lead.state.heartbeat(1, 0)
        assert list(lead.state.session.last_heard) == [0]


@pytest.mark.parametrize(("role", "instance"), [("trainer", "one"), ("constructor", "two")])
async def test_only_another_instance_of_a_trainer_costs_the_world(tmp_path, role, instance):
    async with training(small(tmp_path)) as lead:
        lead.state.register(wire.Register("constructor", "trainer-0", "pod-0", "one", "h", 0))
        lead.state.register(wire.Register(role, "trainer-0", "pod-0", instance, "h", 0, 1))
        assert lead.state.session.lost == ""


def late_report(lead: Lead, plan: wire.StepPlan) -> None:
    lead.state.add_report(report_of(plan, 0, 0))


def late_digests(lead: Lead, plan: wire.StepPlan) -> None:
    lead.state.add_delivered(served_of(plan))


def late_save(lead: Lead, plan: wire.StepPlan) -> None:
    lead.state.add_saved(wire.ShardsSaved(1, plan.step, 0, 2, (), 0.1, "Moved"))


def late_heartbeat(lead: Lead, plan: wire.StepPlan) -> None:
    lead.state.heartbeat(1, 0, 7)


@pytest.mark.parametrize("late", [late_report, late_digests, late_save, late_heartbeat])
async def test_a_message_of_a_world_that_is_over_counts_for_nothing_in_the_one_that_goes_on_from_its_memory(
    tmp_path, late
):
    async with training(small(tmp_path)) as lead:
        plan = await in_the_second_world(lead)
        session = lead.state.session
        with pytest.raises(Stale, match=r"generation 1 is not the current one \(2\)"):
            late(lead, plan)
        assert (session.begun, session.book.missing_ranks(), session.last_heard, session.move) == (1, [0, 1], {}, None)
        await lead.close(2)


@pytest.mark.parametrize(
    "late",
    [{"left": 1}, {"left": 1, "broken": "Connection closed by peer"}, {"left": 1, "generation": 2}, {"held": ()}],
)
async def test_what_an_agent_says_of_a_world_that_is_over_does_not_end_the_next(tmp_path, late):
    async with training(small(tmp_path)) as lead:
        await in_the_second_world(lead)
        assert lead.state.register(replace(agents(2)[0], **late)) == wire.Registered(2)
        assert (lead.state.session.lost, lead.state.failures) == ("", 0)
        assert lead.state.registry.missing("trainer", 2) == []


async def test_the_exit_of_a_worker_from_a_world_that_is_over_does_not_end_the_next_but_a_users_fault_ends_the_job(
    tmp_path,
):
    async with training(small(tmp_path)) as lead:
        await in_the_second_world(lead)
        lead.state.add_exit(wire.WorkerExit(1, "trainer-1", 0, 1, -9))
        assert (lead.state.session.lost, lead.state.session.exited, lead.state.fault) == ("", {}, None)
        lead.state.add_exit(wire.WorkerExit(1, "trainer-1", 0, 1, 2))
        assert lead.state.fault.message == "rank 1 on trainer-1 left with code 2"


@pytest.mark.parametrize("code", [1, 2])
async def test_the_exit_of_a_worker_of_a_newer_world_is_reported_to_the_coordinator_that_has_made_that_world(
    tmp_path, code
):
    """Its agent sends it again only where it is refused, and a user's fault is not for this coordinator to end the job by."""
    async with training(small(tmp_path)) as lead:
        with pytest.raises(Retryable, match="generation 2 is newer than this coordinator's, which is 1"):
            lead.state.add_exit(wire.WorkerExit(2, "trainer-1", 0, 1, code))
        assert (lead.state.session.lost, lead.state.session.exited, lead.state.fault) == ("", {}, None)


async def test_an_agent_whose_workers_are_in_a_former_world_is_missing_until_they_have_left_it(tmp_path):
    async with training(small(tmp_path)) as lead:
        await in_the_second_world(lead)
        member = replace(agents(2)[1], generation=1)
        assert lead.state.register(member) == wire.Registered(2, lost=1)
        assert lead.state.registry.missing("trainer", 2) == ["trainer-1"]
        lead.state.register(replace(member, generation=0, left=1))
        assert lead.state.registry.missing("trainer", 2) == []


async def test_an_agent_whose_workers_have_left_a_newer_world_is_no_member_of_the_one_before(tmp_path):
    async with training(small(tmp_path)) as lead:
        before = lead.state.registry.member("trainer", "trainer-1")
        with pytest.raises(Retryable, match="generation 2 is newer"):
            lead.state.register(replace(agents(2)[1], left=2))
        assert lead.state.registry.member("trainer", "trainer-1") == before


@pytest.mark.parametrize("lost", ["", "the network broke"])
async def test_a_coordinator_that_was_replaced_makes_no_worker_leave_the_world_of_its_successor(tmp_path, lost):
    """Before, it answered with an order to leave, as to a world that is over, to each agent that still reached it."""
    async with training(small(tmp_path)) as lead:
        if lost:
            lead.state.mark_world_lost(lost)
        before = lead.state.registry.missing("trainer", 2)
        with pytest.raises(Retryable, match="generation 2 is newer than this coordinator's, which is 1"):
            lead.state.register(replace(agents(2)[1], generation=2))
        assert (lead.state.leaving, lead.state.registry.missing("trainer", 2)) == (set(), before)


async def test_a_coordinator_that_hears_of_a_newer_world_looks_at_its_fence_at_once(tmp_path, looptime):
    """Before, it kept answering until it next recorded something: 30 s of silent ranks, or the next checkpoint."""
    async with training(small(tmp_path)) as lead:
        newer_generation(lead.store, lead.state.session.record)
        began = float(looptime)
        with pytest.raises(Retryable):
            lead.state.heartbeat(2, 0)
        with pytest.raises(Stale, match="another coordinator has created generation 2"):
            await asyncio.wait_for(lead.work, 60)
        assert float(looptime) == began


async def test_a_coordinator_goes_on_where_no_other_one_has_made_the_newer_world_of_a_message(tmp_path):
    async with training(small(tmp_path)) as lead:
        with pytest.raises(Retryable):
            lead.state.heartbeat(7, 0)
        await lead.until(lambda: not lead.state.is_doubtful)
        looked = list[int]()
        lead.executor.before["check_held"] = lambda: looked.append(1)
        await lead.saved(3)
        assert not looked, "it has looked at its fence once"
