"""Kubeflow Trainer as a bench sees it: a runtime of ours, whose jobs it hands to JobSet."""

from __future__ import annotations

from collections.abc import Mapping

from bench.scale.control_plane import Manifest, Plane
from bench.scale.coxswain import OTHERS
from bench.scale.objects import Scene
from bench.scale.peers.jobset import JobSet, set_spec
from bench.scale.peers.manager import Manager, Parts
from bench.scale.peers.pods import count, template
from bench.scale.watching import Pods
from e2e.cluster.module_sources import folder_of
from e2e.cluster.process import Child, wait_until

MODULE = "github.com/kubeflow/trainer/v2"
API_VERSION, PLURAL = "trainer.kubeflow.org/v1alpha1", "trainjobs"
NAMESPACE, SERVICE = "kubeflow-system", "kubeflow-trainer-controller-manager"
RUNTIME = "bench"
_RUNTIMES = f"/apis/{API_VERSION}/clustertrainingruntimes"
_STEP = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}  # the Job whose pods it counts as nodes


def runtime(name: str) -> Manifest:
    """Torch's, as shipped, with our pod and a restart of the whole job."""
    spec = set_spec("node", template("node"), 1)
    [job] = spec["replicatedJobs"]
    labelled = {**job, "template": {**job["template"], "metadata": {"labels": _STEP}}}
    policy = {"numNodes": 1, "torch": {"numProcPerNode": "auto"}}
    return {
        "apiVersion": API_VERSION,
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": name},
        "spec": {"mlPolicy": policy, "template": {"spec": {**spec, "replicatedJobs": [labelled]}}},
    }


def train_job(name: str, pods: int) -> Manifest:
    return {
        "apiVersion": API_VERSION,
        "kind": "TrainJob",
        "metadata": {"name": name},
        "spec": {"runtimeRef": {"name": RUNTIME}, "trainer": {"numNodes": pods}},
    }


class Trainer:
    """Its manager and JobSet's on a plane."""

    name, others = "trainer", OTHERS
    users: tuple[str, ...] = ("trainer", "jobset")
    kinds: tuple[str, ...] = (f"{API_VERSION}/{PLURAL}",)
    cannot: Mapping[str, str] = {}

    def __init__(self, plane: Plane, jobset: JobSet) -> None:
        base = folder_of("trainer", MODULE) / "manifests" / "base"
        names = ("kubeflow-trainer-ca", f"{SERVICE}.{NAMESPACE}.svc")
        secret, crds = (NAMESPACE, "kubeflow-trainer-webhook-cert"), tuple((base / "crds").glob("*.yaml"))
        self._plane, self._jobset = plane, jobset
        self._manager = Manager(plane, Parts("trainer", crds, base / "webhook", names, secret))

    @property
    def processes(self) -> list[Child]:
        return [*self._manager.processes, *self._jobset.processes]

    def prepare(self) -> None:
        self._jobset.prepare()
        self._manager.prepare()

    def start(self) -> None:
        """What it knows of the runtime, which stays from its first start on, comes from a cache."""
        self._jobset.launch()
        self._manager.launch([f"--webhook-server-port={self._manager.webhook_port}"])
        self._jobset.ready()
        self._manager.ready(_RUNTIMES, runtime("trial"))
        self._plane.control.http.post(_RUNTIMES, json=runtime(RUNTIME))
        path = f"/apis/{API_VERSION}/namespaces/default/{PLURAL}"
        wait_until(lambda: self._manager.passes(path, train_job("trial", 1)), "Trainer knows its runtime")

    def kill(self) -> None:
        self._manager.kill()
        self._jobset.kill()

    async def submit(self, at: Scene, names: list[str], trainers: int) -> None:
        for name in names:
            await at.create(PLURAL, train_job(name, count(trainers)))

    def failing(self, pods: Pods) -> str:
        return next(iter(pods.alive.values()))
