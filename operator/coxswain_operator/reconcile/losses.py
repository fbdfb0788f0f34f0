"""Which members are lost: without a working pod, and not because the job is being ended or suspended."""

from __future__ import annotations

from dataclasses import dataclass

from coxswain.exits import Exit
from coxswain.wire import Fault
from coxswain_operator.reconcile import deadlines, finish, waiting
from coxswain_operator.reconcile.situation import COORDINATOR, Situation, parse_fault
from coxswain_operator.reconcile.values import PodView

LEAVING = (Exit.DONE, Exit.STOPPED)  # how loaders and trainers leave when the coordinator tells them the end
# The container runtime's and the kubelet's word for containers of whose end they know nothing: the machine went down under them.
UNWITNESSED = ("Unknown", "ContainerStatusUnknown")
DESERTED_SECONDS = 120  # services leave when no coordinator has answered them for a minute


@dataclass(frozen=True, slots=True)
class Loss:
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
        return frozenset((self.reason, waiting.reason(self.pod) if self.pod and self.pod.live else self.reason))

    @property
    def fault(self) -> Fault | None:
        return parse_fault(self.pod.message) if self.pod else None


def loss_of(s: Situation, member: str) -> Loss | None:
    """None: works, is about to be created, or has left as it should."""
    pod = s.pods.get(member)
    if pod is None:
        return _vanished(member) if member in s.seen else None
    if pod.live:
        return _loss_of_living(s, pod)
    return _loss_of_ended(s, pod)


def _vanished(member: str) -> Loss:
    return Loss(member, "Vanished", f"{member}: its pod is gone without a trace", disrupted=True)


def _loss_of_living(s: Situation, pod: PodView) -> Loss | None:
    if pod.deleting:
        return Loss(pod.member, "Deleted", f"{pod.member}: its pod is being deleted", disrupted=True, pod=pod)
    if pod.phase != "Pending":
        return None
    said = waiting.told((pod,)) or pod.member
    if s.now >= deadlines.starts_by(s, pod) and not waiting.homeless(pod):
        text = f"{said}: not started within startTimeoutSeconds ({s.spec.start_timeout_seconds})"
        return Loss(pod.member, "StartTimeout", text, pod=pod)
    if any(waiting.reason(pod) in (rule.on_reasons or ()) for rule in s.spec.failure_policy.rules):
        return Loss(pod.member, waiting.reason(pod), said, pod=pod, only_by_rule=True)
    return None


def _loss_of_ended(s: Situation, pod: PodView) -> Loss | None:
    if pod.role == COORDINATOR and pod.exit_code in LEAVING:
        return _loss_of_coordinator(s, pod)
    if pod.role != COORDINATOR and pod.exit_code is not None and pod.exit_code in (*LEAVING, _announced(s)):
        return _left(s, pod)
    if pod.role != COORDINATOR and pod.exit_code == Exit.RETRYABLE and _deserted(s, pod):
        return _left_early(pod)
    disrupted = pod.deleting or ("DisruptionTarget", "True") in pod.conditions or pod.reason in UNWITNESSED
    text = f"{pod.member}: {_how(pod)}"
    return Loss(pod.member, pod.reason or "Error", text, disrupted=disrupted, exit_code=pod.exit_code, pod=pod)


def _loss_of_coordinator(s: Situation, pod: PodView) -> Loss | None:
    """It saved and left, but the job is to go on: it is neither over nor suspended."""
    if pod.exit_code == Exit.STOPPED and s.scaled:
        text = f"from {s.status.trainers.desired} to {s.spec.trainers.count} trainers"
        return Loss(pod.member, "ScaleChanged", text, pod=pod, planned=True)
    if pod.exit_code == Exit.STOPPED:
        text = "the coordinator saved and left unasked by the job's spec"
        return Loss(pod.member, "StoppedUnasked", text, pod=pod)
    why = finish.unfinished(s)
    return Loss(pod.member, *why, pod=pod) if why else None


def _deserted(s: Situation, pod: PodView) -> bool:
    """No coordinator works, or only since a moment: who gives up then does so for its sake, and only its loss is judged."""
    coordinator = s.coordinator
    if coordinator is None or coordinator.deleting or (coordinator.live and not coordinator.ready):
        return True
    return coordinator.created > pod.created and 0 < pod.finished <= coordinator.created + DESERTED_SECONDS


def _announced(s: Situation) -> int | None:
    """The exit code with which the coordinator leaves, or is about to, and tells everybody else to."""
    if s.coordinator is not None and not s.coordinator.live:
        return s.coordinator.exit_code
    if s.report is None or s.report.phase != "Failed" or s.report.fault is None:
        return None
    return Exit.RETRYABLE if s.report.fault.retryable else Exit.USER_FAULT


def _left(s: Situation, pod: PodView) -> Loss | None:
    """Told the end by its coordinator. If that was a failure, or the coordinator has been replaced since, it is needed again."""
    coordinator = s.coordinator
    if coordinator is None:
        return None
    replaced = coordinator.live and 0 < pod.finished <= coordinator.created
    failed = not coordinator.live and coordinator.exit_code not in LEAVING
    return _left_early(pod) if replaced or failed else None


def _left_early(pod: PodView) -> Loss:
    return Loss(pod.member, "LeftEarly", f"{pod.member}: had left with its coordinator", disrupted=True, pod=pod)


def _how(pod: PodView) -> str:
    fault = parse_fault(pod.message)
    said = f"{fault.reason}: {fault.message}" if fault else pod.reason
    code = f"exit code {pod.exit_code}" if pod.exit_code is not None else "no exit code"
    return f"{code} ({said})" if said else code
