"""A job that has ended starts again from its last checkpoint, when an annotation asks for it."""

from __future__ import annotations

import dataclasses

from msgspec import UNSET
from msgspec.structs import replace

from coxswain_operator.reconcile import attempts, incarnations
from coxswain_operator.reconcile.actions import Delete
from coxswain_operator.reconcile.context import Context
from coxswain_operator.reconcile.result import PolicyResult
from coxswain_operator.reconcile.status import Restarts
from coxswain_operator.views import Event, retry_value


def without_pods(ctx: Context) -> Context:
    """The job as the retry begins it: pods of the ended attempt, and so the report of its coordinator, are not of it."""
    return dataclasses.replace(ctx, observed=dataclasses.replace(ctx.observed, pods=()))


def known_from_start(ctx: Context) -> str | None:
    """The annotation that the job is created with, as of a manifest that was copied: it asks for nothing that is to come."""
    return retry_value(ctx.observed.job) or None


def reopen(ctx: Context) -> PolicyResult:
    """Begins an attempt with fresh counters. History, progress and checkpoint stay."""
    status = replace(
        attempts.unsettled(incarnations.renew_all(ctx.status, ctx.now)),
        attempt=ctx.status.attempt + 1,
        restarts=Restarts(),
        gang=UNSET,
        retried=retry_value(ctx.observed.job),
        start_time=None,
        completion_time=None,
        active_seconds=0,
    )
    event = Event("Resumed", f"retried after {ctx.status.state}")
    deletes = tuple(Delete("Pod", p.name, p.uid) for p in ctx.observed.pods if not p.deleting)
    return PolicyResult("Starting", status, deletes=deletes, events=(event,), requeue_times=(ctx.now + 1,))
