"""What is read from a pod as a kubelet leaves it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from coxswain.names import LABEL_ATTEMPT, LABEL_JOB, LABEL_JOB_UID
from coxswain_operator.children import CONTENT
from coxswain_operator.children.scheduling import POD_GROUP, RETRIABLE
from coxswain_operator.kubernetes.decoding import read_pod
from coxswain_operator.node_decoding import Node, NodeSpec, NodeStatus, Taint, node_view
from coxswain_operator.pod_decoding import (
    ObjectMeta,
    PodCondition,
    child_view,
    holder_view,
    pod_view,
    with_nodes,
)
from coxswain_operator.reconcile.times import stamp
from coxswain_operator.views import ChildView, Event, Manifest, NodeView, PodView, member_name

OWNER = {"apiVersion": "coxswain.dev/v1alpha1", "kind": "TrainingJob", "name": "demo"}


def trainer(**status: Any) -> Manifest:
    labels = {"coxswain.dev/role": "trainer", "coxswain.dev/index": "2", "coxswain.dev/incarnation": "3"}
    head = {"name": "demo-trainer-2-3", "uid": "u", "creationTimestamp": "1970-01-01T00:01:00Z", "labels": labels}
    return {"metadata": head, "spec": {"nodeName": "gpu-7"}, "status": status}


def ended(name: str, code: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "state": {"terminated": {"exitCode": code, **more}}}


PLAIN = PodView("demo-trainer-2-3", "u", "trainer", 2, 3, node="gpu-7", created=60.0)


@pytest.mark.parametrize("status", [{}, None, {"containerStatuses": [{"name": "trainer"}]}])
def test_a_pod_without_a_status_is_pending_and_has_done_nothing(status: dict[str, Any] | None) -> None:
    pod = {key: value for key, value in {**trainer(), "status": status}.items() if value is not None}
    view = pod_view(pod)
    assert view == PLAIN
    assert PodView("p", "u", "trainer", 0, 0) == PodView("p", "u", "trainer", 0, 0, node="", created=0.0)
    assert (view.phase, view.ready, view.is_active, view.attempt, view.exit_code) == ("Pending", False, True, 0, None)
    assert (view.scheduled, view.finished, view.deletes_at, view.deleting, view.given_up) == (0, 0, 0, False, False)
    assert {view.waiting, view.unscheduled, view.unscheduled_reason, view.group, view.ip, view.disruption} == {""}


def test_all_that_a_pod_says_is_read() -> None:
    since = "1970-01-01T00:01:30Z"
    conditions = [
        {"type": "Ready", "status": "True"},
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": since, "reason": "R", "message": "m"},
        {"type": "DisruptionTarget", "status": "False", "reason": "Old"},
        {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"},
    ]
    ends = [ended("other", 1), ended("trainer", 3, finishedAt="1970-01-01T00:02:00Z", message="saved", reason="Done")]
    pod = trainer(phase="Running", podIP="10.0.0.1", reason="R", conditions=conditions, containerStatuses=ends)
    pod["metadata"] |= {"deletionTimestamp": "1970-01-01T00:03:00Z", "annotations": {RETRIABLE: "false"}}
    pod["metadata"]["labels"] |= {LABEL_ATTEMPT: "4", POD_GROUP: "g"}
    view = pod_view(pod)
    assert view == replace(
        PLAIN, attempt=4, phase="Failed", lingers=True, pod_reason="R", ready=True, exit_code=3,
        reason="Done", message="saved", ip="10.0.0.1",
        conditions=frozenset((c["type"], c["status"]) for c in conditions), disruption="DeletionByTaintManager",
        deleting=True, deletes_at=180.0, scheduled=90.0, finished=120.0, group="g", given_up=True,
    )  # fmt: skip
    for others in ({RETRIABLE: "true"}, {"another": "false"}):
        pod["metadata"]["annotations"] = others
        assert not pod_view(pod).given_up


@pytest.mark.parametrize(("grace", "forced"), [(None, False), (30, False), (0, True)])
def test_a_pod_whose_deletion_has_no_grace_is_kept_by_a_finalizer_alone(grace: int | None, forced: bool) -> None:
    pod = trainer()
    pod["metadata"] |= {"deletionTimestamp": "1970-01-01T00:03:00Z", "deletionGracePeriodSeconds": grace}
    assert (pod_view(pod).forced, pod_view(pod).grace) == (forced, grace or 0)


HELD = replace(PLAIN, group="g", deleting=True, node="")


@pytest.mark.parametrize(
    ("pod", "active", "held", "serving"),
    [
        (PLAIN, True, False, False),
        (replace(PLAIN, phase="Running", ready=True), True, False, True),
        (replace(PLAIN, phase="Running", ready=True, deleting=True), True, False, False),
        (replace(PLAIN, phase="Failed", ready=True), False, False, False),
        (replace(PLAIN, phase="Succeeded"), False, False, False),
        (replace(PLAIN, phase="Unknown"), True, False, False),
        (HELD, False, True, False),
        (replace(HELD, group=""), True, False, False),
        (replace(HELD, deleting=False), True, False, False),
        (replace(HELD, node="n"), True, False, False),
        (replace(HELD, phase="Running"), True, False, False),
    ],
)
def test_a_pod_may_run_until_it_has_ended_or_only_a_queue_keeps_it(
    pod: PodView, active: bool, held: bool, serving: bool
) -> None:
    assert (pod.is_active, pod.is_held, pod.is_serving) == (active, held, serving)


def test_the_trainers_exit_decides_and_not_its_sidecars() -> None:
    statuses = [ended("trainer", 3, finishedAt="1970-01-01T00:02:00Z", message="saved")]
    view = pod_view(
        trainer(phase="Failed", containerStatuses=statuses, initContainerStatuses=[ended("constructor", 137)])
    )
    assert (view.exit_code, view.message, view.finished) == (3, "saved", 120.0)


@pytest.mark.parametrize("ahead", [-3600.0, 0.0, 90.0, 3600.0])
def test_what_a_node_says_of_a_pod_is_dated_by_the_control_plane_whatever_the_nodes_clock_says(ahead: float) -> None:
    placed = {"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp(9010.0)}
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": stamp(9020.0 + ahead)}
    exited = ended("trainer", 1, finishedAt=stamp(9500.0 + ahead))
    pod = trainer(
        phase="Failed", startTime=stamp(9010.0 + ahead), conditions=[placed, ready], containerStatuses=[exited],
    )  # fmt: skip
    pod["metadata"]["creationTimestamp"] = stamp(9000.0)
    assert (pod_view(pod).finished, pod_view(pod).ready_since) == (9500.0, 9020.0)
    ready["status"] = "False"
    assert pod_view(pod).ready_since == 0


def test_the_end_of_a_pod_that_no_scheduler_placed_counts_from_its_creation() -> None:
    exited = ended("trainer", 1, finishedAt=stamp(5040.0))
    assert pod_view(trainer(phase="Failed", startTime=stamp(5000.0), containerStatuses=[exited])).finished == 100.0


def test_an_evicted_pod_has_a_reason_and_no_exit_code() -> None:
    view = pod_view(trainer(phase="Failed", reason="Evicted", containerStatuses=None))
    assert (view.reason, view.exit_code, view.is_active) == ("Evicted", None, False)


def test_the_reason_of_a_killed_container_precedes_that_of_its_pod() -> None:
    view = pod_view(
        trainer(phase="Failed", reason="Failed", containerStatuses=[ended("trainer", 137, reason="OOMKilled")])
    )
    assert view.reason == "OOMKilled"


def test_conditions_of_the_node_come_with_the_pod() -> None:
    nodes = {"gpu-7": NodeView(frozenset({("MemoryPressure", "True")})), "gpu-8": NodeView()}
    (view,) = with_nodes([pod_view(trainer())], nodes)
    assert view.node_conditions == {("MemoryPressure", "True")}


def test_a_node_that_does_not_exist_any_more_is_gone() -> None:
    (view,) = with_nodes([pod_view(trainer())], {})
    assert view.node_conditions == {("Ready", "Gone")}


def test_a_pod_without_a_node_has_no_conditions_of_one() -> None:
    pod = trainer()
    del pod["spec"]["nodeName"]
    (view,) = with_nodes([pod_view(pod)], {})
    assert view.node_conditions == frozenset()


def test_an_image_that_cannot_be_pulled_is_seen_and_ordinary_waiting_is_not() -> None:
    broken = {"name": "trainer", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such tag"}}}
    usual = {"name": "constructor", "state": {"waiting": {"reason": "PodInitializing"}}}
    view = pod_view(trainer(phase="Pending", initContainerStatuses=[usual], containerStatuses=[broken]))
    assert (view.waiting, view.waiting_message) == ("ImagePullBackOff", "no such tag")
    assert pod_view(trainer(phase="Pending", initContainerStatuses=[usual])).waiting == ""
    assert pod_view(trainer(initContainerStatuses=[{**broken, "name": "constructor"}])).waiting == "ImagePullBackOff"


def test_an_unschedulable_pod_has_the_schedulers_message() -> None:
    placed = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes: no gpu"}
    view = pod_view(trainer(conditions=[placed]))
    assert (view.unscheduled_reason, view.unscheduled, view.scheduled) == ("Unschedulable", "0/2 nodes: no gpu", 0.0)
    assert (
        pod_view(trainer(conditions=[{**placed, "reason": "SchedulingGated"}])).unscheduled_reason == "SchedulingGated"
    )
    del placed["reason"], placed["message"]
    view = pod_view(trainer(conditions=[placed]))
    assert (view.unscheduled_reason, view.unscheduled) == ("Unschedulable", "")


def test_members_are_named_by_role_and_index_and_there_is_one_coordinator() -> None:
    assert [member_name("coordinator", 0), member_name("loader", 0)] == ["coordinator", "loader-0"]
    assert replace(PLAIN, role="coordinator").member == "coordinator"


def test_an_event_is_no_warning_and_happens_now_unless_it_says_so() -> None:
    assert Event("Scaled", "m") == Event("Scaled", "m", warning=False, time=0.0)


def test_a_child_is_known_by_its_content_and_its_deletion() -> None:
    head = {"name": "demo-config", "uid": "c", "annotations": {CONTENT: "abc"}, "deletionTimestamp": "x"}
    assert child_view({"kind": "ConfigMap", "metadata": head}) == ChildView(
        "ConfigMap", "demo-config", "c", "abc", True
    )
    bare = child_view({"kind": "Secret", "metadata": {"name": "s", "uid": "d"}})
    assert (bare, bare.content, bare.deleting) == (ChildView("Secret", "s", "d"), "", False)


@pytest.mark.parametrize("ready", ["True", "False"])
def test_a_node_has_the_conditions_of_its_status(ready: str) -> None:
    head = ObjectMeta(name="gpu-7")
    node = Node(head, status=NodeStatus((PodCondition("Ready", ready),)))
    assert node_view(node).conditions == {("Ready", ready)}
    assert node_view(Node(head)) == node_view(Node(head, status=NodeStatus())) == NodeView()


def test_of_a_nodes_taints_those_count_that_keep_new_pods_away() -> None:
    taints = tuple(Taint("gpu", effect) for effect in ("NoSchedule", "PreferNoSchedule", "NoExecute"))
    node = Node(ObjectMeta(name="n", labels={"a": "b"}), NodeSpec(True, taints), NodeStatus(allocatable={"cpu": "8"}))
    found = NodeView(frozenset(), True, (("gpu", "NoSchedule"), ("gpu", "NoExecute")), {"a": "b"}, {"cpu": "8"})
    assert node_view(node) == found


def test_pods_of_equal_state_share_their_strings() -> None:
    first, second = (pod_view(trainer(conditions=[{"type": "Ready", "status": "True"}])) for _ in range(2))
    assert first.conditions is second.conditions and first.node is second.node


@pytest.mark.parametrize(
    ("owners", "job"),
    [
        ([], ""),
        ([{**OWNER, "uid": "mine", "controller": True}], "mine"),
        ([{**OWNER, "uid": "mine"}], ""),
        ([{**OWNER, "uid": "a", "controller": False}, {**OWNER, "uid": "mine", "controller": True}], "mine"),
        ([{**OWNER, "apiVersion": "coxswain.dev/v1beta1", "uid": "mine", "controller": True}], "mine"),
        ([{**OWNER, "apiVersion": "coxswain.dev.example/v1", "uid": "a", "controller": True}], ""),
        ([{**OWNER, "kind": "ReplicaSet", "uid": "a", "controller": True}], ""),
    ],
)
def test_a_pods_job_is_its_controller_and_not_what_its_label_says(owners: list[Manifest], job: str) -> None:
    pod = trainer(phase="Running")
    pod["metadata"] |= {"namespace": "lab", "resourceVersion": "7", "ownerReferences": owners}
    pod["metadata"]["labels"]["coxswain.dev/job-uid"] = "forged"
    assert read_pod(msgspec.json.encode(pod)).owner == job


@pytest.mark.parametrize(
    ("labels", "owners", "former"),
    [
        ({LABEL_JOB: "demo", LABEL_JOB_UID: "before"}, [], "before"),
        ({LABEL_JOB: "demo", LABEL_JOB_UID: "before"}, [{**OWNER, "kind": "Deployment", "controller": True}], ""),
        ({LABEL_JOB: "other", LABEL_JOB_UID: "before"}, [], ""),
        (
            {LABEL_JOB: "demo", LABEL_JOB_UID: "now"},
            [],
            "",
        ),  # a person made it: what deletes it by label deletes the job's
        ({}, [], ""),
    ],
)
def test_only_an_object_without_a_controller_is_one_of_the_earlier_job_whose_labels_it_has(
    labels: dict[str, str], owners: list[Manifest], former: str
) -> None:
    head = {"name": "demo", "uid": "s", "creationTimestamp": "1970-01-01T00:01:00Z", "labels": labels}
    job = {"metadata": {"name": "demo", "uid": "now", "creationTimestamp": "1970-01-01T00:02:00Z"}}
    view = holder_view({"kind": "Service", "metadata": {**head, "ownerReferences": owners}}, job)
    assert view.former_uid == former


@pytest.mark.parametrize(
    ("kind", "name", "created", "leftover"),
    [
        ("TrainingJob", "demo", "1970-01-01T00:01:00Z", True),
        ("TrainingJob", "demo", "1970-01-01T00:02:00Z", True),  # the second in which the job was made again
        ("TrainingJob", "demo", "1970-01-01T00:02:01Z", False),
        ("TrainingJob", "other", "1970-01-01T00:01:00Z", False),
        ("Deployment", "demo", "1970-01-01T00:01:00Z", False),
        ("TrainingJob of another group", "demo", "1970-01-01T00:01:00Z", False),
    ],
)
def test_only_what_an_earlier_job_of_the_same_name_controls_is_a_leftover(
    kind: str, name: str, created: str, leftover: bool
) -> None:
    kind, _, foreign = kind.partition(" of ")
    owner = {**OWNER, "kind": kind, "name": name, "uid": "before", "controller": True}
    owner |= {"apiVersion": "example.org/v1"} if foreign else {}
    head = {"name": "demo-config", "uid": "c", "creationTimestamp": created, "ownerReferences": [owner]}
    job = {"metadata": {"name": "demo", "uid": "now", "creationTimestamp": "1970-01-01T00:02:00Z"}}
    view = holder_view({"kind": "ConfigMap", "metadata": head}, job)
    assert (view.leftover, view.owner, view.deleting) == (leftover, f"{kind} {name}", False)
