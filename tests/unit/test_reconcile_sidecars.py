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


WAITS = {"name": "trainer", "state": {"waiting": {"reason": "PodInitializing"}}}


def initialized(pod: Manifest, phase: str, *states: tuple[str, Manifest]) -> None:
    """The pod of a trainer whose own container has not run; `states`: of its init containers, where one restarts."""
    pod["spec"]["initContainers"] = [
        {"name": name, "image": "busybox", **({"restartPolicy": "Always"} if name == "constructor" else {})}
        for name, _ in states
    ]
    found = [{"name": name, "ready": False, "state": state} for name, state in states]
    pod["status"] = {"phase": phase, "initContainerStatuses": found, "containerStatuses": [WAITS]}


RUNS: Manifest = {"running": {"startedAt": "1970-01-01T00:16:40Z"}}
FAILED: Manifest = {"terminated": {"exitCode": 4, "reason": "Error", "message": "no such bucket"}}
KILLED: Manifest = {"terminated": {"exitCode": 137, "reason": "Error"}}


async def test_an_init_container_that_fails_is_named_with_its_end_where_its_pod_is_replaced() -> None:
    world = await running()
    initialized(world.pod("trainer-1") or {}, "Failed", ("constructor", KILLED), ("fetch", FAILED))
    await passes(world)
    assert "demo-trainer-1-1" in world.created
    (said,) = [e.message for e in world.events if e.reason == "WorkerRestarted"]
    assert said == (
        "trainer-1: no exit code (init container fetch: exit code 4 (Error, no such bucket)); Default: RestartTrainer"
    )


async def test_an_init_container_that_runs_is_what_the_gang_waits_for_and_what_its_time_out_names() -> None:
    world = await running(startTimeoutSeconds=60)
    for member in ("trainer-0", "trainer-1"):
        initialized(world.pod(member) or {}, "Pending", ("constructor", RUNS), ("fetch", RUNS))
    await passes(world)
    assert world.condition("PodsReady")["message"].endswith("trainer-0 and 1 more: init container fetch runs")
    world.tick(60)
    await passes(world, 1)
    said = [e.message for e in world.events if e.reason == "WorkerRestarted"]
    assert said[0].startswith("trainer-0: init container fetch runs: not started within startTimeoutSeconds (60)")


@pytest.mark.parametrize("reason", ["Evicted", "UnexpectedAdmissionError"])
async def test_why_the_node_ended_a_pod_says_more_than_its_init_container(reason: str) -> None:
    world = await running()
    pod: Manifest = world.pod("trainer-1")
    initialized(pod, "Failed", ("constructor", KILLED), ("fetch", KILLED))
    pod["status"] |= {"reason": reason, "message": "The node was low on resource: memory"}
    await passes(world)
    (said,) = [e.message for e in world.events if "trainer-1" in e.message and e.warning]
    assert "low on resource" in said and "init container" not in said
