"""What reconcile sees and what it may answer: frozen values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from coxswain.wire import Fault, JobReport
from coxswain_operator.children import PodPlan
from coxswain_operator.cluster import Happening, Manifest


@dataclass(frozen=True, slots=True)
class PodView:
    """The few facts of a pod that decisions rest on. Exit code, reason and message are of the container named like the role."""

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
    created: float = 0.0  # times in seconds since the epoch; 0: has not happened, or nobody knows when
    scheduled: float = 0.0
    finished: float = 0.0
    deletes_at: float = 0.0  # when its grace period is over
    ip: str = ""
    waiting: str = ""  # why a container does not start, such as ImagePullBackOff; empty for the ordinary reasons
    waiting_message: str = ""
    unscheduled: str = ""  # the scheduler's words while it finds no node
    unscheduled_reason: str = ""  # Unschedulable, SchedulingGated; empty once it has found one
    group: str = ""  # of pods that Kueue admits together
    given_up: bool = False  # Kueue was told that its group gets no successors

    @property
    def member(self) -> str:
        """`coordinator`, `loader-0`, `trainer-2`: stable over incarnations."""
        return member_name(self.role, self.index)

    @property
    def live(self) -> bool:
        """Something of it may still run, or start."""
        return not self.held and self.phase not in ("Succeeded", "Failed")

    @property
    def held(self) -> bool:
        """Deleted before it had a node, and kept by Kueue: it will never run."""
        return bool(self.group) and self.deleting and not self.node and self.phase == "Pending"

    @property
    def works(self) -> bool:
        return self.ready and self.live and not self.deleting


def member_name(role: str, index: int) -> str:
    return role if role == "coordinator" else f"{role}-{index}"


@dataclass(frozen=True, slots=True)
class ChildView:
    """A child that is no pod. `content` is the hash that its annotation carries."""

    kind: str
    name: str
    uid: str = ""
    content: str = ""
    deleting: bool = False


@dataclass(frozen=True, slots=True)
class Observed:
    """One consistent look at everything a TrainingJob depends on."""

    job: Manifest
    sources: tuple[Manifest, ...] = ()
    mixes: tuple[Manifest, ...] = ()
    policies: tuple[Manifest, ...] = ()
    pods: tuple[PodView, ...] = ()
    children: tuple[ChildView, ...] = ()
    report: JobReport | None = None
    refused: Fault | None = None  # what the cluster said about a child that it will never accept
    fresh_token: str = ""  # random for every look; used once, when the job's Secret does not exist yet


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
    """Kueue shall let go of a group of pods: told by a mark on this pod or, without one, by the end of the group's Workload."""

    group: str
    pod: str = ""


@dataclass(frozen=True, slots=True)
class Create:
    """A child that is no pod."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class CreatePod:
    """A pod, whose manifest is built when it is asked for: thousands of them at once would fill the memory."""

    __match_args__ = ("manifest",)

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
class WakeAt:
    """Look again at this time even if nothing changes."""

    time: float


Action: TypeAlias = WriteStatus | Delete | Create | CreatePod | LeaveQueue | CheckpointAndStop | Happening | WakeAt


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, in this order. A pass that fails half-way is repeated from a new look."""

    actions: tuple[Action, ...] = field(default=())

    def of(self, *kinds: type) -> tuple[Action, ...]:
        """The actions of these types, in order."""
        return tuple(a for a in self.actions if isinstance(a, kinds))
