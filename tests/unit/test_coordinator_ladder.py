"""The ladder in the whole coordinator: a change that it asks for, and what the report says of a node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from coxswain.config import StragglerConfig
from coxswain.ladder.values import Option, Options
from coxswain.layout import Device, Layout
from coxswain.live import Held
from coxswain.stragglers.values import Cause
from coxswain.wire import Fault, NodeRequest
from coxswain_coordinator.api.report import job_report
from coxswain_coordinator.stragglers.figures import Measured
from coxswain_coordinator.stragglers.ladder import Ladder
from coxswain_coordinator.stragglers.words import Straggler
from tests.unit.coordinator_fakes import make_job
from tests.unit.coordinator_lead import (
    ONSET,
    Lead,
    begun,
    holds,
    leading,
    moved_to,
    one_replica,
    register,
    run_steps,
    saved_and_moved,
    training,
)
from tests.unit.coordinator_samples import agents
from tests.unit.ladder_samples import as_planned, at_once

pytestmark = pytest.mark.looptime


@pytest.mark.parametrize("action", ["Migrate", "Rebalance"])
async def test_a_confirmed_straggler_leads_to_one_planned_change_under_migrate_and_to_none_under_rebalance(
    tmp_path, action
):
    batch = replace(make_job(tmp_path).batch, max_sequence_tokens=128)
    job = make_job(tmp_path, stop_steps=64, batch=batch, stragglers=StragglerConfig(action=action))
    async with training(job) as lead:
        ladder, session = lead.state.ladder, lead.state.session

        def planned(job, vocabulary, layout, speeds, least_gain) -> Options:
            return Options(layout, dict(speeds), 2.0, 1.0, (Option("Layers", one_replica(), 1.5, 0.5),))

        ladder.beside, ladder.planner, ladder.judge = at_once, planned, as_planned
        await run_steps(lead, ONSET)
        while not session.move and session.book.open < ONSET + 20:
            await run_steps(lead, 1, 3.0)
        if action == "Rebalance":
            assert session.move is None
            return
        step = session.move.step
        assert session.move.saves is False and ONSET < step < ONSET + 20
        await moved_to(lead, step)
        session = lead.state.session
        assert (session.record.layout, session.book.open, session.record.live.step) == (one_replica(), step, step)
        event = lead.state.events.latest()[-1]
        assert event.reason == "LayoutChanged" and "because of trainer-1 device 0: 1 x tp1pp2 is predicted to save" in (
            event.message
        )
        assert lead.state.failures == 0 and not lead.state.changes.why


class PlannerBeside:
    """The planner of layouts: it is asked as a step closes, and answers once it is let go."""

    def __init__(self) -> None:
        self.asked, self.go, self.ended = asyncio.Event(), asyncio.Event(), ""

    async def __call__(self, planner, job, vocabulary, layout, speeds, least_gain) -> Options:
        self.asked.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.ended = "cancelled"
            raise
        self.ended = "answered"
        return Options(layout, dict(speeds), 2.0, 1.0, (Option("Layers", one_replica(), 1.5, 0.5),))


@asynccontextmanager
async def planning(folder) -> AsyncIterator[tuple[Lead, PlannerBeside]]:
    """A job whose ladder plans a layout at this moment, because of a slow device."""
    batch, beside = replace(make_job(folder).batch, max_sequence_tokens=128), PlannerBeside()
    async with leading(make_job(folder, batch=batch, stragglers=StragglerConfig(action="Migrate"))) as lead:
        state = lead.state
        judge = as_planned
        state.ladder = Ladder(lead.job, state.request_layout, state.record_event, beside, judge=judge)
        lead.index()
        lead.arrive()
        await lead.world()
        device = Straggler("trainer-1", 0, "node-1", 3.0, 0, 1.0, Cause.DEVICE, 1, 0.5)
        state.ladder.stepped(Measured(0, 2.0, 0.0, ()), [device])
        await beside.asked.wait()
        yield lead, beside


@pytest.mark.parametrize("is_lost", [True, False])
async def test_a_layout_that_is_planned_for_a_world_that_is_lost_meanwhile_is_not_requested(tmp_path, is_lost):
    async with planning(tmp_path) as (lead, beside):
        if is_lost:
            lead.state.mark_world_lost("the network broke")
        beside.go.set()
        await asyncio.sleep(1)
        assert (beside.ended, lead.state.changes.layout) == ("answered", None if is_lost else one_replica())


async def test_no_planner_of_layouts_goes_on_behind_the_end_of_the_job(tmp_path):
    async with planning(tmp_path) as (lead, beside):
        lead.state.fail(Fault("Diverged", "the loss is not finite"))
        lead.state.notifier.notify()
        await lead.work
        await asyncio.sleep(0)
        assert beside.ended == "cancelled"


async def test_a_world_that_fails_before_its_requested_change_keeps_the_layout_that_it_had(tmp_path):
    job = make_job(tmp_path, batch=replace(make_job(tmp_path).batch, max_sequence_tokens=128))
    async with training(job) as lead:
        await lead.close(0, 1)
        before = lead.state.session.record.layout
        lead.state.request_layout(one_replica(), "trainer-1 is slow")
        lead.state.mark_world_lost("rank 1 ended")
        register(lead, *holds(lead, 2))
        await begun(lead, 2)
        assert lead.state.session.record.layout == before and not lead.state.changes.why


@pytest.mark.parametrize("steps", [0, 1])
async def test_a_changed_layout_whose_world_fails_before_a_step_is_left_for_the_one_before(tmp_path, steps):
    job = make_job(tmp_path, batch=replace(make_job(tmp_path).batch, max_sequence_tokens=128))
    async with training(job) as lead:
        session = lead.state.session
        before = session.record.layout
        lead.state.request_layout(one_replica(), "trainer-1 is slow")
        while not session.move:
            await run_steps(lead, 1)
        await run_steps(lead, session.move.step - session.book.open)
        await moved_to(lead, session.move.step)
        assert lead.state.session.record.layout == one_replica()
        await run_steps(lead, steps)
        lead.state.fail_world("rank 1 ended: out of memory")
        register(lead, *holds(lead, lead.state.session.book.open))
        await begun(lead, 3)
        assert lead.state.session.record.layout == (one_replica() if steps else before)
        assert lead.state.failures == 1


@pytest.mark.parametrize(("steps", "worlds"), [(0, 1), (1, 3)], ids=["at once", "behind its first step"])
async def test_a_layout_that_cannot_run_is_left_though_it_is_predicted_to_be_the_faster_one(
    tmp_path, monkeypatch, steps, worlds
):
    """Without the slow device a step is faster by the cost model, also as the layout that is whole after a failure."""
    job = make_job(tmp_path, batch=replace(make_job(tmp_path).batch, max_sequence_tokens=128))
    async with training(job) as lead:
        session, slow = lead.state.session, Device(1, 0)
        before = session.record.layout
        aside = Layout(before.replicas[:1], (slow,))
        monkeypatch.setattr(lead.state.ladder, "speeds_of", lambda pods: {slow: 0.01})
        lead.state.request_layout(aside, "trainer-1 is slow")
        while not session.move:
            await run_steps(lead, 1)
        step = session.move.step
        await run_steps(lead, step - session.book.open)
        assert session.directive(step).end == "Moved"
        await saved_and_moved(lead, step, 2)
        await run_steps(lead, steps)
        for _ in range(worlds):
            assert lead.state.session.record.layout == aside
            lead.state.fail_world("rank 0 ended: out of memory")
            held = (Held(0, lead.state.generation, 0, lead.state.session.book.open),)
            first, second = (replace(agent, left=lead.state.generation) for agent in agents(2))
            register(lead, replace(first, held=held), second)
            await begun(lead, lead.state.generation + 1)
        assert lead.state.session.record.layout == before
        await run_steps(lead, 1)
        assert lead.state.failures == 0


async def test_the_report_names_the_node_that_the_ladder_wants_away(tmp_path):
    async with training(make_job(tmp_path)) as lead:
        assert job_report(lead.state).replace_node is None
        lead.state.ladder.request = NodeRequest("node-1", "trainer-1", "slow")
        assert job_report(lead.state).replace_node == NodeRequest("node-1", "trainer-1", "slow")
