"""Pods on lost nodes: no kubelet completes their deletion, and their successors must start.

They are deleted by force, as Kubernetes' out-of-service handling does. Their processes may still run
behind a broken network: the create-only plan log and the world generation refuse their messages.
"""

from __future__ import annotations

from collections.abc import Iterator

from coxswain_operator.reconcile.actions import Delete
from coxswain_operator.reconcile.context import Context
from coxswain_operator.views import PodView

MARGIN_SECONDS = 30  # beyond the grace period, for a kubelet that is merely slow
LOOK_SECONDS = 10  # a change of a node starts no pass
_DOWN = frozenset({("Ready", "False"), ("Ready", "Gone")})


def force_deletes(ctx: Context) -> Iterator[Delete]:
    for pod in (*ctx.observed.pods, *ctx.observed.leftovers):
        if pod.deleting and pod.node and _lost(pod, ctx.now):
            yield Delete("Pod", pod.name, pod.uid, force=True)


def requeue_times(ctx: Context) -> tuple[float, ...]:
    """While a deletion takes longer than it may."""
    late = any(pod.deleting and pod.occupies and pod.node and pod.deletes_at for pod in ctx.observed.pods)
    return (ctx.now + LOOK_SECONDS,) if late else ()


def _lost(pod: PodView, now: float) -> bool:
    """Unknown: the control plane gets no heartbeat. Otherwise the grace period must be over too.

    A node that is not in the cache yet looks as if it were gone.
    """
    if ("Ready", "Unknown") in pod.node_conditions:
        return True
    down = bool(_DOWN & pod.node_conditions) or pod.disruption == "DeletionByTaintManager"
    return down and 0 < pod.deletes_at + MARGIN_SECONDS <= now
