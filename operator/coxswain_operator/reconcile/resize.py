"""Another number of trainers: asked for by the user, or forced by missing room.

Where the coordinator takes it the job goes on (live_size); else the gang restarts from a checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass

from coxswain.config import JobConfig
from coxswain_operator.reconcile import attempts, incarnations, live_size, room
from coxswain_operator.reconcile.actions import CheckpointAndStop
from coxswain_operator.reconcile.context import Context
from coxswain_operator.reconcile.result import Termination
from coxswain_operator.reconcile.status import JobStatus
from coxswain_operator.reconcile.times import seconds
from coxswain_operator.views import Event

REASON = "Scaling"  # of Progressing, from the request until the coordinator has left
WORLD_SECONDS = 120  # for a world that forms again, before a new number of trainers restarts the gang
ANSWER_SECONDS = 60  # for the coordinator's answer; then it is asked to save
DEADLINE_SECONDS = 600  # for the checkpoint; then the gang restarts without it


@dataclass(frozen=True, slots=True)
class Resize:
    """How many trainers the next start has, and why. `desired` 0: as many as the spec then asks for."""

    desired: int
    asked: int
    reason: str
    message: str


def plan_resize(ctx: Context, config: JobConfig) -> Resize | None:
    """The size of a restart that is due now. A job that trains is asked to save first and then leaves."""
    if ctx.scaled:
        waits = live_size.is_possible(ctx) or _saving(ctx) or _between_worlds(ctx)
        return None if waits else Resize(0, 0, "ScaleChanged", _change(ctx))
    return _shrunk(ctx, config)


def start_resize(ctx: Context, status: JobStatus, size: Resize) -> JobStatus:
    """Replaces all members without counting a restart."""
    status = incarnations.renew_all(status, ctx.now)
    status = attempts.next_attempt(status, Termination("", size.reason, size.message, size.reason), ctx.now)
    return attempts.unsettled(status, size.desired, size.asked)


def calls(ctx: Context) -> tuple[CheckpointAndStop, ...]:
    due = _saving(ctx) and not _may_answer(ctx)
    return (CheckpointAndStop(f"scaled to {ctx.spec.trainers.count} trainers"),) if due else ()


def requeue_times(ctx: Context) -> tuple[float, ...]:
    if _saving(ctx):
        return (_deadline(ctx),)
    return (ctx.now + live_size.LOOK_SECONDS,) if ctx.scaled and _between_worlds(ctx) else ()


def reason(ctx: Context) -> str:
    """Only behind a pass that has said that the job trains: the deadline counts from when Progressing turns False."""
    old = ctx.status.condition("Progressing")
    unsaid = old is not None and old.status != "True" and old.reason != REASON and ctx.state_of_gang == "Running"
    return REASON if _saving(ctx) and not unsaid else ""


def message(ctx: Context) -> str:
    if not _saving(ctx):
        return ""
    if _may_answer(ctx):
        return f"{_change(ctx)}: asks the coordinator"
    why = live_size.refusal(ctx)
    return f"{_change(ctx)}: waits for the checkpoint" + (f", since the job must restart ({why})" if why else "")


def resize_events(size: Resize) -> tuple[Event, ...]:
    return (Event("Scaled", size.message, warning=size.reason == "CapacityLost"),)


def trains(ctx: Context) -> bool:
    """The coordinator says so: a missing trainer does not change the gang's size then."""
    return ctx.report is not None and ctx.report.phase == "Running"


def _between_worlds(ctx: Context) -> bool:
    """It trained a moment ago, and its coordinator forms another world: then it can be asked."""
    pod, report, condition = ctx.coordinator, ctx.report, ctx.status.condition("Progressing")
    if pod is None or not pod.is_serving or report is None or report.phase not in ("Waiting", "Starting"):
        return False
    if condition is None or ctx.status.state not in ("Running", "Restarting"):
        return False
    return condition.status == "True" or ctx.now < seconds(condition.last_transition_time) + WORLD_SECONDS


def patience(ctx: Context) -> float:
    """Until when a job that has trained waits for its world: one that forms again with those present needs no restart."""
    condition = ctx.status.condition("Progressing")
    if condition is None:
        return 0.0
    lost = ctx.now if condition.status == "True" else seconds(condition.last_transition_time)
    return lost + ctx.spec.start_timeout_seconds


def _change(ctx: Context) -> str:
    return f"from {ctx.status.trainers.desired} to {ctx.spec.trainers.count} trainers"


def _saving(ctx: Context) -> bool:
    """There is progress to save, and a coordinator that can do it; one that does not answer this once may do so yet."""
    pod, report = ctx.coordinator, ctx.report
    if (
        not ctx.scaled
        or live_size.is_possible(ctx)
        or pod is None
        or not pod.is_active
        or pod.deleting
        or ctx.now >= _deadline(ctx)
    ):
        return False
    if report is None:
        return pod.ready and ctx.status.state == "Running"
    return report.phase == "Running" or ctx.leaving


def _may_answer(ctx: Context) -> bool:
    """The coordinator has not said yet whether it takes the number without a restart."""
    return live_size.is_open(ctx) and ctx.now < _requested(ctx) + ANSWER_SECONDS


def _deadline(ctx: Context) -> float:
    return _requested(ctx) + DEADLINE_SECONDS


def _requested(ctx: Context) -> float:
    """Progressing turns False with the request, so its transition time is that of the request."""
    condition = ctx.status.condition("Progressing")
    asked = condition is not None and condition.reason == REASON
    return seconds(condition.last_transition_time) if condition and asked else ctx.now


def _shrunk(ctx: Context, config: JobConfig) -> Resize | None:
    """Some trainers found no node within startTimeoutSeconds, and minCount of them did: better fewer than none."""
    trainers = [p for p in ctx.pods.values() if p.role == "trainer"]
    placed = sum(bool(p.node) and p.is_active and not p.deleting for p in trainers)
    late = ctx.now >= patience(ctx) and any(ctx.now >= w.until for w in room.trainers(room.waiting(ctx)))
    if not late or trains(ctx) or placed < config.min_trainers:
        return None
    limit = ctx.spec.start_timeout_seconds
    text = f"only {placed} of {config.trainers} trainers found a node within startTimeoutSeconds ({limit})"
    return Resize(placed, ctx.spec.trainers.count, "CapacityLost", text)
