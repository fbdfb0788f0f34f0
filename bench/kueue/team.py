"""A namespace with a queue, the jobs in it, and what became of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx

from bench.kueue.manager import GROUP, STORED, Manifest, create
from bench.scale.coxswain import inputs, job
from e2e.cluster.process import wait_until

SLOTS = 4  # pods that the queue admits at a time; a job of one trainer has three
POD_GROUP = f"{GROUP}/pod-group-name"
MERGE = {"Content-Type": "application/merge-patch+json"}


class Team:
    """A namespace with a queue of SLOTS pods, and the jobs in it."""

    def __init__(self, http: httpx.Client, name: str) -> None:
        self.http, self.name = http, name
        create(http, "/api/v1/namespaces", {"metadata": {"name": name}})
        self._until(lambda: http.get(f"/api/v1/namespaces/{name}/serviceaccounts/default").is_success, "account")
        share = {"name": "any", "resources": [{"name": "pods", "nominalQuota": SLOTS}]}
        spec = {
            "namespaceSelector": {},
            "resourceGroups": [{"coveredResources": ["pods"], "flavors": [share]}],
            "preemption": {"withinClusterQueue": "LowerPriority"},
        }
        create(http, f"/apis/{GROUP}/{STORED}/clusterqueues", kueue_object("ClusterQueue", name, {"spec": spec}))
        queue = kueue_object("LocalQueue", "research", {"spec": {"clusterQueue": name}})
        create(http, f"/apis/{GROUP}/{STORED}/namespaces/{name}/localqueues", queue)
        for manifest, plural in zip(inputs(), ("datasources", "datamixes"), strict=True):
            create(http, self._ours(plural), manifest)

    def submit(self, name: str, trainers: int = 1, priority: str = "", **fields: Any) -> None:
        made = job(name, trainers)
        queueing = {"backend": "Kueue", "queueName": "research", "priorityClassName": priority}
        made["spec"] |= {"scheduling": {"queueing": queueing}}
        made["spec"]["trainers"] |= fields
        create(self.http, self._ours("trainingjobs"), made)

    def change(self, name: str, **spec: Any) -> None:
        answer = self.http.patch(f"{self._ours('trainingjobs')}/{name}", json={"spec": spec}, headers=MERGE)
        answer.raise_for_status()

    def delete(self, name: str) -> None:
        self.http.delete(f"{self._ours('trainingjobs')}/{name}").raise_for_status()

    def status(self, name: str) -> Manifest:
        found: Manifest = self.http.get(f"{self._ours('trainingjobs')}/{name}").json().get("status", {})
        return found

    def state(self, name: str) -> str:
        return next((c["reason"] for c in self.status(name).get("conditions", ()) if c["type"] == "Succeeded"), "")

    def pods(self, name: str) -> list[Manifest]:
        labels = {"labelSelector": f"coxswain.dev/job={name}"}
        found: list[Manifest] = self.http.get(f"/api/v1/namespaces/{self.name}/pods", params=labels).json()["items"]
        return found

    def alive(self, name: str) -> set[str]:
        """Names of its pods that are not being deleted."""
        return {p["metadata"]["name"] for p in self.pods(name) if "deletionTimestamp" not in p["metadata"]}

    def runs(self, name: str, count: int = 3) -> bool:
        """All its pods are on nodes."""
        pods = [p for p in self.pods(name) if "deletionTimestamp" not in p["metadata"]]
        return len(pods) == count and all(p["status"]["phase"] == "Running" for p in pods)

    def waits(self, name: str, count: int = 3) -> bool:
        """All its pods are gated, and the job says so."""
        pods = [p for p in self.pods(name) if "deletionTimestamp" not in p["metadata"]]
        return (
            len(pods) == count and all(p["spec"].get("schedulingGates") for p in pods) and self.state(name) == "Queued"
        )

    def workloads(self, version: str = STORED) -> dict[str, Manifest]:
        path = f"/apis/{GROUP}/{version}/namespaces/{self.name}/workloads"
        return {one["metadata"]["name"]: one for one in self.http.get(path).json()["items"]}

    def groups(self, name: str) -> set[str]:
        return {p["metadata"]["labels"][POD_GROUP] for p in self.pods(name)}

    def until(self, *claims: Callable[[], bool]) -> None:
        for claim in claims:
            self._until(claim, "a claim")

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        wait_until(holds, what, 90)

    def _ours(self, plural: str) -> str:
        return f"/apis/coxswain.dev/v1alpha1/namespaces/{self.name}/{plural}"


def kueue_object(kind: str, name: str, body: Manifest) -> Manifest:
    return {"apiVersion": f"{GROUP}/{STORED}", "kind": kind, "metadata": {"name": name}, **body}
