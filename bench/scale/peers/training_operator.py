"""training-operator as a bench sees it: a PyTorchJob of one master and workers."""

from __future__ import annotations

from collections.abc import Mapping

from bench.scale.control_plane import Manifest, Plane
from bench.scale.coxswain import OTHERS
from bench.scale.objects import Scene
from bench.scale.peers.manager import Manager, Parts
from bench.scale.peers.pods import count, template
from bench.scale.watching import Pods
from e2e.cluster.module_sources import folder_of
from e2e.cluster.process import Child

MODULE = "github.com/kubeflow/training-operator"
API_VERSION, PLURAL = "kubeflow.org/v1", "pytorchjobs"
NAMESPACE, SERVICE = "kubeflow", "training-operator"
NO_RESTART = "no restart of a whole job: exit codes from 128 on replace one pod, others fail the job"


def pytorch_job(name: str, pods: int) -> Manifest:
    replicas = {role: _replicas(number) for role, number in (("Master", 1), ("Worker", pods - 1)) if number}
    return {
        "apiVersion": API_VERSION,
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {"pytorchReplicaSpecs": replicas},
    }


def _replicas(number: int) -> Manifest:
    return {"replicas": number, "restartPolicy": "ExitCode", "template": template("pytorch")}


class TrainingOperator:
    """Its manager on a plane. Its client's limit of 20 requests/s is built in."""

    name, others = "training-operator", OTHERS
    users: tuple[str, ...] = ("training-operator",)
    kinds: tuple[str, ...] = (f"{API_VERSION}/{PLURAL}",)
    cannot: Mapping[str, str] = {"restart": NO_RESTART}

    def __init__(self, plane: Plane) -> None:
        base = folder_of("training-operator", MODULE) / "manifests" / "base"
        names = ("training-operator-ca", f"{SERVICE}.{NAMESPACE}.svc")
        secret, crds = (NAMESPACE, "training-operator-webhook-cert"), (base / "crds" / "kubeflow.org_pytorchjobs.yaml",)
        self._manager = Manager(plane, Parts("training-operator", crds, base / "webhook", names, secret))

    @property
    def processes(self) -> list[Child]:
        return self._manager.processes

    def prepare(self) -> None:
        self._manager.prepare()

    def start(self) -> None:
        """With the one kind of its six that is measured, and with more workers than the one that it
        has by default.
        """
        arguments = [f"--webhook-server-port={self._manager.webhook_port}", "--metrics-bind-address=0"]
        self._manager.launch([*arguments, "--enable-scheme=pytorchjob", "--controller-threads=16"])
        self._manager.ready(f"/apis/{API_VERSION}/namespaces/default/{PLURAL}", pytorch_job("trial", 2))

    def kill(self) -> None:
        self._manager.kill()

    async def submit(self, at: Scene, names: list[str], trainers: int) -> None:
        for name in names:
            await at.create(PLURAL, pytorch_job(name, count(trainers)))

    def failing(self, pods: Pods) -> str:
        raise LookupError(NO_RESTART)
