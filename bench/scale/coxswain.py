"""Our operator as a bench sees it: a process, and jobs of so many trainers."""

from __future__ import annotations

import functools
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx

from bench.scale.control_plane import Manifest, Plane
from bench.scale.objects import Scene
from bench.scale.watching import Pods
from coxswain.api.crd import crds
from coxswain.api.kinds import KINDS
from coxswain.names import API_VERSION
from coxswain_operator.reconcile import reconcile
from coxswain_operator.reconcile.actions import CreatePod, Observed
from e2e.cluster.process import Argument, Child, wait_until

OPERATOR_NAMESPACE = "coxswain-system"
OTHERS = 2  # a coordinator and a loader beside the trainers
_PLURALS = {"DataSource": "datasources", "DataMix": "datamixes"}


def inputs() -> tuple[Manifest, ...]:
    """What jobs refer to."""
    source = {"uri": "file:///corpus/", "format": "Text", "tokenizer": {"bytes": {}}, "include": "**/*.txt"}
    mix = {"seed": 7, "sources": [{"name": "code", "sourceRef": {"name": "code"}, "weight": 1}]}
    return _manifest("DataSource", "code", source), _manifest("DataMix", "mix", mix)


def job(name: str, trainers: int) -> Manifest:
    """Exit code 1 of any of its pods restarts the whole job."""
    rule = {"name": "restart", "action": "RestartJob", "onExitCodes": {"operator": "In", "values": [1]}}
    spec = {
        "model": {"preset": "llama-tiny"},
        "mixRef": {"name": "mix"},
        "parallelism": {"hybridData": {"tokensPerReplica": 1024, "maxDegree": 4}, "hardware": "cpu"},
        "batch": {"tokensPerStep": 1024 * max(4, trainers), "maxSequenceTokens": 1024},
        "optimizer": {"learningRate": "3e-4"},
        "stop": {"steps": 100},
        "trainers": {"count": trainers},
        "data": {"loaders": {"min": 1, "max": 1}},
        "checkpoint": {"uri": "file:///runs/demo"},
        "failurePolicy": {"rules": [rule]},
    }
    return _manifest("TrainingJob", name, spec)


def _manifest(kind: str, name: str, spec: Manifest) -> Manifest:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}


def pods_of(name: str, trainers: int, namespace: str) -> list[Manifest]:
    """The very pods that the operator would create, but for their owner, which a garbage collector
    would miss.
    """
    objects = [{**m, "metadata": {**m["metadata"], "namespace": namespace}} for m in (*inputs(), job(name, trainers))]
    source, mix, target = objects
    target["metadata"] |= {"uid": "0", "resourceVersion": "1", "generation": 1}
    decision = reconcile(Observed(job=target, sources=(source,), mixes=(mix,), tokens=("t",)), time.time())
    return [_orphaned(a.manifest) for a in decision.actions if isinstance(a, CreatePod)]


def _orphaned(pod: Manifest) -> Manifest:
    head = {key: value for key, value in pod["metadata"].items() if key != "ownerReferences"}
    return {**pod, "metadata": head}


class Coxswain:
    """The operator's process on a plane."""

    name, others = "coxswain", OTHERS
    users: tuple[str, ...] = ("coxswain",)
    kinds: tuple[str, ...] = (f"{API_VERSION}/trainingjobs",)
    cannot: Mapping[str, str] = MappingProxyType({})

    def __init__(self, plane: Plane, kubeconfig: Path | None = None) -> None:
        """`kubeconfig`: another way to the API server."""
        self._plane, self._starts = plane, 0
        self._kubeconfig = kubeconfig
        self.processes: list[Child] = []

    def prepare(self) -> None:
        """CRDs, and the namespace of the Lease."""
        http = self._plane.control.http
        for crd in crds():
            http.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", json=crd).raise_for_status()
        for path in (f"/apis/{API_VERSION}/{kind.plural}" for kind in KINDS):
            wait_until(functools.partial(_served, http, path), path)
        http.post("/api/v1/namespaces", json={"metadata": {"name": OPERATOR_NAMESPACE}}).raise_for_status()

    def start(self) -> None:
        """Returns once it leads, and has answered to a job where there was none."""
        self._starts += 1
        command: list[Argument] = [
            sys.executable, "-m", "coxswain_operator", "--kubeconfig",
            self._kubeconfig or self._plane.control.kubeconfig_of(self.name),
            "--operator-namespace", OPERATOR_NAMESPACE, "--host", "127.0.0.1", "--port", "0",
        ]  # fmt: skip
        child = self._plane.run(f"coxswain-{self._starts}", command)
        self.processes = [child]
        child.wait_until(lambda: bool(self._holder()), 60)
        if not self._plane.control.http.get(f"/apis/{API_VERSION}/trainingjobs").json()["items"]:
            self._try(child)

    def _try(self, child: Child) -> None:
        """A job that lacks its mix gets a condition that says so."""
        http, path = self._plane.control.http, f"/apis/{API_VERSION}/namespaces/{OPERATOR_NAMESPACE}/trainingjobs"
        http.post(path, json=job("trial", 1)).raise_for_status()
        child.wait_until(lambda: "conditions" in http.get(f"{path}/trial").json().get("status", {}), 60)
        http.delete(f"{path}/trial").raise_for_status()

    def kill(self) -> None:
        """SIGKILL.

        Its Lease goes at once, as if its 15 s were over: how long they are is the installation's
        choice.
        """
        while self.processes:
            self.processes.pop().stop()
        self._plane.control.http.delete(self._lease())

    async def submit(self, at: Scene, names: list[str], trainers: int) -> None:
        for manifest in inputs():
            await at.create(_PLURALS[manifest["kind"]], manifest)
        for name in names:
            await at.create("trainingjobs", job(name, trainers))

    def failing(self, pods: Pods) -> str:
        return next(name for name in pods.alive.values() if "-coordinator-" in name)

    @property
    def metrics(self) -> str:
        """URL of its own status pages."""
        (port,) = re.findall(r"health on \S+?:(\d+)", self.processes[0].log.read_text())
        return f"http://127.0.0.1:{port}/metrics"

    def _holder(self) -> str:
        lease: dict[str, Any] = self._plane.control.http.get(self._lease()).json()
        return str(lease.get("spec", {}).get("holderIdentity", ""))

    def _lease(self) -> str:
        return f"/apis/coordination.k8s.io/v1/namespaces/{OPERATOR_NAMESPACE}/leases/coxswain-operator"


def _served(http: httpx.Client, path: str) -> bool:
    return http.get(path).is_success
