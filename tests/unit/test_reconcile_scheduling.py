"""How the pods of a job find their nodes, and what they ask of them."""

from __future__ import annotations

from typing import Any

import pytest

from coxswain.names import LABEL_ATTEMPT, LABEL_JOB_UID, LABEL_ROLE
from coxswain_operator.views import Manifest
from tests.unit.test_reconcile_children import made

GPU = {"hybridData": {"tokensPerReplica": 1024, "maxDegree": 4}}
CPU = {**GPU, "hardware": "cpu"}


def trainer(**spec: Any) -> Manifest:
    (container,) = made("trainer-1", **spec)["spec"]["containers"]
    return container  # type: ignore[no-any-return]


def test_a_trainer_asks_for_one_gpu_a_device_unless_the_job_computes_on_cpus() -> None:
    eight = {"count": 2, "devicesPerTrainer": 8}
    assert trainer(parallelism=GPU, trainers=eight)["resources"] == {"limits": {"nvidia.com/gpu": "8"}}
    assert trainer(parallelism=CPU, trainers=eight)["resources"] == {}


def test_the_users_resources_replace_ours_whole() -> None:
    template = {"resources": {"limits": {"amd.com/gpu": "8"}}}
    assert trainer(parallelism=GPU, trainers={"count": 2, "template": template})["resources"] == template["resources"]
    inner = {"containers": [{"name": "trainer", **template}]}
    assert trainer(parallelism=GPU, trainers={"count": 2, "template": inner})["resources"] == template["resources"]


@pytest.mark.parametrize("member", ["coordinator", "loader-0", "trainer-1"])
def test_no_data_service_is_of_best_effort(member: str) -> None:
    spec = made(member, parallelism=CPU)["spec"]
    data = [c for c in (*spec.get("initContainers", ()), *spec["containers"]) if c["name"] != "trainer"]
    assert data and all(c["resources"]["requests"]["memory"] for c in data)


def test_the_data_template_is_laid_over_coordinator_and_loaders_and_not_over_trainers() -> None:
    template = {"nodeSelector": {"pool": "data"}, "resources": {"requests": {"memory": "8Gi"}}}
    specs = {m: made(m, data={"template": template})["spec"] for m in ("coordinator", "loader-0", "trainer-0")}
    assert specs["coordinator"]["nodeSelector"] == specs["loader-0"]["nodeSelector"] == {"pool": "data"}
    assert specs["loader-0"]["containers"][0]["resources"] == {"requests": {"memory": "8Gi"}}
    assert "nodeSelector" not in specs["trainer-0"]


@pytest.mark.parametrize(
    ("wish", "field"),
    [
        ("required", "requiredDuringSchedulingIgnoredDuringExecution"),
        ("preferred", "preferredDuringSchedulingIgnoredDuringExecution"),
    ],
)
def test_topology_places_trainers_of_one_attempt_together_and_no_other_pods(wish: str, field: str) -> None:
    scheduling = {"topology": {wish: "rack"}}
    (term,) = made("trainer-1", scheduling=scheduling)["spec"]["affinity"]["podAffinity"][field]
    term = term.get("podAffinityTerm", term)
    assert term["topologyKey"] == "rack"
    labels = made("trainer-0", scheduling=scheduling)["metadata"]["labels"]
    assert term["labelSelector"]["matchLabels"].items() <= labels.items()
    assert "affinity" not in made("loader-0", scheduling=scheduling)["spec"]


def test_a_queue_admits_all_pods_of_one_start_together() -> None:
    scheduling = {"queueing": {"backend": "Kueue", "queueName": "research", "priorityClassName": "urgent"}}
    pods = [made(m, scheduling=scheduling)["metadata"] for m in ("coordinator", "loader-0", "trainer-0", "trainer-1")]
    assert {p["labels"]["kueue.x-k8s.io/queue-name"] for p in pods} == {"research"}
    assert {p["labels"]["kueue.x-k8s.io/priority-class"] for p in pods} == {"urgent"}
    assert len({p["labels"]["kueue.x-k8s.io/pod-group-name"] for p in pods}) == 1
    assert {p["annotations"]["kueue.x-k8s.io/pod-group-total-count"] for p in pods} == {"4"}
    assert not [k for k in made("trainer-0")["metadata"]["labels"] if "kueue" in k]


def test_a_priority_class_is_that_of_all_pods() -> None:
    for member in ("coordinator", "loader-0", "trainer-0"):
        assert made(member, scheduling={"priorityClassName": "high"})["spec"]["priorityClassName"] == "high"


def test_a_lost_node_is_given_up_after_half_a_minute_unless_the_template_says_otherwise() -> None:
    mine = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "tolerationSeconds": 600}
    found = made("trainer-0", trainers={"count": 2, "template": {"tolerations": [mine]}})["spec"]["tolerations"]
    seconds = sorted((t["key"], t["tolerationSeconds"]) for t in found)  # of two for one taint the shorter counts
    assert seconds == [("node.kubernetes.io/not-ready", 30), ("node.kubernetes.io/unreachable", 600)]


def test_a_volume_of_ours_may_be_given_another_size_or_another_kind() -> None:
    volumes = [{"name": "shm", "emptyDir": {"sizeLimit": "8Gi"}}, {"name": "scratch", "hostPath": {"path": "/fast"}}]
    spec = made("trainer-0", trainers={"count": 2, "template": {"volumes": volumes}})["spec"]
    laid = {v["name"]: v for v in spec["volumes"]}
    assert laid["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}
    assert laid["scratch"] == {"name": "scratch", "hostPath": {"path": "/fast"}}


def test_pods_of_one_plan_differ_in_name_place_and_environment_only() -> None:
    one, two = made("trainer-0"), made("trainer-1")
    assert one["spec"]["hostname"] != two["spec"]["hostname"]
    for spec in (one["spec"], two["spec"]):
        del spec["hostname"]
        for container in (*spec["initContainers"], *spec["containers"]):
            container["env"] = [e for e in container["env"] if e["name"] not in ("COXSWAIN_NAME", "COXSWAIN_INDEX")]
    assert one["spec"] == two["spec"]


@pytest.mark.parametrize("wish", ["required", "preferred"])
def test_a_trainer_is_placed_near_the_trainers_of_its_own_attempt_and_of_no_other_one(wish: str) -> None:
    """Pods of the attempt before, which leave, would hold the next one where it was."""
    pod = made("trainer-1", scheduling={"topology": {wish: "rack"}})
    (terms,) = pod["spec"]["affinity"]["podAffinity"].values()
    (term,) = (t.get("podAffinityTerm", t) for t in terms)
    wanted = (LABEL_JOB_UID, LABEL_ROLE, LABEL_ATTEMPT)
    assert term["labelSelector"] == {"matchLabels": {name: pod["metadata"]["labels"][name] for name in wanted}}
