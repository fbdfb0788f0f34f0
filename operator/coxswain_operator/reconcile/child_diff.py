"""Children that are no pods: the difference between those that should exist and those that do."""

from __future__ import annotations

from dataclasses import dataclass

from coxswain.config import JobConfig
from coxswain_operator.children import CONTENT, children
from coxswain_operator.reconcile.actions import Create, Delete
from coxswain_operator.reconcile.context import Context
from coxswain_operator.reconcile.status import JobStatus


@dataclass(frozen=True, slots=True)
class ChildDiff:
    """Pods wait while `stale`: none must start from a ConfigMap that is about to be replaced."""

    deletes: tuple[Delete, ...]
    creates: tuple[Create, ...]
    stale: bool


def diff_children(ctx: Context, config: JobConfig, status: JobStatus) -> ChildDiff:
    """Deletes what has changed; the next pass creates it.

    A PodDisruptionBudget is made once the whole gang is there, and goes with the attempt: before, there is nothing to
    protect, and its status would be written again for every pod that comes or goes.
    """
    wanted = children(ctx.observed.job, config, ctx.settings, status.attempt)
    contents = {(m["kind"], m["metadata"]["name"]): m["metadata"]["annotations"].get(CONTENT, "") for m in wanted}
    stale = [c for c in ctx.observed.children if c.content != contents.get((c.kind, c.name), c.content)]
    present = {(c.kind, c.name) for c in ctx.observed.children}
    due = (m for m in wanted if ctx.all_serving or m["kind"] != "PodDisruptionBudget")
    missing = (m for m in due if (m["kind"], m["metadata"]["name"]) not in present)
    deletes = tuple(Delete(c.kind, c.name, c.uid) for c in stale if not c.deleting)
    return ChildDiff(deletes, tuple(Create(m) for m in missing), bool(stale))
