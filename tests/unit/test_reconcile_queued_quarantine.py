"""Nodes in quarantine, and jobs in a queue of Kueue's: pods that avoid other nodes than their peers stay one group."""

from __future__ import annotations

from typing import Any

import pytest

from coxswain_operator.children.scheduling import POD_GROUP, POD_SET
from tests.unit.fake_cluster import FakeCluster
from tests.unit.test_reconcile_partial import QUEUE, Kueue
from tests.unit.test_reconcile_quarantine import admit, avoided, passes, put, running


def pod_set(world: FakeCluster, member: str) -> str:
    """By which Kueue finds the pod's place in the Workload: its own hash of the pod's shape, unless the pod names one."""
    pod = world.pod(member)
    assert pod is not None
    found: str = pod["metadata"]["annotations"].get(POD_SET, "")
    return found


@pytest.mark.parametrize("named", ["trainer", "0d3adb3e"], ids=["by its role", "by Kueue, in an earlier release"])
async def test_a_successor_that_avoids_a_node_is_of_the_set_that_was_admitted(named: str) -> None:
    """Kueue ungates no pod of a set that its Workload lacks: the job would wait for ever."""
    world = await running(scheduling=QUEUE)
    for pod in world.pods():
        if named != "trainer":
            pod["metadata"]["annotations"][POD_SET] = named
    before = {p["metadata"]["labels"][POD_GROUP] for p in world.pods()}
    put(world, "bad")
    world.vanish(world.pod("trainer-1") or {})
    await passes(world)
    assert avoided(world, "trainer-1") == {"bad"} and avoided(world, "trainer-0") == set()
    assert {p["metadata"]["labels"][POD_GROUP] for p in world.pods()} == before and len(before) == 1
    assert pod_set(world, "trainer-1") == pod_set(world, "trainer-0") == named


async def suspended_and_resumed(**meta: Any) -> FakeCluster:
    """A job of whose first start Kueue names the set. `meta`: of the pods of that start."""
    world = await running(scheduling=QUEUE)
    for pod in world.pods():
        pod["metadata"]["annotations"][POD_SET] = "0d3adb3e"
        pod["metadata"] |= meta
    world.edit("TrainingJob", "demo", suspend=True)
    for pod in world.pods():
        world.end(pod, 3)
    await passes(world, 6)
    world.edit("TrainingJob", "demo", suspend=False)
    await passes(world)
    return world


async def test_the_next_start_has_sets_of_its_own_again() -> None:
    world = await suspended_and_resumed()
    assert [pod_set(world, m) for m in ("coordinator", "loader-0", "trainer-1")] == ["coordinator", "loader", "trainer"]


async def test_a_pod_of_the_start_before_that_is_still_there_names_no_set_of_the_next_one() -> None:
    world = await suspended_and_resumed(finalizers=["example.com/slow"])
    assert len(world.pods()) == 8 and pod_set(world, "loader-0") == "loader"


async def test_a_node_in_quarantine_costs_a_job_no_place_in_its_queue() -> None:
    """A Workload that is made again stands behind all others."""
    world = Kueue()
    await passes(world)
    waits = world.workload["metadata"]["uid"]
    put(world, "bad")
    await passes(world)
    assert world.workload["metadata"]["uid"] == waits
    world.admit(3)
    await passes(world)
    assert avoided(world, "trainer-1") == {"bad"}
    admit(world, "bad")
    await passes(world)
    assert world.workload["metadata"]["uid"] == waits
