"""Why pods do not run yet: the reasons of scheduler and kubelet, and their text for users."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from coxswain.api.resolve import claims
from coxswain.config import JobConfig
from coxswain_operator.children.containers import endpoint_secrets
from coxswain_operator.views import PodView

GATED = "SchedulingGated"  # a queue holds it back
UNPREPARED = "NotPrepared"
PREPARED_SECONDS = 30  # a node that takes longer to mount volumes and connect the network probably lacks something
_MAX_GROUPS = 3


def reason(pod: PodView) -> str:
    """The scheduler's or kubelet's reason that a pod does not run; empty for ordinary ones."""
    return pod.unscheduled_reason or pod.waiting


def is_unschedulable(pod: PodView) -> bool:
    """No node has room for it, or a queue holds it back: another pod in its place would fare the same."""
    return pod.phase == "Pending" and pod.unscheduled_reason != ""


def lacks_node(pod: PodView) -> bool:
    """No node has room for it."""
    return is_unschedulable(pod) and pod.unscheduled_reason != GATED


def describe(pods: Iterable[PodView]) -> str:
    """Which members wait for what; members with the same reason share an entry."""
    groups: dict[str, list[str]] = {}
    for pod in pods:
        if (text := _described(pod)) and pod.is_active and not pod.deleting:
            groups.setdefault(text, []).append(pod.member)
    parts = [f"{_names(members)}: {text}" for text, members in list(groups.items())[:_MAX_GROUPS]]
    return "; ".join((*parts, *(("...",) if len(groups) > _MAX_GROUPS else ())))


def _described(pod: PodView) -> str:
    if not reason(pod):
        return pod.initializing
    message = pod.unscheduled if pod.unscheduled_reason else pod.waiting_message
    held = pod.unscheduled_reason == GATED and pod.group  # its Workload has the group's name
    queue = f"`kubectl describe workload {pod.group}` shows what its queue waits for" if held else ""
    return "; ".join(filter(None, (f"{reason(pod)}: {message}".removesuffix(": "), queue)))


def _names(members: list[str]) -> str:
    return members[0] if len(members) == 1 else f"{members[0]} and {len(members) - 1} more"


def with_mount_hint(pod: PodView, config: JobConfig | None, token: str, now: float) -> PodView:
    """Names what the pod mounts, with its `token`: only its own events, which are not read, say that a mount fails."""
    if not _unprepared(pod) or now < _hint_at(pod):
        return pod
    return replace(pod, waiting=UNPREPARED, waiting_message=_mounts(config, token))


def requeue_times(pods: Iterable[PodView]) -> set[float]:
    """When to look again for pods that their nodes have not prepared."""
    return {_hint_at(p) for p in pods if _unprepared(p)}


def _unprepared(pod: PodView) -> bool:
    """On a node that has mounted no volume of it and given it no network yet; images come after that."""
    return pod.phase == "Pending" and pod.scheduled != 0 and ("PodReadyToStartContainers", "False") in pod.conditions


def _hint_at(pod: PodView) -> float:
    return pod.scheduled + PREPARED_SECONDS


def _mounts(config: JobConfig | None, token: str) -> str:
    mounted = [f"Secret {name}" for name in endpoint_secrets(config)] if config else []
    mounted += [f"PersistentVolumeClaim {name}" for name in claims(config)] if config else []
    asked = f"is there {', '.join((*mounted, token))}?"
    shown = "`kubectl describe pod` shows the node's message"
    return f"its node could not mount its volumes for {PREPARED_SECONDS} s: {asked} {shown}"
