"""What reconcile sees and what it may answer: frozen values only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from coxswain.wire import Fault, JobReport, SizeReply
from coxswain_operator.children import PodPlan
from coxswain_operator.views import (
    AdmissionView,
    ChildView,
    Event,
    HolderView,
    Manifest,
    NodeView,
    PodView,
    QuarantineView,
)


@dataclass(frozen=True, slots=True)
class Sizing:
    """A question to the coordinator for this many trainers, without a restart. `reply` None: it did not answer."""

    trainers: int
    reply: SizeReply | None


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that a TrainingJob depends on, read at one time."""

    job: Manifest
    sources: tuple[Manifest, ...] = ()
    mixes: tuple[Manifest, ...] = ()
    policies: tuple[Manifest, ...] = ()
    pods: tuple[PodView, ...] = ()
    children: tuple[ChildView, ...] = ()
    report: JobReport | None = None
    rejection: Fault | None = None  # of a child that the cluster does not accept
    quarantine_refusal: str = ""  # why the last pass could not make or end a NodeQuarantine
    holders: tuple[HolderView, ...] = ()  # of names that children need
    leftovers: tuple[PodView, ...] = ()  # pods of earlier jobs of this name, when they hold names of ours
    pod_security: str = ""  # the level that the namespace enforces; empty: it names none
    quarantines: tuple[QuarantineView, ...] = ()
    nodes: Mapping[str, NodeView] | None = None  # where a decision needs them; None: it does not, or they are not known
    sizing: Sizing | None = None  # what the coordinator was asked for; None: it has that number, or cannot be asked
    admissions: tuple[AdmissionView, ...] | None = None  # of the job's groups; None: not asked, or there is no Kueue
    tokens: tuple[str, ...] = ("",)  # that the operator's keys make for the job, the newest first


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Replaces the status of the object as it was observed (`version`: its resourceVersion)."""

    kind: str
    name: str
    status: Manifest
    version: str


@dataclass(frozen=True, slots=True)
class Delete:
    """`force`: without waiting for the kubelet, which is gone."""

    kind: str
    name: str
    uid: str = ""
    force: bool = False


@dataclass(frozen=True, slots=True)
class LeaveQueue:
    """Releases a group of pods from Kueue: annotates this pod or, without one, deletes the Workload.

    `uid`: the pod's. Another job's pod may have its name by then.
    """

    group: str
    pod: str = ""
    uid: str = ""


@dataclass(frozen=True, slots=True)
class Create:
    """A child that is no pod."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class CreatePod:
    """A pod. Its manifest is built on access: thousands at once would fill the memory."""

    plan: PodPlan
    member: str
    number: int

    @property
    def name(self) -> str:
        return self.plan.name(self.member, self.number)

    @property
    def manifest(self) -> Manifest:
        return self.plan.pod(self.member, self.number)


@dataclass(frozen=True, slots=True)
class CheckpointAndStop:
    """Asks the coordinator to save at the first boundary not before `at_step` and to leave with exit code 3. Idempotent."""

    reason: str
    at_step: int = -1


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Makes this NodeQuarantine, unless jobs have made as many as `limit` meanwhile; then publishes the event.

    A refusal stops nothing: the next pass says it.
    """

    manifest: Manifest
    event: Event
    limit: int


@dataclass(frozen=True, slots=True)
class EndQuarantine:
    """Deletes a NodeQuarantine that the operator has made; then publishes the event."""

    name: str
    uid: str
    event: Event | None = None


@dataclass(frozen=True, slots=True)
class RequeueAt:
    """Run a pass at this time even if nothing changes."""

    time: float


def requeues(times: Iterable[float], now: float) -> tuple[RequeueAt, ...]:
    """Those that are to come, each once."""
    return tuple(RequeueAt(t) for t in sorted(set(times)) if now < t < float("inf"))


Action: TypeAlias = (
    WriteStatus
    | Delete
    | Create
    | CreatePod
    | LeaveQueue
    | CheckpointAndStop
    | Quarantine
    | EndQuarantine
    | Event
    | RequeueAt
)


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, in this order. A pass that fails half-way is repeated from new observations."""

    actions: tuple[Action, ...]

    def of(self, *kinds: type) -> tuple[Action, ...]:
        """The actions of these types, in order."""
        return tuple(a for a in self.actions if isinstance(a, kinds))
