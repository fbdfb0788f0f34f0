"""Which members are lost: without a working pod, and not because the job is being ended or suspended."""

from __future__ import annotations

from dataclasses import dataclass

from coxswain.api.field_errors import shorten
from coxswain.exits import Exit
from coxswain.wire import Fault
from coxswain_operator.reconcile import completion, deadlines, pending
from coxswain_operator.reconcile.context import COORDINATOR, Context, parse_fault
from coxswain_operator.reconcile.times import seconds
from coxswain_operator.views import PodView

LEAVING = (Exit.DONE, Exit.STOPPED)  # exit codes of loaders and trainers after the coordinator announced the end
# Reasons of the runtime and the kubelet for a container whose end they missed: the machine went down.
UNKNOWN_REASONS = ("Unknown", "ContainerStatusUnknown")
# Reasons of the kubelet for a pod that it does not start at all: its devices or resources are not (yet) what the
# scheduler took them for, as after a restart of the node.
KUBELET_REASONS = (
    "UnexpectedAdmissionError", "OutOf", "NodeAffinity", "NodeShutdown", "TopologyAffinityError", "Preempting",
)  # fmt: skip
# Reasons of the runtime for a container that it could not start: its message alone says why.
NOT_STARTED = ("StartError", "ContainerCannotRun")
START_TIMEOUT = "StartTimeout"
RESUMED = "coordinator: saved before it was resumed, and starts again"
ABANDONED_SECONDS = 120  # services leave when no coordinator has answered them for a minute
MISSED_SECONDS = 120  # that a new coordinator waits for a member that left: the clock of its node may have been set


@dataclass(frozen=True, slots=True)
class MemberFailure:
    """A member without a working pod. `reason` is the container's, the pod's, or ours (Vanished, Deleted, StartTimeout ...).

    `planned`: the coordinator left because it was asked to, for another start.
    """

    member: str
    reason: str
    message: str
    disrupted: bool = False  # by the cluster or a person, not by itself
    exit_code: int | None = None
    pod: PodView | None = None
    planned: bool = False
    only_by_rule: bool = False  # a loss if a rule says so; else the pod may still start

    @property
    def reasons(self) -> frozenset[str]:
        """What a rule's onReasons may name."""
        return frozenset((self.reason, pending.reason(self.pod) if self.pod and self.pod.is_active else self.reason))

    @property
    def unprepared(self) -> bool:
        """Its node could not mount its volumes, or gave it no network."""
        return self.pod is not None and self.pod.is_active and self.pod.waiting == pending.UNPREPARED

    @property
    def lost_node(self) -> str:
        """Which node was lost, and how; empty: none was, or it is not known."""
        pod = self.pod
        if not self.disrupted or pod is None or not pod.node:
            return ""
        if ("Ready", "Gone") in pod.node_conditions or pod.disruption == "DeletionByPodGC":
            return f"node {pod.node} is gone"
        ready = ("Ready", "True") in pod.node_conditions
        down = bool({("Ready", "False"), ("Ready", "Unknown")} & pod.node_conditions)
        tainted = pod.disruption == "DeletionByTaintManager" and not ready
        return f"node {pod.node} is not ready" if down or tainted else ""

    @property
    def fault(self) -> Fault | None:
        return parse_fault(self.pod.message) if self.pod else None


def detect_failure(ctx: Context, member: str) -> MemberFailure | None:
    """None: it works, will be created, or has left as it should."""
    pod = ctx.pods.get(member)
    if pod is None:
        return _vanished(member) if member in ctx.seen else None
    if pod.is_active:
        return _failure_of_active(ctx, pod)
    return _failure_of_ended(ctx, pod)


def _vanished(member: str) -> MemberFailure:
    return MemberFailure(member, "Vanished", f"{member}: its pod has vanished", disrupted=True)


def _failure_of_active(ctx: Context, pod: PodView) -> MemberFailure | None:
    if pod.deleting:
        return MemberFailure(pod.member, "Deleted", f"{pod.member}: its pod is being deleted", disrupted=True, pod=pod)
    if pod.phase != "Pending":
        return None
    said = pending.describe((pod,)) or pod.member
    if ctx.now >= deadlines.starts_by(ctx, pod) and not pending.is_unschedulable(pod):
        text = f"{said}: not started within startTimeoutSeconds ({ctx.spec.start_timeout_seconds})"
        return MemberFailure(pod.member, START_TIMEOUT, text, pod=pod)
    if any(pending.reason(pod) in (rule.on_reasons or ()) for rule in ctx.spec.failure_policy.rules):
        return MemberFailure(pod.member, pending.reason(pod), said, pod=pod, only_by_rule=True)
    return None


def _failure_of_ended(ctx: Context, pod: PodView) -> MemberFailure | None:
    if pod.role == COORDINATOR and pod.exit_code in LEAVING:
        return _failure_of_coordinator(ctx, pod)
    if pod.role != COORDINATOR and pod.exit_code is not None and pod.exit_code in (*LEAVING, _announced_exit_code(ctx)):
        return _left(ctx, pod)
    if pod.role != COORDINATOR and pod.exit_code == Exit.RETRYABLE and _abandoned(ctx, pod):
        return _left_early(pod)
    text = f"{pod.member}: {_describe_exit(pod)}"
    return MemberFailure(
        pod.member, pod.reason or "Error", text, disrupted=_is_disrupted(pod), exit_code=pod.exit_code, pod=pod
    )


def _is_disrupted(pod: PodView) -> bool:
    """Whether the cluster or a person ended the pod. The kubelet marks every eviction as a disruption."""
    if _exceeded_own_limit(pod):
        return False
    refused = pod.exit_code is None and pod.reason.startswith(KUBELET_REASONS)
    return pod.deleting or ("DisruptionTarget", "True") in pod.conditions or pod.reason in UNKNOWN_REASONS or refused


def _exceeded_own_limit(pod: PodView) -> bool:
    """Evicted because of its own volumes or files. An eviction for a node's lack begins with `The node`."""
    return pod.pod_reason == "Evicted" and bool(pod.status_message) and not pod.status_message.startswith("The node ")


def _failure_of_coordinator(ctx: Context, pod: PodView) -> MemberFailure | None:
    """It saved and left, but the job is to go on: it is neither over nor suspended."""
    if pod.exit_code == Exit.STOPPED and ctx.scaled:
        text = f"from {ctx.status.trainers.desired} to {ctx.spec.trainers.count} trainers"
        return MemberFailure(pod.member, "ScaleChanged", text, pod=pod, planned=True)
    if pod.exit_code == Exit.STOPPED and _resumed_since(ctx, pod):
        return MemberFailure(pod.member, "Resumed", RESUMED, pod=pod, planned=True)
    if pod.exit_code == Exit.STOPPED:
        text = "the coordinator saved and left as it was asked, but the job's spec asks for no stop any more"
        return MemberFailure(pod.member, "StoppedUnasked", text, pod=pod)
    why = completion.unfinished(ctx)
    return MemberFailure(pod.member, *why, pod=pod) if why else None


def _resumed_since(ctx: Context, pod: PodView) -> bool:
    """Whether a suspension was requested and taken back while this pod ran."""
    suspended = ctx.status.condition("Suspended")
    return suspended is not None and seconds(suspended.last_transition_time) > pod.made


def _abandoned(ctx: Context, pod: PodView) -> bool:
    """No coordinator worked, or only recently: a member that gives up is no failure of its own. The operator may look later."""
    coordinator = ctx.coordinator
    if coordinator is None or coordinator.deleting or (coordinator.is_active and not coordinator.ready):
        return True
    recently = pod.finished <= coordinator.created + ABANDONED_SECONDS and coordinator.created > pod.created
    return pod.finished != 0 and (recently or pod.finished <= coordinator.ready_since)


def _announced_exit_code(ctx: Context) -> int | None:
    """The exit code that the coordinator leaves with and has announced to all members."""
    if ctx.coordinator is not None and not ctx.coordinator.is_active:
        return ctx.coordinator.exit_code
    if ctx.report is None or ctx.report.phase != "Failed" or ctx.report.fault is None:
        return None
    return Exit.RETRYABLE if ctx.report.fault.retryable else Exit.USER_FAULT


def _left(ctx: Context, pod: PodView) -> MemberFailure | None:
    """It left as its coordinator announced. After a failure, or with a new coordinator, it is needed again."""
    coordinator = ctx.coordinator
    if coordinator is None:
        return None
    replaced = coordinator.is_active and pod.finished != 0 and pod.finished <= coordinator.created
    failed = not coordinator.is_active and coordinator.exit_code not in LEAVING
    return _left_early(pod) if replaced or failed or _is_missed(ctx, pod, coordinator) else None


def _is_missed(ctx: Context, pod: PodView, coordinator: PodView) -> bool:
    """The coordinator goes on and has not let it go, or wants it again, and the gang has not been whole for long.

    One of an earlier release does not say how many trainers it wants: then it must be younger.
    """
    condition, report = ctx.status.condition("PodsReady"), ctx.report
    if not coordinator.is_active or report is None or ctx.leaving:
        return False
    wanted = pod.role != "trainer" or pod.index < report.size
    if not wanted and coordinator.created <= pod.created:
        return False
    waits = condition is not None and condition.status == "False"
    return bool(condition and waits and ctx.now >= seconds(condition.last_transition_time) + MISSED_SECONDS)


def _left_early(pod: PodView) -> MemberFailure:
    return MemberFailure(
        pod.member,
        "LeftEarly",
        f"{pod.member}: left with its coordinator, and is needed again",
        disrupted=True,
        pod=pod,
    )


def _describe_exit(pod: PodView) -> str:
    fault = parse_fault(pod.message)
    own = f"{pod.pod_reason}: {pod.status_message}" if pod.pod_reason and pod.status_message else pod.reason
    if pod.exit_code is None and pod.initializing and not own:
        own = shorten(pod.initializing, 300)
    if pod.reason in NOT_STARTED and pod.message:
        own = f"{pod.reason}: {shorten(pod.message, 300)}"
    said = f"{fault.reason}: {fault.message}" if fault else own
    code = f"exit code {pod.exit_code}" if pod.exit_code is not None else "no exit code"
    return f"{code} ({said})" if said else code
