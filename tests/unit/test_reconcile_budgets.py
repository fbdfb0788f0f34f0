"""The disruption budget goes with the pods that it protects."""

from __future__ import annotations

import pytest

from coxswain_operator.reconcile.actions import Delete
from coxswain_operator.reconcile.completion import LEAVE_SECONDS
from coxswain_operator.reconcile.times import stamp
from coxswain_operator.views import ChildView
from tests.unit.fake_cluster import report, report_text
from tests.unit.reconcile_scenes import NOW, Scene, condition
from tests.unit.test_reconcile_lifecycle import budgets, passes, running
from tests.unit.test_reconcile_suspend import suspended

ENDED = {"conditions": [condition("Succeeded", "False", reason="Failed")], "completionTime": stamp(NOW - 3600)}


async def test_a_suspended_job_leaves_no_budget_and_has_one_again_once_it_trains() -> None:
    world = await running()
    assert budgets(world)
    await suspended(world)
    assert (world.state, budgets(world)) == ("Suspended", [])
    world.edit("TrainingJob", "demo", suspend=False)
    await passes(world)
    assert not budgets(world)
    world.run_all()
    await passes(world)
    assert budgets(world)


async def test_a_job_whose_checkpoint_is_saved_before_it_is_suspended_is_protected_meanwhile() -> None:
    world = await running()
    world.edit("TrainingJob", "demo", suspend=True)
    await passes(world)
    assert (world.state, len(budgets(world))) == ("Suspending", 1)


@pytest.mark.parametrize(("code", "state"), [(0, "Completed"), (2, "Failed")])
async def test_a_job_that_has_ended_leaves_no_budget(code: int, state: str) -> None:
    world = await running()
    world.end(world.pod("coordinator") or {}, code, report_text(state, step=100))
    await passes(world)
    world.tick(LEAVE_SECONDS)
    await passes(world)
    assert (world.state, budgets(world)) == (state, [])


@pytest.mark.parametrize("deleting", [False, True])
def test_the_budget_of_a_job_that_ended_under_an_earlier_release_goes_too_and_is_asked_to_go_once(
    deleting: bool,
) -> None:
    child = ChildView("PodDisruptionBudget", "demo", uid="b", deleting=deleting)
    decision = Scene(status=ENDED, children=(child,)).decide()
    assert decision.of(Delete) == (() if deleting else (Delete("PodDisruptionBudget", "demo", "b"),))


async def test_a_gang_that_has_released_its_nodes_leaves_no_budget_while_it_waits() -> None:
    world = await running(startTimeoutSeconds=30)
    world.report_now, world.unplaceable = report("Waiting"), {"trainer-0"}
    world.vanish(world.pod("trainer-0") or {})
    await passes(world)
    world.run_all()
    assert budgets(world)
    world.tick(40)
    await passes(world)
    assert "GangReleased" in [e.reason for e in world.events]
    assert (world.state, budgets(world)) == ("Queued", [])
