"""The ladder after trainers are lost: a change for any gain that reaches its cost, and nothing once they are back."""

from __future__ import annotations

import asyncio

import pytest

from coxswain.ladder.values import LEAST_GAIN, Option, Options
from coxswain.layout import Device, Layout, Replica, Stage
from coxswain_coordinator.stragglers.ladder import MEASURED_STEPS, Ladder
from tests.unit.coordinator_samples import agents
from tests.unit.ladder_samples import LEFT, LOST, SLOW, Job, left, nothing

pytestmark = pytest.mark.looptime


def three(folder, **changes) -> Job:
    """Three trainers of which none is slow, after four steps."""
    return Job(folder, planner=left, trainers=3, slow=False, **changes)


async def test_after_a_loss_any_gain_that_reaches_its_cost_leads_to_one_change_that_says_which_trainer_was_lost(
    tmp_path,
):
    j = three(tmp_path)
    await j.run(4)
    assert j.plans == 0
    j.lose(1)
    own = j.record.layout
    await j.run(4)
    assert [asked[1:] for asked in j.inputs] == [(own, {LOST: 0.0}, 0.0)] and j.asked == []
    await j.run(60)
    ((layout, why),) = j.asked
    assert layout == LEFT == j.record.layout
    assert why == (
        "because of the loss of trainer-1: 1 x tp1pp2 is predicted to save 0.008 of 8.000 s of each step, for 0.0 s once"
    )
    ((reason, message),) = j.events
    assert reason == "LayoutMeasured" and message.startswith(
        "the layout that changed because of the loss of trainer-1: "
    )
    assert [asked[1:] for asked in j.inputs[1:]] == [(LEFT, {LOST: 0.0}, LEAST_GAIN)], "a search has chosen this one"
    assert j.ladder.request is None


async def test_the_first_plan_after_a_loss_is_made_while_the_world_forms_and_decided_on_behind_its_first_step(
    tmp_path, caplog
):
    j = three(tmp_path)
    j.lose(1)
    for _ in range(4):
        await asyncio.sleep(0)
    assert (j.plans, j.asked, caplog.records) == (1, [], [])
    await j.run(5)
    assert len(j.asked) == 1 and not caplog.records


async def test_nothing_stays_of_a_loss_once_the_trainer_is_back(tmp_path):
    j = three(tmp_path)
    j.lose(1)
    await j.run(20)
    assert j.ladder.speeds == {LOST: 0.0} and j.plans == 2
    j.asked.clear()
    j.enter()
    await j.run(60)
    assert (j.ladder.speeds, j.plans, j.asked) == ({}, 2, [])
    j.slow, j.onset = True, j.step
    await j.run(1)
    assert j.inputs[2][2:] == ({SLOW: j.ladder.speeds[SLOW]}, LEAST_GAIN)


@pytest.mark.parametrize("held", [False, True], ids=["before a plan", "while one is made"])
async def test_no_layout_is_changed_while_a_trainer_has_registered_that_the_next_world_takes_in(tmp_path, held):
    j = three(tmp_path)
    j.held = asyncio.Event() if held else None
    j.joins = not held
    j.lose(1)
    await j.run(held)
    j.joins = True
    if j.held:
        j.held.set()
    await j.run(40)
    assert (j.plans, j.asked) == (int(held), [])
    j.joins = False
    await j.run(1)
    assert (j.plans, len(j.asked)) == (1, 1)


async def test_a_plan_for_the_devices_left_is_dropped_once_the_trainer_is_back_in_a_world(tmp_path):
    j = three(tmp_path, held=asyncio.Event())
    j.lose(1)
    await j.run(10)
    j.enter()
    j.held.set()
    await j.run(10)
    assert (j.plans, j.asked) == (1, [])


async def test_a_loss_during_a_change_is_planned_for_from_the_world_that_follows_it(tmp_path):
    j = three(tmp_path)
    j.lose(1)
    while not j.asked:
        await j.run(1, changes=False)
    j.lose(1, 2)
    await j.run(MEASURED_STEPS + 1, changes=False)
    assert (len(j.asked), j.events) == (1, [])
    assert j.inputs[-1][1:] == (j.record.layout, {LOST: 0.0, Device(2, 0): 0.0}, 0.0)


@pytest.mark.parametrize("size", [2, 3])
async def test_a_trainer_that_a_job_has_given_up_or_has_not_had_yet_is_not_lost(tmp_path, size):
    j = three(tmp_path)
    two = agents(2)
    j.enter(members=two, size=2)
    await j.run(20)
    j.enter(members=two, size=size)
    await j.run(20)
    assert (j.plans, j.ladder.speeds) == (0, {})


async def test_a_new_coordinator_takes_what_a_job_shall_have_and_has_not_for_lost(tmp_path):
    j = three(tmp_path)
    j.ladder = Ladder(j.job, lambda *request: None, lambda *event: None, j.beside, left)
    j.lose(2)
    await j.run(1)
    assert (j.ladder.speeds, j.plans) == ({Device(2, 0): 0.0}, 1)


async def test_the_speed_of_a_slow_device_is_that_of_its_pod_and_a_lost_one_has_none(tmp_path):
    j = Job(tmp_path, planner=nothing, trainers=3)
    assert j.ladder.speeds_of({0: "pod-0", 1: "pod-1"}) == {}
    j.lose(2)
    await j.run(3)
    assert j.ladder.speeds_of({0: "pod-0", 1: "pod-1", 2: "pod-2"}) == {SLOW: j.ladder.speeds[SLOW]}
    assert j.ladder.speeds_of({0: "pod-0", 1: "pod-1-again"}) == j.ladder.speeds_of({0: "pod-0"}) == {}


async def test_a_slow_device_beside_a_lost_one_is_named_beside_it(tmp_path):
    faster = Layout((Replica((Stage((Device(0, 0),), 0, 1), Stage((SLOW,), 1, 2))),))

    def both(job, vocabulary, layout, speeds, least_gain) -> Options:
        return Options(
            layout, dict(speeds), 10.0, 6.0, () if layout == faster else (Option("Groups", faster, 8.0, 5.0),)
        )

    j = Job(tmp_path, planner=both, trainers=3)
    j.lose(2)
    await j.run(10)
    assert j.asked[0][1].startswith("because of trainer-1 device 0 and the loss of trainer-2: 1 x tp1pp2 ")


async def test_what_a_loss_costs_counts_through_the_worlds_that_follow_it(tmp_path):
    j = three(tmp_path)
    j.lose(1)
    await j.run(3)
    j.lose(1)
    await j.run(2)
    assert len(j.asked) == 1, "five steps in all"
