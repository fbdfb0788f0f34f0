"""Which Events a pass publishes: what reconcile itself brought about, and what the coordinator tells."""

from __future__ import annotations

from coxswain_operator.cluster import Happening
from coxswain_operator.reconcile import incarnations
from coxswain_operator.reconcile.situation import COORDINATOR, Situation
from coxswain_operator.reconcile.status import JobStatus

# Told by reconcile, from its own transitions; the coordinator's word for the same thing is not repeated.
OURS = frozenset({"Validated", "GangStarted", "Suspended", "Resumed", "Completed", "Failed", "NodeLost"})


def transitions(old: JobStatus, new: JobStatus) -> tuple[Happening, ...]:
    """Conditions that turned."""
    news = []
    if _turned(old, new, "Validated"):
        news.append(Happening("Validated", "everything that the job names exists and fits together"))
    if _turned(old, new, "PodsReady"):
        news.append(Happening("GangStarted", f"all pods are ready, {new.ready} trainers"))
    if _turned(old, new, "Suspended"):
        condition = new.condition("Suspended")
        news.append(Happening("Suspended", condition.message if condition else ""))
    if old.is_("Suspended") and new.is_("Suspended", "False"):
        news.append(Happening("Resumed", "pods are created again"))
    return tuple(news)


def _turned(old: JobStatus, new: JobStatus, type_: str) -> bool:
    return new.is_(type_) and not old.is_(type_)


def told(s: Situation) -> tuple[tuple[Happening, ...], int | None]:
    """The coordinator's events that are not published yet, and the number up to which all are then.

    A pod holds one coordinator, and its successor tells only events of its own: they start with no mark.
    """
    mark = s.status.event_sequence
    events = s.report.events if s.report else ()
    new = [e for e in events if mark is None or e.sequence > mark]
    news = tuple(Happening(e.reason, e.message, e.warning, e.time) for e in new if e.reason not in OURS)
    return news, max((e.sequence for e in new), default=mark)


def mark_after(old: JobStatus, new: JobStatus, mark: int | None) -> int | None:
    """The mark belongs to one pod of the coordinator."""
    return mark if _coordinator(old) == _coordinator(new) else None


def _coordinator(status: JobStatus) -> int:
    return incarnations.numbers(status).of(COORDINATOR).number
