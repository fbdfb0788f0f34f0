"""Children that are no pods: what is replaced, once, and what pods wait for."""

from __future__ import annotations

import pytest

from coxswain_operator.children import CONTENT
from coxswain_operator.reconcile.child_diff import BUDGET_SECONDS, budget_due
from tests.unit.fake_cluster import FakeCluster
from tests.unit.reconcile_scenes import GANG, NOW, Scene, condition
from tests.unit.test_reconcile_lifecycle import RESTART_JOB, passes, running


def stale(world: FakeCluster, kind: str, name: str) -> str:
    """As another release of the operator would have made it; returns its uid."""
    meta = world.objects[kind, name]["metadata"]
    meta["annotations"][CONTENT] = "other"
    return str(meta["uid"])


def deletions(world: FakeCluster) -> list[str]:
    """Names that are deleted from now on, once for each request."""
    found: list[str] = []
    world.before_call = lambda verb, what: found.append(what) if verb == "delete" else None
    return found


def test_a_budget_comes_no_later_because_the_clock_was_set_back() -> None:
    ready = {"conditions": [condition("PodsReady", "True", since=NOW + 3600)]}
    assert budget_due(Scene(GANG, status=ready).context()) == NOW + BUDGET_SECONDS


@pytest.mark.parametrize("kind", ["Service", "NetworkPolicy", "PodDisruptionBudget"])
async def test_a_child_that_a_finalizer_keeps_is_deleted_once_and_made_again_when_it_is_gone(kind: str) -> None:
    world = await running()
    uid = stale(world, kind, "demo")
    world.objects[kind, "demo"]["metadata"]["finalizers"] = ["example.com/slow"]
    asked = deletions(world)
    await passes(world)
    assert asked == ["demo"] and world.objects[kind, "demo"]["metadata"]["uid"] == uid
    del world.objects[kind, "demo"]
    await passes(world)
    assert world.objects[kind, "demo"]["metadata"]["uid"] != uid


async def test_a_config_map_of_the_attempt_before_that_a_finalizer_keeps_is_deleted_once() -> None:
    world = await running(failurePolicy={"rules": [RESTART_JOB]})
    (name,) = (name for kind, name in world.objects if kind == "ConfigMap" and name.startswith("demo-config-"))
    world.objects["ConfigMap", name]["metadata"]["finalizers"] = ["example.com/slow"]
    world.edit("TrainingJob", "demo", optimizer={"learningRate": "1e-4"})
    world.end(world.pod("trainer-0") or {}, 7)
    asked = deletions(world)
    await passes(world, 8)
    assert asked.count(name) == 1


@pytest.mark.parametrize(
    ("kind", "starts"), [("PodDisruptionBudget", True), ("Service", False), ("NetworkPolicy", False)]
)
async def test_a_lost_pod_waits_for_a_child_that_is_replaced_but_not_for_the_budget_which_no_pod_reads(
    kind: str, starts: bool
) -> None:
    world = await running()
    stale(world, kind, "demo")
    world.objects[kind, "demo"]["metadata"]["finalizers"] = ["example.com/slow"]
    world.vanish(world.pod("trainer-1") or {})
    await passes(world)
    assert (world.pod("trainer-1") is not None) is starts


async def test_a_config_map_of_the_start_before_stays_while_a_pod_of_that_start_is_there() -> None:
    world = await running(failurePolicy={"rules": [RESTART_JOB]})
    (name,) = (name for kind, name in world.objects if kind == "ConfigMap" and name.startswith("demo-config-"))
    slow = world.pod("loader-0") or {}
    slow["metadata"]["finalizers"] = ["example.com/slow"]
    world.edit("TrainingJob", "demo", optimizer={"learningRate": "1e-4"})
    world.end(world.pod("trainer-0") or {}, 7)
    await passes(world, 8)
    assert ("ConfigMap", name) in world.objects
    world.vanish(slow)
    await passes(world)
    assert ("ConfigMap", name) not in world.objects
