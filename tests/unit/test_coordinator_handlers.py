"""What the coordinator's calls answer and how long they wait, without sockets and in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from coxswain import wire
from coxswain.errors import Refused, Retryable, Stale
from coxswain_coordinator.api.handlers import Handlers
from coxswain_coordinator.api.report import job_report
from coxswain_link.job_ended import JobEnded
from tests.unit.coordinator_fakes import report_of
from tests.unit.coordinator_lead import Lead, leading, small, training
from tests.unit.coordinator_samples import agents
from tests.unit.crash_simulation import Call

pytestmark = pytest.mark.looptime


def call(generation: int | None = None, /, **query: Any) -> Any:
    return Call("GET", "/", None, generation, query)


def handlers(lead: Lead, ack_end: Callable[[str], None] | None = None) -> Handlers:
    return Handlers(lead.state, ack_end or lead.driver.ack_end)


def later(action: Callable[[], object]) -> None:
    """In three seconds."""
    asyncio.get_running_loop().call_later(3, action)


@pytest.mark.parametrize(("asked", "seconds"), [(0, 0), (7, 7), (30, 30), (60, 30)])
@pytest.mark.parametrize("path", ["world", "job_report"])
async def test_a_long_poll_lasts_as_long_as_asked_and_at_most_half_a_minute(tmp_path, looptime, path, asked, seconds):
    async with leading(small(tmp_path)) as lead:
        began, after = float(looptime), {"world": 0, "job_report": job_report(lead.state).revision()}
        found = await getattr(handlers(lead), path)(call(wait=asked, after=after[path]), None)
        assert (found is None) == (path == "world")
        assert float(looptime) - began == pytest.approx(seconds)


async def test_a_report_that_has_changed_is_answered_at_once_and_one_that_changes_soon_after(tmp_path, looptime):
    async with leading(small(tmp_path)) as lead:
        began, before = float(looptime), job_report(lead.state).revision()
        assert (await handlers(lead).job_report(call(wait=20, after="other"), None)).revision() == before
        assert float(looptime) == began
        later(lambda: lead.state.record_event("Resumed", "something happened"))
        assert (await handlers(lead).job_report(call(wait=20, after=before), None)).revision() != before
        assert 3 <= float(looptime) - began <= 3.25


@pytest.mark.parametrize(
    ("instance", "change", "seconds"),
    [("one", None, 20), (None, None, 20), ("stranger", None, 0), ("one", "lost", 3), (None, "lost", 3)],
)
async def test_a_poll_for_the_next_world_ends_early_for_a_member_that_must_register_again(
    tmp_path, looptime, instance, change, seconds
):
    async with training(small(tmp_path)) as lead:
        began = float(looptime)
        if change:
            later(lambda: (lead.state.mark_world_lost("rank 1 ended"), lead.state.notifier.notify()))
        query = {"instance": instance} if instance else {}
        assert await handlers(lead).world(call(wait=20, after=1, **query), None) is None
        assert float(looptime) - began == seconds


async def test_a_world_is_answered_to_members_of_older_ones_alone(tmp_path):
    async with training(small(tmp_path)) as lead:
        assert await handlers(lead).world(call(after=0), None) == lead.state.session.world
        assert await handlers(lead).world(call(after=1), None) is None


async def test_a_new_pod_is_given_the_next_world_and_not_the_lost_one_that_it_replaces(tmp_path):
    async with training(small(tmp_path)) as lead:
        one, two = (replace(agent, instance=f"new {agent.name}") for agent in agents(2))
        lead.state.register(two)
        waits = asyncio.create_task(handlers(lead).world(call(wait=20, after=0, instance=two.instance), None))
        await asyncio.sleep(1)
        assert (bool(lead.state.session.lost), waits.done()) == (True, False)
        lead.state.register(one)
        assert (await waits).generation == 2


async def test_a_rank_of_a_world_that_this_coordinator_does_not_know_yet_begins_its_step_alone(tmp_path, looptime):
    alone = wire.StepDirective(step=2, checkpoint=False, end="", plan=None)
    async with training(small(tmp_path)) as lead:
        began = float(looptime)
        assert await handlers(lead).step(call(2, wait=20, step=2), None) == alone
        assert float(looptime) == began
        assert await handlers(lead).plans(call(2, wait=20, **{"from": 0}), None) is None
        assert float(looptime) - began == 20
        assert (await handlers(lead).step(call(1, wait=20, step=2), None)).plan.step == 2
        assert (await handlers(lead).plans(call(1, wait=20, **{"from": 3}), None)).plans[0].step == 3
        lead.state.session.adopted, lead.state.session.committed = True, 2
        lead.state.session.forget_before(8)
        assert await handlers(lead).step(call(1, wait=20, step=5), None) == replace(alone, step=5)


async def test_a_rank_that_only_a_newer_larger_world_has_is_no_users_fault(tmp_path):
    """Before, a coordinator that was replaced refused it (WrongRank): the worker exited with 2, and the job failed."""
    async with training(small(tmp_path)) as lead:
        assert (await handlers(lead).step(call(2, wait=20, step=2, rank=7), None)).plan is None
        with pytest.raises(Refused, match="rank 7: generation 1 has 2 ranks"):
            await handlers(lead).step(call(1, wait=20, step=2, rank=7), None)


async def test_the_exit_of_a_worker_of_a_newer_world_does_not_end_the_job_of_a_coordinator_that_was_replaced(tmp_path):
    """Before, it answered every caller with that end, also workers of its successor's world."""
    async with training(small(tmp_path)) as lead:
        with pytest.raises(Retryable, match="generation 2 is newer than this coordinator's"):
            await handlers(lead).exit(call(), wire.WorkerExit(2, "trainer-0", 0, 0, 2))
        assert lead.state.fault is None


async def test_a_directive_wakes_the_driver_which_may_have_to_plan_further(tmp_path):
    async with training(small(tmp_path)) as lead:
        before = lead.state.notifier.count
        await handlers(lead).step(call(1, step=0), None)
        assert lead.state.notifier.count > before


async def test_a_call_that_waits_while_its_generation_ends_is_stale(tmp_path):
    async with training(small(tmp_path)) as lead:
        waits = asyncio.create_task(handlers(lead).plans(call(1, wait=20, **{"from": 99}), None))
        lead.state.mark_world_lost("rank 1 ended")
        lead.arrive()
        with pytest.raises(Stale, match="generation 1 is over; the current one is 2"):
            await waits


async def test_the_rendezvous_of_this_generation_is_given_to_those_that_wait_for_it(tmp_path, looptime):
    async with training(small(tmp_path)) as lead:
        here, began = wire.Rendezvous(1, "10.0.0.7", 5), float(looptime)
        later(lambda: asyncio.ensure_future(handlers(lead).publish_rendezvous(call(), here)))
        assert await handlers(lead).rendezvous(call(1, wait=20, generation=1), None) == here
        assert float(looptime) - began == 3
        for generation, error in ((0, Stale), (2, Retryable)):
            with pytest.raises(error):
                await handlers(lead).publish_rendezvous(call(), wire.Rendezvous(generation, "10.0.0.7", 6))
            with pytest.raises(error):
                await handlers(lead).rendezvous(call(wait=20, generation=generation), None)
        assert lead.state.session.rendezvous == here


@pytest.mark.parametrize("path", ["heartbeat", "report", "served", "saved"])
async def test_every_message_is_recorded_and_answered_with_what_is_saved(tmp_path, path):
    async with training(small(tmp_path)) as lead:
        await lead.saved(3)
        session, plan = lead.state.session, lead.state.session.open_plan()
        session.last_heard.clear()
        body, recorded = {
            "heartbeat": (wire.Heartbeat(1, 0), lambda: list(session.last_heard) == [0]),
            "report": (report_of(plan, 1, 1), lambda: session.book.missing_ranks() == [0]),
            "served": (
                wire.DeliveredDigests(1, 3, ((0, "aa"),)),
                lambda: session.book.missing_digests(plan) == len(plan.sequences) - 1,
            ),
            "saved": (wire.ShardsSaved(1, 6, 1, 2, (), 0.1), lambda: session.pending.newest(1) == 6),
        }[path]
        assert not recorded()
        assert await getattr(handlers(lead), path)(call(), body) == wire.Ack(lead.state.instance, 3)
        assert recorded()


async def test_shares_and_blocks_are_given_by_name_once_they_are_known(tmp_path, looptime):
    async with leading(small(tmp_path)) as lead:
        began = float(looptime)
        later(lead.index)
        shares = await handlers(lead).shares(call(wait=20, loader="loader-0"), None)
        assert [s.source for s in shares.shares] == ["code", "docs"]
        assert (await handlers(lead).shares(call(wait=20, loader="loader-1"), None)).shares == ()
        blocks = await handlers(lead).blocks(call(wait=20, source="docs"), None)
        assert (blocks.source, blocks.blocks[0].key, float(looptime) - began) == ("docs", "docs0", 3)
        with pytest.raises(Refused, match="source 'news': the mix has code, docs") as refused:
            await handlers(lead).blocks(call(wait=20, source="news"), None)
        assert refused.value.reason == "NoSuchSource"


@pytest.mark.parametrize("path", ["register", "loaders", "world", "shares", "plans", "step", "rendezvous", "blocks"])
async def test_every_call_gets_the_end_of_the_job_and_those_that_name_their_service_are_its_receipt(tmp_path, path):
    async with leading(small(tmp_path)) as lead:
        acks = list[str]()
        lead.state.register(wire.Register("loader", "loader-0", "p", "k", "h", 7))
        lead.state.request_stop(wire.StopRequest("suspend"))
        await lead.work
        query = {"loader": "loader-0", "from": 0, "step": 0, "generation": 1, "source": "code", "instance": "j"}
        names = {"register": "i", "world": "j", "shares": "k"}
        with pytest.raises(JobEnded, match="Suspended"):
            answer = getattr(handlers(lead, acks.append), path)
            await answer(call(**query), wire.Register("loader", "loader-0", "p", "i", "h", 7))
        assert acks == [names.get(path, "")]
        assert (await handlers(lead).job_report(call(wait=20), None)).phase == "Suspended"
