"""A stop saves the steps that workers hold, and an end waits for those that have to know of it."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from coxswain import wire
from coxswain_coordinator.api.handlers import Handlers
from coxswain_train.worker.directives import autonomous_directive
from tests.unit.coordinator_fakes import make_job
from tests.unit.coordinator_lead import Lead, begun, holds, led_again, register, small, suspend, training
from tests.unit.coordinator_samples import agents
from tests.unit.crash_simulation import Call

pytestmark = pytest.mark.looptime


async def test_a_saved_end_waits_until_every_worker_has_left(tmp_path, looptime):
    async with training(small(tmp_path, stop_steps=3)) as lead:
        await lead.saved(3, end="Completed")
        began = float(looptime)
        for rank, seconds in ((0, 3), (1, 7)):
            asyncio.get_running_loop().call_later(seconds, lead.leave, 0, rank)
        assert (await lead.work).reason == "StopReached"
        assert float(looptime) - began == 7


async def test_workers_that_do_not_leave_hold_the_end_up_for_half_a_minute(tmp_path, looptime):
    async with training(small(tmp_path, stop_steps=3)) as lead:
        await lead.saved(3, end="Completed")
        began = float(looptime)
        assert (await lead.work).reason == "StopReached"
        assert float(looptime) - began == 30


@pytest.mark.parametrize(("again", "seconds"), [(0, 0), (1, 5), (9, 5)])
async def test_the_end_is_answered_until_every_service_has_it_or_five_seconds_are_over(
    tmp_path, looptime, again, seconds
):
    """`again`: what one service, and calls of no service, are answered instead of the last one."""
    async with training(small(tmp_path)) as lead:
        for number in range(2):
            lead.state.register(wire.Register("loader", f"loader-{number}", "p", f"instance-{number}", "h", 7))
        first, *others, last = lead.state.registry.instances(2)
        for instance in (first, *others, *([first, ""] * again or [last])):
            lead.driver.ack_end(instance)
        began = float(looptime)
        await lead.driver.drain()
        assert float(looptime) - began == seconds


async def test_the_end_waits_for_no_trainer_that_a_smaller_size_has_taken_out(tmp_path, looptime):
    async with training(small(tmp_path)) as lead:
        lead.state.resize(1)
        lead.driver.ack_end(agents(1)[0].instance)
        began = float(looptime)
        await lead.driver.drain()
        assert float(looptime) - began == 0


async def test_a_stop_that_comes_before_a_new_coordinator_has_the_running_world_saves_its_steps(tmp_path):
    async with led_again(tmp_path) as lead:
        suspend(lead)
        await asyncio.sleep(5)
        register(lead, *(replace(a, generation=1) for a in agents(2)))
        await begun(lead, 1)
        await lead.close(0)
        lead.beat(0, 0)
        await saved_and_suspended(lead, 1)


async def test_a_rank_at_a_stop_waits_for_the_word_of_one_that_may_have_begun_the_step_alone(tmp_path, looptime):
    async with led_again(tmp_path) as lead:
        suspend(lead)
        register(lead, *(replace(a, generation=1) for a in agents(2)))
        await begun(lead, 1)
        await lead.close(0)
        lead.beat(0)
        handlers = Handlers(lead.state, lead.driver.ack_end)
        asked = [
            asyncio.create_task(handlers.step(Call("GET", "/", None, 1, {"step": step, "wait": 20}), None))
            for step in (2, 3)
        ]
        await asyncio.sleep(3)
        assert not any(task.done() for task in asked)
        began = float(looptime)
        lead.beat(0, 2)
        assert [(await task).end for task in asked] == ["", "Suspended"]
        assert float(looptime) == began


@pytest.mark.parametrize(("asked", "step"), [((4,), 5), ((7, 6), 8), ((8,), 8)])
async def test_a_stop_that_comes_before_the_adoption_spares_a_step_that_a_rank_was_left_to_begin_alone(
    tmp_path, asked, step
):
    """Before, its peer was stopped before that step: neither could end it nor save it, and the steps since the checkpoint were
    lost."""
    async with led_again(tmp_path) as lead:
        for number in asked:
            request = Call("GET", "/", None, 1, {"step": number, "rank": 1, "wait": 20})
            assert (await Handlers(lead.state, lead.driver.ack_end).step(request, None)).plan is None
        suspend(lead)
        register(lead, *(replace(a, generation=1) for a in agents(2)))
        await begun(lead, 1)
        await lead.until(lambda: lead.state.session.committed == 8)
        assert lead.state.session.begun == step - 1
        lead.beat(-1, -1)
        found = [lead.state.session.directive(k).end for k in (step - 1, step)]
        assert found == ["", "Suspended" if step < 8 else "Completed"]


@pytest.mark.parametrize("change", [False, True], ids=["stop", "change"])
async def test_ranks_hear_that_a_step_is_run_which_a_peer_has_begun_alone_before_it_heard_of_the_stop(tmp_path, change):
    """Before, one that then lost its coordinator waited for the next one before that step, and its peer in it for this one."""
    async with training(small(tmp_path)) as lead:
        await lead.close(0, 1)
        session, plan = lead.state.session, lead.state.session.plans_from(2).plans[0]
        if change:
            session.request_move("trainer-2 joined")
        else:
            suspend(lead)
        assert lead.state.ack().end == 2
        lead.beat(2, 1)
        end = lead.state.ack().end
        assert autonomous_directive(2, plan, 0, 0, end).plan == plan
        assert [session.directive(step).end for step in (2, 3)] == ["", "Moved" if change else "Suspended"]
        assert (end, lead.state.ack().end) == (3, 3)


async def test_ranks_hear_of_a_change_s_step_as_it_is_though_a_peer_passes_it_behind_the_directive(tmp_path):
    """Others have left there."""
    async with training(small(tmp_path)) as lead:
        await lead.close(0, 1)
        lead.state.session.request_move("trainer-2 joined")
        assert lead.state.session.directive(2).end == "Moved"
        lead.beat(1, 2)
        assert lead.state.ack().end == 2


async def test_a_step_that_a_rank_was_left_to_begin_alone_in_an_adopted_world_means_nothing_in_the_next(tmp_path):
    async with led_again(tmp_path) as lead:
        request = Call("GET", "/", None, 1, {"step": 4, "wait": 20})
        await Handlers(lead.state, lead.driver.ack_end).step(request, None)
        lead.arrive()
        await begun(lead, 2)
        assert lead.state.session.begun == -1


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


async def test_a_stop_of_a_lost_world_keeps_its_step_where_the_next_world_begins_at_the_checkpoint_before(tmp_path):
    async with training(small(tmp_path)) as lead:
        await lead.close(0, 1)
        suspend(lead)
        lead.leave(-9, 1)
        one, two = holds(lead, 2)
        register(lead, one, replace(two, held=()))
        await begun(lead, 2)
        assert (lead.state.session.book.open, lead.state.session.stop_at) == (0, 2)


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
        await lead.saved(3)
        began = float(looptime)
        lead.state.mark_world_lost("the network broke")
        suspend(lead)
        assert ((await lead.work).message, float(looptime) - began) == ("suspended before step 3", 0)


@pytest.mark.parametrize(("saves", "seconds"), [(True, 0), (False, 15)])
async def test_a_stop_behind_a_planned_change_waits_no_longer_for_a_trainer_that_is_lost_than_behind_a_loss(
    tmp_path, looptime, saves, seconds
):
    """Before, it waited as long as the trainer stayed away, though all may have been saved."""
    async with training(small(tmp_path, min_trainers=2)) as lead:
        await lead.close(0, 1)
        session = lead.state.session
        session.request_move("trainer-2 joined", saves=saves)
        assert session.directive(2).end == "Moved"
        if saves:
            lead.save(2, 0, 1, end="Moved")
        lead.state.notifier.notify()
        await lead.until(lambda: session.lost)
        register(lead, holds(lead, 2)[0])
        suspend(lead)
        finished = await asyncio.wait_for(lead.work, 600)
        assert (finished.message, float(looptime)) == (f"suspended before step {2 if saves else 0}", seconds)


async def test_a_stop_behind_a_planned_change_saves_what_workers_hold(tmp_path):
    async with training(small(tmp_path, min_trainers=2)) as lead:
        await lead.close(0, 1)
        session = lead.state.session
        session.request_move("trainer-2 joined")
        assert session.directive(2).end == "Moved"
        lead.state.notifier.notify()
        await lead.until(lambda: session.lost)
        suspend(lead)
        await asyncio.sleep(2)
        register(lead, *holds(lead, 2))
        await begun(lead, 2)
        await saved_and_suspended(lead, 2)


async def at_a_stop(lead: Lead) -> None:
    """Rank 0 has saved its part and left; rank 1 still writes its own."""
    await lead.close(0, 1)
    suspend(lead)
    assert lead.state.session.directive(2).end == "Suspended"
    lead.save(2, 0, end="Suspended")
    lead.leave(3, 0)


async def test_a_rank_that_leaves_at_a_stop_before_its_peer_has_saved_costs_no_step(tmp_path):
    async with training(small(tmp_path)) as lead:
        await at_a_stop(lead)
        lead.state.heartbeat(1, 1)
        await asyncio.sleep(120)
        lead.save(2, 1, end="Suspended")
        lead.leave(3, 1)
        assert (await asyncio.wait_for(lead.work, 60)).message == "suspended before step 2"
        assert lead.state.manifest.step == 2


async def test_ranks_at_a_stop_learn_that_their_peers_write_parts_of_its_save(tmp_path):
    async with training(small(tmp_path)) as lead:
        await lead.close(0, 1)
        lead.state.heartbeat(1, 1, 3)
        assert lead.state.ack().saving == 0, "no end is decided"
        suspend(lead)
        lead.state.session.directive(2)
        before = lead.state.ack().saving
        lead.state.heartbeat(1, 1, 4)
        assert lead.state.ack().saving == before + 1
