"""Deadlines of the whole job: how long it may be active, and how long it is kept after its end."""

from __future__ import annotations

from msgspec.structs import replace

from coxswain_operator.reconcile.context import Context
from coxswain_operator.reconcile.result import Termination
from coxswain_operator.reconcile.status import JobStatus
from coxswain_operator.reconcile.times import seconds
from coxswain_operator.views import PodView


def exceeded(ctx: Context) -> Termination | None:
    """More active time than activeDeadlineSeconds, suspensions excluded."""
    limit = ctx.spec.active_deadline_seconds
    if limit is None or active_seconds(ctx) < limit:
        return None
    text = f"the job was active for longer than activeDeadlineSeconds ({limit})"
    way_out = "recreate it with a larger limit to resume from the last checkpoint"
    return Termination("Failed", "DeadlineExceeded", f"{text}; {way_out}")


def active_seconds(ctx: Context) -> float:
    """Time since the last start or resumption, and what was recorded before it."""
    suspended, start = ctx.status.condition("Suspended"), ctx.status.start_time
    if not start or suspended is None or suspended.status != "False":
        return ctx.status.active_seconds
    since = max(seconds(start), seconds(suspended.last_transition_time))
    return ctx.status.active_seconds + max(0.0, ctx.now - since)  # below: the clock was set back


def recorded(ctx: Context) -> JobStatus:
    """With the active time so far: for the pass that begins a suspension."""
    return replace(ctx.status, active_seconds=int(active_seconds(ctx)))


def requeue_times(ctx: Context) -> tuple[float, ...]:
    limit = ctx.spec.active_deadline_seconds
    if limit is None or not ctx.status.is_("Suspended", "False"):
        return ()
    return (ctx.now + max(1.0, limit - active_seconds(ctx)),)


def starts_by(ctx: Context, pod: PodView) -> float:
    """When its containers have to run: counted from its creation, or from when it found a node.

    Not from before we asked for it: the API server's clock may be behind ours.
    """
    asked = max(seconds(ctx.status.start_time), seconds(ctx.numbers.of(pod.member).since))
    return max(pod.created, pod.scheduled, asked) + ctx.spec.start_timeout_seconds


def starts(ctx: Context) -> set[float]:
    """When to look again for pods that do not start."""
    return {starts_by(ctx, p) for p in ctx.observed.pods if p.phase == "Pending"}


def expires(ctx: Context) -> float:
    """When the finished job itself is deleted."""
    ttl = ctx.spec.ttl_seconds_after_finished
    return float("inf") if ttl is None else seconds(ctx.status.completion_time) + ttl
