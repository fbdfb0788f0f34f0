"""What the cluster does to pods: drains, lost nodes, images that cannot be had. None of it consumes restarts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coxswain.wire import Fault
from coxswain_operator.reconcile import force_delete, reconcile
from coxswain_operator.reconcile.actions import RequeueAt, WriteStatus
from coxswain_operator.reconcile.times import stamp
from coxswain_operator.views import PodView
from tests.unit.fake_cluster import FakeCluster, live, member_of, report, report_text, with_job
from tests.unit.reconcile_scenes import COORDINATOR, NOW, TRAINER, Scene, condition
from tests.unit.test_reconcile_lifecycle import passes, running

STRICT: dict[str, Any] = {"failurePolicy": {"maxRestarts": 0}}
MEMBERS = ("coordinator", "loader-0", "trainer-0", "trainer-1")


async def drain(world: FakeCluster, member: str) -> None:
    """Evicts a pod, and lets the operator see it at any of the moments of its leaving."""
    pod = world.pod(member)
    pod["metadata"]["deletionTimestamp"] = stamp(world.now + 60)
    world.end(pod, 1)  # what services say to SIGTERM


@pytest.mark.parametrize("member", MEMBERS)
async def test_a_drained_node_costs_no_counted_restart(member: str) -> None:
    world = await running(**STRICT)
    await drain(world, member)
    await passes(world, 6)
    world.run_all()
    await passes(world)
    assert world.state == "Running"
    assert world.job["status"]["restarts"] == {"counted": 0, "ignored": 1}


@pytest.mark.parametrize(("code", "reason"), [(255, "Unknown"), (137, "ContainerStatusUnknown")])
@pytest.mark.parametrize("member", MEMBERS)
async def test_a_node_that_reboots_costs_no_counted_restart(member: str, code: int, reason: str) -> None:
    world = await running(**STRICT)
    world.end(world.pod(member), code, reason=reason)
    await passes(world, 6)
    assert world.job["status"]["restarts"] == {"counted": 0, "ignored": 1}


async def test_members_that_give_up_because_the_coordinators_node_is_lost_are_replaced_uncounted() -> None:
    world = await running(**STRICT)
    world.set_node("node-of-coordinator", "Unknown")
    world.report_now = None
    world.pod("coordinator")["metadata"]["deletionTimestamp"] = stamp(world.now + 60)
    await passes(world, 1)
    for member in MEMBERS[1:]:
        world.end(world.pod(member), 1)
    await passes(world, 6)
    world.run_all()
    world.report_now = report("Running", 10)
    await passes(world)
    assert world.state == "Running" and world.job["status"]["restarts"]["counted"] == 0
    assert {member_of(p) for p in world.pods() if live(p)} == set(MEMBERS)


async def test_a_pod_on_a_node_of_unknown_state_is_deleted_by_force_and_replaced() -> None:
    world = await running(**STRICT)
    pod = world.pod("trainer-1")
    pod["metadata"]["deletionTimestamp"] = stamp(world.now + 60)
    world.set_node("node-of-trainer-1", "Unknown")
    await passes(world)
    assert world.pod("trainer-1")["metadata"]["name"] == "demo-trainer-1-1"
    assert pod not in world.pods()


async def test_a_suspended_job_does_not_wait_for_pods_of_lost_nodes() -> None:
    world = await running()
    world.set_node("node-of-trainer-1", "Unknown")
    world.edit("TrainingJob", "demo", suspend=True)
    world.end(world.pod("coordinator"), 3)
    await passes(world, 8)
    assert (world.state, world.pods()) == ("Suspended", [])


@pytest.mark.parametrize("member", ["coordinator", "trainer-1"])
async def test_pods_of_lost_nodes_do_not_stay_while_a_checkpoint_is_waited_for(member: str) -> None:
    world = await running()
    world.edit("TrainingJob", "demo", suspend=True)
    await passes(world)
    world.set_node(f"node-of-{member}", "Unknown")
    world.pod(member)["metadata"]["deletionTimestamp"] = stamp(world.now + 60)
    await passes(world)
    assert world.pod(member) is None
    await passes(world)
    assert world.state == ("Suspended" if member == "coordinator" else "Suspending")


async def test_the_pods_of_a_job_that_has_ended_do_not_stay_on_lost_nodes() -> None:
    world = await running()
    world.set_node("node-of-trainer-1", "Unknown")
    world.end(world.pod("coordinator"), 0, report_text("Completed", step=100))
    await passes(world)
    world.tick(15)
    await passes(world)
    assert world.state == "Completed" and world.pod("trainer-1") is None


async def test_a_pod_whose_image_cannot_be_pulled_is_reported_and_replaced_after_the_time_out() -> None:
    world = with_job()
    await passes(world)
    world.wait(world.pod("trainer-0"), "ImagePullBackOff", "Back-off pulling image")
    world.tick(20)
    await passes(world)
    assert "trainer-0: ImagePullBackOff: Back-off pulling image" in world.condition("PodsReady")["message"]
    assert world.job["status"]["restarts"]["counted"] == 0
    world.tick(900)
    await passes(world)
    assert world.job["status"]["restarts"]["counted"] == 1  # no pod started in time: one cause


async def test_a_pod_whose_volumes_cannot_be_mounted_is_reported_with_what_it_mounts() -> None:
    keys = {"url": "http://s3:9000", "secretRef": {"name": "s3-keys"}}
    world = with_job()
    world.edit("DataSource", "code", endpoint=keys, uri="s3://corpus/")
    await passes(world)
    world.unprepared(world.pod("trainer-0"))
    await passes(world)
    assert "NotPrepared" not in world.condition("PodsReady")["message"]
    world.tick(30)
    await passes(world)
    message = world.condition("PodsReady")["message"]
    assert (
        "trainer-0: NotPrepared: its node could not mount its volumes for 30 s: is there Secret s3-keys, Secret "
        in message
    )
    assert world.job["status"]["restarts"]["counted"] == 0


async def test_a_rule_on_a_waiting_reason_decides_before_the_time_out() -> None:
    rules = [{"name": "no-image", "onReasons": ["ErrImagePull", "ImagePullBackOff"], "action": "Fail"}]
    world = with_job(failurePolicy={"rules": rules})
    await passes(world)
    world.wait(world.pod("trainer-0"), "ImagePullBackOff", "Back-off pulling image")
    await passes(world)
    assert world.state == "Failed"
    assert "ImagePullBackOff: Back-off pulling image" in world.condition("Succeeded")["message"]


async def test_a_waiting_reason_whose_rule_demands_more_does_nothing_yet() -> None:
    codes = {"operator": "In", "values": [9]}
    rules = [{"name": "both", "onReasons": ["ImagePullBackOff"], "onExitCodes": codes, "action": "Fail"}]
    world = with_job(failurePolicy={"rules": rules})
    await passes(world)
    world.wait(world.pod("trainer-0"), "ImagePullBackOff")
    await passes(world)
    assert (world.state, len(world.created)) == ("Starting", 4)


async def test_a_member_that_keeps_failing_restarts_the_whole_job() -> None:
    world = await running()
    for _ in range(4):
        await passes(world, 5)
        world.run_all()
        world.end(world.pod("trainer-1"), 1)
    await passes(world, 6)
    status = world.job["status"]
    assert (status["attempt"], status["restarts"]["counted"]) == (1, 4)
    assert status["attempts"][0]["rule"] == "Escalation"
    assert [e["name"] for e in status["incarnations"]] == ["all"]


async def test_disruptions_are_no_failures_of_a_member_that_keeps_failing() -> None:
    """On nodes that are taken away again and again, one crash replaces one pod."""
    world = await running()
    for disrupted in (True, True, False, True, False, False):
        world.end(world.pod("trainer-1"), 143, disrupted=disrupted)
        await passes(world, 20)
        world.run_all()
        await passes(world, 4)
    status = world.job["status"]
    assert (status["attempt"], status["restarts"]) == (0, {"counted": 3, "ignored": 3})
    world.end(world.pod("trainer-1"), 143)
    await passes(world, 4)
    status = world.job["status"]
    assert (status["attempt"], status["attempts"][0]["rule"]) == (1, "Escalation")


async def test_a_quota_that_is_used_up_is_reported_and_waited_for() -> None:
    full = Fault("QuotaExceeded", "exceeded quota: gpus", retryable=True)
    (write,) = reconcile(Scene(rejection=full).observed, 1000.0).of(WriteStatus)
    assert isinstance(write, WriteStatus)
    succeeded = next(c for c in write.status["conditions"] if c["type"] == "Succeeded")
    assert (succeeded["status"], succeeded["message"]) == ("Unknown", "QuotaExceeded: exceeded quota: gpus")


@pytest.mark.parametrize("reason", ["UnexpectedAdmissionError", "OutOfcpu", "NodeAffinity", "TopologyAffinityError"])
async def test_a_pod_that_its_node_does_not_start_costs_no_counted_restart(reason: str) -> None:
    world = await running(**STRICT)
    for _ in range(3):
        world.pod("trainer-1")["status"] = {"phase": "Failed", "reason": reason, "message": "Allocate failed"}
        await passes(world, 5)
    assert world.job["status"]["restarts"] == {"counted": 0, "ignored": 3}
    assert f"{reason}: Allocate failed" in world.events[-1].message


OWN_LIMITS = (
    'Usage of EmptyDir volume "scratch" exceeds the limit "1Gi". ',
    'Container trainer exceeded its local ephemeral storage limit "1Gi". ',
    "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ",
)
NODES_LACK = (
    "The node was low on resource: ephemeral-storage. Container trainer was using 9Gi, which exceeds its request of 0. ",
    "The node had condition: [DiskPressure]. ",
)


@pytest.mark.parametrize(("text", "counted"), [*((t, 1) for t in OWN_LIMITS), *((t, 0) for t in NODES_LACK)])
@pytest.mark.parametrize("code", [None, 137])
async def test_an_eviction_counts_if_the_pod_exceeded_its_own_limit(text: str, counted: int, code: int | None) -> None:
    world = await running()
    pod = world.pod("trainer-1")
    if code:
        world.end(pod, code)
    disrupted = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}
    pod["status"] |= {"phase": "Failed", "reason": "Evicted", "message": text, "conditions": [disrupted]}
    await passes(world)
    assert world.job["status"]["restarts"] == {"counted": counted, "ignored": 1 - counted}
    assert f"Evicted: {text}" in world.events[-1].message


async def test_a_loader_that_keeps_failing_is_replaced_alone_until_the_limit() -> None:
    world = await running(failurePolicy={"maxRestarts": 5})
    for _ in range(5):
        await passes(world, 20)
        world.run_all()
        world.end(world.pod("loader-0"), 1)
    await passes(world, 20)
    status = world.job["status"]
    assert (status["attempt"], status["restarts"]["counted"]) == (0, 5)
    assert [name for name in world.created[4:] if "loader" not in name] == []
    world.run_all()
    world.end(world.pod("loader-0"), 1)
    await passes(world)
    assert world.state == "Failed"


def going(ready: str, late: float = 30, **more: Any) -> PodView:
    """A pod whose grace period ended `late` seconds ago, on a node that is Ready, or not."""
    conditions = frozenset({("Ready", ready)})
    return replace(TRAINER, **{
        "node": "n", "deleting": True, "deletes_at": NOW - late, "grace_ends": NOW - late, "node_conditions": conditions, **more,
    })  # fmt: skip


@pytest.mark.parametrize(
    ("pod", "forced", "looks"),
    [
        (going("Unknown", -60), True, True),
        (going("False"), True, True),
        (going("Gone"), True, True),
        (going("False", 29), False, True),
        (going("True"), False, True),
        (going("True", disruption="DeletionByTaintManager"), False, True),  # by a taint of an administrator's
        (going("Seen", disruption="DeletionByTaintManager"), True, True),  # as where the operator may see no nodes
        (going("True", disruption="EvictionByEvictionAPI"), False, True),
        (going("Unknown", node=""), False, False),
        (going("Unknown", deleting=False), False, False),
        (going("True", phase="Failed"), False, False),
        (going("Unknown", phase="Failed"), True, False),  # its node never reports that it is gone
        (going("Unknown", forced=True), False, True),  # deleted by force already: a finalizer keeps it
        (going("Gone", forced=True), False, True),
    ],
)
def test_a_deletion_is_forced_where_no_kubelet_completes_it_and_a_slow_one_is_waited_for(
    pod: PodView, forced: bool, looks: bool
) -> None:
    context = Scene((pod, COORDINATOR)).context()
    assert [(d.name, d.uid, d.force) for d in force_delete.force_deletes(context)] == [(pod.name, "t", True)] * forced
    assert force_delete.requeue_times(context) == ((NOW + 10,) if looks else ())
    of_an_earlier_job = replace(Scene((COORDINATOR,)).context(), observed=replace(Scene().observed, leftovers=(pod,)))
    assert [d.name for d in force_delete.force_deletes(of_an_earlier_job)] == [pod.name] * forced


@pytest.mark.parametrize("over", ["ended", "being deleted"])
def test_a_job_that_is_over_is_looked_at_again_while_a_deletion_of_its_pods_takes_long(over: str) -> None:
    """A change of a node starts no pass."""
    ended = {"conditions": [condition("Succeeded", "False")]} if over == "ended" else {}
    observed = Scene((going("True"),), status=ended).observed
    observed.job["metadata"] |= {"deletionTimestamp": stamp(NOW)} if over == "being deleted" else {}
    assert reconcile(observed, NOW).of(RequeueAt) == (RequeueAt(NOW + 10),)


KEPT = "FinalizerKept: Pod demo-trainer-1-0 on n is deleted, and a finalizer keeps it"
LATE = f"TerminationLate: Pod demo-trainer-1-0 on n was to end at {stamp(NOW - 120)}, and its node has not ended it"


@pytest.mark.parametrize(
    ("pods", "said"),
    [
        ((going("Unknown", forced=True),), f"{KEPT}: "),
        ((going("Unknown", forced=True), going("Unknown", forced=True, name="other")), f"{KEPT} (and 1 more): "),
        ((going("Unknown"),), ""),  # not deleted by force yet
        ((going("Unknown", forced=True, phase="Failed"),), ""),  # nothing of it runs
        ((going("Unknown", forced=True, node=""),), ""),  # it never ran
        ((going("True", 120),), f"{LATE}: "),  # as where a device's driver holds a process
        ((going("True", 120), going("True", 500)), f"{LATE} (and 1 more): "),
        ((going("True", 120), going("Unknown", forced=True)), f"{KEPT}: "),
        ((going("True", 119),), ""),  # its node may be slow
        ((going("False", 120),), ""),  # is deleted by force now
        ((going("True", 120, phase="Failed"),), ""),
        ((going("True", 120, deleting=False),), ""),
    ],
)
def test_only_a_pod_that_may_still_run_though_it_is_deleted_keeps_its_successor_waiting(
    pods: tuple[PodView, ...], said: str
) -> None:
    found = force_delete.describe(Scene(pods).context())
    assert found.startswith(said) and bool(found) is bool(said)
