"""Worlds that go on from what workers hold: after a loss, with those present, and by planned changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from coxswain import wire
from coxswain.cost.change import change_peak
from coxswain.cost.memory import RESERVED
from coxswain.digests import tokens_digest
from coxswain.errors import Stale
from coxswain.layout import Device, Replica, Stage, uniform_layout
from coxswain.live import Held, Holder
from coxswain.models import parameter_specs
from coxswain.planlog import Generation
from coxswain_coordinator import capacity
from coxswain_coordinator.planning.plan_log import PlanLog
from coxswain_coordinator.world.living import standings
from tests.unit.coordinator_fakes import make_job, report_of, tokens_of
from tests.unit.test_coordinator_driver import RIVALS, Lead, leading, small, training
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


async def saved_and_moved(lead: Lead, step: int, generation: int) -> None:
    """Two workers save at the boundary of a change, leave with what they hold, and the next world begins."""
    session = lead.state.session
    lead.save(step, 0, 1, end="Moved")
    await lead.until(lambda: session.lost)
    assert lead.state.manifest.step == step
    register(lead, *holds(lead, step))
    await begun(lead, generation)


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


ONE, TWO = uniform_layout([Device(0, 0)], 2), uniform_layout([Device(0, 0), Device(1, 0)], 2)
BEFORE = Generation(3, "one", 0, TWO, ("pod-0", "pod-1"), ())


@pytest.mark.parametrize(
    ("trainer", "held", "pod", "layout", "rank"),
    [
        (0, Held(0, 3, 0, 4), "pod-0", TWO, 0),
        (1, Held(0, 3, 1, 4, "Reduced", (0,)), "pod-1", TWO, 1),
        (1, Held(0, 3, 1, 4), "pod-1", ONE, None),  # its device has no seat
        (0, Held(0, 2, 0, 4), "pod-0", TWO, None),
        (0, Held(0, 3, 1, 4, "", (0,)), "pod-0", TWO, None),  # rank 1 was on another trainer
        (0, Held(1, 3, 0, 4), "pod-0", TWO, None),
        (1, Held(0, 3, -1, 4), "pod-1", TWO, None),
        (1, Held(0, 3, 2, 4), "pod-1", TWO, None),
        (1, Held(0, 3, 1, 4, "", (0,)), "another", TWO, None),
    ],
)
def test_a_worker_is_believed_only_what_its_device_and_pod_can_hold_of_that_generation(
    trainer, held, pod, layout, rank
):
    member = replace(agents(2)[trainer], pod=pod, held=(held,))
    assert list(standings(layout, [member], BEFORE)) == ([] if rank is None else [(rank, held)])


# --- what a world that is over, or another coordinator, cannot do ---------------------------------------------------------


def late_report(lead: Lead, plan: wire.StepPlan) -> None:
    lead.state.add_report(report_of(plan, 0, 0))


def late_digests(lead: Lead, plan: wire.StepPlan) -> None:
    lead.state.add_delivered(served_of(plan))


def late_save(lead: Lead, plan: wire.StepPlan) -> None:
    lead.state.add_saved(wire.ShardsSaved(1, plan.step, 0, 2, (), 0.1, "Moved"))


def late_heartbeat(lead: Lead, plan: wire.StepPlan) -> None:
    lead.state.heartbeat(1, 0, 7)


async def in_the_second_world(lead: Lead) -> wire.StepPlan:
    """The plan of an open step of the first one."""
    await lead.close(0, 1)
    plan = lead.state.session.plans_from(2).plans[0]
    lead.state.mark_world_lost("the network broke")
    register(lead, *holds(lead, 2))
    await begun(lead, 2)
    return plan


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


@pytest.mark.parametrize("behind", [1, 7])
async def test_an_agent_whose_workers_are_in_another_world_is_missing_until_they_have_left_it(tmp_path, behind):
    async with training(small(tmp_path)) as lead:
        await in_the_second_world(lead)
        member = replace(agents(2)[1], generation=behind)
        assert lead.state.register(member) == wire.Registered(2, lost=behind)
        assert lead.state.registry.missing("trainer", 2) == ["trainer-1"]
        lead.state.register(replace(member, generation=0, left=behind))
        assert lead.state.registry.missing("trainer", 2) == []


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


async def test_a_trainer_that_is_lost_while_its_world_is_recorded_is_not_in_that_world(tmp_path):
    async with training(small(tmp_path)) as lead:
        await lead.close(0, 1)
        lead.state.mark_world_lost("the network broke")
        one, two = holds(lead, 2, copies=True)
        register(lead, one, two)
        again = replace(two, instance="two", pod="new", held=())
        lead.executor.before["create_generation"] = lambda: register(lead, again)
        await begun(lead, 3)
        session = lead.state.session
        assert (session.record.trainers, session.book.open) == (("pod-0", "new"), 2)


async def test_living_state_of_the_step_of_the_newest_checkpoint_is_taken_rather_than_the_checkpoint(tmp_path):
    async with training(small(tmp_path)) as lead:
        await lead.close(0, 1, 2)
        lead.state.session.directive(3)
        lead.save(3, 0, 1)
        await lead.until(lambda: lead.state.session.saved == 3)
        lead.state.mark_world_lost("the network broke")
        register(lead, *holds(lead, 3, copies=True))
        await begun(lead, 2)
        assert lead.state.session.record.live.step == 3


async def test_a_world_that_is_to_end_begins_no_change(tmp_path):
    async with training(small(tmp_path)) as lead:
        await lead.close(0, 1)
        session = lead.state.session
        lead.state.request_stop(wire.StopRequest("suspend"))
        assert session.directive(2).end == "Suspended"
        lead.state.request_layout(one_replica(), "trainer-1 is slow")
        await asyncio.sleep(5)
        assert session.move is None and lead.state.changes.due(session.world.layout, {0, 1})


async def test_imports_that_end_while_a_world_is_recorded_leave_it_as_it_is(tmp_path):
    async with training(small(tmp_path)) as lead:
        await lead.close(0, 1)
        lead.state.mark_world_lost("the network broke")
        one, two = holds(lead, 2, copies=True)
        register(lead, one, replace(two, starting=True))
        lead.executor.before["create_generation"] = lambda: register(lead, two)
        await begun(lead, 2)


async def test_the_reason_of_a_lost_world_becomes_clearer_and_never_less_clear(tmp_path):
    async with training(small(tmp_path)) as lead:
        one, two = (replace(a, left=1) for a in agents(2))
        register(lead, replace(one, broken="Connection closed by peer"), two)
        assert lead.state.session.lost == "a worker of trainer-0 has lost its peers: Connection closed by peer"
        lose(lead, 1)
        register(lead, replace(one, broken="Connection closed by peer"), replace(two, broken="Connection reset"))
        assert lead.state.session.lost == "rank 1 on trainer-1 ended: exit code -9"
        assert lead.state.failures == 1


def suspend(lead: Lead) -> None:
    lead.state.request_stop(wire.StopRequest("suspend"))


def resize(lead: Lead) -> None:
    lead.state.session.request_move("trainer-2 joined")


@pytest.mark.parametrize("order", [suspend, resize])
async def test_a_worker_that_has_left_because_it_was_to_is_no_failure(tmp_path, order):
    async with training(small(tmp_path)) as lead:
        await lead.close(0, 1)
        order(lead)
        assert lead.state.session.directive(2).end in ("Suspended", "Moved")
        register(lead, replace(agents(2)[0], left=1))
        assert (lead.state.session.lost, lead.state.failures) == ("", 0)


async def test_a_worker_that_leaves_before_any_rank_is_to_leave_for_a_change_is_a_failure(tmp_path):
    async with training(small(tmp_path)) as lead:
        await lead.close(0, 1)
        resize(lead)
        register(lead, replace(agents(2)[0], left=1))
        assert (lead.state.session.lost, lead.state.failures) == ("a worker of trainer-0 has ended", 1)


async def test_a_worker_that_ends_behind_its_agents_registration_gives_the_next_world_nothing(tmp_path):
    """A world that counted on it would find its source incomplete, and all of its ranks would forget what they hold."""
    async with training(small(tmp_path)) as lead:
        await lead.close(0, 1)
        lose(lead, 1)
        one, two = holds(lead, 2, copies=True)
        one = replace(one, instance="a")
        register(lead, one)
        lose(lead, 0)
        register(lead, replace(two, held=()))
        assert lead.state.registry.missing("trainer", 2) == ["trainer-0"]
        assert not lead.state.registry.knows("a"), "so its poll for a world ends"
        await asyncio.sleep(1)
        assert lead.state.generation == 1
        register(lead, replace(one, held=()))
        await begun(lead, 2)
        assert (lead.state.session.world.live, lead.state.session.book.open) == (UNSET, 0)


# --- a stop without a world -----------------------------------------------------------------------------------------------


async def test_a_stop_that_comes_before_a_new_coordinator_has_the_running_world_saves_its_steps(tmp_path):
    async with led_again(tmp_path) as lead:
        suspend(lead)
        await asyncio.sleep(5)
        register(lead, *(replace(a, generation=1) for a in agents(2)))
        await begun(lead, 1)
        await lead.close(0)
        await saved_and_suspended(lead, 1)


@pytest.mark.parametrize("seconds", [1, 30])
async def test_a_stop_that_comes_while_a_world_is_lost_saves_the_steps_that_workers_hold(tmp_path, seconds):
    """Also where one of them computes for long in that world."""
    async with training(make_job(tmp_path, min_trainers=2)) as lead:
        await lead.close(0, 1)
        lead.state.mark_world_lost("the network broke")
        suspend(lead)
        one, two = holds(lead, 2)
        register(lead, one, replace(agents(2)[1], generation=1))
        await asyncio.sleep(seconds)
        register(lead, two)
        await begun(lead, 2)
        await saved_and_suspended(lead, 2)


async def saved_and_suspended(lead: Lead, step: int) -> None:
    directive = lead.state.session.directive(step)
    assert (directive.end, directive.checkpoint) == ("Suspended", True)
    lead.save(step, 0, 1, end="Suspended")
    lead.leave(3)
    finished = await lead.work
    assert (finished.exit_code, finished.message) == (3, f"suspended before step {step}")
    assert lead.state.manifest.step == step


@pytest.mark.parametrize(("back", "seconds"), [((), 15), ((0,), 15), ((0, 1), 0)])
async def test_a_stop_waits_no_longer_than_a_quarter_of_a_minute_and_not_at_all_where_nothing_is_held(
    tmp_path, looptime, back, seconds
):
    async with training(make_job(tmp_path, min_trainers=2)) as lead:
        await lead.close(0, 1)
        lead.state.mark_world_lost("the network broke")
        suspend(lead)
        register(lead, *(replace(agents(2)[index], left=1) for index in back))
        finished = await lead.work
        assert (finished.message, float(looptime)) == ("suspended before step 0", seconds)


async def test_a_stop_of_a_lost_world_whose_steps_are_all_saved_waits_for_nothing(tmp_path, looptime):
    async with training(small(tmp_path)) as lead:
        await lead.close(0, 1, 2)
        lead.save(3, 0, 1)
        await lead.until(lambda: lead.state.manifest)
        began = float(looptime)
        lead.state.mark_world_lost("the network broke")
        suspend(lead)
        assert ((await lead.work).message, float(looptime) - began) == ("suspended before step 3", 0)


async def test_a_checkpoint_that_is_newer_than_what_workers_hold_is_used_at_once(tmp_path, looptime):
    async with training(small(tmp_path)) as lead:
        await lead.close(0, 1, 2)
        lead.save(3, 0, 1)
        await lead.until(lambda: lead.state.manifest)
        lead.state.mark_world_lost("the network broke")
        register(lead, *holds(lead, 2))
        await begun(lead, 2)
        assert (lead.state.session.world.live, lead.state.session.book.open) == (UNSET, 3)
        assert looptime < 1


# --- a new coordinator ----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def led_again(folder: Path, **changes: Any) -> AsyncIterator[Lead]:
    """A second coordinator of a job whose first one has ended after a world's first step."""
    async with training(small(folder)) as lead:
        await lead.close(0)
    async with leading(small(folder, **changes), "two") as lead:
        lead.index()
        yield lead


def out(step: int = 1) -> list[wire.Register]:
    """Agents whose workers have left the first world."""
    return [replace(a, left=1, held=(Held(0, 1, i, step),)) for i, a in enumerate(agents(2))]


async def test_a_new_coordinator_counts_a_world_as_lost_that_its_workers_have_left_once_all_of_them_are_there(tmp_path):
    async with led_again(tmp_path) as lead:
        register(lead, out()[0])
        await asyncio.sleep(5)
        assert (lead.state.generation, lead.keys("log/takeovers/")) == (0, [])
        register(lead, out()[1])
        await begun(lead, 2)  # none needs to register again
        assert [e.reason for e in lead.state.events.latest()][-2:] == ["Resumed", "WorkerRestarted"]
        assert len(lead.keys("log/takeovers/")) == 1


async def test_a_worker_that_is_in_a_world_still_that_another_has_left_must_leave_it_first(tmp_path):
    async with led_again(tmp_path) as lead:
        inside = replace(agents(2)[0], generation=1)
        register(lead, inside, out()[1])
        await lead.until(lambda: lead.state.generation == 1)
        assert lead.state.registry.missing("trainer", 2) == ["trainer-0"]
        assert lead.state.register(inside) == wire.Registered(1, lost=1)
        register(lead, out()[0])
        await begun(lead, 2)


async def test_a_takeover_that_another_coordinator_was_faster_with_is_repeated(tmp_path):
    async with led_again(tmp_path) as lead:
        log, take_over = lead.driver._log, lead.driver._log.take_over

        def beaten(generation: int, author: str) -> bool:
            log.take_over = take_over
            return not PlanLog(lead.store).take_over(generation, "rival")

        log.take_over = beaten
        register(lead, *out())
        await begun(lead, 2)
        assert len(lead.keys("log/takeovers/")) == 2


@pytest.mark.parametrize(
    ("changes", "members"),
    [({"stop_steps": 9}, out()), ({}, agents(2)), ({}, [replace(a, pod=f"{a.pod}-again") for a in out()])],
    ids=["another job", "nothing held", "other pods"],
)
async def test_a_world_that_cannot_go_on_is_not_taken_over_and_the_next_begins_at_the_checkpoint(
    tmp_path, changes, members
):
    async with led_again(tmp_path, **changes) as lead:
        register(lead, *members)
        await begun(lead, 2)
        assert (lead.state.session.world.live, lead.keys("log/takeovers/")) == (UNSET, [])


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
        await saved_and_moved(lead, step, 2)
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
        await saved_and_moved(lead, step, 2)
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
        await saved_and_moved(lead, step, 3)
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
