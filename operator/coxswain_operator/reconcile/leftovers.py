"""Objects that hold the names of a job's children and are not its own.

Those of an earlier job of the same name are removed: their owner is gone. All others stay; the job waits and says so.
"""

from __future__ import annotations

from collections.abc import Iterator

from coxswain.names import LABEL_JOB_UID
from coxswain_operator.reconcile.actions import Delete
from coxswain_operator.reconcile.context import Context
from coxswain_operator.reconcile.times import seconds
from coxswain_operator.views import HolderView

_KINDS = "pod,service,configmap,secret,networkpolicy,poddisruptionbudget"


def deletes(ctx: Context) -> Iterator[Delete]:
    """Pods on lost nodes: see force_delete."""
    created = seconds(ctx.observed.job["metadata"]["creationTimestamp"]) if ctx.observed.leftovers else 0.0
    for pod in ctx.observed.leftovers:
        if not pod.deleting and pod.created <= created:
            yield Delete("Pod", pod.name, pod.uid)
    for holder in ctx.observed.holders:
        if holder.leftover and not holder.deleting and holder.kind != "Pod":
            yield Delete(holder.kind, holder.name, holder.uid)


def describe(ctx: Context) -> str:
    """What the job waits for; empty for nothing."""
    first = next(iter(ctx.observed.holders), None)
    if first is None:
        return ""
    more = len(ctx.observed.holders) - 1
    return f"NameTaken: {_describe(first, ctx.name)}{f' (and {more} more)' if more else ''}"


def _describe(holder: HolderView, job: str) -> str:
    what = f"{holder.kind} {holder.name}"
    if holder.leftover:
        return f"{what} of an earlier {holder.owner} is still there; its removal is waited for"
    if holder.former_uid:
        return f"{what} {_restored(holder, job)}"
    owner = f"belongs to {holder.owner}" if holder.owner else "belongs to no TrainingJob"
    return f"{what} {owner}; delete it, or give the job another name"


def _restored(holder: HolderView, job: str) -> str:
    """What a backup brought back without its owner. Its pods may run: only a person can say that they may go."""
    delete = f"kubectl delete {_KINDS} -l {LABEL_JOB_UID}={holder.former_uid}"
    return (
        f"has no owner and the labels of an earlier TrainingJob {job}, as after the restore of a backup; delete all that is "
        f"left of that job ({delete}), or give the job another name"
    )
