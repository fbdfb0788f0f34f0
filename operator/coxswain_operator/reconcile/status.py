"""The status of a TrainingJob as a frozen value: read at the start of a pass, written at most once."""

from __future__ import annotations

from typing import Any

import msgspec

from coxswain.names import CONDITIONS
from coxswain_operator.reconcile.times import seconds
from coxswain_operator.views import Manifest

# A write costs what four pods cost.
PROGRESS_SECONDS = 15  # progress and numbers of pods alone are written at most this often
MESSAGE_SECONDS = 5  # and so are messages of a job that makes no progress
START_SECONDS = 60  # and both, of a start that takes so long or longer


class _Stored(msgspec.Struct, frozen=True, rename="camel"):
    """Fields as the API spells them."""


class Condition(_Stored, frozen=True, kw_only=True):
    type: str
    status: str  # True | False | Unknown
    reason: str
    message: str = ""
    last_transition_time: str = ""
    observed_generation: int = 0


class Incarnation(_Stored, frozen=True, kw_only=True, omit_defaults=True):
    """The current pod of a member, or of all members without an entry. Stored before its creation."""

    name: str  # the member, or incarnations.ALL_MEMBERS
    number: int
    since: str = ""  # when this number was stored
    delay_seconds: int = 0  # the pod is created not before since + delay
    failures: int | msgspec.UnsetType = msgspec.UNSET  # of the pods in a row that this delay stands for; unset: all


class Restarts(_Stored, frozen=True, kw_only=True):
    counted: int = 0
    ignored: int = 0


class Trainers(_Stored, frozen=True, kw_only=True):
    ready: int = 0
    desired: int = 0  # size of the gang; 0: the next start settles it
    asked: int = 0  # spec.trainers.count when that was settled; more than `desired` when there was no room for all
    configured: int | msgspec.UnsetType = msgspec.UNSET  # that the pods' job.json names; unset: desired


class Progress(_Stored, frozen=True, kw_only=True):
    step: int
    steps: int
    tokens: str
    loss: str | None = None
    tokens_per_second: str
    idle_percent: str
    eta_seconds: int
    percent: str
    evaluation_loss: str | None = None
    step_seconds: str | None = None


class GangStatus(_Stored, frozen=True, kw_only=True):
    releases: int = 0  # in a row: starts that found nodes for some pods only
    until: str = ""  # end of the back-off after the last one


class LastCheckpoint(_Stored, frozen=True, kw_only=True):
    step: int
    uri: str
    time: str


class LayoutStatus(_Stored, frozen=True, kw_only=True):
    hash: str
    summary: str


class PredictedLayout(_Stored, frozen=True, kw_only=True):
    layout: str
    predicted_step_seconds: str


class StrategyStatus(_Stored, frozen=True, kw_only=True):
    """What mode Auto has chosen, and the next best."""

    layout: str
    predicted_step_seconds: str
    alternatives: tuple[PredictedLayout, ...] = ()


class Straggler(_Stored, frozen=True, kw_only=True):
    """A device that is confirmed to compute slower than planned."""

    trainer: str
    device: int
    node: str = ""
    slowdown: str  # seconds of compute over those at speed 1
    since: str
    since_step: int = 0
    cause: str
    action: str = ""  # what was done


class KeptNode(_Stored, frozen=True, kw_only=True):
    """A node that the job wanted to leave."""

    node: str
    message: str  # why it stays
    until: str  # it is not asked about again before


class Attempt(_Stored, frozen=True, kw_only=True):
    """One run of the whole job, from its start to what ended it."""

    number: int
    start: str
    end: str | None = None
    cause: str | None = None
    rule: str | None = None
    exit_code: int | None = None
    node: str | None = None
    resumed_step: int | None = None


class Images(_Stored, frozen=True, kw_only=True):
    """Of the pods of an attempt."""

    trainers: str
    data: str  # of coordinator, loaders and constructors


class GangScheduling(_Stored, frozen=True, kw_only=True, omit_defaults=True):
    """How the pods of an attempt are placed together."""

    backend: str  # a name in children.gangs.BACKENDS; empty: each by itself
    scheduler: str = ""  # schedulerName that the installation named; empty: the backend's own


class Pinned(_Stored, frozen=True, kw_only=True):
    """What all pods of an attempt are made of."""

    hash: str  # of configuration, specs and images; empty: an earlier release started the attempt
    images: Images
    gang_scheduling: GangScheduling | msgspec.UnsetType = msgspec.UNSET  # unset: an earlier release started the attempt


class JobStatus(_Stored, frozen=True, kw_only=True):
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    attempt: int = 0
    world_generation: int = 0
    trainers: Trainers = Trainers()
    replicas: int = 0
    selector: str = ""
    ready: str = ""
    incarnations: tuple[Incarnation, ...] = ()  # read through coxswain_operator.reconcile.incarnations
    seen: str = ""  # members whose current pod has been there, as ranges.encoded writes them
    restarts: Restarts = Restarts()
    progress: Progress | None = None
    last_checkpoint: LastCheckpoint | None = None
    layout: LayoutStatus | None = None
    attempts: tuple[Attempt, ...] = ()  # last 10
    start_time: str | None = None
    completion_time: str | None = None
    event_sequence: int | None = None  # of this coordinator's events, the last one published
    active_seconds: int = 0  # before `active_since`
    updated_at: str = ""  # when this was written
    active_since: str | msgspec.UnsetType = msgspec.UNSET  # unset: queued, suspended or not started
    retried: str | None = None  # the value of names.ANNOTATION_RETRY that the latest retry answered, or from the start
    pinned: Pinned | None = None  # None: the next start settles it
    stream_hash: str | None = None  # of the latest start: what its checkpoints continue
    gang: GangStatus | msgspec.UnsetType = msgspec.UNSET  # of a job that was half placed, until all its pods work
    strategy: StrategyStatus | msgspec.UnsetType = msgspec.UNSET  # of mode Auto
    stragglers: tuple[Straggler, ...] | msgspec.UnsetType = msgspec.UNSET  # the slowest first; unset: none
    kept_node: KeptNode | msgspec.UnsetType = msgspec.UNSET
    token_secret: str | msgspec.UnsetType = msgspec.UNSET  # that the pods of this start mount; unset: the former name
    former_token_secret: str | msgspec.UnsetType = msgspec.UNSET  # until a pod mounts token_secret, which is another

    def condition(self, type_: str) -> Condition | None:
        return next((c for c in self.conditions if c.type == type_), None)

    def is_(self, type_: str, status: str = "True") -> bool:
        condition = self.condition(type_)
        return condition is not None and condition.status == status

    def since(self, type_: str, status: str = "True") -> float:
        """When the condition came to this status; infinity where it has another."""
        condition = self.condition(type_)
        return seconds(condition.last_transition_time) if condition and condition.status == status else float("inf")

    @property
    def unready_since(self) -> float:
        """Since when its pods could have become ready; infinity where they are. A suspension, and a queue that has admitted the
        job, are over since."""
        suspended = self.condition("Suspended")
        resumed = seconds(suspended.last_transition_time) if suspended else 0.0
        return max(self.since("PodsReady", "False"), resumed, seconds(self.active_since or ""))

    @property
    def ended(self) -> bool:
        """Completed or Failed, which is final unless a retry is requested."""
        return self.is_("Succeeded") or self.is_("Succeeded", "False")

    @property
    def state(self) -> str:
        condition = self.condition("Succeeded")
        return condition.reason if condition else ""


def read_status(job: Manifest) -> JobStatus:
    """Without conditions that others keep in it: the server leaves them there, whatever is written."""
    status = msgspec.convert(job.get("status") or {}, JobStatus)
    ours = tuple(c for c in status.conditions if c.type in CONDITIONS)
    return status if len(ours) == len(status.conditions) else msgspec.structs.replace(status, conditions=ours)


def to_manifest(status: JobStatus) -> Manifest:
    """As the API wants it: absent instead of null."""
    plain: Manifest = _without_none(msgspec.to_builtins(status))
    return plain


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    return [_without_none(v) for v in value] if isinstance(value, list | tuple) else value


def due_at(old: JobStatus, new: JobStatus, now: float) -> float:
    """When `new` should be written: 0 = now, infinity = it says nothing new, else when the next progress is due."""
    if new == old:
        return float("inf")
    if _without_counts(_steady(new)) != _without_counts(_steady(old)):
        return 0.0
    trains = _steady(new) == _steady(old) and new.progress != old.progress
    counts = _said(new) == _said(old) and new.last_checkpoint == old.last_checkpoint
    written = seconds(old.updated_at)
    if written > now:  # the clock was set back meanwhile
        return 0.0
    if trains:
        return written + PROGRESS_SECONDS
    # A start that takes long writes both ever more rarely.
    took = min(START_SECONDS, written - old.unready_since)
    return written + max(PROGRESS_SECONDS if counts else MESSAGE_SECONDS, took)


def _steady(status: JobStatus) -> JobStatus:
    """Without what grows by itself while the job runs well."""
    conditions = tuple(msgspec.structs.replace(c, message="") for c in status.conditions)
    slow = tuple(msgspec.structs.replace(s, slowdown="", action="") for s in status.stragglers or ())
    return msgspec.structs.replace(status, progress=None, last_checkpoint=None, conditions=conditions, stragglers=slow)


def _said(status: JobStatus) -> tuple[str, ...]:
    """Messages but for that of PodsReady, which names pods and changes as their numbers do."""
    slow = (text for s in status.stragglers or () for text in (s.slowdown, s.action))
    return *(c.message for c in status.conditions if c.type != "PodsReady"), *slow


def _without_counts(status: JobStatus) -> JobStatus:
    """Without what changes with every pod while a gang starts."""
    trainers = msgspec.structs.replace(status.trainers, ready=0)
    return msgspec.structs.replace(
        status, seen="", trainers=trainers, ready="", replicas=0, former_token_secret=msgspec.UNSET
    )
