"""Kueue's Workloads at a server that has one version of them, both or none: what is read, made, deleted, and remembered."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from coxswain.names import LABEL_JOB_UID
from coxswain_operator.children.common import CONTENT
from coxswain_operator.cluster import Denied
from coxswain_operator.kubernetes.connection import Connection, NotFound
from coxswain_operator.kubernetes.workloads import Workloads, admission_view
from coxswain_operator.reconcile.partial import LOOK_SECONDS
from coxswain_operator.views import AdmissionView, Manifest

VERSIONS = (("v1beta2",), ("v1beta1",), ("v1beta2", "v1beta1"))
GROUP = "kueue.x-k8s.io"


class Kueue:
    """A server with these versions of Kueue, its classes, and the time."""

    def __init__(self, *versions: str) -> None:
        self.now, self.versions, self.calls = 1000.0, versions, list[str]()
        self.workloads: dict[str, Manifest] = {}
        self.classes = {"workloadpriorityclasses/urgent": 7, "priorityclasses/high": 9}
        self.denied = False
        self.query: dict[str, Any] = {}

    def _version(self, path: str) -> str:
        """Of a path that is served."""
        _, _, group, version, *rest = path.split("/")
        if group == GROUP and version not in self.versions:
            raise NotFound(path)
        assert (group, version) == ("scheduling.k8s.io", "v1") or rest[:2] == ["namespaces", "lab"] or len(rest) == 2
        return version

    async def call(self, method: str, path: str, labelSelector: str = "") -> Manifest:
        version = self._version(path)
        self.calls.append(f"{method} {version}")
        if self.denied:
            raise Denied("Forbidden", "no")
        kind_and_name = "/".join(path.split("/")[-2:])
        if kind_and_name in self.classes:
            return {"value": self.classes[kind_and_name]}
        if not path.endswith("/lab/workloads"):
            raise NotFound(path)
        wanted = dict([labelSelector.split("=")])
        items = [w for w in self.workloads.values() if wanted.items() <= w["metadata"]["labels"].items()]
        return {"items": items}

    async def send(self, method: str, path: str, body: Manifest | None = None, **query: Any) -> bytes:
        version = self._version(path)
        self.calls.append(f"{method} {version}")
        if method == "POST":
            assert body is not None and body["apiVersion"] == f"{GROUP}/{version}"
            self.workloads[body["metadata"]["name"]], self.query = body, query
        elif self.workloads.pop(path.rpartition("/")[2], None) is None:
            raise NotFound(path)
        return json.dumps(body).encode()


def adapter(server: Kueue) -> Workloads:
    return Workloads(cast("Connection", server), lambda: server.now)


def workload(name: str = "demo-u-0", job: str = "u", ref: Manifest | None = None) -> Manifest:
    labels, spec = {LABEL_JOB_UID: job}, {"queueName": "q", **({"priorityClassRef": ref} if ref else {})}
    head = {"name": name, "namespace": "lab", "labels": labels, "annotations": {CONTENT: name}}
    return {"apiVersion": f"{GROUP}/v1beta2", "kind": "Workload", "metadata": head, "spec": spec}


async def names(workloads: Workloads, job: str = "u") -> list[str] | None:
    found = await workloads.admissions("lab", job)
    return None if found is None else [w.name for w in found]


@pytest.mark.parametrize("versions", VERSIONS)
async def test_a_workload_is_made_found_and_deleted_in_the_newest_version_that_the_server_has(
    versions: tuple[str, ...],
) -> None:
    server = Kueue(*versions)
    workloads = adapter(server)
    await workloads.create(workload())
    assert await names(workloads) == ["demo-u-0"]
    await workloads.delete("lab", "demo-u-0")
    assert await names(workloads) == [] and server.workloads == {}
    assert {call.split()[1] for call in server.calls[:3]} == {versions[0]}


async def test_what_is_made_must_fit_the_servers_schema_field_by_field() -> None:
    """A field that the server drops in silence, such as minCount, would ask for something else."""
    server = Kueue("v1beta2")
    await adapter(server).create(workload())
    assert server.query == {"fieldManager": "coxswain-operator", "fieldValidation": "Strict"}


async def test_without_kueue_there_are_no_admissions_and_a_workload_is_refused_with_the_reason() -> None:
    workloads = adapter(Kueue())
    assert await workloads.admissions("lab", "u") is None
    await workloads.delete("lab", "demo-u-0")  # there is nothing to delete
    with pytest.raises(Denied, match="serves no workloads of Kueue, or has no namespace lab"):
        await workloads.create(workload())


async def test_without_the_right_to_look_there_are_none_but_there_is_kueue() -> None:
    server = Kueue("v1beta2")
    server.denied = True
    assert await adapter(server).admissions("lab", "u") == ()


async def test_only_the_workloads_of_the_job_are_its_own() -> None:
    server = Kueue("v1beta2")
    workloads = adapter(server)
    await workloads.create(workload())
    await workloads.create(workload("demo-v-0", job="v"))
    assert (await names(workloads), await names(workloads, "v")) == (["demo-u-0"], ["demo-v-0"])


@pytest.mark.parametrize(("age", "reads"), [(0.0, 1), (LOOK_SECONDS - 0.1, 1), (LOOK_SECONDS, 2)])
async def test_what_was_read_is_read_again_after_its_time(age: float, reads: int) -> None:
    server = Kueue("v1beta2")
    workloads = adapter(server)
    await names(workloads)
    server.now += age
    await names(workloads)
    assert len(server.calls) == reads


@pytest.mark.parametrize("write", ["create", "delete"])
async def test_what_was_read_is_read_again_after_an_own_write(write: str) -> None:
    server = Kueue("v1beta2")
    server.workloads = {"demo-u-0": workload()}
    workloads = adapter(server)
    assert await names(workloads) == ["demo-u-0"]
    if write == "create":
        await workloads.create(workload("demo-u-1"))
    else:
        await workloads.delete("lab", "demo-u-0")
    assert await names(workloads) == (["demo-u-0", "demo-u-1"] if write == "create" else [])


OF_QUEUE = {"group": GROUP, "kind": "WorkloadPriorityClass", "name": "urgent"}
OF_PODS = {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": "high"}


@pytest.mark.parametrize("versions", VERSIONS)
@pytest.mark.parametrize(("ref", "priority"), [(OF_QUEUE, 7), (OF_PODS, 9), (None, None)])
async def test_a_workload_has_the_value_of_the_class_that_it_names(
    versions: tuple[str, ...], ref: Manifest | None, priority: int | None
) -> None:
    server = Kueue(*versions)
    await adapter(server).create(workload(ref=ref))
    assert server.workloads["demo-u-0"]["spec"].get("priority") == priority


@pytest.mark.parametrize("ref", [{**OF_QUEUE, "name": "high"}, {**OF_PODS, "name": "urgent"}])
async def test_a_class_that_does_not_exist_is_refused_by_name_and_no_workload_is_made(ref: Manifest) -> None:
    """Without its class the Workload would have another place in the queue."""
    server = Kueue("v1beta2")
    with pytest.raises(Denied, match=f"{ref['kind']} {ref['name']} does not exist"):
        await adapter(server).create(workload(ref=ref))
    assert server.workloads == {}


def holds(type_: str, status: str = "True", message: str = "") -> Manifest:
    return {"type": type_, "status": status, "message": message}


FULL, PREEMPTED = holds("QuotaReserved", "False", "no room"), holds("Evicted", "True", "an urgent job")


@pytest.mark.parametrize(
    ("conditions", "trainers", "message"),
    [
        ((), None, ""),
        ((FULL,), None, "no room"),
        ((holds("QuotaReserved"),), None, ""),  # its checks are not through
        ((holds("QuotaReserved"), holds("Admitted")), 2, ""),
        ((holds("QuotaReserved"), holds("Admitted"), PREEMPTED), None, "an urgent job"),  # its pods are leaving
        ((FULL, holds("Admitted", "False"), PREEMPTED), None, "an urgent job"),
        ((holds("QuotaReserved"), holds("Admitted"), holds("Evicted", "False", "admitted again")), 2, ""),
    ],
)
def test_an_admission_holds_from_admitted_until_evicted_and_else_kueues_words_say_why(
    conditions: tuple[Manifest, ...], trainers: int | None, message: str
) -> None:
    sets = [{"name": "coordinator", "count": 1}, {"name": "trainer", "count": 2}]
    status = {"conditions": list(conditions), "admission": {"podSetAssignments": sets}}
    assert admission_view({**workload(), "status": status}) == AdmissionView("demo-u-0", "demo-u-0", trainers, message)


@pytest.mark.parametrize("active", [False, True])
def test_a_workload_is_active_unless_it_says_otherwise(active: bool) -> None:
    assert admission_view({**workload(), "spec": {"active": active}}).active is active
    assert admission_view({**workload(), "spec": {}}).active


def test_a_workload_without_a_status_waits() -> None:
    plain = workload()
    del plain["metadata"]["annotations"]
    assert admission_view(plain) == AdmissionView("demo-u-0")
