"""How long a job's ladder waits after what it has done for the sake of a device."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from coxswain.ladder.decide import DWELL
from coxswain.ladder.values import Option, Options
from coxswain.layout import Layout
from tests.unit.coordinator_samples import agents
from tests.unit.ladder_samples import SECONDS, SLOW, Job

pytestmark = pytest.mark.looptime


async def until_asked(j: Job, times: int, changes: bool) -> int:
    while len(j.asked) < times:
        await j.run(1, changes)
    return j.step


async def test_the_second_change_for_one_device_waits_eight_steps_and_the_third_one_sixteen(tmp_path):
    j = Job(tmp_path)
    first = await until_asked(j, 1, changes=True)
    j.slow = False
    j.enter(j.record.layout, [replace(a, pod=f"{a.pod}-again") for a in agents(2)])
    second = await until_asked(j, 2, changes=True)
    assert second - first == DWELL == 8 and not j.record.layout.standby
    j.slow, j.onset = True, j.step
    assert await until_asked(j, 3, changes=False) - second == 2 * DWELL


async def test_a_change_after_the_wish_for_another_node_waits_eight_steps(tmp_path):
    def once_wanted(job, vocabulary, layout, speeds, least_gain) -> Options:
        aside = Layout(layout.replicas[:1], (SLOW,))
        found = (Option("Groups", aside, 8.0, 0.1),) if j.ladder.request else ()
        return Options(layout, dict(speeds), SECONDS, 6.0, found)

    j = Job(tmp_path, action="ReplaceNode", planner=once_wanted)
    while not j.ladder.request:
        await j.run(1)
    wanted, j.factor = j.step, 1.5
    assert await until_asked(j, 1, changes=False) - wanted == DWELL
