"""Suspension: save a checkpoint, then run no pods. Also the stop at a step that an annotation asks for."""

from __future__ import annotations

from msgspec import UNSET
from msgspec.structs import replace

from coxswain.exits import Exit
from coxswain.names import ANNOTATION_STOP_AT
from coxswain_operator.reconcile import attempts, child_diff, force_delete, incarnations, room
from coxswain_operator.reconcile.actions import CheckpointAndStop, Delete
from coxswain_operator.reconcile.context import Context
from coxswain_operator.reconcile.result import PolicyResult
from coxswain_operator.reconcile.times import seconds

DEADLINE_SECONDS = 600  # for the checkpoint; then the pods go without it
_LONGEST_STEP = 15  # digits: Python refuses to read thousands, and no job has so many steps


def is_requested(ctx: Context) -> bool:
    return ctx.spec.suspend or _stopped_at_step(ctx)


def stop_step(ctx: Context) -> int | None:
    """The step that `cox run --until-step` put on the job; it binds until the annotation is taken away."""
    value = ctx.annotations.get(ANNOTATION_STOP_AT, "")
    return int(value) if value.isdecimal() and len(value) <= _LONGEST_STEP else None


def _stopped_at_step(ctx: Context) -> bool:
    """The step is reached and saved, and the coordinator has left because of it."""
    step, checkpoint = stop_step(ctx), ctx.status.last_checkpoint
    if step is None or checkpoint is None or checkpoint.step < step:
        return False
    left = ctx.coordinator is not None and ctx.coordinator.exit_code == Exit.STOPPED
    return left or ctx.status.is_("Suspended") or ctx.status.is_("Suspended", "Unknown")


def calls(ctx: Context) -> tuple[CheckpointAndStop, ...]:
    """What a running job's coordinator has to know about a stop at a step."""
    step = stop_step(ctx)
    if step is None or ctx.observed.report is None:
        return ()
    return (CheckpointAndStop(f"stop at step {step}", step),)


def reconcile_suspend(ctx: Context) -> PolicyResult:
    """One pass towards, or in, suspension. New numbers are stored before the old pods go, so that their going is no loss."""
    status = ctx.status
    renewed, forced = incarnations.renew_all(status, ctx.now), tuple(force_delete.force_deletes(ctx))
    if not ctx.observed.pods:
        status = replace(attempts.unsettled(renewed), gang=UNSET)
        text = "; ".join(filter(None, (_saved(ctx), room.refusal(ctx))))
        return PolicyResult("Suspended", status, "Suspended", text, child_diff.lift_gang(ctx))
    if ctx.coordinator is not None and ctx.coordinator.is_active and _has_begun(ctx) and ctx.now < _deadline(ctx):
        call = CheckpointAndStop("suspended")
        text = "waits for the checkpoint, then for the pods to leave"
        times = (_deadline(ctx), *force_delete.requeue_times(ctx))
        return PolicyResult("Suspending", status, "Suspending", text, forced, calls=(call,), requeue_times=times)
    gone = (*(Delete("Pod", p.name, p.uid) for p in ctx.observed.pods if not p.deleting), *forced)
    text = "; ".join(filter(None, ("waits for the pods to leave", room.refusal(ctx), force_delete.describe(ctx))))
    return PolicyResult(
        "Suspending", renewed, "Suspending", text, deletes=gone, requeue_times=force_delete.requeue_times(ctx)
    )


def _has_begun(ctx: Context) -> bool:
    """Where no pod runs or has a node, as in a queue, there is nothing to save. Pods of the local cluster never have a node."""
    return any(p.node or p.phase == "Running" for p in ctx.observed.pods)


def _deadline(ctx: Context) -> float:
    """Suspended is Unknown from the request on, so its last transition is the request's time."""
    condition = ctx.status.condition("Suspended")
    begun = seconds(condition.last_transition_time) if condition and condition.status == "Unknown" else ctx.now
    return begun + DEADLINE_SECONDS


def _saved(ctx: Context) -> str:
    checkpoint = ctx.status.last_checkpoint
    return (
        f"saved before step {checkpoint.step}"
        if checkpoint
        else "no checkpoint exists: it will start from the beginning"
    )
