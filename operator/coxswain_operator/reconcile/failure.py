"""Failure rules: which pods are lost, what the job's policy says about each, and what follows for the counters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from coxswain.exits import Exit
from coxswain.wire import Fault
from coxswain_operator.cluster import Happening
from coxswain_operator.reconcile import attempts, finish, incarnations
from coxswain_operator.reconcile.situation import COORDINATOR, Situation, parse_fault
from coxswain_operator.reconcile.spec import Rule, RuleAction
from coxswain_operator.reconcile.status import JobStatus
from coxswain_operator.reconcile.step import Ending
from coxswain_operator.reconcile.values import PodView

LEAVING = (Exit.DONE, Exit.STOPPED)  # how loaders and trainers leave when the coordinator tells them the end


@dataclass(frozen=True, slots=True)
class Loss:
    """A member without a working pod. `reason` is the container's, the pod's, or ours (Vanished, Deleted, StartTimeout ...)."""

    member: str
    reason: str
    message: str
    disrupted: bool = False  # by the cluster or a person, not by itself
    exit_code: int | None = None
    pod: PodView | None = None

    @property
    def fault(self) -> Fault | None:
        return parse_fault(self.pod.message) if self.pod else None


@dataclass(frozen=True, slots=True)
class Verdict:
    loss: Loss
    rule: str
    action: RuleAction

    @property
    def counted(self) -> bool:
        return self.action in ("RestartTrainer", "RestartJob")

    @property
    def whole_job(self) -> bool:
        return self.action in ("RestartJob", "RestartJobIgnoringLimit")


def verdicts(s: Situation) -> tuple[Verdict, ...]:
    """One for each lost member."""
    found = (loss_of(s, member) for member in s.members)
    return tuple(judge(loss, s.spec.failure_policy.rules) for loss in found if loss)


def loss_of(s: Situation, member: str) -> Loss | None:
    """None: works, is about to be created, or has left as it should."""
    entry, pod = s.entries.get(member), s.pods.get(member)
    if entry is None or (pod is None and not entry.uid):
        return None
    if pod is None:
        return Loss(member, "Vanished", f"{member}: its pod is gone without a trace", disrupted=True)
    if pod.live:
        return _loss_of_living(s, pod)
    return _loss_of_ended(s, pod)


def _loss_of_living(s: Situation, pod: PodView) -> Loss | None:
    if pod.deleting:
        return Loss(pod.member, "Deleted", f"{pod.member}: its pod is being deleted", disrupted=True, pod=pod)
    if pod.phase == "Pending" and s.now >= pod.created + s.spec.start_timeout_seconds:
        text = f"{pod.member}: not started within startTimeoutSeconds ({s.spec.start_timeout_seconds})"
        return Loss(pod.member, "StartTimeout", text, pod=pod)
    return None


def _loss_of_ended(s: Situation, pod: PodView) -> Loss | None:
    if pod.role == COORDINATOR and pod.exit_code in LEAVING:
        return _loss_of_coordinator(s, pod)
    if pod.role != COORDINATOR and (pod.exit_code in LEAVING or pod.exit_code == _announced(s)):
        return _left(s, pod)
    disrupted = ("DisruptionTarget", "True") in pod.conditions
    text = f"{pod.member}: {_how(pod)}"
    return Loss(pod.member, pod.reason or "Error", text, disrupted=disrupted, exit_code=pod.exit_code, pod=pod)


def _loss_of_coordinator(s: Situation, pod: PodView) -> Loss | None:
    """It saved and left, but the job is to go on: it is neither over nor suspended."""
    if pod.exit_code == Exit.STOPPED:
        return Loss(pod.member, "StoppedUnasked", "the coordinator saved and left unasked by the job's spec", pod=pod)
    why = finish.unfinished(s)
    return Loss(pod.member, *why, pod=pod) if why else None


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
    if not (replaced or failed):
        return None
    return Loss(pod.member, "LeftEarly", f"{pod.member}: had left with its coordinator", disrupted=True, pod=pod)


def _how(pod: PodView) -> str:
    fault = parse_fault(pod.message)
    said = f"{fault.reason}: {fault.message}" if fault else pod.reason
    code = f"exit code {pod.exit_code}" if pod.exit_code is not None else "no exit code"
    return f"{code} ({said})" if said else code


# Behind the job's own rules. The first that matches decides.
BUILT_IN: tuple[tuple[str, Callable[[Loss], bool], RuleAction], ...] = (
    ("StopMoved", lambda loss: loss.reason in ("StoppedUnasked", "StopRaised"), "RestartJobIgnoringLimit"),
    ("UserFault", lambda loss: loss.exit_code == Exit.USER_FAULT, "Fail"),
    ("Disruption", lambda loss: loss.disrupted, "RestartTrainerIgnoringLimit"),
)


def judge(loss: Loss, rules: tuple[Rule, ...]) -> Verdict:
    """The first matching rule; else the built-in ones; else a counted restart."""
    for rule in rules:
        if matches(rule, loss):
            return Verdict(loss, rule.name, rule.action)
    for name, holds, action in BUILT_IN:
        if holds(loss):
            return Verdict(loss, name, action)
    return Verdict(loss, "Default", "RestartTrainer")


def matches(rule: Rule, loss: Loss) -> bool:
    """Everything that the rule names must hold; a rule that names nothing matches nothing."""
    tests = []
    if rule.on_exit_codes:
        inside = loss.exit_code in rule.on_exit_codes.values
        tests.append(loss.exit_code is not None and inside == (rule.on_exit_codes.operator == "In"))
    if rule.on_pod_conditions:
        tests.append(bool(_conditions_of(loss) & {(c.type, c.status) for c in rule.on_pod_conditions}))
    if rule.on_node_conditions:
        of_node = loss.pod.node_conditions if loss.pod else frozenset[tuple[str, str]]()
        tests.append(bool(of_node & {(c.type, c.status) for c in rule.on_node_conditions}))
    if rule.on_reasons:
        tests.append(loss.reason in rule.on_reasons)
    return bool(tests) and all(tests)


def _conditions_of(loss: Loss) -> frozenset[tuple[str, str]]:
    """A pod that vanished or is being deleted counts as disrupted even where the condition was never seen."""
    own = loss.pod.conditions if loss.pod else frozenset[tuple[str, str]]()
    return own | {("DisruptionTarget", "True")} if loss.disrupted else own


def fatal(s: Situation, counting: bool = True) -> Ending | None:
    """The end that the losses of this pass bring, if they do. Not `counting`: only rules that say Fail."""
    found = verdicts(s)
    for verdict in found:
        if verdict.action == "Fail":
            return _failed_by(verdict)
    limit, counted = s.spec.failure_policy.max_restarts, count(found)
    if counting and counted and s.status.restarts.counted + counted > limit:
        last = next(v for v in found if v.counted)
        text = f"{last.loss.message}; restart {limit + 1} would exceed failurePolicy.maxRestarts ({limit})"
        return _ending("RestartLimitExceeded", text, last)
    return None


def _failed_by(verdict: Verdict) -> Ending:
    fault = verdict.loss.fault
    if fault is not None:
        return _ending(fault.reason, f"{verdict.loss.member}: {fault.message}", verdict)
    return _ending("FailurePolicy", f"{verdict.loss.message}; rule {verdict.rule} says Fail", verdict)


def _ending(reason: str, message: str, verdict: Verdict) -> Ending:
    loss = verdict.loss
    return Ending("Failed", reason, message, verdict.rule, loss.exit_code, loss.pod.node if loss.pod else "")


def count(found: tuple[Verdict, ...]) -> int:
    """A restart of the whole job counts once, however many pods asked for it."""
    if any(v.whole_job for v in found):
        return int(any(v.counted for v in found))
    return sum(v.counted for v in found)


def restarted(s: Situation, found: tuple[Verdict, ...]) -> JobStatus:
    """The status after the losses: counters and new numbers. Deleting the old pods follows from the numbers."""
    counted = count(found)
    ignored = 0 if counted and any(v.whole_job for v in found) else len(found) - counted
    old = s.status.restarts
    status = replace(s.status, restarts=replace(old, counted=old.counted + counted, ignored=old.ignored + ignored))
    whole = next((v for v in found if v.whole_job), None)
    if whole is None:
        return incarnations.following(status, {v.loss.member for v in found}, s.now)
    return _next_attempt(s, status, whole)


def _next_attempt(s: Situation, status: JobStatus, verdict: Verdict) -> JobStatus:
    """Everyone anew; the gang may have another size."""
    everyone = {e.name for e in status.incarnations if e.uid}
    status = incarnations.following(status, everyone, s.now)
    cause = _ending(verdict.loss.reason, verdict.loss.message, verdict)
    return replace(attempts.following(status, cause, s.now), trainers=replace(status.trainers, desired=0))


def happenings(found: tuple[Verdict, ...]) -> tuple[Happening, ...]:
    return tuple(
        Happening(
            "NodeLost" if v.loss.disrupted else "WorkerRestarted", f"{v.loss.message}; {v.rule}: {v.action}", True
        )
        for v in found
    )
