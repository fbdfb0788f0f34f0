"""Groups of pods that have ended. Kueue keeps their pods and their quota until it is notified.

It expects a successor for every pod of a group that fails or is deleted, and keeps the dead one until then (a finalizer).
Ours stay within their group while a start lasts; a new start is a new group, and the old one gets no successors any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from coxswain_operator.reconcile.actions import LeaveQueue
from coxswain_operator.views import AdmissionView, PodView


def release_groups(pods: Sequence[PodView], current: str = "") -> Iterator[LeaveQueue]:
    """The releases of all groups but the `current` one.

    A mark on one pod ends a group whose pods have all come to an end, and leaves them where they are, for their logs.
    Deleted pods that never had a node never come to an end: only the end of their Workload frees them.
    """
    for group in sorted({p.group for p in pods} - {"", current}):
        members = [p for p in pods if p.group == group]
        if any(p.occupies and not p.deleting for p in members):
            continue
        if any(p.is_held for p in members):
            yield LeaveQueue(group)
        elif not any(p.given_up for p in members):
            first = min(members, key=lambda p: (p.deleting, p.name))
            yield LeaveQueue(group, first.name, first.uid)


def release_workloads(
    workloads: Sequence[AdmissionView] | None, pods: Sequence[PodView], current: str = ""
) -> Iterator[LeaveQueue]:
    """The releases of the operator's own Workloads that have no pods, but for the `current` one: they would take a share.

    A deactivated one takes none, and holds the job back until it ends or is suspended.
    """
    groups = {p.group for p in pods} | {current}
    yield from (LeaveQueue(w.name) for w in workloads or () if w.name not in groups and (w.active or not current))
