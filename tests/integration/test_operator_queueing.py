"""Kueue's pods on a real API server: the operator has them let go, by its chart's own rights."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from coxswain.wire import JobReport
from coxswain_operator.children.scheduling import RETRIABLE
from e2e.cluster.process import wait_until
from tests.fake_coordinator import FakeCoordinator
from tests.integration.apiserver import ApiServer
from tests.integration.operator_parts import MERGE, Kubelet, Manifest, apply_all, connected, new_namespace, operating
from tests.integration.test_operator_reconcile import job, state, until
from tests.unit.fake_cluster import report
from tests.unit.test_reconcile_queueing import QUEUE, group_of

FINALIZER = "kueue.x-k8s.io/managed"
CRDS, KUEUE = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "/apis/kueue.x-k8s.io/v1beta1"
HEAD = {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "Workload"}
WORKLOADS: Manifest = {
    "metadata": {"name": "workloads.kueue.x-k8s.io"},
    "spec": {
        "group": "kueue.x-k8s.io",
        "scope": "Namespaced",
        "names": {"kind": "Workload", "plural": "workloads", "singular": "workload", "listKind": "WorkloadList"},
        "versions": [
            {"name": "v1beta1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
        ],
    },
}


class Kueue:
    """Says of pods what Kueue would: they are kept, and a Workload of their group's name stands for them."""

    def __init__(self, api: ApiServer, namespace: str) -> None:
        self._api, self.pods = api, Kubelet(api, namespace)
        self._path, self._workloads = (
            f"/api/v1/namespaces/{namespace}/pods",
            f"{KUEUE}/namespaces/{namespace}/workloads",
        )

    async def take(self, count: int) -> None:
        """All pods of a start; none has a node yet."""
        await until(lambda: len(self.pods.names()) == count)
        for name in self.pods.names():
            self._patch(name, {"finalizers": [FINALIZER]})
        (self.group,) = {group_of(pod) for pod in self.pods.pods()}
        answer = self._api.http.post(self._workloads, json={**HEAD, "metadata": {"name": self.group}})
        assert answer.is_success, answer.text

    def admit(self) -> None:
        for name in self.pods.names():
            target = {"apiVersion": "v1", "kind": "Node", "name": "somewhere"}
            binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
            assert self._api.http.post(f"{self._path}/{name}/binding", json=binding).is_success
        self.pods.run_all()

    def stands(self) -> bool:
        """The Workload does."""
        return self._api.http.get(f"{self._workloads}/{self.group}").is_success

    def marked(self) -> list[str]:
        return [p["metadata"]["name"] for p in self.pods.pods() if p["metadata"].get("annotations", {}).get(RETRIABLE)]

    def let_go(self) -> None:
        for name in self.pods.names():
            self._patch(name, {"finalizers": None})

    def _patch(self, name: str, metadata: Manifest) -> None:
        answer = self._api.http.patch(f"{self._path}/{name}", json={"metadata": metadata}, headers=MERGE)
        assert answer.is_success or answer.status_code == 404, answer.text


@pytest.fixture(scope="module", autouse=True)
def installed(api: ApiServer) -> None:
    assert api.http.post(CRDS, json={"apiVersion": "apiextensions.k8s.io/v1", **WORKLOADS}).is_success
    wait_until(lambda: api.http.get(f"{KUEUE}/workloads").is_success, "Workloads to be served", 20)


@asynccontextmanager
async def queued(api: ApiServer, word: JobReport | None = None, **spec: Any) -> AsyncIterator[tuple[str, Kueue]]:
    """A job whose pods wait in their queue, under an operator that hears this word of its coordinator."""
    namespace = new_namespace(api)
    apply_all(api, namespace, scheduling=QUEUE, **spec)
    kueue = Kueue(api, namespace)
    async with operating(api.kubeconfig, namespace, FakeCoordinator(report=word)):
        await kueue.take(4)
        yield namespace, kueue


async def test_a_job_that_waits_in_a_queue_is_suspended_though_its_pods_are_kept(api: ApiServer) -> None:
    async with queued(api) as (namespace, kueue):
        edit(api, namespace, {"spec": {"suspend": True}})
        await until(lambda: not kueue.stands())
        assert state(api, namespace) == "Suspending"
        kueue.let_go()
        await until(lambda: state(api, namespace) == "Suspended")
    assert kueue.pods.names() == []


async def test_a_job_that_is_deleted_in_its_queue_leaves_no_pods_behind(api: ApiServer) -> None:
    async with queued(api) as (namespace, kueue):
        assert api.http.delete(api.path("trainingjobs", "demo", namespace=namespace)).is_success
        for name in kueue.pods.names():  # this server has no garbage collector
            kueue.pods.remove(name)
        await until(lambda: not kueue.stands())
        kueue.let_go()
    assert kueue.pods.names() == []


async def test_the_mark_that_ends_a_group_never_meets_another_pod_of_that_name(api: ApiServer) -> None:
    async with queued(api) as (namespace, kueue), connected(api) as cluster:
        name = kueue.pods.names()[0]
        await cluster.leave_queue(namespace, kueue.group, name, "of-another-pod")
        assert kueue.marked() == []
        uid = next(p["metadata"]["uid"] for p in kueue.pods.pods() if p["metadata"]["name"] == name)
        await cluster.leave_queue(namespace, kueue.group, name, uid)
        assert kueue.marked() == [name]
        kueue.let_go()


async def test_a_failed_job_marks_its_group_as_over(api: ApiServer) -> None:
    rule = {"name": "fatal", "action": "Fail", "onExitCodes": {"operator": "In", "values": [9]}}
    async with queued(api, report("Running", 10), failurePolicy={"rules": [rule]}) as (namespace, kueue):
        kueue.admit()
        await until(lambda: state(api, namespace) == "Running")
        kueue.pods.end("demo-trainer-0-0", 9)
        await until(lambda: kueue.marked() == ["demo-trainer-0-0"])
        assert (state(api, namespace), kueue.stands()) == ("Failed", True)
        kueue.let_go()
    assert job(api, namespace)["status"]["restarts"]["counted"] == 0


def edit(api: ApiServer, namespace: str, change: Manifest) -> None:
    path = api.path("trainingjobs", "demo", namespace=namespace)
    assert api.http.patch(path, json=change, headers=MERGE).is_success
