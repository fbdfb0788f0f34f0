"""Planned changes of a running world: another layout, another number of trainers."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from coxswain import wire
from coxswain.config import JobConfig, ParallelConfig, RecoveryConfig
from coxswain.cost.change import change_peak
from coxswain.cost.memory import RESERVED
from coxswain.layout import Device, Layout, Replica, Stage, layout_for
from coxswain.models import parameter_specs
from coxswain_coordinator import capacity
from coxswain_coordinator.world import resize as sizes
from coxswain_train.worker.directives import autonomous_directive
from tests.unit.coordinator_fakes import make_job
from tests.unit.coordinator_lead import (
    Lead,
    begun,
    holds,
    leading,
    lose,
    moved_to,
    one_replica,
    register,
    saved_and_moved,
    small,
    suspend,
    training,
)
from tests.unit.coordinator_samples import agents

pytestmark = pytest.mark.looptime


async def test_a_world_that_is_to_end_begins_no_change(tmp_path):
    async with training(small(tmp_path)) as lead:
        await lead.close(0, 1)
        session = lead.state.session
        lead.state.request_stop(wire.StopRequest("suspend"))
        assert session.directive(2).end == "Suspended"
        lead.state.request_layout(one_replica(), "trainer-1 is slow")
        await asyncio.sleep(5)
        assert session.move is None and lead.state.changes.due(session.world.layout, {0, 1})


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


async def test_a_planned_change_begins_only_once_every_rank_has_done_the_step_before_it(tmp_path):
    """The directive of one rank decides it while a peer has not reported that step."""
    async with training(small(tmp_path)) as lead:
        await lead.close(0)
        session = lead.state.session
        assert session.directive(1) and session.request_move("trainer-2 joined")
        assert session.directive(2).end == "Moved"
        lead.state.notifier.notify()
        await asyncio.sleep(1)
        assert session.lost == ""
        await lead.close(1)
        await lead.until(lambda: session.lost)
        assert session.planned


async def test_a_layout_whose_state_does_not_fit_beside_the_present_one_comes_through_a_checkpoint(
    tmp_path, monkeypatch
):
    """A device of one byte too few; no step is repeated."""
    job = make_job(tmp_path, batch=replace(make_job(tmp_path).batch, max_sequence_tokens=128))
    async with training(job) as lead:
        await lead.close(0, 1)
        session, specs = lead.state.session, parameter_specs(job.model, lead.state.session.world.vocabulary)
        _, most = change_peak(specs, job.model.layers, session.record.layout, one_replica(), 2, copies=False)
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


@pytest.mark.parametrize("change", ["layout", "size"])
async def test_copies_that_are_larger_on_other_nodes_count_where_a_change_is_judged(tmp_path, monkeypatch, change):
    """Replicas of two unequal stages, each replica on one node: else workers run out of memory."""
    parallel = ParallelConfig(tokens_per_replica=256, pipeline=2)
    job = make_job(tmp_path, trainers=4, parallelism=parallel, recovery=RecoveryConfig(copies=True))
    job, nodes = replace(job, model=replace(job.model, layers=7)), ("a", "a", "b", "b")
    six = layout_for([Device(trainer, 0) for trainer in range(6)], 7, parallel)
    async with training(job) as lead:
        register(lead, *(replace(agent, node=node) for agent, node in zip(agents(4), nodes, strict=True)))
        await lead.close(0, 1)
        session, specs = lead.state.session, parameter_specs(job.model, lead.state.session.world.vocabulary)
        before, after = session.record.layout, in_two_stages(5) if change == "layout" else six
        most, unknown = (change_peak(specs, 7, before, after, 2, True, nodes=known)[1] for known in (nodes, ()))
        assert most > unknown
        monkeypatch.setattr(capacity, "device_memory", lambda _: RESERVED + most - 1)
        if change == "size":
            reply = await sizes.resize(lead.state, 6)
            assert (reply.state, "MemoryTooSmall: trainer-" in reply.message) == ("Refused", True)
            return
        lead.state.request_layout(after, "trainer-1 is slow")
        await lead.until(lambda: session.move)
        assert "trainer-1 is slow; through a checkpoint: MemoryTooSmall: trainer-" in session.move.why


def in_two_stages(cut: int) -> Layout:
    """Two replicas, each of which has so many of 7 layers on its first device."""
    stages = (((a, 0, cut), (b, cut, 7)) for a, b in ((0, 1), (2, 3)))
    return Layout(tuple(Replica(tuple(Stage((Device(t, 0),), *rows) for t, *rows in each)) for each in stages))


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


@pytest.mark.parametrize("decided", [False, True])
async def test_a_trainer_that_shall_leave_while_another_change_is_under_way_gives_its_state_first(tmp_path, decided):
    async with training(make_job(tmp_path)) as lead:
        await lead.close(0, 1)
        resize(lead)
        session, step, generation = lead.state.session, lead.state.session.move.step, 2
        if decided:
            assert not session.directive(step).checkpoint
        lead.state.resize(1)
        if decided:
            await moved_to(lead, step)
            session, generation = lead.state.session, 3
            assert (session.record.live.step, len(session.world.seats), session.record.size) == (step, 2, 1)
            await lead.close(step)
            await lead.until(lambda: session.move)
        await lead.until(lambda: session.move.saves)
        assert session.move.why.startswith("trainer-1 shall leave")
        assert session.directive(session.move.step).checkpoint
        await saved_and_moved(lead, session.move.step, generation)
        assert (len(lead.state.session.world.seats), lead.state.session.book.open) == (1, session.move.step)


async def test_a_change_is_judged_again_at_the_same_step_and_said_once(tmp_path):
    async with training(small(tmp_path)) as lead:
        await lead.close(0, 1)
        session = lead.state.session
        assert session.request_move("trainer-2 joined") and not session.request_move("trainer-2 joined")
        step = session.move.step
        session.begin(step)
        assert session.request_move("trainer-1 shall leave", saves=True)
        assert (session.move.step, session.move.saves) == (step, True)
        assert session.directive(step).end == "", "a rank is in it"
        assert session.directive(step + 1).end == "Moved"
        assert not session.request_move("trainer-2 joined") and session.move.saves


def with_one_on_standby(folder) -> JobConfig:
    """A pipeline of two stages on three trainers."""
    return small(folder, trainers=3, parallelism=replace(make_job(folder).parallelism, pipeline=2))


async def test_a_trainer_on_standby_whose_pod_is_replaced_costs_no_world_and_joins_at_a_step_boundary(tmp_path):
    async with training(with_one_on_standby(tmp_path)) as lead:
        await lead.close(0, 1)
        session, other = lead.state.session, replace(agents(3)[2], pod="demo-trainer-2-1", instance="another")
        assert session.record.layout.standby == (Device(2, 0),)
        register(lead, replace(other, starting=True))
        await lead.close(2)
        assert (session.lost, session.move, lead.state.failures) == ("", None, 0), "its agent still imports"
        register(lead, other)
        await lead.until(lambda: session.move)
        step = session.move.step
        await moved_to(lead, step)
        record = lead.state.session.record
        assert (record.trainers[2], record.first_step, lead.state.failures) == (other.pod, step, 0)
        assert lead.state.events.latest()[-1].reason == "LayoutChanged"
        await asyncio.sleep(5)
        assert lead.state.session.move is None, "it is in the world now"


async def test_messages_of_ranks_and_registrations_as_before_cost_no_look_at_all_trainers(tmp_path):
    """Of a thousand trainers one look takes milliseconds, and each of their ranks sends several messages a step."""
    async with training(with_one_on_standby(tmp_path)) as lead:
        await lead.close(0, 1)
        registry, looks = lead.state.registry, list[str]()
        present = registry.present
        registry.present = lambda role, count: (looks.append(role), present(role, count))[1]
        for _ in range(20):
            lead.beat(1, 1)
            register(lead, agents(3)[0])
            await asyncio.sleep(0.01)
        assert looks == []
        register(lead, replace(agents(3)[2], pod="demo-trainer-2-1", instance="another"))
        await lead.until(lambda: lead.state.session.move)
        assert looks


async def test_a_trainer_on_standby_whose_agent_starts_again_in_its_pod_changes_nothing(tmp_path):
    async with training(with_one_on_standby(tmp_path)) as lead:
        await lead.close(0, 1)
        register(lead, replace(agents(3)[2], instance="another"))
        await lead.close(2)
        await asyncio.sleep(5)
        assert (lead.state.session.lost, lead.state.session.move) == ("", None)


async def test_a_trainer_that_works_and_whose_pod_is_replaced_costs_its_world(tmp_path):
    async with training(with_one_on_standby(tmp_path)) as lead:
        await lead.close(0, 1)
        register(lead, replace(agents(3)[1], pod="demo-trainer-1-1", instance="another"))
        assert lead.state.session.lost == "trainer-1 was replaced by pod demo-trainer-1-1"


async def test_a_new_coordinator_adopts_a_world_whose_trainer_on_standby_was_replaced_meanwhile(tmp_path):
    job = with_one_on_standby(tmp_path)
    async with training(job) as lead:
        await lead.close(0)
    async with leading(job, "two") as lead:
        lead.index()
        *working, aside = agents(3)
        register(lead, *(replace(a, generation=1) for a in working), replace(aside, pod="demo-trainer-2-1"))
        await begun(lead, 1)
        assert lead.state.session.adopted and not lead.state.session.lost


def asked(lead: Lead) -> list[str]:
    """Each time that what devices would hold is counted beside the event loop."""
    found = list[str]()
    for name in ("change_fault", "refusal"):
        lead.executor.before[name] = lambda name=name: found.append(name)
    return found


async def test_what_a_planned_change_holds_is_counted_beside_the_event_loop(tmp_path):
    """Under Muon it takes a second for a thousand layers, in which no heartbeat was heard."""
    async with training(make_job(tmp_path)) as lead:
        await lead.close(0, 1)
        found = asked(lead)
        lead.state.resize(1)
        await lead.until(lambda: lead.state.session.move)
        assert found == ["change_fault"]
        assert (await sizes.resize(lead.state, 2)).trainers == 2
        assert found == ["change_fault", "refusal"]


async def test_what_the_world_after_a_loss_holds_is_counted_beside_the_event_loop(tmp_path):
    async with training(make_job(tmp_path)) as lead:
        await lead.close(0, 1)
        found = asked(lead)
        lead.state.mark_world_lost("the network broke")
        register(lead, *holds(lead, 2))
        await begun(lead, 2)
        assert found == ["change_fault"]


async def test_a_world_that_is_lost_while_a_change_is_judged_begins_none(tmp_path):
    async with training(small(tmp_path, min_trainers=1)) as lead:
        await lead.close(0, 1)
        session = lead.state.session
        lead.executor.before["change_fault"] = lambda: lead.state.mark_world_lost("the network broke")
        lead.state.resize(1)
        await lead.until(lambda: session.lost)
        await asyncio.sleep(5)
        assert session.move is None


async def test_a_number_of_trainers_that_is_judged_while_their_world_is_lost_is_under_way(tmp_path):
    """An answer that it is done would be of a world that is gone."""
    async with training(small(tmp_path)) as lead:
        await lead.close(0, 1)
        lead.executor.before["refusal"] = lambda: lead.state.mark_world_lost("the network broke")
        reply = await sizes.resize(lead.state, 2)
        assert (reply.state, reply.trainers) == ("UnderWay", 0)


async def test_a_stop_that_comes_while_a_change_is_judged_goes_first(tmp_path):
    async with training(small(tmp_path, min_trainers=1)) as lead:
        await lead.close(0, 1)
        session = lead.state.session

        def stop() -> None:
            suspend(lead)
            assert session.directive(2).end == "Suspended"

        lead.executor.before["change_fault"] = stop
        lead.state.resize(1)
        await asyncio.sleep(5)
        assert session.ending and session.move is None


async def test_ranks_hear_of_a_planned_change_s_step_before_they_get_there_so_none_begins_it_without_a_coordinator(
    tmp_path,
):
    """Else one that has lost its coordinator passes the step before which its peers leave."""
    async with training(small(tmp_path, min_trainers=1)) as lead:
        await lead.close(0, 1)
        session, plan = lead.state.session, lead.state.session.open_plan()
        assert lead.state.ack().end is None
        assert autonomous_directive(2, plan, 0, 0, lead.state.ack().end)
        lead.state.resize(1)
        await lead.until(lambda: session.move)
        assert (lead.state.ack().end, session.move.decided) == (2, False)
        assert autonomous_directive(2, plan, 0, 0, lead.state.ack().end) is None
