"""Confirmed speeds on their way into placements: how far plans are committed ahead, and what the plan log says of them."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from msgspec import UNSET

from coxswain.config import EvaluationConfig, StragglerConfig
from coxswain.ladder.lead import LONG, PLANNED
from coxswain.membership.stream import initial_cursor
from coxswain_coordinator.planning.mix_history import MixHistory
from coxswain_coordinator.planning.plan_log import PlanLog
from coxswain_coordinator.state.notifier import Topic
from tests.unit.coordinator_fakes import make_job
from tests.unit.coordinator_lead import ONSET, run_steps, training
from tests.unit.coordinator_samples import committed, session
from tests.unit.test_coordinator_committer import committer, evaluated_job

pytestmark = pytest.mark.looptime

SPEEDS = (1.0, 0.5)


def job_of(folder, action: str = "Rebalance"):
    return make_job(folder, stop_steps=64, stragglers=StragglerConfig(action=action))


async def test_a_confirmed_speed_is_in_the_plan_and_record_of_a_step_at_most_three_behind_the_one_that_runs(
    tmp_path,
):
    async with training(job_of(tmp_path)) as lead:
        session = lead.state.session
        await run_steps(lead, ONSET)
        assert all(not plan.speeds for plan in session.plans_from(0).plans)
        while not lead.state.stragglers.speeds and session.book.open < ONSET + 10:
            await run_steps(lead, 1, 2.0)
        running, ahead = session.begun, session.committed
        assert lead.state.stragglers.speeds and ahead <= running + 1 + PLANNED
        await run_steps(lead, 4, 2.0)
        parts = [PlanLog(lead.store).placement(1, segment, part) for segment in range(4) for part in range(8)]
        by_step = {r.first_step + i: r.speeds for r in parts if r for i in range(len(r.placements))}
        first = min(step for step, speeds in by_step.items() if speeds)
        assert running < first <= running + 1 + PLANNED
        assert by_step[first] == (1.0, pytest.approx(0.5, rel=0.03))
        assert session.open_plan().speeds == by_step[session.book.open]
        assert "from step" in lead.state.stragglers.reports[0].action


async def test_where_speeds_matter_two_steps_have_plans_ahead_and_a_segment_has_its_memberships(tmp_path):
    async with training(job_of(tmp_path)) as lead:
        session = lead.state.session
        for _ in range(10):
            await lead.until(lambda: session.committed == session.begun + 1 + PLANNED)
            assert MixHistory(PlanLog(lead.store)).first_step() == -(-session.committed // 8) * 8
            await run_steps(lead, 1)


async def test_in_long_steps_the_last_plan_ahead_waits_for_the_reports_of_the_step_before_the_one_that_runs(tmp_path):
    async with training(job_of(tmp_path)) as lead:
        session = lead.state.session
        await run_steps(lead, 4, seconds=LONG)
        assert session.directive(4) and session.begun == 4 and session.book.open == 4
        await lead.until(lambda: session.committed == 4 + 1 + PLANNED)
        assert session.directive(5) and session.begun == 5
        lead.state.stragglers.speeds = (1.0, 0.25)
        lead.state.notifier.notify(Topic.ANY)
        await asyncio.sleep(60)
        assert session.committed == 4 + 1 + PLANNED  # step 4 is not closed: its reports may show other speeds
        lead.state.guarded = lambda *_: None
        await lead.close(4)
        await lead.until(lambda: session.committed == 5 + 1 + PLANNED)
        assert session.plans_from(5 + PLANNED).plans[0].speeds == (1.0, 0.25)


async def test_in_shorter_steps_a_plan_waits_for_no_report(tmp_path):
    async with training(job_of(tmp_path)) as lead:
        session = lead.state.session
        await run_steps(lead, 4, seconds=LONG - 0.01)
        for step in (4, 5):
            assert session.directive(step)
            await lead.until(lambda step=step: session.committed == step + 1 + PLANNED)
        assert session.book.open == 4


def test_a_plan_waits_for_the_step_before_the_one_that_has_begun_and_for_no_other(tmp_path):
    s = session(make_job(tmp_path))
    s.add(committed(*range(4)))
    assert [s.wanted_plans(2, waits) for waits in (False, True)] == [-2, -2]
    s.begin(0)
    assert [s.wanted_plans(2, waits) for waits in (False, True)] == [-1, -1]  # no step is before it
    s.begin(1)
    assert [s.wanted_plans(2, waits) for waits in (False, True)] == [0, -1]
    s.begin(2)
    assert [s.wanted_plans(2, waits) for waits in (False, True)] == [1, 1]  # reports are late: no plan may be


@pytest.mark.parametrize("action", ["None", "Warn"])
async def test_where_speeds_reach_no_plan_the_look_ahead_is_as_long_as_ever(tmp_path, action):
    async with training(job_of(tmp_path, action)) as lead:
        await run_steps(lead, 2)
        await lead.until(lambda: lead.state.session.committed >= 16)
        assert lead.state.session.needs_plans(8) is False


async def test_only_the_rank_that_is_to_probe_finds_that_in_its_directive(tmp_path):
    async with training(job_of(tmp_path)) as lead:
        session = lead.state.session
        await run_steps(lead, 2)
        lead.state.stragglers.probes = frozenset({1})
        await lead.until(lambda: session.directive(2))
        found = [session.part_of(session.directive(2), session.cut_of_rank(r), r).probe for r in range(2)]
        assert found == [UNSET, True]
        await lead.until(lambda: session.directive(3))
        assert session.part_of(session.directive(3), session.cut_of_rank(1), 1).probe is UNSET


# --- segments in parts -----------------------------------------------------------------------------------------------


def by_ones(c, until: int, speeds=lambda step: ()):
    """All plans up to a step, committed one after another."""
    cursor, plans, found = initial_cursor(c.job.mix), [], None
    while cursor.step < until:
        found = c.commit(cursor, 100, most=1, speeds=speeds(cursor.step))
        plans += found.plans
        assert found.next == plans[-1].step + 1 and c.mixes.first_step() == cursor.step // 8 * 8 + 8
        cursor = found.cursors[found.next]
    return plans


def test_steps_that_are_committed_one_by_one_are_those_of_a_whole_segment(tmp_path):
    whole = committer(make_job(tmp_path / "whole")).commit(initial_cursor(make_job(tmp_path).mix), 100)
    assert by_ones(committer(make_job(tmp_path / "ones")), 8) == list(whole.plans)


def test_an_evaluation_that_is_due_late_in_a_segment_is_placed_with_its_first_step(tmp_path):
    job = evaluated_job(tmp_path / "ones")
    whole = committer(evaluated_job(tmp_path / "whole")).commit(initial_cursor(job.mix), 100)
    plans = by_ones(committer(job), 8)
    assert plans == list(whole.plans)
    assert any(plan.evaluation for plan in plans) and not plans[0].evaluation
    assert isinstance(job.evaluation, EvaluationConfig)


def test_a_coordinator_that_takes_over_keeps_the_speeds_that_steps_were_placed_with(tmp_path):
    first = committer(make_job(tmp_path))
    plans = by_ones(first, 4, lambda step: SPEEDS if step >= 2 else ())
    assert [plan.speeds for plan in plans] == [(), (), SPEEDS, SPEEDS]
    again = dataclasses.replace(first).commit(initial_cursor(first.job.mix), 100, speeds=(0.25, 1.0))
    assert list(again.plans[:4]) == plans
    assert {plan.speeds for plan in again.plans[4:]} == {(0.25, 1.0)}


def test_a_slow_replica_gets_less_work(tmp_path):
    tokens = []
    for name, speeds in (("even", ()), ("slow", (1.0, 0.25))):
        found = committer(make_job(tmp_path / name)).commit(initial_cursor(make_job(tmp_path).mix), 100, speeds=speeds)
        tokens.append(sum(s.stop - s.start for p in found.plans for t in p.tasks for s in t.slices if s.replica == 1))
    assert tokens[1] < 0.6 * tokens[0]
