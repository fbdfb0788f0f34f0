"""Nodes that get no new pods: which, and which pods of the job that concerns."""

from __future__ import annotations

from coxswain_operator.reconcile import pending
from coxswain_operator.reconcile.context import Context
from coxswain_operator.views import Event, QuarantineView


def in_force(ctx: Context) -> tuple[QuarantineView, ...]:
    """One whose time is over counts no more."""
    return tuple(q for q in ctx.observed.quarantines if ctx.now < q.until)


def over(ctx: Context) -> tuple[QuarantineView, ...]:
    """Those of the operator whose time is over: their names are free again once they are deleted."""
    return tuple(q for q in ctx.observed.quarantines if q.job and q.until <= ctx.now)


def avoided(ctx: Context) -> tuple[str, ...]:
    """Names of the nodes, in their order."""
    return tuple(sorted({q.node for q in in_force(ctx)}))


def readmitted(ctx: Context) -> set[str]:
    """Members that wait for a node, and whose pod may not use one that is admitted again: another pod may."""
    avoid = set(avoided(ctx))
    return {m for m, p in ctx.pods.items() if pending.lacks_node(p) and not avoid.issuperset(p.avoids)}


def left(ctx: Context) -> set[str]:
    """Trainers that leave their node now: it is in quarantine because this job asked for another one."""
    uid = ctx.observed.job["metadata"]["uid"]
    nodes = {q.node for q in in_force(ctx) if q.job == uid}
    return {m for m, p in ctx.pods.items() if p.role == "trainer" and p.is_active and p.node in nodes}


def events(left: set[str], ctx: Context) -> tuple[Event, ...]:
    moved = ", ".join(f"{member} from {ctx.pods[member].node}" for member in sorted(left))
    return (Event("PodDisrupted", f"moved off a node in quarantine: {moved}"),) if left else ()


def requeue_times(ctx: Context) -> tuple[float, ...]:
    """When quarantines end."""
    return tuple(q.until for q in in_force(ctx) if q.until < float("inf"))
