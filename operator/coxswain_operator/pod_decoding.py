"""Decodes manifests, or their bytes, into the small views that reconcile reads. Pure."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache, partial

import msgspec

from coxswain import names
from coxswain_operator.children import CONTENT
from coxswain_operator.children.common import controller_of
from coxswain_operator.children.containers import CONSTRUCTOR
from coxswain_operator.children.scheduling import POD_GROUP, POD_SET, RETRIABLE
from coxswain_operator.reconcile.times import seconds
from coxswain_operator.views import ChildView, Conditions, HolderView, Manifest, NodeView, PodView

GONE: Conditions = frozenset({("Ready", "Gone")})
"""Conditions of a node that does not exist any more."""


class _Struct(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """The fields that are read; the decoder skips all others."""


class PodAnnotations(_Struct, frozen=True):
    """The annotations that decisions rest on."""

    retriable: str = msgspec.field(name=RETRIABLE, default="")
    avoids: str = msgspec.field(name=names.ANNOTATION_AVOIDS, default="")
    pod_set: str = msgspec.field(name=POD_SET, default="")


class OwnerReference(_Struct, frozen=True):
    uid: str
    controller: bool = False
    api_version: str = ""
    kind: str = ""
    name: str = ""


_NO_OWNER = OwnerReference("")


class ObjectMeta(_Struct, frozen=True):
    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = "0"
    labels: dict[str, str] | None = None
    annotations: PodAnnotations | None = None
    owner_references: tuple[OwnerReference, ...] | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None

    @property
    def controller(self) -> str:
        """The uid of the TrainingJob that controls it; empty without one. Labels prove nothing: anyone may set them."""
        return self._owner.uid

    @property
    def job(self) -> str:
        """That TrainingJob's name."""
        return self._owner.name

    @property
    def _owner(self) -> OwnerReference:
        owners = (o for o in self.owner_references or () if o.controller)
        found = next(owners, _NO_OWNER)
        ours = found.kind == "TrainingJob" and found.api_version.startswith(f"{names.GROUP}/")
        return found if ours else _NO_OWNER


class PodCondition(_Struct, frozen=True):
    type: str
    status: str
    reason: str | None = None
    message: str | None = None
    last_transition_time: str | None = None


_NO_CONDITION = PodCondition("", "")


class Terminated(_Struct, frozen=True):
    exit_code: int | None = None
    reason: str | None = None
    message: str | None = None
    finished_at: str | None = None


class Waiting(_Struct, frozen=True):
    reason: str | None = None
    message: str | None = None


class Running(_Struct, frozen=True):
    pass


class ContainerState(_Struct, frozen=True):
    running: Running | None = None
    terminated: Terminated | None = None
    waiting: Waiting | None = None


class ContainerStatus(_Struct, frozen=True):
    name: str
    state: ContainerState | None = None
    ready: bool = False


class PodStatus(_Struct, frozen=True):
    phase: str | None = None
    reason: str | None = None
    message: str | None = None
    start_time: str | None = None
    pod_ip: str | None = msgspec.field(name="podIP", default=None)
    conditions: tuple[PodCondition, ...] | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None
    init_container_statuses: tuple[ContainerStatus, ...] | None = None


class Container(_Struct, frozen=True):
    name: str
    image: str = ""
    restart_policy: str = ""


class PodSpec(_Struct, frozen=True):
    node_name: str | None = None
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] | None = None


class Pod(_Struct, frozen=True):
    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus | None = None


def pod_view(manifest: Manifest) -> PodView:
    return view_of(msgspec.convert(manifest, Pod))


def view_of(pod: Pod) -> PodView:
    """Interns strings that many pods share."""
    meta, status, labels = pod.metadata, pod.status or PodStatus(), pod.metadata.labels or {}
    role, ended, waiting = labels[names.LABEL_ROLE], Terminated(), _waiting(status)
    main = next((c for c in status.container_statuses or () if c.name == role), None)
    if main is not None and main.state is not None:
        ended = main.state.terminated or ended
    phase, lingers = status.phase or "Pending", False
    if ended.exit_code is not None and phase not in _ENDED:  # restartPolicy is Never: it does not come back
        phase, lingers = _ENDED[ended.exit_code != 0], True
    conditions, placed = conditions_of(status.conditions), _condition(status, "PodScheduled")
    unplaced = placed if placed.status == "False" else _NO_CONDITION
    created, scheduled = _seconds(meta.creation_timestamp), _seconds(placed.last_transition_time)
    scheduled = scheduled if placed.status == "True" else 0.0
    dated = partial(_by_server, started=status.start_time, placed=scheduled or created)
    return PodView(
        name=meta.name,
        uid=meta.uid,
        role=sys.intern(role),
        index=int(labels[names.LABEL_INDEX]),
        incarnation=int(labels[names.LABEL_INCARNATION]),
        attempt=int(labels.get(names.LABEL_ATTEMPT, 0)),
        phase=sys.intern(phase),
        ready=_is_ready(status, main),
        exit_code=ended.exit_code,
        reason=sys.intern(ended.reason or status.reason or ""),
        message=ended.message or "",
        conditions=conditions,
        node=sys.intern(pod.spec.node_name or ""),
        disruption=sys.intern(_condition(status, "DisruptionTarget", "True").reason or ""),
        deleting=meta.deletion_timestamp is not None,
        created=created,
        scheduled=scheduled,
        finished=dated(ended.finished_at),
        ready_since=dated(_condition(status, "Ready", "True").last_transition_time),
        deletes_at=_seconds(meta.deletion_timestamp),
        grace=float(meta.deletion_grace_period_seconds or 0),
        ip=status.pod_ip or "",
        waiting=sys.intern(waiting.reason or ""),
        waiting_message=sys.intern(waiting.message or ""),
        initializing=_initializing(pod.spec, status),
        unscheduled=sys.intern(unplaced.message or ""),
        unscheduled_reason=sys.intern(unplaced.reason or "Unschedulable") if unplaced.status else "",
        group=sys.intern(labels.get(POD_GROUP, "")),
        given_up=meta.annotations is not None and meta.annotations.retriable == "false",
        lingers=lingers,
        pod_reason=sys.intern(status.reason or ""),
        status_message=status.message or "",
        image=_image(pod.spec.containers, role),
        data_image=_image(pod.spec.init_containers or (), CONSTRUCTOR.name),
        avoids=_names(meta.annotations.avoids if meta.annotations else ""),
        forced=meta.deletion_grace_period_seconds == 0,
        pod_set=sys.intern(meta.annotations.pod_set if meta.annotations else ""),
    )


def _by_server(time: str | None, started: str | None, placed: float) -> float:
    """By the control plane's clock, as all other times: the node's own may be wrong, and gives the difference alone."""
    return placed + _seconds(time) - _seconds(started) if started and time else _seconds(time)


def _image(containers: Iterable[Container], name: str) -> str:
    return sys.intern(next((c.image for c in containers if c.name == name), ""))


_ENDED = ("Succeeded", "Failed")


def _is_ready(status: PodStatus, main: ContainerStatus | None) -> bool:
    """As the pod says, but for containers that are not ours. Of a lost node only the pod's condition turns False."""
    condition = _condition(status, "Ready")
    if condition.status == "True" or condition.reason != "ContainersNotReady" or main is None:
        return condition.status == "True"
    sidecars = [c for c in status.init_container_statuses or () if c.name == CONSTRUCTOR.name]
    return all(c.ready for c in (main, *sidecars))


def with_nodes(pods: Iterable[PodView], nodes: Mapping[str, NodeView]) -> tuple[PodView, ...]:
    """The same pods, each with the conditions of its node."""
    gone = NodeView(GONE)
    return tuple(replace(p, node_conditions=nodes.get(p.node, gone).conditions) if p.node else p for p in pods)


def conditions_of(conditions: tuple[PodCondition, ...] | None) -> Conditions:
    return _shared(tuple([(c.type, c.status) for c in conditions])) if conditions else frozenset()


def child_view(child: Manifest) -> ChildView:
    meta = child["metadata"]
    return ChildView(
        kind=child["kind"],
        name=meta["name"],
        uid=meta["uid"],
        content=(meta.get("annotations") or {}).get(CONTENT, ""),
        deleting="deletionTimestamp" in meta,
        data=(child.get("data") or {}) if child["kind"] == "ConfigMap" else {},
    )


def holder_view(holder: Manifest, job: Manifest) -> HolderView:
    """A leftover is not younger than the job: this operator may know only the predecessor of a job that is made again."""
    meta, owner = holder["metadata"], controller_of(holder)
    ours = owner.get("kind") == "TrainingJob" and str(owner.get("apiVersion", "")).startswith(f"{names.GROUP}/")
    predecessor = ours and owner["name"] == job["metadata"]["name"]
    older = seconds(meta["creationTimestamp"]) <= seconds(job["metadata"]["creationTimestamp"])
    return HolderView(
        kind=holder["kind"],
        name=meta["name"],
        uid=meta["uid"],
        owner=f"{owner['kind']} {owner['name']}" if owner else "",
        leftover=predecessor and older,
        deleting="deletionTimestamp" in meta,
        former_uid="" if owner else _former_uid(meta.get("labels") or {}, job),
    )


def _former_uid(labels: Manifest, job: Manifest) -> str:
    uid = str(labels.get(names.LABEL_JOB_UID, "")) if labels.get(names.LABEL_JOB) == job["metadata"]["name"] else ""
    return "" if uid == job["metadata"]["uid"] else uid


def _waiting(status: PodStatus) -> Waiting:
    """Why the first container waits, such as ImagePullBackOff; ordinary reasons do not count."""
    containers = (*(status.init_container_statuses or ()), *(status.container_statuses or ()))
    found = (c.state.waiting for c in containers if c.state is not None and c.state.waiting is not None)
    return next((w for w in found if w.reason not in _ORDINARY), Waiting())


def _initializing(spec: PodSpec, status: PodStatus) -> str:
    """The init container that runs, or has failed. Of sidecars, which restart, no container awaits the end."""
    sidecars = {c.name for c in spec.init_containers or () if c.restart_policy == "Always"}
    found = (_described(c.name, c.state) for c in status.init_container_statuses or () if c.name not in sidecars)
    return next(filter(None, found), "")


def _described(name: str, state: ContainerState | None) -> str:
    if state is not None and state.running is not None:
        return f"init container {name} runs"
    ended = (state.terminated if state else None) or Terminated()
    said = ", ".join(filter(None, (ended.reason, ended.message)))
    return f"init container {name}: exit code {ended.exit_code}{said and f' ({said})'}" if ended.exit_code else ""


_ORDINARY = ("PodInitializing", "ContainerCreating", None)


def _condition(status: PodStatus, type_: str, wanted: str = "") -> PodCondition:
    found = (c for c in status.conditions or () if c.type == type_ and wanted in ("", c.status))
    return next(found, _NO_CONDITION)


@lru_cache(maxsize=256)
def _names(text: str) -> tuple[str, ...]:
    """Shared by the pods of a start."""
    return tuple(filter(None, text.split(",")))


@lru_cache(maxsize=4096)
def _shared(pairs: tuple[tuple[str, str], ...]) -> Conditions:
    """Shares equal sets: pods and nodes are many, their states few."""
    return frozenset(pairs)


_seconds = lru_cache(maxsize=4096)(seconds)
