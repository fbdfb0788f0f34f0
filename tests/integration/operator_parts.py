"""What tests of the operator on a real API server share: a namespace of their own, objects, a kubelet that only speaks."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from coxswain.names import LABEL_JOB_UID
from coxswain_operator.cluster import JobControl
from coxswain_operator.controller import WATCHED, Controller
from coxswain_operator.kubernetes import Connection, KubernetesCluster, find_access
from coxswain_operator.kubernetes.informer import SILENCE_SECONDS
from coxswain_operator.reconcile.times import stamp
from coxswain_operator.settings import Settings
from coxswain_operator.workqueue import Key, RequeueDelay, WorkQueue
from tests.integration.apiserver import ApiServer
from tests.unit.fake_cluster import data_mix, data_source, training_job

Manifest = dict[str, Any]
MERGE = {"Content-Type": "application/merge-patch+json"}
RUNNING: Manifest = {"phase": "Running", "podIP": "127.64.0.1", "conditions": [{"type": "Ready", "status": "True"}]}


def new_namespace(api: ApiServer) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    assert api.http.post("/api/v1/namespaces", json={"metadata": {"name": name}}).is_success
    return name


@asynccontextmanager
async def connected(api: ApiServer, **options: Any) -> AsyncIterator[KubernetesCluster]:
    """A cluster as a fresh operator process would have it."""
    async with Connection(find_access(api.kubeconfig)) as connection:
        async with KubernetesCluster(connection, **options) as cluster:
            yield cluster


@asynccontextmanager
async def operating(
    kubeconfig: Path,
    namespace: str,
    control: JobControl,
    silence: float = SILENCE_SECONDS,
    settings: Settings | None = None,
) -> AsyncIterator[KubernetesCluster]:
    """An operator of the job `demo` in this process: informers, queue and reconcile, without kopf and the Lease."""
    async with Connection(find_access(kubeconfig)) as connection:
        backend = settings.gang_backend if settings else ""
        async with KubernetesCluster(connection, True, silence, backend) as cluster:
            controller = Controller(cluster, control, settings=settings, poll_seconds=0.5)

            async def turn(key: Key) -> RequeueDelay | None:
                return await controller.reconcile_job(*key)

            async def listen(kind: str) -> None:
                async for _ in cluster.watch(kind, namespace):
                    queue.add((namespace, "demo"))

            async with WorkQueue(turn) as queue:
                listening = [asyncio.create_task(listen(kind)) for kind in WATCHED]
                try:
                    yield cluster
                finally:
                    for task in listening:
                        task.cancel()
                    await asyncio.gather(*listening, return_exceptions=True)


def within(namespace: str, manifest: Manifest) -> Manifest:
    return {**manifest, "metadata": {**manifest["metadata"], "namespace": namespace}}


def config_map(namespace: str, name: str = "c", job: str = "j") -> Manifest:
    head = {"name": name, "namespace": namespace, "labels": {LABEL_JOB_UID: job}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": head, "data": {"a": "b"}}


def a_job(namespace: str, name: str = "demo", **spec: Any) -> Manifest:
    return within(namespace, training_job(name, **spec))


def apply_all(api: ApiServer, namespace: str, **spec: Any) -> None:
    """A source, a mix and the job `demo`, as `kubectl apply` would."""
    for plural, manifest in (
        ("datasources", data_source()), ("datamixes", data_mix()), ("trainingjobs", training_job(**spec)),
    ):  # fmt: skip
        answer = api.http.post(api.path(plural, namespace=namespace), json=within(namespace, manifest))
        assert answer.is_success, answer.text


class Kubelet:
    """Says of pods what a kubelet would say."""

    def __init__(self, api: ApiServer, namespace: str, address: str = RUNNING["podIP"]) -> None:
        self._running = {**RUNNING, "podIP": address}
        self._api, self._path = api, f"/api/v1/namespaces/{namespace}/pods"

    def pods(self) -> list[Manifest]:
        items: list[Manifest] = self._api.http.get(self._path).json()["items"]
        return items

    def names(self) -> list[str]:
        return sorted(pod["metadata"]["name"] for pod in self.pods())

    def say(self, name: str, status: Manifest) -> None:
        answer = self._patch(name, status)
        assert answer.is_success, answer.text

    def _patch(self, name: str, status: Manifest) -> httpx.Response:
        return self._api.http.patch(f"{self._path}/{name}/status", json={"status": status}, headers=MERGE)

    def run_all(self) -> None:
        self.run(self.pods())

    def run(self, pods: list[Manifest]) -> None:
        """Starts those that were pending when they were listed, but for those that are gone or go."""
        for pod in pods:
            if pod["status"]["phase"] == "Pending" and "deletionTimestamp" not in pod["metadata"]:
                answer = self._patch(pod["metadata"]["name"], self._running)
                assert answer.is_success or answer.status_code == 404, answer.text

    def end(self, name: str, code: int, message: str = "", disrupted: bool = False) -> None:
        role = next(p for p in self.pods() if p["metadata"]["name"] == name)["metadata"]["labels"]["coxswain.dev/role"]
        ended = {"exitCode": code, "reason": "Error" if code else "Completed", "message": message}
        # A second ahead: times are whole seconds, and a pod that ends now did not end before its coordinator was created.
        ended["finishedAt"] = ended["startedAt"] = stamp(time.time() + 1)
        container = {"name": role, "image": "", "imageID": "", "ready": False, "restartCount": 0}
        self.say(
            name,
            {
                "phase": "Failed" if code else "Succeeded",
                "conditions": [{"type": "DisruptionTarget", "status": "True"}] if disrupted else [],
                "containerStatuses": [{**container, "state": {"terminated": ended}}],
            },
        )

    def remove(self, name: str) -> None:
        assert self._api.http.delete(f"{self._path}/{name}").is_success

    def let_go(self, name: str) -> None:
        """Ends a deletion that was only begun: a client that exits between the server's two writes leaves such a pod."""
        now = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
        answer = self._api.http.request("DELETE", f"{self._path}/{name}", json=now)
        assert answer.is_success or answer.status_code == 404, answer.text
