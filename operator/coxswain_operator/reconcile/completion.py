"""The end of a job: when it is Completed, what stays afterwards, and for how long."""

from __future__ import annotations

from msgspec.structs import replace

from coxswain.exits import Exit
from coxswain_operator.children.pods import SERVICES
from coxswain_operator.reconcile import attempts, child_diff, deadlines, force_delete, queueing, room
from coxswain_operator.reconcile.actions import Decision, Delete, WriteStatus, requeues
from coxswain_operator.reconcile.context import Context, generation
from coxswain_operator.reconcile.result import PolicyResult, Termination
from coxswain_operator.reconcile.status import to_manifest
from coxswain_operator.reconcile.times import seconds, stamp
from coxswain_operator.views import Event, PodView

LEAVE_SECONDS = 15  # that pods of a completed job have to leave by themselves


def completed(ctx: Context) -> Termination | None:
    """The coordinator left with 0, and the last checkpoint exists."""
    pod, report = ctx.coordinator, ctx.report
    if pod is None or pod.exit_code != Exit.DONE or unfinished(ctx):
        return None
    reason = report.reason if report and report.reason else "StopReached"
    return Termination("Completed", reason, f"at step {report.step}" if report else "")


def child_rejected(ctx: Context) -> Termination | None:
    """The cluster will never accept one of the job's children, such as a pod of an impossible template.

    One that it may accept later (a quota is used up) is waited for. So is every child of a job whose pods the cluster has
    taken: a limit, a webhook or a rule that came later refuses it, and may go again.
    """
    fault = ctx.observed.rejection
    if fault is None or fault.retryable or _was_taken(ctx):
        return None
    return Termination("Failed", fault.reason, fault.message)


def _was_taken(ctx: Context) -> bool:
    """The cluster has taken pods of each role, in this start or in one that trained."""
    roles = {member.partition("-")[0] for member in ctx.seen}
    return roles.issuperset(SERVICES) or ctx.status.progress is not None


def unfinished(ctx: Context) -> tuple[str, str] | None:
    """Why a coordinator's exit code 0 does not end the job: reason and message."""
    report = ctx.report
    if report is None:
        return None
    if report.checkpoint_step < report.step:
        return "FinalCheckpointMissing", "the coordinator left without the last checkpoint"
    if report.reason == "StopReached" and 0 < report.steps < ctx.wanted_steps:
        return "StopRaised", f"stop was raised from {report.steps} to {ctx.wanted_steps} steps while the job ran"
    return None


def terminate(ctx: Context, ending: Termination) -> PolicyResult:
    """The pass that ends the job: status first, then, if it failed, what still runs."""
    failed = ending.state == "Failed"
    status = replace(attempts.close_attempt(ctx.status, ending, ctx.now), completion_time=stamp(ctx.now))
    own = ending.rule in {rule.name for rule in ctx.spec.failure_policy.rules}  # users know only their own rules
    rule = f" (rule {ending.rule})" if own else ""
    event = Event("Failed" if failed else "Completed", f"{ending.reason}: {ending.message}{rule}", warning=failed)
    return PolicyResult(
        ending.state,
        status,
        ending.reason,
        ending.message,
        deletes=tuple(_delete(p) for p in _running(ctx)) if failed else (),
        events=(event,),
        requeue_times=() if failed else (ctx.now + LEAVE_SECONDS,),
    )


def reconcile_finished(ctx: Context) -> Decision:
    """Passes after the end: creates nothing, changes no status, keeps ended pods for their logs."""
    if ctx.now >= deadlines.expires(ctx) and not ctx.is_deleting:
        meta = ctx.observed.job["metadata"]
        return Decision((Delete("TrainingJob", ctx.name, meta["uid"]), *_refused(ctx)))
    leave = seconds(ctx.status.completion_time) + LEAVE_SECONDS * (ctx.status.state != "Failed")
    due = tuple(_delete(p) for p in _running(ctx)) if ctx.now >= leave else ()
    times = (leave, deadlines.expires(ctx), *force_delete.requeue_times(ctx))
    return Decision(
        (
            *_observed(ctx),
            *due,
            *(() if any(p.occupies for p in ctx.observed.pods) else child_diff.lift_gang(ctx)),
            *force_delete.force_deletes(ctx),
            *queueing.release_groups(ctx.kept_pods),
            *queueing.release_workloads(ctx.observed.admissions, ctx.observed.pods),
            *_refused(ctx),
            *requeues(times, ctx.now),
        )
    )


def _observed(ctx: Context) -> tuple[WriteStatus, ...]:
    """Says that an edit was seen, which changes nothing. Tools that apply a job and wait for it take one that lags for busy, and
    `kubectl wait` a condition that does."""
    meta, newest = ctx.observed.job["metadata"], generation(ctx.observed.job)
    if ctx.is_deleting or not 0 < ctx.status.observed_generation < newest:
        return ()
    conditions = tuple(replace(condition, observed_generation=newest) for condition in ctx.status.conditions)
    written = ctx.status.updated_at or stamp(ctx.now)  # a status that was restored by hand may lack it
    status = to_manifest(replace(ctx.status, observed_generation=newest, conditions=conditions, updated_at=written))
    return (WriteStatus("TrainingJob", ctx.name, status, str(meta.get("resourceVersion", ""))),)


def reconcile_deleting(ctx: Context) -> Decision:
    """Passes over a job that a finalizer keeps: creates and replaces nothing. The garbage collector removes the children."""
    return Decision(
        (
            *force_delete.force_deletes(ctx),
            *queueing.release_groups(ctx.kept_pods),
            *queueing.release_workloads(ctx.observed.admissions, ctx.observed.pods),
            *_refused(ctx),
            *requeues(force_delete.requeue_times(ctx), ctx.now),
        )
    )


def _refused(ctx: Context) -> tuple[Event, ...]:
    """What keeps pods of a job whose status is written no more. Repeated, since the cluster forgets old events."""
    text = room.refusal(ctx)
    return (Event("FailedDelete", text, warning=True),) if text else ()


def _running(ctx: Context) -> tuple[PodView, ...]:
    return tuple(p for p in ctx.observed.pods if p.occupies and not p.deleting)


def _delete(pod: PodView) -> Delete:
    return Delete("Pod", pod.name, pod.uid)
