"""Deadlines of the whole job: how long it may be active, and how long it is kept after its end."""

from __future__ import annotations

from msgspec import UNSET
from msgspec.structs import replace

from coxswain_operator.reconcile.context import QUEUED, Context
from coxswain_operator.reconcile.result import PolicyResult, Termination
from coxswain_operator.reconcile.status import JobStatus
from coxswain_operator.reconcile.times import seconds, stamp
from coxswain_operator.views import PodView


def exceeded(ctx: Context) -> Termination | None:
    """More active time than activeDeadlineSeconds, without suspensions and time in a queue."""
    limit = ctx.spec.active_deadline_seconds
    if limit is None or active_seconds(ctx) < limit or _completes(ctx):
        return None
    text = f"the job was active for longer than activeDeadlineSeconds ({limit})"
    way_out = "raise it and retry the job to resume from the last checkpoint"
    return Termination("Failed", "DeadlineExceeded", f"{text}; {way_out}")


def _completes(ctx: Context) -> bool:
    """The coordinator has announced that the job is complete, and has yet to leave."""
    pod, report = ctx.coordinator, ctx.report
    return pod is not None and pod.is_active and report is not None and report.phase == "Completed"


def active_seconds(ctx: Context) -> float:
    """Time since the last start, resumption or admission, and what was recorded before it."""
    since = _active_since(ctx)
    if since is None:
        return ctx.status.active_seconds
    return ctx.status.active_seconds + max(0.0, ctx.now - since)  # below: the clock was set back


def _active_since(ctx: Context) -> float | None:
    """None: the job is suspended or queued, or has not started."""
    status, suspended = ctx.status, ctx.status.condition("Suspended")
    if not status.start_time or suspended is None or suspended.status != "False" or status.state == QUEUED:
        return None
    if status.active_since:
        return seconds(status.active_since)
    # An earlier version stored no such time.
    return max(seconds(status.start_time), seconds(suspended.last_transition_time))


def clocked(ctx: Context, result: PolicyResult) -> JobStatus:
    """The status of this pass: its clock stands while the job is queued or suspended."""
    since = _active_since(ctx)
    if not result.status.start_time:  # not started, or begun again
        return replace(result.status, active_since=UNSET)
    if result.state in (QUEUED, "Suspending", "Suspended"):
        return replace(result.status, active_seconds=int(active_seconds(ctx)), active_since=UNSET)
    return replace(result.status, active_since=stamp(ctx.now if since is None else since))


def requeue_times(ctx: Context) -> tuple[float, ...]:
    limit = ctx.spec.active_deadline_seconds
    if limit is None or not ctx.status.is_("Suspended", "False"):
        return ()
    return (ctx.now + max(1.0, limit - active_seconds(ctx)),)


def starts_by(ctx: Context, pod: PodView) -> float:
    """When its containers have to run: counted from its creation, from the job's admission, or from when it found a node.

    Not from before we asked for it: the API server's clock may be behind ours.
    """
    return max(pod.made, pod.scheduled, _asked(ctx, pod.member)) + ctx.spec.start_timeout_seconds


def created_by(ctx: Context, member: str) -> float:
    """When a pod that is refused has been asked for as long."""
    return _asked(ctx, member) + ctx.spec.start_timeout_seconds


def _asked(ctx: Context, member: str) -> float:
    """Since when its pod could have been there."""
    admitted = ctx.now if ctx.status.state == QUEUED else seconds(ctx.status.active_since or "")
    return max(seconds(ctx.status.start_time), admitted, seconds(ctx.numbers.of(member).since))


def starts(ctx: Context) -> set[float]:
    """When to look again for pods that do not start."""
    return {starts_by(ctx, p) for p in ctx.observed.pods if p.phase == "Pending"}


def expires(ctx: Context) -> float:
    """When the finished job itself is deleted."""
    ttl = ctx.spec.ttl_seconds_after_finished
    return float("inf") if ttl is None else seconds(ctx.status.completion_time) + ttl
