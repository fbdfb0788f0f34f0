"""What the ladder of a job goes by: speeds as they are rounded, onsets, and the steps that layouts are judged by."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from coxswain.ladder.speeds import STEP, speed_of
from coxswain_coordinator.stragglers.judge import JUDGED
from tests.unit.ladder_samples import SLOW, Job, nothing

pytestmark = pytest.mark.looptime


async def test_a_device_that_gets_slow_has_the_speed_next_to_what_it_shows(tmp_path):
    """It keeps one in force within three quarters of a power, and has none yet."""
    j = Job(tmp_path, planner=nothing, factor=STEP**1.6)
    await j.run(1)
    assert j.ladder.speeds == {SLOW: speed_of(2)}
    j.factor = STEP**1.3
    await j.run(1)
    assert j.ladder.speeds == {SLOW: speed_of(2)}


@pytest.mark.parametrize(("onset", "after"), [(20, 3), (17, 1)])
async def test_what_a_device_has_cost_counts_from_its_onset_and_not_from_when_it_is_confirmed(tmp_path, onset, after):
    """5 s for 1.6 s a step at first, of which the median is still that of healthy ones."""
    j = Job(tmp_path, slow=False)
    await j.run(20)
    j.slow, j.onset = True, onset
    while not j.asked:
        await j.run(1, changes=False)
    assert j.step - 20 == after


async def test_layouts_are_planned_for_the_job_with_the_layout_that_mode_auto_has_chosen(tmp_path):
    jobs = []

    def planner(job, vocabulary, layout, speeds, least_gain):
        jobs.append(job)
        return nothing(job, vocabulary, layout, speeds, least_gain)

    j = Job(tmp_path, planner=planner)
    chosen = replace(j.job, name="chosen")
    j.ladder.plan_for(chosen)
    await j.run(1)
    assert jobs == [chosen]


async def test_layouts_are_judged_by_the_last_four_steps(tmp_path):
    j = Job(tmp_path, planner=nothing, slow=False)
    for tokens in range(1, 10):
        j.lengths = (tokens,)
        await j.run(1)
    j.slow, j.onset = True, j.step
    j.lengths = ()  # a step that is not reported whole
    await j.run(1)
    assert JUDGED == 4 and j.inputs[-1][-1] == ((6,), (7,), (8,), (9,))
