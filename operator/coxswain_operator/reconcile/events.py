"""Which Events a pass publishes: those of reconcile's own transitions, and those that the coordinator reports."""

from __future__ import annotations

from coxswain.api.common import MAX_INTEGER
from coxswain.names import EVENT_REASONS, EventReason
from coxswain_operator.reconcile import incarnations
from coxswain_operator.reconcile.conditions import EDIT_PENDING
from coxswain_operator.reconcile.context import COORDINATOR, Context
from coxswain_operator.reconcile.status import JobStatus
from coxswain_operator.views import Event

# Reconcile publishes these from its own transitions; the coordinator's are not repeated.
OURS = frozenset(
    {
        "Validated", "GangStarted", "Suspended", "Resumed", "Completed", "Failed", "NodeLost", "PodDisrupted", "FailedDelete",
        "FailedUpdate",
    }
)  # fmt: skip
THEIRS = frozenset(EVENT_REASONS) - OURS


def transitions(old: JobStatus, new: JobStatus) -> tuple[Event, ...]:
    """Conditions that turned."""
    turned = {c.type: c.message for c in new.conditions if c.status == "True" and not old.is_(c.type)}
    resumed = old.is_("Suspended") and new.is_("Suspended", "False")
    found: dict[EventReason, str | bool | None] = {
        "Validated": "Validated" in turned
        and not new.ended
        and "everything that the job names exists and fits together",
        "GangStarted": "PodsReady" in turned and f"all pods are ready, {new.ready} trainers",
        "Suspended": turned.get("Suspended"),
        "Resumed": resumed and "pods are created again",
        EDIT_PENDING: _pending(new) != _pending(old) and _pending(new),
    }
    return tuple(Event(reason, str(message)) for reason, message in found.items() if message)


def _pending(status: JobStatus) -> str:
    """The edits that wait for the next attempt."""
    condition = status.condition("Validated")
    return condition.message if condition and condition.reason == EDIT_PENDING else ""


def coordinator_events(ctx: Context) -> tuple[tuple[Event, ...], int | None]:
    """The coordinator's events that are not published yet, and the number up to which all are then.

    Sequences start again with each pod of the coordinator: a new pod has no mark. Other reasons than ours and the coordinator's
    are not published: how many Events there may be goes by the reason.
    """
    mark = ctx.status.event_sequence
    events = ctx.report.events if ctx.report else ()
    new = [e for e in events if (-1 if mark is None else mark) < e.sequence <= MAX_INTEGER]
    published = tuple(Event(e.reason, e.message, e.warning, e.time) for e in new if e.reason in THEIRS)
    return published, max((e.sequence for e in new), default=mark)


def last_published(old: JobStatus, new: JobStatus, mark: int | None) -> int | None:
    """The mark belongs to one pod of the coordinator."""
    return mark if _coordinator(old) == _coordinator(new) else None


def _coordinator(status: JobStatus) -> int:
    return incarnations.numbers(status).of(COORDINATOR).number
