"""A worker's exit ends the job only where its work is over: code of the user's may end the process with any code."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from coxswain.exits import Exit
from coxswain.planlog import generation_key
from coxswain.wire import Finished, WorkerExit
from tests.unit.coordinator_fakes import make_source
from tests.unit.coordinator_lead import Lead, begun, leading, led_again, register, small, training
from tests.unit.coordinator_samples import agents

pytestmark = pytest.mark.looptime


@pytest.mark.parametrize("code", [Exit.DONE, Exit.STOPPED])
async def test_a_worker_that_ends_amid_the_run_without_an_error_costs_the_world_and_completes_nothing(tmp_path, code):
    async with training(small(tmp_path)) as lead:
        await lead.saved(3)
        lead.leave(code, 0)
        session = lead.state.session
        assert (session.lost, session.ending) == (f"rank 0 on trainer-0 ended: exit code {code.value}", None)
        lead.arrive(left=1)
        await lead.world(2)
        assert (lead.state.session.record.first_step, lead.work.done()) == (3, False)


async def test_failures_of_workers_are_counted_together_and_orderly_ends_are_not(tmp_path):
    async with training(small(tmp_path)) as lead:
        assert b"coxswain_worker_failures_total 0.0\n" in lead.state.metrics.exposition()
        for code, rank in ((Exit.DONE, 0), (Exit.STOPPED, 1), (Exit.RETRYABLE, 0), (-9, 1)):
            lead.leave(code, rank)
        assert b"coxswain_worker_failures_total 2.0\n" in lead.state.metrics.exposition()


async def test_an_exit_that_an_agent_reports_twice_is_counted_once(tmp_path):
    """It repeats the call where an answer is lost, or comes late."""
    async with training(small(tmp_path)) as lead:
        for _ in range(2):
            lead.leave(-9, 1)
        text = lead.state.metrics.exposition()
        assert b"coxswain_worker_failures_total 1.0\n" in text
        assert b'coxswain_worker_exits_total{exit_code="-9",trainer="trainer-1"} 1.0\n' in text


async def test_a_run_whose_workers_end_so_in_every_world_fails(tmp_path):
    async with training(small(tmp_path)) as lead:
        await lead.saved(3)
        for generation in range(1, 6):
            await lead.world(generation)
            lead.leave(Exit.DONE, 0)
            lead.arrive(left=generation)
        finished = await lead.work
        assert (finished.exit_code, finished.reason) == (1, "WorkerCrashLoop")
        assert finished.message.endswith("last: rank 0 on trainer-0 ended: exit code 0")


def loses_its_peer(lead: Lead) -> None:
    lead.state.register(replace(agents(2)[0], left=lead.state.generation, broken="Connection closed by peer"))


HOW = {
    "a peer of its workers says so": loses_its_peer,
    "its agent has reported a worker's end": lambda lead: lead.leave(-9, 1),
    "it is silent": lambda lead: lead.state.mark_world_hung("rank 1 on trainer-1 has been silent for 31 s"),
}


@pytest.mark.parametrize("how", HOW.values(), ids=HOW)
@pytest.mark.parametrize("replaced", [True, False])
async def test_worlds_that_lose_a_pod_are_no_crash_loop_of_workers_however_they_are_lost(tmp_path, how, replaced):
    """Their pods are counted by the operator, or not, as where a node's pods are preempted before each first step."""
    async with training(small(tmp_path)) as lead:
        for generation in range(1, 8):
            how(lead)
            two = replace(agents(2)[1], pod=f"pod-1-{generation}" if replaced else "pod-1", instance=str(generation))
            register(lead, replace(agents(2)[0], left=generation), two)
            await lead.until(lambda number=generation: lead.work.done() or lead.state.generation > number)
            if lead.work.done():
                break
        assert (generation, lead.work.done()) == ((7, False) if replaced else (5, True))
        if not replaced:
            assert (await lead.work).reason == "WorkerCrashLoop"


async def test_a_failed_world_that_lost_a_pod_leaves_the_count_once_and_one_that_has_not_failed_changes_nothing(
    tmp_path,
):
    """Else workers that crash in every world would train on without end beside a pod that the cluster takes now and then."""
    here, other = agents(2)[0], replace(agents(2)[1], pod="pod-1-again")
    async with training(small(tmp_path)) as lead:
        for failed in (1, 2):
            lead.leave(-9, 1)
            assert lead.state.failures == failed
            if failed == 1:
                register(lead, *(replace(agent, left=1) for agent in agents(2)))
                await lead.until(lambda: lead.state.generation == 2)
        for _ in range(2):
            lead.state.spare_lost_pods([here, other])
        assert lead.state.failures == 1
        register(lead, replace(here, left=2), replace(other, left=2))
        await lead.until(lambda: lead.state.generation == 3)
        lead.state.mark_world_lost("the network broke")
        lead.state.spare_lost_pods([here])
        assert lead.state.failures == 1


@pytest.mark.parametrize(("code", "ends"), [(Exit.DONE, ""), (Exit.STOPPED, "Suspended")])
async def test_only_a_stop_may_have_been_announced_to_an_adopted_world_whose_last_checkpoint_is_not_made(
    tmp_path, code, ends
):
    async with training(small(tmp_path)) as first, leading(small(tmp_path), "two") as lead:
        await first.saved(3)
        lead.index()
        lead.arrive(generation=1)
        await lead.until(lambda: lead.state.session)
        lead.leave(code, 0)
        session = lead.state.session
        assert (session.adopted, session.ending.end if session.ending else "") == (True, ends)
        assert session.lost == ("" if ends else "rank 0 on trainer-0 ended: exit code 0")


ONE_PASS = tuple(make_source(name, 500, max_passes=1) for name in ("code", "docs"))


@pytest.mark.parametrize("generation", [0, 1], ids=["the workers have ended", "they wait for the manifest"])
@pytest.mark.parametrize("stop", [8, 1000], ids=["at the stop", "where the data ends"])
async def test_a_job_whose_last_checkpoint_was_made_since_the_start_of_its_coordinator_is_over(
    tmp_path, generation, stop
):
    job = small(tmp_path, stop_steps=stop)
    job = replace(job, mix=replace(job.mix, sources=ONE_PASS))
    async with training(job) as first, leading(job, "two") as lead:
        lead.index()
        await lead.until(lambda: lead.state.index_progress.index)
        last = await run_to_its_end(first)
        lead.arrive(generation=generation)
        finished = await lead.work
        reason = "StopReached" if stop == 8 else "DataExhausted"
        assert finished == Finished(0, reason, f"completed {last} steps")


async def run_to_its_end(lead: Lead) -> int:
    """Closes every step, and saves behind the last. Returns how many there are."""
    session = lead.state.session
    while session.book.open < session.end_step - 1:
        await lead.until(session.open_plan)
        await lead.close(session.book.open)
    await lead.saved(session.end_step)
    return session.end_step


async def test_a_lost_world_behind_the_last_checkpoint_is_not_followed_by_another(tmp_path):
    async with training(small(tmp_path)) as lead:
        await lead.saved(8)
        lead.leave(-9, 0)
        lead.arrive(left=1)
        assert await lead.work == Finished(0, "StopReached", "completed 8 steps")
        assert lead.keys("log/generations/") == [generation_key(1)]


def replaced(lead: Lead) -> None:
    lead.state.register(replace(agents(2)[1], pod="demo-trainer-1-1", instance="another"))


def killed(lead: Lead) -> None:
    lead.leave(-9, 1)


@pytest.mark.parametrize("goes", [replaced, killed])
async def test_a_worker_that_is_lost_behind_a_saved_end_costs_no_world_and_counts_as_no_failure(tmp_path, goes):
    async with training(small(tmp_path, stop_steps=3)) as lead:
        await lead.saved(3, end="Completed")
        goes(lead)
        assert (lead.state.session.lost, lead.state.failures, lead.state.worlds_lost) == ("", 0, 0)
        lead.leave(0, 0)
        assert await lead.work == Finished(0, "StopReached", "completed 3 steps")


async def test_the_end_of_a_worker_before_a_new_coordinator_has_a_world_makes_agents_register_again(tmp_path):
    """What its agent has said before is not so any more: else the world is adopted, and lost at the end of a poll."""
    async with led_again(tmp_path) as lead:
        register(lead, replace(agents(2)[0], generation=1))
        lead.state.add_exit(WorkerExit(1, "trainer-0", 0, 0, -9))
        assert lead.state.registry.missing("trainer", 2) == ["trainer-0", "trainer-1"]


async def saved_by_one(lead: Lead) -> None:
    """A world that the next coordinator has adopted, of which one rank has saved three steps."""
    register(lead, *(replace(a, generation=1) for a in agents(2)))
    await begun(lead, 1)
    await lead.close(0, 1, 2)
    lead.save(3, 0)


async def test_a_worker_that_has_saved_and_left_at_a_stop_of_the_coordinator_before_ends_the_job_at_its_save(tmp_path):
    """Its save need not say that it ends the job: those of an earlier release do not."""
    async with led_again(tmp_path) as lead:
        await saved_by_one(lead)
        lead.leave(3, 0)
        assert (lead.state.session.ending.step, lead.state.session.lost) == (3, "")


async def test_a_worker_that_leaves_at_a_stop_behind_another_does_not_move_the_step_of_that_stop(tmp_path):
    """Its save may arrive later: the job would end without the steps that the other one has saved."""
    async with led_again(tmp_path) as lead:
        await saved_by_one(lead)
        lead.leave(3, 0, 1)
        assert lead.state.session.ending.step == 3
        lead.save(3, 1)
        assert await lead.work == Finished(Exit.STOPPED, "Suspended", "suspended before step 3")
