"""Worlds that go on from what workers hold: after a loss, with those present, and by planned changes."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from coxswain import wire
from coxswain.cost.change import change_peak
from coxswain.cost.memory import RESERVED
from coxswain.digests import tokens_digest
from coxswain.layout import Device, Replica, Stage, uniform_layout
from coxswain.live import Held, Holder
from coxswain.models import parameter_specs
from coxswain_coordinator import capacity
from tests.unit.coordinator_fakes import make_job, report_of, tokens_of
from tests.unit.test_coordinator_driver import Lead, small, training
from tests.unit.test_coordinator_parts import agents

pytestmark = pytest.mark.looptime


def holds(
    lead: Lead, step: int, pending: str = "", *, copies: bool = False, generation: int = 0
) -> list[wire.Register]:
    """Agents whose one worker each has left the current world, a rank each."""
    generation = generation or lead.state.generation
    return [
        replace(a, left=generation, held=(Held(0, generation, i, step, pending, (1 - i,) if copies else ()),))
        for i, a in enumerate(agents(2))
    ]


def register(lead: Lead, *members: wire.Register) -> None:
    for member in members:
        lead.state.register(member)


async def begun(lead: Lead, generation: int) -> None:
    """Waits until the world of this generation has plans."""
    await lead.until(
        lambda: lead.work.done() or (lead.state.generation == generation and lead.state.session.open_plan())
    )
    assert not lead.work.done(), lead.work.exception()


def lose(lead: Lead, rank: int) -> None:
    lead.leave(-9, rank)


def totals(lead: Lead, step: int, *ranks: int) -> list[wire.StepReport]:
    """Reports of these ranks with what each knows of all."""
    plan = lead.state.session.plans_from(step).plans[0]
    session = lead.state.session
    reports = [report_of(plan, seat.rank, seat.replica) for seat in session.world.seats]
    known = wire.Totals(sum(r.loss_sum for r in reports), sum(r.delivered for r in reports) % (1 << 64))
    return [replace(reports[rank], totals=known) for rank in ranks]


async def test_a_worker_whose_exit_no_coordinator_heard_of_ends_its_world_by_the_next_registration(tmp_path):
    async with training(small(tmp_path)) as lead:
        first, second = (replace(a, generation=1) for a in agents(2))
        register(lead, first, second)
        assert not lead.state.session.lost
        register(lead, replace(first, generation=0, left=1))
        assert lead.state.session.lost == "a worker of trainer-0 has ended"
        assert lead.state.failures == 1
        lose(lead, 0)
        assert lead.state.session.lost.startswith("rank 0 on trainer-0 ended: exit code -9"), "the exit says more"
        assert lead.state.failures == 1


async def test_an_agent_that_has_not_entered_the_world_yet_does_not_end_it(tmp_path):
    async with training(small(tmp_path)) as lead:
        register(lead, *agents(2))
        assert not lead.state.session.lost


async def test_a_world_whose_ranks_all_hold_their_shards_goes_on_at_their_step_without_a_checkpoint(tmp_path):
    async with training(small(tmp_path)) as lead:
        await lead.close(0, 1, 2, 3)
        digest = lead.state.session.book.stream_digests[4]
        lead.state.mark_world_lost("the network broke")
        register(lead, *holds(lead, 4))
        await begun(lead, 2)
        world, session = lead.state.session.world, lead.state.session
        assert (world.first_step, world.live.step, world.live.generation) == (4, 4, 1)
        assert world.live.holders == (Holder(0, 0), Holder(1, 1))
        assert (session.book.open, session.book.stream_digests[4]) == (4, digest)
        assert lead.keys("steps/") == ["steps/before-0000000004.jsonl"]
        await lead.close(4, 5)


async def test_a_killed_rank_costs_no_step_where_another_holds_its_copy(tmp_path):
    async with training(small(tmp_path)) as lead:
        await lead.close(0, 1, 2, 3)
        lose(lead, 1)
        one, two = holds(lead, 4, copies=True)
        register(lead, one, replace(two, held=()))
        await begun(lead, 2)
        assert lead.state.session.world.live.holders == (Holder(0, 0), Holder(1, 0, copy=True))
        assert lead.state.session.book.open == 4


async def test_a_killed_rank_without_a_copy_costs_the_steps_since_the_checkpoint(tmp_path):
    async with training(small(tmp_path)) as lead:
        await lead.close(0, 1, 2, 3)
        lose(lead, 1)
        one, two = holds(lead, 4)
        register(lead, one, replace(two, held=()))
        await begun(lead, 2)
        assert (lead.state.session.world.live, lead.state.session.book.open) == (UNSET, 0)


@pytest.mark.parametrize("reporter", [0, 1])
async def test_a_step_that_one_rank_reports_with_totals_closes_for_a_rank_that_was_killed_before_its_report(
    tmp_path, reporter
):
    async with training(small(tmp_path)) as lead:
        await lead.close(0, 1)
        session = lead.state.session
        for report in totals(lead, 2, reporter):
            lead.state.add_report(report)
        plan = session.plans_from(2).plans[0]
        lead.state.add_delivered(served_of(plan))
        lose(lead, 1 - reporter)
        members = holds(lead, 3, copies=True)
        register(lead, members[reporter], replace(members[1 - reporter], held=()))
        await begun(lead, 2)
        assert lead.state.session.book.open == 3
        line = lead.state.history.recent[-1]
        all_reports = [report_of(plan, seat.rank, seat.replica) for seat in session.world.seats]
        assert line.loss == sum(r.loss_sum for r in all_reports) / plan.labels
        assert line.delivered_digest == f"{sum(r.delivered for r in all_reports) % (1 << 64):016x}"


def served_of(plan: wire.StepPlan) -> wire.DeliveredDigests:
    served = tuple((i, tokens_digest(tokens_of(s))) for i, s in enumerate(plan.sequences))
    return wire.DeliveredDigests(plan.generation, plan.step, served)


async def test_a_step_whose_digests_never_come_is_computed_again_from_the_checkpoint(tmp_path, looptime):
    async with training(small(tmp_path)) as lead:
        await lead.close(0, 1)
        for report in totals(lead, 2, 0, 1):
            lead.state.add_report(report)
        lose(lead, 1)
        register(lead, *holds(lead, 3, copies=True))
        await begun(lead, 2)
        assert (lead.state.session.world.live, lead.state.session.book.open) == (UNSET, 0)
        assert looptime >= 2


async def test_a_step_whose_digests_come_within_two_seconds_is_not_computed_again(tmp_path, looptime):
    async with training(small(tmp_path)) as lead:
        await awaits_digests(lead)
        register(lead, *holds(lead, 3, copies=True))
        await asyncio.sleep(1.9)
        await gets_digests(lead)


async def awaits_digests(lead: Lead) -> None:
    """A lost world of two trainers whose step 2 all ranks have reported, and no constructor."""
    await lead.close(0, 1)
    for report in totals(lead, 2, 0, 1):
        lead.state.add_report(report)
    lose(lead, 1)


async def gets_digests(lead: Lead) -> None:
    """The next world begins at step 3."""
    lead.state.add_delivered(served_of(lead.state.session.plans_from(2).plans[0]))
    await begun(lead, 2)
    assert (lead.state.session.world.live.step, lead.state.session.book.open) == (3, 3)


async def test_the_seconds_for_reports_begin_again_where_a_trainer_that_holds_state_has_come_back(
    tmp_path,
):
    """A trainer that is gone again has what it sends unsent, too."""
    async with training(make_job(tmp_path, min_trainers=2)) as lead:
        await awaits_digests(lead)
        members = holds(lead, 3, copies=True)
        register(lead, *members)
        await asyncio.sleep(1.0)
        lead.state.registry.expect("trainer", "trainer-1")
        await asyncio.sleep(5.0)
        assert lead.state.generation == 1
        register(lead, replace(members[1], instance="two"))
        await asyncio.sleep(1.9)
        assert lead.state.generation == 1
        await gets_digests(lead)


@pytest.mark.parametrize(
    "lie", [Held(0, 1, 7, 4), Held(0, 1, 1, 4), Held(3, 1, 0, 4), Held(0, 9, 0, 4), Held(0, 1, 0, 400, "Agreed")]
)
async def test_a_worker_that_cannot_hold_what_it_says_is_not_believed(tmp_path, lie):
    async with training(small(tmp_path)) as lead:
        await lead.close(0, 1, 2, 3)
        lose(lead, 1)
        one, two = holds(lead, 4)
        register(lead, replace(one, held=(lie,)), two)
        await begun(lead, 2)
        assert (lead.state.session.world.live, lead.state.session.book.open) == (UNSET, 0)


# --- with those present ---------------------------------------------------------------------------------------------------


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


async def moved_to(lead: Lead, step: int) -> None:
    """All ranks get the directive, and their workers leave."""
    session = lead.state.session
    assert session.directive(step).end == "Moved"
    lead.state.notifier.notify()
    await lead.until(lambda: session.lost)
    held = [Held(seat.device.device, session.record.generation, seat.rank, step) for seat in session.world.seats]
    here = {seat.device.trainer: (h,) for seat, h in zip(session.world.seats, held, strict=True)}
    for member in lead.state.registry.of("trainer"):
        index = int(member.name[-1])
        lead.state.register(replace(member, left=session.record.generation, generation=0, held=here.get(index, ())))
    await begun(lead, session.record.generation + 1)


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


# --- planned changes ------------------------------------------------------------------------------------------------------


def one_replica() -> object:
    """Both devices as a pipeline."""
    layout = uniform_layout([Device(0, 0), Device(1, 0)], 2)
    stages = (Stage((Device(0, 0),), 0, 1), Stage((Device(1, 0),), 1, 2))
    return replace(layout, replicas=(Replica(stages),))


async def test_a_requested_layout_comes_at_a_step_boundary_and_no_step_is_repeated(tmp_path):
    job = make_job(tmp_path, batch=replace(make_job(tmp_path).batch, max_sequence_tokens=128))
    async with training(job) as lead:
        await lead.close(0, 1)
        lead.state.request_layout(one_replica(), "trainer-1 is slow")
        await lead.until(lambda: lead.state.session.move)
        step = lead.state.session.move.step
        await moved_to(lead, step)
        session = lead.state.session
        assert (session.record.layout, session.book.open, session.record.live.step) == (one_replica(), step, step)
        assert [(e.reason, e.warning) for e in lead.state.events.latest()][-1] == ("LayoutChanged", False)
        assert lead.state.failures == 0
        await lead.close(step)


async def test_a_layout_whose_state_does_not_fit_beside_the_present_one_comes_through_a_checkpoint(
    tmp_path, monkeypatch
):
    """A device of one byte too few; no step is repeated."""
    job = make_job(tmp_path, batch=replace(make_job(tmp_path).batch, max_sequence_tokens=128))
    async with training(job) as lead:
        await lead.close(0, 1)
        session, specs = lead.state.session, parameter_specs(job.model, lead.state.session.world.vocabulary)
        _, most = change_peak(job.model, specs, session.record.layout, one_replica(), 2, copies=False)
        monkeypatch.setattr(capacity, "device_memory", lambda _: RESERVED + most)
        assert capacity.change_fault(lead.state.sized_job, session.record.layout, one_replica()) == ""
        monkeypatch.setattr(capacity, "device_memory", lambda _: RESERVED + most - 1)
        lead.state.request_layout(one_replica(), "trainer-1 is slow")
        await lead.until(lambda: session.move)
        step = session.move.step
        assert session.directive(step).checkpoint
        lead.save(step, 0, 1, end="Moved")
        await lead.until(lambda: session.lost)
        register(lead, *holds(lead, step))
        await begun(lead, 2)
        record = lead.state.session.record
        assert (record.layout, record.first_step, record.live) == (one_replica(), step, UNSET)
        (changed,) = [e.message for e in lead.state.events.latest() if e.reason == "LayoutChanged"]
        assert "trainer-1 is slow; through a checkpoint: MemoryTooSmall: trainer-" in changed


async def test_a_smaller_size_saves_what_leaves_and_goes_on_with_the_rest(tmp_path):
    async with training(make_job(tmp_path)) as lead:
        await lead.close(0, 1)
        lead.state.resize(1)
        await lead.until(lambda: lead.state.session.move)
        session, step = lead.state.session, lead.state.session.move.step
        directive = session.directive(step)
        assert (directive.end, directive.checkpoint) == ("Moved", True)
        lead.save(step, 0, 1, end="Moved")
        await lead.until(lambda: session.lost)
        assert lead.state.manifest.step == step
        register(lead, *holds(lead, step))
        await begun(lead, 2)
        assert (len(lead.state.session.world.seats), lead.state.session.book.open) == (1, step)
        assert lead.state.session.record.size == 1


async def test_a_trainer_that_shall_leave_gives_its_state_to_the_next_world_where_a_loss_comes_first(tmp_path):
    async with training(make_job(tmp_path)) as lead:
        await lead.close(0, 1)
        lead.state.resize(1)
        lead.state.mark_world_lost("the network broke")
        register(lead, *holds(lead, 2))
        await begun(lead, 2)
        session = lead.state.session
        assert (session.record.live.step, len(session.world.seats), session.record.size) == (2, 2, 1)
        await lead.close(2)
        await lead.until(lambda: session.move)
        step = session.move.step
        assert session.directive(step).checkpoint
        lead.save(step, 0, 1, end="Moved")
        await lead.until(lambda: session.lost)
        register(lead, *holds(lead, step))
        await begun(lead, 3)
        assert (len(lead.state.session.world.seats), lead.state.session.book.open) == (1, step)


async def test_a_trainer_that_shall_leave_and_is_lost_is_not_waited_for_beyond_three_seconds(tmp_path, looptime):
    async with training(make_job(tmp_path)) as lead:
        await lead.close(0, 1)
        lead.state.resize(1)
        lose(lead, 1)
        register(lead, holds(lead, 2, copies=True)[0])
        await begun(lead, 2)
        session = lead.state.session
        assert (session.record.live.step, len(session.world.seats)) == (2, 1) and 3 <= looptime < 5
