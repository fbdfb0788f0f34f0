"""Why pods do not run yet: what the scheduler and the kubelet say, and how people are told."""

from __future__ import annotations

from collections.abc import Iterable

from coxswain_operator.reconcile.values import PodView

GATED = "SchedulingGated"  # a queue holds it back
_TOLD_GROUPS = 3


def reason(pod: PodView) -> str:
    """The scheduler's or the kubelet's word for what keeps a pod from running; empty when it is nothing unusual."""
    return pod.unscheduled_reason or pod.waiting


def homeless(pod: PodView) -> bool:
    """No node has room for it, or a queue holds it back: another pod in its place would fare the same."""
    return pod.phase == "Pending" and pod.unscheduled_reason != ""


def told(pods: Iterable[PodView]) -> str:
    """Who waits for what, for people; who waits for the same is named together."""
    groups: dict[str, list[str]] = {}
    for pod in pods:
        if reason(pod) and pod.live and not pod.deleting:
            message = pod.unscheduled if pod.unscheduled_reason else pod.waiting_message
            groups.setdefault(f"{reason(pod)}: {message}".removesuffix(": "), []).append(pod.member)
    parts = [f"{_names(members)}: {text}" for text, members in list(groups.items())[:_TOLD_GROUPS]]
    return "; ".join((*parts, *(("...",) if len(groups) > _TOLD_GROUPS else ())))


def _names(members: list[str]) -> str:
    return members[0] if len(members) == 1 else f"{members[0]} and {len(members) - 1} more"
