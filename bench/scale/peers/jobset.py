"""JobSet as a bench sees it: one replicated Job whose pods are all of the job's."""

from __future__ import annotations

from collections.abc import Mapping

from bench.scale.control_plane import BURST, QPS, Manifest, Plane
from bench.scale.coxswain import OTHERS
from bench.scale.objects import Scene
from bench.scale.peers.manager import Manager, Parts
from bench.scale.peers.pods import RESTARTS, count, template
from bench.scale.watching import Pods
from e2e.cluster.module_sources import folder_of
from e2e.cluster.process import Child

MODULE = "sigs.k8s.io/jobset"
API_VERSION, PLURAL = "jobset.x-k8s.io/v1alpha2", "jobsets"
_CONFIG = """apiVersion: config.jobset.x-k8s.io/v1alpha1
kind: Configuration
leaderElection: {leaderElect: false}
internalCertManagement: {enable: false}
metrics: {bindAddress: "0"}
webhook: {port: %s}
"""


def job_set(name: str, pods: int) -> Manifest:
    return {
        "apiVersion": API_VERSION,
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": set_spec("workers", template("trainer"), pods),
    }


def set_spec(job: str, pod: Manifest, pods: int) -> Manifest:
    """One Job; the failure of any pod fails it, and restarts the set."""
    indexed = {"completionMode": "Indexed", "completions": pods, "parallelism": pods, "backoffLimit": 0}
    replicated = {"name": job, "replicas": 1, "template": {"spec": {**indexed, "template": pod}}}
    return {"failurePolicy": {"maxRestarts": RESTARTS}, "replicatedJobs": [replicated]}


class JobSet:
    """Its manager on a plane."""

    name, others = "jobset", OTHERS
    users: tuple[str, ...] = ("jobset",)
    kinds: tuple[str, ...] = (f"{API_VERSION}/{PLURAL}",)
    cannot: Mapping[str, str] = {}

    def __init__(self, plane: Plane) -> None:
        components = folder_of("jobset", MODULE) / "config" / "components"
        crds = tuple((components / "crd" / "bases").glob("*.yaml"))
        self._manager = Manager(plane, Parts("jobset", crds, components / "webhook", ("jobset",)))

    @property
    def processes(self) -> list[Child]:
        return self._manager.processes

    def prepare(self) -> None:
        self._manager.prepare()
        (self._manager.folder / "config.yaml").write_text(_CONFIG % self._manager.webhook_port)

    def start(self) -> None:
        self.launch()
        self.ready()

    def launch(self) -> None:
        limits = [f"--kube-api-qps={QPS}", f"--kube-api-burst={BURST}"]
        self._manager.launch(["--config=/tmp/config.yaml", *limits])

    def ready(self) -> None:
        self._manager.ready(f"/apis/{API_VERSION}/namespaces/default/{PLURAL}", job_set("trial", 1))

    def kill(self) -> None:
        self._manager.kill()

    async def submit(self, at: Scene, names: list[str], trainers: int) -> None:
        for name in names:
            await at.create(PLURAL, job_set(name, count(trainers)))

    def failing(self, pods: Pods) -> str:
        return next(iter(pods.alive.values()))
