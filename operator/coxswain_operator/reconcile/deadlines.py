"""Deadlines of the whole job: how long it may be active, and how long it is kept after its end."""

from __future__ import annotations

from msgspec.structs import replace

from coxswain_operator.reconcile.situation import Situation
from coxswain_operator.reconcile.status import JobStatus
from coxswain_operator.reconcile.step import Ending
from coxswain_operator.reconcile.times import seconds
from coxswain_operator.reconcile.values import PodView


def exceeded(s: Situation) -> Ending | None:
    """More active time than activeDeadlineSeconds, suspensions excluded."""
    limit = s.spec.active_deadline_seconds
    if limit is None or active_seconds(s) < limit:
        return None
    text = f"the job was active for longer than activeDeadlineSeconds ({limit}); made anew with more, it goes on where it saved"
    return Ending("Failed", "DeadlineExceeded", text)


def active_seconds(s: Situation) -> float:
    """Time since the last start or resumption, and what was recorded before it."""
    suspended, start = s.status.condition("Suspended"), s.status.start_time
    if not start or suspended is None or suspended.status != "False":
        return s.status.active_seconds
    since = max(seconds(start), seconds(suspended.last_transition_time))
    return s.status.active_seconds + max(0.0, s.now - since)  # below: the clock was set back


def recorded(s: Situation) -> JobStatus:
    """With the active time so far: for the pass that begins a suspension."""
    return replace(s.status, active_seconds=int(active_seconds(s)))


def wakes(s: Situation) -> tuple[float, ...]:
    limit = s.spec.active_deadline_seconds
    if limit is None or not s.status.is_("Suspended", "False"):
        return ()
    return (s.now + max(1.0, limit - active_seconds(s)),)


def starts_by(s: Situation, pod: PodView) -> float:
    """When its containers have to run: counted from its creation, or from when it found a node.

    Not from before we asked for it: the API server's clock may be behind ours.
    """
    asked = max(seconds(s.status.start_time or ""), seconds(s.numbers.of(pod.member).since))
    return max(pod.created, pod.scheduled, asked) + s.spec.start_timeout_seconds


def starts(s: Situation) -> set[float]:
    """When to look again for pods that do not start."""
    return {t for p in s.observed.pods if p.phase == "Pending" and (t := starts_by(s, p)) > s.now}


def expires(s: Situation) -> float:
    """When the finished job itself is deleted."""
    ttl = s.spec.ttl_seconds_after_finished
    return float("inf") if ttl is None else seconds(s.status.completion_time or "") + ttl
