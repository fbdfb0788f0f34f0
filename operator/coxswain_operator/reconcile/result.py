"""What one policy wants of this pass. Policies return values; only the conclusion turns them into actions."""

from __future__ import annotations

from dataclasses import dataclass

from coxswain_operator.reconcile.actions import (
    CheckpointAndStop,
    Create,
    CreatePod,
    Delete,
    EndQuarantine,
    LeaveQueue,
    Quarantine,
)
from coxswain_operator.reconcile.status import JobStatus
from coxswain_operator.views import Event


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """`state` is shown to users; `reason` and `message` say why."""

    state: str
    status: JobStatus  # counters, incarnations and attempts as they shall be; conditions are added by the conclusion
    reason: str = ""
    message: str = ""
    deletes: tuple[Delete, ...] = ()
    creates: tuple[Create | CreatePod, ...] = ()
    calls: tuple[CheckpointAndStop | LeaveQueue | Quarantine | EndQuarantine, ...] = ()
    events: tuple[Event, ...] = ()
    requeue_times: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Termination:
    """Why an attempt, or the whole job, is over. `state` is Completed or Failed."""

    state: str
    reason: str
    message: str
    rule: str = ""
    exit_code: int | None = None
    node: str = ""
