"""Layouts after a loss, in the whole coordinator: the one of the next world, the ladder's after it, and the way back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from coxswain import wire
from coxswain.config import JobConfig, StragglerConfig
from coxswain.ladder.values import Option, Options
from coxswain.layout import Device, Layout
from coxswain.live import Held
from coxswain.planlog import steps_key
from tests.unit.coordinator_fakes import make_job
from tests.unit.coordinator_lead import Lead, begun, leading, lose, register, run_steps, training
from tests.unit.coordinator_samples import agents
from tests.unit.ladder_samples import LEFT, as_planned, at_once
from tests.unit.test_survivors import pairs

pytestmark = pytest.mark.looptime

Wards = Mapping[int, tuple[int, ...]]
"""By rank the ranks of whose shards it holds copies."""


def job_of(folder, trainers: int, pipeline: int = 1, action: str = "None") -> JobConfig:
    job = make_job(folder, trainers=trainers, stop_steps=64, stragglers=StragglerConfig(action=action))
    parallel = replace(job.parallelism, pipeline=pipeline)
    return replace(job, parallelism=parallel, batch=replace(job.batch, max_sequence_tokens=128))


def holding(lead: Lead, step: int, *trainers: int, wards: Wards | None = None) -> list[wire.Register]:
    """Agents of these trainers, whose workers have left the current world with their shards and copies."""
    session, wards = lead.state.session, wards or {}
    number = session.record.generation
    held = {
        seat.device.trainer: (Held(0, number, seat.rank, step, "", wards.get(seat.rank, ())),)
        for seat in session.world.seats
    }
    members = agents(lead.job.trainers)
    return [replace(members[index], left=number, held=held.get(index, ())) for index in trainers]


async def moved(lead: Lead, *trainers: int, wards: Wards | None = None) -> None:
    """All ranks get the directive of the change, and these trainers' workers leave."""
    session = lead.state.session
    await lead.until(lambda: session.move)
    step = session.move.step
    directive = session.directive(step)
    assert directive.end == "Moved"
    if directive.checkpoint:
        lead.save(step, *(seat.rank for seat in session.world.seats), end="Moved")
    lead.state.notifier.notify()
    await lead.until(lambda: session.lost)
    register(lead, *holding(lead, step, *trainers, wards=wards))
    await begun(lead, session.record.generation + 1)


# --- the layout of the next world -----------------------------------------------------------------------------------------

KEPT, OWN = pairs((2, 3), aside=(0,)), pairs((0, 2), aside=(3,))


@pytest.mark.parametrize(
    ("wards", "layout", "step"),
    [({2: (0,), 3: (1,)}, KEPT, 2), ({0: (3,), 2: (1,)}, OWN, 2), ({2: (0, 3), 3: (1,)}, KEPT, 2), ({}, KEPT, 0)],
    ids=["those that are whole", "the job's own", "both", "neither"],
)
async def test_after_a_loss_the_replicas_that_are_whole_go_on_where_they_or_no_others_have_the_state(
    tmp_path, wards, layout, step
):
    """Of two pipelines over two trainers each, trainer 1 is lost: the two layouts are predicted to be as fast."""
    async with training(job_of(tmp_path, 4, pipeline=2)) as lead:
        await lead.close(0, 1)
        lose(lead, 1)
        register(lead, *holding(lead, 2, 0, 2, 3, wards=wards))
        await begun(lead, 2)
        session = lead.state.session
        assert (session.record.layout, session.book.open) == (layout, step)
        assert (session.record.live is UNSET) == (step == 0)
        await run_steps(lead, 2)


async def test_a_world_whose_trainers_are_all_back_has_the_layout_that_it_had(tmp_path):
    wards = {2: (0,), 3: (1,)}
    async with training(job_of(tmp_path, 4, pipeline=2)) as lead:
        await lead.close(0, 1)
        lose(lead, 1)
        register(lead, *holding(lead, 2, 0, 2, 3, wards=wards))
        await begun(lead, 2)
        lead.state.mark_world_lost("the network broke")
        register(lead, *holding(lead, 2, 0, 2, 3))
        await begun(lead, 3)
        assert (lead.state.session.record.layout, lead.state.session.record.live.step) == (KEPT, 2)


async def test_a_trainer_that_is_lost_in_a_planned_change_leaves_the_replicas_that_are_whole(tmp_path):
    other = pairs((3, 0), (2, 1))
    async with training(job_of(tmp_path, 4, pipeline=2)) as lead:
        await run_steps(lead, 2)
        lead.state.request_layout(other, "another one is wished for")
        await moved(lead, 0, 2, 3, wards={2: (0,), 3: (1,)})
        assert lead.state.session.record.layout == KEPT and lead.state.changes.layout is None


async def test_a_smaller_size_forms_the_jobs_own_layout_for_which_the_memory_was_judged(tmp_path):
    async with training(job_of(tmp_path, 4, pipeline=2)) as lead:
        await run_steps(lead, 2)
        lead.state.request_layout(pairs((0, 3), (1, 2)), "another one is wished for")
        await moved(lead, 0, 1, 2, 3)
        await run_steps(lead, 1)
        lead.state.resize(3)
        await moved(lead, 0, 1, 2)
        assert lead.state.session.record.layout == pairs((0, 1), aside=(2,))


async def test_the_choice_of_a_layout_knows_which_devices_of_the_pods_that_are_left_are_slow(tmp_path, monkeypatch):
    seen, speeds = list[Any](), {Device(2, 0): 0.5}
    monkeypatch.setattr("coxswain_coordinator.world.manager.after_loss", lambda *args: seen.append(args) or (OWN,))
    async with training(job_of(tmp_path, 4, pipeline=2)) as lead:
        before = lead.state.session.record.layout
        monkeypatch.setattr(lead.state.ladder, "speeds_of", lambda pods: (seen.append(pods), speeds)[1])
        lose(lead, 1)
        register(lead, *holding(lead, 0, 0, 2, 3))
        await begun(lead, 2)
        assert seen[0] == {0: "pod-0", 2: "pod-2", 3: "pod-3"} and seen[1][2:5] == (before, OWN, speeds)


async def test_an_error_in_the_choice_of_a_layout_leaves_the_jobs_own(tmp_path, monkeypatch, caplog):
    def fails(*args):
        raise ZeroDivisionError("of seconds")

    monkeypatch.setattr("coxswain_coordinator.world.manager.after_loss", fails)
    async with training(job_of(tmp_path, 4, pipeline=2)) as lead:
        lose(lead, 1)
        register(lead, *holding(lead, 0, 0, 2, 3))
        await begun(lead, 2)
        assert lead.state.session.record.layout == OWN
    assert [r.getMessage()[:45] for r in caplog.records if r.levelname == "ERROR"] == [
        "slow devices: ZeroDivisionError: of seconds; "
    ]


async def test_steps_are_stored_once_with_a_world_that_goes_on_from_memory_or_with_the_next_checkpoint(tmp_path):
    job = replace(job_of(tmp_path, 2), checkpoint=replace(make_job(tmp_path).checkpoint, every_steps=6))
    async with training(job) as lead:
        await lead.close(0, 1, 2, 3)
        lead.state.mark_world_lost("the network broke")
        register(lead, *holding(lead, 4, 0, 1))
        await begun(lead, 2)
        await lead.close(4, 5)
        lead.save(6, 0, 1)
        await lead.until(lambda: lead.state.manifest)
        stored = {key: lead.store.get(key).count(b"\n") for key in lead.keys("steps/")}
        assert stored == {steps_key(4, 1): 4, steps_key(6, 2): 2}


async def without_the_first(lead: Lead) -> Layout:
    """Of three trainers under a pipeline of two, trainer 0 is lost: trainers 1 and 2 train. Returns their layout."""
    lose(lead, 0)
    register(lead, *holding(lead, 0, 1, 2))
    await begun(lead, 2)
    await run_steps(lead, 3)
    return lead.state.session.record.layout


def back(lead: Lead) -> None:
    """Trainer 0, in another pod: the job's own layout has it in the place of trainer 2."""
    lead.state.register(replace(agents(3)[0], instance="two", pod="new"))


async def test_the_state_of_a_device_whose_place_a_trainer_takes_that_is_back_is_saved_first(tmp_path):
    async with training(job_of(tmp_path, 3, pipeline=2)) as lead:
        own = lead.state.session.record.layout
        await without_the_first(lead)
        back(lead)
        session = lead.state.session
        await moved(lead, 0, 1, 2)
        assert (session.move.why, session.move.saves) == ("trainer-0 joined", True)
        assert (lead.state.session.record.layout, lead.state.session.book.open) == (own, session.move.step)
        assert session.move.step >= 3


async def test_a_trainer_that_is_back_behind_the_decision_on_a_change_takes_no_place_whose_state_is_not_saved(tmp_path):
    async with training(job_of(tmp_path, 3, pipeline=2)) as lead:
        kept = await without_the_first(lead)
        session = lead.state.session
        lead.state.request_layout(Layout(pairs((2, 1)).replicas), "another one is wished for")
        await lead.until(lambda: session.move)
        assert session.directive(session.move.step).end == "Moved" and not session.move.saves
        back(lead)
        await moved(lead, 0, 1, 2)
        record = lead.state.session.record
        assert (record.layout, record.live.step) == (replace(kept, standby=(Device(0, 0),)), session.move.step)


# --- the ladder's ---------------------------------------------------------------------------------------------------------


def faster(job, vocabulary, layout: Layout, speeds, least_gain) -> Options:
    """Trainers 0 and 2 as a pipeline take half the time."""
    found = (Option("Groups", LEFT, 4.0, 0.05),) if layout != LEFT else ()
    return Options(layout, dict(speeds), 8.0, 3.0, found)


async def loses_one(lead: Lead, planner: Any = faster) -> None:
    """Trainer 1 of three is lost after two steps."""
    ladder = lead.state.ladder
    ladder.beside, ladder.planner, ladder.judge = at_once, planner, as_planned
    await run_steps(lead, 2)
    lose(lead, 1)
    register(lead, *holding(lead, 2, 0, 2, wards={2: (1,)}))
    await begun(lead, 2)
    assert lead.state.session.record.layout.largest_ring() == 2


async def test_a_searched_layout_follows_a_loss_and_the_whole_one_the_trainer_that_is_back(tmp_path):
    async with training(job_of(tmp_path, 3, action="Migrate")) as lead:
        whole = lead.state.session.record.layout
        await loses_one(lead)
        lead.state.register(agents(4)[3])  # one that the job does not have
        assert lead.state.ladder.speeds == {Device(1, 0): 0.0}
        while not lead.state.session.move:
            await run_steps(lead, 1)
        assert lead.state.session.move.saves is False
        await moved(lead, 0, 2)
        assert (lead.state.session.record.layout, lead.state.failures) == (LEFT, 0)
        message = lead.state.events.latest()[-1].message
        assert message.startswith("because of the loss of trainer-1: 1 x tp1pp2 is predicted to save 0.250 of 0.500 s")
        await run_steps(lead, 4)
        assert lead.state.session.move is None
        lead.state.register(replace(agents(3)[1], instance="two", pod="new"))
        await moved(lead, 0, 1, 2)
        await run_steps(lead, 4)
        assert (lead.state.session.record.layout, lead.state.ladder.speeds, lead.state.session.move) == (
            whole,
            {},
            None,
        )
        assert lead.state.stragglers.reports == () and not lead.state.changes.layout


async def test_a_lost_trainer_that_is_starting_again_is_waited_for_and_no_other_layout_is_formed(tmp_path):
    async with training(job_of(tmp_path, 3, action="Migrate")) as lead:
        await loses_one(lead)
        back = replace(agents(3)[1], instance="two", pod="new")
        lead.state.register(replace(back, starting=True))
        await run_steps(lead, 8)
        await asyncio.sleep(1)
        assert lead.state.session.move is None
        lead.state.register(back)
        await lead.until(lambda: lead.state.session.move)
        assert lead.state.session.move.why == "trainer-1 joined"


async def test_a_trainer_whose_imports_hang_does_not_keep_the_others_from_another_layout(tmp_path):
    async with training(job_of(tmp_path, 3, action="Migrate")) as lead:
        await loses_one(lead)
        back = replace(agents(3)[1], instance="two", pod="new", starting=True)
        lead.state.register(back)
        await run_steps(lead, 8)
        await asyncio.sleep(119)
        await run_steps(lead, 4)
        assert lead.state.session.move is None
        lead.state.register(back)
        await asyncio.sleep(2)
        while not lead.state.session.move:
            await run_steps(lead, 1)
        assert lead.state.session.move.why.startswith("because of the loss of trainer-1")
        lead.state.session.directive(lead.state.session.move.step)
        lead.state.notifier.notify()
        await lead.until(lambda: lead.state.session.lost)
        register(lead, *holding(lead, lead.state.session.move.step, 0, 2), back)
        await begun(lead, 3)
        assert lead.state.session.record.layout == LEFT


async def test_a_trainer_whose_imports_hang_is_left_out_only_where_enough_others_are_there(tmp_path):
    """Else no world would form, and what replaces a trainer that a world waits for too long would not begin."""
    async with leading(job_of(tmp_path, 3)) as lead:
        zero, one, two = agents(3)
        register(lead, zero, replace(one, starting=True), two)
        await asyncio.sleep(121)
        found = [[member.name for member in lead.state.able(3, least)] for least in (2, 3)]
        assert found == [["trainer-0", "trainer-2"], ["trainer-0", "trainer-1", "trainer-2"]]
        register(lead, replace(one, instance="again", starting=True))
        assert len(lead.state.able(3, 2)) == 3


@pytest.mark.parametrize("action", ["None", "Warn", "Rebalance"])
async def test_no_layout_is_planned_after_a_loss_where_none_is_allowed(tmp_path, action):
    planned = list[Any]()
    async with training(job_of(tmp_path, 3, action=action)) as lead:
        await loses_one(lead, lambda *args: planned.append(args) or faster(*args))
        await run_steps(lead, 8)
        assert lead.state.session.move is None and lead.state.ladder.speeds == {} and not planned
