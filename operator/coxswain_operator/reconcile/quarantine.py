"""Nodes that get no new pods: which, and which pods of the job that concerns."""

from __future__ import annotations

from coxswain_operator.reconcile import pending
from coxswain_operator.reconcile.context import Context
from coxswain_operator.views import Event, QuarantineView


def in_force(ctx: Context) -> tuple[QuarantineView, ...]:
    """One whose time is over counts no more, and one of a node whose name another node has now."""
    return tuple(q for q in ctx.observed.quarantines if _holds(ctx, q))


def over(ctx: Context) -> tuple[QuarantineView, ...]:
    """Those of the operator that are not in force: their names are free again once they are deleted."""
    return tuple(q for q in ctx.observed.quarantines if q.job and not _holds(ctx, q))


def _holds(ctx: Context, q: QuarantineView) -> bool:
    return ctx.now < q.until and not newcomer(ctx, q)


def newcomer(ctx: Context, q: QuarantineView) -> str:
    """The uid of another node that has the name of the one in quarantine, as of a pool that uses names again; empty: none is
    known to. A node that is gone may have been added a moment ago.
    """
    found = (ctx.observed.nodes or {}).get(q.node)
    return found.uid if found is not None and q.node_uid and found.uid != q.node_uid else ""


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
