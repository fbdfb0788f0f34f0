"""Children that are no pods: the difference between those that should exist and those that do."""

from __future__ import annotations

from dataclasses import dataclass

from coxswain.config import JobConfig
from coxswain_operator.children import CONTENT, children, gangs
from coxswain_operator.reconcile import incarnations
from coxswain_operator.reconcile.actions import Create, Delete
from coxswain_operator.reconcile.context import Context
from coxswain_operator.reconcile.status import JobStatus
from coxswain_operator.views import ChildView


@dataclass(frozen=True, slots=True)
class ChildDiff:
    """Pods wait while `stale`: none must start from a ConfigMap that is about to be replaced."""

    deletes: tuple[Delete, ...]
    creates: tuple[Create, ...]
    stale: bool


def diff_children(ctx: Context, config: JobConfig, status: JobStatus) -> ChildDiff:
    """Deletes what has changed; the next pass creates it. The Secret has no hash: it never changes.

    A PodDisruptionBudget is made once the whole gang is there, and goes with the attempt: before, there is nothing to
    protect, and its status would be written again for every pod that comes or goes.
    """
    start = incarnations.numbers(status).default.number
    wanted = children(ctx.observed.job, config, ctx.settings, ctx.observed.fresh_token, status.attempt, start)
    contents = {(m["kind"], m["metadata"]["name"]): m["metadata"]["annotations"].get(CONTENT, "") for m in wanted}
    stale = [c for c in ctx.observed.children if c.content != contents.get((c.kind, c.name), c.content)]
    present = {(c.kind, c.name) for c in ctx.observed.children}
    due = (m for m in wanted if ctx.all_serving or m["kind"] != "PodDisruptionBudget")
    missing = (m for m in due if (m["kind"], m["metadata"]["name"]) not in present)
    former = [c for c in ctx.observed.children if _is_group(ctx, c) and (c.kind, c.name) not in contents]
    deletes = tuple(Delete(c.kind, c.name, c.uid) for c in (*stale, *former) if not c.deleting)
    return ChildDiff(deletes, tuple(Create(m) for m in missing), bool(stale))


def _is_group(ctx: Context, child: ChildView) -> bool:
    """A group of pods: each start has its own, and that of the start before goes."""
    backend = gangs.backend_of(ctx.settings)
    return backend is not None and child.kind == backend.kind
