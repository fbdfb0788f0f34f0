"""The driver without sockets, in virtual time: which checkpoints and worlds it makes, and what ends it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from coxswain import wire
from coxswain.errors import Refused
from coxswain_coordinator.checkpoint.store import CheckpointStore
from coxswain_coordinator.driver import LONGEST_ACTION
from coxswain_coordinator.planning.committer import Committed
from coxswain_coordinator.state.job_state import JobState
from coxswain_coordinator.state.step_log import StepLog
from coxswain_coordinator.world.look_ahead import LookAhead
from coxswain_link.metrics import MetricsRegistry, build
from tests.unit.coordinator_fakes import store_of
from tests.unit.coordinator_lead import Lead, leading, small, training
from tests.unit.test_coordinator_checkpoints import manifest, store_with

pytestmark = pytest.mark.looptime


def figures(metrics: MetricsRegistry, *names: str) -> list[float]:
    """Values of gauges."""
    lines = dict(line.rsplit(" ", 1) for line in metrics.exposition().decode().splitlines() if line[0] != "#")
    return [float(lines[name]) for name in names]


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


async def test_a_checkpoint_says_how_many_ids_its_tokenizer_has(tmp_path):
    """Rows that only round the vocabulary up are no part of an export."""
    async with training(small(tmp_path)) as lead:
        await lead.saved(3)
        assert (lead.state.manifest.ids, lead.state.manifest.vocabulary) == (
            lead.state.index_progress.index.vocabulary,
            320,
        )
        assert 0 < lead.state.manifest.ids < 320


async def test_plans_that_are_committed_behind_the_loss_of_their_world_reach_no_world(tmp_path):
    async with training(small(tmp_path, stop_steps=30)) as lead:
        lost, over = lead.state.session, asyncio.Event()
        committed = lost.committed
        lead.executor.held["commit"] = over
        await lead.close(0)
        lead.state.mark_world_lost("the network broke")
        over.set()
        lead.arrive(left=1)
        await lead.world(2)
        assert (lost.committed, [p.step for p in lost.plans_from(0).plans]) == (committed, list(range(1, committed)))


@asynccontextmanager
async def committing(folder) -> AsyncIterator[tuple[Lead, asyncio.Event]]:
    """A first world whose first plans are made beside the driver, until the event lets them go on."""
    job = small(folder)
    async with leading(replace(job, parallelism=replace(job.parallelism, balance="FlexSP"))) as lead:
        held = lead.executor.held["commit"] = asyncio.Event()
        lead.index()
        lead.arrive()
        await lead.until(lambda: lead.state.session)
        await asyncio.sleep(1)
        yield lead, held


async def test_the_next_world_is_formed_once_the_plans_of_the_lost_one_are_given_up(tmp_path):
    """Two commits at a time would spoil the plan log's segment."""
    async with committing(tmp_path) as (lead, held):
        lead.state.mark_world_lost("the network broke")
        lead.arrive(left=1)
        await asyncio.sleep(30)
        assert lead.state.generation == 1
        lead.executor.held.clear()
        held.set()
        await lead.until(lambda: lead.state.generation == 2)


async def test_planners_are_late_as_soon_as_the_world_that_they_plan_for_is_lost(tmp_path):
    """The next world waits for them."""
    async with training(small(tmp_path, stop_steps=30)) as lead:
        session, late = lead.state.session, []

        def commit(cursor, stop, is_late, most, speeds):
            late.append(is_late())
            lead.state.mark_world_lost("the network broke")
            late.append(is_late())
            return Committed((), {}, None, session.committed)

        worlds = SimpleNamespace(committer=SimpleNamespace(commit=commit), solvers=None)
        session.directive(0)
        assert await LookAhead(lead.state, worlds, None, lambda: None).extend(session)
        assert late == [False, True]


async def test_plans_that_are_made_beside_the_driver_are_not_recorded_behind_the_end_of_the_job(tmp_path):
    async with committing(tmp_path) as (lead, held):
        lead.state.fail(wire.Fault("Diverged", "the loss is not finite"))
        lead.state.notifier.notify()
        await lead.work
        held.set()
        await asyncio.sleep(1)
        assert lead.keys("log/membership/") + lead.keys("log/placements/") == []


async def test_metrics_hold_the_last_committed_step_and_the_last_checkpoint(tmp_path):
    async with training(small(tmp_path)) as lead:
        await lead.saved(3)
        for line in (b"coxswain_committed_step 7.0", b"coxswain_checkpoint_step 3.0", b"coxswain_world_generation 1.0"):
            assert line in lead.state.metrics.exposition()
        (planned,) = figures(lead.state.metrics, "coxswain_planner_seconds_count")
        assert planned >= 8.0  # a plan a step


async def test_a_new_coordinator_shows_the_step_of_its_checkpoint_before_a_step_of_its_own(tmp_path):
    job = small(tmp_path)
    async with training(job) as lead:
        await lead.saved(3)
    async with leading(job, "two") as lead:
        await lead.until(lambda: lead.state.manifest)
        assert figures(lead.state.metrics, "coxswain_step", "coxswain_checkpoint_step") == [2.0, 3.0]
        lines = lead.state.metrics.exposition().decode()
        wanted = {"loss", "gradient_norm", "learning_rate", "idle_fraction", "planned_step_seconds", "committed_step"}
        assert [name for name in wanted if f"coxswain_{name}" in lines] == []  # a loss of 0 after each restart


async def test_a_new_coordinator_behind_a_checkpoint_of_the_first_step_shows_that_step(tmp_path):
    job = small(tmp_path)
    store_with(job, manifest(job, 1))
    async with leading(job) as lead:
        await lead.until(lambda: lead.state.manifest)
        assert figures(lead.state.metrics, "coxswain_step", "coxswain_checkpoint_step") == [0.0, 1.0]


async def test_a_first_coordinator_shows_no_step_before_one_is_closed_and_whether_there_is_a_checkpoint_once_it_knows(
    tmp_path,
):
    """From 0 to the step of a checkpoint it would seem to change: no alert would say that a job stalls."""
    assert b"coxswain_checkpoint_step " not in build("coordinator").exposition()
    async with training(small(tmp_path)) as lead:
        lines = lead.state.metrics.exposition()
        assert b"coxswain_step " not in lines and b"coxswain_checkpoint_step 0.0" in lines
        await lead.close(0)
        await lead.until(lambda: lead.state.history.recent)
        assert figures(lead.state.metrics, "coxswain_step", "coxswain_checkpoint_step") == [0.0, 0.0]


async def test_a_checkpoint_that_is_older_than_the_last_step_leaves_the_step_as_it_is(tmp_path):
    async with training(small(tmp_path)) as lead:
        await lead.close(0, 1, 2, 3, 4)
        lead.save(3, 0, 1)
        await lead.until(lambda: lead.state.manifest)
        assert figures(lead.state.metrics, "coxswain_step", "coxswain_checkpoint_step") == [4.0, 3.0]


async def test_the_world_after_a_hang_asks_agents_for_stacks_and_the_one_after_a_crash_does_not(tmp_path):
    async with training(small(tmp_path)) as lead:
        why = "step 1 has not ended for 61 s (limit 60 s); not done by rank 1 on trainer-1"
        lead.driver.stall_detector.judge = lambda *_: why if lead.state.generation == 1 else ""
        await lead.until(lambda: lead.state.session.lost)
        assert (lead.state.failures, lead.state.session.lost.startswith(why)) == (1, True)
        assert lead.arrive(generation=1) == [wire.Registered(1, lost=1, stacks=True)] * 2
        lead.arrive(left=1)
        await lead.world(2)
        lead.leave(-9, 1)
        lead.state.mark_world_hung("rank 0 has been silent for 31 s")  # found as it was lost
        assert lead.arrive(generation=2) == [wire.Registered(2, lost=2)] * 2
        lead.arrive(left=2)
        await lead.world(3)
        assert lead.state.failures == 2


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


async def test_a_checkpoint_s_moments_serve_the_optimizer_that_made_them_and_no_other(tmp_path):
    job = small(tmp_path)
    async with training(job) as lead:
        await lead.saved(3)
    assert (found := CheckpointStore(job, store_of(job)).open()) and found.step == 3
    with pytest.raises(Refused, match=r"another optimizer\.kind: AdamW, this job's is Muon"):
        CheckpointStore(replace(job, optimizer=replace(job.optimizer, kind="Muon")), store_of(job)).open()


async def test_a_manifest_holds_what_an_export_makes_a_configuration_of(tmp_path):
    job = small(tmp_path)
    async with training(job) as lead:
        await lead.saved(3)
        found = lead.state.manifest
        assert (found.model, found.longest) == (job.model, job.batch.max_sequence_tokens)
        assert (found.tokenizer, found.vocabulary) == (job.mix.sources[0].tokenizer, 320)


async def test_a_coordinator_that_is_ended_logs_the_steps_whose_line_is_not_due(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    async with training(small(tmp_path)) as lead:
        lead.state.history.log = StepLog(lambda: 0.0)
        await lead.close(0, 1, 2)
        logged = caplog.text
    assert ("2: loss" in logged, "steps 1-2: loss" in caplog.text) == (False, True)


async def test_a_checkpoint_is_not_made_while_a_rank_has_not_saved(tmp_path):
    async with training(small(tmp_path)) as lead:
        await lead.close(0, 1, 2)
        lead.save(3, 0)
        await lead.close(3, 4)
        assert lead.keys("manifests/") == []


async def test_a_save_of_a_step_whose_manifest_is_made_counts_for_nothing(tmp_path):
    async with training(small(tmp_path)) as lead:
        await lead.saved(3)
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


async def test_the_first_of_two_faults_ends_the_job(tmp_path):
    job = small(tmp_path)
    store_with(job, manifest(job, 3))  # of another index
    async with leading(job) as lead:
        lead.executor.before["merge"] = lambda: lead.state.fail(wire.Fault("First", ""))
        lead.index()
        assert (await lead.work).reason == "First"


async def test_a_lost_world_is_replaced_once_all_of_its_workers_have_left_it(tmp_path):
    async with training(small(tmp_path)) as lead:
        lead.state.mark_world_lost("rank 1 ended")
        assert lead.arrive(generation=1) == [wire.Registered(1, lost=1)] * 2
        assert lead.state.registry.missing("trainer", 2)
        lead.arrive(left=1)
        await lead.world(2)
        assert not lead.state.session.adopted


async def test_the_first_cause_of_a_loss_counts_and_an_end_that_is_saved_is_no_loss(tmp_path):
    async with training(small(tmp_path, stop_steps=3)) as lead:
        state, session = lead.state, lead.state.session
        await lead.saved(3, end="Completed")
        state.mark_world_lost("too late")
        assert (session.lost, state.worlds_lost) == ("", 0)
    async with training(small(tmp_path / "other")) as lead:
        for why in ("first", "second"):
            lead.state.mark_world_lost(why)
        assert (lead.state.session.lost, lead.state.worlds_lost) == ("first", 1)


def test_an_exit_with_a_fault_does_not_replace_the_first_fault(tmp_path):
    state = JobState(small(tmp_path), build("coordinator"), None, lambda: 0.0)
    for reason in ("First", "Second"):
        state.add_exit(wire.WorkerExit(1, "trainer-0", 0, 0, 2, wire.Fault(reason, "")))
    assert state.fault == wire.Fault("First", "")


async def test_a_driver_whose_action_does_not_end_is_a_problem_that_only_a_restart_solves(tmp_path):
    async with leading(small(tmp_path)) as lead:
        reached = asyncio.Event()
        lead.executor.before["merge"], lead.executor.held["merge"] = reached.set, asyncio.Event()
        lead.index()
        lead.arrive()
        await asyncio.wait_for(reached.wait(), 60)
        began = time.monotonic()
        assert lead.driver.problem(began + LONGEST_ACTION - 60) == ""
        assert "has not advanced for 36" in lead.driver.problem(began + LONGEST_ACTION + 60)


async def test_a_driver_that_is_done_does_not_hang(tmp_path):
    async with leading(small(tmp_path)) as lead:
        lead.state.request_stop(wire.StopRequest("asked", -1))
        await asyncio.wait_for(lead.work, 60)
        assert lead.driver.problem(time.monotonic() + LONGEST_ACTION + 60) == ""


async def test_lines_of_steps_between_rare_checkpoints_are_stored_once(tmp_path):
    async with training(small(tmp_path)) as lead:
        lead.state.history.most_unsaved = 4
        await lead.close(0, 1, 2, 3)
        await lead.until(lambda: not lead.state.history.unsaved)
        before = lead.keys("steps/")
        await lead.close(4)
        assert len(before) == 1 and lead.keys("steps/") == before
