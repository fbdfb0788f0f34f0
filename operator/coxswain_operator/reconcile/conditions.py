"""All conditions of a job, every pass, with transition times that move only when a status does."""

from __future__ import annotations

from typing import Final

from coxswain.api.pod_template import former_note
from coxswain.names import CONDITIONS
from coxswain_operator.reconcile import live_size, pending
from coxswain_operator.reconcile.context import UNSCHEDULABLE, Context, generation
from coxswain_operator.reconcile.result import PolicyResult
from coxswain_operator.reconcile.status import Condition, Straggler
from coxswain_operator.reconcile.times import stamp

_Facts = tuple[str, str, str]  # status, reason, message
EDIT_PENDING: Final = "EditPending"
STATUS_OF_END = {"Completed": "True", "Failed": "False"}


def conditions(ctx: Context, result: PolicyResult) -> tuple[Condition, ...]:
    deciders = {
        "Succeeded": _succeeded, "Validated": _validated, "DataReady": _data_ready, "PodsReady": _pods_ready,
        "Progressing": _progressing, "Degraded": _degraded, "Suspended": _suspended, "CheckpointFresh": _fresh,
    }  # fmt: skip
    return tuple(_condition(ctx, type_, deciders[type_](ctx, result)) for type_ in CONDITIONS)


def _condition(ctx: Context, type_: str, facts: _Facts) -> Condition:
    status, reason, message = facts
    old = ctx.status.condition(type_)
    since = old.last_transition_time if old and old.status == status else stamp(ctx.now)
    return Condition(
        type=type_, status=status, reason=(reason or "Unknown")[:128], message=message[:1024],
        last_transition_time=since, observed_generation=generation(ctx.observed.job),
    )  # fmt: skip


def _succeeded(ctx: Context, result: PolicyResult) -> _Facts:
    """The summary: its reason is the state that people see."""
    detail = f"{result.reason}: {result.message}" if result.reason and result.reason != result.state else result.message
    return STATUS_OF_END.get(result.state, "Unknown"), result.state, detail


def _validated(ctx: Context, result: PolicyResult) -> _Facts:
    if ctx.faults and result.state != "Completed":  # whatever was deleted since, it was complete then
        return "False", ctx.faults[0].reason, "; ".join(f.message for f in ctx.faults)
    note = former_note(ctx.observed.job["spec"])
    if ctx.edits:
        return "True", EDIT_PENDING, "; ".join(filter(None, (ctx.edits, note)))
    return "True", "Resolved", note


def _data_ready(ctx: Context, result: PolicyResult) -> _Facts:
    if ctx.report is None or ctx.report.phase == "Waiting":
        old = ctx.status.condition("DataReady")
        return (old.status, old.reason, old.message) if old else ("Unknown", "NotIndexed", "")
    if ctx.report.phase == "Indexing":
        return "False", "Indexing", ctx.report.waiting_for
    return "True", "Indexed", ""


def _pods_ready(ctx: Context, result: PolicyResult) -> _Facts:
    if result.state in STATUS_OF_END:
        return "False", "JobEnded", ""
    if result.state in ("Suspending", "Suspended"):
        return "False", "Suspended", ""
    if not ctx.all_serving:
        names = f"not ready: {', '.join(ctx.not_serving[:5])}{' ...' if len(ctx.not_serving) > 5 else ''}"
        return "False", "PodsNotReady", "; ".join(filter(None, (names, pending.describe(ctx.pods.values()))))
    return "True", "AllPodsReady", ""


def _progressing(ctx: Context, result: PolicyResult) -> _Facts:
    if result.state == "Running" and not result.reason:
        return "True", "Training", result.message
    return "False", result.reason or result.state, result.message


def _degraded(ctx: Context, result: PolicyResult) -> _Facts:
    if ctx.report is not None and ctx.report.fault is not None and result.state not in STATUS_OF_END:
        return "True", ctx.report.fault.reason, ctx.report.fault.message
    if _is_disturbed(ctx, result):
        return "True", "Restarting", result.message
    if result.state not in STATUS_OF_END and (fewer := _fewer(ctx)):
        return "True", "CapacityLost", fewer
    if result.status.stragglers and result.state == "Running":
        return "True", "Straggler", _slow(result.status.stragglers)
    return "False", "AsExpected", ""


def _fewer(ctx: Context) -> str:
    """The gang started with too few trainers, or trains while some find no node."""
    size = ctx.status.trainers
    present = size.desired - live_size.without_room(ctx)
    return f"runs with {present} of {size.asked} trainers: there was no room for more" if present < size.asked else ""


def _slow(stragglers: tuple[Straggler, ...]) -> str:
    """The slowest one, and how many more there are."""
    worst, more = stragglers[0], len(stragglers) - 1
    where = f"device {worst.device} of {worst.trainer}" + (f" ({worst.node})" if worst.node else "")
    text = f"{where} computes {worst.slowdown} times as long as planned since {worst.since} ({worst.cause})"
    return "; ".join(filter(None, (text, worst.action, f"and {more} more" * bool(more))))


def _is_disturbed(ctx: Context, result: PolicyResult) -> bool:
    """Whether it restarts unasked: a pod failed, or a world was lost. A scale and a resumption are planned."""
    if result.state not in ("Restarting", UNSCHEDULABLE):
        return False
    old = ctx.status.condition("Degraded")
    fell = ctx.status.state == "Running" and result.status.attempt == ctx.status.attempt
    return fell or result.status.restarts != ctx.status.restarts or (old is not None and old.reason == "Restarting")


def _suspended(ctx: Context, result: PolicyResult) -> _Facts:
    """Unknown between the request and the last pod's leaving, so its transition time is that of the request."""
    status = {"Suspended": "True", "Suspending": "Unknown"}.get(result.state, "False")
    return status, result.state if status != "False" else "NotSuspended", result.message if status != "False" else ""


def _fresh(ctx: Context, result: PolicyResult) -> _Facts:
    report = ctx.report
    unread = report is not None and report.checkpoint_step < 0 and ctx.status.last_checkpoint is not None
    if report is None or unread:  # a new coordinator waits for its store, or for the location
        old = ctx.status.condition("CheckpointFresh")
        return (old.status, old.reason, old.message) if old else ("Unknown", "NotReported", "")
    if report.checkpoint_step < 0:
        return "False", "NoCheckpoint", "no checkpoint yet"
    behind, every = report.step - report.checkpoint_step, ctx.spec.checkpoint.every_steps
    if behind > 2 * every:
        return "False", "Stale", f"{behind} steps since the last checkpoint; everySteps is {every}"
    return "True", "Saved", ""
