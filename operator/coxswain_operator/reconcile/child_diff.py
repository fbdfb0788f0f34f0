"""Children that are no pods: the difference between those that should exist and those that do."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from coxswain_operator.children import CONTENT, children, gangs
from coxswain_operator.children.configuration import config_map_name, job_in, record_name
from coxswain_operator.children.scheduling import pod_group
from coxswain_operator.reconcile import incarnations, resize
from coxswain_operator.reconcile.actions import Create, Delete
from coxswain_operator.reconcile.context import Context
from coxswain_operator.reconcile.pinned import Start
from coxswain_operator.reconcile.status import JobStatus
from coxswain_operator.views import ChildView

BUDGET = "PodDisruptionBudget"
BUDGET_SECONDS = 120.0  # from the last pod's readiness to the budget of a job that does not train yet


@dataclass(frozen=True, slots=True)
class ChildDiff:
    """Pods wait while `stale`: none must start from a ConfigMap that is about to be replaced."""

    deletes: tuple[Delete, ...]
    creates: tuple[Create, ...]
    stale: bool


def diff_children(ctx: Context, start: Start, status: JobStatus) -> ChildDiff:
    """Deletes what has changed; the next pass creates it. An attempt's record never changes.

    The PodDisruptionBudget is made once the whole gang trains or has been there for a while, and goes with the attempt.
    """
    job, pin, group = ctx.observed.job, start.pinned.hash, incarnations.numbers(status).default.number
    settings = start.settings_of_children(ctx.settings)
    wanted = children(job, start.config, settings, status.attempt, pin, group, ctx.size, start.recorded)
    present = {(c.kind, c.name) for c in ctx.observed.children}
    recorded = ("ConfigMap", record_name(job, pin)) in present
    contents = {(m["kind"], m["metadata"]["name"]): m["metadata"]["annotations"].get(CONTENT, "") for m in wanted}
    judged = [c for c in ctx.observed.children if not _is_kept(ctx, start, c, recorded)]
    stale = [c for c in judged if c.content != contents.get((c.kind, c.name), c.content)]
    due = (m for m in wanted if m["kind"] != BUDGET or budget_due(ctx) <= ctx.now)
    missing = [m for m in due if (m["kind"], m["metadata"]["name"]) not in present]
    missing += () if recorded else (start.record(job),)
    former = (c for c in ctx.observed.children if _is_group(ctx, c) and c.name != pod_group(job, group))
    needed = any(c.kind != BUDGET for c in stale)  # which no pod mounts
    gone = (*stale, *former, *_of_earlier_starts(ctx, (config_map_name(job, pin), record_name(job, pin))))
    return ChildDiff(_deletes(gone), tuple(Create(m) for m in missing), needed)


def lift_gang(ctx: Context) -> tuple[Delete, ...]:
    """Ends what is about pods alone, of a job that has none: a queue of Volcano's, say, cannot be closed while it has a group."""
    return (*lift_budget(ctx), *_deletes(c for c in ctx.observed.children if _is_group(ctx, c)))


def lift_budget(ctx: Context) -> tuple[Delete, ...]:
    """Ends the protection of a gang without pods: alerts on budgets ask for healthy pods, whatever the job does."""
    return _deletes(c for c in ctx.observed.children if c.kind == BUDGET)


def _deletes(found: Iterable[ChildView]) -> tuple[Delete, ...]:
    """Of those that are not on their way out already."""
    return tuple(Delete(c.kind, c.name, c.uid) for c in found if not c.deleting)


def budget_due(ctx: Context) -> float:
    """When the budget may be made; infinity while the gang is not whole, as there is nothing to protect.

    Its status is written again for every pod that comes or goes, and at each change of any pod the controller-manager looks
    through all budgets of the namespace: of many jobs that start together none has one before most of them run.
    """
    if not ctx.all_serving:
        return math.inf
    if resize.trains(ctx):
        return ctx.now
    return min(ctx.status.since("PodsReady"), ctx.now) + BUDGET_SECONDS


def requeue_times(ctx: Context) -> Iterator[float]:
    """When the budget that is missing may be made."""
    if not any(c.kind == BUDGET for c in ctx.observed.children):
        yield budget_due(ctx)


def _is_kept(ctx: Context, start: Start, child: ChildView, recorded: bool) -> bool:
    """Stays as it is, whatever it should be now.

    Without a record a ConfigMap alone knows what the attempt began with. One that says the same is not replaced because another
    release writes it in other words. Pods that hold nodes must not lose their group, as by
    another queue in a label of the job, or by an operator that writes groups in another way.
    """
    if child.kind == "ConfigMap":
        return not recorded or job_in(child.data) == start.config
    return _is_group(ctx, child) and any(p.node for p in ctx.pods.values())


def _of_earlier_starts(ctx: Context, names: Collection[str]) -> Iterator[ChildView]:
    """ConfigMaps that no pod mounts any more."""
    current = {p.uid for p in ctx.pods.values()}
    if all(p.uid in current for p in ctx.observed.pods):
        yield from (c for c in ctx.observed.children if c.kind == "ConfigMap" and c.name not in names)


def _is_group(ctx: Context, child: ChildView) -> bool:
    """A group of pods: each start has its own, and that of the start before goes."""
    backend = gangs.backend_of(ctx.settings)
    return backend is not None and child.kind == backend.kind
