"""Reconcile: one pure function from what was observed to the actions of one pass. One policy, one file."""

from __future__ import annotations

import dataclasses

from msgspec.structs import replace

from coxswain_operator.children.scheduling import pod_group
from coxswain_operator.reconcile import (
    completion,
    deadlines,
    events,
    failure_policy,
    gang,
    incarnations,
    job_token,
    progress,
    queueing,
    retry,
    sources,
    suspend,
)
from coxswain_operator.reconcile.actions import Decision, Observed, WriteStatus, requeues
from coxswain_operator.reconcile.conditions import conditions
from coxswain_operator.reconcile.context import Context, build_context, generation
from coxswain_operator.reconcile.result import PolicyResult
from coxswain_operator.reconcile.status import JobStatus, due_at, read_status, to_manifest
from coxswain_operator.reconcile.times import stamp
from coxswain_operator.settings import Settings
from coxswain_operator.views import retry_requested

__all__ = ["Decision", "Observed", "Settings", "reconcile"]


_PODLESS = ("Suspending", "Suspended", "Completed", "Failed")  # no pod of the start is to come


def reconcile(observed: Observed, now: float, settings: Settings | None = None) -> Decision:
    """What to do now. Terminal stays terminal until a retry is requested; the status is written before anything that it
    accounts for is done.
    """
    ctx = build_context(observed, now, settings or Settings())
    if retry_requested(observed.job):
        return conclude(retry.without_pods(ctx), retry.reopen(ctx))
    if ctx.status.ended:
        return completion.reconcile_finished(ctx)
    if ctx.is_deleting:
        return completion.reconcile_deleting(ctx)
    status = job_token.noted(incarnations.mark_seen(ctx.status, ctx.pods), ctx.pods)
    ctx = dataclasses.replace(ctx, status=progress.apply_report(status, ctx.report))
    return conclude(ctx, decide(ctx))


def decide(ctx: Context) -> PolicyResult:
    """The policies in their order: ends, then suspension, then the gang."""
    suspending, found = suspend.is_requested(ctx), failure_policy.verdicts(ctx)
    ending = (
        completion.child_rejected(ctx)
        or completion.completed(ctx)
        or deadlines.exceeded(ctx)
        or failure_policy.find_fatal(ctx, found, counting=not suspending)
    )
    if ending is not None:
        return completion.terminate(ctx, ending)
    if suspending:
        return suspend.reconcile_suspend(ctx)
    return gang.refuse(ctx) if ctx.start is None else gang.reconcile_gang(ctx, ctx.start, found)


def conclude(ctx: Context, result: PolicyResult) -> Decision:
    """Turns a result into actions: one status write, deletes, creates, calls, events, and when to look again."""
    old, (reported, mark) = read_status(ctx.observed.job), events.coordinator_events(ctx)
    new = replace(
        progress.count_pods(deadlines.clocked(ctx, result), ctx),
        conditions=conditions(ctx, result),
        event_sequence=events.last_published(old, result.status, mark),
        retried=result.status.retried if old.conditions else retry.known_from_start(ctx),
        observed_generation=generation(ctx.observed.job),
    )
    due = due_at(old, new, ctx.now)
    wakes = (*result.requeue_times, *deadlines.requeue_times(ctx), due)
    current = "" if result.state in _PODLESS else _group(ctx)
    return Decision(
        (
            *(_write(ctx, new) if due <= ctx.now else ()),
            *result.deletes,
            *result.creates,
            *queueing.release_groups(ctx.kept_pods, current),
            *queueing.release_workloads(ctx.observed.admissions, ctx.observed.pods, current),
            *result.calls,
            *reported,  # before the events that follow from them
            *result.events,
            *events.transitions(old, new),
            *sources.statuses(ctx),
            *requeues(wakes, ctx.now),
        )
    )


def _group(ctx: Context) -> str:
    """Of the pods of this start, if they are queued."""
    return pod_group(ctx.observed.job, ctx.numbers.default.number)


def _write(ctx: Context, status: JobStatus) -> tuple[WriteStatus]:
    meta = ctx.observed.job["metadata"]
    plain = to_manifest(replace(status, updated_at=stamp(ctx.now)))
    return (WriteStatus("TrainingJob", meta["name"], plain, str(meta.get("resourceVersion", ""))),)
