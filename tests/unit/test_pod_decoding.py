"""What is read from a pod as a kubelet leaves it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from coxswain_operator.kubernetes.decoding import read_pod
from coxswain_operator.pod_decoding import holder_view, pod_view, with_nodes
from coxswain_operator.views import Manifest


def trainer(**status: Any) -> Manifest:
    labels = {"coxswain.dev/role": "trainer", "coxswain.dev/index": "2", "coxswain.dev/incarnation": "3"}
    head = {"name": "demo-trainer-2-3", "uid": "u", "creationTimestamp": "1970-01-01T00:01:00Z", "labels": labels}
    return {"metadata": head, "spec": {"nodeName": "gpu-7"}, "status": status}


def ended(name: str, code: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "state": {"terminated": {"exitCode": code, **more}}}


def test_a_pods_labels_give_its_member_and_incarnation() -> None:
    view = pod_view(trainer(phase="Running", conditions=[{"type": "Ready", "status": "True"}]))
    assert (view.member, view.incarnation, view.node, view.created) == ("trainer-2", 3, "gpu-7", 60.0)
    assert view.ready and view.is_active and view.exit_code is None


def test_a_pod_without_a_status_is_pending() -> None:
    view = pod_view(trainer())
    assert (view.phase, view.ready, view.is_active) == ("Pending", False, True)


def test_the_trainers_exit_decides_and_not_its_sidecars() -> None:
    statuses = [ended("trainer", 3, finishedAt="1970-01-01T00:02:00Z", message="saved")]
    view = pod_view(
        trainer(phase="Failed", containerStatuses=statuses, initContainerStatuses=[ended("constructor", 137)])
    )
    assert (view.exit_code, view.message, view.finished) == (3, "saved", 120.0)


def test_an_evicted_pod_has_a_reason_and_no_exit_code() -> None:
    view = pod_view(trainer(phase="Failed", reason="Evicted", containerStatuses=None))
    assert (view.reason, view.exit_code, view.is_active) == ("Evicted", None, False)


def test_the_reason_of_a_killed_container_precedes_that_of_its_pod() -> None:
    view = pod_view(
        trainer(phase="Failed", reason="Failed", containerStatuses=[ended("trainer", 137, reason="OOMKilled")])
    )
    assert view.reason == "OOMKilled"


def test_conditions_of_the_node_come_with_the_pod() -> None:
    nodes = {"gpu-7": frozenset({("MemoryPressure", "True")}), "gpu-8": frozenset[tuple[str, str]]()}
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


def test_an_unschedulable_pod_has_the_schedulers_message() -> None:
    placed = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes: no gpu"}
    view = pod_view(trainer(conditions=[placed]))
    assert (view.unscheduled_reason, view.unscheduled, view.scheduled) == ("Unschedulable", "0/2 nodes: no gpu", 0.0)


def test_pods_of_equal_state_share_their_strings() -> None:
    first, second = (pod_view(trainer(conditions=[{"type": "Ready", "status": "True"}])) for _ in range(2))
    assert first.conditions is second.conditions and first.node is second.node


@pytest.mark.parametrize(
    ("owners", "job"),
    [
        ([], ""),
        ([{"uid": "mine", "kind": "TrainingJob", "name": "demo", "controller": True}], "mine"),
        ([{"uid": "mine", "kind": "TrainingJob", "name": "demo"}], ""),
        ([{"uid": "a", "controller": False}, {"uid": "mine", "controller": True}], "mine"),
    ],
)
def test_a_pods_job_is_its_controller_and_not_what_its_label_says(owners: list[Manifest], job: str) -> None:
    pod = trainer(phase="Running")
    pod["metadata"] |= {"namespace": "lab", "resourceVersion": "7", "ownerReferences": owners}
    pod["metadata"]["labels"]["coxswain.dev/job-uid"] = "forged"
    assert read_pod(msgspec.json.encode(pod)).owner == job


@pytest.mark.parametrize(
    ("kind", "name", "created", "leftover"),
    [
        ("TrainingJob", "demo", "1970-01-01T00:01:00Z", True),
        ("TrainingJob", "demo", "1970-01-01T00:02:00Z", True),  # the second in which the job was made again
        ("TrainingJob", "demo", "1970-01-01T00:02:01Z", False),
        ("TrainingJob", "other", "1970-01-01T00:01:00Z", False),
        ("Deployment", "demo", "1970-01-01T00:01:00Z", False),
    ],
)
def test_only_what_an_earlier_job_of_the_same_name_controls_is_a_leftover(
    kind: str, name: str, created: str, leftover: bool
) -> None:
    owner = {"kind": kind, "name": name, "uid": "before", "controller": True}
    head = {"name": "demo-config", "uid": "c", "creationTimestamp": created, "ownerReferences": [owner]}
    job = {"metadata": {"name": "demo", "uid": "now", "creationTimestamp": "1970-01-01T00:02:00Z"}}
    view = holder_view({"kind": "ConfigMap", "metadata": head}, job)
    assert (view.leftover, view.owner, view.deleting) == (leftover, f"{kind} {name}", False)
