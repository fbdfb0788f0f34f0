"""The ladder on a job, in virtual steps: when the layout changes, when a node is wanted away, and when neither is."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from coxswain.ladder.values import Option, Options
from coxswain.layout import Device, Layout
from coxswain_coordinator.capacity import devices_of
from coxswain_coordinator.stragglers.ladder import MEASURED_STEPS
from coxswain_coordinator.world.formation import world_of
from tests.unit.coordinator_samples import agents
from tests.unit.ladder_samples import SECONDS, SLOW, Job, nothing, slower_without

pytestmark = pytest.mark.looptime


async def test_a_straggler_that_costs_more_than_the_change_leads_to_one_change_that_says_gain_and_cost(tmp_path):
    j = Job(tmp_path)
    await j.run(2)
    assert (j.plans, j.asked) == (1, [])
    await j.run(1)  # the third slow step: 3 x 2 s are more than 5 s
    assert len(j.asked) == 1
    await j.run(60)
    ((layout, why),) = j.asked
    assert layout.standby == (SLOW,) and devices_of(layout) == {Device(0, 0), SLOW}
    assert why == (
        "because of trainer-1 device 0: 1 x tp1pp1 is predicted to save 2.000 of 10.000 s of each step, for 5.0 s once; "
        "trainer-1 device 0 goes on standby: probed now and then, and planned with again once it is well"
    )


async def test_an_event_states_the_measured_gain_beside_the_predicted_one_once_sixteen_steps_are_measured(tmp_path):
    j = Job(tmp_path)
    while not j.asked:
        await j.run(1)
    await j.run(MEASURED_STEPS - 1)
    assert MEASURED_STEPS == 16 and j.events == []
    await j.run(10)
    ((reason, message),) = j.events
    assert reason == "LayoutMeasured"
    assert message == (
        "the layout that changed because of trainer-1 device 0: a step takes 8.000 s and took 10.000 s; it gains 2.000 s, "
        "predicted were 2.000 s"
    )


@pytest.mark.parametrize("action", ["None", "Warn", "Rebalance"])
async def test_an_action_below_migrate_never_plans_a_layout(tmp_path, action):
    j = Job(tmp_path, action=action)
    await j.run(60)
    j.slow = False
    j.lose(1)
    await j.run(60)
    assert (j.plans, j.asked, j.ladder.request) == (0, [], None)


@pytest.mark.parametrize("how", ["lost", "restarted", "replaced", "recovered"])
async def test_what_was_planned_for_a_world_that_is_over_or_for_other_speeds_is_dropped(tmp_path, how):
    j = Job(tmp_path, held=asyncio.Event())
    await j.run(10)
    assert j.plans == 1
    if how == "lost":
        j.ladder.leave()
    elif how == "restarted":  # the same pods and layout
        j.enter()
        await j.run(1)
    elif how == "replaced":
        j.enter(members=[replace(a, pod=f"{a.pod}-again") for a in agents(2)])
    else:
        j.slow = False
        await j.run(1)
    j.held.set()
    for _ in range(4):
        await asyncio.sleep(0)
    assert j.asked == [] and j.plans == 1


async def test_a_layout_with_a_device_on_standby_is_kept_as_long_as_nothing_is_known_of_the_device(tmp_path):
    j = Job(tmp_path)
    await j.run(10)
    j.slow = False
    await j.run(200)
    assert len(j.asked) == 1 and j.record.layout.standby == (SLOW,)


async def test_another_pod_brings_devices_that_are_well_and_the_whole_layout_back(tmp_path):
    j = Job(tmp_path)
    await j.run(10)
    j.slow = False
    j.enter(j.record.layout, [replace(a, pod=f"{a.pod}-again") for a in agents(2)])
    await j.run(40)
    assert [bool(layout.standby) for layout, _ in j.asked] == [True, False]
    assert j.asked[1][1].startswith("because of trainer-1 device 0: 2 x tp1pp1") and "standby" not in j.asked[1][1]


async def test_a_device_that_is_well_again_before_its_world_has_changed_is_soon_taken_back(tmp_path):
    """The layout was chosen for the speeds of the decision, whatever they are as its world begins."""
    j = Job(tmp_path)
    while not j.asked:
        await j.run(1, changes=False)
    j.slow = False
    await j.run(1, changes=False)
    j.ladder.leave()
    j.enter(j.asked[0][0])
    await j.run(40)
    assert [layout.standby for layout, _ in j.asked] == [(SLOW,), ()]


async def test_one_plan_is_made_at_a_time_and_steps_do_not_wait_for_it(tmp_path):
    j = Job(tmp_path, planner=nothing, held=asyncio.Event())
    await j.run(5)
    j.factor = 3.0
    await j.run(5)
    assert (j.plans, j.step) == (1, 10)
    j.held.set()
    await j.run(2)
    assert j.plans == 2


async def test_a_device_that_is_slow_now_and_then_changes_layouts_ever_more_rarely(tmp_path):
    j = Job(tmp_path)
    whole = j.record.layout
    for _ in range(40):
        j.slow, j.onset = True, j.step
        await j.run(12)
        j.slow = False
        await j.run(12)
        if j.record.layout != whole:
            j.enter(whole)  # as after a trainer that joins: the job's own layout again
    assert 1 <= len(j.asked) <= 4


@pytest.mark.parametrize("slow_steps", [1, 5], ids=["before a change", "behind one"])
async def test_after_a_checkpoint_is_loaded_what_is_known_counts_from_its_step_on(tmp_path, slow_steps):
    """Steps begin again at a lower number: an onset or a change in a step to come would delay the next change."""
    j = Job(tmp_path, slow=False)
    whole = j.record.layout
    await j.run(50)
    j.slow, j.onset = True, 50
    await j.run(slow_steps)
    assert len(j.asked) == (slow_steps == 5)
    j.asked.clear()
    j.step = j.onset = 0
    j.enter(whole)
    await j.run(20)
    assert len(j.asked) == 1 and j.step == 20


async def test_a_node_is_wanted_away_once_it_has_cost_more_than_another_and_no_longer_once_it_is_well(tmp_path):
    j = Job(tmp_path, action="ReplaceNode", planner=nothing)
    await j.run(70)
    assert j.ladder.request is None
    await j.run(20)
    found = j.ladder.request
    assert (found.node, found.trainer) == ("node-1", "trainer-1")
    assert found.evidence == (
        "trainer-1 device 0 computes 1.98 x as long as its peers since step 0; it costs 4.000 s of each step"
    )
    j.slow = False
    await j.run(1)
    assert j.ladder.request is None


async def test_a_node_that_the_job_has_left_is_no_longer_wanted_away(tmp_path):
    j = Job(tmp_path, action="ReplaceNode", planner=nothing)
    await j.run(90)
    assert j.ladder.request
    j.enter(members=[replace(a, pod=f"{a.pod}-again") for a in agents(2)])
    assert j.ladder.request is None


async def test_no_node_is_wanted_away_under_migrate(tmp_path):
    j = Job(tmp_path, planner=nothing)
    await j.run(200)
    assert j.ladder.request is None and j.asked == []


async def test_a_device_that_is_less_slow_than_it_first_seemed_does_not_wait_for_its_cost_again(tmp_path):
    """2 s a step for 5 s: in the third step, though the second one shows that it is less slow."""
    for later, steps in ((1.8, 3), (2.3, 5)):
        j = Job(tmp_path)
        await j.run(2)
        j.factor = later
        while not j.asked:
            await j.run(1, changes=False)
        assert j.step == steps


async def test_a_device_that_is_well_after_a_rewind_waits_from_the_first_step_of_its_world(tmp_path):
    j = Job(tmp_path, besides=(0.0, 0.0))
    await j.run(100)
    assert j.record.layout.standby == (SLOW,)
    j.ladder.leave()
    j.step = 10
    j.enter(j.record.layout)
    waiting = j.ladder.aside.waiting[SLOW]
    for _ in range(waiting.dwell):
        j.ladder.probed(SLOW, 1.0)
    j.slow = False
    await j.run(40)
    assert [layout.standby for layout, _ in j.asked] == [(SLOW,), ()]


async def test_a_change_that_its_world_never_made_is_not_measured(tmp_path):
    j = Job(tmp_path, slow=False)
    await j.run(2 * MEASURED_STEPS)
    j.slow, j.onset = True, j.step
    await j.run(2 * MEASURED_STEPS, changes=False)
    assert len(j.asked) == 1 and j.events == [], "the old layout still runs"
    j.slow = False
    j.enter()
    await j.run(2 * MEASURED_STEPS)
    assert j.events == []


async def test_what_a_step_takes_besides_tasks_in_one_world_says_nothing_of_the_next(tmp_path):
    """The first healthy steps of the second world are too few to be compared with slow ones."""
    for enters in (False, True):
        j = Job(tmp_path, planner=slower_without, besides=(1.0, 2.0), slow=False)
        await j.run(8)
        if enters:
            j.enter()
        j.slow, j.onset = True, j.step
        await j.run(60)
        assert bool(j.asked) is not enters


async def test_a_closed_ladder_decides_nothing_and_may_never_have_begun(tmp_path):
    j = Job(tmp_path, held=asyncio.Event())
    j.ladder.close()
    await j.run(10)
    assert j.plans == 1
    j.ladder.close()
    j.held.set()
    for _ in range(4):
        await asyncio.sleep(0)
    assert j.asked == []


async def test_a_node_is_wanted_away_again_only_after_twice_its_cost(tmp_path):
    j = Job(tmp_path, action="ReplaceNode", planner=nothing)
    await j.run(90)
    assert j.ladder.request
    j.slow = False
    await j.run(1)
    j.slow, j.onset = True, j.step
    await j.run(140)
    assert j.ladder.request is None
    await j.run(20)
    assert j.ladder.request


async def test_the_seconds_of_a_step_are_the_median_of_the_last_five(tmp_path):
    j = Job(tmp_path, slow=False)
    await j.run(20)
    j.slow, j.onset = True, j.step
    await j.run(3)
    assert " is predicted to save 2.000 of 10.000 s of each step" in j.asked[0][1]


async def test_a_wish_for_another_node_is_made_once_as_long_as_it_stands(tmp_path, caplog):
    j = Job(tmp_path, action="ReplaceNode", planner=nothing)
    await j.run(400)
    assert [r.getMessage()[:35] for r in caplog.records] == ["another node than node-1 is wanted:"]


async def test_no_node_is_wanted_away_where_none_is_known_of_the_slow_device(tmp_path):
    j = Job(tmp_path, action="ReplaceNode", planner=nothing)
    j.ladder.enter(j.record, world_of(j.record, agents(2), 320), ("node-0", ""))
    await j.run(400)
    assert j.ladder.request is None


async def test_no_node_is_wanted_away_for_a_gain_that_a_planner_which_fails_has_not_predicted(tmp_path, caplog):
    def fails(*args):
        raise ZeroDivisionError("of seconds")

    j = Job(tmp_path, action="ReplaceNode", planner=fails)
    await j.run(200)
    j.factor = 3.0
    await j.run(200)
    assert (j.plans, j.ladder.request, len(caplog.records)) == (2, None, 1), "it is asked once for the same speeds"


async def test_all_devices_that_go_on_standby_are_named(tmp_path):
    def two(job, vocabulary, layout, speeds, least_gain):
        aside = Layout(layout.replicas[:1], (Device(1, 0), Device(2, 0)))
        return Options(
            layout, dict(speeds), SECONDS, 6.0, () if layout.standby else (Option("Groups", aside, 8.0, 5.0),)
        )

    j = Job(tmp_path, planner=two, trainers=3)
    await j.run(3, changes=False)
    assert "; trainer-1 device 0 and trainer-2 device 0 goes on standby: " in j.asked[0][1]


async def test_a_change_that_a_loss_comes_before_does_not_make_the_next_one_wait(tmp_path):
    j = Job(tmp_path)
    while not j.asked:
        await j.run(1, changes=False)
    j.lose()
    await j.run(3, changes=False)
    assert [layout.standby for layout, _ in j.asked] == [(SLOW,), (SLOW,)]
