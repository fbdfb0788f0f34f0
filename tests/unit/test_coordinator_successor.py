"""A new coordinator over the world of another: adopted, taken over, or left for the checkpoint."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from coxswain import wire
from coxswain.live import Held
from coxswain_coordinator.planning.plan_log import PlanLog
from tests.unit.coordinator_fakes import make_job
from tests.unit.coordinator_lead import (
    beaten_to_a_takeover,
    begun,
    holds,
    leading,
    led_again,
    lose,
    register,
    small,
    training,
)
from tests.unit.coordinator_samples import agents

pytestmark = pytest.mark.looptime


async def test_a_world_is_adopted_only_with_every_trainer_in_it(tmp_path):
    async with training(small(tmp_path)):
        pass
    async with leading(small(tmp_path), "two") as lead:
        lead.index()
        one, two = agents(2)
        lead.state.register(replace(one, generation=1))
        lead.state.register(two)
        await lead.until(lambda: lead.state.session and lead.state.session.lost)
        assert lead.state.register(replace(one, generation=1)).lost == 1
        lead.state.register(replace(one, left=1))
        await lead.world(2)
        assert not lead.state.session.adopted


@pytest.mark.parametrize(
    ("work", "generation"), [("create_generation", 0), ("collect_orphans", 0), ("take_over", 1), ("drop_belated", 1)]
)
async def test_a_trainer_that_is_replaced_while_its_world_is_claimed_gets_the_next_one_at_once(
    tmp_path, looptime, work, generation
):
    async with training(small(tmp_path)):
        pass
    async with leading(small(tmp_path), "two") as lead:
        new = replace(agents(2)[1], instance="two", pod="new")
        lead.executor.before[work] = lambda: lead.state.register(new)
        lead.index()
        lead.arrive(generation=generation)
        await lead.until(lambda: lead.state.session)
        if generation:
            lead.state.register(replace(agents(2)[0], left=1))
            await lead.until(lambda: lead.state.generation == 2)
        assert lead.state.session.record.trainers == ("pod-0", "new")
        assert looptime == 0
        assert not lead.state.session.adopted


@pytest.mark.parametrize(
    ("work", "generation"), [("create_generation", 0), ("collect_orphans", 0), ("take_over", 1), ("drop_belated", 1)]
)
async def test_a_trainer_that_loses_its_world_while_it_is_claimed_has_to_register_again(tmp_path, work, generation):
    async with training(small(tmp_path)):
        pass
    async with leading(small(tmp_path), "two") as lead:
        lead.executor.before[work] = lambda: lead.state.registry.expect_again("trainer")
        lead.index()
        lead.arrive(generation=generation)
        await lead.until(lambda: lead.state.registry.missing("trainer", 2))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(lead.work), 5)
        assert lead.state.session is None


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
        assert len(lead.keys("log/takeovers/")) == 1


LEFT = "some of its workers left it while there was no coordinator; generation 2 from step "


@pytest.mark.parametrize(
    ("second", "event"),
    [
        ({}, ("Resumed", False)),
        ({"held": ()}, ("WorkerRestarted", True)),
        ({"broken": "Connection reset"}, ("WorkerRestarted", True)),
    ],
    ids=["all alive", "one without its state", "one without its peer"],
)
async def test_a_world_whose_workers_have_all_left_it_alive_for_a_change_costs_no_worker_and_warns_of_none(
    tmp_path, second, event
):
    """The coordinator before had sent the directive of a planned change, and ended."""
    async with led_again(tmp_path) as lead:
        one, two = out()
        register(lead, one, replace(two, **second))
        await begun(lead, 2)
        said = lead.state.events.latest()[-1]
        assert (said.reason, said.warning) == event
        assert said.message.startswith(LEFT)


async def test_a_trainer_that_joins_by_a_change_that_an_earlier_coordinator_began_is_an_event_of_the_layout(tmp_path):
    job = make_job(tmp_path, min_trainers=1)
    async with training(job) as lead:
        await lead.close(0)
        lose(lead, 1)
        register(lead, holds(lead, 1, copies=True)[0])
        await begun(lead, 2)
    async with leading(job, "two") as lead:
        lead.index()
        register(lead, replace(agents(2)[0], left=2, held=(Held(0, 2, 0, 1),)), agents(2)[1])
        await begun(lead, 3)
        said = lead.state.events.latest()[-1]
        assert (said.reason, said.warning, said.message.startswith(LEFT[:-20])) == ("LayoutChanged", False, True)


async def test_the_end_of_a_worker_that_is_reported_behind_the_takeover_is_the_reason_of_the_loss(tmp_path):
    async with led_again(tmp_path) as lead:
        one, two = out()
        register(lead, one, replace(two, held=()))
        await lead.until(lambda: lead.state.session)
        lose(lead, 1)
        assert lead.state.session.lost == "rank 1 on trainer-1 ended: exit code -9"


async def test_the_end_of_a_worker_that_is_reported_before_the_takeover_is_the_reason_of_the_loss(tmp_path):
    """Its agent has repeated the report while there was no coordinator."""
    async with led_again(tmp_path) as lead:
        lead.state.add_exit(wire.WorkerExit(1, "trainer-1", 0, 1, -9, wire.Fault("OOMKilled", "raise its limit")))
        one, two = out()
        register(lead, one, replace(two, held=()))
        await begun(lead, 2)
        assert lead.state.events.latest()[-1].message.startswith("rank 1 on trainer-1 ended: raise its limit; ")


async def test_a_world_is_not_adopted_whose_worker_has_ended_though_its_agent_registers_as_it_was_before(tmp_path):
    """The call is repeated while there is no coordinator, with what it said at first."""
    async with led_again(tmp_path) as lead:
        lead.state.add_exit(wire.WorkerExit(1, "trainer-1", 0, 1, -9))
        register(lead, *(replace(agent, generation=1) for agent in agents(2)))
        await lead.until(lambda: lead.state.session)
        assert lead.state.session.lost == "rank 1 on trainer-1 ended: exit code -9"


async def test_the_end_of_a_worker_of_an_earlier_world_keeps_no_world_from_being_adopted(tmp_path):
    async with led_again(tmp_path) as lead:
        lead.state.add_exit(wire.WorkerExit(0, "trainer-1", 0, 1, -9))
        register(lead, *(replace(agent, generation=1) for agent in agents(2)))
        await lead.until(lambda: lead.state.session)
        assert (lead.state.session.lost, lead.state.session.adopted) == ("", True)


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
        beaten_to_a_takeover(lead, PlanLog(lead.store).generation(1), goes_on=False)
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
