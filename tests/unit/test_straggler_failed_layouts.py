"""Which layouts the ladder does not ask for again: those of a world that failed before a step."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from coxswain.layout import Layout
from tests.unit.coordinator_samples import agents
from tests.unit.ladder_samples import Job

pytestmark = pytest.mark.looptime


async def gone_aside(folder) -> tuple[Job, Layout]:
    """A job behind the first change of its layout, and the layout before."""
    j = Job(folder)
    whole = j.record.layout
    while not j.asked:
        await j.run(1)
    assert j.record.layout == j.asked.pop()[0]
    return j, whole


async def test_a_layout_in_whose_place_the_same_pods_have_another_one_after_no_step_is_not_asked_for_again(tmp_path):
    """Its world has failed before a step, so it may be one that cannot run."""
    j, whole = await gone_aside(tmp_path)
    j.lose(layout=whole)
    await j.run(200)
    assert j.asked == []
    j.enter(whole, [replace(a, pod=f"{a.pod}-again") for a in agents(2)])
    await j.run(200, changes=False)
    assert len(j.asked) == 1, "other pods have other devices"


@pytest.mark.parametrize("seen", ["its reports", "the next world"])
async def test_a_layout_that_a_failure_ends_behind_a_step_may_be_asked_for_again(tmp_path, seen):
    j, whole = await gone_aside(tmp_path)
    if seen == "its reports":
        await j.run(1)
    else:  # the reports of its step came when the world was over
        j.step += 1
    j.lose(layout=whole)
    await j.run(60)
    assert len(j.asked) == 1


async def test_a_layout_that_fails_before_a_step_and_leads_back_to_an_older_checkpoint_is_not_asked_for_again(tmp_path):
    j, whole = await gone_aside(tmp_path)
    j.step = j.onset = 1
    j.lose(layout=whole)
    await j.run(200)
    assert j.asked == []


async def test_a_layout_whose_world_begins_again_before_its_first_step_may_be_asked_for_again(tmp_path):
    """The first of them has failed, and the second one has made steps."""
    j, whole = await gone_aside(tmp_path)
    j.lose(layout=j.record.layout)
    await j.run(1)
    j.lose(layout=whole)
    await j.run(60)
    assert len(j.asked) == 1 and j.asked[0][0].standby
