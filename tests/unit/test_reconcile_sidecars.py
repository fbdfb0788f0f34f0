"""Containers that a user's template adds to our pods: neither their life nor their end decides anything."""

from __future__ import annotations

import pytest

from coxswain.names import LABEL_ROLE
from coxswain_operator.controller import Controller, is_finished
from coxswain_operator.pod_decoding import pod_view
from coxswain_operator.reconcile.completion import LEAVE_SECONDS
from coxswain_operator.views import Manifest
from tests.unit.fake_cluster import NAMESPACE, FakeCluster, report, report_text
from tests.unit.test_reconcile_lifecycle import passes, running

PROXY: Manifest = {"name": "mesh-proxy", "ready": True, "state": {"running": {}}}


def end_beside_proxy(world: FakeCluster, member: str, code: int, message: str = "") -> Manifest:
    """Our container ends; the proxy, and with it the pod, runs on."""
    pod: Manifest = world.pod(member)
    world.end(pod, code, message)
    pod["status"] |= {"phase": "Running"}
    pod["status"]["containerStatuses"] += [PROXY]
    return pod


async def test_a_job_whose_coordinator_is_done_beside_a_proxy_is_completed_and_its_pods_leave() -> None:
    world = await running()
    pod = end_beside_proxy(world, "coordinator", 0, report_text("Completed", step=100))
    await passes(world)
    assert (world.state, world.objects.get(("Pod", pod["metadata"]["name"]))) == ("Completed", pod)
    world.tick(LEAVE_SECONDS)
    await passes(world)
    assert ("Pod", pod["metadata"]["name"]) not in world.objects


async def test_a_job_is_not_finished_while_a_proxy_of_its_pods_runs_on() -> None:
    """Its pods are still to be deleted, so it is looked at soon."""
    world = await running()
    for pod in world.pods():
        world.end(pod, 0, report_text("Completed", step=100))
    end_beside_proxy(world, "coordinator", 0, report_text("Completed", step=100))
    await passes(world, 1)
    for seconds, finished in ((0.0, False), (LEAVE_SECONDS, True)):
        world.tick(seconds)
        await passes(world, 2)
        observed = await Controller(world, world, world.clock).observe(NAMESPACE, "demo")
        assert observed is not None and is_finished(observed) is finished


@pytest.mark.parametrize("member", ["coordinator", "loader-0", "trainer-1"])
async def test_a_member_that_exits_beside_a_log_shipper_is_replaced_and_counted(member: str) -> None:
    world = await running()
    end_beside_proxy(world, member, 1)
    await passes(world, 6)
    assert f"demo-{member}-1" in world.created
    assert world.job["status"]["restarts"]["counted"] == 1


async def test_a_suspended_jobs_pods_leave_although_their_proxies_run_on() -> None:
    world = await running()
    world.edit("TrainingJob", "demo", suspend=True)
    await passes(world)
    world.report_now = report("Suspended", 20)
    for pod in list(world.pods()):
        end_beside_proxy(world, pod["metadata"]["name"].removeprefix("demo-").rpartition("-")[0], 3)
    await passes(world, 6)
    assert (world.state, world.pods()) == ("Suspended", [])


async def test_a_proxy_of_a_dead_node_is_deleted_by_force_with_its_pod() -> None:
    world = await running()
    pod = end_beside_proxy(world, "trainer-1", 1)
    world.set_node("node-of-trainer-1", "Unknown")
    await passes(world, 6)
    assert pod["metadata"]["name"] not in [p["metadata"]["name"] for p in world.pods()]


OURS = {"name": "trainer", "ready": True, "state": {"running": {}}}
DONE = {"name": "setup", "ready": False, "state": {"terminated": {"exitCode": 0}}}
CONSTRUCTOR = {"name": "constructor", "ready": True, "state": {"running": {}}}


def serves(*containers: Manifest, sidecar: Manifest = CONSTRUCTOR, **ready: str) -> bool:
    """Whether a trainer's pod serves that runs these containers; `ready`: its condition."""
    labels = {LABEL_ROLE: "trainer", "coxswain.dev/index": "0", "coxswain.dev/incarnation": "0"}
    status = {
        "phase": "Running", "conditions": [{"type": "Ready", **ready}], "containerStatuses": list(containers),
        "initContainerStatuses": [sidecar],
    }  # fmt: skip
    return pod_view({"metadata": {"name": "p", "uid": "u", "labels": labels}, "spec": {}, "status": status}).is_serving


NOT_READY = {"status": "False", "reason": "ContainersNotReady"}


def test_a_member_serves_although_a_container_beside_it_has_ended() -> None:
    assert serves(OURS, DONE, **NOT_READY)
    assert serves(OURS, PROXY, status="True")


def test_a_member_serves_only_with_its_own_containers() -> None:
    assert not serves({**OURS, "ready": False}, PROXY, **NOT_READY)
    assert not serves(OURS, PROXY, sidecar={**CONSTRUCTOR, "ready": False}, **NOT_READY)


def test_a_member_on_a_lost_node_does_not_serve_although_its_containers_were_ready() -> None:
    """The node's controller turns the pod's condition and nothing else."""
    assert not serves(OURS, PROXY, status="False")


def test_a_member_whose_readiness_gate_is_closed_does_not_serve() -> None:
    assert not serves(OURS, PROXY, status="False", reason="ReadinessGatesNotReady")
