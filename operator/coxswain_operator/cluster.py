"""The interfaces that reconcile uses: `Cluster` and `JobControl`.

Objects are Kubernetes manifests as plain dictionaries on both clusters, so reconcile treats both alike.
Pods and nodes are many, so only the facts that decisions rest on are returned.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from coxswain.errors import Refused
from coxswain.wire import JobReport, SizeReply
from coxswain_operator.views import AdmissionView, Event, Manifest, NodeView, PodView


class AlreadyExists(Exception):
    """An object of that name exists."""


class Denied(Refused):
    """The server refuses as long as something else stays as it is: a quota, rights, an admission webhook."""


class Conflict(Exception):
    """The write was based on an older state, or met another one."""


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One watch event. For a pod, `object` holds only the metadata."""

    kind: Literal["ADDED", "MODIFIED", "DELETED"]
    object: Manifest


@runtime_checkable
class Cluster(Protocol):
    """The operations of a cluster that the controller needs."""

    async def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """The current object; None if there is none."""
        ...

    async def find(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """The object that holds this name now, whatever its labels. Not from a cache; metadata suffices."""
        ...

    async def list(self, kind: str, namespace: str, labels: dict[str, str] | None = None) -> list[Manifest]:
        """All current objects of a kind. Not for pods, nodes and Secrets. Raises Denied for NodeQuarantines that the operator may
        not list."""
        ...

    async def pod_views(self, namespace: str, job_uid: str) -> Sequence[PodView]:
        """The current pods of a job, without the conditions of their nodes."""
        ...

    async def orphans(self, namespace: str, job: str, besides: str = "") -> Sequence[PodView]:
        """Pods of all jobs that have had that name, but for those of the job with the uid `besides`."""
        ...

    async def leave_queue(self, namespace: str, group: str, pod: str, uid: str = "") -> None:
        """Ends a group of pods in Kueue: annotates this pod or, without one, deletes the Workload."""
        ...

    async def admissions(self, namespace: str, job_uid: str) -> Sequence[AdmissionView] | None:
        """The Workloads that were created for the job's groups; None: the cluster has no Kueue."""
        ...

    async def pod_security(self, namespace: str) -> str:
        """The Pod Security level that the namespace enforces; empty: it names none, or the operator may not read it."""
        ...

    async def nodes(self) -> Mapping[str, NodeView] | None:
        """Every node by its name; None: the operator may not read nodes."""
        ...

    def watch(self, kind: str, namespace: str, labels: dict[str, str] | None = None) -> AsyncIterator[WatchEvent]:
        """Current objects as ADDED, then changes without end."""
        ...

    async def create(self, manifest: Manifest) -> Manifest:
        """Returns the object as stored. Raises AlreadyExists, Conflict; Denied for now, Refused for good."""
        ...

    async def delete(self, kind: str, namespace: str, name: str, uid: str = "", force: bool = False) -> None:
        """Begins deletion (of this uid only, if given). An absent object is no error. Raises Refused, Denied, Conflict.

        `force`: for a pod whose node is gone.
        """
        ...

    async def patch_status(
        self, kind: str, namespace: str, name: str, status: Manifest, resource_version: str
    ) -> Manifest:
        """Replaces our part of the status. Raises Conflict when the object has changed."""
        ...

    async def publish(self, involved: Manifest, event: Event) -> None:
        """Publishes an event."""
        ...


@runtime_checkable
class JobControl(Protocol):
    """The calls to a job's coordinator."""

    async def report(self, job: Manifest) -> JobReport | None:
        """The coordinator's latest report; None when it cannot be reached."""
        ...

    async def resize(self, job: Manifest, trainers: int) -> SizeReply | None:
        """Asks for another number of trainers without a restart. Idempotent. None when it cannot be reached."""
        ...

    async def checkpoint_and_stop(self, job: Manifest, reason: str, at_step: int = -1) -> bool:
        """Asks for a checkpoint at the first boundary from `at_step` on and exit code 3; False: unreachable."""
        ...
