"""A cluster in memory for reconcile's tests: its pods start and fail as the test says, and so does a coordinator's report."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec

from coxswain.api.trainingjob_status import TrainingJobStatus
from coxswain.names import API_VERSION, LABEL_INCARNATION, LABEL_INDEX, LABEL_JOB_UID, LABEL_ROLE
from coxswain.wire import JobReport, SizeReply
from coxswain_operator.children.common import controller_of
from coxswain_operator.cluster import AlreadyExists, Conflict, WatchEvent
from coxswain_operator.node_decoding import Node, node_view
from coxswain_operator.pod_decoding import pod_view
from coxswain_operator.reconcile.times import stamp
from coxswain_operator.views import AdmissionView, Conditions, Event, Manifest, NodeView, PodView

NAMESPACE = "lab"


class Crash(BaseException):
    """The operator's process is gone. No `except Exception` survives it."""


def training_job(name: str = "demo", **spec: Any) -> Manifest:
    body: Manifest = {
        "model": {"preset": "llama-tiny"},
        "mixRef": {"name": "mix"},
        "parallelism": {"hybridData": {"tokensPerReplica": 1024, "maxDegree": 4}},
        "batch": {"tokensPerStep": 4096, "maxSequenceTokens": 1024},
        "optimizer": {"learningRate": "3e-4"},
        "stop": {"steps": 100},
        "trainers": {"count": 2},
        "data": {"loaders": {"min": 1}},
        "checkpoint": {"uri": "file:///runs/demo"},
    }
    return manifest("TrainingJob", name, {**body, **spec})


def data_source(name: str = "code") -> Manifest:
    return manifest(
        "DataSource",
        name,
        {"uri": "file:///corpus/", "format": "Text", "tokenizer": {"bytes": {}}, "include": "**/*.txt"},
    )


def data_mix(name: str = "mix", *sources: str) -> Manifest:
    used = [{"name": s, "sourceRef": {"name": s}, "weight": 1} for s in sources or ("code",)]
    return manifest("DataMix", name, {"seed": 7, "sources": used})


def manifest(kind: str, name: str, spec: Manifest) -> Manifest:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}


def report(phase: str = "Running", step: int = 10, **changes: Any) -> JobReport:
    plain = JobReport(
        phase=phase, generation=1, step=step, steps=100, tokens=4096 * step, loss=2.5, tokens_per_second=1000.0,
        idle_fraction=0.05, eta_seconds=60, layout_hash="sha256:1", layout_summary="2 x tp1pp1", checkpoint_step=step,
        checkpoint_uri="file:///runs/demo", checkpoint_time=1000.0, waiting_for="",
    )  # fmt: skip
    return msgspec.structs.replace(plain, **changes)


def report_text(phase: str, **changes: Any) -> str:
    return msgspec.json.encode(report(phase, **changes)).decode()


class FakeCluster:
    """Cluster, coordinator and clock in one. `before_call` may raise, to crash the operator between any two actions."""

    def __init__(self, *objects: Manifest) -> None:
        self.now = 1000.0
        self.objects: dict[tuple[str, str], Manifest] = {}
        self.versions, self.uids = itertools.count(1), itertools.count(1)
        self.before_call: Callable[[str, str], None] = lambda verb, what: None
        self.report_now: JobReport | None = None
        self.created: list[str] = []  # names of pods
        self.deleted: list[Manifest] = []  # pods, as they were when their deletion was asked for
        self.events: list[Event] = []
        self.calls: list[tuple[str, int]] = []
        self.reached = True  # the coordinator, by an order to stop
        self.status_writes = 0
        self.sizes_asked: list[int] = []  # that the coordinator was asked for
        self.reply_to_size: Callable[[int], SizeReply | None] = lambda _: SizeReply("Refused", 0, "it cannot")
        self.size_reported: Callable[[], int] = lambda: 0  # by the coordinator
        self.watchers: list[asyncio.Queue[WatchEvent]] = []
        self.level = ""  # of Pod Security, that the namespace enforces
        self.unplaceable: set[str] = set()  # members for whose pods no node has room
        for item in objects:
            self.put(item)

    # --- Cluster -----------------------------------------------------------------------------------------------

    async def list(self, kind: str, namespace: str, labels: dict[str, str] | None = None) -> list[Manifest]:
        self.before_call("list", kind)
        wanted = (labels or {}).items()
        found = (o for (k, _), o in self.objects.items() if k == kind)
        return [copied(o) for o in found if wanted <= o["metadata"].get("labels", {}).items()]

    async def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        self.before_call("get", kind)
        found = self.objects.get((kind, name))
        return None if found is None else copied(found)

    async def find(self, kind: str, namespace: str, name: str) -> Manifest | None:
        return await self.get(kind, namespace, name)

    async def pod_views(self, namespace: str, job_uid: str) -> list[PodView]:
        found = await self.list("Pod", namespace, {LABEL_JOB_UID: job_uid})
        return [pod_view(p) for p in found if controller_of(p).get("uid") == job_uid]

    async def orphans(self, namespace: str, job: str, besides: str = "") -> list[PodView]:
        found = [(p, controller_of(p)) for p in await self.list("Pod", namespace)]
        ours = (
            p for p, by in found if (by.get("kind"), by.get("name")) == ("TrainingJob", job) and by["uid"] != besides
        )
        return [pod_view(p) for p in ours]

    async def leave_queue(self, namespace: str, group: str, pod: str, uid: str = "") -> None:
        """This world has no queue."""
        self.before_call("leave", group)

    async def admissions(self, namespace: str, job_uid: str) -> Sequence[AdmissionView] | None:
        """This world has no queue."""
        return None

    async def pod_security(self, namespace: str) -> str:
        return self.level

    async def nodes(self) -> dict[str, NodeView] | None:
        """None: a test that has no nodes knows nothing of them."""
        found = [o for (kind, _), o in self.objects.items() if kind == "Node"]
        return {n["metadata"]["name"]: node_view(msgspec.convert(n, Node)) for n in found} or None

    async def watch(self, kind: str, namespace: str, labels: dict[str, str] | None = None) -> AsyncIterator[WatchEvent]:
        queue: asyncio.Queue[WatchEvent] = asyncio.Queue()
        self.watchers.append(queue)
        while True:
            yield await queue.get()

    async def create(self, manifest: Manifest) -> Manifest:
        self.before_call("create", manifest["metadata"]["name"])
        key = (manifest["kind"], manifest["metadata"]["name"])
        if key in self.objects:
            raise AlreadyExists(key[1])
        stored = self.put(manifest)
        if key[0] == "Pod":
            self.created.append(key[1])
            stored["status"] = {"phase": "Pending"}
        return copied(stored)

    async def delete(self, kind: str, namespace: str, name: str, uid: str = "", force: bool = False) -> None:
        self.before_call("delete", name)
        found = self.objects.get((kind, name))
        if found is None or (uid and found["metadata"]["uid"] != uid):
            return
        meta = found["metadata"]
        if (kind != "Pod" or force) and not meta.get("finalizers"):
            del self.objects[kind, name]
        elif "deletionTimestamp" not in meta:
            self.deleted.append(copied(found))
            meta["deletionTimestamp"] = stamp(self.now)
        if force:
            meta["deletionGracePeriodSeconds"] = 0

    async def patch_status(
        self, kind: str, namespace: str, name: str, status: Manifest, resource_version: str
    ) -> Manifest:
        self.before_call("patch", name)
        found = self.objects[kind, name]
        if found["metadata"]["resourceVersion"] != resource_version:
            raise Conflict(name)
        if kind == "TrainingJob":
            self.status_writes += 1
            TrainingJobStatus.model_validate(status)  # what the CRD would refuse or prune must not be written
        found["status"] = copied(status)
        found["metadata"]["resourceVersion"] = str(next(self.versions))
        return copied(found)

    async def publish(self, involved: Manifest, event: Event) -> None:
        self.before_call("publish", event.reason)
        self.events.append(event)

    # --- JobControl --------------------------------------------------------------------------------------------

    async def report(self, job: Manifest) -> JobReport | None:
        alive = self.pod("coordinator")
        if self.report_now is None or not (alive and alive["status"]["phase"] == "Running"):
            return None
        return msgspec.structs.replace(self.report_now, size=self.size_reported())

    async def resize(self, job: Manifest, trainers: int) -> SizeReply | None:
        self.before_call("size", str(trainers))
        self.sizes_asked.append(trainers)
        return self.reply_to_size(trainers)

    async def checkpoint_and_stop(self, job: Manifest, reason: str, at_step: int = -1) -> bool:
        self.before_call("stop", reason)
        self.calls.append((reason, at_step))
        return self.reached

    # --- what the test does --------------------------------------------------------------------------------------

    def clock(self) -> float:
        return self.now

    def put(self, manifest: Manifest) -> Manifest:
        stored = copied(manifest)
        meta = stored["metadata"]
        meta.setdefault("uid", f"uid-{next(self.uids)}")
        meta.setdefault("generation", 1)
        meta["creationTimestamp"], meta["resourceVersion"] = stamp(self.now), str(next(self.versions))
        self.objects[stored["kind"], meta["name"]] = stored
        return stored

    def edit(self, kind: str, name: str, **spec: Any) -> None:
        """A user's change of a spec."""
        found = self.objects[kind, name]
        found["spec"] |= spec
        found["metadata"]["generation"] += 1
        found["metadata"]["resourceVersion"] = str(next(self.versions))

    @property
    def job(self) -> Manifest:
        return self.objects["TrainingJob", "demo"]

    @property
    def state(self) -> str:
        return self.condition("Succeeded")["reason"]

    def condition(self, type_: str) -> Manifest:
        return next(c for c in self.job["status"]["conditions"] if c["type"] == type_)

    def pods(self) -> list[Manifest]:
        return [o for (kind, _), o in self.objects.items() if kind == "Pod"]

    def pod(self, member: str) -> Manifest | None:
        """The newest pod of a member."""
        mine = [p for p in self.pods() if member_of(p) == member]
        return max(mine, key=lambda p: int(p["metadata"]["labels"][LABEL_INCARNATION]), default=None)

    def run(self, pod: Manifest) -> None:
        pod["status"] = {"phase": "Running", "podIP": "127.64.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
        pod["spec"]["nodeName"] = f"node-of-{member_of(pod)}"

    def run_all(self) -> None:
        for pod in self.pods():
            if member_of(pod) in self.unplaceable:
                self.unschedulable(pod)
            elif pod["status"]["phase"] == "Pending":
                self.run(pod)

    def unschedulable(self, pod: Manifest, reason: str = "Unschedulable") -> None:
        no = {"type": "PodScheduled", "status": "False", "reason": reason, "message": "0/2 nodes are available: full."}
        pod["status"] = {"phase": "Pending", "conditions": [no]}

    def wait(self, pod: Manifest, reason: str, message: str = "") -> None:
        """Its main container does not start."""
        name, waiting = pod["metadata"]["labels"][LABEL_ROLE], {"reason": reason, "message": message}
        pod["status"] = {"phase": "Pending", "containerStatuses": [{"name": name, "state": {"waiting": waiting}}]}

    def unprepared(self, pod: Manifest) -> None:
        """It has a node, which has mounted none of its volumes yet."""
        since = {"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp(self.now)}
        pod["status"] = {
            "phase": "Pending", "conditions": [since, {"type": "PodReadyToStartContainers", "status": "False"}],
        }  # fmt: skip

    def set_node(self, name: str, ready: str) -> None:
        """`ready`: True, False or Unknown, as its Ready condition says."""
        node = self.put({"kind": "Node", "metadata": {"name": name}})
        node["status"] = {"conditions": [{"type": "Ready", "status": ready}]}

    def lost(self, pod: Manifest) -> bool:
        """No kubelet acts on its deletion."""
        node = self.objects.get(("Node", pod["spec"].get("nodeName", "")))
        return node is not None and conditions(node) != {("Ready", "True")}

    def end(self, pod: Manifest, code: int, message: str = "", reason: str = "", disrupted: bool = False) -> None:
        ended = {"exitCode": code, "reason": reason or ("Completed" if code == 0 else "Error"), "message": message}
        ended["finishedAt"] = stamp(self.now)
        pod["status"] = {
            "phase": "Failed" if code else "Succeeded",
            "containerStatuses": [{"name": pod["metadata"]["labels"][LABEL_ROLE], "state": {"terminated": ended}}],
            "conditions": [{"type": "DisruptionTarget", "status": "True"}] if disrupted else [],
        }

    def vanish(self, pod: Manifest) -> None:
        self.objects.pop(("Pod", pod["metadata"]["name"]), None)

    def reap(self) -> None:
        """What is being deleted is gone."""
        for pod in self.pods():
            meta = pod["metadata"]
            if "deletionTimestamp" in meta and not meta.get("finalizers") and not self.lost(pod):
                self.vanish(pod)

    def tick(self, seconds: float = 1.0) -> None:
        self.now += seconds


def with_job(**spec: Any) -> FakeCluster:
    """A source, its mix and a job of this spec."""
    return FakeCluster(data_source(), data_mix(), training_job(**spec))


def copied(value: Manifest) -> Manifest:
    """Deep, and quicker than copy.deepcopy."""
    fresh: Manifest = msgspec.json.decode(msgspec.json.encode(value))
    return fresh


def conditions(node: Manifest) -> Conditions:
    return frozenset((c["type"], c["status"]) for c in node["status"]["conditions"])


def member_of(pod: Manifest) -> str:
    labels = pod["metadata"]["labels"]
    role: str = labels[LABEL_ROLE]
    return role if role == "coordinator" else f"{role}-{labels[LABEL_INDEX]}"


def live(pod: Manifest) -> bool:
    return pod["status"]["phase"] not in ("Succeeded", "Failed")
