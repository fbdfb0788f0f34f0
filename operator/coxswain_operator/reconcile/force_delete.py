"""Pods on lost nodes: no kubelet completes their deletion, and their successors must start.

They are deleted by force, as Kubernetes' out-of-service handling does. Their processes may still run
behind a broken network: the create-only plan log and the world generation refuse their messages.
"""

from __future__ import annotations

from collections.abc import Iterator

from coxswain_operator.reconcile.actions import Delete
from coxswain_operator.reconcile.context import Context
from coxswain_operator.reconcile.times import stamp
from coxswain_operator.views import PodView

MARGIN_SECONDS = 30  # beyond the grace period, for a kubelet that is merely slow
LATE_SECONDS = 120  # beyond it, on a node that works
LOOK_SECONDS = 10  # a change of a node starts no pass
_DOWN = frozenset({("Ready", "False"), ("Ready", "Gone")})


def force_deletes(ctx: Context) -> Iterator[Delete]:
    for pod in (*ctx.observed.pods, *ctx.observed.leftovers):
        if pod.deleting and pod.node and not pod.forced and _lost(pod, ctx.now):
            yield Delete("Pod", pod.name, pod.uid, force=True)


def requeue_times(ctx: Context) -> tuple[float, ...]:
    """While a deletion takes longer than it may."""
    late = any(pod.deleting and pod.occupies and pod.node for pod in ctx.observed.pods)
    return (ctx.now + LOOK_SECONDS,) if late else ()


def describe(ctx: Context) -> str:
    """Which pod stays though it is deleted; empty: none. Its member gets no other one, since two might run."""
    there = [p for p in ctx.observed.pods if p.deleting and p.occupies and p.node]
    kept = [p for p in there if p.forced]
    late = [p for p in there if not _lost(p, ctx.now) and p.grace_ends + LATE_SECONDS <= ctx.now]
    return _describe_kept(kept) if kept else _describe_late(late) if late else ""


def _describe_kept(pods: list[PodView]) -> str:
    return (
        f"FinalizerKept: Pod {pods[0].name} on {pods[0].node} is deleted, and a finalizer keeps it{_more(pods)}: once its node "
        "has surely ended, remove the finalizer; of Kueue's pods its feature gate FailureRecoveryPolicy does so"
    )


def _describe_late(pods: list[PodView]) -> str:
    first = pods[0]
    return (
        f"TerminationLate: Pod {first.name} on {first.node} was to end at {stamp(first.deletes_at)}, and its node has not ended "
        f"it{_more(pods)}: look at that node (a process in a device's driver ends with a reboot alone); once its processes have "
        f"surely ended, `kubectl delete pod {first.name} --force` lets its successor start"
    )


def _more(pods: list[PodView]) -> str:
    return f" (and {len(pods) - 1} more)" if len(pods) > 1 else ""


def _lost(pod: PodView, now: float) -> bool:
    """Unknown: the control plane gets no heartbeat. Otherwise the grace period must be over too.

    A node that is not in the cache yet looks as if it were gone. What the taint manager deleted counts where no node is seen:
    a taint of an administrator's is on a node that works.
    """
    if ("Ready", "Unknown") in pod.node_conditions:
        return True
    tainted = pod.disruption == "DeletionByTaintManager" and ("Ready", "True") not in pod.node_conditions
    return (tainted or bool(_DOWN & pod.node_conditions)) and pod.grace_ends + MARGIN_SECONDS <= now
