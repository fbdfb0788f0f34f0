"""Views of the cluster's objects and events about a job: frozen values that all modules import."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from coxswain.names import ANNOTATION_RETRY, EventReason

Manifest = dict[str, Any]
Conditions: TypeAlias = frozenset[tuple[str, str]]
"""Conditions as (type, status)."""


@dataclass(frozen=True, slots=True)
class Event:
    """An Event to publish about a TrainingJob, after the status write."""

    reason: EventReason
    message: str
    warning: bool = False
    time: float = 0.0  # when it happened, in seconds since 1970; 0: now


@dataclass(frozen=True, slots=True)
class PodView:
    """The facts of a pod that decisions need.

    Exit code, reason, message and, once it has ended, the phase are those of the container that is named like the role;
    `ready` is that of our containers. Containers that a template adds decide nothing.
    """

    name: str
    uid: str
    role: str  # coordinator | loader | trainer
    index: int
    incarnation: int
    attempt: int = 0
    phase: str = "Pending"  # Pending | Running | Succeeded | Failed | Unknown
    ready: bool = False
    exit_code: int | None = None
    reason: str = ""
    message: str = ""  # termination message
    conditions: frozenset[tuple[str, str]] = frozenset()  # (type, status)
    node: str = ""
    node_conditions: frozenset[tuple[str, str]] = frozenset()
    disruption: str = ""  # reason of a DisruptionTarget condition that is True
    deleting: bool = False
    created: float = 0.0  # times in seconds since the epoch, by the control plane; 0: has not happened, or is unknown
    scheduled: float = 0.0
    lead: float = 0.0  # seconds by which `created` is ahead of the operator's clock, as far as it has seen
    finished: float = 0.0
    deletes_at: float = 0.0  # end of its grace period
    grace: float = 0.0  # seconds that its deletion gives it
    grace_ends: float = 0.0  # by the operator's clock, from when it first saw the deletion
    ready_since: float = 0.0  # 0 also where it is not ready
    ip: str = ""
    waiting: str = ""  # why a container does not start, such as ImagePullBackOff; empty for the ordinary reasons
    waiting_message: str = ""
    initializing: str = ""  # which init container runs, or has failed and how: then ours has not run
    unscheduled: str = ""  # the scheduler's message while it finds no node
    unscheduled_reason: str = ""  # Unschedulable, SchedulingGated; empty once it has found one
    group: str = ""  # of pods that Kueue admits together
    given_up: bool = False  # its annotation says that its group gets no successors
    lingers: bool = False  # its own container has ended; others, such as a log shipper, keep the pod on its node
    pod_reason: str = ""  # the pod's own, such as Evicted
    status_message: str = ""  # its explanation
    image: str = ""  # of its own container
    data_image: str = ""  # of a trainer's constructor
    avoids: tuple[str, ...] = ()  # nodes that were quarantined when it was created
    forced: bool = False  # deleted without grace: only a finalizer keeps it
    pod_set: str = ""  # of its group, by Kueue's name

    @property
    def member(self) -> str:
        """`coordinator`, `loader-0`, `trainer-2`: the same for every incarnation."""
        return member_name(self.role, self.index)

    @property
    def made(self) -> float:
        """When it was created, by the operator's clock as far as that is known."""
        return self.created - self.lead

    @property
    def is_active(self) -> bool:
        """Its own container may still run or start."""
        return not self.is_held and self.phase not in ("Succeeded", "Failed")

    @property
    def occupies(self) -> bool:
        """A container of it, also one that is not ours, may still run or start."""
        return self.is_active or self.lingers

    @property
    def is_held(self) -> bool:
        """Deleted before it had a node and kept by Kueue: it never runs."""
        return bool(self.group) and self.deleting and not self.node and self.phase == "Pending"

    @property
    def is_serving(self) -> bool:
        return self.ready and self.is_active and not self.deleting


@dataclass(frozen=True, slots=True)
class NodeView:
    """What is known of a node without looking at all of its pods."""

    conditions: Conditions = frozenset()
    cordoned: bool = False
    taints: tuple[tuple[str, str], ...] = ()  # key and effect of those that keep new pods away
    labels: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)  # quantities by resource
    uid: str = ""


@dataclass(frozen=True, slots=True)
class QuarantineView:
    """A NodeQuarantine."""

    name: str
    uid: str
    node: str
    created: float  # seconds since the epoch
    until: float = float("inf")  # likewise
    job: str = ""  # uid of the job for which the operator made it; empty: a person did
    node_uid: str = ""  # empty: of whatever node has the name


def member_name(role: str, index: int) -> str:
    return role if role == "coordinator" else f"{role}-{index}"


@dataclass(frozen=True, slots=True)
class HolderView:
    """An object that is not this job's and holds the name of one of its children."""

    kind: str
    name: str
    uid: str
    owner: str = ""  # kind and name of its controller
    leftover: bool = False  # of an earlier job of the same name
    deleting: bool = False
    former_uid: str = ""  # without a controller: of the earlier job of the same name whose labels it has


@dataclass(frozen=True, slots=True)
class ChildView:
    """A child other than a pod. `content` is the hash in its annotation; `data` is a ConfigMap's."""

    kind: str
    name: str
    uid: str = ""
    content: str = ""
    deleting: bool = False
    data: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AdmissionView:
    """The Workload of a group of pods in Kueue. `trainers`: as many as it admits; None: it waits, or has been evicted."""

    name: str
    content: str = ""  # hash of what was asked for
    trainers: int | None = None
    message: str = ""  # why it waits
    active: bool = True  # False: an administrator, or Kueue itself, has deactivated it


def retry_value(job: Manifest) -> str:
    """The value of the annotation that requests a retry: as much of it as the status can hold."""
    return str((job["metadata"].get("annotations") or {}).get(ANNOTATION_RETRY, ""))[:1024]


def retry_requested(job: Manifest) -> bool:
    """The job has ended and stays, and its annotation has a value that no retry has answered yet."""
    status = job.get("status") or {}
    summary = next((c for c in status.get("conditions", ()) if c["type"] == "Succeeded"), {"status": "Unknown"})
    ended = summary["status"] != "Unknown" and "deletionTimestamp" not in job["metadata"]
    return ended and retry_value(job) not in ("", status.get("retried"))
