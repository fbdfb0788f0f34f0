"""Worlds that go on from what workers hold after a loss, and those that must not."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from coxswain import wire
from coxswain.layout import Device, uniform_layout
from coxswain.live import Held, Holder
from coxswain.planlog import Generation, steps_key
from coxswain_coordinator.world.living import generations_held, standings
from tests.unit.coordinator_fakes import make_job, report_of
from tests.unit.coordinator_lead import Lead, begun, holds, led_again, lose, register, served_of, small, training
from tests.unit.coordinator_samples import agents

pytestmark = pytest.mark.looptime


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
        assert lead.keys("steps/") == [steps_key(4, 1)]
        await lead.close(4, 5)


async def test_the_lines_of_the_steps_before_a_world_that_goes_on_from_memory_are_not_stored_again(tmp_path):
    async with training(small(tmp_path)) as lead:
        await lead.close(0, 1, 2, 3)
        lead.state.mark_world_lost("the network broke")
        register(lead, *holds(lead, 4))
        await begun(lead, 2)
        await lead.saved(6)
        stored = {key: lead.store.get(key).count(b"\n") for key in lead.keys("steps/")}
        assert stored == {steps_key(4, 1): 4, steps_key(6, 2): 2}


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
PAIR = uniform_layout([Device(0, 0), Device(0, 1)], 2)


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
        (0, Held(1, 3, 0, 4), "pod-0", PAIR, None),  # rank 0 was on another device
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
    other = Held(1, 3, 0, 4)  # of a device without a seat: it says nothing of the next one
    both = replace(member, held=(other, held))
    assert list(standings(layout, [both], BEFORE)) == list(standings(layout, [member], BEFORE))


async def lost(lead: Lead) -> list[wire.Register]:
    """Loses a world behind step 2; returns what its two agents say, all of whose workers hold the state and a copy."""
    await lead.close(0, 1)
    lead.state.mark_world_lost("the network broke")
    return holds(lead, 2, copies=True)


@pytest.mark.parametrize("work", ["create_generation", "drop_belated"])
async def test_a_trainer_that_is_lost_while_its_world_is_recorded_is_not_in_that_world(tmp_path, work):
    async with training(small(tmp_path)) as lead:
        one, two = await lost(lead)
        register(lead, one, two)
        again = replace(two, instance="two", pod="new", held=())
        lead.executor.before[work] = lambda: register(lead, again)
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


async def test_imports_that_end_while_a_world_is_recorded_leave_it_as_it_is(tmp_path):
    async with training(small(tmp_path)) as lead:
        one, two = await lost(lead)
        register(lead, one, replace(two, starting=True))
        lead.executor.before["create_generation"] = lambda: register(lead, two)
        await begun(lead, 2)


@pytest.mark.parametrize("change", [{"pod": "new", "instance": "new"}, {"left": 1, "held": ()}], ids=["pod", "worker"])
async def test_a_world_is_not_entered_where_a_trainer_has_changed_while_it_was_recorded(tmp_path, change):
    async with training(small(tmp_path)) as lead:
        one, two = await lost(lead)
        register(lead, one, two)
        lead.executor.before["create_generation"] = lambda: register(lead, replace(two, **change))
        await begun(lead, 3)
        assert lead.state.session.record.trainers[1] == change.get("pod", two.pod)


async def test_the_reason_of_a_lost_world_becomes_clearer_and_never_less_clear(tmp_path):
    async with training(small(tmp_path)) as lead:
        one, two = (replace(a, left=1) for a in agents(2))
        register(lead, replace(one, broken="Connection closed by peer"), two)
        assert lead.state.session.lost == "a worker of trainer-0 has lost its peers: Connection closed by peer"
        lose(lead, 1)
        register(lead, replace(one, broken="Connection closed by peer"), replace(two, broken="Connection reset"))
        assert lead.state.session.lost == "rank 1 on trainer-1 ended: exit code -9"
        assert lead.state.failures == 1


async def test_a_worker_without_memory_is_the_reason_although_its_peers_report_its_loss_first(tmp_path):
    async with training(small(tmp_path)) as lead:
        await lead.close(0, 1)
        one, two = holds(lead, 2)
        register(lead, replace(one, broken="Connection closed by peer"), replace(two, fault="out of memory"))
        why = "a worker of trainer-1 has left by an error of its own: out of memory"
        assert (lead.state.session.lost, lead.state.failures) == (why, 1)
        register(lead, replace(one, broken="Connection reset"), replace(one, fault="shapes do not match"))
        assert (lead.state.session.lost, lead.state.failures) == (why, 1), "what is as near to the cause comes too late"
        await begun(lead, 2)
        event = lead.state.events.latest()[-1]
        assert (event.reason, event.message.startswith(why), event.warning) == ("WorkerRestarted", True, True)


async def test_a_new_coordinator_names_a_workers_own_error_of_a_world_that_was_left_without_a_coordinator(tmp_path):
    async with led_again(tmp_path) as lead:
        one, two = holds(lead, 1, generation=1)
        register(lead, replace(one, broken="Connection reset"), replace(two, fault="out of memory"))
        await begun(lead, 2)
        assert lead.state.events.latest()[-1].reason == "WorkerRestarted"
        assert (
            "a worker of trainer-1 has left by an error of its own: out of memory"
            in lead.state.events.latest()[-1].message
        )


async def test_the_end_of_a_worker_of_an_older_world_does_not_explain_why_the_newest_one_was_left(tmp_path):
    async with led_again(tmp_path) as lead:
        lead.state.add_exit(wire.WorkerExit(0, "trainer-0", 0, 0, -9))
        register(lead, *holds(lead, 1, generation=1))
        await begun(lead, 2)
        event = lead.state.events.latest()[-1]
        assert (event.reason, event.message.split(";")[0]) == (
            "Resumed", "some of its workers left it while there was no coordinator"
        )  # fmt: skip


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


async def test_a_checkpoint_that_is_newer_than_what_workers_hold_is_used_at_once(tmp_path, looptime):
    async with training(small(tmp_path)) as lead:
        await lead.saved(3)
        lead.state.mark_world_lost("the network broke")
        register(lead, *holds(lead, 2))
        await begun(lead, 2)
        assert (lead.state.session.world.live, lead.state.session.book.open) == (UNSET, 3)
        assert looptime < 1


def test_what_was_cut_for_the_newest_generation_is_looked_for_first():
    """A worker that missed a change may hold an older one, of an earlier step."""
    first, second = agents(2)
    both = replace(first, held=(Held(0, 3, 0, 8), Held(0, 12, 0, 9)))
    assert generations_held([second, replace(second, held=(Held(0, 4, 1, 8),)), both]) == [12, 4, 3]
